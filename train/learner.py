"""The learner: rollout and updates of all policies as one compiled program, and a run as one scan over it."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.env import Env
from wdjax.train.algorithms import ALGORITHMS
from wdjax.train.config import TrainConfig
from wdjax.train.distributions import make_distribution
from wdjax.train.encoders import check_encoder
from wdjax.train.load import from_mapping
from wdjax.train.metrics import Metrics, episode_metrics
from wdjax.train.networks import without_mask
from wdjax.train.policies import Assignment, to_groups
from wdjax.train.rollout import rollout
from wdjax.train.state import Policy, PolicyState, Setup, TrainState, current_hypers, make_hypers
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
    """
    setup = make_setup(config)
    return Learner(
        setup=setup,
        init=jax.jit(functools.partial(init, setup)),
        update=jax.jit(functools.partial(update, setup)),
        run=jax.jit(functools.partial(run, setup), static_argnames="num_updates"),
    )


def make_setup(config: TrainConfig) -> Setup:
    """Checks a configuration and builds the fixed part of a run from it."""
    config = from_mapping(TrainConfig, config)  # one that was built in Python may hold any type
    env, env_params, assignments = validate(config)
    require_spaces(env, env_params)
    reset = config.reset if isinstance(config.reset, str) else ResetPool(config.reset)
    replicas = vectorize(env, config.num_envs, reset)
    policies = {name: make_policy(name, config, assignment) for name, assignment in assignments.items()}
    return Setup(config, env, env_params, replicas, policies)


def require_spaces(env: Env, params: Any) -> None:
    """Raises ValueError where what `reset` returns has not the shape that the observation space says."""
    obs, _ = jax.eval_shape(env.reset, jax.random.key(0), params)
    sample = jax.eval_shape(lambda key: env.observation_space(params).sample(key), jax.random.key(0))
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
    return Policy(name, own, assignment, algorithm, distribution, nnx.graphdef(network))


def init(setup: Setup, key: jax.Array) -> TrainState:
    """Returns the state at the start of a run: new networks and optimizers, every replica reset."""
    network_key, replica_key, run_key = jax.random.split(key, 3)
    network_keys = jax.random.split(network_key, len(setup.policies))
    learned = {name: init_policy(policy, network_keys[i]) for i, (name, policy) in enumerate(setup.policies.items())}
    config = setup.config
    env_params = jax.tree.map(jnp.asarray, setup.env_params)
    obs, replicas = setup.replicas.reset(replica_key, env_params)
    return TrainState(
        policies=learned,
        memory={
            name: policy.algorithm.init_memory(policy, config.num_envs, config.blocks)
            for name, policy in setup.policies.items()
        },
        hypers={name: make_hypers(policy.config) for name, policy in setup.policies.items()},
        env_params=env_params,
        replicas=replicas,
        obs=to_groups(setup.env, obs),
        live=jax.tree.map(lambda sums: jnp.ones(sums.shape, bool), to_groups(setup.env, replicas.episode_return)),
        key=run_key,
        num_updates=jnp.int32(0),
    )


def init_policy(policy: Policy, key: jax.Array) -> PolicyState:
    """Returns new parameters for a policy, and its optimizer's state where it learns."""
    network = policy.algorithm.make_network(policy.config, policy.assignment, nnx.Rngs(key))
    return policy.algorithm.init(policy, nnx.to_pure_dict(nnx.state(network, nnx.Param)))


def update(setup: Setup, state: TrainState) -> tuple[TrainState, Metrics]:
    """One rollout of all replicas, then the updates of every policy that learns from its own rows."""
    config = setup.config
    rollout_key, update_key, next_key = jax.random.split(state.key, 3)
    hypers = current_hypers(config, state)
    state, played = rollout(setup, state, rollout_key)
    metrics = episode_metrics(played, setup.env.info_ratios)
    policies, memory = dict(state.policies), dict(state.memory)
    policy_keys = jax.random.split(update_key, len(setup.policies))
    for i, (name, policy) in enumerate(setup.policies.items()):
        if not policy.config.trainable:
            continue
        policies[name], memory[name], own = policy.algorithm.update(
            policy, policies[name], memory[name], hypers[name], played, policy_keys[i], config.blocks
        )
        for key in policy.algorithm.scheduled:
            own[key.split(".")[-1]] = operator.attrgetter(key)(hypers[name])
        metrics |= {f"{name}/{key}": value for key, value in own.items()}
    state = state.replace(policies=policies, memory=memory, key=next_key, num_updates=state.num_updates + 1)
    return state, metrics


def run(setup: Setup, state: TrainState, num_updates: int) -> tuple[TrainState, Metrics]:
    """`num_updates` updates as one scan; run(a) then run(b) equals run(a + b)."""
    return jax.lax.scan(lambda state, _: update(setup, state), state, length=num_updates)
