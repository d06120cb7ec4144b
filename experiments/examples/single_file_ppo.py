"""PPO in one file, to copy and change: environments of wdjax, learning in plain JAX and optax.

python -m wdjax.experiments.examples.single_file_ppo
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import wdjax


class Args(NamedTuple):
    env: str = "cartpole"  # one agent, discrete actions
    num_seeds: int = 4  # runs in one program
    num_envs: int = 4  # replicas
    rollout_length: int = 128  # env steps of each replica between updates
    total_env_steps: int = 100_000  # per seed
    learning_rate: float = 2.5e-3  # of Adam, decays linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95
    epochs: int = 4  # passes over each rollout
    minibatches: int = 4  # per epoch
    clip: float = 0.2  # range of the probability ratio around 1
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_grad_norm: float = 0.5
    hidden_size: int = 64  # both hidden layers of a network


class Transition(NamedTuple):  # [rollout_length, num_envs, ...]
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array  # of obs
    next_value: jax.Array  # after the step, before any reset
    reward: jax.Array
    terminated: jax.Array  # the episode ended, its next value is 0
    over: jax.Array  # the episode ended or was truncated
    episode_return: jax.Array  # since the start of the episode


def init_network(key: jax.Array, sizes: list[int], last_scale: float) -> list:  # (weight, bias)
    scales, orthogonal = [*[2**0.5] * (len(sizes) - 2), last_scale], jax.nn.initializers.orthogonal
    layers = zip(jax.random.split(key, len(scales)), scales, sizes[:-1], sizes[1:], strict=True)
    return [(orthogonal(scale)(key, (n, m)), jnp.zeros(m)) for key, scale, n, m in layers]


def apply_network(layers: list, x: jax.Array) -> jax.Array:
    *hidden, (last_weight, last_bias) = layers
    for weight, bias in hidden:
        x = jnp.tanh(x @ weight + bias)
    return x @ last_weight + last_bias


def log_probs_and_value(params: dict, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the log-probabilities of all actions, [..., actions], and the value, [...]."""
    log_probs = jax.nn.log_softmax(apply_network(params["actor"], obs))
    return log_probs, apply_network(params["critic"], obs)[..., 0]


def act(params: dict, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return a sampled action, its log-probability and the value of obs."""
    log_probs, value = log_probs_and_value(params, obs)
    action = jax.random.categorical(key, log_probs)
    return action, jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0], value


def gae(rollout: Transition, args: Args) -> jax.Array:  # advantages [rollout_length, num_envs]
    def backward(advantage: jax.Array, row: Transition) -> tuple[jax.Array, jax.Array]:
        target = row.reward + args.gamma * row.next_value * ~row.terminated
        advantage = target - row.value + args.gamma * args.gae_lambda * ~row.over * advantage
        return advantage, advantage

    return jax.lax.scan(backward, jnp.zeros(args.num_envs), rollout, reverse=True)[1]


def ppo_loss(params: dict, batch: tuple, args: Args) -> jax.Array:
    rows, advantage = batch
    log_probs, value = log_probs_and_value(params, rows.obs)
    log_prob = jnp.take_along_axis(log_probs, rows.action[:, None], axis=-1)[:, 0]
    ratio = jnp.exp(log_prob - rows.log_prob)
    normalized = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - args.clip, 1 + args.clip)
    policy_loss = -jnp.minimum(ratio * normalized, clipped * normalized).mean()
    value_loss = 0.5 * jnp.square(value - (rows.value + advantage)).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1).mean()
    return policy_loss + args.value_coefficient * value_loss - args.entropy_coefficient * entropy


def train(key: jax.Array, args: Args) -> tuple[dict, jax.Array]:
    """Train one seed. Return the parameters and the mean return per update, [updates]."""
    env, env_params = wdjax.make(args.env)
    envs, action_space = wdjax.vectorize(env, args.num_envs), env.action_space(env_params)
    assert isinstance(action_space, wdjax.Discrete), f"{args.env}: needs one agent, Discrete"
    batch_size = args.num_envs * args.rollout_length
    num_updates = args.total_env_steps // batch_size
    lr = optax.linear_schedule(args.learning_rate, 0, num_updates * args.epochs * args.minibatches)
    optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.adam(lr))

    def env_step(carry: tuple, key: jax.Array) -> tuple[tuple, Transition]:
        params, obs, state = carry
        action_key, step_key = jax.random.split(key)
        action, log_prob, value = act(params, obs, action_key)
        new_obs, state, reward, terminated, _, info = envs.step(step_key, state, action, env_params)
        next_value = log_probs_and_value(params, info["final_obs"])[1]
        ends = terminated, info["over"], info["episode_return"]
        row = Transition(obs, action, log_prob, value, next_value, reward, *ends)
        return (params, new_obs, state), row

    def update(carry: tuple, key: jax.Array) -> tuple[tuple, jax.Array]:
        params, opt_state, obs, state = carry
        rollout_key, *shuffle_keys = jax.random.split(key, 1 + args.epochs)
        step_keys = jax.random.split(rollout_key, args.rollout_length)
        (_, obs, state), rollout = jax.lax.scan(env_step, (params, obs, state), step_keys)
        batch = rollout, gae(rollout, args)
        batch = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), batch)

        def minibatch_step(carry: tuple, rows: jax.Array) -> tuple[tuple, None]:
            params, opt_state = carry
            grads = jax.grad(ppo_loss)(params, jax.tree.map(lambda x: x[rows], batch), args)
            updates, opt_state = optimizer.update(grads, opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        shuffle = jax.vmap(lambda key: jax.random.permutation(key, batch_size))
        order = shuffle(jnp.stack(shuffle_keys)).reshape(args.epochs * args.minibatches, -1)
        (params, opt_state), _ = jax.lax.scan(minibatch_step, (params, opt_state), order)
        return (params, opt_state, obs, state), jnp.mean(rollout.episode_return, where=rollout.over)

    actor_key, critic_key, reset_key, train_key = jax.random.split(key, 4)
    obs, state = envs.reset(reset_key, env_params)
    sizes = [obs.shape[-1], args.hidden_size, args.hidden_size]
    actor = init_network(actor_key, [*sizes, action_space.n], 0.01)
    params = {"actor": actor, "critic": init_network(critic_key, [*sizes, 1], 1.0)}
    carry = params, optimizer.init(params), obs, state
    carry, returns = jax.lax.scan(update, carry, jax.random.split(train_key, num_updates))
    return carry[0], returns


if __name__ == "__main__":
    args = Args()
    keys = jax.random.split(jax.random.key(0), args.num_seeds)
    params, returns = jax.jit(jax.vmap(train, (0, None)), static_argnums=1)(keys, args)
    for part in np.array_split(np.arange(returns.shape[1]), 6):  # updates
        env_steps = (part[-1] + 1) * args.num_envs * args.rollout_length
        means = np.nanmean(np.asarray(returns)[:, part], axis=1)
        print(f"{env_steps:7,} env steps: returns", *(f"{mean:5.1f}" for mean in means))
