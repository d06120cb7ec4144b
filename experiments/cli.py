"""The command line: wdjax train, sweep, eval, render, bench, list."""

import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console

import wdjax
from wdjax.checks import did_you_mean, one_line, require
from wdjax.experiments.auto_scale import auto_scale, trial_table, what_changes
from wdjax.experiments.benchmarks.suite import bench
from wdjax.experiments.matrix import matrix_tables, other_params, require_tables, write_matrix
from wdjax.experiments.sweep.command import SweepArguments, run_sweep
from wdjax.train import (
    Player,
    TrainConfig,
    cross_play,
    list_presets,
    load_config,
    save_episode,
    statistics,
)
from wdjax.train.bad_numbers import BadNumbersError
from wdjax.train.debug import FailedCheckError
from wdjax.train.determinism import make_deterministic
from wdjax.train.load import preset_path
from wdjax.train.processes import STOPPED, connect, leaving
from wdjax.train.signals import stop_signals
from wdjax.train.trainer import Trainer, load_named, load_run_config, split_checkpoint
from wdjax.train.validate import complete_env_params, validate

FAILURES = (BadNumbersError, FailedCheckError)  # of a run, not of what was asked for

USAGE = """\
usage: wdjax COMMAND ...

  wdjax train PRESET [--workdir DIR] [--resume] [--FIELD VALUE ...]   train; PRESET is a name or a YAML file
  wdjax sweep PRESET [--set FIELD=VALUE,VALUE ...] [--seeds N]        many runs as one program, a table; --search, --pbt
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
    debug: bool = False
    """slow checks on one device: of the environment, of its asserts, of keys used twice, of where a NaN is made"""
    deterministic: bool = False
    """on a GPU: the same bits in every run, and so also after a resume; slower (a CPU is always so)"""
    auto_scale: bool = False
    """first find the num_envs with which a new run is fastest within the memory there is (experiments/auto_scale.py)"""
    auto_scale_rollout: bool = False
    """the same, and rollout_length too"""
    coordinator: str | None = None
    """several processes: HOST:PORT of process 0 (JAX_COORDINATOR_ADDRESS); under srun give none of these"""
    num_processes: int | None = None
    """how many there are (JAX_NUM_PROCESSES)"""
    process_id: int | None = None
    """which one this is, from 0 (JAX_PROCESS_ID)"""


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
    """Runs a command; bad input ends with one sentence and exit status 2, bad numbers in a run with exit status 1."""
    if argv is None:  # from a shell: modules of one's own in the current folder are found, as `python -m` finds them
        sys.path.insert(0, str(Path.cwd()))
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if arguments else 2)
    try:
        with leaving():
            call(*arguments)
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None


def call(command: str, *rest: str) -> None:
    """Runs a command with its arguments; bad input ends with one sentence and exit status 2."""
    try:
        if command not in COMMANDS:
            raise ValueError(f"unknown command {command!r}: {did_you_mean(command, COMMANDS)}")
        cache_compilations()
        COMMANDS[command](list(rest))
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError, *FAILURES) as error:
        if os.environ.get("WDJAX_TRACEBACK"):
            raise
        sentence = f"wdjax: {one_line(error)}"
        Console(stderr=True).print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(1 if isinstance(error, FAILURES) else 2) from error


def train(arguments: list[str]) -> None:
    """wdjax train PRESET [--workdir DIR] [--resume] [--debug] [--deterministic] [--FIELD VALUE ...]"""
    preset, *changes = require_preset("train", arguments)
    if "--deterministic" in changes:  # before a preset's environment may compute something: XLA looks but once
        make_deterministic()
    config = complete_env_params(load_config(preset))
    default = TrainArguments(config, workdir=Path("runs") / preset_path(preset).stem)
    parsed = parse(TrainArguments, f"wdjax train {preset}", changes, default=default)
    validate(parsed.config)
    connect(parsed.coordinator, parsed.num_processes, parsed.process_id)
    config = scaled(parsed) if parsed.auto_scale or parsed.auto_scale_rollout else parsed.config
    trainer = Trainer(config, parsed.workdir, parsed.resume, debug=parsed.debug)
    trainer.train()
    if trainer.stopped:
        raise SystemExit(STOPPED)


def scaled(parsed: TrainArguments) -> TrainConfig:
    """Returns the configuration in the size that --auto-scale finds, or that the run in the folder has."""
    if (parsed.workdir / "config.yaml").exists():
        begun = load_run_config(parsed.workdir)
        return dataclasses.replace(parsed.config, num_envs=begun.num_envs, rollout_length=begun.rollout_length)
    print("--auto-scale: trying sizes of the run, each compiled first and then run for a second", flush=True)
    found, trials = auto_scale(parsed.config, parsed.auto_scale_rollout)
    Console(width=None if sys.stdout.isatty() else 160).print(trial_table(trials, found))
    print(what_changes(parsed.config, found))
    return found


def sweep(arguments: list[str]) -> None:
    """wdjax sweep PRESET [--set FIELD=VALUES ...] [--seeds N] [--search TRIALS | --pbt MEMBERS] [--workdir DIR]"""
    if arguments and arguments[0] in ("-h", "--help"):
        parse(SweepArguments, "wdjax sweep PRESET", ["--help"])
    preset, *rest = require_preset("sweep", arguments)
    default = SweepArguments(workdir=Path("runs") / f"sweep_{preset_path(preset).stem}")
    parsed = parse(SweepArguments, f"wdjax sweep {preset}", rest, default=default)
    with stop_signals(Console()) as stop:
        run_sweep(preset, parsed, stop)
    if stop.is_set():
        raise SystemExit(STOPPED)


def require_preset(command: str, arguments: list[str]) -> list[str]:
    """Returns the arguments of a command that needs a preset first; raises ValueError where there is none."""
    if not arguments or arguments[0].startswith("-"):
        known, more = ", ".join(list_presets()), f"wdjax {command} PRESET --help"
        raise ValueError(f"wdjax {command} needs a preset first: {known}, or a YAML file ({more})")
    return arguments


def evaluate(arguments: list[str]) -> None:
    """wdjax eval RUN [RUN ...] [--opponents NAME ...] [--checkpoint WHICH] [--episodes N] [--greedy] [--output FILE]"""
    parsed = parse(EvalArguments, "wdjax eval", arguments)
    if not parsed.runs:
        raise ValueError("wdjax eval needs a run first: the folder that wdjax train wrote (wdjax eval --help)")
    which = "best" if parsed.best else parsed.checkpoint
    require_tables(parsed.output)
    require_seed(parsed.seed)
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
    parsed = parse(RenderArguments, "wdjax render", arguments)
    require(parsed.fps >= 1, "--fps", parsed.fps, "at least 1")
    require_seed(parsed.seed)
    if parsed.npz is not None and parsed.npz.suffix != ".npz":
        raise ValueError(f"--npz {parsed.npz}: must end in .npz")
    player = load_player(parsed.run, "best" if parsed.best else "newest")
    default = None if parsed.npz else split_checkpoint(parsed.run)[0] / "episode.gif"
    if parsed.output is not None and parsed.output.suffix != ".gif":
        raise ValueError(f"--output {parsed.output}: must end in .gif")
    for file in filter(None, (parsed.npz, parsed.output or default)):
        written = save_episode(player.learner, player.state, file, parsed.seed, parsed.greedy, parsed.fps)
        print(f"Wrote {written}")


def parse(cls: type, prog: str, arguments: list[str], **options: Any) -> Any:
    """Returns arguments as a dataclass. Raises ValueError where tyro refuses them: its panel becomes one sentence."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, prog=prog, args=arguments, **options)
    except SystemExit as ended:
        if ended.code != 2:  # 0: --help
            raise
    raise ValueError(mistake(said.getvalue(), arguments))


def mistake(panel: str, arguments: list[str]) -> str:
    """Returns what a panel of tyro says about arguments, in one sentence, with the nearest right name."""
    parts: list[str] = [""]
    for line in re.sub(r"\x1b\[[\d;]*m", "", panel).splitlines():  # without colours
        words = line.strip(" │")
        if re.fullmatch(r"[─-]{3,}|[╭├╰].*", words):
            parts.append("")
        elif words:
            parts[-1] = f"{parts[-1]} {words}".strip()
    title = 0 if "╭" in panel else 1  # in a box it stands in the border
    wrong, *more = [part for part in parts if part][title:] or [one_line(panel)]
    wrong = re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 must be a whole number", wrong)
    wrong = re.sub(r"could not convert string to float: (.*)", r"\1 must be a number", wrong)
    wrong = wrong.split(" Got errors:")[0].rstrip(".")
    for part in more:
        if near := re.match(r"Perhaps you meant: (--[^\s,]+)", part):
            return f"{wrong}: did you mean {near[1]}?"
    first = wrong.removeprefix("Unrecognized options: ").split(",")[0]
    before = arguments[: arguments.index(first)] if first in arguments and not first.startswith("-") else []
    flags = [argument for argument in before if argument.startswith("--")]
    return f"{wrong}{f', after {flags[-1]}' if flags else ''} (see --help)"


def require_seed(seed: int) -> None:
    """Raises ValueError for a seed that jax would cut off."""
    require(0 <= seed < 2**32, "--seed", seed, "at least 0 and below 2**32")


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
    "train": train, "sweep": sweep, "eval": evaluate, "render": render, "bench": bench, "list": list_all
}  # fmt: skip


if __name__ == "__main__":
    main()
