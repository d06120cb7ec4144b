"""Run a policy in many replicas for many steps, in one program, with same-step auto-reset.

`play` is equivalent to a loop of `VectorEnv.step`. On NVIDIA GPUs it compiles to a single kernel
(`wdjax.replicas`) for environments that the kernel supports. Each replica has its own keys, so its
trajectory is independent of the other replicas:

    (action, step, start) keys of replica i = split(fold_in(key, i), 3),
    step t draws the action from fold_in(action, t) and the transition from fold_in(step, t),
    episode e starts with `env.reset` from fold_in(start, e),

where t counts from `start_play` and e from 0.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.branches import select, when_any
from wdjax.checks import require_integer
from wdjax.env import Env
from wdjax.replicas import scan_replicas
from wdjax.spaces import Dict, Discrete, MultiDiscrete, Space
from wdjax.stepping import VectorState, begin_episodes, step_replicas

# Interval, in steps, at which the replicas of a block draw the starts they have used up.
DRAW_AHEAD = 8


class PlayState(struct.PyTreeNode):
    """State of the replicas, each leaf with a leading [num_envs].

    Functions of one replica, such as `play_step`, use the state of that replica, without this axis.
    """

    keys: tuple[jax.Array, jax.Array, jax.Array]  # of actions, steps and starts; constant
    time: jax.Array  # int32, steps since `start_play`
    episode: jax.Array  # int32, index of the episode, from 0
    obs: Any  # current observation
    env_state: Any  # state of the environment
    next_start: Any  # (obs, env_state) at the start of the next episode, drawn ahead
    has_next: jax.Array
    """bool: whether next_start is unused. Otherwise it is drawn again before it is needed."""
    episode_return: Any  # sum of rewards in the current episode, like the reward, float32
    episode_length: jax.Array  # int32: steps in the current episode
    episode_info: dict[str, jax.Array]  # sums of the environment's info in the current episode


class Transition(struct.PyTreeNode):
    """One step of one replica."""

    obs: Any  # observation before the step
    action: Any  # action of the policy
    reward: Any  # float32, per agent
    terminated: Any  # bool, like the reward
    truncated: Any  # bool, like the reward
    final_obs: Any  # observation returned by `env.step`
    next_obs: Any
    """Next input of the policy: final_obs, or the first observation of the next episode if over."""
    over: jax.Array
    """bool: whether the episode ended in this step. The sums below include this step."""
    episode_return: Any  # return of the episode, like the reward, float32
    episode_length: jax.Array  # () int32, steps
    episode_info: dict[str, jax.Array]  # sums of the environment's info


def start_play(env: Env, params: Any, key: jax.Array, num_envs: int) -> PlayState:
    """Start `num_envs` replicas of an environment.

    Args:
        env: the environment of one replica.
        params: environment params, shared by all replicas.
        key: a typed key.
        num_envs: number of replicas, at least 1.

    Returns:
        The initial PlayState.

    Raises:
        TypeError: if num_envs is not an integer.
        ValueError: if num_envs is below 1.
    """
    require_integer("num_envs", num_envs, 1)

    def start(key: jax.Array) -> PlayState:
        keys, zero = tuple(jax.random.split(key, 3)), jnp.int32(0)
        obs, env_state = first = env.reset(jax.random.fold_in(keys[2], 0), params)
        state = begin_episodes(env, key, env_state, params)
        return PlayState(
            keys,
            zero,
            zero,
            obs,
            env_state,
            first,
            jnp.bool_(False),
            state.episode_return,
            state.episode_length,
            state.episode_info,
        )

    return jax.vmap(start)(jax.random.split(key, num_envs))


def play(
    env: Env,
    params: Any,
    policy: Callable[[jax.Array, Any], Any],
    state: PlayState,
    num_steps: int,
    record: Callable[[Any, Transition], tuple[Any, Any]] | None = None,
    memory: Any = None,
) -> tuple[PlayState, Any, Any]:
    """Run a policy for `num_steps` in every replica.

    To control an agent yourself, in a browser, use `wdjax.play_live` or the command `wdjax play`
    (docs/how_to/play.md).

    Args:
        env: the environment of one replica.
        params: environment params. Concrete numbers give a faster kernel than traced ones.
        policy: (key, obs) -> action of one replica. Closed-over values, such as weights, are shared
            by all replicas.
        state: from `start_play` or the previous `play`.
        num_steps: number of steps T, at least 1.
        record: (memory, transition) -> (memory, output) of one replica, called after each step;
            None records nothing.
        memory: initial memory of `record`, leaves [num_envs, ...]; for example a running sum.

    Returns:
        (state, memory, outputs), with outputs [T, num_envs, ...]. Fields of the transition that
        `record` does not use cost nothing.

    Raises:
        TypeError: if num_steps is not an integer.
        ValueError: if num_steps is below 1.
    """
    require_integer("num_steps", num_steps, 1)

    def step(carry: tuple[PlayState, Any], _: None) -> tuple[tuple[PlayState, Any], Any]:
        state, memory = carry
        state, transition = play_step(env, params, policy, state)
        memory, output = record(memory, transition) if record else (memory, None)
        return (state, memory), output

    (state, memory), outputs = scan_replicas(step, (state, memory), length=num_steps)
    return state, memory, outputs


def play_step(
    env: Env, params: Any, policy: Callable[[jax.Array, Any], Any], state: PlayState
) -> tuple[PlayState, Transition]:
    """Advance one replica by one step and reset it if its episode is over."""
    action_key, step_key, _ = state.keys
    action = policy(jax.random.fold_in(action_key, state.time), state.obs)
    sums = (state.episode_return, state.episode_length, state.episode_info)
    replica = VectorState(state.env_state, *sums, (state.next_start, state.has_next))
    step_key = jax.random.fold_in(step_key, state.time)
    restart = functools.partial(_restart, env, params, state)
    obs, replica, reward, terminated, truncated, info = step_replicas(
        env, step_key, replica, action, params, restart
    )
    transition = Transition(
        state.obs,
        action,
        reward,
        terminated,
        truncated,
        info["final_obs"],
        obs,
        info["over"],
        info["episode_return"],
        info["episode_length"],
        info["episode_info"],
    )
    next_start, has_next = replica.starts
    state = PlayState(
        state.keys,
        state.time + 1,
        state.episode + info["over"],
        obs,
        replica.env_state,
        next_start,
        has_next,
        replica.episode_return,
        replica.episode_length,
        replica.episode_info,
    )
    return state, transition


def uniform_action(space: Space, key: jax.Array) -> Any:
    """Draw a uniform action like `space.sample`, at a quarter of its cost for discrete spaces.

    Each discrete component is the remainder of one random word, so its probabilities deviate by
    less than n / 2^32. A Dict draws each of its spaces this way, with separate keys.
    """
    if isinstance(space, Dict):
        return space.sample_with(uniform_action, key)
    if isinstance(space, (Discrete, MultiDiscrete)):
        sizes = jnp.asarray(space.n if isinstance(space, Discrete) else space.nvec, jnp.uint32)
        return (jax.random.bits(key, space.shape) % jnp.broadcast_to(sizes, space.shape)).astype(
            space.dtype
        )
    return space.sample(key)


def _restart(
    env: Env, params: Any, state: PlayState, over: jax.Array, current: tuple, starts: tuple
) -> tuple[Any, Any, tuple]:
    """Begin the next episode if over; the `restart` of `step_replicas`, for one replica.

    Episodes end at any time, so in nearly every step some replica of a block would make the whole
    block wait for a reset. Most starts are therefore drawn together, every DRAW_AHEAD steps.

    Args:
        env: the environment of one replica.
        params: environment params.
        state: state before the step.
        over: () bool, whether the episode ended in this step.
        current: (scene, obs, env_state) after the step.
        starts: (next_start, has_next) of the PlayState.
    """

    def draw(
        current: Any, draws: jax.Array, key: jax.Array, episode: jax.Array, params: Any
    ) -> Any:
        return select(draws, env.reset(jax.random.fold_in(key, episode + 1), params), current)

    next_start, has_next = starts
    draws = ~has_next & ((state.time % DRAW_AHEAD == 0) | over)
    inputs = (draws, state.keys[2], state.episode, params)
    next_start = when_any(draws, draw, next_start, *inputs)
    obs, env_state = select(over, next_start, current[1:])
    return obs, env_state, (next_start, (has_next | draws) & ~over)
