"""The command line: wdjax train, eval, render, bench, list."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console

import wdjax
from wdjax.checks import did_you_mean
from wdjax.experiments.benchmarks.suite import bench
from wdjax.experiments.matrix import matrix_tables, other_params, require_tables, write_matrix
from wdjax.train import (
    Player,
    TrainConfig,
    cross_play,
    list_presets,
    load_config,
    save_episode,
    statistics,
)
from wdjax.train.load import preset_path
from wdjax.train.trainer import Trainer, load_named, split_checkpoint
from wdjax.train.validate import complete_env_params, validate

USAGE = """\
usage: wdjax COMMAND ...

  wdjax train PRESET [--workdir DIR] [--resume] [--FIELD VALUE ...]   train; PRESET is a name or a YAML file
  wdjax eval RUN [RUN ...] [--opponents NAME ...] [--output FILE]     the cross-play matrix: runs, random play, scripts
  wdjax render RUN [--output FILE] [--npz FILE]                       one episode as an animated GIF, or as arrays
  wdjax bench [ROW ...] [--tier TIER ...] [--small] [--json FILE]     speed: env steps/s of the benchmark suite's rows
  wdjax list                                                          environments and presets

wdjax COMMAND --help tells more; wdjax train PRESET --help lists every field of the preset.
WDJAX_TRACEBACK=1 shows where in the code an error was raised."""


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    config: Annotated[TrainConfig, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff]  # --FIELD True, --FIELD False
    workdir: Path
    """the run's folder: config.yaml, metrics.jsonl, checkpoints, curves.png, episode.gif"""
    resume: bool = False
    """go on from the newest checkpoint in the folder, where there is one"""


@dataclasses.dataclass(frozen=True)
class EvalArguments:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """the folders of one or several runs of one game; FOLDER@best, FOLDER@newest, FOLDER@120 name a checkpoint"""
    opponents: tuple[str, ...] = ("random",)
    """who else plays, wherever a role fits: random, and in Tag chase_nearest, flee_nearest"""
    checkpoint: str = "newest"
    """of all runs that name none: newest, best, or a number of updates"""
    episodes: int = 256
    """episodes of each combination"""
    batch: int | None = None
    """at most so many of them side by side, where memory is short"""
    greedy: bool = False
    """trained policies take their most likely action (else they draw it, as in training)"""
    best: bool = False
    """the same as --checkpoint best"""
    seed: int = 0
    """of starts and actions"""
    output: tuple[Path, ...] = ()
    """also write all numbers, quantiles and agents' own returns too, to these files: JSON, or CSV where one ends so"""


@dataclasses.dataclass(frozen=True)
class RenderArguments:
    run: Annotated[str, tyro.conf.Positional]
    """the folder of a run; FOLDER@best, FOLDER@120 name a checkpoint"""
    output: Path | None = None
    """the GIF (default: episode.gif in the folder, where no --npz is asked for)"""
    npz: Path | None = None
    """the episode as arrays for numpy.load: states, actions, rewards, ends, observations, probabilities, values"""
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
    if argv is None:  # from a shell: modules of one's own in the current folder are found, as `python -m` finds them
        sys.path.insert(0, str(Path.cwd()))
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
    """wdjax eval RUN [RUN ...] [--opponents NAME ...] [--checkpoint WHICH] [--episodes N] [--greedy] [--output FILE]"""
    parsed = tyro.cli(EvalArguments, prog="wdjax eval", args=arguments)
    if not parsed.runs:
        raise ValueError("wdjax eval needs a run first: the folder that wdjax train wrote (wdjax eval --help)")
    which = "best" if parsed.best else parsed.checkpoint
    require_tables(parsed.output)
    first, *others = [load_player(run, which) for run in parsed.runs]
    for line in other_params(first, others):
        Console().print(line, soft_wrap=True, markup=False)
    cells = cross_play(
        first.learner, first.state, jax.random.key(parsed.seed), parsed.episodes, parsed.greedy,
        opponents=(*others, *parsed.opponents), name=first.name if others else "trained", batch=parsed.batch,
    )  # fmt: skip
    rows = {cell: statistics(episodes, first.learner.env.info_ratios) for cell, episodes in cells.items()}
    roles = list(next(iter(cells.values())).episode_return)
    how = "most likely actions" if parsed.greedy else "drawn actions"
    title = f"{', '.join(parsed.runs)}: {parsed.episodes} episodes each, {how}, mean ± standard error"
    for file in parsed.output:  # first: nobody may read what is printed to its end (`| head`)
        write_matrix(file, roles, rows)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(title, soft_wrap=True, markup=False, highlight=False)
    for table in matrix_tables(roles, rows):
        console.print(table)


def load_player(run: str, which: str) -> Player:
    """Returns a checkpoint of a run as a player: "runs/a", or "runs/a@best" in place of `which`."""
    return Player(run, *load_named(run, which))


def render(arguments: list[str]) -> None:
    """wdjax render RUN [--output FILE] [--npz FILE] [--greedy] [--best] [--seed N] [--fps N]"""
    parsed = tyro.cli(RenderArguments, prog="wdjax render", args=arguments)
    if parsed.npz is not None and parsed.npz.suffix != ".npz":
        raise ValueError(f"--npz {parsed.npz}: must end in .npz")
    player = load_player(parsed.run, "best" if parsed.best else "newest")
    default = None if parsed.npz else split_checkpoint(parsed.run)[0] / "episode.gif"
    if parsed.output is not None and parsed.output.suffix != ".gif":
        raise ValueError(f"--output {parsed.output}: must end in .gif")
    for file in filter(None, (parsed.npz, parsed.output or default)):
        written = save_episode(player.learner, player.state, file, parsed.seed, parsed.greedy, parsed.fps)
        print(f"Wrote {written}")


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
    "train": train, "eval": evaluate, "render": render, "bench": bench, "list": list_all
}  # fmt: skip


if __name__ == "__main__":
    main()
