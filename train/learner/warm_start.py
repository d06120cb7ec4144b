"""What other runs have learned: a policy begins with it (`checkpoint`), or it plays in its place (`opponents`). Both
name it "RUN[@CHECKPOINT][:POLICY]"."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.checks import require, require_known
from wdjax.spaces import Box, Dict, Space
from wdjax.train.config.facts import read_part
from wdjax.train.learner.init import init_policy
from wdjax.train.learner.saved import read_named
from wdjax.train.rollout.opponents import REFERENCE, pool_of
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.state import PolicyState, TrainState


def parse_checkpoint(text: str) -> tuple[str, str]:
    """Returns ("runs/a@best", "runner") of "runs/a@best:runner"; the second is "" where no policy is named."""
    run, colon, policy = text.rpartition(":")
    if (
        not colon or "/" in policy or "\\" in policy or f"{run}:" == REFERENCE
    ):  # the colon of C:\runs
        return text, ""
    return run, policy


def checkpoints_of(setup: Setup) -> Iterator[tuple[str, Policy, str, str]]:
    """Yields (key of what is loaded, policy, the field that names it, its text) of all that policies read of runs: by
    the policy's name what it begins with, by "POLICY/RUN" who plays in its place."""
    for name, policy in setup.policies.items():
        if text := policy.config.checkpoint:
            yield name, policy, f"policies.{name}.checkpoint = {text!r}", text
        for text in pool_of(policy.config).runs:
            yield f"{name}/{text}", policy, f"policies.{name}.opponents {text!r}", text


def begin_elsewhere(setup: Setup) -> bool:
    """Returns whether a policy reads a checkpoint of another run."""
    return any(True for _ in checkpoints_of(setup))


def load_policies(setup: Setup) -> dict[str, PolicyState]:
    """`read_policies`, also where somebody's jit or vmap is being traced: in a thread of its own nothing is."""
    if not begin_elsewhere(setup):
        return {}
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(read_policies, setup).result()


def read_policies(setup: Setup) -> dict[str, PolicyState]:
    """Reads the checkpoints that a configuration names.

    Returns:
        key of `checkpoints_of` -> parameters, normaliser statistics and (DDPG) the number of gradient steps, as NumPy
        arrays.

    Raises:
        ValueError, FileNotFoundError: naming the field, where there is no such run, checkpoint or policy, or it has
            learned with another network, other spaces or another kind of algorithm.
    """
    runs: dict[str, tuple[Setup, TrainState]] = {}
    loaded = {}
    for key, policy, field, text in checkpoints_of(setup):
        name = policy.name
        run, wanted = parse_checkpoint(text)
        if run not in runs:
            try:
                runs[run] = read_named(run, trust=setup.trust)
            except (ValueError, TypeError, FileNotFoundError) as error:
                raise type(error)(f"{field}: {error}") from error
        other, state = runs[run]
        require_known(f"policy in {field}:", wanted or name, state.policies)
        theirs = state.policies[wanted or name]
        require_same_policy(field, policy, other.policies[wanted or name])
        own = jax.eval_shape(lambda policy=policy: init_policy(policy, jax.random.key(0))).params
        if jax.tree.map(jnp.shape, theirs.params) != jax.tree.map(
            jnp.shape, own
        ):  # a class of one's own has changed
            raise ValueError(f"{field}: its parameter shapes differ from those in policies.{name}")
        kept = PolicyState(
            theirs.params, None, theirs.normalizer, gradient_steps=theirs.gradient_steps
        )
        loaded[key] = jax.device_get(kept)
    return loaded


def require_same_policy(field: str, policy: Policy, theirs: Policy) -> None:
    """Raises ValueError, naming what differs, where parameters of one policy mean nothing to another."""
    path = f"policies.{policy.name}"
    same = type(policy.algorithm).make_network is type(theirs.algorithm).make_network
    require(
        same,
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
                f"{field}: its {kind.replace('_', ' ')} {his} must match {mine} of {path}. Only bounds may differ."
            )


def _form(space: Space) -> Any:
    """Returns a space without its bounds: in another version of a game they may be others."""
    if isinstance(space, Dict):
        return [
            (name, _form(part)) for name, part in space.spaces.items()
        ]  # in their order, which is the network's
    return (space.shape, jnp.dtype(space.dtype)) if isinstance(space, Box) else space
