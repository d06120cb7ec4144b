"""A custom multi-agent environment: hunters and prey on a ring, with scripted opponents.

    python -m wdjax.experiments.examples.own_game

The environment declares a script for each group and splits its observations into agents.
`check_env` checks both. The encoder `deep_sets` therefore needs no options, and scripts can be
named as opponents: in `cross_play` below, or with `wdjax eval RUN --opponents hunt_nearest`.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import wdjax
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, cross_play, make_learner

SIZES = {"hunter": 2, "prey": 4}
HUNTERS, PREY, ALL = np.arange(2), np.arange(2, 6), np.arange(6)
HUNTS = np.isin(ALL, HUNTERS)
OTHERS = np.stack([np.delete(ALL, i) for i in ALL])  # [6, 5]


@struct.dataclass
class State:
    place: jax.Array  # (6,) float32, in [0, 1) on a ring of length 1, hunters first
    active: jax.Array  # (6,) bool, False once caught
    time: jax.Array  # () int32, steps since reset


@struct.dataclass
class Params:
    hunter_speed: float = 0.03  # length / step
    prey_speed: float = 0.02  # length / step
    reach: float = 0.03  # length, catching distance; too long to pass each other in one step
    episode_length: int = 40  # steps until all agents terminate


def way(state, agents, others):
    """Return the signed distance along the ring from `agents` to `others`, which broadcast."""
    return (state.place[others] - state.place[agents] + 0.5) % 1.0 - 0.5


def way_to_nearest(state, agents, others):
    """Return the signed distance from each agent to the nearest active one of `others`."""
    distances = way(state, agents[:, None], others[None])
    nearest = jnp.argmin(jnp.where(state.active[None, others], jnp.abs(distances), jnp.inf), axis=1)
    return distances[jnp.arange(len(agents)), nearest]


def hunt_nearest(env, state, params, key):
    """Move every hunter towards the nearest active prey."""
    return jnp.where(way_to_nearest(state, HUNTERS, PREY) > 0, 2, 0)


def flee_nearest(env, state, params, key):
    """Move every prey away from the nearest hunter."""
    return jnp.where(way_to_nearest(state, PREY, HUNTERS) > 0, 0, 2)


@dataclasses.dataclass(frozen=True)
class Ring(wdjax.Env):
    """Hunters and prey that move left, stay or move right.

    A catch gives the hunter a reward of 1 and the prey a reward of -1, and the prey terminates.
    """

    can_truncate: ClassVar = False
    scripts: ClassVar = {
        "hunt_nearest": ("hunter", hunt_nearest),
        "flee_nearest": ("prey", flee_nearest),
    }
    groups: ClassVar = SIZES
    default_params: ClassVar = Params()

    def reset(self, key, params):
        state = State(jax.random.uniform(key, (6,)), jnp.ones(6, bool), jnp.int32(0))
        return self.observe(state, params), state

    def step(self, key, state, action, params):
        playing = state.active & (state.time < params.episode_length)
        speed = jnp.where(HUNTS, params.hunter_speed, params.prey_speed)
        move = speed * (jnp.concatenate([action["hunter"], action["prey"]]) - 1)
        state = state.replace(
            place=(state.place + move * playing) % 1.0, time=state.time + playing.any()
        )
        near = jnp.abs(way(state, HUNTERS[:, None], PREY[None])) < params.reach
        catches = near & playing[HUNTERS, None] & playing[None, PREY]  # [hunter, prey]
        caught = catches.any(axis=0)
        state = state.replace(active=state.active.at[PREY].set(state.active[PREY] & ~caught))
        reward = {
            "hunter": jnp.sum(catches, axis=1, dtype=jnp.float32),
            "prey": -caught.astype(jnp.float32),
        }
        terminated = by_group(~state.active | (state.time >= params.episode_length))
        truncated = by_group(jnp.zeros(6, bool))
        return (
            self.observe(state, params),
            state,
            reward,
            terminated,
            truncated,
            {"caught": caught.sum()},
        )

    def observe(self, state, params):
        """Return [n, 16] per group: distance, is hunter, is active for five others, then time."""
        distances = 2 * way(state, ALL[:, None], OTHERS)
        others = jnp.stack([distances, jnp.asarray(HUNTS[OTHERS]), state.active[OTHERS]], axis=-1)
        time = jnp.full((6, 1), state.time / params.episode_length)
        return by_group(jnp.concatenate([others.reshape(6, 15), time], axis=1))

    def split_observation(self, obs):
        """Split [..., 16] into others [..., 5, 3], their presence [..., 5] and the rest."""
        others = obs[..., :15].reshape(*obs.shape[:-1], 5, 3)
        return others, others[..., 2] > 0, obs[..., 15:]

    def scene(self, states, params):
        """Draw an episode; caught prey are pale and inside the ring."""
        draw, angle = wdjax.drawing, 2 * np.pi * states.place
        radius, opacity = np.where(states.active, 1.0, 0.85), np.where(states.active, 1.0, 0.3)
        x, y = radius * np.sin(angle), radius * np.cos(angle)
        marks = [draw.Shapes([0.0], [0.0], size=1.0, color="faint", stroke=2.0)]
        for group, ids, color in (("prey", PREY, "blue"), ("hunter", HUNTERS, "magenta")):
            style: Any = {"color": color, "label": group, "group": group, "trail": True}
            marks.append(
                draw.Shapes(x[:, ids], y[:, ids], size=0.05, opacity=opacity[:, ids], **style)
            )
        left = states.active.sum(axis=1) - 2
        captions = [
            f"step {time}, {prey} of 4 left" for time, prey in zip(states.time, left, strict=True)
        ]
        return draw.Scene(marks, captions, (-1.2, -1.2, 1.2, 1.2), states.time, axes=False)

    def observation_space(self, params):
        return wdjax.Dict(
            {group: wdjax.Box(shape=(16,)).batch(size) for group, size in SIZES.items()}
        )

    def action_space(self, params):
        return wdjax.Dict({group: wdjax.Discrete(3).batch(size) for group, size in SIZES.items()})


def by_group(values):
    """Split an array with a leading axis of 6 agents into a dict by group."""
    return {"hunter": values[HUNTERS], "prey": values[PREY]}


def game():
    """Return a configuration in which both groups learn with the set encoder `deep_sets`."""
    wdjax.register("ring", Ring)
    network = NetworkConfig(encoder="deep_sets", encoder_options={"width": 32}, hidden_sizes=(32,))
    policies = {
        group: PolicyConfig(algorithm="A2C", network=network, learning_rate=1e-2) for group in SIZES
    }
    return TrainConfig(env="ring", policies=policies, num_envs=32, rollout_length=40)


if __name__ == "__main__":
    wdjax.check_env(Ring(), num_steps=1_000)
    learner = make_learner(game())
    state, _ = learner.run(learner.init(jax.random.key(0)), num_updates=40)
    opponents = ["random", "hunt_nearest", "flee_nearest"]
    for (hunter, prey), episodes in cross_play(
        learner, state, jax.random.key(1), opponents=opponents
    ).items():
        caught = episodes.episode_info["caught"].mean()
        print(f"hunters {hunter:12} prey {prey:12} {caught:.2f} of 4 caught")
