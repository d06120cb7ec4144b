"""What ends a run that was rightly asked for."""


class BadNumbersError(ArithmeticError):
    """An update made numbers that are not finite; the run is saved as it was before."""


class FailedCheckError(AssertionError):
    """A check of a run has failed: one of --debug, or that its devices agree."""


FAILURES = (BadNumbersError, FailedCheckError)
