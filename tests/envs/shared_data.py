"""Files that lie beside the project and are never part of it: tests that read them skip without
them."""

import os
from pathlib import Path

import pytest

FOLDER = (
    Path(os.environ.get("WDJAX_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data"
)


def shared(*parts):
    """Returns the path of a file there, or skips the test."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path
