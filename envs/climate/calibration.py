"""Calibrations of RICE-N: the published one (`rice_regions.yaml`) and custom files."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.checks import one_line, require, require_known
from wdjax.yaml_reader import read_yaml_value

PUBLISHED = Path(__file__).with_name("rice_regions.yaml")


@functools.cache
def published() -> dict[str, Any]:
    """Return the published calibration as `read_calibration` returns it, cached."""
    return _read(PUBLISHED)


def read_calibration(path: str | Path) -> dict[str, Any]:
    """Read a calibration with any number of regions.

    Use it as `wdjax.make("rice", **read_calibration("mine.yaml"))`.

    Args:
        path: path of a YAML file like `envs/climate/rice_regions.yaml`. `world` contains parameters
            of the world; omitted ones keep their published values. `columns` lists the names of the
            numbers in each row of `regions`, in any order.

    Returns:
        `num_regions` (n), a list of n numbers for each column, and the parameters in `world`, keyed
        by their names in Params.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file is malformed. `make` checks the numbers themselves.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"calibration {path}: no such file")
    calibration, known = _read(Path(path)), published()
    try:
        for name in calibration:
            require_known("name", name, known)
        for name, value in known.items():
            is_column = isinstance(value, list) and len(value) == known["num_regions"]
            require(
                name in calibration or not is_column,
                "columns",
                list(calibration),
                f"all numbers of a region. Add {name}",
            )
    except ValueError as error:
        raise ValueError(f"calibration {path}: {error}") from None
    return calibration


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml_value(path)
    try:
        unknown = set(content) - {"world", "columns", "regions"}
        require(not unknown, "top-level keys", sorted(content), "world, columns and regions")
        columns, world = content["columns"], content.get("world") or {}
        rows = np.asarray(content["regions"], float)
        require(
            rows.shape[1:] == (len(columns),),
            "regions",
            rows.shape,
            f"rows of {len(columns)} numbers, one per column",
        )
        numbers = {name: np.asarray(value, float).tolist() for name, value in world.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        kind = "is missing: " if isinstance(error, KeyError) else ""
        raise ValueError(f"calibration {path}: {kind}{one_line(error)}") from None
    return {"num_regions": len(rows), **dict(zip(columns, rows.T.tolist(), strict=True)), **numbers}
