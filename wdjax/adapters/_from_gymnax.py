"""The way in for gymnax: its environments, and a user's own in its form, as wdjax environments."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.adapters import _foreign as foreign
from wdjax.adapters._foreign import ForeignEnv, State
from wdjax.checks import require_known
from wdjax.env import cast_params
from wdjax.spaces import Space
from wdjax.vector import StepResult


@dataclasses.dataclass(frozen=True)
class GymnaxEnv(ForeignEnv):
    """A gymnax environment as wdjax knows one: see `from_gymnax`."""

    library: ClassVar[str] = "gymnax"

    params: Any = dataclasses.field(compare=False, repr=False, metadata={"argument": False})
    """the default ones"""
    _values: tuple = dataclasses.field(init=False, repr=False, metadata={"argument": False})
    """theirs, to compare"""

    def __post_init__(self):
        leaves = jax.tree_util.tree_leaves_with_path(self.params)
        named = [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in leaves]
        values = tuple((name, leaf.dtype.str, leaf.shape, leaf.tobytes()) for name, leaf in named)
        object.__setattr__(self, "_values", values)

    @property
    def can_truncate(self) -> bool:
        """Whether the game tells time limits apart: those of gymnax 1.0 do, a bare `done` does not."""
        return hasattr(self.inner, "is_truncated")

    @property
    def default_params(self) -> Any:
        return self.params

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, State]:
        with jax.numpy_rank_promotion("allow"):  # other people's games have their own habits
            obs, inner = self.inner.reset_env(key, params)
            obs = foreign.cast_obs(self._translate(params, obs), obs)
        return obs, foreign.first_state(inner, obs, jnp.bool_(False))

    def step(self, key: jax.Array, state: State, action: Any, params: Any) -> StepResult:
        with jax.numpy_rank_promotion("allow"):
            obs, inner, reward, ended, info = self.inner.step_env(key, state.inner, action, params)
            cut = self.inner.is_truncated(inner, params) if self.can_truncate else jnp.bool_(False)
            obs = foreign.cast_obs(self._translate(params, obs), obs)
        reward, ended = jnp.asarray(reward, jnp.float32), jnp.asarray(ended, bool)
        obs, state, reward, terminated, info = foreign.next_state(
            state, inner, obs, reward, ended, info
        )
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
    """Returns a gymnax environment as a wdjax one, and its params: what `wdjax.make` returns for a name.

        env, params = wdjax.adapters.from_gymnax(MyEnv())
        wdjax.register("mine", env)                     # now presets, the command line and resumption know it
        env, params = wdjax.make("gymnax:CartPole-v1", max_steps_in_episode=200)          # gymnax's own have names

    gymnax's `step_env` and `reset_env` are called, never its auto-resetting `step`. Its rules, observations, rewards
    and params stay as they are. After a termination state and observation stay, and the reward is 0.

    Ends. gymnax 1.0: what `step_env` returns is `terminated`, `is_truncated` the time limit. gymnax 0.0.9 (and any
    environment without `is_truncated`): the one `done` becomes `terminated`. Its time limits are then deaths: the
    learner takes what follows for worth nothing, where the game would have gone on. Against that, use gymnax 1.0, or
    set the limit beyond any episode that ends by itself (`max_steps_in_episode`), or show the agent the time. An
    environment written for 0.0.9 that inherits from 1.0's class still has the time limit in its `done`, which wins.

    Args:
        env: an environment of gymnax 1.0 or 0.0.9, or one's own in its form: `reset_env`, `step_env`, `default_params`,
            `observation_space`, `action_space`.
        params: what its params are by default, of the type of its `default_params` (None: these).

    Returns:
        (env, params): the params with numbers of 32 bits; they may be traced, vmapped and swept where gymnax's own
        code allows it. Spaces: Box, Discrete, Dict. A Box takes shape, and where the cast would lose something dtype,
        from what `reset_env` returns. Of `info` the scalars are kept (`discount` is not).

    Raises:
        TypeError: for what is no such environment, cannot be hashed, or has a space without a counterpart in wdjax;
            for params of another environment.
        ValueError: for params of several replicas.

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
                    f"params.{name} has the shape {np.shape(value)}: must be one number, of one replica"
                )
        defaults = as_numbers(params)
    adapted = GymnaxEnv(env, defaults)
    params = cast_params(defaults, defaults)
    # what cannot be translated is refused here
    adapted.observation_space(params), adapted.action_space(params)
    return adapted, params


def make(name: str, **arguments: Any) -> tuple[GymnaxEnv, Any]:
    """`wdjax.make("gymnax:NAME", ...)`: arguments are those of the environment's constructor, and fields of its params.

    Raises:
        ImportError: where gymnax is not installed.
        ValueError, TypeError: for an unknown name, with the nearest right one, or a wrong value.
    """
    gymnax = foreign.import_library("gymnax")
    require_known("environment of gymnax", name, gymnax.registered_envs)
    env, params = gymnax.make(name)
    constructor = foreign.argument_names(env)
    for key in arguments:
        known = constructor + [field.name for field in dataclasses.fields(params)]
        require_known(f"argument of gymnax:{name}", key, known)
    static = {key: value for key, value in arguments.items() if key in constructor}
    if static:
        env, _ = gymnax.make(name, **static)
    adapted, _ = from_gymnax(env)
    defaults = adapted.default_params
    changes = {key: value for key, value in arguments.items() if key not in static}
    return adapted, cast_params(defaults.replace(**changes), defaults)


def as_numbers(params: Any) -> Any:
    """Returns params with every scalar as a Python number, from which `cast_params` reads what kind it must be."""
    if not (dataclasses.is_dataclass(params) and hasattr(params, "replace")):
        raise TypeError(
            f"params = {params!r}: must be a flax.struct.dataclass, as those of gymnax are"
        )
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    scalars = {
        name: value
        for name, value in values.items()
        if hasattr(value, "dtype") and np.shape(value) == ()
    }
    return params.replace(**{name: np.asarray(value).item() for name, value in scalars.items()})
