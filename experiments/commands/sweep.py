"""The command wdjax sweep: its arguments and the kinds of sweeps."""

import dataclasses
import inspect
import itertools
import threading
from pathlib import Path
from typing import Annotated, Any

import tyro

from wdjax.checks import require
from wdjax.console import Console
from wdjax.experiments import sweep as kinds
from wdjax.experiments.commands.arguments import (
    Callbacks,
    Modules,
    parse,
    require_preset,
    show_warp_drive,
)
from wdjax.experiments.commands.help import help_text, help_topic, panels_by_tyro
from wdjax.experiments.commands.overrides import as_settings
from wdjax.experiments.sweep.members import (
    Point,
    Range,
    Values,
    parse_point,
    parse_settings,
    read_settings,
)
from wdjax.experiments.sweep.pbt import FACTORS, Selection
from wdjax.experiments.sweep.searching import Halving
from wdjax.signals import STOPPED, stop_signals
from wdjax.train import TrainConfig, load_config, preset_path
from wdjax.train.storage.fields import Fields


@dataclasses.dataclass(frozen=True)
class SweepArguments:
    """Train many runs of PRESET in one program.

    The runs are every combination of values with every seed (a grid), trials proposed by Optuna
    (--search), or a population whose values change during training (--pbt).

        wdjax sweep cartpole_ppo --seeds 8 --policies.agent.learning-rate 1e-3,3e-3
        wdjax sweep cartpole_ppo --search 64 --seeds 2 --policies.agent.clip uniform:0.1:0.3
        wdjax sweep cartpole_ppo --pbt 16 --policies.agent.learning-rate log:1e-4:1e-2

    Every field of the preset is a flag, as for `wdjax train`: VALUE for all members, VALUE,VALUE to
    vary it, and with --search and --pbt a range. policies.all is the field of every policy.

    Members that differ in seeds, env_params and (traced) hyperparameters share one program. Every
    other difference (network sizes, num_envs, algorithm) needs a separate program.
    """

    set: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUES")
    ] = ()
    """Like --FIELD VALUES. Values are written as in YAML, also lists ([64,64]) and schedules
    ([[0,1e-3],[1e6,0]]). Ranges: log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH."""
    point: Annotated[
        tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FIELD=VALUE")
    ] = ()
    """One explicit combination instead of all combinations: --point a=1 b=2 --point a=3 b=4."""
    file: Path | None = None
    """YAML file with more values, either a mapping (FIELD: [VALUE, VALUE] or FIELD: log:LOW:HIGH)
    or a list of points ({FIELD: VALUE, FIELD: VALUE})."""
    seeds: int = 1
    """Seeds per combination or trial, counted up from the preset's seed."""
    metric: str = ""
    """Metric used as score, by its last training value. Empty: the return, if one policy trains."""
    members_at_once: int = 0
    """Members per program, over all devices. The remaining members follow in batches. 0: as many as
    memory allows."""
    devices: int = 0
    """Number of devices that share the members. 0: all (the CPU counts as one)."""
    workdir: Path = Path("runs/sweep_PRESET")
    """Folder of the sweep: sweep.yaml, table.csv, table.jsonl, curves.png, best/ (a run for wdjax
    eval and render)."""
    resume: bool = False
    """Continue the sweep in the folder. Finished members are not trained again."""
    trust: Modules = ()
    callbacks: Callbacks = ()
    search: int = 0
    """Number of trials proposed by Optuna (pip install "wdjax[search]"), over all workers. 0: no
    search."""
    batch: int = 16
    """With --search: trials trained together in one program."""
    halving: int = 0
    """With --search: successive halving. The best 1/N of each batch continue to N times the length.
    0: train all trials to the end."""
    rungs: int = 2
    """With --search and --halving: number of halving steps."""
    storage: str = ""
    """With --search: Optuna storage, a journal file or a database URL. Several workers can share
    it, each with its own --workdir. Empty: WORKDIR/optuna.log."""
    study: str = "wdjax"
    """With --search: name of the Optuna study."""
    pbt: int = 0
    """Population size for population-based training. 0: none."""
    pbt_every_updates: int = 0
    """With --pbt: updates between selections. 0: use --pbt-every."""
    pbt_every: int = 1
    """With --pbt: chunks between selections (of updates_per_chunk updates; if that is 0, a
    twentieth of the run)."""
    pbt_fraction: float = 0.25
    """With --pbt: fraction of members replaced by copies of the best members at each selection."""
    pbt_factors: tuple[float, float] = FACTORS
    """With --pbt: each hyperparameter of a copy is multiplied by one of these two factors, chosen
    at random."""


# option -> its mode; options of the topic `more` of --help
_OWN = {
    "batch": "search", "halving": "search", "rungs": "search", "storage": "search",
    "study": "search",
    "pbt_every_updates": "pbt", "pbt_every": "pbt", "pbt_fraction": "pbt", "pbt_factors": "pbt",
}  # fmt: skip
OPTIONS = ("help", "no_resume", *SweepArguments.__dataclass_fields__)
_MORE = ("point", "file", "metric", "members_at_once", "devices", "trust", "callbacks")


def default_of(preset: str) -> SweepArguments:
    """Return the default arguments of a sweep of this preset."""
    return SweepArguments(workdir=Path("runs") / f"sweep_{preset_path(preset).stem}")


def show_help(topic: str, default: SweepArguments) -> None:
    """Print a screen, or the flags of a topic."""
    topics = {**dict.fromkeys(_MORE, "more"), **_OWN}
    panels: dict[str, list[str]] = {"sweep": [], "more": [], "search": [], "pbt": []}
    by_tyro = panels_by_tyro(SweepArguments, "wdjax sweep PRESET", default=default)
    for flag in itertools.chain.from_iterable(by_tyro.values()):
        name = flag.split()[0].strip("-,").replace("-", "_")
        panels[topics.get(name, "sweep")].append(flag)
    words = inspect.cleandoc(SweepArguments.__doc__ or "")
    usage = "usage: wdjax sweep PRESET [--FIELD VALUE,VALUE ...] [--OPTION VALUE ...]"
    print(help_text("\n".join([usage, "", words, "", *panels["sweep"]]), panels, topic))


def sweep(arguments: list[str]) -> None:
    """Run `wdjax sweep`."""
    topic = help_topic(arguments)
    if topic is not None:
        named = not arguments[0].startswith("-")
        show_help(topic, default_of(arguments[0]) if named else SweepArguments())
        return
    preset, *rest = require_preset("sweep", arguments)
    default = default_of(preset)
    parsed = parse(
        SweepArguments, f"wdjax sweep {preset}", as_settings(rest, OPTIONS), default=default
    )
    with stop_signals(Console()) as stop:
        run_sweep(preset, parsed, stop)
    if stop.is_set():
        raise SystemExit(STOPPED)


def run_sweep(preset: str, arguments: SweepArguments, stop: threading.Event) -> None:
    """Run the sweep of these arguments until it is complete or `stop` is set.

    Raises:
        ValueError, TypeError, OSError, ImportError: in one sentence, before anything runs.
    """
    require_options(arguments)
    show_warp_drive(preset)
    config = load_config(preset, trust=arguments.trust)
    settings, points = collect(arguments, config)
    mode = "--search" if arguments.search else "--pbt" if arguments.pbt else ""
    allowed = f"omitted with {mode}. Use --FIELD VALUES"
    require(not (mode and points), "--point", points[:1], allowed)
    common: dict[str, Any] = {
        "workdir": arguments.workdir,
        "metric": arguments.metric or None,
        "devices": arguments.devices,
        "resume": arguments.resume,
        "quiet": False,
        "stop": stop,
        "trust": arguments.trust,
        "callbacks": arguments.callbacks,
    }
    if arguments.pbt:
        selection = Selection(
            arguments.pbt_every,
            arguments.pbt_fraction,
            arguments.pbt_factors,
            arguments.pbt_every_updates,
        )
        kinds.evolve(config, settings, arguments.pbt, selection, **common)
        return
    common["members_at_once"] = arguments.members_at_once
    if not arguments.search:
        kinds.sweep(config, settings, arguments.seeds, points, **common)
        return
    halving = Halving(arguments.halving, arguments.rungs) if arguments.halving else None
    kinds.search(
        config,
        settings,
        arguments.search,
        arguments.seeds,
        arguments.batch,
        halving,
        storage=arguments.storage or None,
        study=arguments.study,
        **common,
    )


def require_options(arguments: SweepArguments) -> None:
    """Raise ValueError for an option that does not fit the others and would be ignored."""
    search, pbt = arguments.search, arguments.pbt
    rules = [
        ("search", search >= 0, "at least 0 (0: no search)"),
        ("pbt", not (search and pbt), "omitted with --search"),
        ("pbt", not pbt or pbt >= 2, "at least 2 members (0: no population-based training)"),
        (
            "seeds",
            not pbt or arguments.seeds == 1,
            "1 with --pbt: every member has a different seed",
        ),
        ("members_at_once", not (pbt and arguments.members_at_once), "omitted with --pbt"),
    ]
    for name, mode in _OWN.items():
        unset = getattr(arguments, name) == getattr(SweepArguments, name)
        rules.append((name, unset or getattr(arguments, mode), f"omitted without --{mode}"))
    for name, fits, allowed in rules:
        require(fits, f"--{name.replace('_', '-')}", getattr(arguments, name), allowed)


def collect(
    arguments: SweepArguments, config: TrainConfig
) -> tuple[dict[str, Values], list[Point]]:
    """Return (field -> values, points) of the command line and of --file.

    Raises:
        ValueError: for an unknown field of `config`, or one that is repeated.
    """
    given, listed = read_settings(arguments.file) if arguments.file else ({}, [])
    given = parse_settings(arguments.set, given)
    several = [*map(parse_point, arguments.point), *listed]
    strict = not any(name.endswith(".algorithm") for name in itertools.chain(given, *several))
    settings: dict[str, Values] = {}
    fields = Fields(config)
    for name, own in given.items():
        field = fields.find(name, OPTIONS, strict)
        require(field not in settings, f"--{name}", own, f"given once for {field}")
        settings[field] = own if isinstance(own, Range) else fields.parse(field, own)
    points: list[Point] = []
    for point in several:
        points.append({})
        for name, value in point.items():
            field = fields.find(name, strict=strict)
            (points[-1][field],) = fields.parse(field, [value])
    return settings, points
