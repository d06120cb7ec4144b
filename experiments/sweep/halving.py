"""Train a batch of trials with every seed, to the end or by successive halving."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wdjax.checks import require_integer
from wdjax.experiments.sweep.driver import Sweep, read_rows
from wdjax.experiments.sweep.members import Member, Row, make_populations
from wdjax.experiments.sweep.optuna_study import Trial
from wdjax.experiments.sweep.table import last_known
from wdjax.train import Population


@dataclasses.dataclass(frozen=True)
class Halving:
    """Successive halving: after each rung the best 1/reduction of a batch continue."""

    reduction: int = 4
    """One of this many trials continues, to `reduction` times the length."""
    rungs: int = 2
    """Number of halving steps."""

    def __post_init__(self):
        require_integer("halving", self.reduction, 2)
        require_integer("rungs", self.rungs, 1)


def rung_ends(num_updates: int, halving: Halving | None) -> list[int]:
    """Return the number of updates at the end of each rung; the last rung is the whole run."""
    if halving is None:
        return [num_updates]
    shares = [halving.reduction**k for k in range(halving.rungs, -1, -1)]
    return [max(1, num_updates // share) for share in shares]


def train_trials(
    running: Sweep,
    folder: Path,
    members: Sequence[Member],
    halving: Halving | None,
    metric: str,
    known: list[Population],
) -> tuple[list[Trial] | None, list[Row]]:
    """Train the members of a batch's trials (`Member.point`).

    Args:
        running: the sweep.
        folder: folder of the batch.
        members: members of all trials.
        halving: None: train all trials to the end.
        metric: score of a member.
        known: populations whose programs are used again; new ones are added.

    Returns:
        (trials with their results, or None if the sweep was stopped before; rows of all chunks).
    """
    trials = list(dict.fromkeys(member.point for member in members))
    reached: dict[int, list[tuple[int, float]]] = {trial: [] for trial in trials}
    alive, batches, scores, rows = trials, [], {}, []
    num_rungs = 1 + (halving.rungs if halving else 0)
    with running.progress(members, folder / "rungs") as bar:
        for rung in range(num_rungs):
            going = [member for member in members if member.point in alive]
            populations = make_populations(going, running.devices, running.trust, known)
            known += populations
            span = functools.partial(rung_span, halving=halving, rung=rung)
            place = folder / "rungs" / f"{rung}"
            trained = list(running.train_all(place, populations, bar, span, tuple(batches)))
            rows += read_rows(place)
            if not all(complete for _, complete in trained):
                return None, rows
            batches += [batch for batch, _ in trained]
            scores |= trial_scores(going, rows, metric)
            for trial in alive:
                if scores[trial] is not None:
                    reached[trial].append((steps_of(going, trial, rung, halving), scores[trial]))
            if rung < num_rungs - 1:
                alive = survivors(alive, scores, halving.reduction)
    results = [Trial(n, scores[n], n not in alive, tuple(reached[n])) for n in trials]
    return results, rows


def rung_span(num_updates: int, halving: Halving | None, rung: int) -> tuple[int, int]:
    """Return the updates of a run before and after a rung."""
    ends = [0, *rung_ends(num_updates, halving)]
    return ends[rung], ends[rung + 1]


def trial_scores(
    members: Sequence[Member], rows: Sequence[Row], metric: str
) -> dict[int, float | None]:
    """Return trial -> mean over its seeds of the metric's last value; None without a value."""
    known = last_known(rows, metric)
    scores: dict[int, float | None] = {}
    for trial in dict.fromkeys(member.point for member in members):
        values = [known.get(member.number) for member in members if member.point == trial]
        scores[trial] = None if None in values else float(np.mean(values))
    return scores


def survivors(trials: Sequence[int], scores: dict[int, float | None], reduction: int) -> list[int]:
    """Return the best 1 / reduction of trials, rounded up, in their order."""
    keep = -(-len(trials) // reduction)
    order = {trial: -np.inf if scores[trial] is None else scores[trial] for trial in trials}
    best = sorted(trials, key=lambda trial: -order[trial])[:keep]  # of equal ones the earlier
    return [trial for trial in trials if trial in best]


def steps_of(members: Sequence[Member], trial: int, rung: int, halving: Halving | None) -> int:
    """Return the env steps of a trial at the end of a rung."""
    config = next(member.config for member in members if member.point == trial)
    return rung_ends(config.num_updates, halving)[rung] * config.env_steps_per_update
