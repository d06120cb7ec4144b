"""The command line: wdjax train, eval, render, list."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import wdjax
from wdjax.checks import did_you_mean
from wdjax.train import Episodes, TrainConfig, cross_play, list_presets, load_config, load_run, save_episode
from wdjax.train.load import preset_path
from wdjax.train.trainer import Trainer
from wdjax.train.validate import complete_env_params, validate

USAGE = """\
usage: wdjax COMMAND ...

  wdjax train PRESET [--workdir DIR] [--resume] [--FIELD VALUE ...]   train; PRESET is a name or a YAML file
  wdjax eval RUN [--episodes N] [--greedy] [--best]                   trained against random policies, on each side
  wdjax render RUN [--output FILE]                                    one episode as an animated GIF
  wdjax list                                                          environments and presets

wdjax COMMAND --help tells more; wdjax train PRESET --help lists every field of the preset.
WDJAX_TRACEBACK=1 shows where in the code an error was raised."""


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    workdir: Path
    """the run's folder: config.yaml, metrics.jsonl, checkpoints, curves.png, episode.gif"""
    resume: bool = False
    """go on from the newest checkpoint in the folder, where there is one"""


@dataclasses.dataclass(frozen=True)
class EvalArguments:
    run: Annotated[Path, tyro.conf.Positional]
    """the folder of a run"""
    episodes: int = 256
    """episodes of each combination"""
    greedy: bool = False
    """trained policies take their most likely action (else they draw it, as in training)"""
    best: bool = False
    """the best checkpoint (else the newest)"""
    seed: int = 0
    """of starts and actions"""
    output: Path | None = None
    """also write the numbers to this JSON file"""


@dataclasses.dataclass(frozen=True)
class RenderArguments:
    run: Annotated[Path, tyro.conf.Positional]
    """the folder of a run"""
    output: Path | None = None
    """the GIF (default: episode.gif in the folder)"""
    greedy: bool = False
    """policies take their most likely action (else they draw it, as in training)"""
    best: bool = False
    """the best checkpoint (else the newest)"""
    seed: int = 0
    """of start and actions"""
    fps: int = 12
    """frames a second"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command; bad input ends with one sentence and exit status 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if arguments else 2)
    command, *rest = arguments
    try:
        if command not in COMMANDS:
            raise ValueError(f"unknown command {command!r}: {did_you_mean(command, COMMANDS)}")
        cache_compilations()
        COMMANDS[command](rest)
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        if os.environ.get("WDJAX_TRACEBACK"):
            raise
        Console(stderr=True).print(f"wdjax: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(2) from error


def train(arguments: list[str]) -> None:
    """wdjax train PRESET [--workdir DIR] [--resume] [--FIELD VALUE ...]"""
    if not arguments or arguments[0].startswith("-"):
        presets = ", ".join(list_presets())
        raise ValueError(f"wdjax train needs a preset first: {presets}, or a YAML file (wdjax train PRESET --help)")
    preset, *changes = arguments
    config = complete_env_params(load_config(preset))
    default = TrainArguments(config, workdir=Path("runs") / preset_path(preset).stem)
    parsed = tyro.cli(TrainArguments, prog=f"wdjax train {preset}", default=default, args=changes)
    validate(parsed.config)
    trainer = Trainer(parsed.config, parsed.workdir, parsed.resume)
    trainer.train()
    if trainer.stopped:
        raise SystemExit(130)


def evaluate(arguments: list[str]) -> None:
    """wdjax eval RUN [--episodes N] [--greedy] [--best] [--seed N] [--output FILE]"""
    parsed = tyro.cli(EvalArguments, prog="wdjax eval", args=arguments)
    learner, state = load_run(parsed.run, parsed.best)
    cells = cross_play(learner, state, jax.random.key(parsed.seed), parsed.episodes, parsed.greedy)
    policies = list(learner.setup.policies)
    sums = {pair[0] for pair in learner.env.info_ratios.values()}
    rows = {cell: statistics(episodes, without=sums) for cell, episodes in cells.items()}
    how = "most likely actions" if parsed.greedy else "drawn actions"
    title = f"{parsed.run}: {parsed.episodes} episodes a row, {how}, mean ± standard error"
    table = cross_play_table(policies, rows, title)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if parsed.output is not None:
        content = [{"policies": dict(zip(policies, cell, strict=True)), **numbers} for cell, numbers in rows.items()]
        parsed.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")


def statistics(episodes: Episodes, without: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Returns {name: {"mean", "standard_error"}} of everything that was counted over whole episodes, but `without`."""
    returns = {f"{policy} return": array for policy, array in episodes.episode_return.items()}
    counts = {name: array for name, array in episodes.episode_info.items() if name not in without}
    values = {**counts, "length": episodes.episode_length, **returns}
    return {
        name: {"mean": float(np.mean(array)), "standard_error": float(np.std(array) / np.sqrt(len(array)))}
        for name, array in values.items()
    }


def cross_play_table(policies: list[str], rows: dict[tuple[str, ...], dict], title: str) -> Table:
    """Returns a table with a row for each combination; counts also as multiples of those of all-random play."""
    table = Table(title=title, title_justify="left")
    for policy in policies:
        table.add_column(policy)
    names = list(next(iter(rows.values())))
    for name in names:
        table.add_column(name, justify="right")
    baseline = rows[("random",) * len(policies)]
    for cell, numbers in rows.items():
        texts = []
        for name in names:
            mean, error, random = numbers[name]["mean"], numbers[name]["standard_error"], baseline[name]["mean"]
            multiple = f" ({mean / random:.2f} x random)" if random > 0 and not name.endswith(" return") else ""
            texts.append(f"{mean:.2f} ± {error:.2f}{multiple}")
        table.add_row(*cell, *texts)
    return table


def render(arguments: list[str]) -> None:
    """wdjax render RUN [--output FILE] [--greedy] [--best] [--seed N] [--fps N]"""
    parsed = tyro.cli(RenderArguments, prog="wdjax render", args=arguments)
    learner, state = load_run(parsed.run, parsed.best)
    output = parsed.output or parsed.run / "episode.gif"
    print(f"Wrote {save_episode(learner, state, output, parsed.seed, parsed.greedy, parsed.fps)}")


def list_all(arguments: list[str]) -> None:
    """wdjax list"""
    if arguments:
        raise ValueError(f"wdjax list takes no arguments, not {' '.join(arguments)}")
    console = Console(highlight=False)
    console.print("environments:", *wdjax.list_envs(), sep="\n  ")
    console.print("  gymnax:NAME, jaxmarl:NAME (those of the libraries, where they are installed)")
    console.print("presets:")
    for name in list_presets():
        purpose = preset_path(name).read_text(encoding="utf8").splitlines()[0].removeprefix("# ")
        console.print(f"  {name:32s}{purpose}", markup=False, soft_wrap=True)


def cache_compilations() -> None:
    """Keeps compiled programs between processes, in ~/.cache/wdjax or where JAX_COMPILATION_CACHE_DIR says."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "wdjax"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


COMMANDS: dict[str, Callable[[list[str]], Any]] = {
    "train": train, "eval": evaluate, "render": render, "list": list_all
}  # fmt: skip


if __name__ == "__main__":
    main()
