"""Policies that begin with what another run has learned: `checkpoint` of a policy, "RUN[@CHECKPOINT][:POLICY]"."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.checks import require_known
from wdjax.spaces import Box, Dict, Space
from wdjax.train.config import PolicyConfig
from wdjax.train.learner import Learner, init_policy
from wdjax.train.state import Policy, PolicyState, Setup, TrainState
from wdjax.train.trainer import load_named


def parse_checkpoint(text: str) -> tuple[str, str]:
    """Returns ("runs/a@best", "runner") of "runs/a@best:runner"; the second is "" where no policy is named."""
    run, colon, policy = text.rpartition(":")
    if not colon or "/" in policy or "\\" in policy:  # the colon of C:\runs
        return text, ""
    return run, policy


def load_policies(setup: Setup) -> dict[str, PolicyState]:
    """Reads the checkpoints that a configuration names.

    Returns:
        policy -> parameters, normaliser statistics and (DDPG) the number of gradient steps, as NumPy arrays, of those
        policies that have a checkpoint.

    Raises:
        ValueError, FileNotFoundError: naming the field, where there is no such run, checkpoint or policy, or it has
            learned with another network, other spaces or another kind of algorithm.
    """
    runs: dict[str, tuple[Learner, TrainState]] = {}
    loaded = {}
    for name, policy in setup.policies.items():
        text = policy.config.checkpoint
        if not text:
            continue
        field = f"policies.{name}.checkpoint = {text!r}"
        run, wanted = parse_checkpoint(text)
        if run not in runs:
            try:
                runs[run] = load_named(run)
            except (ValueError, TypeError, FileNotFoundError) as error:
                raise type(error)(f"{field}: {error}") from error
        learner, state = runs[run]
        require_known(f"policy in {field}:", wanted or name, state.policies)
        theirs = state.policies[wanted or name]
        require_same_policy(field, policy, learner.setup.policies[wanted or name])
        require_same_shapes(field, policy, theirs.params)
        kept = PolicyState(theirs.params, None, theirs.normalizer, gradient_steps=theirs.gradient_steps)
        loaded[name] = jax.device_get(kept)
    return loaded


def require_same_policy(field: str, policy: Policy, theirs: Policy) -> None:
    """Raises ValueError, naming what differs, where parameters of one policy mean nothing to another."""
    path = f"policies.{policy.name}"
    if type(policy.algorithm) is not type(theirs.algorithm):
        own, other = policy.config.algorithm, theirs.config.algorithm
        raise ValueError(f"{path}.algorithm = {own!r}: must be {other!r}, as that of {field}")
    own, other = (_meaning(p.config) for p in (policy, theirs))
    for name, value in own.items():
        if value != other[name]:
            raise ValueError(f"{path}.{name} = {value!r}: must be {other[name]!r}, as that of {field}")
    mine, his = ([part.group for part in p.assignment.types] for p in (policy, theirs))
    if mine != his:
        raise ValueError(f"{path}.agents: its types of agents are {mine}, must be {his} in this order, as of {field}")
    for kind in ("observation_space", "action_space"):
        mine, his = (getattr(p.assignment, kind) for p in (policy, theirs))
        if _form(mine) != _form(his):
            raise ValueError(f"{field}: its {kind.replace('_', ' ')} is {his}, that of {path} {mine}")


def require_same_shapes(field: str, policy: Policy, params: Any) -> None:
    """Raises ValueError where parameters have other shapes than a policy's own: a class of one's own has changed."""
    own = jax.eval_shape(lambda: init_policy(policy, jax.random.key(0))).params
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, own):
        raise ValueError(f"{field}: its parameters have other shapes than those of policies.{policy.name}")


def _meaning(config: PolicyConfig) -> dict[str, Any]:
    """Returns dotted name -> value of what says how parameters are read."""
    network = [field.name for field in dataclasses.fields(config.network) if field.name != "initializer"]
    return {
        **{f"network.{name}": getattr(config.network, name) for name in network},
        "normalize_observation": config.normalize_observation,
        "action_distribution": config.action_distribution,
        "ddpg.twin_critics": config.ddpg.twin_critics,
    }


def _form(space: Space) -> Any:
    """Returns a space without its bounds: in another version of a game they may be others."""
    if isinstance(space, Dict):
        return [(name, _form(part)) for name, part in space.spaces.items()]  # in their order, which is the network's
    return (space.shape, jnp.dtype(space.dtype)) if isinstance(space, Box) else space
