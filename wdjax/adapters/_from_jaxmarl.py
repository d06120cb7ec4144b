"""Wrap JaxMARL environments, built-in or custom, as wdjax environments with groups of agents."""

import contextlib
import dataclasses
import functools
import importlib
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.adapters import _foreign as foreign
from wdjax.adapters._foreign import ForeignEnv, State, cast_obs
from wdjax.adapters._jaxmarl_agents import (
    MASK,
    Agent,
    Group,
    agents_first,
    agents_of,
    available_actions,
    group_agents,
    split_dones,
    stack_agents,
)
from wdjax.arguments import cast_params
from wdjax.checks import require_known
from wdjax.spaces import Box, Dict
from wdjax.stepping import StepResult


@struct.dataclass
class Params:
    """Empty params: a JaxMARL environment is configured by its constructor."""


@struct.dataclass
class ShapedParams:
    """Params of an environment with shaped rewards, `info["shaped_reward"]` (Overcooked)."""

    shaped_reward: float = 0.0
    """weight of the shaped rewards, which are added to the rewards; 0 leaves them out"""


@struct.dataclass
class JaxMARLState(State):
    """State of a wrapped JaxMARL environment."""

    obs: Any  # by group, {"action_mask": the last one}; None if no dead agent stays active


@dataclasses.dataclass(frozen=True)
class JaxMARLEnv(ForeignEnv):
    """A JaxMARL environment as a wdjax `Env`, made by `from_jaxmarl`."""

    credit: Literal["agent", "team"] = "agent"
    """whether an agent's episode ends when the agent is done, or when all agents are"""

    library: ClassVar[str] = "JaxMARL"
    can_truncate: ClassVar[bool] = False

    def __post_init__(self):
        require_known("credit", self.credit, ("agent", "team"))
        # outside of any trace, because JaxMARL creates arrays for its spaces
        _ = self.members, self.agents, self.world_size, self.is_shaped

    @functools.cached_property
    def members(self) -> dict[str, Group]:
        """Agents and spaces of each group, by group name."""
        return group_agents(self.inner)

    @property
    def default_params(self) -> Params | ShapedParams:
        return ShapedParams() if self.is_shaped else Params()

    @functools.cached_property
    def agents(self) -> list[Agent]:
        """All agents, in the order of JaxMARL."""
        return agents_of(self.inner)

    @property
    def groups(self) -> Mapping[str, int]:
        return {name: len(group.agents) for name, group in self.members.items()}

    def reset(self, key: jax.Array, params: Any) -> tuple[dict[str, Any], JaxMARLState]:
        terminated = {name: jnp.zeros(size, bool) for name, size in self.groups.items()}
        with jax.numpy_rank_promotion("allow"):  # third-party code may rely on rank promotion
            obs, inner = self.inner.reset(key)
            obs = self._observe(obs, inner, terminated)
        first = foreign.first_state(inner, terminated)
        return obs, JaxMARLState(**vars(first), obs=self._masks(obs))

    @foreign.few_launches
    def step(
        self, key: jax.Array, state: JaxMARLState, action: dict[str, Any], params: Any
    ) -> StepResult:
        # the dones of JaxMARL: with credit "team", some active agents are already done there
        before = state.terminated
        actions = {
            agent: jnp.where(before[name][i], self._no_op(state, name, i), action[name][i])
            for name, group in self.members.items()
            for i, agent in enumerate(group.agents)
        }
        with jax.numpy_rank_promotion("allow"):
            obs, inner, rewards, dones, info = self.inner.step_env(
                key, state.inner, self._in_order(actions)
            )
            dones, over = split_dones(dones, self.agents)
            done = self._by_group(dones, bool)
            obs = self._observe(obs, inner, jax.tree.map(jnp.logical_or, before, done))
        ended = {name: flags | over for name, flags in done.items()}
        paid = self._by_group(rewards, jnp.float32)
        if self.is_shaped:
            shaped = self._by_group(info["shaped_reward"], jnp.float32)
            paid = {name: paid[name] + params.shaped_reward * shaped[name] for name in paid}
            total = sum(map(jnp.sum, shaped.values()))
            info = {**info, "shaped_reward": total}
        state = dataclasses.replace(state, obs=self._masks(obs))
        state, reward, terminated, info = foreign.next_state(state, inner, paid, ended, info)
        if self.credit == "team":
            left, terminated = where_all(before), where_all(terminated)
            reward = jax.tree.map(lambda left, values: jnp.where(left, 0.0, values), left, paid)
        return obs, state, reward, terminated, jax.tree.map(jnp.zeros_like, terminated), info

    def observation_space(self, params: Any) -> Dict:
        return Dict(
            {
                name: group.observation_space.batch(len(group.agents))
                for name, group in self.members.items()
            }
        )

    def action_space(self, params: Any) -> Dict:
        return Dict(
            {
                name: group.action_space.batch(len(group.agents))
                for name, group in self.members.items()
            }
        )

    @functools.cached_property
    def is_shaped(self) -> bool:
        """Whether `info["shaped_reward"]` has a number for each agent."""
        actions = {
            agent: jnp.zeros(group.action_space.shape, group.action_space.dtype)
            for group in self.members.values()
            for agent in group.agents
        }

        def shaped_reward(key: jax.Array) -> Any:
            _, inner = self.inner.reset(key)
            info = self.inner.step_env(key, inner, self._in_order(actions))[4]
            return info.get("shaped_reward")

        with jax.numpy_rank_promotion("allow"):
            shaped = jax.eval_shape(shaped_reward, jax.random.key(0))
        return isinstance(shaped, Mapping) and all(agent in shaped for agent in self.agents)

    @functools.cached_property
    def world_size(self) -> int:
        """Number of entries of the world state; 0: there is none."""
        with jax.numpy_rank_promotion("allow"):
            _, inner = jax.eval_shape(self.inner.reset, jax.random.key(0))
            state = jax.eval_shape(functools.partial(world_state, self.inner), inner)
        return 0 if state is None else state.size

    def global_state_space(self, params: Any) -> Box | None:
        return Box(-np.inf, np.inf, (self.world_size,)) if self.world_size else None

    def global_state(self, state: JaxMARLState, params: Any) -> jax.Array:
        with jax.numpy_rank_promotion("allow"):
            whole = cast(jax.Array, world_state(self.inner, state.inner))
            return jnp.ravel(whole).astype(jnp.float32)

    def _observe(
        self, obs: Mapping[str, Any], inner: Any, dead: Mapping[str, jax.Array]
    ) -> dict[str, Any]:
        has_masks = any(group.masked for group in self.members.values())
        masks: Any = available_actions(self.inner, inner) if has_masks else None
        obs, observed = agents_first(self.inner, obs), {}
        for name, group in self.members.items():
            rows = stack_agents(obs, group.agents, self.agents)
            if group.masked:
                rows = {"obs": rows, MASK: stack_agents(masks, group.agents, self.agents)}
            observed[name] = cast_obs(group.observation_space, rows)
            if group.masked and self.credit == "team":
                mask = observed[name][MASK]
                only = only_first(mask, group.action_space.nvec)
                observed[name][MASK] = jnp.where(dead[name][:, None], only, mask)
        return observed

    def _masks(self, obs: Mapping[str, Any]) -> dict[str, dict[str, jax.Array]] | None:
        """Return the action masks of masked groups with credit "team"; None if there are none."""
        masks = {
            name: {MASK: obs[name][MASK]} for name, group in self.members.items() if group.masked
        }
        return masks if masks and self.credit == "team" else None

    def _no_op(self, state: JaxMARLState, name: str, i: int) -> jax.Array:
        """Return the action of a dead agent: the first allowed one with credit "team", else 0."""
        group = self.members[name]
        zero = jnp.zeros(group.action_space.shape, group.action_space.dtype)
        if not group.masked or self.credit == "agent":
            return zero
        first = first_allowed(state.obs[name][MASK][i], group.action_space.nvec)
        return first.reshape(zero.shape).astype(zero.dtype)

    def _in_order(self, actions: dict[Agent, jax.Array]) -> Any:
        """Return a dict by name, or, for numbered agents, a list in their order."""
        if all(isinstance(agent, str) for agent in self.agents):
            return actions
        return [actions[agent] for agent in self.agents]

    def _by_group(self, values: Any, dtype: Any) -> dict[str, jax.Array]:
        return {
            name: stack_agents(values, group.agents, self.agents, dtype)
            for name, group in self.members.items()
        }


def first_allowed(mask: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Return the first allowed choice of each action component, or 0 if all are forbidden.

    Args:
        mask: [..., sum(nvec)], nonzero where a choice is allowed.
        nvec: number of choices of each component.

    Returns:
        int [..., len(nvec)].
    """
    parts = jnp.split(mask, np.cumsum(nvec)[:-1], axis=-1)
    return jnp.stack([jnp.argmax(part, axis=-1) for part in parts], axis=-1)


def only_first(mask: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Restrict a mask, [..., sum(nvec)], to the first allowed choice of each component."""
    first = first_allowed(mask, nvec)
    parts = [jax.nn.one_hot(first[..., k], size, dtype=mask.dtype) for k, size in enumerate(nvec)]
    return jnp.concatenate(parts, axis=-1)


def where_all(flags: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return flags [n] for each group, true if the flags of all agents of all groups are true."""
    over = jnp.concatenate(list(flags.values())).all()
    return {name: jnp.full_like(values, over) for name, values in flags.items()}


def from_jaxmarl(
    env: Any, credit: Literal["agent", "team"] | None = None
) -> tuple[JaxMARLEnv, Params | ShapedParams]:
    """Convert a JaxMARL environment to a wdjax environment and its params.

        env, params = wdjax.adapters.from_jaxmarl(MyEnv())
        wdjax.register("mine", env)  # for presets, the command line and resuming
        env, params = wdjax.make("jaxmarl:MPE_simple_tag_v3", num_adversaries=5)  # by name
        env, params = wdjax.adapters.from_jaxmarl(socialjax.make("clean_up"))

    Groups: agents form a group if their spaces are equal and their names differ only in a final
    number, as adversary_0 to adversary_2. Agents with the same name but different spaces are split,
    and each part is named after its first agent ("agent_0", "agent_3"). Agents with numbers as
    names form the group "agent". Groups and agents keep the order of JaxMARL.

    Arrays: `reset` and `step_env`, which the adapter calls, may return a tuple, or arrays with all
    agents on their leading axis, for observations, rewards and dones (storm, and the games of
    SocialJax). If agents are numbers, `step_env` receives a list of actions, as in `env.agents`.

    Episode ends: JaxMARL has a single `done`, which includes time limits. It becomes `terminated`,
    and `__all__` terminates every agent. To avoid this at time limits, set a high one (`max_steps`,
    if the environment has it) or include the time in the observations.

    Credit: with "agent", an agent's episode ends when the agent is done. From then on its reward is
    0, even if JaxMARL pays it a share of the team's reward (SMAX), and its action is replaced by 0.
    With "team", an agent's episode ends with the whole episode. A dead agent stays active and
    receives JaxMARL's reward, so returns are equal to JaxMARL's. Its action is replaced by the
    first one that its mask allows (in SMAX: stop), or by 0 without a mask. After the end of an
    episode, observations have no meaning.

    Shaped rewards: if `info["shaped_reward"]` has a number for each agent (Overcooked), the params
    have the weight `shaped_reward`, by default 0. It multiplies these numbers, which are added to
    the rewards. `info["shaped_reward"]` becomes their sum over agents, without the weight.

    Masks: observations are `{"obs": ..., "action_mask": ...}` if the environment reports available
    actions (`get_avail_actions`, in Hanabi `get_legal_moves`), one flag per action.

    Args:
        env: a JaxMARL or SocialJax environment, or one with the same methods.
        credit: "agent" or "team", see above. None: "agent", with a warning for environments that
            are known to pay dead agents.

    Returns:
        (env, params). Supported spaces are Box, Discrete, MultiDiscrete and Dict. A Box has the
        shape that `reset` returns, and its dtype if a cast to the declared dtype would lose
        information. `get_world_state` becomes `global_state`. `info` keeps scalars.

    Raises:
        TypeError: if `env` is not a JaxMARL environment, cannot be hashed, or has an unsupported
            space or observation.
        ValueError: for an unknown `credit`.

    Source: github.com/FLAIROx/JaxMARL, jaxmarl/environments/multi_agent_env.py.
    """
    foreign.require_environment(env, "JaxMARL", ("agents", "reset", "step_env"))
    if credit is None and any("SMAX" in cls.__name__ for cls in type(env).__mro__):
        warnings.warn(
            f"credit is not set: {type(env).__name__} pays dead agents a share of the reward of "
            "the team, and credit='agent' drops it. Set credit='team' for the returns of JaxMARL, "
            "or credit='agent' to silence this warning.",
            stacklevel=2,
        )
    adapted = JaxMARLEnv(env, credit or "agent")
    return adapted, cast_params(adapted.default_params, adapted.default_params)


def world_state(env: Any, state: Any) -> jax.Array | None:
    """Return the state of the whole environment, or None if there is none.

    A dict by agent, as of MPE_simple_facmac, is none.
    """
    with contextlib.suppress(NotImplementedError):
        if hasattr(env, "get_world_state"):
            whole = env.get_world_state(state)
            return None if isinstance(whole, Mapping) else whole
    return None


def make(name: str, **arguments: Any) -> tuple[JaxMARLEnv, Params | ShapedParams]:
    """Make the environment of `wdjax.make("jaxmarl:NAME", ...)`.

    Args:
        name: a name that `jaxmarl.make` accepts.
        **arguments: constructor arguments of the environment, and `credit` (see `from_jaxmarl`).
            Two objects of JaxMARL can be given by name, for presets: `scenario: 3m` of SMAX and
            `layout: cramped_room` of Overcooked. Overcooked has the weight `shaped_reward`.

    Raises:
        ImportError: if JaxMARL or a dependency of the environment is not installed.
        ValueError: for an unknown name of the environment or an argument (the message contains the
            closest one), or an invalid value.
        TypeError: for a value of the wrong type.
    """
    jaxmarl, credit = foreign.import_library("jaxmarl"), arguments.pop("credit", None)
    require_known("environment of JaxMARL", name, jaxmarl.registered_envs)
    weights = {key: arguments.pop(key) for key in ("shaped_reward",) if key in arguments}
    env = jaxmarl.make(
        name, **{key: named_object(name, key, value) for key, value in arguments.items()}
    )
    known = [*foreign.argument_names(env), "credit"]
    for key in arguments:  # environments of MPE ignore unknown arguments
        if not hasattr(env, key):
            require_known(f"argument of jaxmarl:{name}", key, known)
    adapted, params = from_jaxmarl(env, credit)
    for key in weights:
        require_known(f"argument of jaxmarl:{name}", key, [*known, *vars(params)])
    changed = dataclasses.replace(params, **weights)
    return adapted, cast_params(changed, adapted.default_params)


def named_object(name: str, key: str, value: Any) -> Any:
    """Return the JaxMARL scenario or layout called `value`; return other values unchanged.

    Args:
        name: the name of the environment.
        key: the name of the constructor argument.
        value: its value.

    Raises:
        ValueError: for an unknown scenario or layout, with the closest match.
    """
    if key == "scenario" and "SMAX" in name and isinstance(value, str):
        known = importlib.import_module("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO
    elif key == "layout" and name == "overcooked" and isinstance(value, str):
        known = importlib.import_module("jaxmarl.environments.overcooked").overcooked_layouts
    else:
        return value
    require_known(key, value, known)
    return known[value]
