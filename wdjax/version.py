"""The version of wdjax, in this place alone."""

__version__ = "0.2.1"
