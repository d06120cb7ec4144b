"""Batches of environment replicas with same-step auto-reset."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.checks import require, require_integer, require_key, require_known
from wdjax.env import Env, may_observe_late, require_action, require_batched_spaces


@dataclasses.dataclass(frozen=True)
class ResetPool:
    """Reset strategy that picks uniformly one of `n` starts drawn once, by `VectorEnv.reset`."""

    n: int  # number of starts, at least 1

    def __post_init__(self):
        require_integer("ResetPool.n", self.n, 1)


RESERVED_INFO = ("over", "final_obs", "episode_return", "episode_length", "episode_info")

ResetStrategy = Literal["fresh", "fixed"] | ResetPool
# obs, state, reward, terminated, truncated, info
StepResult = tuple[Any, Any, Any, Any, Any, dict[str, Any]]


class VectorState(struct.PyTreeNode):
    """State of a batch: environment states, running episode statistics, and shared starts."""

    env_state: Any  # the environment's state, each leaf with a leading [num_envs]
    episode_return: Any  # sum of rewards, structured like the reward, [num_envs, ...] float32
    episode_length: jax.Array  # [num_envs] int32: steps in the current episode
    episode_info: dict[str, jax.Array]
    """Sums of the environment's info over the current episode, each [num_envs]."""
    starts: Any
    """(obs, state) of the n starts, [n, ...] ([num_envs, n, ...] with params_axis=0); None for
    "fresh"."""


@dataclasses.dataclass(frozen=True)
class VectorEnv:
    """`num_envs` replicas of an environment, with `reset` and `step`; made by `vectorize`."""

    env: Env  # the environment of one replica
    num_envs: int  # number of replicas
    reset_strategy: ResetStrategy = "fresh"  # "fresh", "fixed" or a ResetPool
    params_axis: int | None = None
    """0 if params have a leading [num_envs]; None if all replicas share them."""

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, VectorState]:
        """Start a new episode in every replica.

        Args:
            key: a typed key.
            params: environment params; each leaf with a leading [num_envs] if params_axis is 0.

        Returns:
            (obs, state), each leaf with a leading [num_envs].
        """
        _check_key(key, self.num_envs)
        self._check_params(params)
        one = params if self.params_axis is None else jax.tree.map(lambda leaf: leaf[0], params)
        require_batched_spaces(self.env, one)
        pool_key, start_key, probe_key = jax.random.split(key, 3)
        starts = self._draw_starts(pool_key, params)
        obs, env_state = self.start(self._replica_keys(start_key), params, starts)
        _, _, reward, _, _, info = jax.eval_shape(self._probe_step, probe_key, env_state, params)
        state = VectorState(
            env_state=env_state,
            episode_return=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), reward),
            episode_length=jnp.zeros(self.num_envs, jnp.int32),
            episode_info=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info),
            starts=starts,
        )
        return obs, state

    def step(self, key: jax.Array, state: VectorState, action: Any, params: Any) -> StepResult:
        """Advance every replica by one step and reset those whose episode is over.

        Args:
            key: a typed key, or `[num_blocks]` keys, one per block of num_envs / num_blocks
                consecutive replicas.
            state: from `reset` or the previous `step`.
            action: structured like the environment's, each leaf with a leading [num_envs].
            params: environment params; each leaf with a leading [num_envs] if params_axis is 0.

        Returns:
            (obs, state, reward, terminated, truncated, info). `info` contains the environment's
            info of this step and these entries:

            * over: [num_envs] bool, whether the episode ended in this step. In these replicas,
              `obs` is the first observation of the next episode.
            * final_obs: the observation before the reset. It equals `obs` in the other replicas,
              including those where some agents were truncated before the rest.
            * episode_return, episode_length ([num_envs] int32), episode_info: return, length and
              sums of the environment's info since the start of the episode, this step included.
        """
        _check_key(key, self.num_envs)
        self._check_state(state)
        replica_params = params
        if self.params_axis == 0:
            replica_params = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)),
                params,
            )
        require_action(self.env, action, replica_params, self.num_envs)
        return self._advance(self._replica_keys, *_split(key), state, action, params)

    def draw_keys(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Split a key as `step` does, into a step key and a start key for every replica.

        Args:
            key: a typed key, or [num_blocks] keys, as for `step`.

        Returns:
            (step keys, start keys), [num_envs] each. `step` uses the start key of a replica only if
            its episode ends.
        """
        _check_key(key, self.num_envs)
        step_key, start_key = _split(key)
        return self._replica_keys(step_key), self._replica_keys(start_key)

    def step_with_keys(
        self, keys: tuple[jax.Array, jax.Array], state: VectorState, action: Any, params: Any
    ) -> StepResult:
        """Advance like `step`, with the keys returned by `draw_keys`."""
        return self._advance(lambda keys: keys, *keys, state, action, params)

    def _advance(
        self,
        replica_keys: Callable,
        step_key: jax.Array,
        start_key: jax.Array,
        state: VectorState,
        action: Any,
        params: Any,
    ) -> StepResult:
        """Implement `step`; `replica_keys` expands `step_key`, and `start_key` on a reset."""
        scene, env_state, reward, terminated, truncated, env_info = self._advance_replicas(
            replica_keys(step_key), state.env_state, action, params
        )
        final_obs = self._observe(scene, params)
        over = all_agents(jax.tree.map(jnp.logical_or, terminated, truncated))
        sums = (state.episode_return, state.episode_length, state.episode_info)
        sums = jax.tree.map(jnp.add, sums, (reward, 1, env_info))
        info = {**env_info, **dict(zip(RESERVED_INFO, (over, final_obs, *sums), strict=True))}

        current = (scene, final_obs, env_state)
        obs, env_state = self._restart(replica_keys, over, start_key, current, params, state.starts)
        sums = select(over, jax.tree.map(jnp.zeros_like, sums), sums)
        state = VectorState(env_state, *sums, state.starts)
        return obs, state, reward, terminated, truncated, info

    def _restart(
        self,
        replica_keys: Callable,
        over: jax.Array,
        key: jax.Array,
        current: tuple,
        params: Any,
        starts: Any,
    ) -> tuple[Any, Any]:
        """Return (obs, env_state) with new starts where over; current = (scene, obs, env_state)."""
        late, (scene, final_obs, env_state) = self._observes_late, current

        def restart(
            current: tuple, over: jax.Array, key: jax.Array, params: Any, starts: Any
        ) -> tuple:
            obs, env_state = self.start(replica_keys(key), params, starts)
            return select(over, (env_state if late else obs, env_state), current)

        restart_any = when_any if not self.env.cheap_reset else always_on_cuda
        scene, env_state = restart_any(over, restart, (scene, env_state), over, key, params, starts)
        return self._observe_again(over, scene, final_obs, params) if late else scene, env_state

    def _observe_again(self, over: jax.Array, scene: Any, final_obs: Any, params: Any) -> Any:
        """Return the observations after a restart: new where over, final_obs elsewhere.

        On NVIDIA GPUs all scenes are observed again, without a branch. This adds no cost if
        final_obs is unused, because XLA then removes its computation.
        """

        def observe(over, scene, final_obs, params) -> Any:
            return self._observe(scene, params)

        def where_over(current: Any, over: jax.Array, scene: Any, params: Any) -> Any:
            return select(over, self._observe(scene, params), current)

        def branch(over, scene, final_obs, params) -> Any:
            return when_any(over, where_over, final_obs, over, scene, params)

        return jax.lax.platform_dependent(
            over, scene, final_obs, params, cuda=observe, default=branch
        )

    def _check_params(self, params: Any) -> None:
        expected = type(self.env.default_params)
        if not isinstance(params, expected):
            name, env = expected.__qualname__, type(self.env).__name__
            raise TypeError(
                f"params = {params!r}: must be a {name} of {env}. Pass the params from wdjax.make."
            )
        if self.params_axis is None:
            return
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            name, shape = jax.tree_util.keystr(path).lstrip("."), jnp.shape(leaf)
            allowed = (
                f"an array with a leading axis of {self.num_envs}, because params_axis = 0. "
                "Broadcast shared values"
            )
            require(shape[:1] == (self.num_envs,), f"params.{name}", leaf, allowed)

    def _check_state(self, state: Any) -> None:
        allowed = f"the VectorState returned by reset, with {self.num_envs} replicas"
        if not isinstance(state, VectorState):
            raise TypeError(
                f"state = {type(state).__name__}: must be {allowed}, not the state of one replica"
            )
        require(
            jnp.shape(state.episode_length) == (self.num_envs,),
            "state of",
            jnp.shape(state.episode_length),
            allowed,
        )

    def _probe_step(self, key: jax.Array, env_state: Any, params: Any) -> tuple:
        """Step with random actions; `reset` traces it to infer the shapes of the outputs."""
        action_key, step_key = jax.random.split(key)

        def draw(key, params) -> Any:
            return self.env.action_space(params).sample(key)

        action = jax.vmap(draw, (0, self.params_axis))(self._replica_keys(action_key), params)
        return self._advance_replicas(self._replica_keys(step_key), env_state, action, params)

    def _advance_replicas(self, keys: jax.Array, env_state: Any, action: Any, params: Any) -> tuple:
        """Step every replica. If `_observes_late`, the first output is a scene, otherwise obs."""
        advance = self.env.advance if self._observes_late else self.env.step
        in_axes = (0, 0, 0, self.params_axis)
        *outputs, info = jax.vmap(advance, in_axes)(keys, env_state, action, params)
        return *outputs, as_counts(info)

    def _observe(self, scene: Any, params: Any) -> Any:
        if not self._observes_late:
            return scene
        return jax.vmap(self.env.observe, (0, self.params_axis))(scene, params)

    def start(self, keys: jax.Array, params: Any, starts: Any) -> tuple[Any, Any]:
        """Return (obs, env_state) of a new start for every replica, from [num_envs] keys."""
        if self.reset_strategy == "fresh":
            return jax.vmap(self.env.reset, (0, self.params_axis))(keys, params)
        index = jax.vmap(lambda key: jax.random.randint(key, (), 0, self._num_starts, jnp.int32))(
            keys
        )

        def take(starts, i) -> Any:
            return jax.tree.map(lambda leaf: leaf[i], starts)

        return jax.vmap(take, (self.params_axis, 0))(starts, index)

    @property
    def _observes_late(self) -> bool:
        return may_observe_late(self.env)

    @property
    def _num_starts(self) -> int:
        return getattr(self.reset_strategy, "n", 1)

    def _draw_starts(self, key: jax.Array, params: Any) -> Any:
        if self.reset_strategy == "fresh":
            return None
        keys = jax.random.split(key, self._num_starts)

        def draw(params) -> Any:
            return jax.vmap(self.env.reset, (0, None))(keys, params)

        return draw(params) if self.params_axis is None else jax.vmap(draw)(params)

    def _replica_keys(self, key: jax.Array) -> jax.Array:
        """Return [num_envs] keys, split from one key or from [num_blocks] keys, one per block."""
        if key.ndim == 0:
            return jax.random.split(key, self.num_envs)
        blocks = key.shape[0]
        return jax.vmap(lambda key: jax.random.split(key, self.num_envs // blocks))(key).reshape(
            self.num_envs
        )


def vectorize(
    env: Env, num_envs: int, reset: ResetStrategy = "fresh", params_axis: int | None = None
) -> VectorEnv:
    """Vectorize an environment over `num_envs` replicas, with same-step auto-reset.

    Args:
        env: the environment of one replica.
        num_envs: number of replicas.
        reset: "fresh" draws a new start at every reset, "fixed" draws one start for all resets, and
            ResetPool(n) draws n starts to choose from.
        params_axis: None if all replicas share params; 0 if every leaf of params has a leading
            [num_envs].

    Returns:
        A VectorEnv, with `reset` and `step`.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an argument with an invalid value.
    """
    if not isinstance(env, Env):
        raise TypeError(
            f"env = {env!r}: must be a wdjax.Env. Pass the environment from wdjax.make."
        )
    require_integer("num_envs", num_envs, 1)
    if not isinstance(reset, ResetPool):
        require_known("reset strategy", reset, ("fresh", "fixed"))
    if params_axis not in (None, 0):
        raise ValueError(f"params_axis = {params_axis!r}: must be None or 0")
    return VectorEnv(env, num_envs, reset, params_axis)


def when_any(condition: jax.Array, function: Callable, current: Any, *operands: Any) -> Any:
    """Return `function(current, *operands)` if any `condition` holds, else `current` at no cost.

    `function` runs for the whole batch if the condition holds in any row, also under vmap. It must
    therefore return `current` unchanged in rows where the condition is false. (Under vmap,
    `lax.cond` would become a select that always computes both branches.)
    """

    @jax.custom_batching.custom_vmap
    def branch(condition: jax.Array, current: Any, *operands: Any) -> Any:
        def call(current, *operands) -> Any:
            return function(current, *operands)

        return jax.lax.cond(
            jnp.any(condition), call, lambda current, *operands: current, current, *operands
        )

    @branch.def_vmap
    def batched(
        axis_size: int, in_batched: Any, condition: jax.Array, current: Any, *operands: Any
    ) -> Any:
        def spread(leaf, is_batched) -> jax.Array:
            return leaf if is_batched else jnp.broadcast_to(leaf, (axis_size, *leaf.shape))

        current = jax.tree.map(spread, current, in_batched[1])
        in_axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(in_batched[2:]))
        over_members = jax.vmap(function, in_axes=(0, *in_axes), axis_size=axis_size)
        result = when_any(condition, over_members, current, *operands)
        return result, jax.tree.map(lambda _: True, result)

    return branch(condition, current, *operands)


def always_on_cuda(condition: jax.Array, function: Callable, current: Any, *operands: Any) -> Any:
    """Apply `when_any` on most devices, but always call `function` on NVIDIA GPUs.

    For a function that only draws a few numbers, this is cheaper than a branch, which requires a
    synchronization with the host.
    """

    def call(condition, current, *operands) -> Any:
        return function(current, *operands)

    def branch(condition, current, *operands) -> Any:
        return when_any(condition, function, current, *operands)

    return jax.lax.platform_dependent(condition, current, *operands, cuda=call, default=branch)


def as_counts(info: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return an environment's info ([num_envs] each) with bools converted to summable int32.

    Raises:
        ValueError: for a statistic that is not a scalar or that has a reserved name.
    """
    for name, values in info.items():
        require(
            name not in RESERVED_INFO,
            "name in info",
            name,
            f"none of the reserved names {', '.join(RESERVED_INFO)}",
        )
        require(
            values.ndim == 1,
            f"info[{name!r}]",
            f"array of {values.shape[1:]}",
            "a scalar per step",
        )
    return {
        name: values.astype(jnp.int32) if values.dtype == bool else values
        for name, values in info.items()
    }


def all_agents(flags: Any) -> jax.Array:
    """Return [num_envs] bool: all agents flagged; leaves are [num_envs] or [num_envs, n]."""
    leaves = [leaf.reshape(leaf.shape[0], -1).all(axis=1) for leaf in jax.tree.leaves(flags)]
    return jnp.stack(leaves).all(axis=0)


def select(rows: jax.Array, chosen: Any, other: Any) -> Any:
    """Return `chosen` in the selected rows ([num_envs] bool) of every leaf, `other` elsewhere."""

    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(rows.reshape(rows.shape + (1,) * (a.ndim - rows.ndim)), a, b)

    return jax.tree.map(pick, chosen, other)


def _check_key(key: jax.Array, num_envs: int) -> None:
    require_key(key)
    if key.ndim == 1:
        blocks = key.shape[0]
        require(
            num_envs % blocks == 0, "number of keys", blocks, f"a divisor of num_envs = {num_envs}"
        )


def _split(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    pair = jax.random.split(key) if key.ndim == 0 else jax.vmap(jax.random.split)(key)
    return pair[..., 0], pair[..., 1]
