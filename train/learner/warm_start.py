"""Policies of other runs, as initial states (`checkpoint`) or opponents (`opponents`).

Both fields name them "RUN[@CHECKPOINT][:POLICY]".
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from wdjax.checks import require, require_known
from wdjax.spaces import Box, Dict, Space
from wdjax.train.config.facts import read_part
from wdjax.train.devices.startup import in_thread
from wdjax.train.learner.init import init_policy
from wdjax.train.learner.saved import read_run
from wdjax.train.rollout.pool import REFERENCE, pool_of
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.state import PolicyState, TrainState


def parse_checkpoint(text: str) -> tuple[str, str]:
    """Return ("runs/a@best", "runner") for "runs/a@best:runner"; without a policy, "" for it."""
    run, colon, policy = text.rpartition(":")
    is_path = "/" in policy or "\\" in policy  # after the colon of C:\runs
    if not colon or is_path or f"{run}:" == REFERENCE:
        return text, ""
    return run, policy


def checkpoints_of(setup: Setup) -> Iterator[tuple[str, Policy, str, str]]:
    """Yield (key, policy, field, text) of all checkpoints of other runs.

    The key is the name of the policy for `checkpoint`, and "POLICY/RUN" for `opponents`. The field,
    for messages, contains the text.
    """
    for name, policy in setup.policies.items():
        if text := policy.config.checkpoint:
            yield name, policy, f"policies.{name}.checkpoint = {text!r}", text
        for text in pool_of(policy.config).runs:
            yield f"{name}/{text}", policy, f"policies.{name}.opponents {text!r}", text


def begin_elsewhere(setup: Setup) -> bool:
    """Return whether a policy reads a checkpoint of another run."""
    return any(True for _ in checkpoints_of(setup))


def load_policies(setup: Setup) -> dict[str, PolicyState]:
    """Return `read_policies`, read in a thread so that it also works under jit and vmap."""
    return in_thread(read_policies, setup).result() if begin_elsewhere(setup) else {}


def read_policies(setup: Setup) -> dict[str, PolicyState]:
    """Read the checkpoints that a configuration names.

    Returns:
        key of `checkpoints_of` -> parameters, normalizer and (DDPG) number of gradient steps, as
        NumPy arrays.

    Raises:
        ValueError, FileNotFoundError: with the field, if there is no such run, checkpoint or
            policy, or it has another network, other spaces or another kind of algorithm.
    """
    runs: dict[str, tuple[Setup, TrainState]] = {}
    loaded = {}
    for key, policy, field, text in checkpoints_of(setup):
        name = policy.name
        run, wanted = parse_checkpoint(text)
        if run not in runs:
            try:
                runs[run] = read_run(run, trust=setup.trust)
            except (ValueError, TypeError, FileNotFoundError) as error:
                raise type(error)(f"{field}: {error}") from error
        other, state = runs[run]
        require_known(f"policy in {field}:", wanted or name, state.policies)
        theirs = state.policies[wanted or name]
        require_same_policy(field, policy, other.policies[wanted or name])
        own = jax.eval_shape(lambda policy=policy: init_policy(policy, jax.random.key(0))).params
        shapes, expected = (jax.tree.map(jnp.shape, params) for params in (theirs.params, own))
        if shapes != expected:  # a custom network has changed
            raise ValueError(f"{field}: its parameter shapes differ from those in policies.{name}")
        loaded[key] = jax.device_get(
            PolicyState(theirs.params, None, theirs.normalizer, None, theirs.gradient_steps)
        )
    return loaded


def require_same_policy(field: str, policy: Policy, theirs: Policy) -> None:
    """Raise ValueError, with the difference, if policies cannot share parameters."""
    path = f"policies.{policy.name}"
    require(
        type(policy.algorithm).make_network is type(theirs.algorithm).make_network,
        f"{path}.algorithm",
        policy.config.algorithm,
        f"{theirs.config.algorithm!r}, as in {field}",
    )
    own, other = (read_part(p.config) for p in (policy, theirs))
    for name, value in own.items():
        require(
            value == other.get(name), f"{path}.{name}", value, f"{other.get(name)!r}, as in {field}"
        )
    mine, his = ([part.group for part in p.assignment.types] for p in (policy, theirs))
    require(mine == his, f"{path}.agents: agent types", mine, f"{his} in this order, as in {field}")
    for kind in ("observation_space", "action_space"):
        mine, his = (getattr(p.assignment, kind) for p in (policy, theirs))
        if _form(mine) != _form(his):
            raise ValueError(
                f"{field}: its {kind.replace('_', ' ')} {his} must match {mine} of {path}. "
                "Only bounds may differ."
            )


def _form(space: Space) -> object:
    """Return a space without its bounds, which may differ between versions of an environment."""
    if isinstance(space, Dict):  # in the order of the network's inputs
        return [(name, _form(part)) for name, part in space.spaces.items()]
    return (space.shape, jnp.dtype(space.dtype)) if isinstance(space, Box) else space
