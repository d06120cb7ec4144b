"""A custom algorithm: advantage-weighted regression (AWR), swept and played against PPO.

    python -m wdjax.experiments.examples.own_algorithm
    wdjax train cartpole_ppo --policies.agent.temperature 0.3 \
        --policies.agent.algorithm wdjax.experiments.examples.own_algorithm:AWR

Source: Peng, Kumar, Zhang, Levine, "Advantage-Weighted Regression: Simple and Scalable Off-Policy
Reinforcement Learning" (2019), eq. 9. This version has no replay buffer: it learns from each
rollout for a few epochs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from wdjax.train import PPO, load_config, make_learner, register_algorithm, traced, with_hypers

TEMPERATURES = (0.03, 0.1, 0.3, 1.0)


@dataclasses.dataclass(frozen=True)
class Options(PPO.Options):
    """Options of PPO and AWR. `clip` and `value_clip` have no effect."""

    temperature: float = traced(0.3, allowed="above 0")
    """Advantage that multiplies the weight of an action by e."""
    max_weight: float = traced(20.0, allowed="above 0")
    """Maximum weight of an action."""


class AWR(PPO):
    """Advantage-weighted regression: imitate actions, weighted by their advantage.

    PPO implements everything but the loss: acting, advantages, epochs of minibatches and several
    devices.
    """

    Options = Options
    keeps_log_prob = False  # the loss has no probability ratio

    def loss(self, new, batch, options, mean):
        """Return the loss and the means of its terms; arguments as for `PPO.loss`.

        loss = mean(-log pi(a) w) + c_v mean((V - R)^2) - c_e mean(entropy),
        w = min(exp(A / temperature), max_weight)
        """
        weight = jnp.minimum(jnp.exp(batch.advantage / options.temperature), options.max_weight)
        means = mean(
            {
                "policy_loss": -new.log_prob * weight,
                "value_loss": (new.value - batch.target) ** 2,
                "entropy": new.entropy,
                "weight": weight,
            }
        )
        value_loss = options.value_coefficient * means["value_loss"]
        entropy = options.entropy_coefficient * means["entropy"]
        return means["policy_loss"] + value_loss - entropy, means


register_algorithm("AWR", AWR)


def sweep_temperatures(num_updates: int = 60) -> tuple[jax.Array, jax.Array]:
    """Train one member per temperature and return (temperatures, returns), [members] each."""
    changes = {
        "policies.agent.algorithm": "AWR",
        "policies.agent.normalize_advantage": True,
        "num_envs": 16,
    }
    learner = make_learner(load_config("cartpole_ppo", **changes))
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), len(TEMPERATURES)))
    temperatures = jnp.array(TEMPERATURES)
    states = with_hypers(states, **{"agent.temperature": temperatures})
    _, metrics = jax.vmap(functools.partial(learner.run, num_updates=num_updates))(states)
    return temperatures, jnp.nanmean(metrics["agent/episode_return"][:, -5:], axis=1)


def beside_ppo(num_updates: int = 40) -> dict[str, jax.Array]:
    """Train AWR taggers against PPO runners and return the metrics, [num_updates] each."""
    changes = {
        "policies.tagger.algorithm": "AWR",
        "policies.tagger.temperature": 0.5,
        "num_envs": 32,
    }
    # observations as in WarpDrive
    observation = {"env_params.egocentric": False, "env_params.observe_own_motion": False}
    learner = make_learner(load_config("tag_small", **changes, **observation))
    return learner.run(learner.init(jax.random.key(0)), num_updates=num_updates)[1]


if __name__ == "__main__":
    for temperature, mean in zip(*sweep_temperatures(), strict=True):
        print(f"cartpole, temperature {temperature:.2f}: return {mean:.0f} after 60 updates")
    metrics = beside_ppo()
    tags = metrics["tagger/episode_return"]
    first, last = jnp.nanmean(tags[:5]), jnp.nanmean(tags[-5:])
    print(
        f"tag_small: AWR taggers tag {first:.2f} of 8 PPO runners at first, "
        f"{last:.2f} after {len(tags)} updates"
    )
