"""wdjax report: one page about one or several runs, or about a sweep."""

import dataclasses
import functools
import html
import statistics as stats
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wdjax.checks import one_line, require
from wdjax.console import show
from wdjax.drawing.player import IFRAME
from wdjax.experiments.commands.arguments import (
    File,
    Modules,
    Names,
    Runs,
    folder_of,
    parse,
    require_run,
    require_seed,
)
from wdjax.experiments.commands.diff import (
    CONFIG,
    MADE_WITH,
    VERSION,
    differing,
    fields_of,
    last_metrics,
)
from wdjax.experiments.commands.matrix import matrix_tables, other_params
from wdjax.experiments.report.curves import BAND, SUMMED, Row, draw_panels
from wdjax.experiments.report.page import Section, folded, of_terminal, page
from wdjax.experiments.report.sweeps import UNIT, of_settings, of_trials, read_record
from wdjax.files import SWEEP_FILE, write_text
from wdjax.metric_names import spreads_of
from wdjax.tables import html_table
from wdjax.train import Player, cross_play, load_run, read_metrics, save_episode, statistics
from wdjax.train.storage.folder import RESUMABLE

FLOAT32_MAX = float(np.finfo(np.float32).max)
# Fields that do not distinguish configurations: seed, machine, and how a run was supervised.
NOT_COMPARED = ("seed", "updates_per_chunk", VERSION, *RESUMABLE)


@dataclasses.dataclass(frozen=True)
class ReportArguments:
    """Write one offline page: differences, curves, cross-play, an interactive episode, versions.

    $ wdjax report runs/a                                     runs/a/report.html
    $ wdjax report runs/a0 runs/a1 runs/b0 --output ab.html   seeds of a configuration: mean, band
    $ wdjax report runs/sweep_cartpole_ppo                    trials and curves, also while it runs
    """

    runs: Runs = ()
    """Folders of one or more runs, or of a sweep. FOLDER@best or FOLDER@120 selects the checkpoint
    of a run for episodes and cross-play."""
    output: File = None
    """Output file, .html (default: report.html in the folder of the first run)."""
    opponents: Names = ("random",)
    """Additional opponents in the cross-play matrix: random, and scripts of the environment."""
    episodes: int = 64
    """Episodes per combination of the cross-play matrix. 0: no matrix."""
    players: int = 1
    """Number of runs, from the first, with an interactive episode on the page. 0: none."""
    seed: int = 0
    """Seed for start states and actions."""
    fps: int = 12
    """Frames per second of the episodes."""
    trust: Modules = ()


def report(arguments: list[str]) -> None:
    """Run `wdjax report`."""
    parsed = parse(ReportArguments, "wdjax report", arguments)
    require_run("report", parsed.runs)
    folders = [folder_of(run) for run in parsed.runs]
    output = parsed.output or folders[0] / "report.html"
    require(output.suffix == ".html", "--output", str(output), "a file that ends in .html")
    for name in ("episodes", "players"):
        require(getattr(parsed, name) >= 0, f"--{name}", getattr(parsed, name), "at least 0")
    require(parsed.fps >= 1, "--fps", parsed.fps, "at least 1")
    require_seed(parsed.seed)
    sweeps = [str(folder) for folder in folders if (folder / SWEEP_FILE).is_file()]
    require(len(folders) == 1 or not sweeps, "runs", sweeps, "omitted: report one sweep at a time")
    of = of_sweep if sweeps else of_runs
    title, sections = of(parsed, folders)
    shown = " ".join(["wdjax report", *arguments])
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, page(title, f"Written by {shown}", sections))
    show(f"Wrote {output} ({output.stat().st_size / 2**20:.1f} MiB)")


def of_runs(parsed: ReportArguments, folders: Sequence[Path]) -> tuple[str, list[Section]]:
    """Return the title and the sections of a page about runs."""
    fields, rows = zip(*map(_read, folders), strict=True)
    names = _names(folders)
    groups = group_runs(names, fields)
    sections = [
        of_configuration(names, fields, groups),
        of_results(names, folders),
        of_curves({group: [rows[i] for i in places] for group, places in groups.items()}),
        of_speed(names, rows),
    ]
    firsts = [places[0] for places in groups.values()]
    played = [(names[i], parsed.runs[i], fields[i]["env"]) for i in firsts]
    sections += of_playing(parsed, names, parsed.runs, played)
    sections.append(of_machine(names, fields))
    envs = ", ".join(dict.fromkeys(own["env"] for own in fields))
    return f"{envs}: {', '.join(names)}", sections


def of_sweep(parsed: ReportArguments, folders: Sequence[Path]) -> tuple[str, list[Section]]:
    """Return the title and the sections of a page about a sweep, also while it runs.

    The best run has an episode and a cross-play matrix once the sweep has written it.
    """
    record, best = read_record(folders[0]), folders[0] / "best"
    for trial in record.trials:
        for own in trial.runs:
            require_numbers(f"{folders[0]}, {UNIT[record.asked['mode']]} {trial.number}", own)
    groups, env = record.groups(), record.asked["config"]["env"]
    begun = sum(any(own.runs) for own in record.trials)
    curves = of_curves(groups, SUMMED)
    if len(groups) < begun:
        words = f"Best {len(groups)} of {begun} by final value. {curves.words}"
        curves = dataclasses.replace(curves, words=words)
    sections = [of_trials(record), curves]
    if (best / CONFIG).is_file():
        sections += of_playing(parsed, ["best"], [str(best)], [("best", str(best), env)])
    return f"{env}: sweep {record.name}", [*sections, of_settings(record)]


def of_playing(
    parsed: ReportArguments,
    names: Sequence[str],
    runs: Sequence[str],
    played: Sequence[tuple[str, str, str]],
) -> list[Section]:
    """Return the cross-play matrix and the episodes, as far as the arguments ask for them.

    Args:
        parsed: arguments of the command.
        names: names of all runs.
        runs: folders of all runs.
        played: (name, run, environment) of the runs in the matrix.
    """
    load, sections = functools.cache(functools.partial(load_run, trust=parsed.trust)), []
    if parsed.episodes:
        sections.append(of_matrix(parsed, load, played, len(runs) > len(played)))
    if parsed.players:
        shown = min(parsed.players, len(runs))
        sections.append(of_players(parsed, load, names[:shown], runs[:shown]))
    return sections


def _read(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return (configuration fields, rows of metrics.jsonl) of a run.

    Raises:
        ValueError: if the folder is not a run, or has no metrics.
    """
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} contains no run: {folder / CONFIG} is missing")
    file = folder / "metrics.jsonl"
    rows = read_metrics(file) if file.is_file() else []
    if not rows:
        raise ValueError(f"{folder} has nothing to report yet: metrics.jsonl is empty")
    require_numbers(str(file), rows)
    return fields_of(str(folder)), rows


def require_numbers(where: str, rows: Sequence[Row]) -> None:
    """Raise ValueError for a metric that is no number within float32, beginning with `where`."""
    for number, row in enumerate(rows, 1):
        for name, value in {"env_steps": None, **row}.items():
            known = isinstance(value, (int, float)) and not abs(value) > FLOAT32_MAX  # or NaN
            fits = known or name == "bad_numbers" or (value is None and name != "env_steps")
            words = "a number within the range of float32"
            require(fits, f"{where}, line {number}: {name}", value, words)


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths of runs if they differ, else the whole paths."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def compared(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that distinguish configurations."""
    names = differing(fields)
    return [name for name in names if name.split(".")[0] not in (*NOT_COMPARED, MADE_WITH)]


def group_runs(names: Sequence[str], fields: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Group runs that differ only in their seeds.

    Returns:
        name of the configuration -> indices of its runs. The name lists fields ("gamma 0.9"), or is
        the name of the first run if many fields differ.
    """
    keys = compared(fields)
    groups: dict[str, list[int]] = {}
    for i, own in enumerate(fields):
        groups.setdefault(str([own.get(key) for key in keys]), []).append(i)
    words = [
        ", ".join(f"{key.split('.')[-1]} {fields[places[0]].get(key)}" for key in keys)
        for places in groups.values()
    ]
    plain = keys and len(set(words)) == len(words) and max(map(len, words)) <= 40
    return dict(
        zip(
            words if plain else [names[places[0]] for places in groups.values()],
            groups.values(),
            strict=True,
        )
    )


def of_configuration(
    names: Sequence[str], fields: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[int]]
) -> Section:
    """Show differences between configurations, and all fields of the first one."""
    keys = (
        ["seed", *compared(fields)]
        if len(fields) > 1
        else ["env", "seed", "num_envs", "total_env_steps"]
    )
    table = html_table([[key, *(own.get(key) for own in fields)] for key in keys], ["", *names])
    whole = [
        (key, value)
        for key, value in fields[0].items()
        if key.split(".")[0] not in (VERSION, MADE_WITH)
    ]
    who = "; ".join(
        f"{group}: {', '.join(names[i] for i in places)}" for group, places in groups.items()
    )
    words = f"Differences between {len(fields)} runs. Curves show {who}" if len(fields) > 1 else ""
    return Section(
        "Configuration", table + folded(f"All fields of {names[0]}", html_table(whole)), words
    )


def of_results(names: Sequence[str], folders: Sequence[Path]) -> Section:
    """Show the last metrics of each run."""
    found = [last_metrics(str(folder)) for folder in folders]
    spreads = [spreads_of(own) for own in found]
    shown = dict.fromkeys(key for own in found for key in own if key not in set().union(*spreads))
    table = html_table([[key, *(own.get(key) for own in found)] for key in shown], ["", *names])
    words = (
        "Last values in training, and in evaluations (eval/). The return of a policy is the sum "
        "over its agents"
    )
    return Section("Results", table, words)


def of_curves(groups: Mapping[str, Sequence[Sequence[Row]]], unit: str = "") -> Section:
    """Draw learning curves; `unit` as for `draw_panels`."""
    several = any(len(runs) > 1 for runs in groups.values())
    words = (
        "Solid lines: training episodes with sampled actions. Dots with dashed lines: "
        "evaluations on whole episodes "
        f"from fresh starts.{f' Several seeds: interquartile mean; {BAND}.' if several else ''}"
    )
    panels = "".join(f"<div>{svg}</div>" for svg in draw_panels(groups, unit))
    return Section("Curves", f'<div class="panels">{panels}</div>', words)


def of_speed(names: Sequence[str], rows: Sequence[Sequence[Row]]) -> Section:
    """Show the throughput of each run; members of a sweep have none of their own."""
    columns: dict[str, tuple[str, Callable]] = {
        "env steps": ("env_steps", max),
        "env steps/s, median": ("env_steps_per_second", stats.median),
        "env steps/s, fastest chunk": ("env_steps_per_second", max),
        "agent steps/s, median": ("agent_steps_per_second", stats.median),
        "training [s]": ("seconds", sum), "compiling [s]": ("compile_seconds", sum),
    }  # fmt: skip

    def cell(own: Sequence[Row], field: str, over: Callable) -> str:
        values = [row[field] for row in own if field in row]
        return f"{over(values):,.0f}" if values else "-"

    table = [
        [name, *(cell(own, *column) for column in columns.values())]
        for name, own in zip(names, rows, strict=True)
    ]
    return Section("Throughput", html_table(table, ["run", *columns]), "Per chunk, training only")


def of_matrix(
    parsed: ReportArguments, load: Callable, firsts: Sequence[tuple[str, str, str]], more: bool
) -> Section:
    """Evaluate the first run of each configuration (name, run, environment) and the opponents."""
    title = "Cross-play"
    if len({env for _, _, env in firsts}) > 1:
        return Section(title, "", "None: the runs have different environments")
    first, *others = [Player(name, *load(run)) for name, run, _ in firsts]
    learner, state = load(firsts[0][1])
    opponents: list[Player | str] = [*others, *parsed.opponents]
    key = jax.random.key(parsed.seed)
    cells = cross_play(learner, state, key, parsed.episodes, name=first.name, opponents=opponents)
    rows = {cell: statistics(episodes, learner.env.info_ratios) for cell, episodes in cells.items()}
    words = f"{parsed.episodes} episodes each, sampled actions, mean ± standard error"
    words += "; first run of each configuration" if more else ""
    warnings = "".join(f"<p>{html.escape(line)}</p>" for line in other_params(first, others))
    tables = "".join(f"<div>{of_terminal(table)}</div>" for table in matrix_tables(cells, rows))
    return Section(title, f'{warnings}<div class="matrices">{tables}</div>', words)


def of_players(
    parsed: ReportArguments, load: Callable, names: Sequence[str], runs: Sequence[str]
) -> Section:
    """Show an interactive episode of each of the first runs."""
    shown = ""
    for name, run in zip(names, runs, strict=True):
        shown += f"<div><p><b>{html.escape(name)}</b></p>{_player(parsed, *load(run))}</div>"
    words = (
        "Space: play or pause. Arrow keys: step. Point at an agent to see its path. Returns are "
        "sums over the agents of a group"
    )
    return Section("Episodes", f'<div class="players">{shown}</div>', words)


def _player(parsed: ReportArguments, learner: Any, state: Any) -> str:
    """Return the player of an episode, or the reason why there is none."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = save_episode(
                learner, state, Path(folder) / "episode.html", parsed.seed, fps=parsed.fps
            )
            return IFRAME.format(html.escape(file.read_text(encoding="utf8")), 640)
    except (NotImplementedError, ValueError) as error:  # a custom environment without a drawing
        return f"<p>None: {html.escape(one_line(error))}</p>"


def of_machine(names: Sequence[str], fields: Sequence[Mapping[str, Any]]) -> Section:
    """Show versions and the device of each run."""
    keys = [key for key in dict.fromkeys(key for own in fields for key in own)
            if key == VERSION or key.startswith(f"{MADE_WITH}.")]  # fmt: skip
    table = html_table(
        [[key.split(".")[-1], *(own.get(key) for own in fields)] for key in keys], ["", *names]
    )
    return Section(
        "Versions and device", table, "Recorded at the start or the last resume of a run"
    )
