"""Steps down a gradient: the optimizers that a configuration names, with the learning rate as a traced number."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from wdjax.train.config import PolicyConfig
from wdjax.train.state import Hypers, PolicyState


@struct.dataclass
class Vectors:
    """What a policy learns in one vector for each part: a step takes a few kernels then, and not some for each leaf."""

    params: jax.Array  # [P]
    opt_state: Any  # of an optimizer of such a vector


def to_vectors(state: PolicyState) -> tuple[Vectors, Callable[[Vectors], PolicyState]]:
    """Returns (parameters and optimizer's state as vectors, a function that puts such vectors in the place of both)."""
    vector, to_params = ravel_pytree(state.params)
    tree = jax.tree.structure(state.params)
    is_params = lambda part: jax.tree.structure(part) == tree  # noqa: E731

    def restore(vectors: Vectors) -> PolicyState:
        opt_state = jax.tree.map(
            lambda old, new: to_params(new) if is_params(old) else new, state.opt_state, vectors.opt_state,
            is_leaf=is_params,
        )  # fmt: skip
        return state.replace(params=to_params(vectors.params), opt_state=opt_state)

    opt_state = jax.tree.map(
        lambda part: ravel_pytree(part)[0] if is_params(part) else part, state.opt_state, is_leaf=is_params
    )
    return Vectors(vector, opt_state), restore


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
