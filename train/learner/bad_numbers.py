"""Bad numbers: NaN and infinities, found on the device in every update, which is then not committed.

An update is sound where, for every policy that learns, all of QUANTITIES are finite. One that is not leaves the state
as it was before its rollout: all policies, replicas and memories. By `stop` also its key and counter, so that every
later update is the same one again, and a run of any length ends in its last good state. By `skip` it counts as done and
the key moves on: the next rollout begins where this one began, with other random numbers.

After LIMIT such updates in a row the run ends all the same: what is bad there does not depend on what is drawn.

NaN in metrics where there was nothing to report (train/state/rollout_metrics.py) are no bad numbers.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from wdjax.train.config.schema import TrainConfig
from wdjax.train.devices.collectives import total
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import PolicyState, TrainState

# What is looked at, causes first: of several that are bad in an update, the first is named.
QUANTITIES = ("observations", "rewards", "losses", "gradients", "normaliser", "parameters")

LIMIT = 10  # updates that `skip` leaves out in a row

_IN_THE_GAME = "check the environment for divisions by 0, square roots and logarithms"
_IN_LEARNING = "try a lower learning_rate, a lower max_grad_norm, or normalize_reward"
ADVICE = {
    "observations": _IN_THE_GAME,
    "rewards": _IN_THE_GAME,
    "losses": _IN_LEARNING,
    "gradients": _IN_LEARNING,
    "normaliser": "its sums overflow float32: check for very large observations or rewards",
    "parameters": _IN_LEARNING,
}


def look_at_rows(policy: Policy, played: Rollout) -> jax.Array:
    """Returns [2] bool, whether observations and rewards of a policy's agents are bad on this device.

    Those of dead agents are looked at too: their rows have no weight, but 0 times NaN is NaN.
    """
    rows = played.rows[policy.name]
    seen = (rows.obs, rows.next_obs, played.last_obs[policy.name])
    return jnp.stack([_bad(seen), _bad(rows.reward)])


def look_at_steps(
    policy: Policy, before: PolicyState, after: PolicyState, metrics: Mapping[str, jax.Array],
    shared: PolicyState | None = None,
) -> jax.Array:  # fmt: skip
    """Returns [4] bool, whether losses, gradients, normaliser and parameters of a policy are bad after an update.

    Args:
        before, after: the update.
        metrics: what the algorithm said about it.
        shared: what its team shares, after the update; None: nothing.
    """
    loss, grad_norm = policy.algorithm.losses(policy, before, after, metrics)
    # in one piece: looking at every leaf for itself would be a kernel each
    learned = after.params if shared is None else (after.params, shared.params)
    statistics, params = (ravel_pytree(tree)[0] for tree in (after.normalizer, learned))
    return jnp.stack([_bad(part) for part in (loss, grad_norm, statistics, params)])


def first_bad(rows: list[jax.Array], steps: list[jax.Array]) -> jax.Array:
    """Returns () int32: 0 where all is sound, else 1 + policies * quantity + policy of the first that is bad.

    Args:
        rows, steps: what `look_at_rows` and `look_at_steps` say of each policy that learns.
    """
    if not rows:
        return jnp.int32(0)
    on_any = total(jnp.stack(rows).astype(jnp.int32)) > 0
    flags = jnp.concatenate([on_any, jnp.stack(steps)], axis=1).T.reshape(-1)
    return jnp.where(jnp.any(flags), 1 + jnp.argmax(flags).astype(jnp.int32), 0)


def commit(setup: Setup, before: TrainState, after: TrainState, code: jax.Array) -> TrainState:
    """Returns the state after a sound update; of a bad one, that before it (by `skip` with key and counter of after).

    Args:
        code: () int32, `first_bad`.
    """
    bad = code > 0

    def choose(old: Any, new: Any) -> Any:
        return jax.tree.map(lambda old, new: jnp.where(bad, old, new), old, new)

    def restore(old: Any, new: Any) -> Any:
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


def sound_updates(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Takes the metrics of a chunk apart, on the host: (those of its sound updates, the codes of all updates)."""
    codes = np.asarray(metrics["bad_numbers"])
    others = {name: metric for name, metric in metrics.items() if name != "bad_numbers"}
    return jax.tree.map(lambda values: values[codes == 0], others), codes


def describe_bad_numbers(setup: Setup, code: int) -> str:
    """Return a message for a value of `metrics["bad_numbers"]`, which `Learner.run` reports for each update.

    Args:
        setup: `Learner.setup` of the run.
        code: the value; 0 if the update was finite, for which the message is empty.
    """
    if not code:
        return ""
    names = [name for name, policy in setup.policies.items() if policy.config.trainable]
    quantity, policy = divmod(int(code) - 1, len(names))
    return f"non-finite {QUANTITIES[quantity]} of policy {names[policy]!r}: {ADVICE[QUANTITIES[quantity]]}"


def bad_in_a_row(codes: np.ndarray, before: int = 0) -> int:
    """Returns how many updates up to the last one of a chunk were bad, without a sound one between them.

    Args:
        codes: of the chunk, [updates].
        before: the same number of the chunk before.
    """
    sound = np.flatnonzero(codes == 0)
    return len(codes) - 1 - int(sound[-1]) if len(sound) else before + len(codes)


def ends_run(config: TrainConfig, codes: np.ndarray, streak: int) -> bool:
    """Whether a run ends after a chunk with these codes, and so many bad updates in a row at its end."""
    return bool(codes.any()) if config.on_bad_numbers == "stop" else streak >= LIMIT


def why_it_ends(
    setup: Setup, codes: np.ndarray, streak: int, done: int, origin: str | None = None
) -> str:
    """Returns the sentence with which a run ends, after `done` updates.

    Args:
        codes: of the updates of its last chunk.
        streak: how many were bad in a row, at its end.
        origin: what makes the first NaN (`debug.nan_origin`), where somebody has looked.
    """
    more = "--resume --debug locates the origin" if origin is None else f"origin: {origin}"
    saved = f"the state after {done} updates is saved"
    if setup.config.on_bad_numbers == "skip":
        what = describe_bad_numbers(setup, codes[-1])
        return (
            f"update {done} and the {streak - 1} before it: {what} (all skipped; {saved}; {more})"
        )
    what = describe_bad_numbers(setup, codes[codes > 0][0])
    return f"update {done + 1}: {what} ({saved}; --resume --on-bad-numbers skip continues without it; {more})"


def what_was_skipped(setup: Setup, codes: np.ndarray, who: str = "") -> str:
    """Returns a line about the updates of a chunk that were left out, of whom (" of member 3")."""
    bad = codes[codes > 0]
    return f"Warning: skipped {len(bad)} of {len(codes)} updates{who}. First: {describe_bad_numbers(setup, bad[0])}"


def skipped_updates(config: TrainConfig, codes: np.ndarray) -> dict[str, int]:
    """Returns what a line of metrics.jsonl says of updates that were left out, where that is asked for."""
    return {"skipped_updates": int((codes > 0).sum())} if config.on_bad_numbers == "skip" else {}


def _bad(tree: Any) -> jax.Array:
    """Returns whether a tree holds a float that is not finite, () bool."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return functools.reduce(
        jnp.logical_or, [~jnp.all(jnp.isfinite(leaf)) for leaf in floats], jnp.bool_(False)
    )


def can_undo(part: Any) -> bool:
    """Return whether a part of a memory restores itself after a bad update (`Replay.undo`)."""
    return hasattr(part, "undo")
