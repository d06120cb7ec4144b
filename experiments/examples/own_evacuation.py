"""A custom environment that agents join: people enter a room at random times and walk to its exit.

    python -m wdjax.experiments.examples.own_evacuation                  # 20 s on a CPU
    python -m wdjax.experiments.examples.own_evacuation evacuation.svg   # also draw the last states

The room has 8 places in memory (slots) for any number of people: a person who leaves frees a slot,
which a later person uses. `Env.present` marks the slots with a person.
"""

import dataclasses
import sys
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import wdjax
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, evaluate, make_learner

NUM = 8  # slots
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])  # stay, left, right, down, up
GAP = (0.4, 0.6)  # y of the entrance in the left wall and of the exit in the right wall


@struct.dataclass
class State:
    place: jax.Array  # (8, 2) float32, x and y in [0, 1]
    inside: jax.Array  # (8,) bool, a person is in the room
    left: jax.Array  # (8,) bool, the last person of this slot has left; false before the first
    time: jax.Array  # () int32, steps since reset


@struct.dataclass
class Params:
    arrival_rate: float = 0.15  # probability of an arrival per step
    stride: float = 0.08  # length of a step
    body: float = 0.05  # smallest distance to the place of another person
    step_cost: float = 0.02  # per step in the room; leaving is rewarded with 1
    episode_length: int = 100  # steps until the room closes


@dataclasses.dataclass(frozen=True)
class Evacuation(wdjax.Env):
    """People who enter on the left and leave on the right. A step is blocked by a person nearby.

    When the room closes, people in it are truncated and all others are terminated.
    """

    groups: ClassVar = {"person": NUM}
    default_params: ClassVar = Params()

    def reset(self, key, params):
        nobody = jnp.zeros(NUM, bool)
        state = State(jnp.zeros((NUM, 2)), nobody, nobody, jnp.int32(0))
        state = enter(state, ~nobody, jnp.bool_(True), jax.random.uniform(key))
        return observe(state), state

    def present(self, state, params):
        return {"person": state.inside}

    def step(self, key, state, action, params):
        arrival_key, door_key = jax.random.split(key)
        acts = state.inside & (state.time < params.episode_length)
        place = walk(state, acts, action["person"], params)
        in_gap = (place[:, 1] > GAP[0]) & (place[:, 1] < GAP[1])
        leaves = acts & (place[:, 0] >= 1) & in_gap
        empty = ~state.inside  # before this step: a slot stays empty for a step
        state = State(place, state.inside & ~leaves, state.left | leaves, state.time + 1)
        closed = state.time >= params.episode_length
        arrives = jax.random.bernoulli(arrival_key, params.arrival_rate) & ~closed & empty.any()
        state = enter(state, empty, arrives, jax.random.uniform(door_key))
        reward = jnp.where(leaves, 1.0, 0.0) - params.step_cost * acts
        truncated = closed & state.inside
        terminated = state.left | (closed & ~truncated)
        info = {"leave": leaves.sum(), "arrive": arrives, "people": acts.sum()}
        flags = {"person": terminated}, {"person": truncated}
        return observe(state), state, {"person": reward}, *flags, info

    def scene(self, states, params):
        """Draw an episode. Items at NaN are not drawn, so empty slots are invisible."""
        draw, (low, high) = wdjax.drawing, GAP
        walls = [[(0, low), (0, 0), (1, 0), (1, low)], [(0, high), (0, 1), (1, 1), (1, high)]]
        x = np.where(states.inside, states.place[..., 0], np.nan)
        people = draw.Shapes(
            x, states.place[..., 1], size=0.025, color="blue", label="person", group="person"
        )
        captions = [
            f"step {time}, {count} people"
            for time, count in zip(states.time, states.inside.sum(axis=1), strict=True)
        ]
        marks: Any = [draw.Lines(np.array(walls)), people]
        return draw.Scene(marks, captions, (-0.1, -0.1, 1.1, 1.1), states.time, axes=False)

    def observation_space(self, params):
        return wdjax.Dict({"person": wdjax.Box(shape=(4,)).batch(NUM)})

    def action_space(self, params):
        return wdjax.Dict({"person": wdjax.Discrete(5).batch(NUM)})


def enter(state, empty, arrives, door):
    """Put a person into the first empty slot if one arrives, at a point of the entrance."""
    joins = arrives & (jnp.arange(NUM) == jnp.argmax(empty))
    start = jnp.stack([jnp.float32(0.0), GAP[0] + (GAP[1] - GAP[0]) * door])
    place = jnp.where(joins[:, None], start, state.place)
    return state.replace(place=place, inside=state.inside | joins, left=state.left & ~joins)


def walk(state, acts, action, params):
    """Return the places after a step, [8, 2]; people who would come too close to another stay."""
    target = jnp.clip(state.place + params.stride * jnp.asarray(MOVES)[action], 0.0, 1.0)
    before, after = distances(state, state.place), distances(state, target)
    blocked = jnp.any((after < params.body) & (after < before), axis=1)
    return jnp.where((acts & ~blocked)[:, None], target, state.place)


def distances(state, place):
    """Return the distance from each place to each other person in the room, [8, 8]; else inf."""
    apart = jnp.linalg.norm(place[:, None] - state.place[None], axis=-1)
    return jnp.where(state.inside[None] & ~jnp.eye(NUM, dtype=bool), apart, jnp.inf)


def observe(state):
    """Return the place of each person and the way to the nearest other one, [8, 4] in [-1, 1]."""
    apart = distances(state, state.place)
    nearest = state.place[jnp.argmin(apart, axis=1)] - state.place
    nearest = jnp.where(jnp.isfinite(apart).any(axis=1)[:, None], nearest, 1.0)
    return {"person": jnp.concatenate([2 * state.place - 1, nearest], axis=1)}


def evacuation(**changes):
    """Return a configuration in which all people share a policy."""
    wdjax.register("evacuation", Evacuation)
    network = NetworkConfig(hidden_sizes=(32,), activation="tanh")
    policy = PolicyConfig(algorithm="PPO", network=network, learning_rate=1e-2)
    sizes = {"num_envs": 16, "rollout_length": 50, **changes}
    return TrainConfig(env="evacuation", policies={"person": policy}, **sizes)


def leaving(learner, state):
    """Return the mean share of people who leave before the room closes."""
    info = evaluate(learner, state, jax.random.key(1), num_episodes=64).episode_info
    return info["leave"].sum() / (64 + info["arrive"].sum())


if __name__ == "__main__":
    wdjax.check_env(Evacuation(), num_steps=1_000)
    learner = make_learner(evacuation())
    first = learner.init(jax.random.key(0))
    last, _ = learner.run(first, num_updates=40)
    print(f"{leaving(learner, first):.0%} of the people leave at first, ", end="")
    print(f"{leaving(learner, last):.0%} after 40 updates")
    for path in sys.argv[1:]:
        wdjax.train.save_episode(learner, last, path)
