"""Batches of environment replicas with same-step auto-reset."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from wdjax.branches import always_on_cuda, select, when_any
from wdjax.checks import require, require_integer, require_key, require_known
from wdjax.env import Env, may_observe_late, require_action, require_batched_spaces, require_params
from wdjax.kernels.backend import cuda_or_default
from wdjax.stepping import RESERVED_INFO as RESERVED_INFO
from wdjax.stepping import StepResult, VectorState, begin_episodes, step_replicas


@dataclasses.dataclass(frozen=True)
class ResetPool:
    """Reset strategy that picks uniformly one of `n` starts drawn once, by `VectorEnv.reset`."""

    n: int  # number of starts, at least 1

    def __post_init__(self):
        require_integer("ResetPool.n", self.n, 1)


ResetStrategy = Literal["fresh", "fixed"] | ResetPool


@dataclasses.dataclass(frozen=True)
class VectorEnv:
    """`num_envs` replicas of an environment, with `reset` and `step`; made by `vectorize`."""

    env: Env  # the environment of one replica
    num_envs: int  # number of replicas
    reset_strategy: ResetStrategy = "fresh"  # "fresh", "fixed" or a ResetPool
    params_axis: int | None = None
    """0 if params have a leading [num_envs]; None if all replicas share them."""
    with_final_state: bool = False
    """Whether `info` also has "final_state", the environment's state before any reset."""

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, VectorState]:
        """Start a new episode in every replica.

        Args:
            key: a typed key.
            params: environment params; each leaf with a leading [num_envs] if params_axis is 0.

        Returns:
            (obs, state), each leaf with a leading [num_envs].
        """
        require_key(key)
        require(key.ndim == 0, "key of shape", key.shape, "a single key, of shape ()")
        self._check_params(params)
        one = params if self.params_axis is None else jax.tree.map(lambda leaf: leaf[0], params)
        require_batched_spaces(self.env, one)
        pool_key, start_key, _ = jax.random.split(key, 3)
        starts, keys = self._draw_starts(pool_key, params), self._replica_keys(start_key)
        obs, env_state = self.start(keys, params, starts)
        return obs, begin_episodes(self.env, keys, env_state, params, starts, self.params_axis)

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
        require_params(self.env, params)
        self._check_state(state)
        replica_params = params
        if self.params_axis == 0:
            replica_params = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)),
                params,
            )
        require_action(self.env, action, replica_params, self.num_envs)
        return self.step_with_keys(_split(key), state, action, params, self._replica_keys)

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
        self,
        keys: tuple[jax.Array, jax.Array],
        state: VectorState,
        action: Any,
        params: Any,
        expand: Callable[[jax.Array], jax.Array] = lambda keys: keys,
    ) -> StepResult:
        """Advance like `step`, with the keys returned by `draw_keys`.

        `expand` returns the keys of all replicas. The second of `keys` is expanded on a reset only.
        """
        step_key, start_key = keys
        restart = functools.partial(self._restart, expand, start_key, params)
        return step_replicas(
            self.env,
            expand(step_key),
            state,
            action,
            params,
            restart,
            self.params_axis,
            self.with_final_state,
        )

    def _restart(
        self,
        expand: Callable[[jax.Array], jax.Array],
        key: jax.Array,
        params: Any,
        over: jax.Array,
        current: tuple,
        starts: Any,
    ) -> tuple[Any, Any, Any]:
        """Start new episodes where over; the `restart` of `step_replicas`."""
        late, (scene, final_obs, env_state) = may_observe_late(self.env), current

        def draw(
            current: tuple, over: jax.Array, key: jax.Array, params: Any, starts: Any
        ) -> tuple:
            obs, env_state = self.start(expand(key), params, starts)
            return select(over, (env_state if late else obs, env_state), current)

        draw_where = when_any if not self.env.cheap_reset else always_on_cuda
        scene, env_state = draw_where(over, draw, (scene, env_state), over, key, params, starts)
        obs = self._observe_again(over, scene, final_obs, params) if late else scene
        return obs, env_state, starts

    def _observe_again(self, over: jax.Array, scene: Any, final_obs: Any, params: Any) -> Any:
        """Return the observations after a restart: new where over, final_obs elsewhere.

        On NVIDIA GPUs all scenes are observed again, without a branch. This adds no cost if
        final_obs is unused, because XLA then removes its computation.
        """

        def where_over(current: Any, over: jax.Array, scene: Any, params: Any) -> Any:
            return select(over, self._observe(scene, params), current)

        return cuda_or_default(
            lambda over, scene, final_obs, params: self._observe(scene, params),
            lambda over, scene, final_obs, params: when_any(
                over, where_over, final_obs, over, scene, params
            ),
            *(over, scene, final_obs, params),
        )

    def _check_params(self, params: Any) -> None:
        require_params(self.env, params)
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

    def _observe(self, scene: Any, params: Any) -> Any:
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
    require(
        isinstance(env, Env),
        "env",
        env,
        "a wdjax.Env. Pass the environment from wdjax.make",
        TypeError,
    )
    require_integer("num_envs", num_envs, 1)
    if not isinstance(reset, ResetPool):
        require_known("reset strategy", reset, ("fresh", "fixed"))
    require(params_axis in (None, 0), "params_axis", params_axis, "None or 0")
    return VectorEnv(env, num_envs, reset, params_axis)


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
