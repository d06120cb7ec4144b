"""Runs that are killed at random moments and resumed equal uninterrupted runs."""

import jax
import pytest
from killed_runs import compare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seed", "name"), [(1, "recurrent"), (2, "ddpg"), (3, "self_play")])
def test_killed_and_resumed_runs_are_equal(seed, name, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(jax.config.jax_compilation_cache_dir))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    assert compare(name, kills=4, seed=seed, folder=tmp_path) == []
