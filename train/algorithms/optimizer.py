"""Steps down a gradient: the optimizers that a configuration names, with the learning rate as a traced number."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from wdjax.train.config.schema import PolicyConfig
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy
from wdjax.train.state.state import PolicyState


def make_optimizer(config: PolicyConfig, hypers: Hypers) -> optax.GradientTransformation:
    """Returns global-norm clipping and the optimizer up to, not including, the learning rate: that is traced."""
    shape = {
        "adam": optax.scale_by_adam(eps=config.optimizer_epsilon),
        "rmsprop": optax.scale_by_rms(decay=0.99, eps=config.optimizer_epsilon, eps_in_sqrt=False),
        "sgd": optax.identity(),
    }[config.optimizer]
    return optax.chain(optax.clip_by_global_norm(hypers["max_grad_norm"]), shape)


def descend(
    config: PolicyConfig, hypers: Hypers, learning_rate: jax.Array, grads: Any, opt_state: Any, params: Any
) -> tuple[Any, Any]:
    """Returns (parameters one step of the optimizer further, its state)."""
    updates, opt_state = make_optimizer(config, hypers).update(grads, opt_state, params)
    return jax.tree.map(lambda param, update: param - learning_rate * update, params, updates), opt_state


def apply_gradient(policy: Policy, hypers: Hypers, grads: Any) -> Callable[[PolicyState], PolicyState]:
    """Return the function that takes one optimizer step: clip, precondition, subtract."""

    def step(state: PolicyState) -> PolicyState:
        rate = hypers["learning_rate"]
        params, opt_state = descend(policy.config, hypers, rate, grads, state.opt_state, state.params)
        return state.replace(params=params, opt_state=opt_state)

    return step
