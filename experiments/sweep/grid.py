"""A grid: every combination of values, with every seed."""

import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from wdjax.experiments.sweep.members import (
    Member,
    Point,
    as_config,
    make_groups,
    make_members,
    make_points,
    make_seeds,
    parse_values,
)
from wdjax.experiments.sweep.population import population_setup
from wdjax.experiments.sweep.rounds import Programs, export_member
from wdjax.experiments.sweep.session import (
    Host,
    announce_members,
    choose_metric,
    members_bar,
    open_host,
    train_turns,
    write_curves,
)
from wdjax.experiments.sweep.table import (
    best_member,
    final_table,
    point_table,
    point_words,
    varied_fields,
    write_table,
)
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.callbacks import Callback
from wdjax.train.host.loop import Row
from wdjax.train.storage.folder import plain_config


def sweep(
    config: TrainConfig | str | Path, values: Mapping[str, Any] | None = None, seeds: int | Sequence[int] = 1,
    points: Sequence[Point] = (), workdir: str | Path | None = None, metric: str | None = None,
    members_at_once: int = 0, devices: int = 0, resume: bool = False, quiet: bool = True,
    stop: threading.Event | None = None, trust: Collection[str] = (), callbacks: Sequence[Callback | str] = (),
) -> list[Row]:  # fmt: skip
    """Train every combination of values with every seed, as vmapped members of one program if shapes allow it.

        table = sweep("cartpole_ppo", {"policies.agent.learning_rate": [1e-3, 3e-3]}, seeds=8)
        pandas.DataFrame(table).groupby("policies.agent.learning_rate")["score"].mean()

    Args:
        config: a configuration, the name of a preset, or a YAML file.
        values: dotted field -> list of values; a single value changes the field for all members.
        seeds: number of seeds, counted up from the configuration's seed, or a list of seeds.
        points: explicit combinations, each dotted field -> value. Each is combined with all of `values`.
        workdir: folder for sweep.yaml, table.csv, table.jsonl, curves.png, best/ (a run) and groups/; None: no files.
        metric: metric used as score, by its last value ("agent/episode_return"); None: `best_metric`.
        members_at_once: members per program, over all devices; 0: as many as memory allows.
        devices: number of devices that share the members; 0: all (the CPU counts as one).
        resume: continue the sweep in the folder.
        quiet: print nothing.
        stop: when set, the sweep saves and ends after the current chunk; None: on Ctrl-C and SIGTERM.
        trust: modules from which saved runs may import code, see `wdjax.train.load_run`.
        callbacks: as for `Trainer`, called with the row of every member. `run.stop()` or True ends the whole sweep.

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
    groups = make_groups(members)
    setups = [population_setup(group.members, trust) for group in groups]
    metric = choose_metric(metric, members[0].config, setups[0], needed=False)
    asked = {
        "mode": "grid",
        "config": plain_config(base),
        "metric": metric,
        "members": [{"seed": member.config.seed, **member.values} for member in members],
    }
    opened = open_host(workdir, asked, resume, devices, members_at_once, quiet, stop, trust, members, callbacks)
    with opened as host:
        announce_members(host, members, len(groups))
        programs = (Programs(setup, host.num_devices) for setup in setups)  # one at a time: they hold memory
        turns = []
        with members_bar(host, members, host.workdir / "groups") as advance:
            for turn in train_turns(host, host.workdir / "groups", zip(groups, programs, strict=True), advance):
                turns.append(turn)
                rows = [row for turn in turns for row in turn.rows]
                table = final_table(members, rows, metric)
                write_table(host.workdir, table)
        if not host.stop.is_set():
            conclude(host, members, rows, table, metric)
    return table


def conclude(
    host: Host, members: Sequence[Member], rows: Sequence[Row], table: Sequence[Row], metric: str | None
) -> None:
    """Writes curves.png and the best member as a run, and says what was found."""
    host.say(f"Wrote {host.workdir}/table.csv, table.jsonl")
    ended = [row for row in table if row.get("bad_numbers")]
    if ended:
        words = f"{len(ended)} of {len(table)} members ended with bad numbers, member {ended[0]['member']} with"
        host.say(f"Warning: {words} {ended[0]['bad_numbers']}")
    write_curves(host, members, rows, metric)
    best = best_member(table)
    if best is not None:
        host.console.print(point_table(members, table))
        member = members[best["member"]]
        folder = export_member(host.workdir, member.number, rows, best["score"], trust=host.trust)
        words = f"{point_words(member.values, varied_fields(members))}, seed {member.config.seed}"
        host.say(f"Wrote {folder}: the best run, member {member.number} ({words}), score {best['score']:.2f}")
