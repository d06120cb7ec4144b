"""A policy whose parameters are the outputs of its network, for gradients by hand."""

import dataclasses

import jax
import jax.numpy as jnp
from probes import new_policy

from wdjax.train import A2C, PPO, PolicyState
from wdjax.train.learning import Categorical, Policy, fit, make_optimizer
from wdjax.train.state.engine import Engine
from wdjax.train.state.hypers import hypers_of


class ShownPolicy(Policy):
    """A policy with two actions and parameters {"outputs": [R, 2], "value": [R]}.

    Observations are indices into the R transitions; None: all of them in order.
    """

    def apply(self, state, obs, carry=None):
        outputs, value = state.params["outputs"], state.params["value"]
        return (outputs, value, None) if obs is None else (outputs[obs], value[obs], None)


def shown_policy(algorithm, engine=None, **fields):
    """Return a ShownPolicy; `fields` of PolicyConfig, or options of the algorithm."""
    names = [field.name for field in dataclasses.fields(Policy)]
    parts = {
        "name": "agent",
        "config": new_policy(algorithm, **fields),
        "algorithm": {"A2C": A2C, "PPO": PPO}[algorithm](),
        "distribution": Categorical((2,), scalar=True),
        "engine": engine or Engine(),
    }
    return ShownPolicy(**{**dict.fromkeys(names), **parts})


def state_of(policy, params):
    optimizer = make_optimizer(policy.config, policy.config.max_grad_norm)
    return PolicyState(params, optimizer.init(params))


def fit_policy(policy, state, batch, key, **changes):
    """Call `fit` with the options of the policy and changed hyperparameters, in one block."""
    hypers = hypers_of(policy.config).at(jnp.float32(0))
    hypers.update(changes)
    options, steps = policy.options(hypers), {}
    if policy.config.algorithm == "PPO":
        names = ("epochs", "minibatches", "target_kl")
        steps = {name: getattr(options, name) for name in names}
    normalize = options.normalize_advantage
    loss = policy.algorithm.loss
    return fit(loss, policy, state, hypers, batch, key, 1, normalize_advantage=normalize, **steps)


def fit_once(policy, params, batch):
    """Return (state, metrics) of `fit` from a new optimizer state."""
    run = jax.jit(lambda state, batch: fit_policy(policy, state, batch, jax.random.key(0)))
    return run(state_of(policy, params), batch)
