"""Settings of every test session. Flags of XLA and jax are read once, so they are set before jax is
imported."""

import gc
import itertools
import os
from pathlib import Path

# eight devices on the CPU, for tests of sharding
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

# The same examples in every run: a red test is red for everybody. `--hypothesis-profile=explore`
# looks for new ones.
_COMMON = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile(
    "wdjax", max_examples=50, derandomize=True, database=None, **_COMMON
)
hypothesis.settings.register_profile("explore", max_examples=500, **_COMMON)
hypothesis.settings.load_profile("wdjax")


def pytest_configure(config):
    """Makes every warning that our own code or a test causes an error; other packages may warn."""
    for module in ("wdjax", "test_", "reference_", "toy_"):
        config.addinivalue_line("filterwarnings", f"error:::{module}")


def pytest_collection_finish():
    """Looks for garbage seldom, and never among what stays: a twelfth of the time went there,
    as tracing a program makes a hundred thousand objects that live as long as it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def room_for_programs(request):
    """Forgets compiled programs before there are too many: each is some memory maps, of which
    Linux gives a process 65,530, and one too many ends it with a segmentation fault. A slow
    test leaves up to 6,000, a quick one 1,100."""
    yield
    due = next(_TESTS) % 16 == 0 or request.node.get_closest_marker("slow")
    maps = Path("/proc/self/maps")
    if due and maps.exists() and len(maps.read_text().splitlines()) > 40_000:
        jax.clear_caches()


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    from wdjax import envs

    monkeypatch.setattr(envs, "_REGISTRY", dict(envs._REGISTRY))


@pytest.fixture(scope="module")
def quick_compile():
    """Compiles with hardly any optimization, in two thirds of the time: for programs that run
    for milliseconds."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
