"""How a sweep ends early in a test."""

import threading


class Killed(BaseException):
    """As if the process had been killed: nothing catches it, nothing is saved."""


class EndsAfter(threading.Event):
    """A stop signal that is found set at the nth look, or kills there."""

    def __init__(self, looks, kills=False):
        super().__init__()
        self.looks, self.kills = looks, kills

    def is_set(self):
        self.looks -= 1
        if self.looks < 0 and self.kills:
            raise Killed
        return self.looks < 0
