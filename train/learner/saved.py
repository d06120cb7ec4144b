"""Saved and bundled runs: their setup, on one device, the state of a checkpoint, and policies.

The fields `checkpoint` (initial state) and `opponents` of a policy name a policy of another run by
"RUN[@CHECKPOINT][:POLICY]".
"""

import dataclasses
import functools
from collections.abc import Collection, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_known
from wdjax.files import new_file
from wdjax.spaces import Box, Dict, Space
from wdjax.train.config.facts import read_part
from wdjax.train.devices.startup import in_thread
from wdjax.train.learner.init import abstract_state, init, init_policy
from wdjax.train.learner.setup import make_setup
from wdjax.train.learner.validate import validate
from wdjax.train.rollout.opponents import acting_state
from wdjax.train.rollout.pool import REFERENCE, pool_of
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.registry import read_config
from wdjax.train.state.sharding import one_copy
from wdjax.train.state.state import PolicyState, TrainState
from wdjax.train.storage.checkpoint import DamagedCheckpointError, open_checkpoints, restore
from wdjax.train.storage.folder import load_run_config, read_made_with
from wdjax.train.storage.leaves import by_place
from wdjax.train.storage.switches import KEYS, require_same_switches
from wdjax.yaml_reader import read_yaml

LEARNING_TABLE = Path(__file__).parents[2] / "experiments" / "reference"


def read_run(
    run: str | Path, default: str = "newest", trust: Collection[str] = ()
) -> tuple[Setup, TrainState]:
    """Return (setup, state) of a saved or bundled run.

    Args:
        run: folder, with or without a checkpoint (`split_checkpoint`).
        default: checkpoint if `run` names none.
        trust: as for `load_run` (train/load.py).
    """
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise RuntimeError(
            f"run = {str(run)!r}: must not be loaded while jax traces a function, such as "
            "Algorithm.begin. Load it before, or under jax.ensure_compile_time_eval()."
        )
    folder, checkpoint = split_checkpoint(str(run), default)
    num_updates = int(checkpoint) if checkpoint.isdecimal() else None
    if str(folder).startswith(REFERENCE):
        require(
            num_updates is None,
            f"checkpoint of {folder}",
            num_updates,
            "omitted: a bundled run has one state",
        )
        return read_reference(str(folder).removeprefix(REFERENCE))
    config = load_run_config(folder, trust)
    config = dataclasses.replace(config, devices=1)  # the run may have had more devices
    require_same_switches(read_made_with(folder), f"the run in {folder}", [KEYS])
    setup = make_setup(config, trust)
    best = checkpoint == "best"
    folder = folder / ("best" if best else "checkpoints")
    if not folder.is_dir():
        why = f": best_metric = {config.best_metric} selects none in this run. Name a metric."
        none = best and config.best_by is None  # auto with several policies
        raise FileNotFoundError(f"no checkpoint in {folder}{why if none else ''}")
    with open_checkpoints(folder, keep=None) as manager:
        steps = sorted(manager.all_steps())
        if not steps:
            raise FileNotFoundError(f"no checkpoint in {folder}")
        step = steps[-1] if num_updates is None else num_updates
        if step not in steps:
            raise FileNotFoundError(
                f"no checkpoint of {step} updates in {folder}. "
                f"Available: {', '.join(map(str, steps))} (see keep_checkpoints)."
            )
        try:
            return setup, restore(manager, step, abstract_state(setup), config)[0]
        except DamagedCheckpointError:
            manager.reload()
            if num_updates is not None or manager.latest_step() == step:
                raise
    # the run is training, and has deleted this checkpoint
    return read_run(run, default, trust)


def split_checkpoint(run: str, default: str = "newest") -> tuple[Path, str]:
    """Return (folder, checkpoint) of "runs/a@best", "runs/a@120" or "runs/a@newest".

    Args:
        run: folder, with or without a checkpoint.
        default: checkpoint if `run` names none.

    Raises:
        ValueError: for another text after @.
    """
    folder, _, own = run.rpartition("@") if "@" in run and not Path(run).exists() else (run, "", "")
    own = own or default
    if own not in ("newest", "best") and not own.isdecimal():
        raise ValueError(f"checkpoint {own!r}: must be newest, best, or a number of updates")
    return Path(folder), own


def list_references() -> list[str]:
    """Return the names of the bundled runs, sorted; `load_run("reference:NAME")` loads one."""
    return sorted(path.stem for path in LEARNING_TABLE.glob("policies/*.npz"))


def read_reference(row: str) -> tuple[Setup, TrainState]:
    """Return (setup, state) of a bundled run: a new state with learned parameters.

    Args:
        row: name of the run, a row of the table of learning results.

    Raises:
        ValueError: for an unknown run, with the closest name.
    """
    require_known("reference", row, list_references())
    config = read_config(read_yaml(LEARNING_TABLE / "results" / f"{row}.yaml")["config"])
    config = dataclasses.replace(config, devices=1)
    validate(config)
    setup = make_setup(config)
    state = jax.jit(functools.partial(init, setup))(jax.random.key(config.seed))
    learned = _learned(state)
    with np.load(LEARNING_TABLE / "policies" / f"{row}.npz") as file:
        leaves = [jnp.asarray(file[name], leaf.dtype) for name, leaf in by_place(learned).items()]
    learned = jax.tree.unflatten(jax.tree.structure(learned), leaves)
    policies = {
        name: own.replace(params=learned[name].params, normalizer=learned[name].normalizer)
        for name, own in state.policies.items()
    }
    return setup, state.replace(policies=policies)


def save_learned(path: Path, state: TrainState) -> None:
    """Write the acting states of all policies for `read_reference`, as arrays by path.

    Weight matrices are stored in float16, which halves the size of the installed package.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        name: leaf.astype(np.float16) if "/params/" in name and leaf.ndim > 1 else leaf
        for name, leaf in jax.device_get(by_place(_learned(state))).items()
    }
    with new_file(path) as file:
        np.savez_compressed(file, **arrays)


def _learned(state: TrainState) -> dict[str, PolicyState]:
    return {
        name: acting_state(one_copy(own)).replace(gradient_steps=None)
        for name, own in state.policies.items()
    }


def parse_checkpoint(text: str) -> tuple[str, str]:
    """Return ("runs/a@best", "runner") for "runs/a@best:runner"; without a policy, "" for it."""
    run, colon, policy = text.rpartition(":")
    is_path = "/" in policy or "\\" in policy  # after the colon of C:\runs
    if not colon or is_path or f"{run}:" == REFERENCE:
        return text, ""
    return run, policy


def checkpoints_of(setup: Setup) -> Iterator[tuple[str, Policy, str, str]]:
    """Yield (key, policy, field, text) of all checkpoints of other runs.

    The key is the name of the policy for `checkpoint`, and "POLICY/RUN" for `opponents`. The field,
    for messages, contains the text.
    """
    for name, policy in setup.policies.items():
        if text := policy.config.checkpoint:
            yield name, policy, f"policies.{name}.checkpoint = {text!r}", text
        for text in pool_of(policy.config).runs:
            yield f"{name}/{text}", policy, f"policies.{name}.opponents {text!r}", text


def begin_elsewhere(setup: Setup) -> bool:
    """Return whether a policy reads a checkpoint of another run."""
    return any(True for _ in checkpoints_of(setup))


def load_policies(setup: Setup) -> dict[str, PolicyState]:
    """Return `read_policies`, read in a thread so that it also works under jit and vmap."""
    return in_thread(read_policies, setup).result() if begin_elsewhere(setup) else {}


def read_policies(setup: Setup) -> dict[str, PolicyState]:
    """Read the checkpoints that a configuration names.

    Returns:
        key of `checkpoints_of` -> parameters, normalizer and (DDPG) number of gradient steps, as
        NumPy arrays.

    Raises:
        ValueError, FileNotFoundError: with the field, if there is no such run, checkpoint or
            policy, or it has another network, other spaces or another kind of algorithm.
    """
    runs: dict[str, tuple[Setup, TrainState]] = {}
    loaded = {}
    for key, policy, field, text in checkpoints_of(setup):
        name = policy.name
        run, wanted = parse_checkpoint(text)
        if run not in runs:
            try:
                runs[run] = read_run(run, trust=setup.trust)
            except (ValueError, TypeError, FileNotFoundError) as error:
                raise type(error)(f"{field}: {error}") from error
        other, state = runs[run]
        require_known(f"policy in {field}:", wanted or name, state.policies)
        theirs = state.policies[wanted or name]
        require_same_policy(field, policy, other.policies[wanted or name])
        own = jax.eval_shape(lambda policy=policy: init_policy(policy, jax.random.key(0))).params
        shapes, expected = (jax.tree.map(jnp.shape, params) for params in (theirs.params, own))
        if shapes != expected:  # a custom network has changed
            raise ValueError(f"{field}: its parameter shapes differ from those in policies.{name}")
        loaded[key] = jax.device_get(
            PolicyState(theirs.params, None, theirs.normalizer, None, theirs.gradient_steps)
        )
    return loaded


def require_same_policy(field: str, policy: Policy, theirs: Policy) -> None:
    """Raise ValueError, with the difference, if policies cannot share parameters."""
    path = f"policies.{policy.name}"
    require(
        type(policy.algorithm).make_network is type(theirs.algorithm).make_network,
        f"{path}.algorithm",
        policy.config.algorithm,
        f"{theirs.config.algorithm!r}, as in {field}",
    )
    own, other = (read_part(p.config) for p in (policy, theirs))
    for name, value in own.items():
        require(
            value == other.get(name), f"{path}.{name}", value, f"{other.get(name)!r}, as in {field}"
        )
    mine, his = ([part.group for part in p.assignment.types] for p in (policy, theirs))
    require(mine == his, f"{path}.agents: agent types", mine, f"{his} in this order, as in {field}")
    for kind in ("observation_space", "action_space"):
        mine, his = (getattr(p.assignment, kind) for p in (policy, theirs))
        if _form(mine) != _form(his):
            raise ValueError(
                f"{field}: its {kind.replace('_', ' ')} {his} must match {mine} of {path}. "
                "Only bounds may differ."
            )


def _form(space: Space) -> object:
    """Return a space without its bounds, which may differ between versions of an environment."""
    if isinstance(space, Dict):  # in the order of the network's inputs
        return [(name, _form(part)) for name, part in space.spaces.items()]
    return (space.shape, jnp.dtype(space.dtype)) if isinstance(space, Box) else space
