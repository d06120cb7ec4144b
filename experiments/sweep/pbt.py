"""Population-based training: between chunks, bad members copy good ones and change their values.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), with truncation
selection.
"""

import dataclasses
import functools
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.all_policies import for_each_policy
from wdjax.checks import require, require_integer, require_known
from wdjax.drawing.figures import without_picture
from wdjax.experiments.sweep.driver import Sweep, choose_metric, drive, read_rows
from wdjax.experiments.sweep.members import (
    Member,
    Range,
    Row,
    Values,
    as_config,
    make_members,
    member_content,
    parse_values,
    plain_values,
    varying,
)
from wdjax.experiments.sweep.table import best_member, draw_history
from wdjax.train import Callback, Population, TrainConfig, TrainState, plain_config, with_hypers
from wdjax.train.state.hypers import OLD_BLOCK

FACTORS = (0.8, 1.25)  # 0.8 * 1.25 = 1
Bounds = dict[str, tuple[float, float]]  # "policies.agent.learning_rate" -> smallest, largest value


@dataclasses.dataclass(frozen=True)
class Selection:
    """Frequency of selection in population-based training, and how copied values change."""

    every: int = 1
    """Chunks between selections if every_updates is 0 (a twentieth of the run if chunks have no
    fixed size)."""
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
        """Return the number of updates between two selections."""
        chunk = config.updates_per_chunk or -(-config.num_updates // 20)
        return self.every_updates or self.every * chunk


def evolve(  # noqa: D417  (as for `sweep`)
    config: TrainConfig | str | Path, values: Mapping[str, Any], members: int = 16,
    selection: Selection = Selection(), workdir: str | Path | None = None,
    metric: str | None = None, devices: int = 0, resume: bool = False, quiet: bool = True,
    stop: threading.Event | None = None, trust: Collection[str] = (),
    callbacks: Sequence[Callback | str] = (),
) -> list[Row]:  # fmt: skip
    """Train a population with population-based training: values change during training.

        history = evolve("cartpole_ppo", {"policies.agent.learning_rate": "log:1e-4:1e-2"})

    Args:
        config: a configuration, the name of a preset, or a YAML file. Member i uses its seed + i.
        values: dotted field -> a range ("log:1e-4:1e-2", "uniform:0.9:0.999") or several numbers.
            Members sample their first value from it and stay within its bounds. Only for traced
            hyperparameters of policies. A single value of any field changes that field for all
            members.
        members: population size; all members train at once, in one program.
        selection: frequency of selection, and how copied hyperparameters change.
        workdir, metric, devices, resume, quiet, stop, trust, callbacks: as for `sweep`.

    Returns:
        One row per chunk and member: the values used in training, the score, the member copied
        afterwards (`parent`), and all metrics.

    Raises:
        ValueError: as `sweep`, and for fields that cannot change during a run.
        TypeError: as `sweep`.
        FileExistsError: as `sweep`.
    """
    base = as_config(config)
    require_integer("members", members, 2)
    settings = {}
    for name, several in values.items():
        fields = list(for_each_policy({name: several}, base.policies))
        words = f"of one policy: {' or '.join(fields)}"
        require(len(fields) == 1, "field", name, words)
        settings[fields[0]] = parse_values(name, several)
    bounds = bounds_of(settings)
    drawn = draw_members(base, settings, members)
    require_traced(drawn[0].config, bounds, trust)
    every = selection.in_updates(drawn[0].config)
    chunk = drawn[0].config.updates_per_chunk or every  # a score is of the last chunk
    configs = [dataclasses.replace(own.config, updates_per_chunk=chunk) for own in drawn]
    population = Population(configs, devices, trust, member_content(drawn))
    metric = choose_metric(metric, population)
    asked = {
        "mode": "pbt",
        "config": plain_config(base),
        "metric": metric,
        "members": members,
        "values": plain_values(settings),
        "selection": {**dataclasses.asdict(selection), "factors": list(selection.factors)},
    }
    evolution = Evolution(population, selection, every, bounds, metric)
    kind = functools.partial(train_population, members=drawn, evolution=evolution)
    return drive(
        kind, asked, drawn, workdir, resume, devices, 0, quiet, stop, trust, callbacks
    )  # fmt: skip


def train_population(
    running: Sweep, members: Sequence[Member], evolution: "Evolution"
) -> Iterator[list[Row]]:
    """Train a population with selection, for `drive`; draw its history and write the best run."""
    population, names = evolution.population, list(evolution.bounds)
    running.announce(members, population, 1)
    size, folder = population.fit(), running.workdir / "population"
    allowed = f"at most {size}, the members that fit in memory"
    require(size >= len(members), "members", len(members), allowed)
    front = ("member", "updates", "env_steps", *names, "score", "parent")
    selecting: dict[str, Any] = {"after": evolution, "every": evolution.every}
    with running.progress(members, folder) as bar:
        for _ in running.train([(folder, population)], bar, **selecting):
            rows = read_rows(folder)
            table = [{name: row[name] for name in front} | row for row in rows]
            yield table
    with without_picture("curves.png", running.say):
        title = f"{population.config.env}: {running.workdir.name}"
        running.say(f"Wrote {draw_history(running.workdir / 'curves.png', table, names, title)}")
    best = best_member([row for row in table if row["updates"] == table[-1]["updates"]])
    if best is not None:
        last = {name: best[name] for name in names}
        running.export(members[best["member"]], rows, best["score"], names, last)


def bounds_of(settings: Mapping[str, Values]) -> Bounds:
    """Return the smallest and largest value of each field with several values or a range."""
    bounds = {}
    for name in varying(settings):
        values = settings[name]
        numbers = [values.low, values.high] if isinstance(values, Range) else values
        whole = isinstance(values, Range) and values.kind == "int"
        real = not whole and all(type(number) in (int, float) for number in numbers)
        require(real, name, plain_values(settings)[name], "numbers, or log:LOW:HIGH, with --pbt")
        bounds[name] = (float(min(numbers)), float(max(numbers)))
    return bounds


def require_traced(config: TrainConfig, names: Collection[str], trust: Collection[str]) -> None:
    """Raise ValueError for a field that is not a traced hyperparameter of a policy."""
    one = Population([config], trust=trust)
    traced = [f"policies.{name}" for name in jax.eval_shape(one.hypers, one.shapes)]
    for name in names:
        known = f"policies.{hyper_name(name)}" if name.startswith("policies.") else name
        require_known("hyperparameter that a run can change", known, traced)


def draw_members(base: TrainConfig, settings: Mapping[str, Values], number: int) -> list[Member]:
    """Return members whose first values are drawn from the seed of the configuration."""
    columns = {}
    for place, (name, values) in enumerate(settings.items()):
        random = np.random.default_rng([base.seed, place])
        if isinstance(values, list):
            columns[name] = [values[i] for i in random.integers(len(values), size=number)]
        elif values.kind == "log":
            exponents = random.uniform(np.log(values.low), np.log(values.high), number)
            columns[name] = np.exp(exponents).tolist()
        else:
            columns[name] = random.uniform(values.low, values.high, number).tolist()
    points = [{name: column[i] for name, column in columns.items()} for i in range(number)]
    return [
        own
        for i, point in enumerate(points)
        for own in make_members(base, [point], [base.seed + i], None, i)
    ]


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
    """Return new hyperparameters: each value of a copy times one of two factors, within bounds.

    Args:
        key: random key; both factors have probability 1/2.
        hypers: name -> [N] values.
        copied: [N] bool, whether a member is a copy.
        bounds: name -> smallest and largest value.
        factors: the two factors.
    """
    changed = {}
    keys = jax.random.split(key, len(bounds))
    for own_key, (field, (low, high)) in zip(keys, bounds.items(), strict=True):
        old = hypers[hyper_name(field)]
        up = jax.random.bernoulli(own_key, shape=old.shape)
        new = jnp.clip(old * jnp.where(up, factors[1], factors[0]), low, high)
        changed[hyper_name(field)] = jnp.where(copied, new, old)
    return changed


def hyper_name(field: str) -> str:
    """Return the name of a field for `with_hypers`: "agent.clip" for "policies.agent.clip"."""
    return OLD_BLOCK.sub(".", field.removeprefix("policies."))


def current_scores(rows: Sequence[Row], before: Sequence[Row], metric: str) -> list[float | None]:
    """Return the score of each member: its metric.

    If no episode ended in the chunk, it is the last score of the member, or of the copied member.
    With bad numbers it is None, so that the member copies another.
    """
    parents = [own["member"] if own["parent"] is None else own["parent"] for own in before]
    old = [before[parent]["score"] for parent in parents] or [None] * len(rows)
    scores = [old[i] if row[metric] is None else row[metric] for i, row in enumerate(rows)]
    return [None if row.get("bad_numbers") else scores[i] for i, row in enumerate(rows)]


@dataclasses.dataclass(frozen=True, eq=False)
class Evolution:
    """Selection between chunks, for `Population.train`."""

    population: Population
    selection: Selection
    every: int  # updates between selections
    bounds: Bounds
    metric: str

    def __call__(
        self, states: TrainState, rows: list[Row], before: list[Row]
    ) -> tuple[TrainState, list[Row]]:
        """Return the states to continue with, and rows with values, scores and parents."""
        hypers, done = self.population.hypers(states), rows[0]["updates"]
        values = {name: np.asarray(hypers[hyper_name(name)]).tolist() for name in self.bounds}
        scores, parents = current_scores(rows, before, self.metric), list(range(len(rows)))
        if done < self.population.config.num_updates and done % self.every == 0:
            states, parents = self.select(states, scores, done)
        columns = {"score": scores, **values}
        columns["parent"] = [None if parent == i else parent for i, parent in enumerate(parents)]
        own = [{name: column[i] for name, column in columns.items()} for i in range(len(rows))]
        return states, [row | new for row, new in zip(rows, own, strict=True)]

    def select(
        self, states: TrainState, scores: Sequence[float | None], done: int
    ) -> tuple[TrainState, list[int]]:
        """Copy members and change the values of copies. Return (states, parents [N])."""
        # folded twice: evaluations fold the number of updates into the key folded once
        key = jax.random.key(self.population.config.seed)
        for number in (2**31, 2**31, done):
            key = jax.random.fold_in(key, number)
        parent_key, value_key = jax.random.split(key)
        known = jnp.array([-jnp.inf if score is None else score for score in scores], jnp.float32)
        parents = choose_parents(parent_key, known, self.selection.fraction)
        states, copied = self.population.select(states, parents), parents != jnp.arange(len(known))
        hypers = jax.device_put(self.population.hypers(states), jax.local_devices()[0])
        changed = explore(value_key, hypers, copied, self.bounds, self.selection.factors)
        return with_hypers(states, **changed), parents.tolist()
