"""Data files outside of the project. Tests that read them skip if they are missing."""

import os
from pathlib import Path

import pytest

FOLDER = (
    Path(os.environ.get("WDJAX_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data"
)


def shared(*parts):
    """Return the path of a data file, or skip the test."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path
