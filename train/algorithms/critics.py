"""Critics of continuous actions: their values, targets and errors.

An expected critic returns the mean return Q(obs, action). A categorical critic predicts a
distribution of returns on a fixed grid of values, called atoms, and returns its logits.

Sources: Bellemare, Dabney, Munos, "A Distributional Perspective on Reinforcement Learning" (2017),
C51; Seo et al., "FastTD3: Simple, Fast, and Capable Reinforcement Learning for Humanoid Control"
(2025) for twin critics of continuous actions.
"""

import jax
import jax.numpy as jnp

from wdjax.train.learning import Hypers, Policy, PolicyConfig, ReplayBatch


def num_values(config: PolicyConfig) -> int | None:
    """Return the number of outputs of a critic; None: one value."""
    options = config.options
    return options.num_atoms if options.critic == "categorical" else None


def is_categorical(policy: Policy) -> bool:
    """Return whether the critics predict distributions."""
    return num_values(policy.config) is not None


def atoms_of(policy: Policy, hypers: Hypers) -> jax.Array:
    """Return the values of categorical critics, [num_atoms]."""
    return support(hypers["v_min"], hypers["v_max"], policy.config.options.num_atoms)


def q_values(policy: Policy, hypers: Hypers, outputs: jax.Array) -> jax.Array:
    """Return Q of every critic, [critics, B], from the outputs of `values`."""
    if is_categorical(policy):
        return expected_value(outputs, atoms_of(policy, hypers))
    return outputs


def critic_target(
    policy: Policy,
    hypers: Hypers,
    batch: ReplayBatch,
    outputs: jax.Array,
    bonus: jax.Array | float = 0.0,
) -> jax.Array:
    """Return the targets reward + discount (min_i Q_i + bonus), or their distributions.

    Args:
        policy: static part of the policy.
        hypers: hyperparameters at this point of the run.
        batch: leaves [B, ...].
        outputs: outputs of the target critics after the transitions, from `values`.
        bonus: [B] or a number, added to the values.

    Returns:
        [B]; categorical: [B, num_atoms] probabilities, of the critic with the lowest mean.
    """
    if not is_categorical(policy):
        return batch.reward + batch.discount * (jnp.min(outputs, axis=0) + bonus)
    atoms, bonus = atoms_of(policy, hypers), jnp.broadcast_to(bonus, batch.reward.shape)
    values = batch.reward[:, None] + batch.discount[:, None] * (atoms[None] + bonus[:, None])
    return project(lowest(outputs, atoms), values, atoms)


def critic_error(policy: Policy, outputs: jax.Array, target: jax.Array) -> jax.Array:
    """Return (Q_i(obs, action) - target)^2, [critics, B]; categorical: the cross-entropies.

    Args:
        policy: static part of the policy.
        outputs: outputs of the critics, from `values`.
        target: from `critic_target`.
    """
    return (
        cross_entropy(outputs, target) if is_categorical(policy) else (outputs - target[None]) ** 2
    )


def mean_target(policy: Policy, hypers: Hypers, target: jax.Array) -> jax.Array:
    """Return the mean of the targets from `critic_target`, ()."""
    if is_categorical(policy):
        target = jnp.sum(target * atoms_of(policy, hypers)[None], axis=-1)
    return jnp.mean(target)


def support(v_min: jax.Array, v_max: jax.Array, num_atoms: int) -> jax.Array:
    """Return the atoms, [num_atoms] numbers from v_min to v_max at equal distances."""
    share = jnp.arange(num_atoms, dtype=jnp.float32) / (num_atoms - 1)
    return v_min + (v_max - v_min) * share


def expected_value(logits: jax.Array, atoms: jax.Array) -> jax.Array:
    """Return the means of distributions, [...].

    Args:
        logits: [..., num_atoms].
        atoms: [num_atoms], from `support`.
    """
    return jnp.sum(jax.nn.softmax(logits) * _spread(atoms, logits.ndim), axis=-1)


def lowest(logits: jax.Array, atoms: jax.Array) -> jax.Array:
    """Return the probabilities of the critic with the lowest mean in each row, [B, num_atoms].

    Args:
        logits: [critics, B, num_atoms].
        atoms: [num_atoms], from `support`.
    """
    index = jnp.argmin(expected_value(logits, atoms), axis=0)
    return jax.nn.softmax(jnp.take_along_axis(logits, index[None, :, None], axis=0)[0])


def project(probabilities: jax.Array, values: jax.Array, atoms: jax.Array) -> jax.Array:
    """Project distributions with other values onto the atoms, [B, num_atoms].

    Each probability is divided between the two nearest atoms, so that the mean stays the same.
    Values outside the atoms move to the first or last one.

    Args:
        probabilities: [B, num_atoms].
        values: [B, num_atoms], the value of each probability.
        atoms: [num_atoms], from `support`.
    """
    distance = (atoms[-1] - atoms[0]) / (atoms.shape[0] - 1)
    place = (jnp.clip(values, atoms[0], atoms[-1]) - atoms[0]) / distance
    number = jnp.arange(atoms.shape[0], dtype=jnp.float32)[None, None, :]
    share = jnp.clip(1.0 - jnp.abs(place[:, :, None] - number), 0.0, 1.0)
    # a sum, since accelerators would round the inputs of a matrix product
    return jnp.sum(probabilities[:, :, None] * share, axis=1)


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Return -sum_j target_j log p_j for each critic and row, [critics, B].

    Args:
        logits: [critics, B, num_atoms].
        target: [B, num_atoms] probabilities.
    """
    return -jnp.sum(target[None] * jax.nn.log_softmax(logits), axis=-1)


def _spread(atoms: jax.Array, num_axes: int) -> jax.Array:
    return atoms.reshape((1,) * (num_axes - 1) + atoms.shape)
