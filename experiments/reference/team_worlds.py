"""Variants of own environments for `worlds`: shared rewards, joint actions and global states."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from wdjax.checks import require_bool
from wdjax.envs.climate import Rice
from wdjax.envs.commons import TaxedCommons
from wdjax.envs.tag.continuous import State, TagContinuous
from wdjax.envs.tag.scripted import flee_in_plane
from wdjax.spaces import Box, Dict, Discrete

Arrays = dict[str, Any]


def shared(reward: Arrays, group: str) -> Arrays:
    """Return the rewards, in which each agent of a group receives the mean of the group."""
    own = reward[group]
    return {**reward, group: jnp.broadcast_to(jnp.mean(own), own.shape)}


@dataclasses.dataclass(frozen=True)
class TeamTag(TagContinuous):
    """Continuous Tag with a global state, and options for the taggers."""

    share_reward: bool = False
    """whether every tagger receives the mean reward of all taggers"""
    joint_action: bool = False
    """whether a tagger's action is one number, Discrete(acceleration levels x turn levels), which
    Q-learning requires, in place of a pair"""

    scripts: ClassVar[dict[str, tuple[str, Callable]]] = {"flee_nearest": ("runner", flee_in_plane)}

    def __post_init__(self):
        super().__post_init__()
        require_bool("share_reward", self.share_reward)
        require_bool("joint_action", self.joint_action)

    def advance(
        self, key: jax.Array, state: State, action: Arrays, params: Any
    ) -> tuple[State, State, Arrays, Arrays, Arrays, Arrays]:
        if self.joint_action:
            pair = jnp.divmod(action["tagger"], self.num_turn_levels + 1)
            action = {**action, "tagger": jnp.stack(pair, axis=-1)}
        scene, state, reward, ended, cut, info = super().advance(key, state, action, params)
        reward = shared(reward, "tagger") if self.share_reward else reward
        return scene, state, reward, ended, cut, info

    def action_space(self, params: Any) -> Dict:
        pair = super().action_space(params)
        choices = (self.num_acceleration_levels + 1) * (self.num_turn_levels + 1)
        joint = Dict({**pair.spaces, "tagger": Discrete(choices).batch(self.num_taggers)})
        return joint if self.joint_action else pair

    def global_state_space(self, params: Any) -> Box:
        return Box(shape=(5 * self.num_agents + 1,))

    def global_state(self, state: State, params: Any) -> jax.Array:
        """Return position, velocity and activity of all agents, and the time, [5 n + 1]."""
        speed, length = state.speed / params.max_speed, params.grid_length
        velocity = speed * jnp.cos(state.direction), speed * jnp.sin(state.direction)
        columns = (state.x / length, state.y / length, *velocity, state.active)
        time = state.time / params.episode_length
        return jnp.append(jnp.stack(columns).astype(jnp.float32), jnp.float32(time))


@dataclasses.dataclass(frozen=True)
class TeamCommons(TaxedCommons):
    """Taxed commons in which every harvester receives the mean reward of all harvesters."""

    def step(
        self, key: jax.Array, state: Any, action: Arrays, params: Any
    ) -> tuple[Arrays, Any, Arrays, Arrays, Arrays, Arrays]:
        obs, state, reward, *others = super().step(key, state, action, params)
        return obs, state, shared(reward, "harvester"), *others


@dataclasses.dataclass(frozen=True)
class TeamRice(Rice):
    """RICE-N in which every region receives the mean reward of all regions."""

    def step(
        self, key: jax.Array, state: Any, action: Arrays, params: Any
    ) -> tuple[dict[str, Arrays], Any, Arrays, Arrays, Arrays, Arrays]:
        obs, state, reward, *others = super().step(key, state, action, params)
        return obs, state, shared(reward, "region"), *others
