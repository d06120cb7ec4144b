"""OpenES: each replica acts with its own perturbed parameters; fitness weights the perturbations.

Source: Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"
(2017).
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from wdjax.train.learning import (
    OnPolicy,
    OnPolicyOptions,
    PolicyState,
    all_rows,
    block_numbers,
    make_optimizer,
    traced,
)


@dataclasses.dataclass(frozen=True)
class OpenESOptions(OnPolicyOptions):
    """Options of OpenES."""

    sigma: float = traced(0.3, allowed="above 0")
    """Standard deviation of the perturbations."""


class OpenES(OnPolicy):
    """Antithetic perturbations of all parameters; the gradient of the mean rank of fitness."""

    Options = OpenESOptions
    has_kernels = False

    def init(self, policy, params):
        optimizer = make_optimizer(policy.config, policy.config.max_grad_norm)
        return PolicyState(params, optimizer.init(params), own=jnp.zeros(2, jnp.uint32))

    def noise(self, state, num_blocks, per_block):
        """Return the perturbation of each replica, [num_blocks * per_block, P]: +e, -e, ..."""
        size, key = ravel_pytree(state.params)[0].size, jax.random.wrap_key_data(state.own)

        def draw(block):
            return jax.random.normal(jax.random.fold_in(key, block), (per_block // 2, size))

        half = jax.vmap(draw)(block_numbers(num_blocks))
        return jnp.concatenate([half, -half], axis=1).reshape(num_blocks * per_block, size)

    def act(self, policy, state, carry, obs, keys, hypers):
        num_blocks, num_envs = keys.shape[0], jax.tree.leaves(obs)[0].shape[0]
        vector, to_params = ravel_pytree(state.params)
        own = vector[None] + hypers["sigma"] * self.noise(state, num_blocks, num_envs // num_blocks)
        outputs = jax.vmap(
            lambda vector, obs: policy.apply(state.replace(params=to_params(vector)), obs)[0]
        )(own, obs)
        return policy.distribution.mode(outputs), {}, carry

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        rows = rollout.rows[policy.name]
        episodes = jnp.sum(rollout.over, axis=0) + 1.0
        fitness = jnp.sum(jnp.mean(rows.reward, axis=2), axis=0) / episodes
        noise = self.noise(state, num_blocks, fitness.shape[0] // num_blocks)
        fitness, noise = all_rows((fitness, noise))
        rank = jnp.argsort(jnp.argsort(fitness)) / (fitness.size - 1.0) - 0.5
        to_params = ravel_pytree(state.params)[1]
        grads = to_params(-(rank @ noise) / (fitness.size * hypers["sigma"]))
        optimizer = make_optimizer(policy.config, hypers["max_grad_norm"])
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = jax.tree.map(lambda p, u: p - hypers["learning_rate"] * u, state.params, updates)
        state = state.replace(params=params, opt_state=opt_state, own=jax.random.key_data(key))
        loss, norm = -jnp.mean(fitness), optax.tree.norm(grads)
        return state, memory, {"loss": loss, "grad_norm": norm, "live_fraction": jnp.float32(1)}
