"""Compare environments of gymnax 0.0.9 with their adapters, and trace an update of training.

Run with gymnax 0.0.9 first on PYTHONPATH.
"""

from importlib.metadata import version

import gymnax
import jax
import numpy as np

import wdjax
from wdjax.train import PolicyConfig, TrainConfig, make_learner

GAMES = ("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite")


def agrees(name, num_steps=60):
    """Step both from the same states. Return whether an episode ended."""
    env, params = wdjax.make(f"gymnax:{name}", max_steps_in_episode=50)
    assert not hasattr(env.inner, "is_truncated")
    assert not env.can_truncate
    _, state = jax.jit(env.reset)(jax.random.key(0), params)

    @jax.jit
    def step(state, key):
        action = env.action_space(params).sample(key)
        return env.inner.step_env(key, state.inner, action, params), env.step(
            key, state, action, params
        )

    for t in range(num_steps):
        (obs, inner, reward, done, _), ours = step(state, jax.random.fold_in(jax.random.key(1), t))
        np.testing.assert_allclose(ours[0], obs, rtol=1e-6, atol=1e-6)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
            ours[1].inner,
            inner,
        )
        assert ours[2] == reward
        assert bool(ours[3]) == bool(done)
        assert not ours[4]
        state = ours[1]
        if done:
            return True
    return False


def main():
    assert not hasattr(gymnax.environments.environment.Environment, "is_truncated"), gymnax.__file__
    for name in GAMES:
        assert agrees(name), name
    config = TrainConfig(
        env="gymnax:CartPole-v1",
        policies={"agent": PolicyConfig()},
        num_envs=16,
        rollout_length=64,
    )
    learner = make_learner(config)
    _, metrics = jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))
    assert "agent/episode_return" in metrics
    print(f"gymnax {version('gymnax')} agrees")


if __name__ == "__main__":
    main()
