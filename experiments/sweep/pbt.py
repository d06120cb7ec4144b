"""Population-based training: between chunks, members that do badly copy members that do well, and change their values.

Source: Jaderberg et al., "Population Based Training of Neural Networks" (2017), with truncation selection.
"""

import dataclasses
import functools
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_integer, require_known
from wdjax.experiments.sweep.members import Member, Point, Range, Values, as_config, make_members, parse_values, varying
from wdjax.experiments.sweep.population import choose_num_devices, member_sharding, most_devices, population_setup
from wdjax.experiments.sweep.rounds import Between, Programs, export_member, train_turn
from wdjax.experiments.sweep.session import Host, announce_members, choose_metric, members_bar, open_host, prepare_turns
from wdjax.experiments.sweep.table import best_member, draw_history, write_table
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.callbacks import Callback
from wdjax.train.host.loop import Row
from wdjax.train.host.plots import without_picture
from wdjax.train.learner.init import host_key
from wdjax.train.state.hypers import OLD_BLOCK, Hypers, ScheduleArrays, hypers_of
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState, with_hypers
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
    population = draw_members(base, settings, members)
    require_traced(population[0].config, bounds)
    config = population[0].config
    every = selection.in_updates(config)
    chunked = dataclasses.replace(config, updates_per_chunk=config.updates_per_chunk or every)  # scores: of the last
    setup = population_setup([dataclasses.replace(population[0], config=chunked)], trust)
    metric = choose_metric(metric, config, setup)
    asked = {
        "mode": "pbt", "config": plain_config(base), "metric": metric, "members": members,
        "values": {name: own if isinstance(own, list) else str(own) for name, own in settings.items()},
        "selection": {**dataclasses.asdict(selection), "factors": list(selection.factors)},
    }  # fmt: skip
    num_devices = choose_num_devices(devices or most_devices(members))
    require(members % num_devices == 0, "members", members, f"divisible by {num_devices} (devices)")
    with open_host(workdir, asked, resume, num_devices, 0, quiet, stop, trust, population, callbacks) as host:
        announce_members(host, population, 1)
        between = make_between(setup, selection, every, bounds, metric, num_devices)
        return train_population(host, setup, population, between, every, list(bounds))


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


def require_traced(config: TrainConfig, names: Sequence[str]) -> None:
    """Raises ValueError for a field that is no traced hyperparameter of a policy: it is fixed while a run goes on."""
    traced = [
        f"policies.{policy}.{name}"
        for policy, own in config.policies.items()
        for name in jax.eval_shape(functools.partial(hypers_of, own))
    ]
    for name in names:
        require_known("hyperparameter that a run can change", name, traced)


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


def exploit(
    key: jax.Array, states: TrainState, scores: jax.Array, fraction: float
) -> tuple[TrainState, jax.Array]:
    """Lets the worst members copy the best: each draws one of these and, where that has a higher score, takes over its
    whole state but the key.

    Args:
        states: leaves [N, ...].
        scores: [N] float32, higher is better; minus infinity: not known.
        fraction: of N, rounded down, at least one member.

    Returns:
        (states, parents [N] int32: whose state each member has now, mostly its own number).
    """
    size = scores.shape[0]
    group = max(1, int(fraction * size))
    order = jnp.argsort(scores)
    rank = jnp.argsort(order)
    drawn = order[size - group :][jax.random.randint(key, (size,), 0, group)]
    copies = (rank < group) & (scores[drawn] > scores)
    parents = jnp.where(copies, drawn, jnp.arange(size))
    taken = jax.tree.map(lambda leaf: leaf[parents], states)
    return taken.replace(key=states.key), parents


def explore(
    key: jax.Array, states: TrainState, copied: jax.Array, bounds: Bounds, factors: tuple[float, float]
) -> TrainState:
    """Multiplies every named hyperparameter of members that have copied, [N] bool, with one of two factors, each with
    probability 1/2, and clips it to its bounds."""
    changes = {}
    for own_key, (name, (low, high)) in zip(jax.random.split(key, len(bounds)), bounds.items(), strict=True):
        old = read_hyper(states.hypers, name)
        up = jax.random.bernoulli(own_key, shape=old.shape)
        new = jnp.clip(old * jnp.where(up, factors[1], factors[0]), low, high)
        changes[name.removeprefix("policies.")] = jnp.where(copied, new, old)
    return with_hypers(states, **changes)


def read_hyper(hypers: Mapping[str, Hypers], name: str) -> jax.Array:
    """Returns the values of "policies.agent.learning_rate" in a population, [N]; of a schedule its first ones."""
    policy, field = name.removeprefix("policies.").split(".", 1)
    value = hypers[policy][OLD_BLOCK.sub(".", f".{field}").removeprefix(".")]
    return value.values[:, 0] if isinstance(value, ScheduleArrays) else value


def evolve_step(
    key: jax.Array, states: TrainState, scores: jax.Array, bounds: Bounds, selection: Selection
) -> tuple[TrainState, jax.Array]:
    """One selection: `exploit`, then `explore` for those that copied. Returns (states, parents [N])."""
    exploit_key, explore_key = jax.random.split(key)
    states, parents = exploit(exploit_key, states, scores, selection.fraction)
    copied = parents != jnp.arange(scores.shape[0])
    return explore(explore_key, states, copied, bounds, selection.factors), parents


def current_scores(rows: Sequence[Row], before: Sequence[Row], metric: str) -> list[float | None]:
    """Returns the score of each member: its metric; in a chunk in which no episode ended, the score it had before, or,
    where it has copied since, that of its parent; None with bad numbers, so that it copies another."""
    old = [before[own["member"] if own["parent"] is None else own["parent"]]["score"] for own in before]
    scores = [old[i] if row[metric] is None and old else row[metric] for i, row in enumerate(rows)]
    return [None if row.get("bad_numbers") else score for row, score in zip(rows, scores, strict=True)]


def make_between(
    setup: Setup, selection: Selection, every: int, bounds: Bounds, metric: str, num_devices: int
) -> Between:  # fmt: skip
    """Returns what happens after each chunk of a population: it is noted down, and, where due, a selection is made."""
    config, place = setup.config, member_sharding(num_devices)
    step = jax.jit(
        functools.partial(evolve_step, bounds=bounds, selection=selection),
        donate_argnums=1, out_shardings=(place, None),
    )  # fmt: skip
    # far from the keys of the host's evaluations, which fold a number of updates into the same
    own_key = jax.random.fold_in(host_key(config.seed), 2**31)

    def between(states: TrainState, rows: list[Row], before: list[Row]) -> tuple[TrainState, list[Row]]:
        used = {name: np.asarray(read_hyper(states.hypers, name)).tolist() for name in bounds}
        scores, done = current_scores(rows, before, metric), rows[0]["updates"]
        parents: list[int | None] = [None] * len(rows)
        if done < config.num_updates and done % every == 0:
            known = jnp.array([-jnp.inf if score is None else score for score in scores], jnp.float32)
            states, chosen = step(jax.random.fold_in(own_key, done), states, known)
            parents = [None if parent == i else parent for i, parent in enumerate(np.asarray(chosen).tolist())]
        return states, [
            row | {"score": scores[i], **{name: column[i] for name, column in used.items()}, "parent": parents[i]}
            for i, row in enumerate(rows)
        ]

    return between


def train_population(
    host: Host, setup: Setup, population: Sequence[Member], between: Between, every: int, names: Sequence[str]
) -> list[Row]:
    """Trains all members to the end, or until told to stop, and writes what they did. Returns the table."""
    programs, folder = Programs(setup, host.num_devices), host.workdir / "population"
    turns = prepare_turns(host, programs, folder, population, 0, setup.config.num_updates)
    size = turns[0].size
    require(len(turns) == 1, "members", len(population), f"at most {size}, the members that fit in memory")
    with members_bar(host, population, folder) as advance:
        train_turn(programs, turns[0], host.stop, advance, host.say, between=between, every=every)
    rows = turns[0].rows
    front = ("member", "updates", "env_steps", *names, "score", "parent")
    table = [{name: row[name] for name in front} | row for row in rows]
    write_table(host.workdir, table)
    host.say(f"Wrote {host.workdir}/table.csv, table.jsonl")
    if not turns[0].finished:
        return table
    title = f"{setup.config.env}: {host.workdir.name}"
    with without_picture("curves.png", host.say):
        host.say(f"Wrote {draw_history(host.workdir / 'curves.png', table, names, title)}")
    best = best_member(table[-len(population) :])
    if best is not None:
        own = {name: best[name] for name in names}
        folder = export_member(host.workdir, best["member"], rows, best["score"], own, host.trust)
        words = ", ".join(f"{name.split('.')[-1]} {value:.4g}" for name, value in own.items())
        host.say(f"Wrote {folder}: the best run, member {best['member']} (final {words}), score {best['score']:.2f}")
    return table
