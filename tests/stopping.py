"""Events that end training early in a test."""

import threading


class Killed(BaseException):
    """Ends training like a killed process: it is not caught, and nothing is saved."""


class EndsAfter(threading.Event):
    """A stop event that is set, or raises Killed, after a number of checks."""

    def __init__(self, looks, kills=False):
        super().__init__()
        self.looks, self.kills = looks, kills

    def is_set(self):
        self.looks -= 1
        if self.looks < 0 and self.kills:
            raise Killed
        return self.looks < 0
