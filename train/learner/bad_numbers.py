"""Detection of NaN and infinities in every update, on the device.

An update is bad if one of QUANTITIES of a trainable policy is not finite. It is discarded:
policies, replicas and memories keep their state from before the rollout. With
`on_bad_numbers: stop` so do the key and the counter, which makes all later updates of the chunk
equal to the bad one, and the run ends in its last good state. With `skip` the update counts as done
and the key advances: the next rollout starts from the same state with other random numbers. The run
ends after LIMIT bad updates in a row.

NaN in metrics without data (train/state/rollout_metrics.py) are not bad numbers.
"""

import functools
from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.collectives import total
from wdjax.train.state.aliases import Metrics, PyTree
from wdjax.train.state.metric import Metric
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import PolicyState, TrainState

# Causes come first: messages name the first bad quantity of an update.
QUANTITIES = ("observations", "rewards", "losses", "gradients", "normaliser", "parameters")

LIMIT = 10  # number of bad updates in a row after which `skip` ends the run

_IN_THE_GAME = "check the environment for divisions by 0, square roots and logarithms"
_IN_LEARNING = (
    "try a lower learning_rate, a lower max_grad_norm, normalize_reward or normalize_observation; "
    "if hidden units on a GPU exceed 65504, also kernels: false"
)
ADVICE = {
    "observations": _IN_THE_GAME,
    "rewards": _IN_THE_GAME,
    "losses": _IN_LEARNING,
    "gradients": _IN_LEARNING,
    "normaliser": "its sums overflow float32: check for very large observations or rewards",
    "parameters": _IN_LEARNING,
}


def look_at_rows(policy: Policy, played: Rollout) -> jax.Array:
    """Return whether observations and rewards of a policy are bad on this device, [2] bool.

    Includes agents whose episodes have ended: their weight is 0, but 0 times NaN is NaN.
    """
    rows = played.rows[policy.name]
    seen = (rows.obs, rows.next_obs, played.last_obs[policy.name])
    return jnp.stack([_bad(seen), _bad(rows.reward)])


def look_at_steps(
    policy: Policy,
    before: PolicyState,
    after: PolicyState,
    metrics: Mapping[str, jax.Array],
    shared: PolicyState | None = None,
) -> jax.Array:
    """Return whether losses, gradients, normalizer and parameters of a policy are bad, [4] bool.

    Args:
        policy: static part of the policy.
        before: its state before the update.
        after: its state after the update.
        metrics: its metrics.
        shared: shared state of its team after the update, if any.
    """
    loss, grad_norm = policy.algorithm.losses(policy, before, after, metrics)
    # as one vector: checking each leaf would be a kernel each
    learned = after.params if shared is None else (after.params, shared.params)
    statistics, params = (ravel_pytree(tree)[0] for tree in (after.normalizer, learned))
    return jnp.stack([_bad(part) for part in (loss, grad_norm, statistics, params)])


def first_bad(rows: list[jax.Array], steps: list[jax.Array]) -> jax.Array:
    """Return a code, () int32: 0 for a good update, else 1 + policies * quantity + policy.

    Args:
        rows: by trainable policy, result of `look_at_rows`.
        steps: by trainable policy, result of `look_at_steps`.
    """
    if not rows:
        return jnp.int32(0)
    on_any = total(jnp.stack(rows).astype(jnp.int32)) > 0
    flags = jnp.concatenate([on_any, jnp.stack(steps)], axis=1).T.reshape(-1)
    return jnp.where(jnp.any(flags), 1 + jnp.argmax(flags).astype(jnp.int32), 0)


def commit(setup: Setup, before: TrainState, after: TrainState, code: jax.Array) -> TrainState:
    """Return the state after a good update, or the state before a bad one.

    With `skip`, the key and the counter of a bad update are also new.

    Args:
        setup: static part of the run.
        before: state before the update.
        after: state after the update.
        code: () int32, from `first_bad`.
    """
    bad = code > 0

    def choose(old: chex.ArrayTree, new: chex.ArrayTree) -> chex.ArrayTree:
        return jax.tree.map(lambda old, new: jnp.where(bad, old, new), old, new)

    def restore(old: PyTree, new: PyTree) -> PyTree:
        return new.undo(old, bad) if can_undo(new) else choose(old, new)

    state = after.replace(
        policies=choose(before.policies, after.policies),
        shared=choose(before.shared, after.shared),
        memory=jax.tree.map(restore, before.memory, after.memory, is_leaf=can_undo),
        opponents=choose(before.opponents, after.opponents),
        replicas=choose(
            before.replicas.replace(starts=None), after.replicas.replace(starts=None)
        ).replace(starts=after.replicas.starts),
        obs=choose(before.obs, after.obs),
        live=choose(before.live, after.live),
    )
    if setup.config.on_bad_numbers == "skip":
        return state
    data = choose(*(jax.random.key_data(state.key) for state in (before, after)))
    key = jax.random.wrap_key_data(data, impl=jax.random.key_impl(after.key))
    return state.replace(key=key, num_updates=choose(before.num_updates, after.num_updates))


def sound_updates(metrics: Mapping[str, jax.Array | Metric]) -> tuple[Metrics, np.ndarray]:
    """Split the metrics of a chunk, on the host: (metrics of its good updates, codes of all)."""
    others = dict(metrics)
    codes = np.asarray(others.pop("bad_numbers"))
    return jax.tree.map(lambda values: values[codes == 0], others), codes


def describe_bad_numbers(setup: Setup, code: int) -> str:
    """Return a message for a code of `metrics["bad_numbers"]`, reported by `Learner.run`.

    Args:
        setup: `Learner.setup` of the run.
        code: the code of an update; 0 if it was finite, for which the message is empty.
    """
    if not code:
        return ""
    names = [name for name, policy in setup.policies.items() if policy.config.trainable]
    quantity, policy = divmod(int(code) - 1, len(names))
    bad = QUANTITIES[quantity]
    return f"non-finite {bad} of policy {names[policy]!r}: {ADVICE[bad]}"


def bad_in_a_row(codes: np.ndarray, before: int = 0) -> int:
    """Return the number of consecutive bad updates at the end of a chunk.

    Args:
        codes: [updates], codes of the chunk.
        before: the same number at the end of the previous chunk.
    """
    sound = np.flatnonzero(codes == 0)
    return len(codes) - 1 - int(sound[-1]) if len(sound) else before + len(codes)


def ends_run(config: TrainConfig, codes: np.ndarray, streak: int) -> bool:
    """Return whether a run ends after a chunk.

    Args:
        config: configuration of the run.
        codes: [updates], codes of the chunk.
        streak: number of consecutive bad updates at its end.
    """
    return bool(codes.any()) if config.on_bad_numbers == "stop" else streak >= LIMIT


def why_it_ends(
    setup: Setup, codes: np.ndarray, streak: int, done: int, origin: str | None = None
) -> str:
    """Return the message of a run that ends with bad numbers.

    Args:
        setup: static part of the run.
        codes: [updates], codes of the last chunk.
        streak: number of consecutive bad updates at its end.
        done: updates done.
        origin: operation that produced the first NaN (`debug.nan_origin`), if known.
    """
    more = "--resume --debug locates the origin" if origin is None else f"origin: {origin}"
    saved = f"the state after {done} updates is saved"
    if setup.config.on_bad_numbers == "skip":
        what = describe_bad_numbers(setup, codes[-1])
        return (
            f"update {done} and the {streak - 1} before it: {what} (all skipped; {saved}; {more})"
        )
    what = describe_bad_numbers(setup, codes[codes > 0][0])
    skip = "--resume --on-bad-numbers skip continues without it"
    return f"update {done + 1}: {what} ({saved}; {skip}; {more})"


def what_was_skipped(setup: Setup, codes: np.ndarray, who: str = "") -> str:
    """Return a warning about the skipped updates of a chunk; `who` is "" or " of member 3"."""
    bad = codes[codes > 0]
    first = describe_bad_numbers(setup, bad[0])
    return f"Warning: skipped {len(bad)} of {len(codes)} updates{who}. First: {first}"


def skipped_updates(config: TrainConfig, codes: np.ndarray) -> dict[str, int]:
    """Return the field of metrics.jsonl for skipped updates; empty unless they are skipped."""
    return {"skipped_updates": int((codes > 0).sum())} if config.on_bad_numbers == "skip" else {}


def _bad(tree: chex.ArrayTree) -> jax.Array:
    """Return whether a tree contains a float that is not finite, () bool."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return functools.reduce(
        jnp.logical_or, [~jnp.all(jnp.isfinite(leaf)) for leaf in floats], jnp.bool_(False)
    )


def can_undo(part: object) -> bool:
    """Return whether a part of a memory restores itself after a bad update (`Replay.undo`)."""
    return hasattr(part, "undo")
