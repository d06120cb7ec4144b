"""The folder of a sweep: sweep.yaml contains everything that its numbers depend on."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from wdjax.files import SWEEP_FILE, read_json, require_fields
from wdjax.train.config.env_params import complete_env_params
from wdjax.train.config.facts import in_env_steps
from wdjax.train.config.trust import require_trusted
from wdjax.train.state.registry import read_config
from wdjax.train.storage.folder import (
    SPEED,
    SWEEP,
    hold_folder,
    make_folder,
    plain_config,
    write_yaml,
    writing,
)
from wdjax.train.storage.switches import KEYS, require_same_switches, switch_warnings, switches
from wdjax.yaml_reader import flat, read_yaml, read_yaml_value

SWITCHES = "switches.yaml"


@contextlib.contextmanager
def hold_sweep(
    workdir: Path, asked: Mapping[str, object], resume: bool, say: Callable[[str], object]
) -> Iterator[None]:
    """Write sweep.yaml, or check that it contains the same; lock the folder until the block ends.

    Args:
        workdir: folder of the sweep; created if missing.
        asked: everything that the numbers of the sweep depend on, for YAML.
        resume: continue the sweep in the folder.
        say: called with a warning for every setting of jax that differs and changes rounding.

    Raises:
        FileExistsError, OSError: as `make_folder` and `hold_folder`.
        ValueError: if the folder contains a sweep with other values or settings of jax; the message
            contains the first difference.
    """
    file = workdir / SWEEP_FILE
    if make_folder(workdir, SWEEP, resume) and file.exists():
        require_same(f"the sweep in {workdir}", read_yaml(file), asked)
        stored = read_switches(workdir)
        require_same_switches(stored, f"the sweep in {workdir}")
        for warning in switch_warnings(stored):
            say(warning)
    else:
        with writing(workdir):
            write_yaml(file, asked)
    with hold_folder(workdir, SWEEP):
        if not (workdir / SWITCHES).exists():
            write_yaml(workdir / SWITCHES, switches())
        yield


def read_sweep(workdir: Path, trust: Collection[str] | None = None) -> dict[str, Any]:
    """Return the content of sweep.yaml. Code that its configuration names is not imported.

    Args:
        workdir: folder of the sweep.
        trust: modules from which the caller imports code that the configuration names, to read the
            checkpoints of the sweep; None: it imports none and reads no checkpoints.

    Raises:
        FileNotFoundError: if the folder contains no sweep.
        ValueError: if the file is damaged; with `trust`, if the configuration names code of another
            module, or jax uses another form of keys.
    """
    file = workdir / SWEEP_FILE
    if not file.is_file():
        raise FileNotFoundError(f"{workdir} is not a sweep: {file} is missing")
    asked = read_yaml(file)
    require_fields(file, asked, config=dict)
    require_fields(file, asked["config"], env=str, policies=dict)
    policies = asked["config"]["policies"]
    require_fields(file, policies, **dict.fromkeys(policies, dict))
    if trust is not None:
        require_trusted(str(file), asked["config"], trust)
        require_same_switches(read_switches(workdir), f"the sweep in {workdir}", [KEYS])
    return asked


def read_members_file(file: Path, **kinds: type) -> dict[str, Any]:
    """Return the content of a members.json, the file of each batch and each population.

    Args:
        file: its path.
        **kinds: fields that each member needs, with their types, apart from its number.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    content = read_json(file)
    require_fields(file, content, size=int, members=list)
    for member in content["members"]:
        require_fields(file, member, member=int, **kinds)
    return content


def read_switches(workdir: Path) -> object:
    """Return the settings of jax at the start of a sweep, None for a sweep of wdjax 0.2.0."""
    return read_yaml_value(workdir / SWITCHES) if (workdir / SWITCHES).is_file() else None


def with_new_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a sweep.yaml with the configuration of a run.

    It has the defaults of newer fields and of `env_params`, and schedules in env steps. No code
    that it names is imported: `env_params` of other packages stay the same.
    """
    if "config" not in values:  # a study of Optuna
        return dict(values)
    config = read_config(values["config"], imports=False)
    with contextlib.suppress(ValueError, TypeError, ImportError):  # registered elsewhere
        config = complete_env_params(config, imports=False)
    return {**values, "config": plain_config(in_env_steps(config, config.total_env_steps))}


def require_same(what: str, stored: Mapping[str, object], asked: Mapping[str, object]) -> None:
    """Raise ValueError, with the first difference, if `what` was started with other values.

    Fields in SPEED may differ.
    """
    plain = read_yaml_value(yaml.safe_dump(dict(asked)))
    old, new = flat(with_new_fields(stored)), flat(with_new_fields(plain))
    for name in [*old, *(name for name in new if name not in old)]:
        if name.removeprefix("config.") not in SPEED and old.get(name) != new.get(name):
            raise ValueError(
                f"{name} = {new.get(name)!r}: {what} was started with {old.get(name)!r}"
            )
