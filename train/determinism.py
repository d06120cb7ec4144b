"""Where `make_deterministic` was before version 0.2: wdjax.train.host.determinism."""

from wdjax.train.host.determinism import forgets_determinism, is_deterministic, make_deterministic  # noqa: F401
