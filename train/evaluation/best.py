"""Evaluations of a run during training, and the score of its best state."""

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

import jax

from wdjax.train.devices.processes import as_first
from wdjax.train.devices.startup import in_thread
from wdjax.train.evaluation.episodes import evaluation_metrics
from wdjax.train.evaluation.evaluate import (
    PlayedEpisodes,
    UnfinishedEpisodeError,
    begin_evaluation,
    end_evaluation,
    lower_evaluation,
    no_evaluation,
)
from wdjax.train.learner.init import host_key
from wdjax.train.learner.learner import Learner
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import HostData, copied, newest_host, save
from wdjax.train.storage.metrics_log import finite

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager

BEST_KEYS = 2**31  # added to the number of updates: evaluations fold in smaller numbers


class TrainingEvaluation:
    """Evaluations of a run during training, and the score of its best state.

    Args:
        learner: learner of the run.
        say: called with warnings.
    """

    def __init__(self, learner: Learner, say: Callable[[str], None]):
        self._learner, self._config, self._say = learner, learner.config, say
        self._program: Future[jax.stages.Compiled]
        self.best_score: float | None = None
        self.best_updates: int | None = None  # updates of the state with that score

    def compile(self, like: TrainState) -> Future[jax.stages.Compiled]:
        """Trace the program of evaluations, and compile it in a thread."""
        config = self._config
        lowered = lower_evaluation(self._learner, like, config.eval_episodes, config.eval_greedy)
        self._program = in_thread(lowered.compile)
        return self._program

    def begin(self, state: TrainState, number: int) -> PlayedEpisodes:
        """Begin an evaluation of a state, with the random key of this number."""
        key = jax.random.fold_in(host_key(self._config.seed), number)
        return begin_evaluation(self._learner, state, key, self._program.result())

    def end(self, begun: PlayedEpisodes, state: TrainState) -> dict[str, float | None]:
        """Return the metrics of an evaluation. An unfinished episode causes only a warning."""
        try:
            return self._metrics(begun)
        except UnfinishedEpisodeError as error:
            self._say(f"Warning: evaluation skipped. {error}")
            return dict(no_evaluation(self._learner, state))

    def _metrics(self, begun: PlayedEpisodes) -> dict[str, float | None]:
        episodes = end_evaluation(self._learner, begun)
        metrics = evaluation_metrics(episodes, self._learner.env.info_ratios)
        return {name: value if value is None else finite(value) for name, value in metrics.items()}

    def is_best(self, metrics: Mapping[str, float | None], done: int) -> bool:
        """Return whether the state after `done` updates is the best one, and keep its score.

        Process 0 decides, since the last bits of a score can differ between processes.
        """
        score = metrics.get(f"eval/{self._config.best_by}")
        better = score is not None and (self.best_score is None or score > self.best_score)
        if best := as_first(better):
            self.best_score, self.best_updates = score, done
        return best

    def best_metrics(self, state: TrainState, done: int) -> dict[str, float | None]:
        """Return the score of a new best state over other episodes; None for any other state.

        The score that selects the best state is biased: it is the maximum of many.
        """
        name, score = self._config.best_by, None
        if name is None:
            return {}
        if done == self.best_updates:
            with contextlib.suppress(UnfinishedEpisodeError):
                score = self._metrics(self.begin(state, BEST_KEYS + done))[f"eval/{name}"]
        return {f"eval/best/{name}": score}

    def resume(
        self, best: "CheckpointManager | None", updates: int, state: TrainState, host: HostData
    ) -> None:
        """Restore the best score from a checkpoint of the run, or from a later one in best/.

        Args:
            best: checkpoints in best/; None: the run keeps no best state.
            updates: updates of the checkpoint.
            state: its state.
            host: its other content.
        """
        self.best_score, self.best_updates = host["best_score"], host["best_updates"]
        if best is None:
            return
        if (best.latest_step() or 0) > updates:  # the run continued after this checkpoint
            newer = newest_host(best, updates, self._say)
            if newer is not None:
                self.best_updates, self.best_score = newer[0], newer[1]["best_score"]
            elif best.latest_step() is None:  # it is damaged, and the older best state is deleted
                self.best_score = self.best_updates = None
        elif self.best_updates == updates:  # the run may have ended before this one was complete
            save(best, updates, copied(state), host)
