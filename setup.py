"""Check that the checkout has its symbolic links; pyproject.toml configures the package."""

from pathlib import Path

if not (Path(__file__).parent / "src" / "wdjax" / "envs").is_dir():
    raise SystemExit(
        "wdjax/envs, train and experiments are symbolic links, which this checkout does not contain. "
        "Clone again with git -c core.symlinks=true clone, on Linux, macOS or in WSL2."
    )

from setuptools import setup  # after the check, because newer Pythons lack setuptools

setup()
