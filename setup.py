"""Refuses to build from a checkout that is not whole; all else about the package stands in pyproject.toml."""

from pathlib import Path

if not (
    Path(__file__).parent / "src" / "wdjax" / "envs"
).is_dir():  # so in a checkout, and in an sdist
    raise SystemExit(
        "wdjax/envs, train and experiments are symbolic links, which this checkout does not contain. "
        "Clone again with git -c core.symlinks=true clone, on Linux, macOS or in WSL2."
    )

from setuptools import (
    setup,
)  # here: newer Pythons come without it, and what is missing above is to be said first

setup()
