"""The learner: rollout and update of all policies as one compiled program, and training as a scan over it."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from wdjax.checks import require_integer
from wdjax.env import Env
from wdjax.metric_names import OPPONENT, SPREAD, USER, free_name
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.collectives import num_shards
from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.learner.bad_numbers import commit, first_bad, look_at_rows, look_at_steps
from wdjax.train.learner.init import abstract_state, init
from wdjax.train.learner.setup import make_setup
from wdjax.train.learner.warm_start import begin_elsewhere, load_policies
from wdjax.train.rollout.opponents import finish
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.agents import group_sizes
from wdjax.train.state.hypers import Hypers, logged_schedules
from wdjax.train.state.metric import beside, values_of
from wdjax.train.state.policy import Setup
from wdjax.train.state.rollout_metrics import episode_metrics
from wdjax.train.state.rows import Rollout
from wdjax.train.state.sharding import ROLLOUT, spread, state_shardings
from wdjax.train.state.state import PolicyState, TrainState, current_hypers
from wdjax.train.state.types import Metrics


class Run(Protocol):
    """The type of `Learner.run`."""

    def __call__(
        self, state: TrainState, num_updates: int
    ) -> tuple[TrainState, dict[str, jax.Array]]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Training as pure, jitted functions of a TrainState. They do not donate their arguments."""

    setup: Setup
    """static inputs of the functions: configuration, environment, its params and policies"""
    init: Callable[[jax.Array], TrainState]
    """init(key) -> TrainState"""
    update: Callable[[TrainState], tuple[TrainState, dict[str, jax.Array]]]
    """update(state) -> (state, metrics): one rollout and the learning from it"""
    run: Run
    """run(state, num_updates=n) -> (state, metrics with leading axis [n]): a scan over `update`; n is static"""
    rollout: Callable[[TrainState], tuple[TrainState, Rollout]]
    """rollout(state) -> (state, rollout): the transitions that `update` would learn from, [T, N, ...]; no learning"""
    loaded: Callable[[], Mapping[str, PolicyState]] = dict
    """loaded() -> initial states of policies with a checkpoint, by name, as NumPy arrays; read on the first call"""

    @property
    def shapes(self) -> TrainState:
        """shapes, dtypes and shardings of the states"""
        return abstract_state(self.setup)

    @property
    def config(self) -> TrainConfig:
        return self.setup.config

    @property
    def env(self) -> Env:
        return self.setup.env

    @property
    def env_params(self) -> Any:
        return self.setup.env_params


def make_learner(config: TrainConfig, trust: Collection[str] = ()) -> Learner:
    """Build the learner of a configuration.

    Args:
        config: configuration of the run. Code that it names is trusted and executed.
        trust: additional modules from which saved runs may import code, if policies start from them (see `load_run`).

    Returns:
        A Learner. Its functions compile on the first call and support vmap: a population is a TrainState whose leaves
        have a leading axis.

    Raises:
        ValueError, TypeError: if the configuration is invalid; checked before anything is traced.
        OSError: if jax cannot use an installed device.
    """
    return learner_of(make_setup(config, trust))


def learner_of(setup: Setup) -> Learner:
    """Returns the learner of what `make_setup` has made."""
    start = jax.jit(
        functools.partial(init, setup), out_shardings=state_shardings(setup.num_devices)
    )
    loaded = functools.cache(functools.partial(load_policies, setup))
    updates = jax.jit(functools.partial(run, setup), static_argnames="num_updates")

    def run_so_many(state: TrainState, num_updates: int) -> tuple[TrainState, dict[str, jax.Array]]:
        require_integer(
            "num_updates", num_updates, 0
        )  # here: to jit 2.0 and True are the 2 and 1 that it has compiled
        return updates(state, num_updates=int(num_updates))

    run_so_many.lower = updates.lower  # as what jit returns has it
    run_so_many.__qualname__ = "Learner.run"  # what Python says of a missing argument names it
    return Learner(
        setup=setup,
        init=(lambda key: start(key, loaded())) if begin_elsewhere(setup) else start,
        update=jax.jit(functools.partial(update, setup)),
        run=run_so_many,
        rollout=jax.jit(functools.partial(play, setup)),
        loaded=loaded,
    )


def play(setup: Setup, state: TrainState) -> tuple[TrainState, Rollout]:
    """Play the rollout of an update without learning from it. The state has the update's next key."""

    def play_share(setup: Setup, state: TrainState) -> tuple[TrainState, Rollout]:
        rollout_key, _, next_key = jax.random.split(state.key, 3)
        state, played = rollout(setup, state, rollout_key)
        return state.replace(key=next_key), played

    return spread(setup, play_share, state, results=ROLLOUT)


def update(setup: Setup, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """One rollout of all replicas, then the updates of every policy that learns from its own rows."""
    state, metrics = spread(setup, update_share, state)
    return state, values_of(metrics)


def update_share(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
    """`update` on one device, with the replicas that it holds; metrics are arrays, or `Metric`s."""
    rollout_key, update_key, next_key = jax.random.split(state.key, 3)
    before, hypers = state, current_hypers(setup.config, state)
    state, played = rollout(setup, state, rollout_key)
    metrics = episode_metrics(played, setup.env.info_ratios, tuple(group_sizes(setup.env)))
    state, own, code = learn(setup, state, hypers, played, update_key)
    state, of_opponents = finish(setup, state, played)
    after = state.replace(key=next_key, num_updates=state.num_updates + 1)
    return commit(setup, before, after, code), {
        **metrics,
        **of_opponents,
        **own,
        "bad_numbers": code,
    }


def learn(
    setup: Setup, state: TrainState, hypers: Mapping[str, Hypers], played: Rollout, key: jax.Array
) -> tuple[TrainState, Metrics, jax.Array]:
    """Update every team from the transitions of a rollout, `state` being the state after it.

    Returns:
        (state, metrics, code): code, () int32, tells what is not finite (train/learner/bad_numbers.py).
    """
    num_blocks = setup.config.blocks // num_shards()
    policies, shared, memory, metrics = (
        dict(state.policies),
        dict(state.shared),
        dict(state.memory),
        {},
    )
    policy_keys = dict(zip(setup.policies, jax.random.split(key, len(setup.policies)), strict=True))
    bad_rows, bad_steps = {}, {}
    for team in setup.teams.values():
        of_team = ({name: of[name] for name in team.policies} for of in (policies, memory, hypers))
        own_policies, own_memory, own_hypers = of_team
        learned, common, memories, own = team.algorithm.update_team(
            team, own_policies, shared.get(team.name), own_memory, own_hypers, played, policy_keys[team.first.name],
            num_blocks,
        )  # fmt: skip
        memory |= memories
        shared |= {} if common is None else {team.name: common}
        for name, policy in team.policies.items():
            bad_rows[name] = look_at_rows(policy, played)
            bad_steps[name] = look_at_steps(
                policy, policies[name], learned[name], own[name], common
            )
            policies[name] = learned[name]
            reported = {field: hypers[name][field] for field in logged_schedules(policy.config)}
            metrics |= beside(
                join_metrics(reported, own[name], policy.config.past_selves > 0), name
            )
        if team.name not in team.policies:
            metrics |= beside(own.get(team.name, {}), team.name)
    after = state.replace(policies=policies, shared=shared, memory=memory)
    in_order = [name for name in setup.policies if name in bad_rows]
    code = first_bad([bad_rows[name] for name in in_order], [bad_steps[name] for name in in_order])
    return after, metrics, code


def join_metrics(
    reported: Mapping[str, Any], own: Mapping[str, Any], has_snapshots: bool
) -> dict[str, Any]:
    """Return the metrics of a policy: the learner's, then those of its algorithm, as `user/NAME` if a name is taken."""
    fixed = {f"episode_return{end}" for end in SPREAD} | (
        {"past_self_blocks"} if has_snapshots else set()
    )
    taken = lambda name: name in metrics or name in fixed or name.startswith(OPPONENT)  # noqa: E731
    metrics: dict[str, Any] = dict(reported)
    moved = {name: metric for name, metric in own.items() if taken(name)}
    metrics |= {name: metric for name, metric in own.items() if name not in moved}
    for name, metric in moved.items():
        metrics[free_name(name, USER, taken)] = metric
    return metrics


def packed_update(setup: Setup, state: TrainState) -> tuple[TrainState, Packed]:
    """`update_share`, its metrics in one array: else stacking them is a kernel for each."""
    state, metrics = update_share(setup, state)
    return state, pack(metrics)


def run(
    setup: Setup, state: TrainState, num_updates: int
) -> tuple[TrainState, dict[str, jax.Array]]:
    """`num_updates` updates as one scan; run(a) then run(b) equals run(a + b)."""

    def scan(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
        state, metrics = jax.lax.scan(
            lambda state, _: packed_update(setup, state), state, length=num_updates
        )
        return state, unpack(metrics)

    state, metrics = spread(setup, scan, state)
    return state, values_of(metrics)


def metric_names(setup: Setup) -> list[str]:
    """Returns the names of what an update reports, without running one."""
    state = jax.eval_shape(lambda: init(setup, jax.random.key(0)))
    metrics = jax.eval_shape(functools.partial(run, setup, num_updates=1), state)[1]
    return [name for name in metrics if name != "bad_numbers"]


def run_up_to(
    setup: Setup, most: int, state: TrainState, num_updates: jax.Array
) -> tuple[TrainState, Packed]:
    """`run`, but told how many updates only when it is called: one program for chunks of every size.

    On a GPU the host looks at the count before every update: up to 24 us more than in a scan of known length, where a
    call of a program for each update takes 50 to 490 us more (H200).

    Args:
        most: the largest number of updates.
        num_updates: () int32, from 0 to `most`.

    Returns:
        (state, metrics [most], packed, of which the first `num_updates` are those of `run`).
    """

    def loop(setup: Setup, state: TrainState, num_updates: jax.Array) -> tuple[TrainState, Packed]:
        packed = jax.jit(
            functools.partial(packed_update, setup)
        )  # traced once, for its shapes and in the loop
        rows = jax.tree.map(
            lambda row: jnp.zeros((most, *row.shape), row.dtype), jax.eval_shape(packed, state)[1]
        )

        def step(i: jax.Array, carry: tuple[TrainState, Packed]) -> tuple[TrainState, Packed]:
            state, row = packed(carry[0])
            put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, i, 0)  # noqa: E731
            return state, jax.tree.map(put, carry[1], row)

        return jax.lax.fori_loop(0, num_updates, step, (state, rows))

    return spread(setup, loop, state, num_updates)
