"""Former location of `make_deterministic`, until version 0.2."""

from wdjax.train.storage.switches import is_deterministic, make_deterministic  # noqa: F401
