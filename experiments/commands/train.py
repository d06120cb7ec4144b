"""wdjax train."""

import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from wdjax.all_policies import named_as_changed
from wdjax.checks import require
from wdjax.console import show, table_console
from wdjax.experiments.auto_scale import auto_scale, trial_table, what_changes
from wdjax.experiments.cli import IN_A_MINUTE, cost_of, import_trainer, program
from wdjax.experiments.commands.arguments import (
    PATHS,
    Callbacks,
    Modules,
    flags_of,
    parse,
    require_preset,
    show_warp_drive,
)
from wdjax.experiments.commands.diff import CONFIG, fields_of
from wdjax.experiments.commands.dry_run import dry_run
from wdjax.experiments.commands.help import SCREEN, help_text, help_topic, panels_by_tyro
from wdjax.experiments.commands.overrides import as_typed, flags_with_values, for_each_policy
from wdjax.kernels.backend import on_cpu
from wdjax.lazy import no_garbage_collection
from wdjax.signals import STOPPED
from wdjax.train import (
    TrainConfig,
    change_config,
    complete_env_params,
    connect,
    custom_modules,
    find_algorithm,
    list_presets,
    load_config,
    make_deterministic,
    make_learner,
    preset_path,
    read_config,
)


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    config: Annotated[
        TrainConfig, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff
    ]  # --FIELD True, --FIELD False
    workdir: Path
    """Folder of the run: config.yaml, metrics.jsonl, checkpoints, curves.png, episode.gif."""
    dry_run: bool = False
    """Print non-default fields, parameters, batch sizes, kernels and memory. Do not train."""
    resume: bool = False
    """Continue from the newest checkpoint in the folder, if there is one."""
    trust: Modules = ()
    callbacks: Callbacks = ()
    pictures: bool = True
    """Draw curves.png and episode.gif at the end."""
    debug: bool = False
    """Enable slow checks: environment contract, asserts of the environment, reused random keys,
    origin of NaNs."""
    deterministic: bool = False
    """On a GPU, make runs reproducible bit for bit, also after resuming. A CPU is always
    deterministic."""
    auto_scale: bool = False
    """Before a new run, find the fastest num_envs that fits in memory
    (experiments/auto_scale.py)."""
    auto_scale_rollout: bool = False
    """Like --auto-scale, for num_envs and rollout_length."""
    coordinator: str | None = None
    """Multi-process runs: HOST:PORT of process 0 (JAX_COORDINATOR_ADDRESS). Leave out all three
    flags under srun."""
    num_processes: int | None = None
    """Number of processes (JAX_NUM_PROCESSES)."""
    process_id: int | None = None
    """Index of this process, from 0 (JAX_PROCESS_ID)."""


def train(arguments: list[str]) -> None:
    """Run `wdjax train`."""
    topic = help_topic(arguments)
    if topic is not None and arguments[0].startswith("-"):
        print(f"{SCREEN.format(preset='PRESET', name='tag_small')}\n")
        print(f"presets: {', '.join(list_presets())}, or a YAML file (see wdjax list)")
        print("wdjax train PRESET --help lists its fields by topic")
        return
    preset, *changes = with_flat_options(require_preset("train", arguments))
    allowed = "left to wdjax sweep. Use --FIELD VALUE, such as --policies.all.learning-rate 1e-3"
    require("--set" not in changes, "option", "--set", allowed)
    if "--deterministic" in changes:  # before the first computation: XLA reads its flags once
        make_deterministic()
    if topic is None:
        show_warp_drive(preset)
    raw, default = of_preset(preset, changes)
    if topic is not None:
        panels = panels_by_tyro(TrainArguments, f"wdjax train {preset}", default=default)
        show(help_text(SCREEN.format(preset=preset, name=preset), panels, topic))
        return
    parsed = with_flags(preset, raw, default, changes)
    connect(parsed.coordinator, parsed.num_processes, parsed.process_id)
    if parsed.dry_run:
        begun = (parsed.workdir / CONFIG).exists()
        for line in dry_run(parsed.config, parsed.trust, parsed.callbacks, begun):
            show(line)
        return
    trainer_class = import_trainer()
    config = scaled(parsed) if parsed.auto_scale or parsed.auto_scale_rollout else parsed.config
    cost = cost_of_large(preset_path(preset), raw, parsed)  # before the folder exists
    with no_garbage_collection():
        trainer = trainer_class(
            config, parsed.workdir, parsed.resume, parsed.callbacks, debug=parsed.debug,
            trust=parsed.trust,
            pictures=parsed.pictures,
        )  # fmt: skip
    if cost:
        show(cost)
    trainer.train()
    if trainer.stopped:
        raise SystemExit(STOPPED)
    if jax.process_index() == 0:
        show(f"Next: {next_commands(trainer.config, parsed.workdir, parsed.pictures)}")


def next_commands(config: TrainConfig, workdir: Path, pictures: bool) -> str:
    """Return the shell commands that evaluate, show and play a run, with --trust if needed.

    Args:
        config: configuration of the run.
        workdir: folder of the run.
        pictures: whether the run drew pictures. If it did without episode.gif, it has no
            drawing.
    """
    run = f"./{workdir}" if str(workdir).startswith(("-", "reference:")) else str(workdir)
    trusting = [word for module in custom_modules(config) for word in ("--trust", module)]
    drawn = not pictures or (workdir / "episode.gif").exists()
    commands = ["eval", *["render"] * drawn, "report", *["play"] * drawn]
    return " && ".join(shlex.join([program(), command, run, *trusting]) for command in commands)


def of_preset(preset: str, changes: Sequence[str]) -> tuple[TrainConfig, TrainArguments]:
    """Return a preset without changes, and the default arguments of a run with its algorithms."""
    raw = load_config(preset, trust=named_modules(changes))
    changes = for_each_policy(changes, raw.policies)
    config = with_algorithms(complete_env_params(raw), changes)
    return raw, TrainArguments(config, workdir=Path("runs") / preset_path(preset).stem)


def with_flags(
    preset: str, raw: TrainConfig, default: TrainArguments, changes: list[str]
) -> TrainArguments:
    """Return the default arguments changed by flags; raise ValueError or TypeError for bad ones."""
    typed, changes = changes, for_each_policy(changes, raw.policies)
    flags = [words[0].removeprefix("--").partition("=")[0] for words in flags_with_values(typed)]
    fields = [flag.replace("-", "_") for flag in flags]
    with named_as_changed(fields, raw.policies):
        try:
            parsed = parse(TrainArguments, f"wdjax train {preset}", changes, default=default)
        except ValueError as error:
            raise ValueError(as_typed(str(error), typed, raw.policies)) from None
        config = with_told_env_params(parsed.config, raw, changes)
        change_config(config)  # validates it
    return dataclasses.replace(parsed, config=config)


def cost_of_large(path: Path, raw: TrainConfig, parsed: TrainArguments) -> str:
    """Return the cost and the quick version of a large preset for a new run on a CPU, else ""."""
    cost, size = cost_of(path), ("num_envs", "rollout_length", "total_env_steps")
    whole = all(getattr(parsed.config, name) == getattr(raw, name) for name in size)
    if IN_A_MINUTE in cost and whole and on_cpu() and not (parsed.workdir / CONFIG).exists():
        return f"{path.stem}: {cost.replace(IN_A_MINUTE, f'{IN_A_MINUTE} wdjax train')}"
    return ""


def with_told_env_params(
    config: TrainConfig, raw: TrainConfig, changes: Sequence[str]
) -> TrainConfig:
    """Recompute env_params that neither the preset nor flags set: defaults may depend on others."""
    flags = {flag.replace("-", "_") for flag, _ in flags_of(changes)}
    is_set = lambda name: name in raw.env_params or f"__env_params.{name}" in flags  # noqa: E731
    params = {name: value for name, value in config.env_params.items() if is_set(name)}
    return complete_env_params(dataclasses.replace(config, env_params=params))


def named_modules(changes: Sequence[str]) -> list[str]:
    """Return the modules that flags name: after --trust, and in code, "package.module:Name"."""
    places = (*PATHS, "--coordinator")  # a path such as "os:a" is not a module

    def is_code(flag: str, module: str, found: str) -> bool:
        is_path = flag in places or flag.endswith((".checkpoint", "-file"))
        return bool(found) and not is_path and all(map(str.isidentifier, module.split(".")))

    parts = [(flag, *value.partition(":")) for flag, value in flags_of(changes)]
    return [
        module
        for flag, module, found, _ in parts
        if flag == "--trust" or is_code(flag, module, found)
    ]


def with_algorithms(config: TrainConfig, changes: Sequence[str]) -> TrainConfig:
    """Return a preset with the algorithms that flags name, so that flags exist for their options.

    Options that both algorithms have keep their values.

    Raises:
        ValueError, TypeError: for an unknown algorithm, naming the field.
    """
    blocks: dict[str, Any] = {"policies": dict(config.policies), "teams": dict(config.teams)}
    for flag, value in flags_of(changes):
        match = re.fullmatch(r"--(policies|teams)\.([^.]+)\.algorithm", flag)
        if match and match[2] in blocks[match[1]]:
            block, name = match.groups()
            old = blocks[block][name]
            owned = find_algorithm(value, f"{block}.{name}.algorithm").Options.__dataclass_fields__
            kept = {name: option for name, option in vars(old.options).items() if name in owned}
            blocks[block][name] = dataclasses.replace(old, algorithm=value, options=kept)
    return read_config(dataclasses.replace(config, **blocks))


def with_flat_options(changes: Sequence[str]) -> list[str]:
    """Return flags with flat options; 0.2 had `--policies.NAME.ddpg.tau` and `.options.tau`."""
    return [re.sub(r"^(--policies\.[^.=]+)\.(options|ddpg)\.", r"\1.", word) for word in changes]


def scaled(parsed: TrainArguments) -> TrainConfig:
    """Return the configuration with the size found by --auto-scale, or of the run to resume."""
    from wdjax.train.trainer import check_run

    if (parsed.workdir / CONFIG).exists():
        begun = fields_of(str(parsed.workdir))
        size = {name: begun[name] for name in ("num_envs", "rollout_length")}
        return dataclasses.replace(parsed.config, **size)
    check_run(make_learner(parsed.config, parsed.trust), parsed.callbacks)
    print(
        "--auto-scale: measuring run sizes. Each is compiled, then run for about 1 s.", flush=True
    )
    found, trials = auto_scale(parsed.config, parsed.auto_scale_rollout)
    table_console().print(trial_table(trials, found))
    show(what_changes(parsed.config, found))
    return found
