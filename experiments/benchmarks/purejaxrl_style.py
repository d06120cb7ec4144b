"""PPO on gymnax's cartpole the way PureJaxRL does it, to compare speeds with: one file, flax.linen, optax, two scans.

Our own writing, after the structure of PureJaxRL's ppo.py (Lu et al., 2022): every replica with keys of its own, a
rollout by lax.scan, advantages by a reverse scan, epochs of minibatches of one permutation over all rows, values
clipped like ratios, Adam with a linearly falling learning rate, time limits taken for deaths. Numbers as in wdjax's
preset cartpole_ppo where both have them.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 4, 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5
LEARNING_RATE, TOTAL_UPDATES = 2.5e-3, 293  # 150,000 env steps


@functools.cache
def make_env() -> tuple[Any, Any]:
    """Returns gymnax's cartpole and its params; raises ImportError where gymnax is not installed."""
    import gymnax

    return gymnax.make("CartPole-v1")


class ActorCritic(nn.Module):
    """Two networks, 64-64 tanh each: the logits of two actions, and a value."""

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def tower(outputs: int, gain: float) -> jax.Array:
            hidden = obs
            for _ in range(2):
                hidden = nn.tanh(nn.Dense(64, kernel_init=nn.initializers.orthogonal(np.sqrt(2)))(hidden))
            return nn.Dense(outputs, kernel_init=nn.initializers.orthogonal(gain))(hidden)

        return tower(2, 0.01), tower(1, 1.0)[..., 0]


Rows = dict[str, jax.Array]  # one step of all replicas, leaves [NUM_ENVS, ...]; a rollout has a leading [NUM_STEPS]


class Runner(NamedTuple):
    """What goes from update to update."""

    train: TrainState
    env_state: Any
    obs: jax.Array
    episode_return: jax.Array  # [NUM_ENVS], so far
    returned: jax.Array  # [NUM_ENVS], the return of the last episode that ended
    key: jax.Array


def init(key: jax.Array) -> Runner:
    """Returns a new network, its optimizer, and replicas at their starts."""
    network_key, reset_key, key = jax.random.split(key, 3)
    env, params = make_env()
    obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, NUM_ENVS), params)
    network = ActorCritic()
    schedule = optax.linear_schedule(LEARNING_RATE, 0.0, TOTAL_UPDATES * EPOCHS * MINIBATCHES)
    optimizer = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(schedule, eps=1e-5))
    train = TrainState.create(apply_fn=network.apply, params=network.init(network_key, obs), tx=optimizer)
    return Runner(train, env_state, obs, jnp.zeros(NUM_ENVS), jnp.zeros(NUM_ENVS), key)


def run(num_updates: int, runner: Runner) -> tuple[Runner, jax.Array]:
    """Returns the runner after so many updates, and the mean return of the last episodes in each, [num_updates]."""
    return jax.lax.scan(lambda runner, _: update(runner), runner, length=num_updates)


def update(runner: Runner) -> tuple[Runner, jax.Array]:
    """A rollout and its epochs."""
    runner, rows = jax.lax.scan(env_step, runner, length=NUM_STEPS)
    _, last_value = runner.train.apply_fn(runner.train.params, runner.obs)
    advantage = advantages(rows, last_value)
    batch = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (rows, advantage, advantage + rows["value"]))
    epochs_key, key = jax.random.split(runner.key)

    def descend(train: TrainState, rows: tuple[Rows, jax.Array, jax.Array]) -> tuple[TrainState, None]:
        return train.apply_gradients(grads=jax.grad(loss)(train.params, train.apply_fn, *rows)), None

    def epoch(train: TrainState, key: jax.Array) -> tuple[TrainState, None]:
        order = jax.random.permutation(key, NUM_ENVS * NUM_STEPS)
        minibatches = jax.tree.map(lambda leaf: leaf[order].reshape(MINIBATCHES, -1, *leaf.shape[1:]), batch)
        return jax.lax.scan(descend, train, minibatches)

    train, _ = jax.lax.scan(epoch, runner.train, jax.random.split(epochs_key, EPOCHS))
    return runner._replace(train=train, key=key), rows["returned"].mean()


def env_step(runner: Runner, _: None) -> tuple[Runner, Rows]:
    """One step of all replicas, actions drawn from the policy."""
    action_key, step_key, key = jax.random.split(runner.key, 3)
    logits, value = runner.train.apply_fn(runner.train.params, runner.obs)
    action = jax.random.categorical(action_key, logits)
    log_prob = log_prob_of(logits, action)
    keys = jax.random.split(step_key, NUM_ENVS)
    env, params = make_env()
    played = jax.vmap(env.step, (0, 0, 0, None))(keys, runner.env_state, action, params)
    obs, env_state, reward, terminated, truncated, _ = played
    done = terminated | truncated
    episode_return = runner.episode_return + reward
    returned = jnp.where(done, episode_return, runner.returned)
    rows = {"obs": runner.obs, "action": action, "log_prob": log_prob, "value": value, "reward": reward, "done": done}
    rows["returned"] = returned
    return Runner(runner.train, env_state, obs, episode_return * (1 - done), returned, key), rows


def advantages(rows: Rows, last_value: jax.Array) -> jax.Array:
    """Generalised advantage estimation, [NUM_STEPS, NUM_ENVS]."""

    def step(carry: tuple, row: Rows) -> tuple[tuple, jax.Array]:
        advantage, value_tp1 = carry
        goes_on = 1 - row["done"]
        delta = row["reward"] + GAMMA * value_tp1 * goes_on - row["value"]
        advantage = delta + GAMMA * LAMBDA * goes_on * advantage
        return (advantage, row["value"]), advantage

    return jax.lax.scan(step, (jnp.zeros_like(last_value), last_value), rows, reverse=True, unroll=16)[1]


def loss(params: Any, apply: Any, rows: Rows, advantage: jax.Array, target: jax.Array) -> jax.Array:
    """The clipped objective, the clipped value error and the entropy bonus, ()."""
    logits, value = apply(params, rows["obs"])
    ratio = jnp.exp(log_prob_of(logits, rows["action"]) - rows["log_prob"])
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    clipped = rows["value"] + jnp.clip(value - rows["value"], -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
    log_probs = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy_loss + VALUE * value_loss - ENTROPY * entropy


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Returns the log-probability of each action, [...]."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]
