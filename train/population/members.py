"""The members of a population: their configurations and members.json."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax

from wdjax.checks import require
from wdjax.files import (
    find_files,
    make_folder_inside,
    read_json,
    read_text,
    require_fields,
    write_text,
)
from wdjax.train.config.facts import in_env_steps
from wdjax.train.config.schema import TrainConfig
from wdjax.train.learner.setup import require_config
from wdjax.train.state.registry import read_config
from wdjax.train.state.state import TrainState
from wdjax.train.storage.folder import SWEEP, make_folder, plain_config
from wdjax.train.storage.sweep_folder import read_members_file
from wdjax.yaml_reader import flat

Member: TypeAlias = Mapping[str, object]
"""content of members.json for a member"""


def read_members(configs: Sequence[TrainConfig]) -> list[TrainConfig]:
    """Return the configurations of members, checked, with schedules in env steps."""
    several = isinstance(configs, Sequence) and not isinstance(configs, str)
    require(several, "configs", configs, "a list of TrainConfig", TypeError)
    require(len(configs) > 0, "configs", configs, "at least one configuration")
    members = []
    for config in configs:
        require_config(config)
        config = dataclasses.replace(read_config(config), devices=1)
        members.append(in_env_steps(config, config.total_env_steps))
    return members


def difference(static: tuple, other: tuple, places: Sequence[int]) -> str:
    """Return the error of configurations that need another program, with the first field."""
    first, second = (flat(plain_config(values[0])) for values in (static, other))
    names = [name for name in second if first.get(name) != second[name]]
    what = f"{names[0]} = {second[names[0]]!r}" if names else "environment, spaces or shapes"
    words = "must be equal in all members, since it is static. Use Population.group"
    return f"configs[{places[0]}]: {what}: {words}"


def describe_members(
    configs: Sequence[TrainConfig], members: Sequence[Member] | None
) -> Sequence[Member]:
    """Return the content of members.json for each member."""
    if members is None:
        plain = enumerate(map(plain_config, configs))
        return [{"member": number, "config": config} for number, config in plain]
    require(len(members) == len(configs), "members", len(members), f"{len(configs)}, as configs")
    return members


def write_members(workdir: Path, text: str) -> None:
    """Write members.json, or raise ValueError if the folder contains other members."""
    make_folder_inside(workdir)
    make_folder(workdir, SWEEP, resume=True)  # refuses the folder of a run
    if not require_members(workdir, text):
        write_text(workdir / "members.json", text, sync=True)


def require_members(workdir: Path, text: str) -> bool:
    """Return whether members.json exists. Raise ValueError if it contains another text."""
    file = workdir / "members.json"
    if file.exists() and read_text(file) != text:
        read_json(file)  # raises its own error if the file is no JSON
        words = "lists different members than this population. Move"
        raise ValueError(f"{file} {words} {workdir} away to train these members")
    return file.exists()


def stored_size(folder: Path, devices: int) -> int | None:
    """Return the members per program of the batches in a folder, None without size.json.

    Raises:
        ValueError: if the devices cannot share batches of this size equally.
    """
    file = folder / "size.json"
    if not file.exists():
        return None
    content = read_json(file)
    require_fields(file, content, members_at_once=int)
    size = content["members_at_once"]
    words = f"a divisor of {size}, the members per program that this sweep was started with"
    require(size % devices == 0, "devices", devices, words)
    return size


def state_of(states: TrainState, place: int) -> TrainState:
    """Return the state of one member, on the first device."""
    return jax.device_put(jax.tree.map(lambda leaf: leaf[place], states), jax.local_devices()[0])


def read_batches(workdir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (folder, content of members.json) of all batches in a folder, the last one first."""
    for file in reversed(find_files(workdir, "members.json")):
        yield file.parent, read_members_file(file, seed=int, values=dict)
