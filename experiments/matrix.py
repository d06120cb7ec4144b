"""The cross-play matrix as a table and as files."""

import csv
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from wdjax.train import Player

Rows = Mapping[tuple[str, ...], Mapping[str, Mapping[str, Any]]]  # who plays each role -> what `statistics` returns


def matrix_table(roles: Sequence[str], rows: Rows, title: str) -> Table:
    """Returns a table with a row for each combination; counts also as multiples of those of all-random play.

    It has the environment's statistics, the length and each role's return; files hold the rest.
    """
    table = Table(title=title, title_justify="left")
    for role in roles:
        table.add_column(role)
    shown = [f"{role} return" for role in roles]
    names = [name for name in next(iter(rows.values())) if name in shown or not name.endswith(" return")]
    for name in names:
        table.add_column(name, justify="right")
    baseline = rows.get(("random",) * len(roles))
    for cell, numbers in rows.items():
        multiple_of = {name: baseline[name]["mean"] for name in names if baseline and name not in shown}
        table.add_row(*cell, *(_words(numbers[name], multiple_of.get(name)) for name in names))
    return table


def _words(numbers: Mapping[str, Any], random: float | None) -> str:
    mean, error = numbers["mean"], numbers["standard_error"]
    if mean is None:
        return "-"
    multiple = f" ({mean / random:.2f} x random)" if random is not None and random > 0 else ""
    return f"{mean:.2f}" + ("" if error is None else f" ± {error:.2f}") + multiple


def write_matrix(file: Path, roles: Sequence[str], rows: Rows) -> None:
    """Writes every number: as JSON, an object for each combination; where the file ends in .csv, a line a quantity."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".csv":
        with open(file, "w", encoding="utf8", newline="") as out:
            csv.writer(out).writerows(_csv_lines(roles, rows))
        return
    content = [{"policies": dict(zip(roles, cell, strict=True)), **numbers} for cell, numbers in rows.items()]
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")


def _csv_lines(roles: Sequence[str], rows: Rows) -> Iterator[list[Any]]:
    for i, (cell, quantities) in enumerate(rows.items()):
        for name, numbers in quantities.items():
            if i == 0 and name == next(iter(quantities)):
                levels = [f"quantile_{level}" for level in numbers["quantiles"]]
                yield [*roles, "quantity", "mean", "standard_error", *levels]
            yield [*cell, name, numbers["mean"], numbers["standard_error"], *numbers["quantiles"].values()]


def other_params(first: Player, others: Iterable[Player]) -> Iterator[str]:
    """Says which runs were trained with other env_params than those that the matrix is played with, the first run's."""
    mine = first.state.env_params
    for player in others:
        theirs = player.state.env_params
        if type(theirs) is not type(mine):
            continue  # another game: refused, in words, when the players take their seats
        for name in (field.name for field in dataclasses.fields(mine)):
            a, b = getattr(mine, name), getattr(theirs, name)
            if not np.array_equal(np.asarray(a), np.asarray(b)):
                yield f"Mind: {player.name} was trained with {name} = {b}; all play with {a}, as {first.name}"
