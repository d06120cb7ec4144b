"""wdjax diff: compare two runs or presets."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from wdjax.console import table_console
from wdjax.metric_names import EVALUATED, STANDARD_ERROR, policies_of, user_space
from wdjax.tables import brief
from wdjax.train import (
    PolicyConfig,
    TrainConfig,
    complete_env_params,
    plain_config,
    preset_path,
    read_config,
    read_metrics,
    read_warp_drive,
)
from wdjax.train.config.facts import in_env_steps
from wdjax.yaml_reader import flat, read_yaml

CONFIG = "config.yaml"  # file in a run folder
VERSION, MADE_WITH = "wdjax", "made_with"  # its fields on versions and device


def diff(arguments: list[str]) -> None:
    """wdjax diff RUN RUN: print different fields of the configurations, and the last metrics."""
    if len(arguments) != 2 or arguments[0].startswith("-"):
        raise ValueError(
            "wdjax diff takes two runs, presets or YAML files, such as: wdjax diff runs/a runs/b"
        )
    console = table_console(highlight=False)
    fields = [fields_of(run) for run in arguments]
    if fields[0]["env"] == fields[1]["env"]:  # else every env_param would be listed
        with contextlib.suppress(
            ValueError, TypeError, OSError
        ):  # for example a parameter of another version
            fields = [with_env_params(own) for own in fields]
    for title, (first, second) in (
        ("configuration", fields),
        ("last metrics", map(last_metrics, arguments)),
    ):
        names = differing([first, second])
        table = Table(title, *(Column(Text(name)) for name in arguments))
        for name in names:
            table.add_row(Text(name), *(Text(brief(own.get(name))) for own in (first, second)))
        if names:
            console.print(table)
        elif title == "configuration":
            console.print("The configurations are the same")


def differing(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of fields that differ between runs.

    Of a policy that some runs lack, these are its algorithm and the fields not at their defaults.
    """
    algorithms = {own[name] for own in runs for name in own if name.endswith(".algorithm")}
    raw = {"env": "", "policies": {name: {"algorithm": name} for name in sorted(algorithms)}}
    defaults = plain_config(read_config(raw, imports=False))["policies"].values()
    usual = flat({name: value for own in defaults for name, value in own.items()})
    usual.pop("algorithm", None)

    def value_of(own: Mapping[str, Any], name: str) -> Any:
        field = name.split(".", 2)[-1] if name.startswith("policies.") else ""
        return own.get(name, usual.get(field))

    names = dict.fromkeys(itertools.chain.from_iterable(runs))
    return [
        name
        for name in names
        if any(value_of(own, name) != value_of(runs[0], name) for own in runs)
    ]


def fields_of(run: str) -> dict[str, Any]:
    """Return dotted field -> value of a run's or preset's configuration, with defaults.

    Code that the configuration names is not imported.
    """
    file = Path(run) / CONFIG
    if not file.is_file():
        folder = run.rpartition("@")[0]
        if folder and (Path(folder) / CONFIG).is_file():
            raise ValueError(
                f"{run} is a checkpoint, but wdjax diff compares whole runs. Use {folder}"
            )
        file = preset_path(run)
    if (warp_drive := read_warp_drive(file)) is not None:
        warp_drive.require_supported()
    raw = read_yaml(file) if warp_drive is None else warp_drive.fields
    written_by = {name: raw.pop(name) for name in (VERSION, MADE_WITH) if name in raw}
    config = read_config(raw, imports=False)
    return flat(written_by) | flat(plain_config(in_env_steps(config, config.total_env_steps)))


def with_env_params(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration with all env_params; raise as `wdjax.make`.

    Environments of other packages are not imported, since comparing runs must not execute their
    code.
    """
    prefix = "env_params."
    given = {
        path.removeprefix(prefix): value
        for path, value in fields.items()
        if path.startswith(prefix)
    }
    config = complete_env_params(
        TrainConfig(env=fields["env"], policies={"": PolicyConfig()}, env_params=given), False
    )
    return {**fields, **flat({"env_params": plain_config(config)["env_params"]})}


def last_metrics(run: str) -> dict[str, Any]:
    """Return the last env steps, episode metrics, user metrics and evaluations of a run."""
    file = Path(run) / "metrics.jsonl"
    last: dict[str, Any] = {}
    for row in read_metrics(file) if file.is_file() else ():
        last |= {name: value for name, value in row.items() if value is not None}
    spaces = (f"{user_space(policies_of(last))}/", f"{EVALUATED}/{user_space(policies_of(last))}/")
    counted = lambda name: name == "env_steps" or "episode_" in name or name.startswith(spaces)  # noqa: E731
    return {
        name: last[name] for name in last if counted(name) and not is_standard_error(name, last)
    }


def is_standard_error(name: str, row: Mapping[str, Any]) -> bool:
    """Return whether a metric is the standard error of another one in a row."""
    return name.startswith(f"{EVALUATED}/") and name.removesuffix(STANDARD_ERROR) in row.keys() - {
        name
    }
