"""An algorithm of one's own: advantage-weighted regression, its options swept, and beside a PPO policy.

    python -m wdjax.experiments.examples.own_algorithm
    wdjax train cartpole_ppo --policies.agent.algorithm wdjax.experiments.examples.own_algorithm:AWR \
        --policies.agent.clip 0.2 --policies.agent.options.temperature 0.3

Source: Peng, Kumar, Zhang, Levine, "Advantage-Weighted Regression: Simple and Scalable Off-Policy Reinforcement
Learning" (2019), eq. 9, here without a replay buffer: each rollout is learned from for a few epochs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from wdjax.train import OnPolicy, load_config, make_learner, register_algorithm, traced, with_hypers

TEMPERATURES = (0.03, 0.1, 0.3, 1.0)


@dataclasses.dataclass(frozen=True)
class Options:  # the block `options:` of a policy
    """What only AWR has."""

    temperature: float = traced(0.3, allowed="above 0")
    """how much better an action must have been to be e times as much imitated, in units of the advantage"""
    max_weight: float = traced(20.0, allowed="above 0")
    """of an action, at most"""


class AWR(OnPolicy):
    """Imitates what was better than expected: the loss is -log pi(a) min(exp(A / temperature), max_weight).

    All else is OnPolicy's: rollouts, memory, masks, advantages (a function of its own, `advantages`), the value's loss,
    entropy, epochs of minibatches, normalisation, several devices. An algorithm that learns from something else than a
    rollout's rows is a subclass of `wdjax.train.Algorithm` in place of `OnPolicy`.
    """

    # the fields `epochs` and `minibatches` mean something; `clip` does not
    takes = OnPolicy.takes | {"minibatches"}
    keeps_log_prob = False  # no ratio of probabilities
    Options = Options

    def policy_loss(self, log_prob, old_log_prob, advantage, live, hypers):
        """Returns (loss [R], metrics [R]) of rows; `hypers` are numbers, the options' as "options.NAME"."""
        weight = jnp.exp(jnp.where(live, advantage, 0.0) / hypers["options.temperature"])
        weight = jnp.minimum(weight, hypers["options.max_weight"])
        return -log_prob * weight, {"weight": weight}


register_algorithm("AWR", AWR)


def sweep_temperatures(num_updates: int = 60) -> tuple[jax.Array, jax.Array]:
    """Trains cartpole with every temperature in one program. Returns (temperatures, returns), [members] each."""
    changes = {
        "policies.agent.algorithm": "AWR",
        "policies.agent.normalize_advantage": True,
        "num_envs": 16,
    }
    learner = make_learner(load_config("cartpole_ppo", **changes))
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), len(TEMPERATURES)))
    temperatures = jnp.array(TEMPERATURES)
    states = with_hypers(states, **{"agent.options.temperature": temperatures})
    _, metrics = jax.vmap(functools.partial(learner.run, num_updates=num_updates))(states)
    return temperatures, jnp.nanmean(metrics["agent/episode_return"][:, -5:], axis=1)


def beside_ppo(num_updates: int = 40) -> dict[str, jax.Array]:
    """Trains taggers by AWR against runners that learn by PPO, in one program, as WarpDrive shows the game. Returns the
    metrics [num_updates]."""
    changes = {
        "policies.tagger.algorithm": "AWR",
        "policies.tagger.options": {"temperature": 0.5},
        "num_envs": 32,
    }
    shown = {"env_params.egocentric": False, "env_params.observe_own_motion": False}
    learner = make_learner(load_config("tag_small", **changes, **shown))
    return learner.run(learner.init(jax.random.key(0)), num_updates=num_updates)[1]


if __name__ == "__main__":
    for temperature, mean in zip(*sweep_temperatures(), strict=True):
        print(f"cartpole, temperature {temperature:.2f}: return {mean:.0f} after 60 updates")
    metrics = beside_ppo()
    tags = metrics["tagger/episode_return"]
    first, last = jnp.nanmean(tags[:5]), jnp.nanmean(tags[-5:])
    print(
        f"tag_small: AWR's taggers tag {first:.2f} of 8 PPO runners at first, {last:.2f} after {len(tags)} updates"
    )
