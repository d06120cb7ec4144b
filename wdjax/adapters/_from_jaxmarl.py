"""The way in for JaxMARL: its environments as wdjax environments, their agents as groups."""

import contextlib
import dataclasses
import functools
import importlib
import re
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.adapters import _foreign as foreign
from wdjax.adapters._foreign import ForeignEnv, State, cast_obs, translate_space
from wdjax.checks import did_you_mean, require_known
from wdjax.spaces import Dict, MultiDiscrete, Space
from wdjax.vector import StepResult

MASK = "action_mask"


@struct.dataclass
class Params:
    """None: JaxMARL fixes everything when an environment is made."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Agents of one group, and the spaces of each."""

    agents: tuple[str, ...]  # their names in JaxMARL
    observation_space: Space
    action_space: Space
    masked: bool  # whether the observation holds an action mask


@dataclasses.dataclass(frozen=True)
class JaxMARLEnv(ForeignEnv):
    """A JaxMARL environment as wdjax knows one: see `from_jaxmarl`."""

    credit: Literal["agent", "team"] = "agent"
    """whether an agent's episode ends at its death, or with its team's"""

    library: ClassVar[str] = "JaxMARL"
    can_truncate: ClassVar[bool] = False
    default_params: ClassVar[Params] = Params()

    def __post_init__(self):
        require_known("credit", self.credit, ("agent", "team"))
        _ = self.members  # now: JaxMARL makes arrays for its spaces, which must not be traced

    @functools.cached_property
    def members(self) -> dict[str, Group]:
        """Group name -> its agents and spaces."""
        return group_agents(self.inner)

    @property
    def groups(self) -> Mapping[str, int]:
        return {name: len(group.agents) for name, group in self.members.items()}

    def reset(self, key: jax.Array, params: Params) -> tuple[dict[str, Any], State]:
        terminated = {name: jnp.zeros(size, bool) for name, size in self.groups.items()}
        with jax.numpy_rank_promotion("allow"):  # other people's games have their own habits
            obs, inner = self.inner.reset(key)
            obs = self._observe(obs, inner, terminated)
        return obs, foreign.first_state(inner, obs, terminated)

    def step(
        self, key: jax.Array, state: State, action: dict[str, Any], params: Params
    ) -> StepResult:
        # by JaxMARL's dones: with credit "team" dead agents are among them
        before = state.terminated
        actions = {
            agent: jnp.where(before[name][i], self._no_op(state, name, i), action[name][i])
            for name, group in self.members.items()
            for i, agent in enumerate(group.agents)
        }
        with jax.numpy_rank_promotion("allow"):
            obs, inner, rewards, dones, info = self.inner.step_env(key, state.inner, actions)
            done = self._by_group(dones, bool)
            obs = self._observe(obs, inner, jax.tree.map(jnp.logical_or, before, done))
        ended = {name: flags | dones["__all__"] for name, flags in done.items()}
        paid = self._by_group(rewards, jnp.float32)
        obs, state, reward, terminated, info = foreign.next_state(
            state, inner, obs, paid, ended, info
        )
        if self.credit == "team":
            over, terminated = where_all(before), where_all(terminated)
            reward = jax.tree.map(lambda over, values: jnp.where(over, 0.0, values), over, paid)
        return obs, state, reward, terminated, jax.tree.map(jnp.zeros_like, terminated), info

    def observation_space(self, params: Params) -> Dict:
        return Dict(
            {
                name: group.observation_space.batch(len(group.agents))
                for name, group in self.members.items()
            }
        )

    def action_space(self, params: Params) -> Dict:
        return Dict(
            {
                name: group.action_space.batch(len(group.agents))
                for name, group in self.members.items()
            }
        )

    def _observe(
        self, obs: Mapping[str, Any], inner: Any, dead: Mapping[str, jax.Array]
    ) -> dict[str, Any]:
        masks = (
            available_actions(self.inner, inner)
            if any(group.masked for group in self.members.values())
            else None
        )
        observed = {}
        for name, group in self.members.items():
            rows = [
                {"obs": obs[agent], MASK: masks[agent]} if group.masked else obs[agent]
                for agent in group.agents
            ]
            observed[name] = cast_obs(
                group.observation_space, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
            )
            if group.masked and self.credit == "team":
                mask = observed[name][MASK]
                only = only_first(mask, group.action_space.nvec)
                observed[name][MASK] = jnp.where(dead[name][:, None], only, mask)
        return observed

    def _no_op(self, state: State, name: str, i: int) -> jax.Array:
        """Return the action of a dead agent: with credit "team" the only one that its mask allows, else 0."""
        group = self.members[name]
        zero = jnp.zeros(group.action_space.shape, group.action_space.dtype)
        if not group.masked or self.credit == "agent":
            return zero
        first = first_allowed(state.obs[name][MASK][i], group.action_space.nvec)
        return first.reshape(zero.shape).astype(zero.dtype)

    def _by_group(self, values: Mapping[str, Any], dtype: Any) -> dict[str, jax.Array]:
        return {
            name: jnp.stack([jnp.asarray(values[agent], dtype) for agent in group.agents])
            for name, group in self.members.items()
        }


def first_allowed(mask: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Return the first allowed choice of each component, [..., len(nvec)], of a mask [..., sum(nvec)]; 0 for none."""
    parts = jnp.split(mask, np.cumsum(nvec)[:-1], axis=-1)
    return jnp.stack([jnp.argmax(part, axis=-1) for part in parts], axis=-1)


def only_first(mask: jax.Array, nvec: tuple[int, ...]) -> jax.Array:
    """Return a mask [..., sum(nvec)] that allows the first allowed choice of each component and nothing else."""
    first = first_allowed(mask, nvec)
    parts = [jax.nn.one_hot(first[..., k], size, dtype=mask.dtype) for k, size in enumerate(nvec)]
    return jnp.concatenate(parts, axis=-1)


def where_all(flags: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return flags [n] of each group that are true where all agents of all groups are flagged."""
    over = jnp.concatenate(list(flags.values())).all()
    return {name: jnp.full_like(values, over) for name, values in flags.items()}


def from_jaxmarl(
    env: Any, credit: Literal["agent", "team"] | None = None
) -> tuple[JaxMARLEnv, Params]:
    """Returns a JaxMARL environment as a wdjax one, and its params, which hold nothing.

        env, params = wdjax.adapters.from_jaxmarl(MyEnv())
        wdjax.register("mine", env)                     # now presets, the command line and resumption know it
        env, params = wdjax.make("jaxmarl:MPE_simple_tag_v3", num_adversaries=5)          # JaxMARL's own have names
        env, params = wdjax.make("jaxmarl:HeuristicEnemySMAX", scenario="3m")

    JaxMARL's `reset` and `step_env` are called, never its auto-resetting `step`.

    Groups. Agents with the same name up to the number at its end, and with equal spaces, are one group: adversary_0 to
    adversary_2 become "adversary", though an agent_0 may have equal spaces (one policy can still play both groups:
    `agents: [adversary, agent]`). Agents of one name whose spaces differ are split, and each part is named after its
    first agent ("agent_0", "agent_3"); agents whose names are numbers are "agent". Groups, and agents in them, keep
    JaxMARL's order.

    Ends. JaxMARL knows a bare `done`, time limits included: it becomes `terminated`, and `__all__` ends everybody. A
    time limit is then a death: the learner takes what follows for worth nothing. Against that, give the environment a
    long limit (`max_steps`, where it has one), or show the agents the time.

    Credit. With "agent" an agent's episode ends at its own death: its reward is 0 from then on, also where JaxMARL pays
    it a share of its team's (SMAX), and its action is replaced by 0. With "team" it ends with the episode: a dead agent
    stays active and receives JaxMARL's reward, so that returns are JaxMARL's. Its only action is the first that the
    game's mask allows (SMAX: stop), or 0 in a game without a mask, whatever its policy chooses.

    Masks. Where the game tells which actions are available (`get_avail_actions`; `get_legal_moves` in Hanabi), and as
    many as there are actions, an observation is `{"obs": ..., "action_mask": ...}`.

    Args:
        env: a JaxMARL environment, or one's own in its form: `agents`, `reset`, `step_env`, `observation_space(agent)`,
            `action_space(agent)`.
        credit: "agent" or "team", see above; None: "agent", with a warning where the game is known to pay dead agents.

    Returns:
        (env, params). Spaces: Box, Discrete, MultiDiscrete, Dict. A Box takes shape, and where the cast would lose
        something dtype, from what `reset` returns: several environments say otherwise. Observations that are not an
        agent's (`world_state`) are left out; of `info` the scalars are kept.

    Raises:
        TypeError: for what is no such environment, cannot be hashed, or cannot be translated.

    Source: github.com/FLAIROx/JaxMARL, jaxmarl/environments/multi_agent_env.py.
    """
    foreign.require_environment(env, "JaxMARL", ("agents", "reset", "step_env"))
    if credit is None and any("SMAX" in cls.__name__ for cls in type(env).__mro__):
        warnings.warn(
            f"credit is not set: {type(env).__name__} pays dead agents their share of a victory, and credit='agent' "
            "drops it. Set credit to 'team' for JaxMARL's returns, or to 'agent' to keep this.",
            stacklevel=2,
        )
    return JaxMARLEnv(env, credit or "agent"), Params()


def group_agents(env: Any) -> dict[str, Group]:
    """Returns the groups of a JaxMARL environment, by name; raises TypeError for what cannot be translated."""
    game = type(env).__name__
    with jax.numpy_rank_promotion("allow"):
        obs, state = jax.eval_shape(env.reset, jax.random.key(0))
        masks = jax.eval_shape(functools.partial(available_actions, env), state)
    agents = list(env.agents)
    if not (
        isinstance(obs, Mapping)
        and all(isinstance(agent, str) and agent in obs for agent in agents)
    ):
        raise TypeError(
            f"{game}: its reset returns no dict of an observation for each of its agents ({agents})"
        )
    parts: dict[tuple, list[str]] = {}
    for agent in agents:
        action = translate_space(env.action_space(agent), f"{game}, action space of {agent}")
        seen = translate_space(
            env.observation_space(agent), f"{game}, observation space of {agent}", obs[agent]
        )
        masked = masks is not None and fits(masks.get(agent), action)
        if masked:
            seen = Dict({"obs": seen, MASK: MultiDiscrete((2,) * masks[agent].shape[0])})
        parts.setdefault((stem(agent), seen, action, masked), []).append(agent)
    stems = [key[0] for key in parts]
    return {
        name if stems.count(name) == 1 else names[0]: Group(tuple(names), *rest)
        for (name, *rest), names in parts.items()
    }


def stem(agent: str) -> str:
    """Returns an agent's name without the number at its end: "adversary" for "adversary_2", "agent" for "2"."""
    return re.sub(r"_?\d+$", "", agent) or "agent"


def fits(mask: Any, action_space: Space) -> bool:
    """Returns whether a mask has an entry for each choice of an action."""
    sizes = getattr(action_space, "nvec", ())
    return bool(sizes) and getattr(mask, "shape", None) == (sum(sizes),)


def available_actions(env: Any, state: Any) -> Mapping[str, jax.Array] | None:
    """Returns the available actions by agent, or None where a game does not tell them."""
    for name in ("get_avail_actions", "get_legal_moves"):
        with contextlib.suppress(NotImplementedError):  # what JaxMARL's base class does
            if hasattr(env, name):
                return getattr(env, name)(state)
    return None


def make(name: str, **arguments: Any) -> tuple[JaxMARLEnv, Params]:
    """`wdjax.make("jaxmarl:NAME", ...)`: arguments are those of the environment's constructor, and `credit`.

    Two that JaxMARL takes as objects may be names, so that a preset can hold them: `scenario: 3m` of SMAX, `layout:
    cramped_room` of Overcooked.

    Raises:
        ImportError: where JaxMARL, or what one of its environments needs, is not installed.
        ValueError, TypeError: for an unknown name, with the nearest right one, or a wrong value.
    """
    jaxmarl, credit = foreign.import_library("jaxmarl"), arguments.pop("credit", None)
    require_known("environment of JaxMARL", name, jaxmarl.registered_envs)
    env = jaxmarl.make(
        name, **{key: named_object(name, key, value) for key, value in arguments.items()}
    )
    known = [*foreign.argument_names(env), "credit"]
    for key in arguments:  # games of MPE swallow what they do not know
        if key not in known and not hasattr(env, key):
            raise ValueError(
                f"unknown argument of jaxmarl:{name} {key!r}: {did_you_mean(key, known)}"
            )
    return from_jaxmarl(env, credit)


def named_object(name: str, key: str, value: Any) -> Any:
    """Returns JaxMARL's object where `value` is its name, else the value; raises ValueError for an unknown name."""
    if key == "scenario" and "SMAX" in name and isinstance(value, str):
        known = importlib.import_module("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO
    elif key == "layout" and name == "overcooked" and isinstance(value, str):
        known = importlib.import_module("jaxmarl.environments.overcooked").overcooked_layouts
    else:
        return value
    require_known(key, value, known)
    return known[value]
