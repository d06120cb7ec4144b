"""A batch of a search: its trials, with every seed, trained side by side, all to the end or by successive halving."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.checks import require_integer
from wdjax.experiments.sweep.members import Group, Member, make_groups
from wdjax.experiments.sweep.optuna_study import Trial
from wdjax.experiments.sweep.population import population_setup
from wdjax.experiments.sweep.rounds import Programs
from wdjax.experiments.sweep.session import Host, members_bar, train_turns
from wdjax.experiments.sweep.table import last_known
from wdjax.train.host.loop import Row


@dataclasses.dataclass(frozen=True)
class Halving:
    """Successive halving: after each rung the best 1/reduction of a batch continue to `reduction` times the length."""

    reduction: int = 4
    """One of this many trials continues."""
    rungs: int = 2
    """Number of halving steps."""

    def __post_init__(self):
        require_integer("halving", self.reduction, 2)
        require_integer("rungs", self.rungs, 1)


@dataclasses.dataclass(eq=False)
class Batches:
    """What the batches of a search share: the programs that have been compiled."""

    host: Host
    programs: list[tuple[Any, Programs]] = dataclasses.field(default_factory=list)

    def programs_of(self, group: Group) -> Programs:
        """Returns the programs of a group, compiled by an earlier batch perhaps."""
        for static, programs in self.programs:
            if static == group.static:
                return programs
        setup = population_setup(group.members, self.host.trust)
        self.programs.append((group.static, Programs(setup, self.host.num_devices)))
        return self.programs[-1][1]


def rung_ends(num_updates: int, halving: Halving | None) -> list[int]:
    """Returns after how many updates each rung ends, the last of them with the run."""
    if halving is None:
        return [num_updates]
    shares = [halving.reduction**k for k in range(halving.rungs, -1, -1)]
    return [max(1, num_updates // share) for share in shares]


def train_batch(
    batches: Batches, folder: Path, members: Sequence[Member], halving: Halving | None, metric: str
) -> tuple[list[Trial] | None, list[Row]]:
    """Trains the members of a batch's trials (`Member.point`).

    Returns:
        (how the trials ended, or None where the sweep was told to stop before; the rows of all chunks).
    """
    trials = list(dict.fromkeys(member.point for member in members))
    reached: dict[int, list[tuple[int, float]]] = {trial: [] for trial in trials}
    alive, turns, scores = list(trials), [], {}
    num_rungs = 1 + (halving.rungs if halving else 0)
    with members_bar(batches.host, members, folder / "rungs") as advance:
        for rung in range(num_rungs):
            going = [member for member in members if member.point in alive]
            groups = ((group, batches.programs_of(group)) for group in make_groups(going))
            span = lambda num_updates, rung=rung: [0, *rung_ends(num_updates, halving)][rung : rung + 2]  # noqa: E731
            new = train_turns(batches.host, folder / "rungs" / f"{rung}", groups, advance, span, before=tuple(turns))
            turns += new
            rows = [row for turn in turns for row in turn.rows]
            if not turns[-1].finished:
                return None, rows
            scores |= trial_scores(going, rows, metric)
            for trial in alive:
                if scores[trial] is not None:
                    reached[trial].append((steps_of(going, trial, rung, halving), scores[trial]))
            if rung < num_rungs - 1:
                alive = survivors(alive, scores, halving.reduction)
    ended = [Trial(trial, scores[trial], trial not in alive, tuple(reached[trial])) for trial in trials]
    return ended, rows


def trial_scores(members: Sequence[Member], rows: Sequence[Row], metric: str) -> dict[int, float | None]:
    """Returns trial -> the mean over its seeds of the metric's last known value; None where a seed has none."""
    known = last_known(rows, metric)
    scores: dict[int, float | None] = {}
    for trial in dict.fromkeys(member.point for member in members):
        values = [known.get(member.number) for member in members if member.point == trial]
        scores[trial] = None if None in values else float(np.mean(values))
    return scores


def survivors(trials: Sequence[int], scores: dict[int, float | None], reduction: int) -> list[int]:
    """Returns the best 1 / reduction of trials, rounded up, in their order; of equals the earlier ones."""
    keep = -(-len(trials) // reduction)
    score = lambda trial: -np.inf if scores[trial] is None else scores[trial]  # noqa: E731
    best = sorted(trials, key=lambda trial: -score(trial))[:keep]
    return [trial for trial in trials if trial in best]


def steps_of(members: Sequence[Member], trial: int, rung: int, halving: Halving | None) -> int:
    """Returns the env steps of a trial at the end of a rung."""
    config = next(member.config for member in members if member.point == trial)
    return rung_ends(config.num_updates, halving)[rung] * config.env_steps_per_update
