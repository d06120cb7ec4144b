"""Population-based training: between chunks, members that do badly copy members that do well, and change their values.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), with truncation selection.
"""

import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_integer, require_known
from wdjax.experiments.sweep.driver import Sweep, choose_metric, open_sweep, read_rows
from wdjax.experiments.sweep.members import (
    Member,
    Point,
    Range,
    Row,
    Values,
    as_config,
    make_members,
    member_content,
    parse_values,
    varying,
)
from wdjax.experiments.sweep.table import best_member, draw_history, write_table
from wdjax.train import Population, TrainConfig, TrainState, with_hypers
from wdjax.train.host.callbacks import Callback
from wdjax.train.host.plots import without_picture
from wdjax.train.state.hypers import OLD_BLOCK
from wdjax.train.storage.folder import plain_config

FACTORS = (0.8, 1.25)  # as far down as up
Bounds = dict[str, tuple[float, float]]  # "policies.agent.learning_rate" -> between what it stays


@dataclasses.dataclass(frozen=True)
class Selection:
    """Selection in population-based training: its frequency, and how copied hyperparameters change."""

    every: int = 1
    """Chunks between selections if every_updates is 0 (a twentieth of the run if chunks have no fixed size)."""
    fraction: float = 0.25
    """Fraction of members that are replaced by copies of the best members."""
    factors: tuple[float, float] = FACTORS
    """Each value of a copy is multiplied by one of these two factors."""
    every_updates: int = 0
    """Updates between selections. 0: use `every`."""

    def __post_init__(self):
        require_integer("every_updates", self.every_updates, 0)
        require_integer("every", self.every, 1)
        require(0 < self.fraction <= 0.5, "fraction", self.fraction, "above 0 and at most 0.5")
        positive = len(self.factors) == 2 and all(0 < factor < np.inf for factor in self.factors)
        require(positive, "factors", self.factors, "two numbers above 0")

    def in_updates(self, config: TrainConfig) -> int:
        """Returns the updates between two selections."""
        return self.every_updates or self.every * (config.updates_per_chunk or -(-config.num_updates // 20))


def evolve(
    config: TrainConfig | str | Path, values: Mapping[str, Any], members: int = 16, selection: Selection = Selection(),
    workdir: str | Path | None = None, metric: str | None = None, devices: int = 0, resume: bool = False,
    quiet: bool = True, stop: threading.Event | None = None, trust: Collection[str] = (),
    callbacks: Sequence[Callback | str] = (),
) -> list[Row]:  # fmt: skip
    """Train a population with population-based training: hyperparameters change during training.

        history = evolve("cartpole_ppo", {"policies.agent.learning_rate": "log:1e-4:1e-2"}, members=16)

    Args:
        config: a configuration, the name of a preset, or a YAML file. Member i uses its seed + i.
        values: dotted field -> a range ("log:1e-4:1e-2", "uniform:0.9:0.999") or several numbers. Members sample their
            first value from it and stay within its bounds. Only for traced hyperparameters of policies. A single
            value of any field changes that field for all members.
        members: population size; all members train at once, in one program.
        selection: frequency of selection, and how copied hyperparameters change.
        workdir, metric, devices, resume, quiet, stop, trust, callbacks: as for `sweep`.

    Returns:
        One row per chunk and member: the values used in training, the score, the member copied afterwards (`parent`),
        and all metrics.

    Raises:
        ValueError: as `sweep`, and for fields that cannot change during a run.
        TypeError: as `sweep`.
        FileExistsError: as `sweep`.
    """
    base = as_config(config)
    require_integer("members", members, 2)
    settings = {name: parse_values(name, several) for name, several in values.items()}
    bounds = bounds_of(settings)
    drawn = draw_members(base, settings, members)
    every = selection.in_updates(drawn[0].config)
    one = Population([drawn[0].config], trust=trust)
    known = [f"policies.{own}" for own in jax.eval_shape(one.hypers, one.shapes)]
    for name in bounds:
        require_known("hyperparameter that a run can change", OLD_BLOCK.sub(".", name), known)
    population = make_population(drawn, every, devices, trust)
    metric = choose_metric(metric, population)
    asked = {
        "mode": "pbt", "config": plain_config(base), "metric": metric, "members": members,
        "values": {name: own if isinstance(own, list) else str(own) for name, own in settings.items()},
        "selection": {**dataclasses.asdict(selection), "factors": list(selection.factors)},
    }  # fmt: skip
    opened = open_sweep(workdir, asked, population.configs, resume, devices, 0, quiet, stop, trust, callbacks)
    with opened as running:
        running.announce(drawn, population, 1)
        folder = running.workdir / "population"
        batches = running.split(folder, population)
        allowed = f"at most {batches[0][1].size}, the members that fit in memory"
        require(len(batches) == 1, "members", members, allowed)
        after = make_after(population, selection, every, bounds, metric)
        with running.progress(drawn, folder) as bar:
            complete = running.train(batches[0], bar, after=after, every=every)
        rows = read_rows(folder)
        front = ("member", "updates", "env_steps", *bounds, "score", "parent")
        table = [{name: row[name] for name in front} | row for row in rows]
        write_table(running.workdir, table)
        running.say(f"Wrote {running.workdir}/table.csv, table.jsonl")
        if complete:
            conclude(running, population.config.env, table, rows, list(bounds))
    return table


def make_population(
    members: Sequence[Member], every: int, devices: int, trust: Collection[str]
) -> Population:
    """Return the population; a score is of the last chunk, which ends at a selection."""
    configs = [
        dataclasses.replace(own.config, updates_per_chunk=own.config.updates_per_chunk or every)
        for own in members
    ]
    return Population(configs, devices, trust, member_content(members))


def bounds_of(settings: Mapping[str, Values]) -> Bounds:
    """Returns the ends of what each field may become; fields of one value are not among them."""
    bounds = {}
    for name in varying(settings):
        values = settings[name]
        numbers = [values.low, values.high] if isinstance(values, Range) else values
        plain = all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers)
        real = plain and not (isinstance(values, Range) and values.kind == "int")
        require(real, name, values if isinstance(values, list) else str(values), "numbers, or log:LOW:HIGH, with --pbt")
        bounds[name] = (float(min(numbers)), float(max(numbers)))
    return bounds


def draw_members(base: TrainConfig, settings: Mapping[str, Values], number: int) -> list[Member]:
    """Returns the members at the start, their values drawn from the configuration's seed."""
    columns = {}
    for place, (name, values) in enumerate(settings.items()):
        random = np.random.default_rng([base.seed, place])
        if isinstance(values, list):
            columns[name] = [values[i] for i in random.integers(len(values), size=number)]
        elif values.kind == "log":
            columns[name] = np.exp(random.uniform(np.log(values.low), np.log(values.high), number)).tolist()
        else:
            columns[name] = random.uniform(values.low, values.high, number).tolist()
    points: list[Point] = [{name: column[i] for name, column in columns.items()} for i in range(number)]
    members = make_members(base, points, [base.seed])
    return [
        dataclasses.replace(member, config=dataclasses.replace(member.config, seed=base.seed + member.number))
        for member in members
    ]


def hyper_name(field: str) -> str:
    """Return the name of a field for `with_hypers`: "agent.clip" for "policies.agent.clip"."""
    return OLD_BLOCK.sub(".", field.removeprefix("policies."))


def choose_parents(key: jax.Array, scores: jax.Array, fraction: float) -> jax.Array:
    """Return the member that each member copies, mostly itself.

    Each of the worst members draws one of the best and copies it if that has a higher score.

    Args:
        key: random key.
        scores: [N] float32, higher is better; minus infinity: unknown.
        fraction: of N, rounded down, at least one member.

    Returns:
        [N] int32.
    """
    size = scores.shape[0]
    group = max(1, int(fraction * size))
    order = jnp.argsort(scores)
    rank = jnp.argsort(order)
    drawn = order[size - group :][jax.random.randint(key, (size,), 0, group)]
    copies = (rank < group) & (scores[drawn] > scores)
    return jnp.where(copies, drawn, jnp.arange(size))


def explore(
    key: jax.Array,
    hypers: Mapping[str, jax.Array],
    copied: jax.Array,
    bounds: Bounds,
    factors: tuple[float, float],
) -> dict[str, jax.Array]:
    """Return new hyperparameters: of copies, each value times one of two factors, in its bounds.

    Args:
        key: random key; the factors are drawn with probability 1/2.
        hypers: name -> [N] values.
        copied: [N] bool, whether a member is a copy.
        bounds: name -> smallest and largest value.
        factors: the two factors.
    """
    changed = {}
    for own_key, (name, (low, high)) in zip(jax.random.split(key, len(bounds)), bounds.items(), strict=True):
        old = hypers[hyper_name(name)]
        up = jax.random.bernoulli(own_key, shape=old.shape)
        new = jnp.clip(old * jnp.where(up, factors[1], factors[0]), low, high)
        changed[hyper_name(name)] = jnp.where(copied, new, old)
    return changed


def evolve_step(
    key: jax.Array, population: Population, states: TrainState, scores: Sequence[float | None],
    bounds: Bounds, selection: Selection,
) -> tuple[TrainState, list[int]]:  # fmt: skip
    """Copy members and change hyperparameters of the copies. Return (states, parents [N])."""
    exploit_key, explore_key = jax.random.split(key)
    known = jnp.array([-jnp.inf if score is None else score for score in scores], jnp.float32)
    parents = choose_parents(exploit_key, known, selection.fraction)
    states, copied = population.select(states, parents), parents != jnp.arange(len(known))
    hypers = jax.device_put(population.hypers(states), jax.local_devices()[0])
    changed = explore(explore_key, hypers, copied, bounds, selection.factors)
    return with_hypers(states, **changed), parents.tolist()


def current_scores(rows: Sequence[Row], before: Sequence[Row], metric: str) -> list[float | None]:
    """Return the score of each member: its metric.

    In a chunk in which no episode ended, it is the score before, or that of the copied member.
    With bad numbers it is None, so that the member copies another.
    """
    old = [before[own["member"] if own["parent"] is None else own["parent"]]["score"] for own in before]
    scores = [old[i] if row[metric] is None and old else row[metric] for i, row in enumerate(rows)]
    return [None if row.get("bad_numbers") else score for row, score in zip(rows, scores, strict=True)]


def make_after(
    population: Population, selection: Selection, every: int, bounds: Bounds, metric: str
) -> Callable[[TrainState, list[Row], list[Row]], tuple[TrainState, list[Row]]]:
    """Return the function that extends the rows of each chunk and, if due, selects members."""
    config = population.config
    # folded twice: evaluations of the host fold numbers of updates into the key folded once
    run_key = jax.random.key(config.seed)
    for _ in range(2):
        run_key = jax.random.fold_in(run_key, 2**31)

    def after(states: TrainState, rows: list[Row], before: list[Row]) -> tuple[TrainState, list[Row]]:
        hypers = population.hypers(states)
        used = {name: np.asarray(hypers[hyper_name(name)]).tolist() for name in bounds}
        scores, done = current_scores(rows, before, metric), rows[0]["updates"]
        parents: list[int | None] = [None] * len(rows)
        if done < config.num_updates and done % every == 0:
            key = jax.random.fold_in(run_key, done)
            states, chosen = evolve_step(key, population, states, scores, bounds, selection)
            parents = [None if parent == i else parent for i, parent in enumerate(chosen)]
        return states, [
            row | {"score": scores[i], **{name: column[i] for name, column in used.items()}, "parent": parents[i]}
            for i, row in enumerate(rows)
        ]

    return after


def conclude(
    running: Sweep, env: str, table: Sequence[Row], rows: Sequence[Row], names: Sequence[str]
) -> None:
    """Draw the history, and write the best member as a run."""
    with without_picture("curves.png", running.say):
        title = f"{env}: {running.workdir.name}"
        running.say(f"Wrote {draw_history(running.workdir / 'curves.png', table, names, title)}")
    last = [row for row in table if row["updates"] == table[-1]["updates"]]
    best = best_member(last)
    if best is not None:
        own = {name: best[name] for name in names}
        words = ", ".join(f"{name.split('.')[-1]} {value:.4g}" for name, value in own.items())
        words = f"the best run, member {best['member']} (final {words}), score {best['score']:.2f}"
        running.export(best["member"], rows, best["score"], words, own)
