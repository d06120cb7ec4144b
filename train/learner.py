"""The learner: rollout and updates of all policies as one compiled program, and a run as one scan over it."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.env import Env
from wdjax.spaces import sample_shapes
from wdjax.train.algorithms import ALGORITHMS
from wdjax.train.bad_numbers import commit, first_bad, look_at_rows, look_at_steps
from wdjax.train.collectives import num_shards, total
from wdjax.train.config import TrainConfig
from wdjax.train.devices import choose_devices, spread, state_shardings
from wdjax.train.distributions import make_distribution
from wdjax.train.encoders import check_encoder, encoder_class
from wdjax.train.kernels.towers import shape_of
from wdjax.train.load import from_mapping
from wdjax.train.metrics import Metrics, episode_metrics
from wdjax.train.networks import without_mask
from wdjax.train.packing import Packed, pack, unpack
from wdjax.train.policies import Assignment, to_groups
from wdjax.train.rollout import Rollout, rollout
from wdjax.train.self_play import PRESENT, new_pool, remember
from wdjax.train.startup import wake_device
from wdjax.train.state import Hypers, Memory, Policy, PolicyState, Setup, TrainState, current_hypers, make_hypers
from wdjax.train.validate import validate
from wdjax.vector import ResetPool, vectorize


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """A training run as pure, jitted functions of its state. None of them donates: a notebook cell can run twice."""

    setup: Setup
    init: Callable[..., TrainState]
    """init(key) -> TrainState"""
    update: Callable[..., tuple[TrainState, Metrics]]
    """update(state) -> (state, metrics): one rollout and its updates"""
    run: Callable[..., tuple[TrainState, Metrics]]
    """run(state, num_updates=n) -> (state, metrics with a leading [n]): a scan over update"""

    @property
    def config(self) -> TrainConfig:
        return self.setup.config

    @property
    def env(self) -> Env:
        return self.setup.env

    @property
    def env_params(self) -> Any:
        return self.setup.env_params


def make_learner(config: TrainConfig) -> Learner:
    """Builds the learner of a configuration.

    Returns:
        a Learner; its functions compile when first called, and work under vmap: a population is a TrainState whose
        leaves have a leading axis.

    Raises:
        ValueError, TypeError: for a configuration that does not fit, before anything is traced.
        OSError: where jax cannot use a device that it is made for.
    """
    setup = make_setup(config)
    start = jax.jit(functools.partial(init, setup), out_shardings=state_shardings(setup.num_devices))
    if any(policy.config.checkpoint for policy in setup.policies.values()):
        start = functools.partial(load_and_init, setup, start)
    return Learner(
        setup=setup,
        init=start,
        update=jax.jit(functools.partial(update, setup)),
        run=jax.jit(functools.partial(run, setup), static_argnames="num_updates"),
    )


def make_setup(config: TrainConfig) -> Setup:
    """Checks a configuration and builds the fixed part of a run from it."""
    config = from_mapping(TrainConfig, config)  # one that was built in Python may hold any type
    env, env_params, assignments = validate(config)
    wake_device().result()
    require_spaces(env, env_params)
    reset = config.reset if isinstance(config.reset, str) else ResetPool(config.reset)
    replicas = vectorize(env, config.num_envs, reset)
    policies = {name: make_policy(name, config, assignment) for name, assignment in assignments.items()}
    return Setup(config, env, env_params, replicas, policies, choose_devices(config))


def require_spaces(env: Env, params: Any) -> None:
    """Raises ValueError where what `reset` returns has not the shape that the observation space says."""
    obs, _ = jax.eval_shape(lambda params: env.reset(jax.random.key(0), params), params)
    sample = sample_shapes(env.observation_space(params))
    returned, promised = (jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (obs, sample))
    if returned != promised:
        raise ValueError(
            f"{type(env).__name__}: reset returns observations of shape {returned}, observation_space says {promised}"
        )


def make_policy(name: str, config: TrainConfig, assignment: Assignment) -> Policy:
    """Returns the fixed part of a policy: its algorithm, distribution and the structure of its network."""
    own = config.policies[name]
    algorithm = ALGORITHMS[own.algorithm]
    check_encoder(f"policies.{name}.network", own.network, without_mask(assignment.observation_space))
    network = nnx.eval_shape(lambda: algorithm.make_network(own, assignment, nnx.Rngs(jax.random.key(0))))
    distribution = make_distribution(assignment.action_space, own.action_distribution)
    encoder = encoder_class(own.network.encoder)
    kernels = shape_of(own, assignment, distribution, encoder) if config.kernels else None
    return Policy(name, own, assignment, algorithm, distribution, nnx.graphdef(network), encoder, kernels)


def init(setup: Setup, key: jax.Array, loaded: Mapping[str, PolicyState] | None = None) -> TrainState:
    """Returns the state at the start of a run: new networks and optimizers, every replica reset.

    `loaded` is what policies with a checkpoint begin with (`Setup.loaded`); without it they begin like all others.
    """
    network_key, replica_key, run_key = jax.random.split(key, 3)
    network_keys = jax.random.split(network_key, len(setup.policies))
    loaded = loaded or {}
    learned = {
        name: init_policy(policy, network_keys[i], loaded.get(name))
        for i, (name, policy) in enumerate(setup.policies.items())
    }
    config = setup.config
    env_params = jax.tree.map(jnp.asarray, setup.env_params)
    obs, replicas = setup.replicas.reset(replica_key, env_params)
    return TrainState(
        policies=learned,
        memory={name: init_memory(policy, config) for name, policy in setup.policies.items()},
        hypers={name: make_hypers(policy.config) for name, policy in setup.policies.items()},
        env_params=env_params,
        replicas=replicas,
        obs=to_groups(setup.env, obs),
        live=jax.tree.map(lambda sums: jnp.ones(sums.shape, bool), to_groups(setup.env, replicas.episode_return)),
        key=run_key,
        num_updates=jnp.int32(0),
    )


def load_and_init(setup: Setup, start: Callable, key: jax.Array) -> TrainState:
    """`init`, jitted as `start`, of a run whose policies begin with checkpoints: they are read at the first call."""
    return start(key, setup.loaded)


def init_policy(policy: Policy, key: jax.Array, loaded: PolicyState | None = None) -> PolicyState:
    """Returns new parameters for a policy, or loaded ones, and its optimizer's state where it learns."""
    if loaded is None:
        network = policy.algorithm.make_network(policy.config, policy.assignment, nnx.Rngs(key))
        state = policy.algorithm.init(policy, nnx.to_pure_dict(nnx.state(network, nnx.Param)))
    else:
        state = with_counts(policy.algorithm.init(policy, loaded.params), loaded)
    size = policy.config.past_selves
    return state.replace(past=new_pool(state, size)) if size else state


def with_counts(state: PolicyState, loaded: PolicyState) -> PolicyState:
    """Returns the state of a new policy that was made with loaded parameters, with what else it was loaded with: the
    normaliser's statistics and the number of gradient steps, as far as both have them."""
    normalizer, theirs = state.normalizer, loaded.normalizer
    if normalizer is not None and theirs is not None:
        keeps_own = normalizer.reward is None or theirs.reward is None
        normalizer = theirs.replace(reward=normalizer.reward) if keeps_own else theirs
    counted = state.gradient_steps is not None and loaded.gradient_steps is not None
    gradient_steps = loaded.gradient_steps if counted else state.gradient_steps
    return state.replace(normalizer=normalizer, gradient_steps=gradient_steps)


def init_memory(policy: Policy, config: TrainConfig) -> Memory:
    """Returns what a policy keeps for every replica, at the start of a run."""
    memory = policy.algorithm.init_memory(policy, config)
    return memory.replace(member=jnp.full(config.blocks, PRESENT, jnp.int32)) if policy.config.past_selves else memory


def update(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
    """One rollout of all replicas, then the updates of every policy that learns from its own rows."""
    return spread(setup, update_share, state)


def update_share(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
    """`update` on one device, with the replicas that it holds."""
    rollout_key, update_key, next_key = jax.random.split(state.key, 3)
    before, hypers = state, current_hypers(setup.config, state)
    state, played = rollout(setup, state, rollout_key)
    metrics = episode_metrics(played, setup.env.info_ratios)
    state, own, code = learn(setup, state, hypers, played, update_key)
    after = state.replace(key=next_key, num_updates=state.num_updates + 1)
    return commit(setup, before, after, code), {**metrics, **own, "bad_numbers": code}


def learn(
    setup: Setup, state: TrainState, hypers: Mapping[str, Hypers], played: Rollout, key: jax.Array
) -> tuple[TrainState, Metrics, jax.Array]:
    """Every policy that learns does so from its own rows of a rollout, the state being that after it.

    Returns:
        (state, metrics, code: () int32, what of them is not finite (train/bad_numbers.py)).
    """
    num_blocks = setup.config.blocks // num_shards()
    policies, memory, metrics = dict(state.policies), dict(state.memory), {}
    policy_keys = jax.random.split(key, len(setup.policies))
    bad_rows, bad_steps = [], []
    for i, (name, policy) in enumerate(setup.policies.items()):
        if not policy.config.trainable:
            continue
        past = policies[name].past  # which no algorithm needs to carry through its steps
        new, memory[name], own = policy.algorithm.update(
            policy, policies[name].replace(past=None), memory[name], hypers[name], played, policy_keys[i], num_blocks
        )
        bad_rows.append(look_at_rows(policy, played))
        bad_steps.append(look_at_steps(policy, policies[name], new, own))
        if policy.config.past_selves:
            own["past_self_blocks"] = total(jnp.sum(memory[name].member != PRESENT))
            new, memory[name] = remember(
                new.replace(past=past), memory[name], state.num_updates + 1, policy.config.past_selves_every
            )
        policies[name] = new
        for scheduled in policy.algorithm.scheduled:
            own[scheduled.split(".")[-1]] = operator.attrgetter(scheduled)(hypers[name])
        metrics |= {f"{name}/{key}": value for key, value in own.items()}
    return state.replace(policies=policies, memory=memory), metrics, first_bad(bad_rows, bad_steps)


def run(setup: Setup, state: TrainState, num_updates: int) -> tuple[TrainState, Metrics]:
    """`num_updates` updates as one scan; run(a) then run(b) equals run(a + b)."""

    def scan(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
        def step(state: TrainState, _: None) -> tuple[TrainState, Packed]:
            state, metrics = update_share(setup, state)
            return state, pack(metrics)  # else stacking them is a kernel for each

        state, metrics = jax.lax.scan(step, state, length=num_updates)
        return state, unpack(metrics)

    return spread(setup, scan, state)
