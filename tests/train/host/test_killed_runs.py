"""A run that is killed at random moments, also while it saves, and resumed equals one that never
was."""

import jax
import pytest
from killed_runs import compare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seed", "name"), [*enumerate(["ppo", "recurrent", "ddpg", "self_play"])])
def test_five_kills_change_nothing(seed, name, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(jax.config.jax_compilation_cache_dir))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    assert compare(name, kills=5, seed=seed, folder=tmp_path) == []
