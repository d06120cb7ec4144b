"""Random network distillation: PPO with a bonus where a predictor of random features errs.

Source: Burda et al., "Exploration by Random Network Distillation" (2019).
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from wdjax.train.learning import PPO, PPOOptions, average, static, traced


@dataclasses.dataclass(frozen=True)
class RNDOptions(PPOOptions):
    """Options of PPO, and of the bonus."""

    bonus: float = traced(1.0, allowed="finite and at least 0")
    """Weight of the intrinsic reward."""
    width: int = static(32, allowed="at least 1")
    """Width of both networks."""


class RND(PPO):
    """The bonus is added to the reward before PPO's update."""

    Options = RNDOptions

    def features(self, policy, seed):
        size, width = policy.assignment.observation_space.shape[0], policy.config.options.width
        rngs = nnx.Rngs(seed)
        return nnx.Sequential(
            nnx.Linear(size, width, rngs=rngs), jax.nn.relu, nnx.Linear(width, width, rngs=rngs)
        )

    def init(self, policy, params):
        target, predictor = (
            nnx.to_pure_dict(nnx.state(self.features(policy, seed), nnx.Param)) for seed in (1, 2)
        )
        own = {"target": target, "predictor": predictor, "opt": optax.adam(1e-3).init(predictor)}
        return super().init(policy, params).replace(own=own)

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        rows, own = rollout.rows[policy.name], state.own
        graph = nnx.graphdef(self.features(policy, 1))
        target = nnx.merge(graph, own["target"])(rows.obs)

        def error(predictor):
            return jnp.mean((nnx.merge(graph, predictor)(rows.obs) - target) ** 2, axis=-1)

        bonus = error(own["predictor"])
        grads = average(jax.grad(lambda predictor: jnp.mean(error(predictor)))(own["predictor"]))
        updates, opt = optax.adam(1e-3).update(grads, own["opt"])
        predictor = optax.apply_updates(own["predictor"], updates)
        rows = rows.replace(reward=rows.reward + hypers["bonus"] * bonus)
        with_bonus = rollout.replace(rows={**rollout.rows, policy.name: rows})
        state, memory, metrics = super().update(
            policy, state, memory, hypers, with_bonus, key, num_blocks
        )
        state = state.replace(own={**own, "predictor": predictor, "opt": opt})
        return state, memory, {**metrics, "bonus": average(jnp.mean(bonus))}
