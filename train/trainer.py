"""The host's side of a run: chunks of updates on the device, and between them metrics, checkpoints and progress."""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from wdjax.checks import require
from wdjax.env_checker import check_env
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.processes import any_process, as_first, ending_with_others, is_first, on_first, wait_for_all
from wdjax.train.evaluation.episodes import Episodes, evaluation_metrics
from wdjax.train.evaluation.evaluate import UnfinishedEpisodeError, evaluate
from wdjax.train.evaluation.trajectory import save_episode
from wdjax.train.host.debug import compile_checked, nan_origin
from wdjax.train.host.determinism import forgets_determinism, is_deterministic
from wdjax.train.host.failures import BadNumbersError
from wdjax.train.host.plots import save_curves
from wdjax.train.host.programs import compile_and_init, compile_chunk
from wdjax.train.host.progress import announce, progress_bar
from wdjax.train.host.signals import stop_signals
from wdjax.train.learner.bad_numbers import (
    bad_in_a_row,
    ends_run,
    skipped_updates,
    sound_updates,
    what_was_skipped,
    why_it_ends,
)
from wdjax.train.learner.init import abstract_state, host_key
from wdjax.train.learner.learner import make_learner
from wdjax.train.state.agents import group_sizes
from wdjax.train.state.registry import read_config
from wdjax.train.state.sharding import require_all_processes
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import (
    delete_newer,
    finish,
    open_checkpoints,
    read_host,
    require_saved,
    restore_newest,
    save,
)
from wdjax.train.storage.folder import hold_folder, load_run_config, plain_config, prepare_folder, require_same_run
from wdjax.train.storage.metrics_log import MetricsLog, finite, summarize

Callback = Callable[["Trainer", dict[str, Any]], None]


class Trainer:
    """Trains in a folder: config.yaml, metrics.jsonl, checkpoints/, best/, and at the end curves.png and episode.gif.

    Args:
        config: of the run.
        workdir: the run's folder; made where it is not there.
        resume: go on from the newest checkpoint in the folder, where there is one.
        callbacks: functions of (trainer, row), called after every chunk with what was written to metrics.jsonl.
        quiet: no progress bar and no words.
        debug: slow checks, on one device (train/host/debug.py).

    Raises:
        FileExistsError: where the folder holds a run and `resume` is false.
        ValueError: where it holds a run of another configuration.
        BlockingIOError: where another run is training there.
    """

    def __init__(
        self,
        config: TrainConfig,
        workdir: str | Path,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        quiet: bool = False,
        debug: bool = False,
    ):
        self.config = config = read_config(config)  # one built in Python may hold 1e6 for 1_000_000
        if debug:
            self.config = config = dataclasses.replace(config, devices=1)
        self.debug = debug
        self.workdir = Path(workdir)
        self.callbacks = tuple(callbacks)
        self.learner = make_learner(config)  # first: a configuration that is refused must leave no folder
        self.console = Console(quiet=quiet or not is_first())
        if debug:
            check_env(self.learner.env, params=self.learner.env_params)
        if not (self.workdir / "config.yaml").exists():
            _ = self.learner.loaded()  # likewise a policy's checkpoint, which only a new run reads
        require_all_processes(self.learner.setup.num_devices)
        on_first(prepare_folder, self.workdir, config, resume)
        shared = (self.workdir / "config.yaml").exists()
        require(shared, "workdir", str(self.workdir), "in a folder that all processes share")
        self.state: TrainState | None = None
        self._programs: dict[int, Callable] = {}  # number of updates -> state -> (state, metrics)
        self._compile_seconds = 0.0  # since the last row
        self.best_score: float | None = None
        self.best_updates: int | None = None  # of the state with that score
        self.stopped = False  # whether a signal ended `train` early

    def train(self) -> TrainState:
        """Runs until total_env_steps are done and draws, or until Ctrl-C or SIGTERM; saves. Returns the last state.

        Raises:
            OSError: where metrics or a checkpoint cannot be written (a full disk); the checkpoints before stay whole.
            BadNumbersError: where an update makes a NaN or an infinity (config.on_bad_numbers); saved as it was before.
            FailedCheckError: where a check of `debug` fails; the checkpoints before stay.
        """
        with contextlib.ExitStack() as stack:
            if is_first():
                stack.enter_context(hold_folder(self.workdir))
            begun = load_run_config(self.workdir)  # nothing held the folder since it was looked at
            require_same_run(begun, self.config, f"the run in {self.workdir} was begun with")
            stop = stack.enter_context(stop_signals(self.console))  # first: closing waits for the last checkpoint
            folder, keep = self.workdir / "checkpoints", self.config.keep_checkpoints
            checkpoints = stack.enter_context(open_checkpoints(folder, keep))
            best = stack.enter_context(open_checkpoints(self.workdir / "best", 1)) if self.config.best_by else None
            with ending_with_others():  # it may compile
                self.state, metrics_size = self._start(checkpoints, best)
            log: MetricsLog | None = None  # of several processes the first one writes it
            if is_first():
                log = stack.enter_context(contextlib.closing(MetricsLog(self.workdir / "metrics.jsonl", metrics_size)))
            stack.enter_context(ending_with_others())
            if log and log.missing:
                words = f"Mind: {log.path} is {log.missing:,} bytes short: its last lines are lost"
                self.console.print(words, soft_wrap=True, markup=False)
            self._chunks(log, checkpoints, best, stop)
        if self.stopped:
            done = int(self.state.num_updates) * self.config.env_steps_per_update
            self.console.print(
                f"Stopped and saved after {done:,} of {self.config.total_env_steps:,} env steps. "
                "Go on with the same command and --resume.",
                soft_wrap=True,
            )
        elif is_first():
            self.draw()
        wait_for_all()
        return self.state

    def draw(self) -> None:
        """Writes curves.png, and episode.gif where the environment has a drawing."""
        curves = save_curves(self.workdir, f"{self.config.env}: {self.workdir.name}")
        self.console.print(f"Wrote {curves}", soft_wrap=True)
        with contextlib.suppress(NotImplementedError):  # an environment of one's own need not have a drawing
            animation = save_episode(self.learner, self.state, self.workdir / "episode.gif", seed=self.config.seed)
            self.console.print(f"Wrote {animation}", soft_wrap=True)

    def _start(self, checkpoints: Any, best: Any) -> tuple[TrainState, int]:
        """Returns the state to go on from, and how much of metrics.jsonl goes with it, in bytes."""
        announce(self.console, self.config, self.workdir, self.learner.setup.num_devices)
        say = functools.partial(self.console.print, soft_wrap=True, markup=False)
        like = abstract_state(self.learner.setup)
        found = restore_newest(checkpoints, like, self.config, say)
        if found is None:
            return self._first_state(like), 0
        state, host = found
        updates = int(state.num_updates)
        env_steps = updates * self.config.env_steps_per_update
        say(f"Going on from {checkpoints.directory}/{updates}, {env_steps:,} env steps")
        if forgets_determinism(host.get("deterministic", False)):
            say("Mind: this run was --deterministic; without it, it does not go on bit for bit as it would have")
        self.best_score, self.best_updates = host["best_score"], host.get("best_updates")
        if best is not None and (best.latest_step() or 0) > updates:  # found after this checkpoint, before the end
            self.best_score, self.best_updates = read_host(best)["best_score"], best.latest_step()
        elif best is not None and self.best_updates == updates:  # perhaps killed before that one was whole
            save(best, updates, state, host)
        return state, host["metrics_size"]

    def _first_state(self, like: TrainState) -> TrainState:
        seed = self.config.seed
        if self.debug:
            return self.learner.init(jax.random.key(seed))
        size = min(self.config.updates_per_chunk, self.config.num_updates)
        state, self._programs[size], self._compile_seconds = compile_and_init(self.learner, like, seed, size)
        return state

    def _chunks(self, log: MetricsLog | None, checkpoints: Any, best: Any, stop: threading.Event) -> None:
        config = self.config
        done = int(self.state.num_updates)
        streak = 0
        with progress_bar(self.console, config, done) as advance:
            while done < config.num_updates and not any_process(stop.is_set()):
                size = min(config.updates_per_chunk, config.num_updates - done)
                if size not in self._programs and self.debug:
                    self._programs[size] = compile_checked(self.learner, size)  # compiles when first called
                elif size not in self._programs:
                    self._programs[size], self._compile_seconds = compile_chunk(self.learner, self.state, size)
                    continue  # that may have taken minutes: somebody may want it to stop
                start = time.perf_counter()
                self.state, metrics = self._programs[size](self.state)
                metrics, codes = sound_updates(jax.device_get(metrics))  # waits for the device
                seconds = time.perf_counter() - start
                size, done = int(self.state.num_updates) - done, int(self.state.num_updates)
                require_saved(checkpoints)
                if best is not None:
                    finish(best)  # the next checkpoint must not know of a best one that is not there
                streak = bad_in_a_row(codes, streak)
                ends = ends_run(config, codes, streak)
                last = ends or done == config.num_updates
                if size:  # else the first update was bad, and ends the run
                    row = self._row(done, size, seconds, metrics) | skipped_updates(config, codes)
                    row |= self._evaluate(best, done, log) if self._is_evaluated(done) else self._no_evaluation()
                    if log:
                        log.write(row)
                if last or done // config.updates_per_chunk % config.checkpoint_every == 0:
                    self._save(checkpoints, done, log)
                if ends:
                    finish(checkpoints)  # before it is said that the run is saved
                    origin = nan_origin(self.learner.setup, self.state) if self.debug else None
                    raise BadNumbersError(why_it_ends(self.learner.setup, codes, streak, done, origin))
                if codes.any():
                    self.console.print(what_was_skipped(self.learner.setup, codes), soft_wrap=True, markup=False)
                self._compile_seconds = 0.0
                advance(row)
                for callback in self.callbacks:
                    callback(self, row)
        self.stopped = done < config.num_updates
        if self.stopped:
            self._save(checkpoints, done, log)

    def _row(self, done: int, size: int, seconds: float, metrics: dict[str, Any]) -> dict[str, Any]:
        steps = size * self.config.env_steps_per_update
        agents = sum(policy.assignment.num_agents for policy in self.learner.setup.policies.values())
        return {
            "updates": done,
            "env_steps": done * self.config.env_steps_per_update,
            "seconds": seconds,
            "seconds_per_update": seconds / size,
            "compile_seconds": self._compile_seconds,
            "env_steps_per_second": steps / seconds,
            "agent_steps_per_second": steps * agents / seconds,
            **summarize(metrics, self.learner.env.info_ratios),
        }

    def _is_evaluated(self, done: int) -> bool:
        """Whether so many updates call for an evaluation: every `evaluate_every` chunks or checkpoint, and the last."""
        config = self.config
        if not config.evaluates:
            return False
        every = config.evaluate_every or config.checkpoint_every
        return done == config.num_updates or done // config.updates_per_chunk % every == 0

    def _evaluate(self, best: Any, done: int, log: MetricsLog | None) -> dict[str, Any]:
        """Plays episodes in replicas and with a key of their own, and keeps the best state where best_metric asks."""
        config = self.config
        key = jax.random.fold_in(host_key(config.seed), done)
        try:
            episodes = evaluate(self.learner, self.state, key, config.eval_episodes, config.eval_greedy)
        except UnfinishedEpisodeError as error:  # training must not end for want of an evaluation
            self.console.print(f"No evaluation: {error}", soft_wrap=True)
            row = self._no_evaluation()
        else:
            found = evaluation_metrics(episodes, self.learner.env.info_ratios)
            row = {name: value if value is None else finite(value) for name, value in found.items()}
        score = row.get(f"eval/{config.best_by}")
        if as_first(score is not None and (self.best_score is None or score > self.best_score)):
            self.best_score, self.best_updates = score, done
            delete_newer(best, done)  # of a part of the run that was lost, where it comes to other numbers now
            self._save(best, done, log)
        return row

    def _no_evaluation(self) -> dict[str, None]:
        """The fields of an evaluation where there is none: every line of metrics.jsonl has the same."""
        if not self.config.evaluates:
            return {}
        env, zero = self.learner.env, np.zeros(1)
        nothing = Episodes(
            episode_return=dict.fromkeys(self.config.policies, zero), episode_length=zero,
            episode_info=dict.fromkeys(self.state.replicas.episode_info, zero), agent_return={},
            group_return=dict.fromkeys(group_sizes(env), zero),
        )  # fmt: skip
        return dict.fromkeys(evaluation_metrics(nothing, env.info_ratios))

    def _save(self, manager: Any, done: int, log: MetricsLog | None) -> None:
        if log:
            log.sync()
        host = {
            "metrics_size": log.size if log else 0, "best_score": self.best_score, "best_updates": self.best_updates,
            "config": plain_config(self.config), "deterministic": is_deterministic(),
        }  # fmt: skip
        save(manager, done, self.state, host)
