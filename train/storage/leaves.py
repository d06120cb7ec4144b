"""Leaves of a checkpoint, which may come from another version of wdjax."""

import re
from collections.abc import Collection

import jax
import jax.numpy as jnp

from wdjax.train.config.facts import in_env_steps
from wdjax.train.config.schema import TrainConfig
from wdjax.train.state.aliases import PyTree
from wdjax.train.state.hypers import run_hypers
from wdjax.train.state.state import TrainState
from wdjax.train.storage.damage import DamagedCheckpointError

RENAMED = {  # path of a leaf in a checkpoint of 0.2 -> path in this version
    r"^(hypers/[^/]+/)(?:options|ddpg)/": r"\1",
    r"^policies/([^/]+)/past/": r"opponents/pools/\1/networks/",
    r"^policies/([^/]+)/standings/": r"opponents/pools/\1/standings/",
    r"^memory/([^/]+)/member$": r"opponents/blocks/\1/active",
    r"^memory/([^/]+)/since$": r"opponents/blocks/\1/since",
}
# leaves before 0.3.0 that are dropped: last observations in the states of adapted environments
DROPPED = r"^replicas/(env_state|starts/1)/obs(/|$)"


def by_place(tree: PyTree) -> dict[str, PyTree]:
    """Return the leaves of a tree by their paths, "policies/runner/params/policy_head/bias"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def renamed(place: str) -> str:
    """Return the path in this version of a leaf of a checkpoint."""
    for old, new in RENAMED.items():
        place = re.sub(old, new, place)
    return place


def as_stored(tree: PyTree, target: TrainState, name: str, may_lack_hypers: bool) -> PyTree:
    """Return the leaves of a state in the tree of a checkpoint.

    orbax also stores the places of None, which may differ between versions of wdjax.
    Hyperparameters and observations (`DROPPED`) that this version does not have are read and
    dropped. Hyperparameters that the checkpoint does not have are left out (`configured_hypers`).

    Args:
        tree: tree of the checkpoint, with the metadata of each array.
        target: shapes, dtypes and shardings of the state.
        name: name of the checkpoint in messages.
        may_lack_hypers: whether hyperparameters may be missing.

    Raises:
        DamagedCheckpointError: if the checkpoint has other leaves.
    """
    own, held = by_place(target), [(renamed(place), leaf) for place, leaf in by_place(tree).items()]
    names = {place for place, _ in held}
    required = {place for place in own if not (may_lack_hypers and place.startswith("hypers/"))}
    unknown = {
        place
        for place in names - own.keys()
        if not (place.startswith("hypers/") or re.match(DROPPED, place))
    }
    other = sorted(required - names | unknown)
    if other:
        difference = "is missing" if other[0] in own else "is unexpected"
        is_custom = re.match(r"(policies|memory|shared)/[^/]+/own", other[0])
        code = ", or the code of the algorithm has changed" if is_custom else ""
        raise DamagedCheckpointError(
            f"{name} is damaged, or from another configuration or wdjax version{code}: {other[0]} "
            f"{difference} ({len(other)} differences)"
        )
    stored = [own.get(place, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)) for place, leaf in held]
    return jax.tree.unflatten(jax.tree.structure(tree), stored)


def as_state(stored: PyTree, target: TrainState, config: TrainConfig | None) -> TrainState:
    """Return the arrays of a checkpoint as a state; missing hyperparameters are as configured.

    Args:
        stored: arrays in the tree of the checkpoint.
        target: shapes, dtypes and shardings of the state.
        config: configuration of the run, if hyperparameters may be missing.
    """
    found = by_place(stored)
    moved = {renamed(place): leaf for place, leaf in found.items() if renamed(place) != place}
    # `moved` last: an option of 0.2 with the name of a hyperparameter of all policies wins
    leaves, places = found | moved, by_place(target)
    missing = places.keys() - leaves.keys()
    if config is not None and missing:
        leaves |= configured_hypers(config, places, missing)
    return jax.tree.unflatten(jax.tree.structure(target), [leaves[place] for place in places])


def configured_hypers(
    config: TrainConfig, target: dict[str, jax.Array], missing: Collection[str]
) -> dict[str, jax.Array]:
    """Return the configured values of the `missing` hyperparameters, placed as in `target`."""
    values = by_place({"hypers": run_hypers(in_env_steps(config, config.total_env_steps))})
    return {
        at: jax.device_put(jnp.broadcast_to(values[at], target[at].shape), target[at].sharding)
        for at in missing
    }
