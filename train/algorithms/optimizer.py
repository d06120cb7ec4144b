"""Steps down a gradient: the optimizers that a configuration names, with the learning rate as a traced number."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax.flatten_util import ravel_pytree

from wdjax.train.config.schema import PolicyConfig
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.state import PolicyState


def make_optimizer(config: PolicyConfig, hypers: Hypers) -> optax.GradientTransformation:
    """Returns global-norm clipping and the optimizer up to, not including, the learning rate: that is traced."""
    shape = {
        "adam": optax.scale_by_adam(eps=config.optimizer_epsilon),
        "rmsprop": optax.scale_by_rms(decay=0.99, eps=config.optimizer_epsilon, eps_in_sqrt=False),
        "sgd": optax.identity(),
    }[config.optimizer]
    return optax.chain(optax.clip_by_global_norm(hypers.max_grad_norm), shape)


def descend(
    config: PolicyConfig, hypers: Hypers, learning_rate: jax.Array, grads: Any, opt_state: Any, params: Any
) -> tuple[Any, Any]:
    """Returns (parameters one step of the optimizer further, its state)."""
    updates, opt_state = make_optimizer(config, hypers).update(grads, opt_state, params)
    return jax.tree.map(lambda param, update: param - learning_rate * update, params, updates), opt_state


def to_vectors(state: PolicyState) -> tuple[PolicyState, Callable[[PolicyState], PolicyState]]:
    """Lays parameters, and whatever the optimizer keeps for each of them, in one vector [P]: in a loop of gradient
    steps each takes a few operations then, and not some for every leaf.

    Returns:
        (state in vectors, a function that gives such a state its names again).
    """
    names = jax.tree.structure(state.params)
    is_params = lambda part: jax.tree.structure(part) == names  # noqa: E731
    vector, to_params = ravel_pytree(state.params)
    opt_state = jax.tree.map(
        lambda part: ravel_pytree(part)[0] if is_params(part) else part, state.opt_state, is_leaf=is_params
    )

    def to_names(vectors: PolicyState) -> PolicyState:
        opt_state = jax.tree.map(
            lambda old, new: to_params(new) if is_params(old) else new, state.opt_state, vectors.opt_state,
            is_leaf=is_params,
        )  # fmt: skip
        return vectors.replace(params=to_params(vectors.params), opt_state=opt_state)

    return state.replace(params=vector, opt_state=opt_state), to_names
