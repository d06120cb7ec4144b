"""Runs that are killed at random moments and resumed equal uninterrupted runs."""

import pytest
from killed_runs import compare
from quick import quick_environment

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seed", "name"), [(1, "recurrent"), (2, "ddpg"), (3, "self_play")])
def test_killed_and_resumed_runs_are_equal(seed, name, tmp_path, monkeypatch):
    for variable, value in quick_environment().items():
        monkeypatch.setenv(variable, value)
    assert compare(name, kills=4, seed=seed, folder=tmp_path) == []
