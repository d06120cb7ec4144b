"""Variables of processes that compile many programs and run them briefly."""

import os

import jax


def quick_environment(**changes: str) -> dict[str, str]:
    """Return the variables of this process, with one CPU device and few optimizations.

    Compiled programs are kept in the cache of the tests.
    """
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        # after the eight devices of the tests
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **changes,
    }
