"""Small runs of everything that learns give the numbers that they gave when `same_numbers.json` was
stored.

What is stored of an array is a random projection of it. A change that is meant to change numbers
stores them anew: python tests/same_numbers.py --store
"""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from same_numbers import ALL

STORED = Path(__file__).with_name("same_numbers.json")
# parts of paths: what a configuration says, and a second copy
NOT_STORED = {"hypers", "env_params", "best"}
QUICK = ("ppo",)
RTOL = 1e-5  # of an array's norm: other CPUs and versions were off by up to 3e-6
# sums of what cancels: approx_kl, explained_variance, losses of normalised advantages
METRICS_ATOL = 1e-5


def project(array):
    """Returns (a random projection of an array, its norm); what is not finite counts as a
    number of its own."""
    flat = np.nan_to_num(np.asarray(array, float).ravel(), nan=3.0, posinf=5.0, neginf=-5.0)
    return float(np.random.RandomState(0).standard_normal(flat.size) @ flat), float(
        np.linalg.norm(flat)
    )


def projections(found):
    """Returns path -> (projection, norm) of what is stored of a run."""
    return {
        path: project(array)
        for path, array in found.items()
        if not NOT_STORED & set(path.split(":"))
    }


def store(results):
    """Writes name -> path -> array, as nested mappings: paths begin alike."""
    stored = {}
    for name, found in results.items():
        if isinstance(found, str):
            raise SystemExit(f"{name} fails: {found}")
        for path, (number, _) in projections(found).items():
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
    """Returns path -> number of nested mappings."""
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
def test_numbers_are_those_that_were_stored(name, request):
    if name in QUICK:
        request.getfixturevalue("quick_compile")
    expected, found = (
        flat(json.loads(STORED.read_text(encoding="utf8"))[name]),
        projections(ALL[name]()),
    )
    assert found.keys() == expected.keys()
    wrong = {}
    for path, (number, norm) in found.items():
        allowed = RTOL * norm + (0.0 if path.startswith("state") else METRICS_ATOL)
        if abs(number - expected[path]) > allowed:
            wrong[path] = f"{number:.8g}, not {expected[path]:.8g}: norm {norm:.3g}"
    assert not wrong, "\n".join(f"{path}: {words}" for path, words in wrong.items())
