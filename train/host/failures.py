"""What ends a run that was rightly asked for."""


class BadNumbersError(ArithmeticError):
    """An update made numbers that are not finite; the run is saved as it was before."""


class FailedCheckError(AssertionError):
    """A check of --debug has failed."""


FAILURES = (BadNumbersError, FailedCheckError)
