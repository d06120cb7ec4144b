"""Setup of a run: the static part, built from a configuration."""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.checks import require
from wdjax.env_checker import RETURNED, require_rules
from wdjax.spaces import LARGEST
from wdjax.train.config.facts import in_env_steps
from wdjax.train.config.schema import NetworkConfig, PolicyConfig, TrainConfig
from wdjax.train.config.trust import with_own
from wdjax.train.devices.startup import wake_device
from wdjax.train.fast.choose import engine_class, policy_engine
from wdjax.train.kernels.loss import is_custom, require_valid
from wdjax.train.learner.validate import validate
from wdjax.train.networks.actor_critic import has_memory, without_mask
from wdjax.train.networks.checks import check_encoder, check_memory
from wdjax.train.networks.encoders import encoder_class
from wdjax.train.state.agents import building_config
from wdjax.train.state.algorithm import Algorithm
from wdjax.train.state.policy import Context, Policy, Setup, Team
from wdjax.train.state.registry import find_algorithm, read_config
from wdjax.train.state.sharding import choose_devices
from wdjax.vector import ResetPool, vectorize


def make_setup(config: TrainConfig, trust: Collection[str] = ()) -> Setup:
    """Validate a configuration and return the static part of its run.

    Args:
        config: configuration of the run.
        trust: as for `make_learner`.
    """
    require_config(config)
    config = read_config(config)  # checks the types of values that were set in Python
    config = in_env_steps(config, config.total_env_steps)
    env, env_params, assignments = validate(config)
    wake_device().result()
    require_rules(env, env_params, RETURNED)
    context = Context(env, env_params, config, assignments)
    policies = {name: make_policy(name, context) for name in assignments}
    teams = make_teams(config, policies, context)
    keeps_state = any("global_state" in team.algorithm.keeps for team in teams.values())
    reset = config.reset if isinstance(config.reset, str) else ResetPool(config.reset)
    replicas = vectorize(env, config.num_envs, reset)
    replicas = dataclasses.replace(replicas, with_final_state=keeps_state and env.can_truncate)
    return Setup(
        config,
        env,
        env_params,
        replicas,
        policies,
        context,
        teams,
        engine=engine_class(config.kernels)(),
        num_devices=choose_devices(config),
        trust=with_own(trust, config),
    )


def make_teams(
    config: TrainConfig, policies: Mapping[str, Policy], context: Context
) -> dict[str, Team]:
    """Return the teams of trainable policies, in the order of their first policies."""
    owner = {policy: name for name, team in config.teams.items() for policy in team.policies}
    members: dict[str, dict[str, Policy]] = {}
    for name, policy in policies.items():
        if policy.config.trainable:
            members.setdefault(owner.get(name, name), {})[name] = policy
    teams = {}
    for name, own in members.items():
        team = Team(name, own, next(iter(own.values())).algorithm)
        make = functools.partial(team.algorithm.make_shared, team, context)
        module = nnx.eval_shape(lambda make=make: make(nnx.Rngs(jax.random.key(0))))
        teams[name] = dataclasses.replace(
            team, shared=None if module is None else nnx.graphdef(module)
        )
    return teams


def require_config(config: TrainConfig) -> None:
    """Raise TypeError for the name of a preset instead of a configuration."""
    if isinstance(config, (str, Path)):
        name = repr(str(config))
        raise TypeError(f"config = {name}: must be a TrainConfig. Use load_config({name}).")


def make_policy(name: str, context: Context) -> Policy:
    """Return the static part of a policy: algorithm, distribution and network structure."""
    config, assignment = context.run_config, context.assignments[name]
    own, path = config.policy(name), f"policies.{name}"
    algorithm = find_algorithm(own.algorithm)
    if getattr(algorithm, "critic_is_shared", False):  # an actor has no value trunk
        own = dataclasses.replace(own, network=dataclasses.replace(own.network, shared_trunk=True))
    space, layout = without_mask(assignment.observation_space), assignment.layout
    width = check_encoder(f"{path}.network", own.network, space, layout)
    width = own.network.hidden_sizes[-1] if own.network.hidden_sizes else width
    memory = check_memory(f"{path}.network", own.network, width)
    network = abstract_network(name, context, own.network, algorithm)
    require_plain_parameters(f"{path}.network", network)
    if is_own := not type(algorithm).__module__.startswith("wdjax."):
        require_used(name, context, own, algorithm, network)
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(network)))
    require(count <= LARGEST, f"{path}.network: number of parameters", count, f"at most {LARGEST}")
    loss = getattr(algorithm, "loss", None)
    if algorithm.has_kernels and loss and is_custom(loss):
        require_valid(f"{path}.algorithm", own.algorithm, loss, own.options)
    policy = Policy(
        name,
        own,
        assignment,
        algorithm,
        algorithm.make_distribution(own, assignment),
        nnx.graphdef(network),
        encoder_class(own.network.encoder),
        context,
        memory=memory,
    )
    if is_own and own.normalize_observation:
        params = nnx.to_pure_dict(nnx.state(network, nnx.Param))
        state = jax.eval_shape(functools.partial(algorithm.init, policy), params)
        require(
            state.normalizer is not None,
            f"{path}.normalize_observation",
            True,
            f"False (the default): {own.algorithm} does not use it",
        )
    carries = jax.eval_shape(lambda: algorithm.init_carry(policy, 1)) is not None
    policy = dataclasses.replace(policy, is_recurrent=carries and has_memory(network))
    algorithm.check_network(policy, network)
    return dataclasses.replace(policy, engine=policy_engine(policy, config.kernels))


def abstract_network(
    name: str, context: Context, config: NetworkConfig, algorithm: Algorithm
) -> nnx.Module:
    """Return the network of a policy with another configuration, as shapes and dtypes."""
    own, assignment = context.run_config.policy(name), context.assignments[name]
    built = building_config(dataclasses.replace(own, network=config), assignment)
    return nnx.eval_shape(
        lambda: algorithm.make_network(context, built, assignment, nnx.Rngs(jax.random.key(0)))
    )


def require_plain_parameters(path: str, network: nnx.Module) -> None:
    """Raise TypeError for a network with variables that are not trained, like batch statistics."""
    others = nnx.state(network, nnx.filterlib.Not(nnx.Any(nnx.Param, nnx.RngState)))
    kinds = sorted({type(leaf).__name__ for _, leaf in nnx.to_flat_state(others)})
    require(
        not kinds,
        path,
        type(network).__name__,
        f"a module whose variables are all nnx.Param, without {', '.join(kinds)}. "
        "Only parameters are trained",
        TypeError,
    )


# fields of NetworkConfig that add a part to the network
ADDED = (
    "recurrent_size",
    "memory",
    "recurrent_layers",
    "encoder",
    "head_hidden_sizes",
    "layer_norm",
)


def require_used(
    name: str, context: Context, config: PolicyConfig, algorithm: Algorithm, network: nnx.Module
) -> None:
    """Raise ValueError for a field in ADDED that does not change a custom algorithm's network."""
    for field in ADDED:
        value, usual = getattr(config.network, field), getattr(NetworkConfig(), field)
        if value == usual:
            continue
        changed = dataclasses.replace(config.network, **{field: usual})
        try:
            other = abstract_network(name, context, changed, algorithm)
        except Exception:  # the network cannot be built without the value, so it uses it
            continue
        require(
            nnx.graphdef(network) != nnx.graphdef(other) or shapes_of(network) != shapes_of(other),
            f"policies.{name}.network.{field}",
            value,
            f"{usual!r} (the default): {config.algorithm} does not use it",
        )


def shapes_of(network: nnx.Module) -> chex.ArrayTree:
    """Return the shapes of the parameters of a network."""
    return jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(network, nnx.Param)))
