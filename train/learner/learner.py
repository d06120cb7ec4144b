"""The learner: rollout and update of all policies, and training as a scan, as compiled programs."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import jax
import jax.numpy as jnp

from wdjax.checks import require, require_integer
from wdjax.env import Env
from wdjax.metric_names import OPPONENT, SPREAD, USER, free_name
from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.collectives import num_shards
from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.learner.bad_numbers import commit, first_bad, look_at_rows, look_at_steps
from wdjax.train.learner.init import abstract_state, init
from wdjax.train.learner.saved import begin_elsewhere, load_policies
from wdjax.train.learner.setup import make_setup
from wdjax.train.rollout.opponents import finish
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.agents import group_sizes
from wdjax.train.state.aliases import EnvParams, Metrics
from wdjax.train.state.flat import flatten_all, flatten_all_after, named_all
from wdjax.train.state.hypers import Hypers, logged_schedules
from wdjax.train.state.metric import Metric, beside, values_of
from wdjax.train.state.policy import Setup
from wdjax.train.state.rollout_metrics import episode_metrics
from wdjax.train.state.rows import Rollout
from wdjax.train.state.sharding import ROLLOUT, spread, state_shardings
from wdjax.train.state.state import PolicyState, TrainState, current_hypers


class Run(Protocol):
    """The type of `Learner.run`."""

    def __call__(
        self, state: TrainState, num_updates: int
    ) -> tuple[TrainState, dict[str, jax.Array]]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Training as pure, jitted functions of a TrainState, from `make_learner`.

    The functions are fields of the object, and do not donate their arguments:

        learner = make_learner(load_config("cartpole_ppo"))
        state = learner.init(jax.random.key(0))
        state, metrics = learner.run(state, num_updates=20)

    Attributes:
        setup: static inputs of the functions: configuration, environment, its params, policies.
        init: init(key) -> state. The TrainState at the start of a run.
        update: update(state) -> (state, metrics). One rollout and the learning from it; metrics
            are () arrays by name.
        run: run(state, num_updates=n) -> (state, metrics). A scan over n updates; metrics are [n]
            arrays by name. n is static: another number compiles another program.
        rollout: rollout(state) -> (state, rollout). The `Rollout` that `update` would learn from,
            leaves [T, N, ...], without learning.
    """

    setup: Setup
    init: Callable[[jax.Array], TrainState]
    update: Callable[[TrainState], tuple[TrainState, dict[str, jax.Array]]]
    run: Run
    rollout: Callable[[TrainState], tuple[TrainState, Rollout]]
    loaded: Callable[[], Mapping[str, PolicyState]] = dict
    """loaded() -> initial states of policies with a checkpoint, by name; read on the first call"""

    @property
    def shapes(self) -> TrainState:
        """Shapes, dtypes and shardings of the states."""
        return abstract_state(self.setup)

    @property
    def config(self) -> TrainConfig:
        """Configuration of the run."""
        return self.setup.config

    @property
    def env(self) -> Env:
        """Environment of one replica."""
        return self.setup.env

    @property
    def env_params(self) -> EnvParams:
        """Parameters of the environment at the start of a run."""
        return self.setup.env_params


def make_learner(config: TrainConfig, trust: Collection[str] = ()) -> Learner:
    """Build the learner of a configuration.

    Args:
        config: configuration of the run. Code that it names is trusted and executed.
        trust: additional modules from which saved runs may import code, if policies start from
            them (see `load_run`).

    Returns:
        A Learner. Its functions compile on the first call and support vmap: a population is a
        TrainState whose leaves have a leading axis.

    Raises:
        ValueError, TypeError: if the configuration is invalid; checked before anything is traced.
        OSError: if jax cannot use an installed device.
    """
    return learner_of(make_setup(config, trust))


def learner_of(setup: Setup) -> Learner:
    """Return the learner of a setup."""
    start = jax.jit(
        functools.partial(init, setup), out_shardings=state_shardings(setup.num_devices)
    )
    loaded = functools.cache(functools.partial(load_policies, setup))
    updates = jax.jit(functools.partial(run, setup), static_argnames="num_updates")

    def run_checked(state: TrainState, num_updates: int) -> tuple[TrainState, dict[str, jax.Array]]:
        # jit would not distinguish 2.0 and True from 2 and 1
        require_integer("num_updates", num_updates, 0)
        return updates(state, num_updates=int(num_updates))

    run_checked.lower = updates.lower  # type: ignore[attr-defined]  # as jitted functions have
    run_checked.__qualname__ = "Learner.run"  # for messages about arguments
    return Learner(
        setup=setup,
        init=(lambda key: start(key, loaded())) if begin_elsewhere(setup) else start,
        update=jax.jit(functools.partial(update, setup)),
        run=run_checked,
        rollout=jax.jit(functools.partial(play, setup)),
        loaded=loaded,
    )


def play(setup: Setup, state: TrainState) -> tuple[TrainState, Rollout]:
    """Return the state and rollout of an update without learning; its key is the next one."""

    def play_share(setup: Setup, state: TrainState) -> tuple[TrainState, Rollout]:
        rollout_key, _, next_key = jax.random.split(state.key, 3)
        state, played = rollout(setup, state, rollout_key)
        return state.replace(key=next_key), played

    return spread(setup, play_share, state, results=ROLLOUT)


def update(setup: Setup, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
    """Return state and metrics after a rollout of all replicas and an update of all teams."""
    state, metrics = spread(setup, update_share, state)
    return state, values_of(metrics)


def update_share(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
    """Return state and metrics of `update` on one device, with its share of the replicas."""
    after, metrics, code = try_update(setup, state)
    return commit(setup, state, after, code), metrics


def try_update(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics, jax.Array]:
    """Return (state after a good or bad update, metrics, code [() int32] of `first_bad`)."""
    rollout_key, update_key, next_key = jax.random.split(state.key, 3)
    hypers = current_hypers(setup.config, state)
    state, played = rollout(setup, state, rollout_key)
    metrics = episode_metrics(played, setup.env.info_ratios, tuple(group_sizes(setup.env)))
    state, own, code = learn(setup, state, hypers, played, update_key)
    state, of_opponents = finish(setup, state, played)
    after = state.replace(key=next_key, num_updates=state.num_updates + 1)
    return after, {**metrics, **of_opponents, **own, "bad_numbers": code}, code


def learn(
    setup: Setup, state: TrainState, hypers: Mapping[str, Hypers], played: Rollout, key: jax.Array
) -> tuple[TrainState, Metrics, jax.Array]:
    """Update every team from the transitions of a rollout.

    Args:
        setup: static part of the run.
        state: state after the rollout.
        hypers: by policy, with schedules evaluated.
        played: the rollout.
        key: key of the update.

    Returns:
        (state, metrics, code [() int32] of `first_bad`).
    """
    num_blocks = setup.config.blocks // num_shards()
    policies, shared, memory = dict(state.policies), dict(state.shared), dict(state.memory)
    metrics: Metrics = {}
    policy_keys = dict(zip(setup.policies, jax.random.split(key, len(setup.policies)), strict=True))
    bad_rows, bad_steps = {}, {}
    for team in setup.teams.values():
        of_team = ({name: of[name] for name in team.policies} for of in (policies, memory, hypers))
        own_policies, own_memory, own_hypers = of_team
        learned, common, memories, own = team.algorithm.update_team(
            team,
            own_policies,
            shared.get(team.name),
            own_memory,
            own_hypers,
            played,
            policy_keys[team.first.name],
            num_blocks,
        )
        for kind, result in {"states": learned, "metrics": own}.items():
            missing = [name for name in team.policies if name not in result]
            require(
                not missing,
                f"team {team.name}: {kind} of update_team",
                sorted(result),
                f"a dict by policy, with {' and '.join(missing)}",
            )
        memory |= memories
        shared |= {} if common is None else {team.name: common}
        for name, policy in team.policies.items():
            bad_rows[name] = look_at_rows(policy, played)
            bad_steps[name] = look_at_steps(
                policy, policies[name], learned[name], own[name], common
            )
            policies[name] = learned[name]
            reported = {field: hypers[name][field] for field in logged_schedules(policy.config)}
            joined = join_metrics(reported, own[name], policy.config.past_selves > 0)
            metrics |= beside(joined, name)
        if team.name not in team.policies:
            metrics |= beside(own.get(team.name, {}), team.name)
    after = state.replace(policies=policies, shared=shared, memory=memory)
    in_order = [name for name in setup.policies if name in bad_rows]
    code = first_bad([bad_rows[name] for name in in_order], [bad_steps[name] for name in in_order])
    return after, metrics, code


def join_metrics(
    reported: Mapping[str, jax.Array], own: Mapping[str, jax.Array | Metric], has_snapshots: bool
) -> Metrics:
    """Return the metrics of a policy.

    Args:
        reported: metrics of the learner.
        own: metrics of the algorithm; with a taken name they become user/NAME.
        has_snapshots: whether the policy has snapshots as opponents.
    """
    fixed = {f"episode_return{end}" for end in SPREAD}
    fixed |= {"past_self_blocks"} if has_snapshots else set()
    taken = lambda name: name in metrics or name in fixed or name.startswith(OPPONENT)  # noqa: E731
    metrics: Metrics = dict(reported)
    moved = {name: metric for name, metric in own.items() if taken(name)}
    metrics |= {name: metric for name, metric in own.items() if name not in moved}
    for name, metric in moved.items():
        metrics[free_name(name, USER, taken)] = metric
    return metrics


def packed_update(setup: Setup, state: TrainState) -> tuple[TrainState, Packed]:
    """Return the results of `update_share` as the body of a loop.

    Metrics are packed, so that a scan stacks them at once; the state is from `first_carry`.
    """
    after, metrics, code = try_update(setup, named_all(state))
    return commit(setup, state, flatten_all_after(after, state), code), pack(metrics)


def first_carry(setup: Setup, state: TrainState) -> TrainState:
    """Return the state before the first `packed_update`."""
    return flatten_all(state, {name: own.engine.multiple for name, own in setup.policies.items()})


def run(
    setup: Setup, state: TrainState, num_updates: int
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Scan over `num_updates` updates; run(a) then run(b) equals run(a + b)."""

    def scan(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
        state, metrics = jax.lax.scan(
            lambda state, _: packed_update(setup, state),
            first_carry(setup, state),
            length=num_updates,
        )
        return named_all(state), unpack(metrics)

    state, metrics = spread(setup, scan, state)
    return state, values_of(metrics)


def metric_names(setup: Setup) -> list[str]:
    """Return the names of the metrics of an update, without running one."""
    state = jax.eval_shape(lambda: init(setup, jax.random.key(0)))
    metrics = jax.eval_shape(functools.partial(run, setup, num_updates=1), state)[1]
    return [name for name in metrics if name != "bad_numbers"]


def run_up_to(
    setup: Setup, most: int, state: TrainState, num_updates: jax.Array
) -> tuple[TrainState, Packed]:
    """Run a traced number of updates, with one program for chunks of any size.

    On a GPU the host reads the counter before every update. This takes up to 24 us more per update
    than a scan of static length; calling a program for each update takes 50 to 490 us more (H200).

    Args:
        setup: static part of the run.
        most: the largest number of updates.
        state: state of the run.
        num_updates: () int32, from 0 to `most`.

    Returns:
        (state, packed metrics [most]). The first `num_updates` metrics are the metrics of `run`.
    """

    def loop(setup: Setup, state: TrainState, num_updates: jax.Array) -> tuple[TrainState, Packed]:
        # traced once, for its shapes and in the loop
        packed, state = jax.jit(functools.partial(packed_update, setup)), first_carry(setup, state)
        rows = jax.tree.map(
            lambda row: jnp.zeros((most, *row.shape), row.dtype), jax.eval_shape(packed, state)[1]
        )

        def step(i: jax.Array, carry: tuple[TrainState, Packed]) -> tuple[TrainState, Packed]:
            state, row = packed(carry[0])
            put = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, i, 0)  # noqa: E731
            return state, jax.tree.map(put, carry[1], row)

        state, rows = jax.lax.fori_loop(0, num_updates, step, (state, rows))
        return named_all(state), rows

    return spread(setup, loop, state, num_updates)
