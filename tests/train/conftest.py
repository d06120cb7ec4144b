"""Fixtures of the tests of learning."""

import pytest
from box_probes import BOX_PROBES
from probes import PROBES
from toy_clock import Clock

from wdjax import envs


@pytest.fixture(scope="module", autouse=True)
def registered_probes():
    """Makes the probe environments known by name, for the tests of this folder only."""
    with pytest.MonkeyPatch.context() as patch:
        for name, cls in {**PROBES, **BOX_PROBES, "probe_clock": Clock}.items():
            patch.setitem(envs._REGISTRY, name, cls)
        yield
