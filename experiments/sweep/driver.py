"""Drive all kinds of sweeps: a folder, populations trained in batches, progress and results."""

import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wdjax.checks import require, require_integer, require_known
from wdjax.console import Console
from wdjax.drawing.figures import without_picture
from wdjax.experiments.sweep.members import Member, Row
from wdjax.experiments.sweep.table import draw_curves, point_words, write_table
from wdjax.files import find_files, make_folder_inside
from wdjax.progress import announce, progress_bar
from wdjax.signals import stop_signals
from wdjax.train import (
    Callback,
    Learner,
    Population,
    TrainState,
    change_config,
    custom_modules,
    load_config,
    read_metrics,
    save_run,
)
from wdjax.train.host.callbacks import make_callbacks
from wdjax.train.host.programs import telling
from wdjax.train.population.members import read_batches
from wdjax.train.storage.sweep_folder import hold_sweep, read_sweep

Batch = tuple[Path, Population]  # members that are trained together, and their folder


class Stopped(Exception):
    """The sweep was stopped before its end. Its folder can be resumed."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep that is running."""

    workdir: Path
    console: Console
    stop: threading.Event  # set by Ctrl-C and SIGTERM
    trust: Collection[str] = ()  # modules that files of the folder may name
    devices: int = 0  # 0: all
    members_at_once: int = 0  # 0: as many as memory allows
    callbacks: Sequence[Callback] = ()  # called with the row of every member and chunk

    def say(self, words: str) -> None:
        """Print a line."""
        self.console.print(words, soft_wrap=not self.console.is_jupyter)

    def announce(self, members: Sequence[Member], population: Population, programs: int) -> None:
        """Print what will run."""
        config = members[0].config
        steps = config.num_updates * config.env_steps_per_update
        several = f"{programs} programs" if programs > 1 else "one program"
        words = f"{len(members)} members in {several}, {steps:,} env steps each"
        announce(self.console, config.env, population.num_devices, words, self.workdir)

    def train(
        self,
        populations: Iterable[tuple[Path, Population]],
        bar: Callback,
        span: Callable[[int], tuple[int, int]] = lambda num_updates: (0, num_updates),
        before: Sequence[Batch] = (),
        **options: Any,
    ) -> Iterator[Batch]:
        """Train populations in batches and yield each batch.

        Args:
            populations: (folder inside the sweep's, population), trained one after the other.
            bar: see `progress`.
            span: updates of a run -> (updates done before, updates done afterwards).
            before: batches with whose last states the members begin; (): new runs.
            **options: other arguments of `Population.train`.

        Raises:
            Stopped: after the first batch that is not complete.
        """
        callbacks, runs = [bar, *self.callbacks], self.workdir / "members"
        options |= {"callbacks": callbacks, "runs": runs, "stop": self.stop, "say": self.say}
        for folder, population in populations:
            first, last = span(population.config.num_updates)
            if first == last:  # a rung of a run of few updates
                continue
            inside = folder.relative_to(self.workdir)
            for parent in [*reversed(inside.parents[:-1]), inside]:
                make_folder_inside(self.workdir / parent)
            for place, batch in population.split(folder, self.members_at_once):
                start = lambda own=batch, done=first: (done, own.gather(before))  # noqa: E731
                done = batch.train(place, last, start if before else None, **options)
                yield place, batch
                if not done:
                    raise Stopped

    @contextlib.contextmanager
    def progress(
        self, members: Sequence[Member], folder: Path, share: float = 1.0
    ) -> Iterator[Callback]:
        """Show the env steps of all members, and their rate.

        Yield a callback.

        Args:
            members: all members.
            folder: contains the metrics of their earlier chunks.
            share: expected share of the members' env steps, below 1 if some members end early.
        """
        done = {row["member"]: row["env_steps"] for row in read_rows(folder)}
        steps = [own.config.num_updates * own.config.env_steps_per_update for own in members]
        total = max(round(share * sum(steps)), sum(done.values()))
        before, clock = sum(done.values()), time.perf_counter()
        with progress_bar(self.console, total, before) as show:

            def bar(run: Any, row: Row) -> None:
                done[row["member"]] = row["env_steps"]
                now, started = sum(done.values()), f"{len(done)} of {len(members)} members started"
                rate = (now - before) / (time.perf_counter() - clock)
                show(now, f"{now:,} of {total:,} env steps ({rate:,.0f}/s), {started}")

            yield bar

    def draw(self, members: Sequence[Member], rows: Sequence[Row], metric: str | None) -> None:
        """Draw curves.png: the metric, or the return of every trainable policy."""
        config = members[0].config
        trained = [name for name, policy in config.policies.items() if policy.trainable]
        returns = [f"{name}/episode_return" for name in trained or config.policies]
        title, file = f"{config.env}: {self.workdir.name}", self.workdir / "curves.png"
        with without_picture("curves.png", self.say):
            if draw_curves(file, members, rows, [metric] if metric else returns, title):
                self.say(f"Wrote {file}: interquartile mean over seeds and 95 % interval")

    def export(
        self,
        best: Member,
        rows: Sequence[Row],
        score: float,
        names: Sequence[str],
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the best member as a run, best/, and print its description.

        Args:
            best: the member.
            rows: all rows of the sweep.
            score: score of the member.
            names: fields that the description contains.
            changes: fields that changed during training, with their last values.
        """
        learner, state = load_member(self.workdir, best.number, self.trust)
        changes, folder = changes or {}, self.workdir / "best"
        own = [row for row in rows if row["member"] == best.number]
        save_run(folder, change_config(learner.config, **changes), state, own, score)
        words = point_words({**best.values, **changes}, names)
        member = f"member {best.number} ({words}, seed {best.config.seed})"
        self.say(f"Wrote {folder}: the best run, {member}, score {score:.2f}")


def drive(  # noqa: D417  (as for `sweep`)
    kind: Callable[[Sweep], Iterator[list[Row]]],
    asked: Mapping[str, Any],
    members: Iterable[Member],
    workdir: str | Path | None,
    resume: bool,
    devices: int,
    members_at_once: int,
    quiet: bool,
    stop: threading.Event | None,
    trust: Collection[str],
    callbacks: Sequence[Callback | str],
) -> list[Row]:
    """Start or resume a sweep in its folder, or in a temporary folder without one.

    Args:
        kind: trains the sweep. It yields the table after each batch, which is then written, and
            writes pictures and the best run at the end. It ends early by raising `Stopped`.
        asked: content of sweep.yaml, see `hold_sweep`.
        members: some members; modules that their configurations name are trusted, too.
        workdir, resume, devices, members_at_once, quiet, stop, trust, callbacks: as for `sweep`.

    Returns:
        The last table.

    Raises:
        ValueError, TypeError: for invalid arguments, before anything is written.
        FileExistsError, OSError: as `hold_sweep`.
    """
    require_integer("members_at_once", members_at_once, 0)
    console, table = Console(quiet=quiet), []
    with contextlib.ExitStack() as stack:
        callbacks = make_callbacks(callbacks)
        for callback in callbacks:
            stack.callback(getattr(callback, "close", lambda: None))
        folder = Path(workdir or stack.enter_context(tempfile.TemporaryDirectory()))
        stop = stop or stack.enter_context(stop_signals(console))
        trusted = {*trust, *(module for own in members for module in custom_modules(own.config))}
        running = Sweep(folder, console, stop, trusted, devices, members_at_once, callbacks)
        stack.enter_context(telling(running.say))
        stack.enter_context(hold_sweep(folder, asked, resume, running.say))
        stack.enter_context(contextlib.suppress(Stopped))
        for table in kind(running):
            write_table(folder, table)
        running.say(f"Wrote {folder}/table.csv, table.jsonl: {len(table)} rows")
    return table


def choose_metric(metric: str | None, population: Population) -> str:
    """Return the metric that compares members: `metric`, or `best_metric` of the configuration.

    Raises:
        ValueError: for an unknown metric, with the closest name, or for none.
    """
    chosen = metric or population.config.best_by or ""
    words = "set, for example to POLICY/episode_return, to compare members"
    require(chosen, "metric", chosen or None, words)
    require_known("metric", chosen, population.metric_names)
    return chosen


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of all metrics.jsonl inside a folder."""
    return [row for file in find_files(folder, "metrics.jsonl") for row in read_metrics(file)]


def load_member(
    workdir: str | Path, number: int, trust: Collection[str] = ()
) -> tuple[Learner, TrainState]:
    """Load a member of a sweep as a single run on one device: its learner and its newest state.

    Args:
        workdir: folder of the sweep.
        number: number of the member, as in the table.
        trust: modules from which the sweep may import code, see `wdjax.train.load_run`.

    Returns:
        (learner, state).

    Raises:
        FileNotFoundError: if there is no such sweep, or no checkpoint of this member.
        ValueError: if the configuration names code of an untrusted module.
    """
    workdir = Path(workdir)
    base = load_config(read_sweep(workdir, trust)["config"])
    folder, content = find_batch(workdir, number)
    members = content["members"]
    place = [member["member"] for member in members].index(number)
    changed = change_config(base, trust=trust, **members[place]["values"])
    config = dataclasses.replace(changed, seed=members[place]["seed"])
    (group,) = Population.group([config] * len(members), 1, trust, members)
    (population,) = group.batches(content["size"])
    return population.member(population.resume(folder), place)


def find_batch(workdir: Path, number: int) -> tuple[Path, dict[str, Any]]:
    """Return (folder, content of members.json) of the last batch of a member.

    Raises:
        FileNotFoundError: if no batch has a checkpoint of this member.
    """
    for folder, content in read_batches(workdir):
        inside = any(member["member"] == number for member in content["members"])
        if inside and any((folder / "checkpoints").glob("[0-9]*")):
            return folder, content
    raise FileNotFoundError(f"{workdir} has no checkpoint of member {number}")
