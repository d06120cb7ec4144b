"""Settings of all test sessions.

XLA and jax read their flags once, so they are set before jax is imported.
"""

import gc
import itertools
import os
from pathlib import Path

# eight CPU devices, for tests of sharding
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

_TESTS = itertools.count()
_USER_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))

# (N,) - (N, 1) is an error, not an (N, N) loss
jax.config.update("jax_numpy_rank_promotion", "raise")
if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    jax.config.update("jax_compilation_cache_dir", str(_USER_CACHE / "wdjax" / "tests"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# The same examples in every run, so that failures are reproducible. `--hypothesis-profile=explore`
# draws new ones.
_COMMON = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile(
    "wdjax", max_examples=50, derandomize=True, database=None, **_COMMON
)
hypothesis.settings.register_profile("explore", max_examples=500, **_COMMON)
hypothesis.settings.load_profile("wdjax")


def pytest_configure(config):
    """Turn warnings caused by wdjax or a test into errors. Other packages may warn."""
    for module in ("wdjax", "test_", "reference_", "toy_"):
        config.addinivalue_line("filterwarnings", f"error:::{module}")


def pytest_collection_finish():
    """Collect garbage less often, and freeze existing objects.

    Tracing a program creates about 100,000 long-lived objects. Collection took a twelfth of the
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def room_for_programs(request):
    """Clear compiled programs before the process runs out of memory maps.

    Each compiled program uses some memory maps. Linux allows 65,530 per process; one more causes a
    segmentation fault. A slow test adds up to 6,000, a quick one 1,100.
    """
    yield
    due = next(_TESTS) % 16 == 0 or request.node.get_closest_marker("slow")
    maps = Path("/proc/self/maps")
    if due and maps.exists() and len(maps.read_text().splitlines()) > 40_000:
        jax.clear_caches()


@pytest.fixture
def frozen_objects():
    """Hide existing objects from the collections and searches of `jax.checking_leaks`."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def registry(monkeypatch):
    """Remove environments registered by a test after it."""
    from wdjax import envs

    monkeypatch.setattr(envs, "_REGISTRY", dict(envs._REGISTRY))


@pytest.fixture(scope="module")
def quick_compile():
    """Compile with few optimizations in two thirds of the time, for programs that run briefly."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
