"""A grid: every combination of values, with every seed."""

import functools
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wdjax.experiments.sweep.driver import Sweep, choose_metric, drive, read_rows
from wdjax.experiments.sweep.members import (
    Member,
    Point,
    Row,
    as_config,
    make_members,
    make_points,
    make_populations,
    make_seeds,
    parse_values,
)
from wdjax.experiments.sweep.table import best_member, final_table, point_table, varied_fields
from wdjax.train import Callback, Population, TrainConfig, plain_config


def sweep(
    config: TrainConfig | str | Path, values: Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 1, points: Sequence[Point] = (),
    workdir: str | Path | None = None, metric: str | None = None, members_at_once: int = 0,
    devices: int = 0, resume: bool = False, quiet: bool = True,
    stop: threading.Event | None = None, trust: Collection[str] = (),
    callbacks: Sequence[Callback | str] = (),
) -> list[Row]:  # fmt: skip
    """Train every combination of values with every seed, as members of one program if possible.

        table = sweep("cartpole_ppo", {"policies.agent.learning_rate": [1e-3, 3e-3]}, seeds=8)
        pandas.DataFrame(table).groupby("policies.agent.learning_rate")["score"].mean()

    Args:
        config: a configuration, the name of a preset, or a YAML file.
        values: dotted field -> list of values; a single value changes the field for all members.
        seeds: number of seeds, counted up from the configuration's seed, or a list of seeds.
        points: explicit combinations, each dotted field -> value. Each is combined with all of
            `values`.
        workdir: folder for sweep.yaml, table.csv, table.jsonl, curves.png, best/ (a run) and
            groups/; None: no files.
        metric: metric used as score, by its last value ("agent/episode_return"); None:
            `best_metric`.
        members_at_once: members per program, over all devices; 0: as many as memory allows.
        devices: number of devices that share the members; 0: all (the CPU counts as one).
        resume: continue the sweep in the folder.
        quiet: print nothing.
        stop: when set, the sweep saves and ends after the current chunk; None: on Ctrl-C and
            SIGTERM.
        trust: modules from which saved runs may import code, see `wdjax.train.load_run`.
        callbacks: as for `Trainer`, called with the row of every member. `run.stop()` or True ends
            the whole sweep.

    Returns:
        One row per member: number, values, seed, score, and the metrics of its last chunk.

    Raises:
        ValueError: for invalid names and values, before anything runs.
        TypeError: for values of a wrong type.
        FileExistsError: if the folder holds another sweep or a run.
    """
    base = as_config(config)
    settings = {name: parse_values(name, several) for name, several in (values or {}).items()}
    members = make_members(base, make_points(settings, points), make_seeds(seeds, base.seed))
    populations = make_populations(members, devices, trust)
    if metric := metric or populations[0].config.best_by:
        metric = choose_metric(metric, populations[0])
    asked = {
        "mode": "grid",
        "config": plain_config(base),
        "metric": metric,
        "members": [{"seed": member.config.seed, **member.values} for member in members],
    }
    kind = functools.partial(train_grid, members=members, populations=populations, metric=metric)
    return drive(
        kind, asked, members, workdir, resume, devices, members_at_once, quiet, stop, trust,
        callbacks
    )  # fmt: skip


def train_grid(
    running: Sweep, members: Sequence[Member], populations: list[Population], metric: str | None
) -> Iterator[list[Row]]:
    """Train a grid, for `drive`; each population is removed after its training."""
    running.announce(members, populations[0], len(populations))
    folder = running.workdir / "groups"
    with running.progress(members, folder) as bar:
        # compiled programs take device memory
        each = ((folder / f"{i:03d}", populations.pop(0)) for i in range(len(populations)))
        for _ in running.train(each, bar):
            rows = read_rows(folder)
            table = final_table(members, rows, metric)
            yield table
    if running.stop.is_set():
        return
    ended = [row for row in table if row.get("bad_numbers")]
    if ended:
        words = f"{len(ended)} of {len(table)} members ended with bad numbers"
        first = f"member {ended[0]['member']} with {ended[0]['bad_numbers']}"
        running.say(f"Warning: {words}, {first}")
    running.draw(members, rows, metric)
    best = best_member(table)
    if best is not None:
        running.console.print(point_table(members, table))
        member = members[best["member"]]
        running.export(member, rows, best["score"], varied_fields(members))
