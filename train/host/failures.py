"""Errors that end a run with a valid configuration."""


class BadNumbersError(ArithmeticError):
    """An update produced NaN or infinity. The state before it is saved."""


class FailedCheckError(AssertionError):
    """A check failed: one of --debug, or the comparison of devices."""
