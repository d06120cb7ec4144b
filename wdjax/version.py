"""Version of wdjax, defined only here."""

__version__ = "0.3.0"
