"""The folder of a sweep: sweep.yaml says what was asked for, and what may go on in it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from wdjax.train.config.facts import in_env_steps
from wdjax.train.config.reading import read_yaml
from wdjax.train.state.registry import read_config
from wdjax.train.storage.folder import (
    SWEEP,
    flat,
    hold_folder,
    make_folder,
    plain_config,
    write_whole,
    writing,
)
from wdjax.train.storage.switches import require_same_switches, switch_warnings, switches
from wdjax.yaml_reader import read_yaml_value

SWITCHES = "switches.yaml"


@contextlib.contextmanager
def begun(workdir: Path, asked: Mapping[str, Any], resume: bool, say: Callable[[str], Any]) -> Iterator[None]:
    """Makes a sweep's folder and writes sweep.yaml, or checks that the sweep in it is the one to resume; then keeps
    others out until the block ends.

    Args:
        asked: everything that decides the sweep's numbers, as YAML holds it.
        say: called with a warning for every setting of jax that differs and changes rounding.

    Raises:
        FileExistsError, OSError: as `make_folder` and `hold_folder`.
        ValueError: where it holds another sweep, or one of another jax setting, naming the first thing that differs.
    """
    file = workdir / "sweep.yaml"
    if make_folder(workdir, SWEEP, resume) and file.exists():
        require_same(f"the sweep in {workdir}", read_yaml(file), asked)
        stored = read_switches(workdir)
        require_same_switches(stored, f"the sweep in {workdir}")
        for words in switch_warnings(stored):
            say(words)
    else:
        with writing(workdir):
            write_whole(file, yaml.safe_dump(dict(asked), sort_keys=False, allow_unicode=True))
    with hold_folder(workdir, SWEEP):
        if not (workdir / SWITCHES).exists():
            write_whole(workdir / SWITCHES, yaml.safe_dump(switches(), sort_keys=False))
        yield


def read_switches(workdir: Path) -> Any:
    """Return the settings of jax that a sweep was started with, None for one of wdjax 0.2.0."""
    return read_yaml_value(workdir / SWITCHES) if (workdir / SWITCHES).is_file() else None


def with_new_fields(begun: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a sweep.yaml holds, with the defaults of fields that its version of wdjax did not know, and with
    schedules in env steps. No code that it names is imported."""
    if not isinstance(begun.get("config"), Mapping):
        return dict(begun)
    config = read_config(begun["config"], imports=False)
    return {**begun, "config": plain_config(in_env_steps(config, config.total_env_steps))}


def require_same(what: str, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the first thing that differs, where `what` was started with something else."""
    old, new = (flat(with_new_fields(own)) for own in (begun, read_yaml_value(yaml.safe_dump(dict(asked)))))
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            raise ValueError(f"{name} = {new.get(name)!r}: {what} was started with {old.get(name)!r}")
