"""From a configuration to the fixed part of a run."""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from pathlib import Path

import jax
from flax import nnx

from wdjax.checks import require
from wdjax.env_checker import RETURNED, require_rules
from wdjax.spaces import LARGEST
from wdjax.train.config.facts import in_env_steps
from wdjax.train.config.schema import TrainConfig
from wdjax.train.config.trust import with_own
from wdjax.train.devices.startup import wake_device
from wdjax.train.fast.choose import engine_class, policy_engine
from wdjax.train.kernels.loss import is_custom, is_linear
from wdjax.train.learner.validate import validate
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.networks.encoders import check_encoder, encoder_class
from wdjax.train.state.agents import building_config
from wdjax.train.state.context import Context
from wdjax.train.state.policy import Policy, Setup, Team
from wdjax.train.state.registry import find_algorithm, read_config
from wdjax.train.state.sharding import choose_devices
from wdjax.vector import ResetPool, vectorize


def make_setup(config: TrainConfig, trust: Collection[str] = ()) -> Setup:
    """Checks a configuration and builds the fixed part of a run from it; `trust` as for `make_learner`."""
    require_config(config)
    config = read_config(config)  # one that was built in Python may hold any type
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
        config, env, env_params, replicas, policies, context, teams, engine_class(config.kernels)(),
        choose_devices(config), with_own(trust, config),
    )  # fmt: skip


def make_teams(config: TrainConfig, policies: Mapping[str, Policy], context: Context) -> dict[str, Team]:
    """Return the teams of the policies that learn, in the order of their first policies."""
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
        teams[name] = dataclasses.replace(team, shared=None if module is None else nnx.graphdef(module))
    return teams


def require_config(config: TrainConfig) -> None:
    """Raises TypeError for the name of a preset in the place of a configuration."""
    if isinstance(config, (str, Path)):
        raise TypeError(f"config = {str(config)!r}: must be a TrainConfig. Use load_config({str(config)!r}).")


def make_policy(name: str, context: Context) -> Policy:
    """Return the static part of a policy: its algorithm, distribution and the structure of its network."""
    config, assignment = context.run_config, context.assignments[name]
    own = config.policy(name)
    algorithm = find_algorithm(own.algorithm)
    space = without_mask(assignment.observation_space)
    check_encoder(f"policies.{name}.network", own.network, space, assignment.layout)
    built = building_config(own, assignment)
    network = nnx.eval_shape(lambda: algorithm.make_network(context, built, assignment, nnx.Rngs(jax.random.key(0))))
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(network)))
    require(count <= LARGEST, f"policies.{name}.network: number of parameters", count, f"at most {LARGEST}")
    if algorithm.has_kernels and is_custom(algorithm.loss):
        words = "linear in the means of its terms (a square or a logarithm of a mean is not)"
        require(is_linear(algorithm.loss, own.options), f"policies.{name}.algorithm: its loss", own.algorithm, words)
    distribution, encoder = algorithm.make_distribution(own, assignment), encoder_class(own.network.encoder)
    policy = Policy(name, own, assignment, algorithm, distribution, nnx.graphdef(network), encoder, context)
    return dataclasses.replace(policy, engine=policy_engine(policy, config.kernels))
