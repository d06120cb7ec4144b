"""The checks of `wdjax.check_env` that need play: random steps of several replicas, some of them past their ends."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.env_checker.case import (
    MASK,
    RETURNS,
    Case,
    fail,
    has_mask,
    quick_jit,
    sample_action,
    space_parts,
)
from wdjax.env_checker.leaves import as_numpy, is_key, named_leaves
from wdjax.spaces import Box, Space
from wdjax.vector import all_agents, select

NUM_REPLICAS = 10
STEPS_PAST_END = 3  # of a replica all of whose agents have terminated, before it is reset
CHUNK_BYTES = 2**26  # of one play in memory
# steps that are repeated with other actions of agents that have terminated or been truncated
NUM_PAIRS = 64


@struct.dataclass
class Play:
    """Steps of N replicas; each leaf [T, N, ...]. `obs` and `state` are those before the step."""

    time: Any  # int32, steps since the reset
    past: Any  # int32, steps since the end of the episode; 0 before it
    ended: Any  # like terminated: before the step
    cut: Any  # like truncated: before the step
    key: jax.Array  # typed keys
    obs: Any
    state: Any
    action: Any
    result: dict[str, Any]  # what the step returned, by name


def random_play(case: Case) -> Iterator[Play]:
    """Yields `num_steps` random steps (rounded up) in pieces that fit in memory, each with arrays on the host."""
    replicas = min(NUM_REPLICAS, case.num_steps)
    length = math.ceil(case.num_steps / replicas)
    shapes = (case.reset[1], case.step[1], case.action)
    step_bytes = sum(replicas * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    pieces = math.ceil(length * step_bytes / CHUNK_BYTES)
    # Nobody has started: all are past their ends.
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
    play = Play(time, past, ended, cut, step_keys, obs, state, action, result)
    flags = (result["terminated"], result["truncated"])
    ended, cut = jax.tree.map(jnp.logical_or, (ended, cut), flags)
    over = all_agents(jax.tree.map(jnp.logical_or, ended, cut))
    # After a time limit a state means nothing, so such a replica is reset at once.
    past = jnp.where(all_agents(ended), past + 1, jnp.where(over, STEPS_PAST_END + 1, 0))
    return (result["obs"], result["state"], ended, cut, time + 1, past), play


def moments(play: Play) -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
    """Yields (method, [T, N] bool where it was called, what it returned by name)."""
    yield "reset", as_numpy(play.time) == 0, {"state": play.state, "obs": play.obs}
    names = ("state", "obs", "reward", "info")
    yield "step", np.ones(play.time.shape, bool), {name: play.result[name] for name in names}


def find(wrong: np.ndarray) -> tuple[int, ...] | None:
    """Returns the first index (t, n, ...) where the array is true, or None."""
    flat = np.argmax(wrong)
    return (
        tuple(int(i) for i in np.unravel_index(flat, wrong.shape))
        if wrong.size and wrong.flat[flat]
        else None
    )


def where(play: Play, method: str, index: tuple[int, ...]) -> str:
    """Returns the words for the moment of an index (t, n, ...)."""
    return (
        "at a reset"
        if method == "reset"
        else f"in step {int(play.time[index[:2]]) + 1} of an episode"
    )


def element(index: tuple[int, ...]) -> str:
    """Returns what follows a leaf's name, for an index (t, n, ...)."""
    return f"[{', '.join(map(str, index[2:]))}]" if index[2:] else ""


def over_rows(rows: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    """Returns [T, N] with as many further axes as the leaf has."""
    return rows.reshape(rows.shape + (1,) * (leaf.ndim - 2))


# --- numbers ---


def numbers_are_finite(case: Case, play: Play) -> None:
    """Told is the earliest; of those in one step the state's, from which the others follow."""
    found = []
    for method, rows, values in moments(play):
        for name, leaf in named_leaves(values):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                leaf = as_numpy(leaf)
                index = find(~np.isfinite(leaf) & over_rows(rows, leaf))
                found += [(index[0], len(found), method, name, index, leaf[index])] if index else []
    if found:
        _, _, method, name, index, value = min(found, key=lambda one: one[:2])
        remedy = "look for a division by 0, a root or a logarithm of a negative number, or growth without bounds"
        fail(
            f"{method} gives {name}{element(index)} = {value} {where(play, method, index)}: {remedy}"
        )


def observations_are_in_their_space(case: Case, play: Play) -> None:
    for method, rows, values in moments(play):
        for name, space, leaf in space_parts(case.observation_space, values["obs"], "obs"):
            leaf = as_numpy(leaf)
            low, high = bounds(space)
            for words, wrong, bound in (("below", leaf < low, low), ("above", leaf > high, high)):
                index = find(wrong & over_rows(rows, leaf))
                if index:
                    limit = np.broadcast_to(bound, leaf.shape)[index]
                    place = f"{name}{element(index)} = {leaf[index]} {where(play, method, index)}"
                    fail(
                        f"{method} gives {place}, {words} the bound {limit} of observation_space: correct one of them"
                    )


def bounds(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest and the highest value of each component."""
    if isinstance(space, Box):
        return np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    sizes = np.array(space.nvec, np.int32)
    return np.zeros_like(sizes), sizes - 1


def masks_allow_a_choice(case: Case, play: Play) -> None:
    for method, rows, values in moments(play):
        for group, obs in case.by_group(values["obs"]).items():
            if has_mask(obs):
                ended, cut = (
                    as_numpy(case.by_group(play.result[name])[group])
                    for name in ("terminated", "truncated")
                )
                live = np.ones_like(ended) if method == "reset" else ~(ended | cut)
                name = f"obs[{group!r}][{MASK!r}]" if group else f"obs[{MASK!r}]"
                sizes = case.by_group(case.action_space)[group].nvec
                _check_mask(
                    play, method, name, sizes, as_numpy(obs[MASK]), live & over_rows(rows, live)
                )


def _check_mask(
    play: Play, method: str, name: str, sizes: tuple, mask: np.ndarray, live: np.ndarray
) -> None:
    """mask: [T, N, (n,) sum(sizes)]; live: [T, N, (n,)]."""
    index = find((mask != 0) & (mask != 1) & live[..., None])
    if index:
        fail(
            f"{method} gives {name}{element(index)} = {mask[index]}: must be 1 where allowed and 0 where not"
        )
    for i, part in enumerate(np.split(mask, np.cumsum(sizes)[:-1], axis=-1)):
        index = find(~part.any(axis=-1) & live)
        if index:
            moment = where(play, method, index)
            fail(
                f"{method} gives a {name}{element(index)} that allows no choice of component {i} {moment}: allow one"
            )


# --- ends ---


def ends_keep_to_the_contract(case: Case, play: Play) -> None:
    names = ("terminated", "truncated", "reward")
    for group in case.by_group(play.ended):
        ended, cut, reward = (as_numpy(case.by_group(play.result[name])[group]) for name in names)
        ended_before, cut_before = (
            as_numpy(case.by_group(flags)[group]) for flags in (play.ended, play.cut)
        )
        place = f"[{group!r}]" if group else ""
        for wrong, name, what, remedy in (
            (
                ended_before & ~ended,
                "terminated",
                "turns false again",
                "it must stay true until the reset",
            ),
            (
                ended & cut,
                "truncated",
                "is true with terminated",
                "write truncated = time_is_up & ~terminated",
            ),
            (
                cut & (not case.env.can_truncate),
                "truncated",
                "is true",
                "can_truncate = False says that it never is",
            ),
            (
                cut_before & ~cut,
                "truncated",
                "turns false again",
                "it must stay true until the reset",
            ),
            (
                ended_before & (reward != 0),
                "reward",
                "is not 0 after the end",
                "pay only who had not terminated",
            ),
            (
                cut_before & (reward != 0),
                "reward",
                "is not 0 after the cut",
                "pay only who had not been truncated",
            ),
        ):
            index = find(wrong)
            if index:
                fail(f"{name}{place}{element(index)} {what} {where(play, 'step', index)}: {remedy}")


def clocks_run_to_the_end(case: Case, play: Play) -> None:
    """Whole numbers of few bits run over, and never reach what they are compared with."""
    for (name, leaf), after in zip(
        named_leaves({"state": play.state}), jax.tree.leaves(play.result["state"]), strict=True
    ):
        if leaf.dtype in (np.int8, np.int16, np.uint8, np.uint16):
            limits = np.iinfo(leaf.dtype)
            # a pixel may go from 255 to 0
            counts = limits.min < 0 or np.all((after == leaf) | (after == leaf + 1))
            if counts and find((leaf == limits.max) & (after == limits.min)):
                fail(f"step runs {name} over, from {limits.max} to {limits.min}: make it int32")
    length = np.asarray(getattr(case.params, "episode_length", math.inf))
    index = find((play.time >= length) & (play.past == 0)) if length.ndim == 0 else None
    if index:
        step = f"step {int(play.time[index]) + 1} of an episode"
        fail(
            f"{step} is played, of which params.episode_length = {length} are all: terminate or truncate it there"
        )


def ended_agents_have_no_effect(case: Case, play: Play) -> None:
    """Repeats steps with other actions of the agents that have terminated or been truncated."""
    through = jax.tree.map(np.logical_or, play.ended, play.cut)
    rows = [
        as_numpy(leaf).reshape(*leaf.shape[:2], -1).any(axis=2) for leaf in jax.tree.leaves(through)
    ]
    index = np.argwhere(np.any(rows, axis=0))
    if not len(index):
        return
    index = index[np.linspace(0, len(index) - 1, NUM_PAIRS).astype(int)]
    some, ended = jax.tree.map(lambda leaf: leaf[index[:, 0], index[:, 1]], (play, through))
    actions = case.by_group(some.action)
    chosen = np.random.default_rng(case.seed).integers(0, play.time.size, NUM_PAIRS)
    others = case.by_group(
        jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[chosen], play.action)
    )
    changed = {
        group: select(flags, others[group], actions[group])
        for group, flags in case.by_group(ended).items()
    }
    played, repeated = (
        dict(
            zip(
                RETURNS["step"],
                case.step_replicas(some.key, some.state, action, case.params),
                strict=True,
            )
        )
        for action in (some.action, changed if case.env.groups else changed[""])
    )
    pairs = zip(named_leaves(played), named_leaves(repeated), strict=True)
    for (name, leaf), (_, other_leaf) in pairs:
        if not np.array_equal(as_numpy(leaf), as_numpy(other_leaf)):
            remedy = "hold still who has terminated, with jnp.where"
            fail(
                f"step lets the action of an agent that has terminated or been truncated change {name}: {remedy}"
            )


# --- the twin ---


def twin_agrees(case: Case, play: Play) -> None:
    """Compares the steps of the first replica with the twin's, each from the environment's own state."""
    if case.twin is None:
        return
    rows = jax.tree.map(lambda leaf: leaf[:, 0] if is_key(leaf) else as_numpy(leaf[:, 0]), play)
    params = jax.tree.map(as_numpy, case.params)
    for t in np.flatnonzero(rows.past == 0):
        row = jax.tree.map(lambda leaf, t=t: leaf[t], rows)
        theirs = case.twin(row.key, row.state, row.action, params)
        if not isinstance(theirs, tuple) or len(theirs) not in (5, 6):
            fail(
                "the twin returns no tuple of 5 or 6: return (obs, state, reward, terminated, truncated[, info])"
            )
        named = zip(RETURNS["step"], theirs, strict=False)
        # the rest follows from the state
        for name, their_value in sorted(named, key=lambda pair: pair[0] != "state"):
            _compare(
                case, name, row.result[name], their_value, f"in step {row.time + 1} of an episode"
            )


def _compare(case: Case, name: str, ours: Any, theirs: Any, moment: str) -> None:
    if jax.tree.structure(ours) != jax.tree.structure(theirs):
        fail(
            f"the twin returns a {name} of another structure than step: return the same dataclass, or the same dict"
        )
    pairs = zip(named_leaves({name: ours}), jax.tree.leaves(theirs), strict=True)
    for (leaf_name, a), b in pairs:
        a, b = as_numpy(a), np.asarray(b)
        if a.shape != b.shape:
            fail(
                f"the twin returns {leaf_name} of shape {b.shape}, step of shape {a.shape}: return the same shape"
            )
        same = np.isclose(b, a, case.rtol, case.atol) if a.dtype.kind == "f" else a == b
        index = find(~same[None, None])
        if index:
            place, index = f"{leaf_name}{element(index)}", index[2:]
            fail(
                f"step gives {place} = {a[index]} {moment}, the twin {b[index]}: correct one of them"
            )
