"""The state at the start of a run."""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding

from wdjax.checks import require_key
from wdjax.lazy import no_garbage_collection
from wdjax.train.rollout.opponents import init_opponents
from wdjax.train.rollout.pool import pool_of
from wdjax.train.state.agents import building_config, first_active, to_groups
from wdjax.train.state.hypers import run_hypers
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.sharding import device_of_new_arrays, state_shardings
from wdjax.train.state.state import PolicyState, TrainState, current_env_params


def init(
    setup: Setup, key: jax.Array, loaded: Mapping[str, PolicyState] | None = None
) -> TrainState:
    """Return the state at the start of a run: new networks and optimizers, all replicas reset.

    Args:
        setup: static part of the run.
        key: random key of the run.
        loaded: initial states of policies with a checkpoint (`Learner.loaded`); without one, their
            parameters are new, too.
    """
    require_key(key)
    network_key, replica_key, run_key = jax.random.split(key, 3)
    network_keys = jax.random.split(network_key, len(setup.policies))
    loaded = loaded or {}
    learned = {
        name: policy.algorithm.begin(policy, init_policy(policy, network_keys[i], loaded.get(name)))
        for i, (name, policy) in enumerate(setup.policies.items())
    }
    runs = {
        f"{name}/{run}": init_policy(policy, network_keys[i], loaded[f"{name}/{run}"])
        for i, (name, policy) in enumerate(setup.policies.items())
        for run in pool_of(policy.config).runs
        if loaded
    }
    memory = {
        name: policy.algorithm.init_memory(policy, setup.config)
        for name, policy in setup.policies.items()
    }
    env_params = jax.tree.map(jnp.asarray, setup.env_params)
    env_params = current_env_params(setup.config, env_params, jnp.int32(0))
    obs, replicas = setup.replicas.reset(replica_key, env_params)
    return TrainState(
        policies=learned,
        memory=memory,
        opponents=init_opponents(setup, learned, runs),
        hypers=run_hypers(setup.config),
        env_params=env_params,
        replicas=replicas,
        obs=to_groups(setup.env, obs),
        live=first_active(setup.env, replicas, env_params),
        key=run_key,
        num_updates=jnp.int32(0),
        shared=init_shared(setup, learned, network_key),
    )


def init_shared(
    setup: Setup, states: Mapping[str, PolicyState], key: jax.Array
) -> dict[str, PolicyState]:
    """Return the initial shared states, by team; teams without one are left out."""
    shared: dict[str, PolicyState] = {}
    for i, (name, team) in enumerate(setup.teams.items()):
        params = None
        if team.shared is not None:
            rngs = nnx.Rngs(jax.random.fold_in(key, 2**31 + i))  # far from the keys of policies
            module = team.algorithm.make_shared(team, setup.context, rngs)
            params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
        own = team.algorithm.init_shared(
            team, {member: states[member] for member in team.policies}, params
        )
        shared |= {} if own is None else {name: own}
    return shared


@no_garbage_collection()
def abstract_state(setup: Setup) -> TrainState:
    """Return shapes, dtypes and shardings of the state of a run."""
    # not Learner.init, which reads checkpoints of other runs
    state = jax.eval_shape(lambda: init(setup, jax.random.key(0)))
    place = state_shardings(setup.num_devices) or SingleDeviceSharding(device_of_new_arrays())

    def put(place: jax.sharding.Sharding, part: chex.ArrayTree) -> chex.ArrayTree:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), part
        )

    return jax.tree.map(put, place, state)


def init_policy(policy: Policy, key: jax.Array, loaded: PolicyState | None = None) -> PolicyState:
    """Return the initial state of a policy, with new parameters or with the loaded ones."""
    if loaded is not None:
        return with_counts(policy.algorithm.init(policy, loaded.params), loaded)
    config = building_config(policy.config, policy.assignment)
    network = policy.algorithm.make_network(
        policy.context, config, policy.assignment, nnx.Rngs(key)
    )
    return policy.algorithm.init(policy, nnx.to_pure_dict(nnx.state(network, nnx.Param)))


def with_counts(state: PolicyState, loaded: PolicyState) -> PolicyState:
    """Return a new state with the loaded normalizer and number of gradient steps.

    Each of them is loaded only if both states have it.
    """
    own, theirs = state.normalizer, loaded.normalizer
    if own is not None and theirs is not None:
        keeps_own = own.reward is None or theirs.reward is None
        own = theirs.replace(reward=own.reward) if keeps_own else theirs
    counted = state.gradient_steps is not None and loaded.gradient_steps is not None
    steps = loaded.gradient_steps if counted else state.gradient_steps
    return state.replace(normalizer=own, gradient_steps=steps)


def host_key(seed: int) -> jax.Array:
    """Return a key for evaluations on the host, independent of the keys of the run."""
    # `init` splits the seed's key, and split(key, n)[i] is fold_in(key, i) for small i
    return jax.random.fold_in(jax.random.key(seed), 2**31)
