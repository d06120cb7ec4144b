"""Rules of `wdjax.check_env` on random play, including steps past the end of an episode."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.branches import all_agents, select
from wdjax.env import is_key
from wdjax.env_checker.case import (
    MASK,
    RETURNS,
    Case,
    expect,
    fail,
    first_difference,
    has_mask,
    sample_action,
    space_parts,
)
from wdjax.env_checker.joins import of_joining
from wdjax.env_checker.leaves import as_numpy, element, find, named_leaves, structure_of
from wdjax.kernels.backend import quick_jit
from wdjax.spaces import Box, Discrete, MultiDiscrete

NUM_REPLICAS = 10
STEPS_PAST_END = 3  # steps of a replica after all agents have terminated, before its reset
CHUNK_BYTES = 2**26  # approximate maximum size of one Play
# number of steps repeated with other actions of agents that are terminated or truncated
NUM_PAIRS = 64


@struct.dataclass
class Play:
    """Steps of N replicas, each leaf [T, N, ...]; `obs` and `state` precede the step."""

    time: Any  # int32, steps since the reset
    past: Any  # int32, steps since the end of the episode; 0 before it
    ended: Any  # terminated before the step
    cut: Any  # truncated before the step
    key: jax.Array  # typed keys
    obs: Any
    state: Any
    action: Any
    result: dict[str, Any]  # outputs of the step, by name
    joins: Any  # (active before the step, `Env.present` after it); None if no agents join


def random_play(case: Case) -> Iterator[Play]:
    """Play at least `case.num_steps` steps at random, and yield them in Plays of about CHUNK_BYTES.

    All leaves are NumPy arrays, except typed keys.
    """
    replicas = min(NUM_REPLICAS, case.num_steps)
    length = math.ceil(case.num_steps / replicas)
    shapes = (case.reset[1], case.step[1], case.action)
    step_bytes = sum(replicas * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    pieces = math.ceil(length * step_bytes / CHUNK_BYTES)
    # Every replica begins past its end, so the first step resets it.
    starts = (
        case.reset[1]["obs"],
        case.reset[1]["state"],
        case.step[1]["terminated"],
        case.step[1]["truncated"],
    )
    starts = jax.tree.map(lambda leaf: jnp.zeros((replicas, *leaf.shape), leaf.dtype), starts)
    carry = (*starts, np.zeros(replicas, np.int32), np.full(replicas, STEPS_PAST_END + 1, np.int32))

    @quick_jit
    def run(key: jax.Array, carry: tuple, params: Any) -> tuple[tuple, Play]:
        keys = jax.random.split(key, math.ceil(length / pieces))
        return jax.lax.scan(functools.partial(_play_step, case, params), carry, keys)

    for piece in range(pieces):
        carry, play = run(jax.random.key(case.seed + piece), carry, case.params)
        yield jax.tree.map(lambda leaf: leaf if is_key(leaf) else np.asarray(leaf), play)


def _play_step(case: Case, params: Any, carry: tuple, key: jax.Array) -> tuple[tuple, Play]:
    env = case.env
    obs, state, ended, cut, time, past = carry
    reset_keys, action_keys, step_keys = jax.random.split(key, (3, time.shape[0]))
    restart = past > STEPS_PAST_END
    fresh = jax.vmap(env.reset, (0, None))(reset_keys, params)
    fresh = (*fresh, *jax.tree.map(jnp.zeros_like, (ended, cut, time, past)))
    obs, state, ended, cut, time, past = select(restart, fresh, carry)
    action = jax.vmap(lambda key, obs: sample_action(env, case.action_space, key, obs))(
        action_keys, obs
    )
    values = jax.vmap(env.step, (0, 0, 0, None))(step_keys, state, action, params)
    result = dict(zip(RETURNS["step"], values, strict=True))
    before, flags, joins = (ended, cut), (result["terminated"], result["truncated"]), None
    ended, cut = jax.tree.map(jnp.logical_or, before, flags)
    if case.present is not None:
        joins, before = of_joining(env, params, state, result["state"], before, flags)
        ended, cut = flags  # a slot may be used again
    play = Play(time, past, *before, step_keys, obs, state, action, result, joins)
    over = all_agents(jax.tree.map(jnp.logical_or, ended, cut))
    # A state after a truncation has no meaning, so such a replica is reset at once.
    past = jnp.where(all_agents(ended), past + 1, jnp.where(over, STEPS_PAST_END + 1, 0))
    return (result["obs"], result["state"], ended, cut, time + 1, past), play


def moments(play: Play) -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
    """Yield (method, [T, N] bool of its calls, its outputs by name)."""
    yield "reset", as_numpy(play.time) == 0, {"state": play.state, "obs": play.obs}
    names = ("state", "obs", "reward", "info")
    yield "step", np.ones(play.time.shape, bool), {name: play.result[name] for name in names}


def where(play: Play, method: str, index: tuple[int, ...]) -> str:
    """Describe the moment of an index (t, n)."""
    return (
        "at a reset" if method == "reset" else f"in step {int(play.time[index]) + 1} of an episode"
    )


def over_rows(rows: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """Reshape [T, N] rows to broadcast over a leaf."""
    return rows.reshape(rows.shape + (1,) * (leaf.ndim - 2))


# --- numbers ---


def numbers_are_finite(case: Case, play: Play) -> None:
    """Report the first number that is not finite.

    Within a step, report the state first, because other numbers are computed from it.
    """
    faults = []
    for method, rows, values in moments(play):
        for name, leaf in named_leaves(values):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                leaf = as_numpy(leaf)
                index = find(~np.isfinite(leaf) & over_rows(rows, leaf))
                faults += [(method, name, index, leaf[index])] if index else []
    if faults:
        method, name, index, value = min(faults, key=lambda fault: fault[2][0])
        fail(
            f"{method} returns {name}{element(index[2:])} = {value} "
            f"{where(play, method, index[:2])}. "
            "Look for a division by 0, a root or logarithm of a negative number, or unbounded "
            "growth."
        )


def observations_are_in_their_space(case: Case, play: Play) -> None:
    """Require observations within the bounds of observation_space."""
    for method, rows, values in moments(play):
        for name, space, leaf in space_parts(case.observation_space, values["obs"], "obs"):
            leaf = as_numpy(leaf)
            low, high = bounds(space)
            for relation, wrong, bound in (
                ("below", leaf < low, low),
                ("above", leaf > high, high),
            ):
                index = find(wrong & over_rows(rows, leaf))
                if index:
                    fail(
                        f"{method} returns {name}{element(index[2:])} = {leaf[index]} "
                        f"{where(play, method, index[:2])}, {relation} the bound "
                        f"{np.broadcast_to(bound, leaf.shape)[index]} of observation_space. "
                        "Correct one."
                    )


def bounds(space: Box | Discrete | MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest value of each component."""
    if isinstance(space, Box):
        return np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    sizes = np.array(space.nvec, np.int32)
    return np.zeros_like(sizes), sizes - 1


def masks_allow_a_choice(case: Case, play: Play) -> None:
    """Require masks of 0 and 1 that allow a choice to every active agent."""
    for method, rows, values in moments(play):
        for group, obs in case.by_group(values["obs"]).items():
            if has_mask(obs):
                ended, cut = (
                    as_numpy(case.by_group(play.result[name])[group])
                    for name in ("terminated", "truncated")
                )
                active = np.ones_like(ended) if method == "reset" else ~(ended | cut)
                if play.joins is not None:
                    active &= as_numpy(case.by_group(play.joins[method == "step"])[group])
                name = f"obs[{group!r}][{MASK!r}]" if group else f"obs[{MASK!r}]"
                sizes = case.by_group(case.action_space)[group].nvec
                _check_mask(
                    play, method, name, sizes, as_numpy(obs[MASK]), active & over_rows(rows, active)
                )


def _check_mask(
    play: Play, method: str, name: str, sizes: tuple, mask: np.ndarray, active: np.ndarray
) -> None:
    """Check masks [T, N, (n,) sum(sizes)] of the active agents, [T, N, (n,)]."""
    index = find((mask != 0) & (mask != 1) & active[..., None])
    if index:
        fail(
            f"{method} returns {name}{element(index[2:])} = {mask[index]}: must be 1 (allowed) or "
            "0 (not allowed)"
        )
    for i, part in enumerate(np.split(mask, np.cumsum(sizes)[:-1], axis=-1)):
        index = find(~part.any(axis=-1) & active)
        if index:
            fail(
                f"{method} returns {name}{element(index[2:])} without a choice for component {i} "
                f"{where(play, method, index[:2])}. Allow one."
            )


# --- ends ---


def ends_keep_to_the_contract(case: Case, play: Play) -> None:
    """Require flags that stay true, exclude each other, and end the rewards."""
    names = ("terminated", "truncated", "reward")
    for group in case.by_group(play.ended):
        ended, cut, reward = (as_numpy(case.by_group(play.result[name])[group]) for name in names)
        ended_before, cut_before = (
            as_numpy(case.by_group(flags)[group]) for flags in (play.ended, play.cut)
        )
        place = f"[{group!r}]" if group else ""
        for wrong, name, fault, remedy in (
            (
                ended_before & ~ended,
                "terminated",
                "becomes false again",
                "It must stay true until the reset, or until another agent joins",
            ),
            (
                ended & cut,
                "truncated",
                "is true together with terminated",
                "Write truncated = time_is_up & ~terminated",
            ),
            (
                cut & (not case.env.can_truncate),
                "truncated",
                "is true",
                "The class declares can_truncate = False; change one of them",
            ),
            (
                cut_before & ~cut,
                "truncated",
                "becomes false again",
                "It must stay true until the reset, or until another agent joins",
            ),
            (
                ended_before & (reward != 0),
                "reward",
                "is not 0 after termination",
                "Set the rewards of terminated agents to 0",
            ),
            (
                cut_before & (reward != 0),
                "reward",
                "is not 0 after truncation",
                "Set the rewards of truncated agents to 0",
            ),
        ):
            index = find(wrong)
            if index:
                fail(
                    f"{name}{place}{element(index[2:])} {fault} {where(play, 'step', index[:2])}. "
                    f"{remedy}."
                )


def clocks_run_to_the_end(case: Case, play: Play) -> None:
    """Require episodes to end by episode_length, and small integers in the state not to overflow.

    An integer of 8 or 16 bits overflows if it changes from its largest to its smallest value. An
    unsigned one is checked only if every step keeps it or adds 1.
    """
    for (name, leaf), after in zip(
        named_leaves({"state": play.state}), jax.tree.leaves(play.result["state"]), strict=True
    ):
        if leaf.dtype in (np.int8, np.int16, np.uint8, np.uint16):
            limits = np.iinfo(leaf.dtype)
            # pixels may change from 255 to 0
            counts = limits.min < 0 or np.all((after == leaf) | (after == leaf + 1))
            expect(
                not (counts and find((leaf == limits.max) & (after == limits.min))),
                f"step overflows {name}, from {limits.max} to {limits.min}. Make it int32.",
            )
    length = np.asarray(getattr(case.params, "episode_length", math.inf))
    index = find((play.time >= length) & (play.past == 0)) if length.ndim == 0 else None
    if index:
        fail(
            f"step {int(play.time[index]) + 1} of an episode exceeds params.episode_length = "
            f"{length}. "
            "Terminate or truncate the episode there."
        )


def ended_agents_have_no_effect(case: Case, play: Play) -> None:
    """Require equal steps if agents that are not active act differently."""
    done, who = jax.tree.map(np.logical_or, play.ended, play.cut), "a terminated or truncated agent"
    if play.joins is not None:
        done, who = jax.tree.map(np.logical_not, play.joins[0]), "an agent that is not active"
    rows = [
        as_numpy(leaf).reshape(*leaf.shape[:2], -1).any(axis=2) for leaf in jax.tree.leaves(done)
    ]
    index = np.argwhere(np.any(rows, axis=0))
    if not len(index):
        return
    index = index[np.linspace(0, len(index) - 1, NUM_PAIRS).astype(int)]
    some, ended = jax.tree.map(lambda leaf: leaf[index[:, 0], index[:, 1]], (play, done))
    actions = case.by_group(some.action)
    chosen = np.random.default_rng(case.seed).integers(0, play.time.size, NUM_PAIRS)
    others = case.by_group(
        jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[chosen], play.action)
    )
    changed = {
        group: select(flags, others[group], actions[group])
        for group, flags in case.by_group(ended).items()
    }
    original, repeated = (
        dict(
            zip(
                RETURNS["step"],
                case.step_replicas(some.key, some.state, action, case.params),
                strict=True,
            )
        )
        for action in (some.action, changed if case.env.groups else changed[""])
    )
    pairs = zip(named_leaves(original), named_leaves(repeated), strict=True)
    for (name, leaf), (_, other_leaf) in pairs:
        expect(
            np.array_equal(as_numpy(leaf), as_numpy(other_leaf)),
            f"step lets the action of {who} change {name}. Ignore its action with jnp.where.",
        )


# --- the twin ---


def twin_agrees(case: Case, play: Play) -> None:
    """Require each step of the first replica to agree with the twin's from the same state."""
    if case.twin is None:
        return
    rows = jax.tree.map(lambda leaf: leaf[:, 0] if is_key(leaf) else as_numpy(leaf[:, 0]), play)
    params = jax.tree.map(as_numpy, case.params)
    for t in np.flatnonzero(rows.past == 0):
        row = jax.tree.map(lambda leaf, t=t: leaf[t], rows)
        theirs = case.twin(row.key, row.state, row.action, params)
        expect(
            isinstance(theirs, tuple) and len(theirs) in (5, 6),
            "the twin must return a tuple of 5 or 6: (obs, state, reward, terminated, truncated[, "
            "info])",
        )
        named = zip(RETURNS["step"], theirs, strict=False)
        # report the state first, since the others follow from it
        for name, their_value in sorted(named, key=lambda pair: pair[0] != "state"):
            moment = f"in step {row.time + 1} of an episode"
            _compare(case, {name: row.result[name]}, {name: their_value}, name, moment)


def _compare(case: Case, ours: Any, theirs: Any, name: str, moment: str) -> None:
    expect(
        structure_of(ours) == structure_of(theirs),
        f"the twin returns a {name} with another structure than step. Return the same dataclass "
        "or dict.",
    )
    for (leaf, a), b in zip(named_leaves(ours), jax.tree.leaves(theirs), strict=True):
        expect(
            as_numpy(a).shape == np.shape(b),
            f"the twin returns {leaf} of shape {np.shape(b)}, step of shape {np.shape(a)}. Return "
            "the same shape.",
        )
    if found := first_difference(case, theirs, ours):
        leaf, index, b, a = found
        fail(
            f"step returns {leaf}{element(index)} = {a} {moment}, the twin {b}. Correct one of "
            "them."
        )
