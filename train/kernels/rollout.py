"""Whole rollouts of a small environment and small policies as one kernel.

`rollout/scan.py` advances all replicas step by step. Here `wdjax.replicas.scan_replicas_kernel`
runs the same functions for each replica: actions of the policies, step and reset of the
environment. Random numbers are the same; they are drawn before the kernel, for all steps at once.

An iteration of the kernel advances the environment by an action and chooses the next action.
Observations therefore stay in registers and are not carried between iterations. No step needs
values and log-probabilities: where `Engine.notes_after` holds, they are computed after the rollout
for all steps at once, so that the kernel has fewer operations, and compiles and runs faster.

`step_replicas` runs one step of the environment in the same way, without policies. For larger
environments, `step_in_blocks` runs it with one program per replica.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.env import may_observe_late
from wdjax.kernels.lanes import check_size, limited
from wdjax.kernels.mapped import map_replicas_kernel
from wdjax.replicas import scan_replicas_kernel
from wdjax.spaces import Box
from wdjax.stepping import StepResult
from wdjax.train.kernels.layers import NO_KERNELS, STREAMED, first_refusal, why_unused
from wdjax.train.networks.distributions import draws_by_uniform
from wdjax.train.networks.encoders import FlatEncoder
from wdjax.train.rollout.scan import Draft, StepInputs, advance, choose_actions, with_acting_states
from wdjax.train.state.agents import scatter
from wdjax.train.state.aliases import ActingState, EnvParams, Fields, Observation
from wdjax.train.state.engine import Engine
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.rows import Rows
from wdjax.vector import VectorState

WHOLE = "whole rollouts"
STEPS = "environment steps"
MAX_AGENTS = 8  # agents of all policies, limited by registers
MAX_WIDTH = 64  # units of a layer
# Operations on elements in a kernel, see `limited`. With MPE simple_spread (2,410 with values and
# log-probabilities), ten seeds train for 11 s instead of 31 s and compile for 28 s instead of 9 s.
# With simple_tag (2,652), compilation takes longer than it saves.
MAX_OPERATIONS = 2_500
# numbers in the state of a replica; runs of smaller environments are too short to gain back the
# seconds that `step_in_blocks` compiles longer (RESULTS.md)
MIN_NUMBERS = 256


def why_by_scan(setup: Setup) -> str | None:
    """Return the reason for rollouts without this kernel, or None.

    The kernel requires a GPU and few agents with small feed-forward networks. The check runs before
    tracing.
    """
    why = why_unused() if setup.config.kernels else NO_KERNELS
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
    """Return the reason why the kernel cannot act for a policy, or None.

    The kernel requires a Box as observation, categorical actions, few narrow layers, and no carry.
    The network, the distribution and `act` may be custom: the kernel traces them.
    """
    shape = policy.engine.shape
    if shape is None:
        return policy.engine.reason
    custom = policy.algorithm.overridden("before_rollout", "init_carry")
    widths = f"{shape.num_inputs} inputs, hidden_sizes {list(shape.hidden)}"
    is_wide = not shape.is_narrow or max(*shape.hidden, shape.num_inputs) > MAX_WIDTH
    refusals = {
        # random numbers are drawn before the kernel
        "its distribution's sample is custom": not draws_by_uniform(policy.distribution),
        f"its {custom} is custom": custom is not None,
        f"its encoder is {policy.config.network.encoder}": policy.encoder is not FlatEncoder,
        "its observation is not a single Box": not isinstance(
            policy.assignment.observation_space, Box
        ),
        "it has opponents": bool(policy.config.opponents),
        "it has past_selves": bool(policy.config.past_selves),
        f"{widths}: limit is {MAX_WIDTH}": is_wide,
        f"{widths}: too many numbers in the first matrix": shape.inputs == STREAMED,
    }
    return first_refusal(refusals)


def play_replicas(
    given: StepInputs, carry: tuple, keys: jax.Array, interpret: bool = False
) -> tuple[tuple, tuple]:
    """Play a rollout as `play_by_scan`, one replica per lane.

    Args:
        given: constant inputs.
        carry: (replicas, obs, live, {policy: None}), leaves [N, ...].
        keys: [T, 1 + policies, num_blocks].
        interpret: run step by step in XLA on any device, for tests.

    Returns:
        (carry, (rows, episodes)): leaves [N, ...] and [T, N, ...].

    Raises:
        NotImplementedError: if a kernel does not support the rules of the environment.
    """
    setup = given.setup
    replicas_of_one = dataclasses.replace(setup.replicas, num_envs=1)
    # one replica: no kernel inside of the kernel
    replica = dataclasses.replace(setup, replicas=replicas_of_one, engine=Engine())
    one = dataclasses.replace(given, setup=replica)
    replicas, first_obs, live, carries = carry
    starts = replicas.starts  # shared by the replicas: stays in memory, read at resets
    env_keys, draws = setup.engine.draw(setup, {}, keys, every=True)
    # the actions of the last iteration are discarded
    next_draws = jax.tree.map(lambda numbers: jnp.roll(numbers, -1, axis=0), draws)
    at_once = jax.tree.map(lambda numbers: numbers[0], draws)
    acting = with_acting_states(given)  # the first step is before the kernel, as in a scan
    first, first_notes = apart(setup, choose_actions(acting, first_obs, carries, at_once)[0])

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
    with limited(MAX_OPERATIONS):
        (replicas, live, _), (notes, (rows, episodes)) = scan_replicas_kernel(
            step, start, (env_keys, next_draws), interpret=interpret
        )
    last_obs = scatter(setup.assignments, {name: own["obs"][-1] for name, own in notes.items()})
    behind = lambda first, later: jnp.concatenate([first[None], later[:-1]])  # noqa: E731
    rows = {
        name: own.replace(**jax.tree.map(behind, first_notes[name], notes[name]))
        for name, own in rows.items()
    }
    rows = {name: with_notes(given, name, own) for name, own in rows.items()}
    return (replicas.replace(starts=starts), last_obs, live, carries), (rows, episodes)


def with_notes(given: StepInputs, name: str, rows: Rows) -> Rows:
    """Return the transitions of a policy with values and log-probabilities, if they come after."""
    policy = given.setup.policies[name]
    if not policy.engine.notes_after(policy):
        return rows
    return rows.replace(**policy.engine.note(policy, given.players[name], rows.obs, rows.action))


def step_of_one(setup: Setup) -> Callable[..., tuple]:
    """Return `VectorEnv.step_with_keys` of one replica, as a function of leaves without [N].

    The function is step(keys, state, action, starts, params) -> (obs, state, *rest). All replicas
    share `starts`; `state.starts` is None.
    """
    one = dataclasses.replace(setup.replicas, num_envs=1)

    def step(keys: Any, state: VectorState, action: Any, starts: Any, params: EnvParams) -> tuple:
        keys, state, action = jax.tree.map(lambda leaf: leaf[None], (keys, state, action))
        obs, state, *rest = one.step_with_keys(keys, state.replace(starts=starts), action, params)
        return jax.tree.map(lambda leaf: leaf[0], (obs, state.replace(starts=None), *rest))

    return step


def step_replicas(
    setup: Setup,
    keys: Any,
    replicas: VectorState,
    action: Any,
    params: EnvParams,
    interpret: bool = False,
) -> StepResult:
    """Advance all replicas by one step as `Engine.step`, one replica per lane.

    Raises:
        NotImplementedError: if a kernel does not support the rules of the environment, or they
            have too many operations, or the state too many numbers.
    """
    of_one = step_of_one(setup)
    keys = keys if isinstance(keys, tuple) else setup.replicas.draw_keys(keys)
    starts = replicas.starts  # shared by the replicas: stays in memory, read at resets

    def step(state: VectorState, x: tuple) -> tuple[VectorState, tuple]:
        keys, action = x
        obs, state, *rest = of_one(keys, state, action, starts, params)
        return state, (obs, *rest)

    numbers = sum(leaf.size for leaf in jax.tree.leaves(replicas.env_state))
    if numbers > MAX_OPERATIONS * setup.replicas.num_envs:  # not traced, which would take a minute
        raise NotImplementedError(
            f"a state has more than {MAX_OPERATIONS:,} numbers: a kernel compiles too long"
        )
    for policy in setup.policies.values():  # not traced either
        agents, space = policy.assignment.num_agents, policy.assignment.observation_space
        check_size("an observation", (agents, *space.shape) if isinstance(space, Box) else ())
    first = jax.tree.map(lambda leaf: leaf[None], (keys, action))
    with limited(MAX_OPERATIONS):
        state, outputs = scan_replicas_kernel(
            step, replicas.replace(starts=None), first, interpret=interpret
        )
    obs, *rest = jax.tree.map(lambda leaf: leaf[0], outputs)
    return obs, state.replace(starts=starts), *rest


def step_by_kernel(setup: Setup, *operands: Any) -> StepResult:
    """Advance all replicas by `step_replicas` or, if it does not support them, `step_in_blocks`.

    Raises:
        NotImplementedError: if neither supports the rules of the environment; by the first.
    """
    try:
        return step_replicas(setup, *operands)
    except NotImplementedError:
        with contextlib.suppress(NotImplementedError):
            return step_in_blocks(setup, *operands)
        raise


def step_in_blocks(
    setup: Setup,
    keys: Any,
    replicas: VectorState,
    action: Any,
    params: EnvParams,
    interpret: bool = False,
) -> StepResult:
    """Advance all replicas by one step as `Engine.step`, one program per replica.

    Only for environments that observe late, whose observations another kernel computes.

    Raises:
        NotImplementedError: if such a program does not support the environment, or would not pay.
    """
    if not may_observe_late(setup.env):  # the next checks are before tracing, which takes a while
        raise NotImplementedError("a step that includes its observation")
    numbers = sum(leaf.size for leaf in jax.tree.leaves(replicas.env_state))
    if numbers < MIN_NUMBERS * setup.replicas.num_envs:
        raise NotImplementedError(f"a state has less than {MIN_NUMBERS} numbers")
    keys = keys if isinstance(keys, tuple) else setup.replicas.draw_keys(keys)
    of_one = step_of_one(setup)
    obs, state, *rest = map_replicas_kernel(
        lambda replica, shared: of_one(*replica, *shared),
        (keys, replicas.replace(starts=None), action),
        (replicas.starts, params),
        interpret,
        partly=interpret,  # on a CPU, observations have no kernel: XLA computes them
    )
    return obs, state.replace(starts=replicas.starts), *rest


def apart(
    setup: Setup, drafts: Mapping[str, Draft]
) -> tuple[dict[str, jax.Array], dict[str, Draft]]:
    """Return (actions, other fields) of the drafts of `choose_actions`, by policy.

    Observations are the only other field of a policy that is not trained, or whose notes are
    computed after the rollout.
    """

    def kept(name: str, field: str) -> bool:
        policy = setup.policies[name]
        in_kernel = policy.config.trainable and not policy.engine.notes_after(policy)
        return field == "obs" or (field != "action" and in_kernel)

    notes = {
        name: {f: value for f, value in draft.items() if kept(name, f)}
        for name, draft in drafts.items()
    }
    return {name: draft["action"] for name, draft in drafts.items()}, notes


def act_by_agent(
    act: Callable[..., tuple],
    policy: Policy,
    player: ActingState,
    carry: None,
    seen: Observation,
    draws: jax.Array,
    hypers: Hypers,
) -> tuple[jax.Array, Fields, None]:
    """Call `Algorithm.act` for the agents of one replica, [1, n, ...].

    Agents run in parallel lanes, so that the kernel contains the network once and not once per
    agent. A custom `act` receives all agents at once, since it may combine them.
    """
    if policy.algorithm.overridden("act"):
        return act(policy, player, carry, seen, draws, hypers)

    def one(inputs: tuple) -> tuple:
        seen, draws = jax.tree.map(lambda leaf: leaf[None, None], inputs)
        return jax.tree.map(
            lambda leaf: leaf[0, 0], act(policy, player, carry, seen, draws, hypers)[:2]
        )

    action, notes = jax.lax.map(one, jax.tree.map(lambda leaf: leaf[0], (seen, draws)))
    return *jax.tree.map(lambda leaf: leaf[None], (action, notes)), carry
