"""Fixtures of the tests of experiments."""

import pytest
from probes import PROBES

from wdjax import envs


@pytest.fixture(scope="module")
def registered_probes():
    """Makes the probe environments known by name."""
    with pytest.MonkeyPatch.context() as patch:
        for name, cls in PROBES.items():
            patch.setitem(envs._REGISTRY, name, cls)
        yield
