"""The host's side of every kind of sweep: where it runs, how far it is, and groups in turns."""

import contextlib
import dataclasses
import json
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wdjax.checks import require, require_integer, require_known
from wdjax.console import Console
from wdjax.experiments.sweep.folder import begun
from wdjax.experiments.sweep.members import Group, Member
from wdjax.experiments.sweep.population import choose_num_devices
from wdjax.experiments.sweep.rounds import Advance, Programs, Turn, train_turn
from wdjax.experiments.sweep.table import draw_curves
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.trust import with_own
from wdjax.train.host.callbacks import (
    Callback,
    MemberRun,
    call_callbacks,
    close_callbacks,
    make_callbacks,
    require_goals,
)
from wdjax.train.host.loggers import close_loggers
from wdjax.train.host.loop import Row
from wdjax.train.host.plots import without_picture
from wdjax.train.host.programs import telling
from wdjax.train.host.progress import announce, progress_bar
from wdjax.train.host.signals import stop_signals
from wdjax.train.learner.learner import metric_names
from wdjax.train.state.policy import Setup
from wdjax.train.storage.folder import read_json, require_fields, write_whole
from wdjax.train.storage.metrics_log import read_metrics


@dataclasses.dataclass(frozen=True)
class Host:
    """Where a sweep runs and who listens."""

    workdir: Path
    console: Console
    stop: threading.Event  # set by Ctrl-C and SIGTERM
    num_devices: int
    members_at_once: int  # 0: as many as memory allows
    trust: Collection[str]  # modules that the user has named: what is read from the folder may name no other
    callbacks: tuple[Callback, ...] = ()  # called with the row of every member of every chunk

    def say(self, words: str) -> None:
        """Says something to who watches."""
        self.console.print(words, soft_wrap=not self.console.is_jupyter)


@contextlib.contextmanager
def open_host(
    workdir: str | Path | None, asked: Mapping[str, Any], resume: bool, devices: int, members_at_once: int,
    quiet: bool, stop: threading.Event | None, trust: Collection[str], members: Sequence[Member],
    callbacks: Sequence[Callback | str],
) -> Iterator[Host]:  # fmt: skip
    """Yield the host of a sweep that is begun or resumed in its folder; without one, in a temporary folder.

    Args:
        asked, resume: as for `begun`.
        trust, members: of modules, these and those that these members' configurations name are trusted.
        callbacks: closed at the end.

    Raises:
        ValueError, TypeError: for a number that cannot be, before anything is written.
        FileExistsError, OSError: as `begun`.
    """
    require_integer("members_at_once", members_at_once, 0)
    num_devices, console = choose_num_devices(devices), Console(quiet=quiet)
    with contextlib.ExitStack() as stack:
        stack.callback(close_callbacks, callbacks := make_callbacks(callbacks))
        folder = Path(workdir or stack.enter_context(tempfile.TemporaryDirectory()))
        stop = stop or stack.enter_context(stop_signals(console))
        own = {module for member in members for module in with_own(trust, member.config)}
        host = Host(folder, console, stop, num_devices, members_at_once, own, callbacks)
        stack.enter_context(telling(host.say))
        stack.enter_context(begun(folder, asked, resume, host.say))
        yield host


def choose_metric(metric: str | None, config: TrainConfig, setup: Setup, needed: bool = True) -> str | None:
    """Return the metric that compares members: the one asked for, else `best_metric` of the configuration.

    Raises:
        ValueError: for one that an update does not report, with the nearest right name; likewise in `stop_at`; and for
            none where one is `needed`.
    """
    metric = metric or config.best_by
    require(metric or not needed, "metric", metric, "set, for example to POLICY/episode_return, to compare members")
    known = metric_names(setup) if metric is not None or config.stop_at else []
    require_goals(config.stop_at, known)
    if metric is not None:
        require_known("metric", metric, known)
    return metric


def write_curves(host: Host, members: Sequence[Member], rows: Sequence[Row], metric: str | None) -> None:
    """Draw curves.png: the metric, or the return of every policy that learns."""
    config = members[0].config
    shown = [name for name, policy in config.policies.items() if policy.trainable] or config.policies
    metrics = [metric] if metric else [f"{name}/episode_return" for name in shown]
    title = f"{config.env}: {host.workdir.name}"
    with without_picture("curves.png", host.say):
        if curves := draw_curves(host.workdir / "curves.png", members, rows, metrics, title):
            host.say(f"Wrote {curves}: interquartile mean over seeds and 95 % interval")


def prepare_turns(
    host: Host, programs: Programs, folder: Path, members: Sequence[Member], first: int, last: int
) -> list[Turn]:
    """Returns the turns in which members of one group go from `first` to `last` updates. How many go at once is decided
    once, and kept in the folder."""
    file = folder / "size.json"
    if file.exists():
        content = read_json(file)
        require_fields(file, content, members_at_once=int)
        size = content["members_at_once"]
        words = f"a divisor of {size}, the members per program that this sweep was started with"
        require(size % host.num_devices == 0, "devices", host.num_devices, words)
    else:
        size = programs.fit(members, host.members_at_once)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"members_at_once": size}) + "\n")
    starts = range(0, len(members), size)
    return [
        Turn(folder / f"{number:03d}", tuple(members[i : i + size]), size, first, last)
        for number, i in enumerate(starts)
    ]


def train_turns(
    host: Host, folder: Path, groups: Iterable[tuple[Group, Programs]], advance: Advance,
    span: Callable[[int], Sequence[int]] = lambda num_updates: (0, num_updates), before: Sequence[Turn] = (),
) -> Iterator[Turn]:  # fmt: skip
    """Train groups one after the other, in turns. Yield each turn once it is done, or stopped: then it is the last.

    Args:
        span: the updates of a run -> (updates done before, updates done afterwards).
        before: turns from whose last states the members go on; none: new runs.
    """
    for number, (group, programs) in enumerate(groups):
        first, last = span(programs.setup.config.num_updates)
        if first == last:  # a rung of a run of few updates
            continue
        for turn in prepare_turns(host, programs, folder / f"{number:03d}", group.members, first, last):
            train_turn(programs, turn, host.stop, advance, host.say, before)
            yield turn
            if not turn.finished:
                return


@contextlib.contextmanager
def members_bar(host: Host, members: Sequence[Member], turns: Path) -> Iterator[Advance]:
    """Shows env steps of all members together, of how many, and per second; gives what to call with every chunk, which
    tells the callbacks, too.

    Args:
        turns: folder of their turns, whose metrics.jsonl tell what was done before.
    """
    files = sorted(turns.rglob("metrics.jsonl"))
    done = {row["member"]: row["env_steps"] for file in files for row in read_metrics(file)}
    total = sum(member.config.num_updates * member.config.env_steps_per_update for member in members)
    folder = host.workdir / "members"
    runs = {own.number: MemberRun(folder / f"{own.number:03d}", own.config, host.stop) for own in members}
    before, clock, going = sum(done.values()), time.perf_counter(), None
    with progress_bar(host.console, total, before) as show:

        def advance(rows: list[Row]) -> None:
            nonlocal going
            done.update({row["member"]: row["env_steps"] for row in rows})
            steps = sum(done.values())
            rate = (steps - before) / (time.perf_counter() - clock)
            words = f"{steps:,} of {total:,} env steps ({rate:,.0f}/s), {len(done)} of {len(members)} members started"
            show(steps, words)
            last, going = going, [row["member"] for row in rows]
            if last not in (None, going):  # another turn: a sweep has more members than a process may have files open
                close_loggers(host.callbacks)
            asked = [call_callbacks(host.callbacks, runs[row["member"]], row) for row in rows]
            if any(asked):
                host.say("A callback stopped the sweep: it saves and ends after the next chunk. Continue with --resume")
                host.stop.set()

        yield advance


def announce_members(host: Host, members: Sequence[Member], num_programs: int) -> None:
    """Says what will run."""
    programs = f"{num_programs} programs" if num_programs > 1 else "one program"
    config = members[0].config
    steps = config.num_updates * config.env_steps_per_update
    words = f"{len(members)} members in {programs}, {steps:,} env steps each"
    announce(host.console, config.env, host.num_devices, words, host.workdir)
