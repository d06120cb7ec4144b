"""Train a run in a folder, with metrics, checkpoints, evaluations, callbacks and progress."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import jax

from wdjax.checks import require
from wdjax.console import Console
from wdjax.env_checker import check_env
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
from wdjax.train.evaluation.episodes import evaluation_metrics
from wdjax.train.evaluation.evaluate import (
    UnfinishedEpisodeError,
    begin_evaluation,
    end_evaluation,
    lower_evaluation,
    no_evaluation,
)
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
from wdjax.train.host.chunks import room
from wdjax.train.host.debug import compile_checked, nan_origin
from wdjax.train.host.determinism import forgets_determinism, is_deterministic
from wdjax.train.host.failures import BadNumbersError
from wdjax.train.host.loop import (
    Chunk,
    Job,
    Outcome,
    Row,
    copied,
    row_of_run,
    save_state,
    train_chunks,
)
from wdjax.train.host.programs import Program, compile_and_init, compile_chunk, telling
from wdjax.train.host.progress import (
    GO_ON,
    announce_run,
    last_words,
    nothing_to_do,
    progress_bar,
    words_of_run,
)
from wdjax.train.host.signals import stop_signals
from wdjax.train.learner.bad_numbers import skipped_updates, what_was_skipped, why_it_ends
from wdjax.train.learner.init import abstract_state, host_key
from wdjax.train.learner.learner import Learner, make_learner, metric_names
from wdjax.train.learner.setup import require_config
from wdjax.train.state.registry import read_config
from wdjax.train.state.sharding import require_all_processes
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import (
    delete_newer,
    finish,
    newest_host,
    open_checkpoints,
    restore_newest,
    save,
)
from wdjax.train.storage.folder import (
    CONFIG,
    hold_folder,
    load_run_config,
    plain_config,
    prepare_folder,
    read_made_with,
    require_same_run,
    run_config,
    with_size_of,
    write_config,
)
from wdjax.train.storage.metrics_log import (
    MetricsLog,
    finite,
    open_log,
    read_metrics,
    tell_lost_lines,
)
from wdjax.train.storage.switches import require_same_switches, switch_warnings


def check_run(
    learner: Learner, callbacks: Sequence[Callback | str], begun: bool = False
) -> tuple[Callback, ...]:
    """Instantiate the callbacks and validate what the configuration alone cannot; errors are those of `Trainer`.

    These are callback names, `stop_at` metrics, and checkpoints that policies start from, unless the run has `begun`
    with its own copy.
    """
    made, goals = make_callbacks(callbacks), learner.config.stop_at
    if goals:
        require_goals(goals, [*metric_names(learner.setup), *no_evaluation(learner)])
    if not begun:
        _ = learner.loaded()
    return made


class Trainer:
    """Train a run in a folder.

    The folder contains config.yaml, metrics.jsonl, checkpoints/, best/, and at the end curves.png and episode.gif.

    Args:
        config: configuration of the run.
        workdir: folder of the run; created if missing.
        resume: continue from the newest checkpoint in the folder, if any.
        callbacks: functions of (trainer, row), called after every chunk with the row written to metrics.jsonl.
            `trainer.state` is the state after that chunk; the device already runs the next one. Returning True ends the
            run after the next chunk, like `stop`. Names are allowed: "csv", "tensorboard", "wandb", "package.module:f".
        quiet: disable the progress bar and all output.
        debug: enable slow checks (train/host/debug.py).
        trust: additional modules from which saved runs may import code, if policies start from them (see `load_run`).
        pictures: draw pictures at the end.

    Raises:
        FileExistsError: if the folder contains a run and `resume` is False.
        ValueError: if the folder contains a run with another configuration.
        BlockingIOError: if another process is training in the folder.
    """

    def __init__(
        self, config: TrainConfig, workdir: str | Path, resume: bool = False, callbacks: Sequence[Callback | str] = (),
        quiet: bool = False, debug: bool = False, trust: Collection[str] = (), pictures: bool = True,
    ):  # fmt: skip
        require_config(config)
        require(workdir != "", "workdir", workdir, "a path")  # Path("") is the current folder
        self.debug, self.pictures, self.workdir = debug, pictures, Path(workdir)
        self._given = read_config(config)  # one built in Python may hold 1e6 for 1_000_000
        self.config = config = run_config(self._given, self.workdir, resume, trust)
        self._begun = time.perf_counter()
        self.learner = make_learner(
            config, trust
        )  # first: a configuration that is refused must leave no folder
        self.callbacks = check_run(
            self.learner, callbacks, begun := (self.workdir / CONFIG).exists()
        )
        self.console = Console(quiet=quiet or not is_first())
        if debug and not (resume and begun):  # that run has begun, whatever its game
            check_env(self.learner.env, params=self.learner.env_params)
        require_all_processes(self.learner.setup.num_devices)
        on_first(prepare_folder, self.workdir, config, resume, trust)
        on_all(self._require_own_folder)
        self.state: TrainState | None = None
        self._waits = {"setup": time.perf_counter() - self._begun}  # seconds not spent on training
        self._shown: Sequence[Row] | None = None  # what the live curve in a notebook is of
        self._chunks, self._kernels = (
            0.0,
            "",
        )  # seconds of all chunks; what ran by kernels, in words
        self._beside: dict[
            str, Future
        ] = {}  # compiled while training goes on: for evaluations, for pictures
        self.best_score: float | None = None
        self.best_updates: int | None = None  # of the state with that score
        self.stopped = False  # whether a signal ended `train` early
        self.ended_by = ""  # what else did, in words: a callback, stop_at

    def _require_own_folder(self) -> None:
        shared = (self.workdir / CONFIG).exists()
        require(shared, "workdir", str(self.workdir), "a folder that all processes share")
        begun = load_run_config(self.workdir, self.learner.setup.trust)
        require_same_run(begun, self.config, f"the run in {self.workdir} was started with")
        require_same_switches(read_made_with(self.workdir), f"the run in {self.workdir}")
        self.config = with_size_of(begun, self.config)

    @property
    def history(self) -> list[Row]:
        """Rows of metrics.jsonl, one per chunk; for example `pandas.DataFrame(trainer.history)`."""
        file = self.workdir / "metrics.jsonl"
        return read_metrics(file) if file.exists() else []

    def _curve(self, rows: Sequence[Row]) -> str:
        """Returns the returns of these rows as SVG, "" where there are none."""
        return plots.as_svg(plots.draw_run(plots.thinned(rows), most=1)) if rows else ""

    def _live_curve(self) -> str:
        """`_curve` of this run so far: metrics.jsonl is read once, then what `_report` adds."""
        self._shown = self.history if self._shown is None else self._shown
        with contextlib.suppress(Exception):  # a picture must not end training
            return self._curve(self._shown)
        return ""

    def _repr_html_(self) -> str:
        config, history = self.config, self.history
        last = history[-1] if history else {}
        steps = f"{last.get('env_steps', 0):,} of {config.total_env_steps:,} env steps"
        returns = {f"{name} return": last.get(f"{name}/episode_return") for name in config.policies}
        best = {} if self.best_score is None else {f"best {config.best_by}": self.best_score}
        rows = {"folder": self.workdir, "env": config.env, "done": steps, **returns, **best}
        return html_table(rows.items(), caption="A training run") + self._curve(history)

    def stop(self, why: str = "trainer.stop()") -> None:
        """End `train` after the current chunk and save the run.

        Args:
            why: reason shown in the final message.
        """
        self.ended_by = self.ended_by or why

    def train(self) -> TrainState:
        """Train until total_env_steps, stop_at, a callback, Ctrl-C or SIGTERM ends the run; save it and draw pictures.

        A run that is already longer is left unchanged. After Ctrl-C or SIGTERM no pictures are drawn.

        Returns:
            The final state.

        Raises:
            OSError: if metrics or a checkpoint cannot be written, for example on a full disk. Earlier checkpoints stay.
            BadNumbersError: if an update produces NaN or infinity (see config.on_bad_numbers). The state before it is
                saved.
            FailedCheckError: if a check of `debug` fails, or parameters or metrics differ between devices. Earlier
                checkpoints stay.
        """
        self.ended_by, self._shown = "", None
        with contextlib.ExitStack() as stack:
            stack.callback(close_callbacks, self.callbacks)
            stack.enter_context(telling(self._tell_kernels))
            lock = stack.enter_context(hold_folder(self.workdir)) if is_first() else None
            self._require_own_folder()  # nothing has held the folder since
            config = self.config
            stop = stack.enter_context(
                stop_signals(self.console)
            )  # first: closing waits for the last checkpoint
            checkpoints = stack.enter_context(
                open_checkpoints(self.workdir / "checkpoints", config.keep_checkpoints)
            )
            best = (
                stack.enter_context(open_checkpoints(self.workdir / "best", 1))
                if config.best_by
                else None
            )
            with ending_with_others():  # it may compile
                self.state, size, program, self._waits["compiling"] = self._start(checkpoints, best)
                first = int(self.state.num_updates)
                if program is None:
                    return self._nothing_to_do(first, size)
                on_first(write_config, self.workdir, config)
            log = stack.enter_context(
                open_log(self.workdir / "metrics.jsonl", size, self._say, lock)
            ) if is_first() else None  # fmt: skip
            stack.enter_context(ending_with_others())
            advance = stack.enter_context(
                progress_bar(self.console, config.num_updates, first, self._live_curve)
            )
            job = Job(
                config, config.num_updates, program, checkpoints, log, functools.partial(self._judge, best, log),
                functools.partial(self._report, advance), self._host, self._begin, beside=not self.debug,
            )  # fmt: skip
            goals = (
                config.stop_at
            )  # of process 0, which has cut metrics.jsonl back: others may see lines that are gone
            if goals and as_first(
                is_first() and any(goals_reached(goals, row) for row in self.history)
            ):
                self.stop(goals_in_words(goals))  # before it was resumed
            stopped = lambda: any_process(stop.is_set() or bool(self.ended_by))  # noqa: E731
            self.state, done = train_chunks(
                job, self.state, first, stopped, self._waits["compiling"], self._compile_beside
            )
            early = done < config.num_updates
            self.stopped = early and any_process(stop.is_set())
        env_steps = (done - first) * config.env_steps_per_update
        self._say(
            last_words(
                env_steps,
                self._chunks,
                self._waits,
                time.perf_counter() - self._begun,
                self._kernels,
            )
        )
        self._begun, self._chunks, self._waits = (
            time.perf_counter(),
            0.0,
            {},
        )  # of `train` called again
        if early:
            ended = f"Ended by {self.ended_by or 'another process'}"
            how, more = ("Stopped", GO_ON) if self.stopped else (ended, "")
            steps = (
                f"{done * config.env_steps_per_update:,} of {config.total_env_steps:,} env steps"
            )
            self._say(f"{how} and saved after {steps}.{more}")
        if not self.stopped and is_first() and self.pictures:
            wait(self._beside.values())
            self.draw()
        wait_for_all()
        return self.state

    def _nothing_to_do(self, done: int, metrics_size: int) -> TrainState:
        """Return the state of a run that has `done` updates, all of its own or more; draw the former."""
        tell_lost_lines(self.workdir / "metrics.jsonl", metrics_size, self._say)
        self._say(nothing_to_do(self.config, done))
        if done == self.config.num_updates and is_first() and self.pictures:
            self.draw()
        wait_for_all()
        return self.state

    def draw(self) -> None:
        """Draw curves.png, opponents.png (with opponents) and episode.gif (if the environment has a drawing)."""
        title = f"{self.config.env}: {self.workdir.name}"
        with plots.without_picture("curves.png", self._say):
            curves = plots.save_curves(self.workdir, title)
            self._say(
                f"Wrote {curves}" if curves else f"No curves: {self.workdir}/metrics.jsonl is empty"
            )
        with plots.without_picture("opponents.png", self._say):
            if opponents := plots.save_opponents(self.workdir, title):
                self._say(f"Wrote {opponents}")
        file, made = self.workdir / "episode.gif", self._beside.get("episode")
        program = made.result() if made and not made.exception() else None
        with (
            plots.without_picture("episode.gif", self._say),
            contextlib.suppress(NotImplementedError),
        ):
            self._say(
                f"Wrote {save_episode(self.learner, self.state, file, self.config.seed, program=program)}"
            )

    def _tell_kernels(self, words: str) -> None:
        self._kernels = words
        self._say(words)

    def _say(self, words: str) -> None:
        self.console.print(words, soft_wrap=not self.console.is_jupyter)

    def _start(self, checkpoints: Any, best: Any) -> tuple[TrainState, int, Program | None, float]:
        """Returns the state to go on from, how much of metrics.jsonl goes with it in bytes, the program (None: no
        update is left to do), and the seconds that it took to compile."""
        announce_run(
            self.console, self._given, self.config, self.workdir, self.learner.setup.num_devices
        )
        like = abstract_state(self.learner.setup)
        found = restore_newest(checkpoints, like, self.config, self._say)
        if found is None:
            return self._first_state(like)
        updates, state, host = found
        self.best_score, self.best_updates = host["best_score"], host["best_updates"]
        if (
            best is not None and (best.latest_step() or 0) > updates
        ):  # found after this checkpoint, before the end
            newer = newest_host(best, updates, self._say)
            if newer is not None:
                self.best_updates, self.best_score = newer[0], newer[1]["best_score"]
            elif best.latest_step() is None:  # damaged, and what was the best before it is gone
                self.best_updates = self.best_score = None
        elif (
            best is not None and self.best_updates == updates
        ):  # perhaps killed before that one was whole
            save(best, updates, copied(state), host)
        if updates >= self.config.num_updates:
            return state, host["metrics_size"], None, 0.0
        most, env_steps = room(self.config), updates * self.config.env_steps_per_update
        self._say(f"Resuming from {checkpoints.directory}/{updates}, {env_steps:,} env steps")
        if forgets_determinism(host["deterministic"]):
            self._say(
                "Warning: this run used --deterministic. Without the flag, results are not bit-identical."
            )
        for words in switch_warnings(read_made_with(self.workdir)):
            self._say(words)
        program = (
            (compile_checked(self.learner, most), 0.0)
            if self.debug
            else compile_chunk(self.learner, like, most)
        )
        return state, host["metrics_size"], *program

    def _first_state(self, like: TrainState) -> tuple[TrainState, int, Program, float]:
        seed, most = self.config.seed, room(self.config)
        if self.debug:  # its program compiles when first called
            return (
                self.learner.init(jax.random.key(seed)),
                0,
                compile_checked(self.learner, most),
                0.0,
            )
        state, program, seconds = compile_and_init(
            self.learner, like, seed, most, self._compile_beside
        )
        return state, 0, program, seconds

    def _judge(self, best: Any, log: MetricsLog | None, chunk: Chunk) -> Outcome:
        """Returns the row of a chunk, with an evaluation where one is due, and whether it ends the run."""
        config, setup, done = self.config, self.learner.setup, chunk.done
        self.state = self.state if chunk.state is None else chunk.state
        self._chunks += chunk.seconds
        (part,) = chunk.parts
        if best is not None:
            finish(best)  # the next checkpoint must not know of a best one that is not there
        rows = []
        if done > chunk.before:
            row = row_of_run(setup, chunk) | skipped_updates(config, part.codes)
            evaluated = chunk.begun is not None
            rows = [
                row
                | (
                    self._evaluate(best, chunk, log)
                    if evaluated
                    else no_evaluation(self.learner, self.state)
                )
            ]

        def failure() -> BadNumbersError:
            origin = nan_origin(setup, chunk.state) if self.debug else None
            return BadNumbersError(why_it_ends(setup, part.codes, part.streak, done, origin))

        if part.codes.any() and not part.ends:
            self._say(what_was_skipped(setup, part.codes))
        return Outcome(rows, failure=failure if part.ends else None)

    def _report(self, advance: Callable[[int, str], None], rows: list[Row]) -> None:
        for row in rows:
            if self._shown is not None:
                self._shown = plots.thinned([*self._shown, row])
            advance(row["updates"], words_of_run(self.config, row))
            if call_callbacks(self.callbacks, self, row):
                self.stop("a callback")
            if goals_reached(self.config.stop_at, row):
                self.stop(goals_in_words(self.config.stop_at))

    def _is_evaluated(self, done: int) -> bool:
        """Whether so many updates call for an evaluation."""
        config = self.config
        return config.evaluates and (
            done == config.num_updates or done % config.updates_per_evaluation == 0
        )

    def _compile_beside(self) -> None:
        """Begins, once, to make in threads what is needed later: the program of evaluations, a GPU's beside that of the
        run, a CPU's, which takes all cores, beside the first chunks; of a GPU, whose host can, what pictures need."""
        if self._beside:
            return
        config, like = self.config, abstract_state(self.learner.setup)
        if config.evaluates:
            lowered = lower_evaluation(self.learner, like, config.eval_episodes, config.eval_greedy)
            self._beside["evaluation"] = in_thread(lowered.compile)
        if self.pictures and jax.default_backend() != "cpu" and jax.process_count() == 1:
            self._beside["curves"] = in_thread(plots.import_drawing)
            self._beside["episode"] = in_thread(
                compile_recording, self.learner, like
            )  # where it fails, `draw` does it

    def _begin(self, chunk: Chunk) -> Callable[[TrainState], Any] | None:
        """Return what plays the episodes of an evaluation, if one is due, in replicas and with a key of their own."""
        if (
            not self.config.updates_per_chunk
        ):  # kept in the folder: a resumed run has rows after the same updates
            self.config = dataclasses.replace(self.config, updates_per_chunk=chunk.size)
            on_first(write_config, self.workdir, self.config)
        if not self._is_evaluated(chunk.done):
            return (lambda state: None) if self.callbacks else None  # callbacks may read the state
        key = jax.random.fold_in(host_key(self.config.seed), chunk.done)
        return lambda state: begin_evaluation(
            self.learner, state, key, self._beside["evaluation"].result()
        )

    def _evaluate(self, best: Any, chunk: Chunk, log: MetricsLog | None) -> dict[str, Any]:
        """Returns what the episodes came to, and keeps the best state where best_metric asks."""
        config, done = self.config, chunk.done
        try:
            episodes = end_evaluation(self.learner, chunk.begun)
        except UnfinishedEpisodeError as error:  # training must not end for want of an evaluation
            self._say(f"Warning: evaluation skipped. {error}")
            row = no_evaluation(self.learner, self.state)
        else:
            found = evaluation_metrics(episodes, self.learner.env.info_ratios)
            row = {name: value if value is None else finite(value) for name, value in found.items()}
        score = row.get(f"eval/{config.best_by}")
        if as_first(score is not None and (self.best_score is None or score > self.best_score)):
            self.best_score, self.best_updates = score, done
            delete_newer(
                best, done
            )  # of a part of the run that was lost, where it comes to other numbers now
            save_state(best, done, chunk.state, log, self._host())
        return row | self._report_best(chunk.state, done)

    def _report_best(self, state: TrainState, done: int) -> dict[str, float | None]:
        """Returns what a state that is now the best comes to in other episodes than those that chose it: of many, the
        one with the highest mean was lucky, too. Of one that is not, the same fields, null."""
        config, score = self.config, None
        if config.best_by is None:
            return {}
        if done == self.best_updates:
            key = jax.random.fold_in(
                host_key(config.seed), 2**31 + done
            )  # evaluations fold in smaller numbers
            with contextlib.suppress(UnfinishedEpisodeError):
                begun = begin_evaluation(
                    self.learner, state, key, self._beside["evaluation"].result()
                )
                episodes = end_evaluation(self.learner, begun)
                score = finite(
                    evaluation_metrics(episodes, self.learner.env.info_ratios)[
                        f"eval/{config.best_by}"
                    ]
                )
        return {f"eval/best/{config.best_by}": score}

    def _host(self) -> dict[str, Any]:
        """What a checkpoint holds of the run beside its state."""
        return {
            "best_score": self.best_score, "best_updates": self.best_updates, "config": plain_config(self.config),
            "deterministic": is_deterministic(),
        }  # fmt: skip
