"""A custom environment, from its rules to a trained policy: land softly with one engine.

python -m wdjax.experiments.examples.own_environment
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

import wdjax
from wdjax.train import PolicyConfig, TrainConfig, evaluate, make_learner


@struct.dataclass
class State:
    height: jax.Array  # () float32, m
    velocity: jax.Array  # () float32, m/s, upward is positive
    time: jax.Array  # () int32, steps since reset


@struct.dataclass
class Params:  # traced: can be swept and vmapped without recompilation
    gravity: float = 1.6  # m/s^2
    thrust: float = 3.0  # m/s^2, acceleration by the engine
    safe_speed: float = 1.0  # m/s, maximum for a soft landing
    episode_length: int = 200  # steps of 0.1 s until truncation


@dataclasses.dataclass(frozen=True)
class Lander(wdjax.Env):
    """Single agent. Actions: engine off, engine on. Observation: (height / 10, velocity / 5)."""

    @property
    def default_params(self):
        return Params()

    def reset(self, key, params):
        height, velocity = jax.random.uniform(
            key, (2,), minval=jnp.array([5.0, -3.0]), maxval=jnp.array([15.0, 1.0])
        )
        state = State(height, velocity, jnp.int32(0))
        return observe(state), state

    def step(self, key, state, action, params):
        landed = state.height <= 0  # no motion and no reward after the landing
        acceleration = params.thrust * action - params.gravity
        velocity = jnp.where(landed, state.velocity, state.velocity + 0.1 * acceleration)
        height = jnp.where(landed, state.height, jnp.minimum(state.height + 0.1 * velocity, 50.0))
        state = State(height, velocity, state.time + 1)
        terminated = height <= 0
        truncated = (state.time >= params.episode_length) & ~terminated
        reward = jnp.where(landed, 0.0, jnp.where(terminated, 1.0 + velocity / 5.0, -0.005))
        soft = terminated & ~landed & (velocity >= -params.safe_speed)
        return observe(state), state, reward, terminated, truncated, {"soft": soft}

    def observation_space(self, params):
        return wdjax.Box(shape=(2,))

    def action_space(self, params):
        return wdjax.Discrete(2)

    def scene(self, states, params):
        """Draw an episode from its states, whose arrays have a leading [T]."""
        lander = wdjax.drawing.Shapes(
            [0.0], states.height[:, None] + 1, wdjax.drawing.SQUARE, group="agent"
        )
        captions = [f"velocity {velocity:+.1f} m/s" for velocity in states.velocity]
        return wdjax.drawing.Scene([lander], captions, extent=(-10, 0, 10, 20), ylabel="height [m]")


def observe(state):
    return jnp.stack([state.height / 10, state.velocity / 5])


if __name__ == "__main__":
    wdjax.register("lander", Lander)
    wdjax.check_env("lander")  # raises an error if the environment breaks a rule
    options = {"epochs": 4, "minibatches": 4, "normalize_advantage": True}
    policy = PolicyConfig(learning_rate=3e-3, options=options)
    config = TrainConfig(env="lander", policies={"agent": policy}, num_envs=64, rollout_length=64)
    learner = make_learner(config)
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=50)
    first = metrics["episode_soft"][0]
    last = evaluate(learner, state, jax.random.key(1), greedy=True).episode_info["soft"].mean()
    print(f"soft landings: {first:.0%} at first, {last:.0%} after 50 updates")
