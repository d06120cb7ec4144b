"""Train a run in a folder, with metrics, checkpoints, evaluations, callbacks and progress."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from pathlib import Path

import jax
from orbax.checkpoint import CheckpointManager

from wdjax.checks import require
from wdjax.console import Console
from wdjax.drawing.figures import without_picture
from wdjax.env_checker import check_env
from wdjax.kernels.backend import on_cpu
from wdjax.progress import progress_bar
from wdjax.signals import stop_signals
from wdjax.tables import html_table
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.processes import (
    any_process,
    as_first,
    ending_with_others,
    is_first,
    on_all,
    on_first,
    wait_for_all,
)
from wdjax.train.devices.startup import in_thread
from wdjax.train.evaluation.best import TrainingEvaluation
from wdjax.train.evaluation.evaluate import PlayedEpisodes, no_evaluation
from wdjax.train.evaluation.trajectory import compile_recording, save_episode
from wdjax.train.host import plots
from wdjax.train.host.callbacks import (
    Callback,
    call_callbacks,
    close_callbacks,
    goals_in_words,
    goals_reached,
    make_callbacks,
    require_goals,
)
from wdjax.train.host.debug import nan_origin
from wdjax.train.host.failures import BadNumbersError
from wdjax.train.host.loop import Chunk, Job, Outcome, Row, row_of_run, train_chunks
from wdjax.train.host.programs import Program, telling
from wdjax.train.host.progress import (
    announce_run,
    early_end,
    last_words,
    nothing_to_do,
    words_of_run,
)
from wdjax.train.host.start import start_run
from wdjax.train.learner.bad_numbers import skipped_updates, what_was_skipped, why_it_ends
from wdjax.train.learner.init import abstract_state
from wdjax.train.learner.learner import Learner, make_learner, metric_names
from wdjax.train.learner.setup import require_config
from wdjax.train.state.registry import read_config
from wdjax.train.state.sharding import require_all_processes
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import (
    HostData,
    delete_newer,
    finish,
    open_checkpoints,
    save_state,
)
from wdjax.train.storage.folder import (
    CONFIG,
    hold_folder,
    plain_config,
    prepare_folder,
    require_own_run,
    run_config,
    write_config,
)
from wdjax.train.storage.metrics_log import (
    METRICS,
    MetricsLog,
    open_log,
    rows_of,
    tell_lost_lines,
)


def check_run(
    learner: Learner, callbacks: Sequence[Callback | str], begun: bool = False
) -> tuple[Callback, ...]:
    """Return the callbacks; check them, `stop_at`, and the checkpoints that a new run starts from.

    Raises:
        ValueError, TypeError, ImportError, FileNotFoundError: as `Trainer`.
    """
    made, goals = make_callbacks(callbacks), learner.config.stop_at
    if goals:
        require_goals(goals, [*metric_names(learner.setup), *no_evaluation(learner)])
    if not begun:
        _ = learner.loaded()
    return made


class Trainer:
    """Train a run in a folder.

    The folder contains config.yaml, metrics.jsonl, checkpoints/, best/, and at the end curves.png
    and episode.gif.

    Args:
        config: configuration of the run.
        workdir: folder of the run; created if missing.
        resume: continue from the newest checkpoint in the folder, if any.
        callbacks: functions of (trainer, row), called after every chunk with the row written to
            metrics.jsonl. `trainer.state` is the state after that chunk; the device already runs
            the next one. Returning True ends the run after the next chunk, like `stop`. Names are
            allowed: "csv", "tensorboard", "wandb", "package.module:f".
        quiet: disable the progress bar and all output.
        debug: enable slow checks (train/host/debug.py).
        trust: additional modules from which saved runs may import code, if policies start from them
            (see `load_run`).
        pictures: draw pictures at the end.

    Raises:
        FileExistsError: if the folder contains a run and `resume` is False.
        ValueError: if the folder contains a run with another configuration.
        BlockingIOError: if another process is training in the folder.
    """

    def __init__(
        self,
        config: TrainConfig,
        workdir: str | Path,
        resume: bool = False,
        callbacks: Sequence[Callback | str] = (),
        quiet: bool = False,
        debug: bool = False,
        trust: Collection[str] = (),
        pictures: bool = True,
    ):
        require_config(config)
        require(workdir != "", "workdir", workdir, "a path")  # Path("") is the current folder
        self.debug, self.pictures, self.workdir = debug, pictures, Path(workdir)
        self._given = read_config(config)  # a config built in Python may hold 1e6 for 1_000_000
        self.config = config = run_config(self._given, self.workdir, resume, trust)
        self._begun = time.perf_counter()
        # before the folder is made: a configuration that is refused leaves no folder
        self.learner = make_learner(config, trust)
        begun = (self.workdir / CONFIG).exists()
        self.callbacks = check_run(self.learner, callbacks, begun)
        self.console = Console(quiet=quiet or not is_first())
        if debug and not (resume and begun):  # checked when the run was started
            check_env(self.learner.env, params=self.learner.env_params)
        require_all_processes(self.learner.setup.num_devices)
        on_first(prepare_folder, self.workdir, config, resume)
        on_all(self._require_own_folder)
        self.state: TrainState | None = None
        self.stopped = False  # whether a signal ended `train` early
        self.ended_by = ""  # otherwise, the reason for the early end: a callback, stop_at
        self._evaluation = TrainingEvaluation(self.learner, self._say)
        self._waits = {"setup": time.perf_counter() - self._begun}  # seconds without training
        self._chunk_seconds = 0.0  # training time, over all chunks
        self._kernels = ""  # which work fused kernels do
        # compiled or imported in threads: "evaluation", "curves", "episode"
        self._background: dict[str, Future] = {}

    def _require_own_folder(self) -> None:
        self.config = require_own_run(self.workdir, self.config, self.learner.setup.trust)

    @property
    def best_score(self) -> float | None:
        """Highest value of `best_metric` in an evaluation, None before the first one."""
        return self._evaluation.best_score

    @property
    def best_updates(self) -> int | None:
        """Number of updates of the best state, which is in best/."""
        return self._evaluation.best_updates

    @property
    def history(self) -> list[Row]:
        """Rows of metrics.jsonl, one per chunk, for example for `pandas.DataFrame`."""
        return rows_of(self.workdir)

    def _repr_html_(self) -> str:
        config, history = self.config, self.history
        last = history[-1] if history else {}
        rows = {
            "folder": self.workdir,
            "env": config.env,
            "done": f"{last.get('env_steps', 0):,} of {config.total_env_steps:,} env steps",
            **{f"{name} return": last.get(f"{name}/episode_return") for name in config.policies},
        }
        if self.best_score is not None:
            rows[f"best {config.best_by}"] = self.best_score
        return html_table(rows.items(), caption="A training run") + plots.svg_of_run(history)

    def stop(self, why: str = "trainer.stop()") -> None:
        """End `train` after the current chunk and save the run.

        Args:
            why: reason shown in the final message.
        """
        self.ended_by = self.ended_by or why

    def train(self) -> TrainState:
        """Train until the configured end, or until `stop_at`, a callback or a signal ends the run.

        The run is saved, and pictures are drawn unless Ctrl-C or SIGTERM ended it. A run that is
        already longer is left unchanged.

        Returns:
            The final state.

        Raises:
            OSError: if metrics or a checkpoint cannot be written, for example on a full disk.
                Earlier checkpoints stay.
            BadNumbersError: if an update produces NaN or infinity (see config.on_bad_numbers). The
                state before it is saved.
            FailedCheckError: if a check of `debug` fails, or parameters or metrics differ between
                devices. Earlier checkpoints stay.
        """
        self.ended_by, folder = "", self.workdir
        self._curve = plots.LiveCurve(lambda: self.history)
        with contextlib.ExitStack() as stack:
            stack.callback(close_callbacks, self.callbacks)
            stack.enter_context(telling(self._tell_kernels))
            lock = stack.enter_context(hold_folder(folder)) if is_first() else None
            self._require_own_folder()  # again: the folder was not locked until now
            # before the checkpoints: closing them waits for the last save
            stop = stack.enter_context(stop_signals(self.console))
            config, keep, best, log = self.config, self.config.keep_checkpoints, None, None
            checkpoints = stack.enter_context(open_checkpoints(folder / "checkpoints", keep))
            if config.best_by:
                best = stack.enter_context(open_checkpoints(folder / "best", 1))
            with ending_with_others():  # may compile
                state, size, program, compiling = self._start(checkpoints, best)
                self.state, first = state, int(state.num_updates)
                if program is None:
                    return self._nothing_to_do(state, first, size)
                self._waits["compiling"] = compiling
                on_first(write_config, folder, config)
            if is_first():
                log = stack.enter_context(open_log(folder / METRICS, size, self._say, lock))
            stack.enter_context(ending_with_others())
            last = config.num_updates
            bar = progress_bar(self.console, last, first, self._curve.svg)
            job = Job(
                config, last, program, checkpoints, log,
                judge=functools.partial(self._judge, best, log),
                report=functools.partial(self._report, stack.enter_context(bar)),
                host=self._host, begin=self._begin, beside=not self.debug,
            )  # fmt: skip
            self._stop_if_goals_were_reached()
            stopped = lambda: any_process(stop.is_set() or bool(self.ended_by))  # noqa: E731
            self.state, done = train_chunks(
                job, state, first, stopped, compiling, self._compile_in_background
            )
            self.stopped = done < last and any_process(stop.is_set())
        self._finish(first, done)
        return self.state

    def _start(
        self, checkpoints: CheckpointManager, best: CheckpointManager | None
    ) -> tuple[TrainState, int, Program | None, float]:
        devices = self.learner.setup.num_devices
        announce_run(self.console, self._given, self.config, self.workdir, devices)
        return start_run(
            self.learner, self.config, self.workdir, checkpoints,
            restored=functools.partial(self._evaluation.resume, best),
            meanwhile=self._compile_in_background, say=self._say, debug=self.debug,
        )  # fmt: skip

    def _stop_if_goals_were_reached(self) -> None:
        """Stop a resumed run if an earlier row has reached `stop_at`, as process 0 reads them."""
        goals = self.config.stop_at
        if goals and as_first(is_first() and goals_reached(goals, *self.history)):
            self.stop(goals_in_words(goals))

    def _begin(self, chunk: Chunk) -> Callable[[TrainState], PlayedEpisodes | None] | None:
        """Return a function that begins the evaluation of a state after a chunk, if one is due."""
        # kept in the folder, so that a resumed run has rows after the same updates
        if not self.config.updates_per_chunk:
            self.config = dataclasses.replace(self.config, updates_per_chunk=chunk.size)
            on_first(write_config, self.workdir, self.config)
        config, done = self.config, chunk.done
        due = done == config.num_updates or done % config.updates_per_evaluation == 0
        if config.evaluates and due:
            return lambda state: self._evaluation.begin(state, done)
        return (lambda state: None) if self.callbacks else None  # callbacks may read the state

    def _judge(
        self, best: CheckpointManager | None, log: MetricsLog | None, chunk: Chunk
    ) -> Outcome:
        """Return the row of a chunk, with its evaluation, and the error if it ends the run."""
        setup, done, (part,) = self.learner.setup, chunk.done, chunk.parts
        self.state = self.state if chunk.state is None else chunk.state
        self._chunk_seconds += chunk.seconds
        if best is not None:
            finish(best)  # a later checkpoint must not refer to a best state that is not saved
        rows = []
        if done > chunk.before:
            skipped = skipped_updates(self.config, part.codes)
            rows.append(row_of_run(setup, chunk) | skipped | self._evaluate(best, log, chunk))

        def failure() -> BadNumbersError:
            state = chunk.state if self.debug else None
            origin = None if state is None else nan_origin(setup, state)
            return BadNumbersError(why_it_ends(setup, part.codes, part.streak, done, origin))

        if part.codes.any() and not part.ends:
            self._say(what_was_skipped(setup, part.codes))
        return Outcome(rows, failure=failure if part.ends else None)

    def _evaluate(
        self, best: CheckpointManager | None, log: MetricsLog | None, chunk: Chunk
    ) -> dict[str, float | None]:
        """Return the metrics of the evaluation of a chunk, and save its state if it is the best."""
        if chunk.begun is None or chunk.state is None:
            return dict(no_evaluation(self.learner, self.state))
        evaluation, state, done = self._evaluation, chunk.state, chunk.done
        metrics = evaluation.end(chunk.begun, state)
        if evaluation.is_best(metrics, done):
            delete_newer(best, done)  # saved before the run was resumed from an older checkpoint
            save_state(best, done, state, log, self._host())
        return metrics | evaluation.best_metrics(state, done)

    def _report(self, advance: Callable[[int, str], None], rows: list[Row]) -> None:
        """Show the rows of a chunk, call the callbacks, and apply their results and `stop_at`."""
        for row in rows:
            self._curve.add(row)
            advance(row["updates"], words_of_run(self.config, row))
            if call_callbacks(self.callbacks, self, row):
                self.stop("a callback")
            if goals_reached(self.config.stop_at, row):
                self.stop(goals_in_words(self.config.stop_at))

    def _host(self) -> HostData:
        """Return the content of a checkpoint besides the state."""
        return {
            "best_score": self.best_score,
            "best_updates": self.best_updates,
            "config": plain_config(self.config),
        }

    def _compile_in_background(self) -> None:
        """Compile evaluations, and on a GPU what pictures need, in threads."""
        if self._background:
            return
        like = abstract_state(self.learner.setup)
        if self.config.evaluates:
            self._background["evaluation"] = self._evaluation.compile(like)
        if self.pictures and not on_cpu() and jax.process_count() == 1:
            self._background["curves"] = in_thread(plots.import_drawing)
            # if it fails, `draw` compiles it
            self._background["episode"] = in_thread(compile_recording, self.learner, like)

    def _tell_kernels(self, words: str) -> None:
        self._kernels = words
        self._say(words)

    def _say(self, words: str) -> None:
        self.console.print(words, soft_wrap=not self.console.is_jupyter)

    def _finish(self, first: int, done: int) -> None:
        """Report the speed from update `first` to `done` and the reason of the end; draw."""
        config, total = self.config, time.perf_counter() - self._begun
        steps, chunks = (done - first) * config.env_steps_per_update, self._chunk_seconds
        self._say(last_words(steps, chunks, self._waits, total, self._kernels))
        self._begun, self._chunk_seconds, self._waits = time.perf_counter(), 0.0, {}  # next call
        if done < config.num_updates:
            self._say(early_end(config, done, self.stopped, self.ended_by))
        if not self.stopped and is_first() and self.pictures:
            wait(self._background.values())
            self.draw()
        wait_for_all()

    def _nothing_to_do(self, state: TrainState, done: int, metrics_size: int) -> TrainState:
        """Return the state of a complete run; draw it unless it is longer than configured."""
        tell_lost_lines(self.workdir / METRICS, metrics_size, self._say)
        self._say(nothing_to_do(self.config, done))
        if done == self.config.num_updates and is_first() and self.pictures:
            self.draw()
        wait_for_all()
        return state

    def draw(self) -> None:
        """Draw curves.png, opponents.png (with opponents) and episode.gif (after `train`)."""
        plots.draw_pictures(self.workdir, f"{self.config.env}: {self.workdir.name}", self._say)
        if self.state is None:
            return
        file, made = self.workdir / "episode.gif", self._background.get("episode")
        program = made.result() if made and not made.exception() else None
        with without_picture(file.name, self._say), contextlib.suppress(NotImplementedError):
            seed = self.config.seed
            written = save_episode(self.learner, self.state, file, seed, program=program)
            self._say(f"Wrote {written}")
