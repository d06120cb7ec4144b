"""Check that the checkout has its symbolic links, and leave maintainers' programs out of wheels.

pyproject.toml configures the package.
"""

from pathlib import Path

if not (Path(__file__).parent / "src" / "wdjax" / "envs").is_dir():
    raise SystemExit(
        "wdjax/envs, train and experiments are symbolic links, which this checkout does not "
        "contain. Clone again with git -c core.symlinks=true clone, on Linux, macOS or in WSL2."
    )

from setuptools import setup  # after the check, because newer Pythons lack setuptools
from setuptools.command.build_py import build_py

# Package -> modules that are not installed. pyproject.toml excludes whole packages.
NOT_INSTALLED = {
    "wdjax.experiments.benchmarks": (
        "agents",
        "agreement",
        "alternate",
        "card",
        "memory",
    ),
    "wdjax.experiments.reference": (
        "__main__",
        "rerun",
        "rows",
        "seeds",
        "team_worlds",
        "world_table",
        "worlds",
    ),
}


class BuildInstalled(build_py):
    """Build all modules except those in `NOT_INSTALLED`."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return (package, module, file) of each installed module of a package."""
        found = super().find_package_modules(package, package_dir)
        left_out = NOT_INSTALLED.get(package, ())
        return [
            (package, module, file) for package, module, file in found if module not in left_out
        ]


setup(cmdclass={"build_py": BuildInstalled})
