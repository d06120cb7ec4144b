"""Calibrations of the climate economy: the published one, `rice_regions.yaml`, and files like it."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.checks import one_line, require, require_known
from wdjax.yaml_reader import read_yaml_value

PUBLISHED = Path(__file__).with_name("rice_regions.yaml")


@functools.cache
def published() -> dict[str, Any]:
    """Returns what `read_calibration` does of the published calibration, read once."""
    return _read(PUBLISHED)


def read_calibration(path: str | Path) -> dict[str, Any]:
    """Reads a calibration with any number of regions: `wdjax.make("rice", **read_calibration("mine.yaml"))`.

    Args:
        path: of a YAML file like `envs/climate/rice_regions.yaml`: `world` holds numbers (those that it leaves out are
            the published ones), `columns` the names of what `regions` holds of each region, in any order.

    Returns:
        num_regions n, a list of n numbers for each column, and the numbers of `world`, by their names in Params.

    Raises:
        FileNotFoundError, ValueError: naming the file, and what in it is wrong. (`make` checks the numbers themselves.)
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"calibration {path}: no such file")
    found, known = _read(Path(path)), published()
    try:
        for name in found:
            require_known("name", name, known)
        for name, value in known.items():
            is_column = isinstance(value, list) and len(value) == known["num_regions"]
            require(
                name in found or not is_column,
                "columns",
                list(found),
                f"of all regions' numbers, {name} too",
            )
    except ValueError as error:
        raise ValueError(f"calibration {path}: {error}") from None
    return found


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml_value(path)
    try:
        unknown = set(content) - {"world", "columns", "regions"}
        require(not unknown, "its parts", sorted(content), "world, columns and regions")
        columns, world = content["columns"], content.get("world") or {}
        rows = np.asarray(content["regions"], float)
        require(
            rows.shape[1:] == (len(columns),),
            "regions",
            rows.shape,
            f"rows of {len(columns)} numbers, as columns",
        )
        numbers = {name: np.asarray(value, float).tolist() for name, value in world.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        kind = "is missing: " if isinstance(error, KeyError) else ""
        raise ValueError(f"calibration {path}: {kind}{one_line(error)}") from None
    return {"num_regions": len(rows), **dict(zip(columns, rows.T.tolist(), strict=True)), **numbers}
