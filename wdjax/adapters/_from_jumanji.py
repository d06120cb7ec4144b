"""Wrap Jumanji environments, built-in or custom, as wdjax environments."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.adapters import _foreign as foreign
from wdjax.adapters._foreign import ForeignEnv, State
from wdjax.adapters._jumanji_agents import MASK, Agents, agents_of, numbers
from wdjax.adapters._jumanji_scenes import SCENES
from wdjax.checks import require, require_known
from wdjax.env import SINGLE_AGENT
from wdjax.spaces import Box, Dict, Space
from wdjax.stepping import StepResult

MISSING = inspect.Parameter.empty


@struct.dataclass
class Params:
    """Empty params: a Jumanji environment is configured by its constructor."""


@struct.dataclass
class JumanjiState(State):
    """State of a wrapped Jumanji environment."""

    obs: Any  # the observation of the last step
    extras: dict[str, jax.Array]  # numbers in the extras of the last time step


@dataclasses.dataclass(frozen=True)
class JumanjiEnv(ForeignEnv):
    """A Jumanji environment as a wdjax `Env`, made by `from_jumanji`."""

    fields: Sequence[str] | None = None
    """observed fields of Jumanji's observation, besides the action mask; None: all"""

    library: ClassVar[str] = "Jumanji"

    def __post_init__(self):
        if self.fields is not None:
            is_list = isinstance(self.fields, Sequence) and not isinstance(self.fields, str)
            allowed = "a list of at least one field of the observation, like ['agents_view']"
            require(is_list and len(self.fields), "fields", self.fields, allowed)
            object.__setattr__(self, "fields", tuple(self.fields))
        _ = self.agents  # outside of any trace, because Jumanji creates arrays for its specs

    @functools.cached_property
    def agents(self) -> Agents:
        """Number and spaces of the agents."""
        return agents_of(self.inner, self.fields)

    @property
    def default_params(self) -> Params:
        return Params()

    @property
    def groups(self) -> Mapping[str, int]:
        return {} if self.agents.num is None else {SINGLE_AGENT: self.agents.num}

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, JumanjiState]:
        with jax.numpy_rank_promotion("allow"):  # third-party code may rely on rank promotion
            # the keys that Jumanji is written for; it uses some of them twice
            inner, timestep = self.inner.reset(jax.random.key_data(key))
            obs = self._grouped(self.agents.observe(self.inner, timestep.observation))
        terminated = self._grouped(self.agents.per_agent(False, bool))
        first = foreign.first_state(inner, terminated)
        zeros = jax.tree.map(jnp.zeros_like, numbers(timestep.extras))
        return obs, JumanjiState(**vars(first), obs=obs, extras=zeros)

    @foreign.few_launches
    def step(self, key: jax.Array, state: JumanjiState, action: Any, params: Any) -> StepResult:
        (before,) = jax.tree.leaves(state.terminated)
        (action,) = jax.tree.leaves(action)
        absent = before.reshape(before.shape + (1,) * (action.ndim - before.ndim))
        action = self.agents.decode(jnp.where(absent, jnp.zeros_like(action), action))
        with jax.numpy_rank_promotion("allow"):
            action = action.astype(self.inner.action_spec.dtype)
            inner, timestep = self.inner.step(state.inner, action)
            obs = self._grouped(self.agents.observe(self.inner, timestep.observation))
        reward = self._grouped(self.agents.per_agent(timestep.reward, jnp.float32))
        ended = self._grouped(self.agents.per_agent(timestep.discount == 0, bool))
        extras = {
            name: jnp.where(before.all(), state.extras[name], value)
            for name, value in numbers(timestep.extras).items()
        }
        info = {name: value - state.extras[name] for name, value in extras.items()}
        state = dataclasses.replace(state, obs=obs, extras=extras)
        state, reward, terminated, info = foreign.next_state(state, inner, reward, ended, info)
        truncated = jax.tree.map(lambda flags: timestep.last() & ~flags, terminated)
        return obs, state, reward, terminated, truncated, info

    def observation_space(self, params: Any) -> Space:
        return self._grouped_space(self.agents.observation_space)

    def action_space(self, params: Any) -> Space:
        return self._grouped_space(self.agents.action_space)

    def global_state_space(self, params: Any) -> Box | None:
        spaces = self.agents.observation_space.spaces
        if all(getattr(spaces[name], "shape", (1,)) == () for name in self.agents.shared):
            return None
        _, state = jax.eval_shape(self.reset, jax.random.key(0), params)
        size = jax.eval_shape(self.global_state, state, params).size
        return Box(-np.inf, np.inf, (size,))

    def global_state(self, state: JumanjiState, params: Any) -> jax.Array:
        obs = {name: part for name, part in state.obs[SINGLE_AGENT].items() if name != MASK}
        # the first agent's view of a shared field is Jumanji's field
        fields = {
            name: jax.tree.map(lambda leaf: leaf[0], part) if name in self.agents.shared else part
            for name, part in obs.items()
        }
        leaves = [leaf.ravel().astype(jnp.float32) for leaf in jax.tree.leaves(fields)]
        return jnp.concatenate(leaves)

    def scene(self, states: Any, params: Any) -> Any:
        for kind in type(self.inner).__mro__:
            if kind.__name__ in SCENES:
                return SCENES[kind.__name__](self.inner, states)
        return super().scene(states, params)

    def _grouped(self, values: Any) -> Any:
        return {SINGLE_AGENT: values} if self.groups else values

    def _grouped_space(self, space: Any) -> Space:
        batch = self.agents.batch(space)
        return Dict({SINGLE_AGENT: batch}) if self.groups else batch


def from_jumanji(env: Any, fields: Sequence[str] | None = None) -> tuple[JumanjiEnv, Params]:
    """Convert a Jumanji environment to a wdjax environment and its params.

        env, params = wdjax.adapters.from_jumanji(MyEnv())
        wdjax.register("mine", env)  # for presets, the command line and resuming
        env, params = wdjax.make("jumanji:Connector-v3", num_agents=5, time_limit=30)  # by name
        env, params = wdjax.make("jumanji:RobotWarehouse-v0", fields=["agents_view"])

    Agents: an environment with a reward for each agent, or with an attribute `num_agents`, has the
    group "agent". Other environments have a single agent. A reward without an agent axis is paid to
    every agent.

    Observations: a dict of the fields of Jumanji's observation. A field with an agent axis is split
    between the agents, and all agents receive the others (`step_count`). The grid of Connector is
    numbered from each agent on: an agent sees its own path, position and target as 1, 2 and 3.
    If all agents share an array (the grid of Connector and Cleaner, the graph of MMST), all fields
    together are the `global_state`.

    Actions: one agent's MultiDiscreteArray becomes a MultiDiscrete, or a Discrete of all
    combinations if the mask has a flag for every combination (Minesweeper, Sudoku, BinPack).

    Episode ends: an agent terminates when its discount is 0, in Connector also before the others.
    Its rewards are then 0, and its actions are replaced by 0. The last step truncates agents with
    another discount, which LevelBasedForaging uses, and Connector since Jumanji 1.1.2: the other
    games end at their time limit with a discount of 0, which is a termination. Their observations
    include the time.

    Info: each number in Jumanji's extras, as its change in this step. The sum over an episode is
    the last value.

    Drawing: RobotWarehouse, LevelBasedForaging and Connector.

    Args:
        env: a Jumanji environment, with `reset`, `step`, `observation_spec`, `action_spec` and
            `reward_spec`.
        fields: observed fields, besides the action mask; None: all.

    Returns:
        (env, params). Params are empty. Observations are Boxes with the bounds of the specs.

    Raises:
        TypeError: if `env` is not a Jumanji environment, cannot be hashed, or has an unsupported
            action, such as the BoundedArray of integers of MultiCVRP.
        ValueError: for an unknown field.

    Source: github.com/instadeepai/jumanji, jumanji/env.py.
    """
    specs = ("observation_spec", "action_spec", "reward_spec")
    foreign.require_environment(env, "Jumanji", ("reset", "step"), specs)
    return JumanjiEnv(env, fields), Params()


def make(name: str, **arguments: Any) -> tuple[JumanjiEnv, Params]:
    """Make the environment of `wdjax.make("jumanji:NAME", ...)`.

    Args:
        name: a name that `jumanji.make` accepts.
        **arguments: constructor arguments of the environment and of its generator, and `fields`
            (see `from_jumanji`). Omitted arguments of the generator keep their values.

    Raises:
        ImportError: if Jumanji or a dependency is not installed.
        ValueError: for an unknown name of the environment or an argument (the message contains the
            closest one), or an invalid value.
        TypeError: for a value of the wrong type.
    """
    jumanji = foreign.import_library("jumanji")
    require_known("environment of Jumanji", name, jumanji.registered_environments())
    fields = arguments.pop("fields", None)
    env = jumanji.make(name)
    if not arguments:
        return from_jumanji(env, fields)
    generator: Any = getattr(env, "generator", getattr(env, "_generator", None))
    of_env = parameters_of(env)
    of_generator = {} if generator is None else parameters_of(generator)
    for key, value in arguments.items():
        require_known(f"argument of jumanji:{name}", key, [*of_env, *of_generator, "fields"])
        require_same_kind(key, value, {**of_generator, **of_env}[key])
    changes = {key: value for key, value in arguments.items() if key in of_env}
    rest = {key: value for key, value in arguments.items() if key not in of_env}
    try:
        if rest:
            complete = {**of_generator, **rest}
            known = {key: complete[key] for key in complete if complete[key] is not MISSING}
            changes["generator"] = type(generator)(**known)
        env = jumanji.make(name, **changes)
    except (AssertionError, ValueError) as error:
        raise ValueError(f"jumanji:{name} with {arguments}: {error}") from error
    return from_jumanji(env, fields)


def parameters_of(instance: Any) -> dict[str, Any]:
    """Return the constructor arguments of an object and their values.

    The value of an argument `size` is the attribute `size` or `_size`, else its default, which is
    MISSING if there is none.
    """
    return {
        name: getattr(instance, name, getattr(instance, f"_{name}", parameter.default))
        for name, parameter in inspect.signature(type(instance)).parameters.items()
    }


def require_same_kind(name: str, value: Any, current: Any) -> None:
    """Raise TypeError if `current` is a bool, an int or a float and `value` is not."""
    kinds = {bool: (bool, np.bool_), int: (int, np.integer), float: (int, float, np.number)}
    allowed = {bool: "True or False", int: "a whole number", float: "a number"}
    kind = type(current)
    if kind in kinds:
        is_kind = isinstance(value, kinds[kind]) and (kind is bool or not isinstance(value, bool))
        require(is_kind, name, value, allowed[kind], TypeError)
