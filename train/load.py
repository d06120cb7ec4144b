"""Load presets as validated configurations, and saved runs."""

import copy
import dataclasses
import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wdjax.all_policies import for_each_policy, named_as_changed
from wdjax.checks import require, require_known
from wdjax.files import write_text
from wdjax.train.config.reading import set_dotted
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.trust import require_trusted, with_own
from wdjax.train.config.warp_drive import read_warp_drive
from wdjax.train.evaluation.trained import TrainedPolicy, trained_policy
from wdjax.train.learner.learner import Learner, learner_of
from wdjax.train.learner.saved import read_run
from wdjax.train.learner.validate import validate
from wdjax.train.state.registry import (
    BLOCKS,
    flat_policy,
    policy_fields,
    read_config,
    without_old_options,
)
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import HostData, open_checkpoints, save
from wdjax.train.storage.folder import (
    CONFIG,
    RUN,
    hold_folder,
    make_folder,
    trusted_values,
    without_version,
    write_config,
)
from wdjax.train.storage.metrics_log import METRICS
from wdjax.yaml_reader import read_yaml

PRESETS = Path(__file__).parents[1] / "experiments" / "configs"

# name of an environment -> preset that learns it in one or two minutes on 2 CPU cores
ALIASES = {
    "tag": "tag_small",
    "covid": "covid_small",
    "reaction": "reaction_mueller_brown",
    "CartPole-v1": "cartpole_ppo",
    "Acrobot-v1": "acrobot_ppo",
    "pendulum": "pendulum_ddpg",
    "Pendulum-v1": "pendulum_ddpg",
    "mountain_car": "mountain_car_ppo",
    "MountainCar-v0": "mountain_car_ppo",
    "continuous_mountain_car": "continuous_mountain_car_ddpg",
    "MountainCarContinuous-v0": "continuous_mountain_car_ddpg",
}


def load_config(
    preset: str | Path | Mapping[str, object], *, trust: Collection[str] = (), **changes: object
) -> TrainConfig:
    """Load a preset, apply changes and validate the result.

    Args:
        preset: name of a preset (see `list_presets`), path of a YAML file, or a mapping with the
            contents of one. The file may be a run configuration of WarpDrive: `read_warp_drive`
            reports what becomes of its settings.
        trust: modules from which the config.yaml of a run may import code, as for `load_run`. All
            other YAML files are trusted.
        **changes: fields of TrainConfig; nested ones are dotted:
            {"policies.runner.learning_rate": 1e-3}. "policies.all.learning_rate" is the field of
            every policy.

    Raises:
        ValueError: if a name is unknown (the message has the closest name), a value is out of
            range, or wdjax does not support a setting of WarpDrive.
        TypeError: if a value has the wrong type.
        FileNotFoundError: if the file does not exist.
    """
    if isinstance(preset, Mapping):
        raw = copy.deepcopy(dict(preset))
    elif (path := preset_path(preset)).name == CONFIG:
        return _changed(trusted_values(path, trust), changes)
    else:
        raw = read_yaml(path)
    if warp_drive := read_warp_drive(raw):
        warp_drive.require_supported()
        raw = warp_drive.fields
    return _changed(without_version(raw), changes)


def change_config(
    config: TrainConfig, *, trust: Collection[str] | None = None, **changes: object
) -> TrainConfig:
    """Change a configuration and validate the result; without changes, only validate it.

    Args:
        config: the configuration; it does not change.
        trust: modules from which the changes may import code, besides those that `config` names.
            None: any module.
        **changes: fields of TrainConfig, as for `load_config`.

    Returns:
        The new configuration.

    Raises:
        ValueError, TypeError: as `load_config`.
    """
    trusted = None if trust is None else with_own(trust, config)
    return _changed(dataclasses.asdict(config), changes, trusted)


def _changed(
    raw: dict[str, Any], changes: Mapping[str, object], trust: Collection[str] | None = None
) -> TrainConfig:
    flat = lambda path, own: flat_policy(path, own) if isinstance(own, Mapping) else own  # noqa: E731
    before = {
        block: {name: flat(f"{block}.{name}", own) for name, own in raw[block].items()}
        for block in BLOCKS
        if isinstance(raw.get(block), Mapping)
    }
    raw = {**raw, **before}
    policies, typed = list(raw.get("policies") or ()), changes
    changes = dict(_flat_changes(for_each_policy(changes, policies)))
    for name, value in changes.items():
        inside = policy_fields(name, policies)
        if inside and name not in TrainConfig.__dataclass_fields__:
            raise ValueError(
                f"unknown field {name}: did you mean {' or '.join(map(repr, inside))}?"
            )
        set_dotted(raw, name, value)
    if trust is not None:
        require_trusted(", ".join(changes), raw, trust)
    for block, old in before.items():
        if isinstance(after := raw[block], Mapping):
            raw[block] = {
                name: without_old_options(f"{block}.{name}", own, old.get(name), changes)
                for name, own in after.items()
            }
    with named_as_changed(typed, policies):
        config = read_config(raw)
        validate(config)
    return config


def _flat_changes(changes: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield changes with the options of policies and teams named flat, also those in blocks."""
    for name, value in changes.items():
        match = re.fullmatch(r"((?:policies|teams)\.[^.]+)\.(?:options|ddpg)(\..+)?", name)
        if match and match[2]:
            yield f"{match[1]}{match[2]}", value
        elif match and isinstance(value, Mapping):
            yield from ((f"{match[1]}.{option}", inside) for option, inside in value.items())
        else:
            yield name, value


def list_presets() -> list[str]:
    """Return the names of the presets bundled with wdjax, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def preset_path(preset: str | Path) -> Path:
    """Return the YAML file of a preset.

    Args:
        preset: name of a preset, or the path of a YAML file, which is returned.

    Raises:
        ValueError, TypeError: if the preset is unknown; the message has the closest name.
        FileNotFoundError: if the file does not exist.
    """
    if not isinstance(preset, (str, Path)):
        raise TypeError(
            f"preset = {preset!r}: must be "
            "the name of a preset, the path of a YAML file, or a mapping"
        )
    path = Path(preset)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {path}")
        return path
    if (path / CONFIG).is_file():
        raise ValueError(f"{preset} is a run folder. Use its preset {preset}/{CONFIG}.")
    name, known = ALIASES.get(str(preset), str(preset)), list_presets()
    files = [own for own in (Path(f"{path}.yaml"), path / f"{path.name}.yaml") if own.is_file()]
    if name not in known and path.parts and (files or len(path.parts) > 1 or path.is_dir()):
        hint = f". Did you mean {files[0]}?" if files else ""
        raise FileNotFoundError(
            f"{preset}: not a preset (see wdjax list), a .yaml file or a run folder{hint}"
        )
    if ":" in str(preset):
        raise ValueError(
            f"preset = {preset}: this is an environment, not a preset. "
            f"For a single agent: wdjax train cartpole_ppo --env {preset}. "
            "For several agents: write a preset (docs/how_to/own_environment.md)."
        )
    require_known("preset", name, [*known, *ALIASES])
    return PRESETS / f"{name}.yaml"


def load_run(
    run_folder: str | Path,
    best: bool = False,
    num_updates: int | None = None,
    trust: Collection[str] = (),
) -> tuple[Learner, TrainState]:
    """Load the learner of a run, on one device, and the state of its newest checkpoint.

    Args:
        run_folder: folder of the run, or a bundled run such as "reference:tag_continuous".
            "runs/a@best" and "runs/a@120" select a checkpoint.
        best: load the best checkpoint instead, if `run_folder` selects none.
        num_updates: load the checkpoint after this number of updates instead.
        trust: modules (with their submodules) from which the run may import its encoder, algorithm
            or environment, in addition to wdjax and installed packages with entry points for wdjax.

    Returns:
        (learner, state).

    Raises:
        FileNotFoundError: if the run or the checkpoint does not exist.
        ValueError: if the run names code in an untrusted module, which is not imported.
        RuntimeError: under a jax transformation that traces, such as jit.
    """
    run = run_folder if num_updates is None else f"{run_folder}@{num_updates}"
    setup, state = read_run(run, "best" if best else "newest", trust)
    return learner_of(setup), state


def save_run(
    workdir: str | Path,
    config: TrainConfig,
    state: TrainState,
    metrics: Iterable[Mapping[str, Any]] = (),
    best_score: float | None = None,
) -> None:
    """Save a state as a run that `load_run` and the commands read, for example after `Learner.run`.

    Args:
        workdir: folder of the run. A run in it is replaced once the new one is written.
        config: configuration of the learner.
        state: state of a single run.
        metrics: rows of metrics.jsonl.
        best_score: value of `best_metric`.

    Raises:
        FileExistsError: if the folder contains a sweep or other files.
        BlockingIOError: if a process is training in the folder.
        OSError: if the folder cannot be written.
        TypeError: if `config` or `state` is another object, before anything is written.
    """
    for name, value, kind in (("config", config, TrainConfig), ("state", state, TrainState)):
        known = "learner.config" if kind is TrainConfig else "from Learner.init, update or run"
        allowed = f"a {kind.__name__}, {known}"
        require(isinstance(value, kind), name, type(value).__name__, allowed, TypeError)
    workdir = Path(workdir).resolve()
    is_run = make_folder(workdir, RUN, resume=True)
    others = [path for path in workdir.iterdir() if path.name != METRICS]  # a killed save leaves it
    if others and not is_run:
        raise FileExistsError(f"{workdir} contains other files. Use another workdir.")
    lines = "".join(json.dumps(row) + "\n" for row in metrics)
    host: HostData = {"metrics_size": len(lines.encode()), "best_score": best_score}
    with (
        hold_folder(workdir),  # raises an error if it is in use
        tempfile.TemporaryDirectory(dir=workdir.parent, prefix=f".{workdir.name}-") as folder,
    ):
        new, old = Path(folder) / "new", Path(folder) / "old"
        new.mkdir()
        with open_checkpoints(new / "checkpoints", 1) as checkpoints:
            save(checkpoints, int(state.num_updates), state, host)
        write_text(new / METRICS, lines)
        write_config(new, config)
        workdir.rename(old)
        new.rename(workdir)


def load_policy(
    run: str | Path, policy: str | None = None, trust: Collection[str] = ()
) -> TrainedPolicy:
    """Load a trained policy of a run.

        policy = wdjax.load_policy("runs/a", "tagger")
        action, memory = policy.act(obs, memory, key)  # supports jit and vmap

    Args:
        run: folder of the run. "runs/a@best" and "runs/a@120" select a checkpoint.
        policy: name of the policy; None if the run has only one.
        trust: modules from which the run may import code, as for `load_run`.

    Raises:
        FileNotFoundError: if the run or the checkpoint does not exist.
        ValueError: if the policy is unknown (the message has the closest name), or the run names
            code in an untrusted module.
    """
    return trained_policy(*load_run(run, trust=trust), policy)
