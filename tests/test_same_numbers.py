"""Small runs of all algorithms reproduce the numbers stored in `same_numbers.json`.

The file stores a random projection of each array. After an intended change of numbers, store them
again: python tests/same_numbers.py --store
"""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from same_numbers import ALL

STORED = Path(__file__).with_name("same_numbers.json")
# parts of paths: configured values, and a second copy
NOT_STORED = {"hypers", "env_params", "best"}
QUICK = ("ppo",)
RTOL = 1e-5  # relative to the norm of an array; other CPUs and versions differed by up to 3e-6
# sums with cancellation: approx_kl, explained_variance, losses of normalized advantages
METRICS_ATOL = 1e-5


def project(array):
    """Return (a random projection of an array, its norm), with non-finite values replaced."""
    flat = np.nan_to_num(np.asarray(array, float).ravel(), nan=3.0, posinf=5.0, neginf=-5.0)
    return float(np.random.RandomState(0).standard_normal(flat.size) @ flat), float(
        np.linalg.norm(flat)
    )


def projections(arrays):
    """Return path -> (projection, norm) of the stored arrays of a run."""
    return {
        path: project(array)
        for path, array in arrays.items()
        if not NOT_STORED & set(path.split(":"))
    }


def store(results):
    """Write name -> path -> array as nested mappings, since paths share prefixes."""
    stored = {}
    for name, arrays in results.items():
        if isinstance(arrays, str):
            raise SystemExit(f"{name} fails: {arrays}")
        for path, (number, _) in projections(arrays).items():
            *parents, last = [name, *path.split(":")]
            inner = functools.reduce(
                lambda inner, part: inner.setdefault(part, {}), parents, stored
            )
            inner[last] = float(f"{number:.8g}")
    lines = [
        f"{json.dumps(name)}:{json.dumps(run, separators=(',', ':'))}"
        for name, run in sorted(stored.items())
    ]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf8")


def flat(tree, *parents):
    """Return path -> number of nested mappings."""
    if not isinstance(tree, dict):
        return {":".join(parents): tree}
    return {
        path: number
        for name, inner in tree.items()
        for path, number in flat(inner, *parents, name).items()
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in ALL]
)
@pytest.mark.usefixtures("registry")
def test_numbers_equal_the_stored_ones(name, request):
    if name in QUICK:
        request.getfixturevalue("quick_compile")
    expected, actual = (
        flat(json.loads(STORED.read_text(encoding="utf8"))[name]),
        projections(ALL[name]()),
    )
    assert actual.keys() == expected.keys()
    wrong = {}
    for path, (number, norm) in actual.items():
        allowed = RTOL * norm + (0.0 if path.startswith("state") else METRICS_ATOL)
        if abs(number - expected[path]) > allowed:
            wrong[path] = f"{number:.8g}, not {expected[path]:.8g}: norm {norm:.3g}"
    assert not wrong, "\n".join(f"{path}: {difference}" for path, difference in wrong.items())
