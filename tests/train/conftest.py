"""Fixtures for tests of training."""

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
    """Register the probe environments, for tests in this folder only."""
    with pytest.MonkeyPatch.context() as patch:
        for name, cls in {**PROBES, **BOX_PROBES, **DECISION_PROBES, "probe_clock": Clock}.items():
            patch.setitem(envs._REGISTRY, name, cls)
        yield


@pytest.fixture(scope="module")
def no_pictures():
    """Skip drawing at the end of runs, which is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "draw", lambda self: None)
        yield


@pytest.fixture(scope="module")
def whole_run(request, no_pictures, tmp_path_factory):
    """Return the folder of an uninterrupted run, with the changes in the module's `KEPT`."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    Trainer(small_config(**getattr(request.module, "KEPT", {})), folder, quiet=True).train()
    return folder


@pytest.fixture
def run(whole_run, tmp_path):
    """Return a copy of `whole_run` that a test may damage."""
    return Path(shutil.copytree(whole_run, tmp_path / "run"))
