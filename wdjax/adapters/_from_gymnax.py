"""Wrap gymnax environments, built-in or custom, as wdjax environments."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.adapters import _foreign as foreign
from wdjax.adapters._foreign import ForeignEnv, State
from wdjax.arguments import cast_params
from wdjax.checks import require, require_known
from wdjax.spaces import Space
from wdjax.stepping import StepResult


@dataclasses.dataclass(frozen=True)
class GymnaxEnv(ForeignEnv):
    """A gymnax environment as a wdjax `Env`, made by `from_gymnax`."""

    library: ClassVar[str] = "gymnax"

    params: Any = dataclasses.field(compare=False, repr=False, metadata={"argument": False})
    """default params"""
    _values: tuple = dataclasses.field(init=False, repr=False, metadata={"argument": False})
    """hashable copy of `params`, for equality and hashing"""

    def __post_init__(self):
        leaves = jax.tree_util.tree_leaves_with_path(jax.tree.map(np.asarray, self.params))
        values = [(path, leaf.dtype.str, leaf.shape, leaf.tobytes()) for path, leaf in leaves]
        object.__setattr__(self, "_values", tuple(values))

    @property
    def can_truncate(self) -> bool:  # type: ignore[override]  # depends on the gymnax version
        """Whether the environment reports time limits separately (`is_truncated`, gymnax 1.0)."""
        return hasattr(self.inner, "is_truncated")

    @property
    def cheap_reset(self) -> bool:  # type: ignore[override]  # depends on the game
        """Whether a GPU resets in every step, without a branch: the games that gymnax contains."""
        return type(self.inner).__module__.startswith("gymnax.")

    @property
    def default_params(self) -> Any:
        return self.params

    @foreign.few_launches  # `cheap_reset`: a GPU resets in every step
    def reset(self, key: jax.Array, params: Any) -> tuple[Any, State]:
        with jax.numpy_rank_promotion("allow"):  # third-party code may rely on rank promotion
            obs, inner = self.inner.reset_env(key, params)
            obs = foreign.cast_obs(self._translate(params, obs), obs)
        return obs, foreign.first_state(inner, jnp.bool_(False))

    @foreign.few_launches
    def step(self, key: jax.Array, state: State, action: Any, params: Any) -> StepResult:
        # actions after the end must not change the observation
        action = jnp.where(state.terminated, jnp.zeros_like(action), action)
        with jax.numpy_rank_promotion("allow"):
            obs, inner, reward, ended, info = self.inner.step_env(key, state.inner, action, params)
            cut = self.inner.is_truncated(inner, params) if self.can_truncate else jnp.bool_(False)
            obs = foreign.cast_obs(self._translate(params, obs), obs)
        reward, ended = jnp.asarray(reward, jnp.float32), jnp.asarray(ended, bool)
        state, reward, terminated, info = foreign.next_state(state, inner, reward, ended, info)
        return obs, state, reward, terminated, jnp.asarray(cut, bool) & ~terminated, info

    def observation_space(self, params: Any) -> Space:
        with jax.numpy_rank_promotion("allow"):
            obs, _ = jax.eval_shape(self.inner.reset_env, jax.random.key(0), params)
            return self._translate(params, obs)

    def action_space(self, params: Any) -> Space:
        return foreign.translate_space(
            self.inner.action_space(params), f"action space of {type(self.inner).__name__}"
        )

    def _translate(self, params: Any, obs: Any) -> Space:
        return foreign.translate_space(
            self.inner.observation_space(params),
            f"observation space of {type(self.inner).__name__}",
            obs,
        )


def from_gymnax(env: Any, params: Any = None) -> tuple[GymnaxEnv, Any]:
    """Convert a gymnax environment to a wdjax environment and its params.

        env, params = wdjax.adapters.from_gymnax(MyEnv())
        wdjax.register("mine", env)  # for presets, the command line and resuming
        env, params = wdjax.make("gymnax:CartPole-v1", max_steps_in_episode=200)  # by name

    The adapter calls `reset_env` and `step_env`, never the auto-resetting `step`. Dynamics,
    observations, rewards and params are unchanged. After a termination, the state stays constant,
    the reward is 0 and observations have no meaning.

    Episode ends: with gymnax 1.0, the flag of `step_env` becomes `terminated` and `is_truncated`
    becomes `truncated`. With gymnax 0.0.9, or any environment without `is_truncated`, the single
    `done` becomes `terminated`. Time limits are then terminations, and returns do not bootstrap
    from the last observation. To avoid this, use gymnax 1.0, set `max_steps_in_episode` above the
    longest episode, or include the time in the observation. An environment written for 0.0.9 that
    inherits from the class of 1.0 still has the time limit in its `done`, so it also terminates.

    Args:
        env: an environment of gymnax 1.0 or 0.0.9, or a custom one with `reset_env`, `step_env`,
            `default_params`, `observation_space` and `action_space`.
        params: default params, of the type of `env.default_params`; None: `env.default_params`.

    Returns:
        (env, params). Numbers in params have 32 bits. Params may be traced, vmapped and swept if
        the code of the environment allows it. Supported spaces are Box, Discrete and Dict. A Box
        has the shape that `reset_env` returns, and its dtype if a cast to the declared dtype would
        lose information. `info` keeps numeric scalars except `discount`.

    Raises:
        TypeError: if `env` is not a gymnax environment, cannot be hashed or has an unsupported
            space; if `params` has another type.
        ValueError: if `params` holds values of several replicas.

    Source: github.com/RobertTLange/gymnax, gymnax/environments/environment.py.
    """
    foreign.require_environment(env, "gymnax", ("reset_env", "step_env", "default_params"))
    defaults = as_numbers(env.default_params)
    if params is not None:
        if not isinstance(params, type(defaults)):
            kind = f"{type(params).__module__}.{type(params).__name__}"
            raise TypeError(
                f"params is a {kind}: must be a {type(defaults).__name__} of {type(env).__name__}"
            )
        for name, value in vars(cast_params(params, defaults)).items():
            if isinstance(getattr(defaults, name), (bool, int, float)) and np.shape(value) != ():
                raise ValueError(
                    f"params.{name} has shape {np.shape(value)}: must be one number. "
                    "Pass the params of a single replica."
                )
        defaults = as_numbers(params)
    adapted = GymnaxEnv(env, defaults)
    params = cast_params(defaults, defaults)
    # raise errors about unsupported spaces here
    adapted.observation_space(params), adapted.action_space(params)
    return adapted, params


def make(name: str, **arguments: Any) -> tuple[GymnaxEnv, Any]:
    """Make the environment of `wdjax.make("gymnax:NAME", ...)`.

    Args:
        name: a name that `gymnax.make` accepts.
        **arguments: constructor arguments of the environment, and fields of its params.

    Raises:
        ImportError: if gymnax is not installed.
        ValueError: for an unknown name of the environment or an argument (the message contains the
            closest one), or an invalid value.
        TypeError: for a value of the wrong type.
    """
    gymnax = foreign.import_library("gymnax")
    require_known("environment of gymnax", name, gymnax.registered_envs)
    env, params = gymnax.make(name)
    constructor = foreign.argument_names(env)
    for key in arguments:
        require_known(
            f"argument of gymnax:{name}",
            key,
            constructor + [field.name for field in dataclasses.fields(params)],
        )
    static = {key: value for key, value in arguments.items() if key in constructor}
    if static:
        env, _ = gymnax.make(name, **static)
    adapted, _ = from_gymnax(env)
    defaults = adapted.default_params
    changes = {key: value for key, value in arguments.items() if key not in static}
    return adapted, cast_params(defaults.replace(**changes), defaults)


def as_numbers(params: Any) -> Any:
    """Convert scalar params to Python numbers, which give `cast_params` the expected types."""
    require(
        dataclasses.is_dataclass(params) and hasattr(params, "replace"),
        "params",
        params,
        "a flax.struct.dataclass, like the EnvParams of gymnax",
        TypeError,
    )
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    scalars = {
        name: np.asarray(value).item()
        for name, value in values.items()
        if hasattr(value, "dtype") and np.shape(value) == ()
    }
    return params.replace(**scalars)
