"""The cross-play matrix as a table and as files."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table
from rich.text import Text

from wdjax.files import new_file, write_text
from wdjax.train import Episodes, Player
from wdjax.train.evaluation.episodes import return_statistics

Rows = Mapping[
    tuple[str, ...], Mapping[str, Mapping[str, Any]]
]  # players of the roles -> `statistics`


def matrix_tables(cells: Mapping[tuple[str, ...], Episodes], rows: Rows) -> list[Table]:
    """Return tables of the environment's statistics, episode lengths and the return of each role.

    With two roles and many players, there is one matrix per quantity: players of the first role
    down, of the second role across. Otherwise there is one table with a row per combination, and
    quantities other than returns are also given as multiples of random play.
    """
    first = next(iter(cells.values()))
    roles = list(first.episode_return)
    shown = [f"{role} return" for role in roles]
    hidden = return_statistics(first).keys() - set(shown)
    counts = {f"{role} return": first.agent_return[role].shape[1] for role in roles}
    heads = {
        name: f"{name}\n(sum of {count} agents)" for name, count in counts.items() if count > 1
    }
    names = [name for name in next(iter(rows.values())) if name not in hidden]
    if len(roles) == 2 and len(rows) > 4:
        down, across = (list(dict.fromkeys(cell[i] for cell in rows)) for i in range(2))
        tables = []
        for name in names:
            columns = (Column(Text(player), justify="right") for player in across)
            tables.append(
                Table(
                    f"{roles[0]} \\ {roles[1]}",
                    *columns,
                    title=heads.get(name, name).replace("\n", " "),
                    title_justify="left",
                )
            )
            for player in down:
                tables[-1].add_row(
                    Text(player), *(_words(rows[player, other][name], None) for other in across)
                )
        return tables
    table = Table(*roles, *(Column(heads.get(name, name), justify="right") for name in names))
    baseline = rows.get(("random",) * len(roles))
    for cell, numbers in rows.items():
        multiple_of = {
            name: baseline[name]["mean"] for name in names if baseline and name not in shown
        }
        table.add_row(
            *map(Text, cell), *(_words(numbers[name], multiple_of.get(name)) for name in names)
        )
    return [table]


def _words(numbers: Mapping[str, Any], random: float | None) -> str:
    mean, error = numbers["mean"], numbers["standard_error"]
    if mean is None:
        return "-"
    multiple = f" ({mean / random:.2f} x random)" if random is not None and random > 0 else ""
    return f"{mean:.2f}" + ("" if error is None else f" ± {error:.2f}") + multiple


def require_tables(files: Iterable[Path]) -> None:
    """Raise ValueError for files that `write_matrix` cannot write."""
    for file in files:
        if file.suffix not in (".json", ".csv") or file.is_dir():
            raise ValueError(f"--output {file}: must be a file that ends in .json or .csv")


def write_matrix(file: Path, roles: Sequence[str], rows: Rows) -> None:
    """Write all numbers as JSON (an object per combination) or .csv (a line per quantity)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".json":
        content = [{"policies": dict(zip(roles, cell, strict=True)), **rows[cell]} for cell in rows]
        write_text(file, json.dumps(content, indent=1) + "\n")
        return
    quantities = next(iter(rows.values()))
    levels = [f"quantile_{level}" for level in next(iter(quantities.values()))["quantiles"]]
    lines = [
        [*cell, name, numbers["mean"], numbers["standard_error"], *numbers["quantiles"].values()]
        for cell, quantities in rows.items()
        for name, numbers in quantities.items()
    ]
    with new_file(file, "w") as out:
        head = [*roles, "quantity", "mean", "standard_error", *levels]
        csv.writer(out).writerows([head, *lines])


def other_params(first: Player, others: Iterable[Player]) -> Iterator[str]:
    """Yield a warning for each env_param that differs from the first run's, which is used."""
    mine = getattr(first.state, "env_params", None)
    for player in others:
        theirs = getattr(player.state, "env_params", None)
        if type(theirs) is not type(mine):
            continue  # another environment: cross_play raises
        for name, value in vars(mine).items():
            a, b = np.asarray(value)[()], np.asarray(getattr(theirs, name))[()]
            if not np.array_equal(a, b):
                yield (
                    f"Warning: {player.name} was trained with {name} = {b!s}; all runs use "
                    f"{a!s}, as {first.name}"
                )
