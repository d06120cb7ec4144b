"""wdjax eval, render and export: what has been trained, played and handed on."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import jax
import tyro

from wdjax.checks import require
from wdjax.console import Console, show
from wdjax.experiments.commands.arguments import File, Modules, Names, Run, Runs, parse, require_run, require_seed
from wdjax.experiments.commands.matrix import matrix_tables, other_params, require_tables, write_matrix
from wdjax.files import make_folder_inside
from wdjax.rendering import require_output
from wdjax.train import Player, cross_play, save_episode, statistics, trained_policy
from wdjax.train.evaluation.export import export_policy
from wdjax.train.learner.saved import split_checkpoint
from wdjax.train.load import load_named


@dataclasses.dataclass(frozen=True)
class EvalArguments:
    """Who beats whom: every role played by every run, by random play and by scripts; mean ± standard error.

        $ wdjax eval runs/a                                                   against random play
        $ wdjax eval runs/a runs/b@best --opponents random chase_nearest      runs and scripts of one game
        $ wdjax eval runs/a --episodes 1024 --greedy --output cells.csv       all numbers, to a file
    """

    runs: Runs = ()
    """the folders of one or several runs of one game; FOLDER@best, FOLDER@newest, FOLDER@120 name a checkpoint;
    reference:tag_continuous: what comes with wdjax"""
    opponents: Names = ("random",)
    """who else plays, wherever a role fits: random, and the scripts of the game (in Tag chase_nearest, flee_nearest)"""
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
    trust: Modules = ()
    output: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="")] = ()
    """also write all numbers, quantiles and agents' own returns too, to these files: JSON, or CSV where one ends so"""


@dataclasses.dataclass(frozen=True)
class RenderArguments:
    """One episode of a run: a picture that moves, a player in one file, or arrays.

        $ wdjax render runs/a                                   runs/a/episode.gif
        $ wdjax render runs/a --seed 3 --output hunt.html       a player: play, scrub, point at an agent
        $ wdjax render runs/a@best --npz episode.npz            states, actions, rewards, for numpy.load
    """

    run: Run
    """the folder of a run; FOLDER@best, FOLDER@120 name a checkpoint; reference:tag_continuous comes with wdjax"""
    output: File = None
    """the file: .gif, .html (a player, in one file), .svg, .mp4 (where ffmpeg is) or .png (the last state)
    (default: episode.gif in the folder, where no --npz is asked for)"""
    npz: File = None
    """the episode as arrays for numpy.load: states, actions, rewards, ends, observations, probabilities, values"""
    greedy: bool = False
    """policies take their most likely action (else they draw it, as in training)"""
    best: bool = False
    """the best checkpoint (else the newest)"""
    seed: int = 0
    """of start and actions"""
    fps: int = 12
    """frames a second"""
    trust: Modules = ()


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """What was learned, for use without wdjax: each policy as StableHLO and as arrays (pip install "wdjax[export]").

        $ wdjax export runs/a                                       runs/a/export/NAME.stablehlo, NAME.npz
        $ wdjax export runs/a@best --policies tagger --output out
    """

    run: Run
    """the folder of a run; FOLDER@best, FOLDER@120 name a checkpoint; reference:tag_continuous comes with wdjax"""
    policies: Annotated[Names, tyro.conf.arg(help_behavior_hint="")] = ()
    """which of them (default: all)"""
    output: Annotated[File, tyro.conf.arg(metavar="DIR")] = None
    """the folder for NAME.stablehlo and NAME.npz (default: export in the run's)"""
    best: bool = False
    """the best checkpoint (else the newest)"""
    trust: Modules = ()


def _folder(run: str) -> Path:
    """Returns where files of a run go that are given no path; of a "reference:ROW", reference/ROW."""
    return Path(*run.split(":")) if run.startswith("reference:") else split_checkpoint(run)[0]


def evaluate(arguments: list[str]) -> None:
    """wdjax eval RUN [RUN ...] [--opponents NAME ...] [--checkpoint WHICH] [--episodes N] [--greedy] [--output FILE]"""
    parsed = parse(EvalArguments, "wdjax eval", arguments)
    require_run("eval", parsed.runs)
    which = "best" if parsed.best else parsed.checkpoint
    require_tables(parsed.output)
    require_seed(parsed.seed)
    first, *others = [Player(run, *load_named(run, which, parsed.trust)) for run in parsed.runs]
    for line in other_params(first, others):
        Console().print(line, soft_wrap=True)
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
    console.print(title, soft_wrap=True, highlight=False)
    for table in matrix_tables(cells, rows):
        console.print(table)


def render(arguments: list[str]) -> None:
    """wdjax render RUN [--output FILE] [--npz FILE] [--greedy] [--best] [--seed N] [--fps N]"""
    require_run("render", arguments)
    parsed = parse(RenderArguments, "wdjax render", arguments)
    require(parsed.fps >= 1, "--fps", parsed.fps, "at least 1")
    require_seed(parsed.seed)
    if parsed.output is not None:
        require_output(parsed.output, field="--output")
    if parsed.npz is not None and parsed.npz.suffix != ".npz":
        raise ValueError(f"--npz {parsed.npz}: must end in .npz")
    player = Player(parsed.run, *load_named(parsed.run, "best" if parsed.best else "newest", parsed.trust))
    default = None if parsed.npz else _folder(parsed.run) / "episode.gif"
    for file in filter(None, (parsed.npz, parsed.output or default)):
        written = save_episode(player.learner, player.state, file, parsed.seed, parsed.greedy, parsed.fps)
        show(f"Wrote {written}")


def export(arguments: list[str]) -> None:
    """wdjax export RUN [--policies NAME ...] [--output DIR] [--best]"""
    require_run("export", arguments)
    parsed = parse(ExportArguments, "wdjax export", arguments)
    learner, state = load_named(parsed.run, "best" if parsed.best else "newest", parsed.trust)
    policies = [trained_policy(learner, state, name) for name in parsed.policies or learner.config.policies]
    for policy in policies:
        written = export_policy(policy, parsed.output or make_folder_inside(_folder(parsed.run) / "export"))
        show(f"Wrote {', '.join(map(str, written))}")
