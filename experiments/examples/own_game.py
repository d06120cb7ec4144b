"""A game of one's own for several agents: hunters and prey on a ring, with scripts to play against and a set to see.

    python -m wdjax.experiments.examples.own_game

It declares a script for each group, and who is whom in its observations. So `check_env` checks both, `deep_sets` needs
no option, and scripts play by name: here in `cross_play`, and in `wdjax eval RUN --opponents hunt_nearest` alike.
"""

import dataclasses
from typing import ClassVar

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
    place: jax.Array  # (6,) float32, in [0, 1) on a ring of length 1; hunters first
    active: jax.Array  # (6,) bool, not caught
    time: jax.Array  # () int32, steps since the reset


@struct.dataclass
class Params:
    hunter_speed: float = 0.03  # length / step
    prey_speed: float = 0.02  # length / step
    reach: float = 0.03  # length, within which prey is caught: nobody slips through
    episode_length: int = 40  # steps; the end is part of the game and terminates


def way(state, who, whom):
    """Returns the shorter way along the ring from each of `who` to each of `whom`, which have equal axes, or 1."""
    return (state.place[whom] - state.place[who] + 0.5) % 1.0 - 0.5


def way_to_nearest(state, who, whom):
    ways = way(state, who[:, None], whom[None])
    nearest = jnp.argmin(jnp.where(state.active[None, whom], jnp.abs(ways), jnp.inf), axis=1)
    return ways[jnp.arange(len(who)), nearest]


def hunt_nearest(env, state, params, key):  # of one replica -> the actions of all hunters
    return jnp.where(way_to_nearest(state, HUNTERS, PREY) > 0, 2, 0)


def flee_nearest(env, state, params, key):
    return jnp.where(way_to_nearest(state, PREY, HUNTERS) > 0, 0, 2)


@dataclasses.dataclass(frozen=True)
class Ring(wdjax.Env):
    """Actions: step left, stay, step right. A hunter is paid for the prey that it catches, which pays and is out."""

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
        """Rows of 16: of each of the five others the way to it, whether it hunts, whether it is there; then t / T."""
        ways = 2 * way(state, ALL[:, None], OTHERS)
        rows = jnp.stack([ways, jnp.asarray(HUNTS[OTHERS]), state.active[OTHERS]], axis=-1)
        time = jnp.full((6, 1), state.time / params.episode_length)
        return by_group(jnp.concatenate([rows.reshape(6, 15), time], axis=1))

    # of one agent, with any leading axes -> the others, who is there, one's own
    def split_observation(self, obs):
        others = obs[..., :15].reshape(*obs.shape[:-1], 5, 3)
        return others, others[..., 2] > 0, obs[..., 15:]

    def scene(self, states, params):  # who is caught stands inside of the ring, pale
        draw, turn = wdjax.drawing, 2 * np.pi * states.place
        far, seen = np.where(states.active, 1.0, 0.85), np.where(states.active, 1.0, 0.3)
        x, y = far * np.sin(turn), far * np.cos(turn)
        marks = [draw.Shapes([0.0], [0.0], size=1.0, color="faint", stroke=2.0)]
        for group, of, color in (("prey", PREY, "blue"), ("hunter", HUNTERS, "magenta")):
            look = {"size": 0.05, "color": color, "label": group, "group": group, "trail": True}
            marks.append(draw.Shapes(x[:, of], y[:, of], opacity=seen[:, of], **look))
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
    return {"hunter": values[HUNTERS], "prey": values[PREY]}


def game():
    """Returns a run in which both groups learn against each other, each seeing the others as a set."""
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
