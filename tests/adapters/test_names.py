"""Public names of wdjax.adapters are imported lazily. Missing libraries raise clear errors."""

import subprocess
import sys

import pytest

from wdjax import adapters

LIBRARIES = ("gymnasium", "pettingzoo", "gymnax", "jaxmarl")


def test_import_does_not_import_optional_libraries():
    names = {*LIBRARIES, "jumanji"}
    code = f"import sys, wdjax; wdjax.adapters; assert not {names!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve_to_functions():
    """Importing the modules must not replace functions of the same name."""
    assert set(adapters.__all__) == set(adapters._HOME)
    assert dir(adapters) == sorted(adapters.__all__)
    for library in LIBRARIES:
        pytest.importorskip(library)
    for _ in range(2):
        assert all(callable(getattr(adapters, name)) for name in adapters.__all__)
    with pytest.raises(AttributeError, match="no attribute 'to_gym'"):
        adapters.to_gym  # noqa: B018


def test_missing_library_raises():
    """In a new process, None in sys.modules makes an import fail."""
    code = """
import sys
from wdjax import adapters
for library in ("gymnasium", "pettingzoo", "gymnax"):
    name = f"to_{library}"
    sys.modules[library] = None
    try:
        getattr(adapters, name)
    except ImportError as error:
        print(error)
    del sys.modules[library]
"""
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.splitlines() == [
        "wdjax.adapters.to_gymnasium needs gymnasium: pip install 'wdjax[adapters]'",
        "wdjax.adapters.to_pettingzoo needs pettingzoo: pip install 'wdjax[adapters]'",
        "wdjax.adapters.to_gymnax needs gymnax: pip install 'gymnax'",
    ]
