"""Fixtures of the tests of learning."""

import shutil
from pathlib import Path

import pytest
from box_probes import BOX_PROBES
from decision_probes import DECISION_PROBES
from probes import PROBES
from tiny_runs import small_config
from toy_clock import Clock

from wdjax import envs
from wdjax.train import Trainer


@pytest.fixture(scope="module", autouse=True)
def registered_probes():
    """Makes the probe environments known by name, for the tests of this folder only."""
    with pytest.MonkeyPatch.context() as patch:
        for name, cls in {**PROBES, **BOX_PROBES, **DECISION_PROBES, "probe_clock": Clock}.items():
            patch.setitem(envs._REGISTRY, name, cls)
        yield


@pytest.fixture(scope="module")
def no_pictures():
    """Runs draw nothing at their end: pictures take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "draw", lambda self: None)
        yield


@pytest.fixture(scope="module")
def whole_run(request, no_pictures, tmp_path_factory):
    """Returns the folder of a run that nothing interrupted, with a module's own changes in its
    `KEPT`."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    Trainer(small_config(**getattr(request.module, "KEPT", {})), folder, quiet=True).train()
    return folder


@pytest.fixture
def run(whole_run, tmp_path):
    """A copy, to be damaged."""
    return Path(shutil.copytree(whole_run, tmp_path / "run"))
