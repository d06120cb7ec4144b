"""wdjax eval, render and export."""

import dataclasses
from pathlib import Path
from typing import Annotated

import jax
import tyro

from wdjax.checks import require
from wdjax.console import Console, show, table_console
from wdjax.experiments.commands.arguments import (
    File,
    Modules,
    Names,
    Run,
    Runs,
    folder_of,
    parse,
    require_run,
    require_seed,
)
from wdjax.experiments.commands.matrix import (
    matrix_tables,
    other_params,
    require_tables,
    write_matrix,
)
from wdjax.files import make_folder_inside
from wdjax.rendering import require_output
from wdjax.train import (
    Player,
    cross_play,
    export_policy,
    load_run,
    save_episode,
    statistics,
    trained_policy,
)


@dataclasses.dataclass(frozen=True)
class EvalArguments:
    """Evaluate runs, random play and scripts against each other; mean ± standard error.

    $ wdjax eval runs/a                                                 against random play
    $ wdjax eval runs/a runs/b@best --opponents random chase_nearest    runs and scripts
    $ wdjax eval runs/a --episodes 1024 --greedy --output cells.csv     all numbers to a file
    """

    runs: Runs = ()
    """Folders of one or more runs of one environment. FOLDER@best, FOLDER@newest or FOLDER@120
    selects a checkpoint; reference:tag_continuous is a bundled run."""
    opponents: Names = ("random",)
    """Additional opponents for every group that they can control: random, and scripts of the
    environment (Tag: chase_nearest, flee_nearest)."""
    checkpoint: str = "newest"
    """Checkpoint of runs without @: newest, best, or a number of updates."""
    episodes: int = 256
    """Episodes per combination."""
    batch: int | None = None
    """Maximum number of episodes in parallel, to limit memory."""
    greedy: bool = False
    """Take the most likely actions instead of sampling them."""
    best: bool = False
    """Short for --checkpoint best."""
    seed: int = 0
    """Seed for start states and actions."""
    trust: Modules = ()
    output: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="FILE ...", help_behavior_hint="")
    ] = ()
    """Also write all numbers to these files, with quantiles and per-agent returns: .json or
    .csv."""


@dataclasses.dataclass(frozen=True)
class RenderArguments:
    """Save one episode of a run as an animation, an interactive player, or arrays.

    $ wdjax render runs/a                                   runs/a/episode.gif
    $ wdjax render runs/a --seed 3 --output hunt.html       interactive player
    $ wdjax render runs/a@best --npz episode.npz            states, actions, rewards, for numpy.load
    """

    run: Run
    """Run folder. FOLDER@best or FOLDER@120 selects a checkpoint; reference:tag_continuous is a
    bundled run."""
    output: File = None
    """Output file: .gif, .html (interactive player), .svg, .mp4 (needs ffmpeg) or .png (last
    state). Default: episode.gif in the run folder, unless --npz is set."""
    npz: File = None
    """Write the episode as arrays for numpy.load: states, actions, rewards, ends, observations,
    probabilities, values."""
    greedy: bool = False
    """Take the most likely actions instead of sampling them."""
    best: bool = False
    """Use the best checkpoint instead of the newest."""
    seed: int = 0
    """Seed for the start state and actions."""
    fps: int = 12
    """Frames per second."""
    trust: Modules = ()


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Export each policy as StableHLO and arrays, to use without wdjax (needs "wdjax[export]").

    $ wdjax export runs/a                                   runs/a/export/NAME.stablehlo, NAME.npz
    $ wdjax export runs/a@best --policies tagger --output out
    """

    run: Run
    """Run folder. FOLDER@best or FOLDER@120 selects a checkpoint; reference:tag_continuous is a
    bundled run."""
    policies: Annotated[Names, tyro.conf.arg(help_behavior_hint="")] = ()
    """Policies to export (default: all)."""
    output: Annotated[File, tyro.conf.arg(metavar="DIR")] = None
    """Folder for NAME.stablehlo and NAME.npz (default: export in the run folder)."""
    best: bool = False
    """Use the best checkpoint instead of the newest."""
    trust: Modules = ()


def _output_folder(run: str) -> Path:
    """Return the default folder for files of a run; reference/ROW for a bundled run."""
    return Path(*run.split(":")) if run.startswith("reference:") else folder_of(run)


def evaluate(arguments: list[str]) -> None:
    """Run `wdjax eval`."""
    parsed = parse(EvalArguments, "wdjax eval", arguments)
    require_run("eval", parsed.runs)
    which = "best" if parsed.best else parsed.checkpoint
    require_tables(parsed.output)
    require_seed(parsed.seed)
    loaded = []
    for run in parsed.runs:
        checkpoint = f"{run}@{which}" if folder_of(run) == Path(run) else run
        loaded.append(load_run(checkpoint, trust=parsed.trust))
    first, *others = [Player(run, *own) for run, own in zip(parsed.runs, loaded, strict=True)]
    learner, state = loaded[0]
    for line in other_params(first, others):
        Console().print(line, soft_wrap=True)
    cells = cross_play(
        learner, state, jax.random.key(parsed.seed), parsed.episodes, parsed.greedy,
        opponents=(*others, *parsed.opponents), name=first.name if others else "trained",
        batch=parsed.batch,
    )  # fmt: skip
    rows = {cell: statistics(episodes, learner.env.info_ratios) for cell, episodes in cells.items()}
    roles = list(next(iter(cells.values())).episode_return)
    how = "most likely actions" if parsed.greedy else "sampled actions"
    title = (
        f"{', '.join(parsed.runs)}: {parsed.episodes} episodes each, {how}, mean ± standard error"
    )
    for file in parsed.output:  # before printing, which `| head` may cut off
        write_matrix(file, roles, rows)
    console = table_console()
    console.print(title, soft_wrap=True, highlight=False)
    for table in matrix_tables(cells, rows):
        console.print(table)


def render(arguments: list[str]) -> None:
    """Run `wdjax render`."""
    require_run("render", arguments)
    parsed = parse(RenderArguments, "wdjax render", arguments)
    require(parsed.fps >= 1, "--fps", parsed.fps, "at least 1")
    require_seed(parsed.seed)
    if parsed.output is not None:
        require_output(parsed.output, field="--output")
    if parsed.npz is not None and parsed.npz.suffix != ".npz":
        raise ValueError(f"--npz {parsed.npz}: must end in .npz")
    learner, state = load_run(parsed.run, parsed.best, trust=parsed.trust)
    default = None if parsed.npz else _output_folder(parsed.run) / "episode.gif"
    for file in filter(None, (parsed.npz, parsed.output or default)):
        written = save_episode(learner, state, file, parsed.seed, parsed.greedy, parsed.fps)
        show(f"Wrote {written}")


def export(arguments: list[str]) -> None:
    """Run `wdjax export`."""
    require_run("export", arguments)
    parsed = parse(ExportArguments, "wdjax export", arguments)
    learner, state = load_run(parsed.run, parsed.best, trust=parsed.trust)
    policies = [
        trained_policy(learner, state, name) for name in parsed.policies or learner.config.policies
    ]
    for policy in policies:
        written = export_policy(
            policy, parsed.output or make_folder_inside(_output_folder(parsed.run) / "export")
        )
        show(f"Wrote {', '.join(map(str, written))}")
