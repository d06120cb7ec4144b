"""A whole rollout of a small environment as one kernel: rules and small policies, replica by replica.

What `rollout/scan.py` does step by step for all replicas, `wdjax.replicas.scan_replicas_kernel` does here for one, by
the same functions: the actions of the policies, a step of the environment, the reset behind it. Random numbers are the
same: those that a block of replicas draws in a step are drawn before the kernel, for all steps at once.

A round of the kernel is what follows from an action, and then the next action, so that an observation goes from the
rules into the network in registers, and is never carried to another round.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.replicas import scan_replicas_kernel
from wdjax.spaces import Box
from wdjax.train.kernels.layers import why_unused
from wdjax.train.networks.draws import draws_by_uniform
from wdjax.train.rollout.step import StepInputs, advance, choose_actions
from wdjax.train.state.agents import scatter
from wdjax.train.state.policy import Policy, Setup

WHOLE = "whole rollouts"
MAX_AGENTS = 8  # of all policies: each has numbers of its own in registers
MAX_WIDTH = 64  # of a layer


def why_by_scan(setup: Setup) -> str | None:
    """Returns why not to try a rollout as one kernel, before anything is traced, or None: there is a GPU, and few
    agents act by small feed-forward networks."""
    why = why_unused() if setup.config.kernels else "kernels: false"
    if why is not None:
        return why
    if setup.keeps:
        return f"an algorithm keeps {', '.join(sorted(setup.keeps))}"
    agents = sum(policy.assignment.num_agents for policy in setup.policies.values())
    if agents > MAX_AGENTS:
        return f"{agents} agents: the rollout kernel supports at most {MAX_AGENTS}"
    found = {name: _why_not_acting(policy) for name, policy in setup.policies.items()}
    return next((f"{name}: {why}" for name, why in found.items() if why is not None), None)


def _why_not_acting(policy: Policy) -> str | None:
    """Return why such a kernel cannot act for this policy, or None: it sees a row of numbers, has categorical actions,
    few and narrow layers, and carries nothing.

    Its network, distribution and `act` may be custom: the kernel traces them.
    """
    shape = policy.engine.shape
    if shape is None:
        return policy.engine.reason
    if not draws_by_uniform(policy.distribution):
        return "its distribution's sample is custom"  # the kernel's actions follow from numbers that were drawn before
    if custom := policy.algorithm.overridden("before_rollout", "init_carry"):
        return f"its {custom} is custom"
    if not isinstance(policy.assignment.observation_space, Box):
        return "its observation is not a single Box"
    if policy.config.opponents:
        return "it has opponents"
    if policy.config.past_selves:
        return "it has past_selves"
    narrow = shape.is_narrow and max(*shape.hidden, shape.num_inputs) <= MAX_WIDTH
    return (
        None
        if narrow
        else f"{shape.num_inputs} inputs, hidden_sizes {list(shape.hidden)}: limit is {MAX_WIDTH}"
    )


def play_replicas(
    given: StepInputs, carry: tuple, keys: jax.Array, interpret: bool = False
) -> tuple[tuple, tuple]:
    """`play_by_scan`, replica by replica.

    Args:
        carry: (replicas, obs, live, {policy: None}), leaves [N, ...].
        keys: [T, 1 + policies, num_blocks].
        interpret: step by step in XLA, on any device, for tests.

    Returns:
        (carry, (rows, episodes)): leaves [N, ...] and [T, N, ...].

    Raises:
        NotImplementedError: for rules that have no place in a kernel.
    """
    setup = given.setup
    replica = dataclasses.replace(setup, replicas=dataclasses.replace(setup.replicas, num_envs=1))
    one = dataclasses.replace(given, setup=replica)
    replicas, first_obs, live, carries = carry
    starts = (
        replicas.starts
    )  # no replica's own: they stay in memory, and those that begin anew read theirs
    env_keys, draws = setup.engine.draw(setup, {}, keys, every=True)
    next_draws = jax.tree.map(
        lambda numbers: jnp.roll(numbers, -1, axis=0), draws
    )  # nobody sees what the last chooses
    at_once = jax.tree.map(lambda numbers: numbers[0], draws)
    first, first_notes = apart(setup, choose_actions(given, first_obs, carries, at_once)[0])

    def step(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
        (replicas, live, actions), (env_keys, draws) = jax.tree.map(
            lambda leaf: leaf[None], (carry, x)
        )
        drafts = {name: {"obs": None, "action": action} for name, action in actions.items()}
        replicas = replicas.replace(starts=starts)
        (replicas, obs, live, _), outcome = advance(
            one, (replicas, None, live, carries), drafts, env_keys
        )
        actions, notes = apart(setup, choose_actions(one, obs, carries, draws, act_by_agent)[0])
        after = (replicas.replace(starts=None), live, actions)
        return jax.tree.map(lambda leaf: leaf[0], (after, (notes, outcome)))

    start = (replicas.replace(starts=None), live, first)
    (replicas, live, _), (notes, (rows, episodes)) = scan_replicas_kernel(
        step, start, (env_keys, next_draws), interpret=interpret
    )
    last_obs = scatter(setup.assignments, {name: own["obs"][-1] for name, own in notes.items()})
    behind = lambda first, later: jnp.concatenate([first[None], later[:-1]])  # noqa: E731
    rows = {
        name: own.replace(**jax.tree.map(behind, first_notes[name], notes[name]))
        for name, own in rows.items()
    }
    return (replicas.replace(starts=starts), last_obs, live, carries), (rows, episodes)


def apart(
    setup: Setup, drafts: Mapping[str, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns (actions, what else is noted of them) of `choose_actions`' drafts, by policy: the next round needs the
    actions, nobody else's notes than those of who learns, and everybody's observations."""

    def kept(name: str, field: str) -> bool:
        return field == "obs" or (field != "action" and setup.policies[name].config.trainable)

    notes = {
        name: {f: value for f, value in draft.items() if kept(name, f)}
        for name, draft in drafts.items()
    }
    return {name: draft["action"] for name, draft in drafts.items()}, notes


def act_by_agent(
    act: Callable[..., tuple],
    policy: Policy,
    player: Any,
    carry: None,
    seen: Any,
    draws: jax.Array,
    hypers: Any,
) -> tuple[Any, dict[str, jax.Array], None]:
    """`Algorithm.act` for the agents of one replica, [1, n, ...]: a kernel gives each lanes of its own, and holds the
    network once, not once for each. A custom `act` gets all agents together: it may combine them."""
    if policy.algorithm.overridden("act"):
        return act(policy, player, carry, seen, draws, hypers)

    def one(inputs: tuple) -> tuple:
        seen, draws = jax.tree.map(lambda leaf: leaf[None, None], inputs)
        return jax.tree.map(
            lambda leaf: leaf[0, 0], act(policy, player, carry, seen, draws, hypers)[:2]
        )

    action, notes = jax.lax.map(one, jax.tree.map(lambda leaf: leaf[0], (seen, draws)))
    return *jax.tree.map(lambda leaf: leaf[None], (action, notes)), carry
