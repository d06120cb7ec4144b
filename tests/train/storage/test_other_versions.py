"""Runs written by other versions of wdjax: the version line, and checkpoints with other leaves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import struct
from tiny_runs import numbers, small_config

from wdjax.train import load_config, make_learner
from wdjax.train.learner.init import abstract_state
from wdjax.train.storage.checkpoint import DamagedCheckpointError, open_checkpoints, restore, save
from wdjax.train.storage.folder import load_run_config, prepare_folder
from wdjax.version import __version__

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_config_yaml_contains_the_version(tmp_path):
    prepare_folder(tmp_path / "run", small_config(), resume=False)
    file = tmp_path / "run" / "config.yaml"
    assert yaml.safe_load(file.read_text())["wdjax"] == __version__
    assert load_run_config(tmp_path / "run") == small_config() == load_config(file)
    older = file.read_text().partition("\n")[2]
    assert "wdjax:" not in older
    file.write_text(older)
    assert load_run_config(tmp_path / "run") == small_config()


def test_unknown_field_in_config_yaml_names_the_file(tmp_path):
    prepare_folder(tmp_path / "run", small_config(), resume=False)
    file = tmp_path / "run" / "config.yaml"
    file.write_text(file.read_text() + "num_env: 3\n")
    with pytest.raises(
        ValueError, match=r"run/config.yaml: unknown field num_env: did you mean 'num_envs'?"
    ):
        load_run_config(tmp_path / "run")


def as_class(state, drop, add):
    """Return a state as a class of another version, with one empty field less and one more."""
    fields = [field.name for field in dataclasses.fields(state) if field.name != drop]
    other = struct.dataclass(
        type("Other", (), {"__annotations__": dict.fromkeys([*fields, add], object)})
    )
    return other(**{name: getattr(state, name) for name in fields}, **{add: None})


@pytest.fixture(scope="module")
def learner():
    return make_learner(small_config())


def state_after_three(learner):
    """Return a state after 3 updates with another number in each leaf, without compiling `init`."""

    def filled(number, like):
        if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(np.full((*like.shape, 2), number, np.uint32))
        return jnp.asarray(np.full(like.shape, number, like.dtype))

    leaves, structure = jax.tree.flatten(learner.shapes)
    state = jax.tree.unflatten(structure, map(filled, range(1, len(leaves) + 1), leaves))
    return state.replace(num_updates=jnp.int32(3))


@pytest.mark.slow
def test_checkpoint_may_have_other_empty_fields(learner, tmp_path):
    state = state_after_three(learner)
    policies = {
        name: as_class(policy_state, "target_params", "towers")
        for name, policy_state in state.policies.items()
    }
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        save(manager, 3, state.replace(policies=policies), {"metrics_size": 0})
    with open_checkpoints(tmp_path / "checkpoints", None) as manager:
        restored, _ = restore(manager, 3, abstract_state(learner.setup))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, numbers(restored), numbers(state))


def test_checkpoint_without_a_leaf_raises(learner, tmp_path):
    state = state_after_three(learner)
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        policies = {"agent": state.policies["agent"].replace(params={})}
        save(manager, 3, state.replace(policies=policies), {"metrics_size": 0})
    message = (
        r"is damaged, or from another configuration or wdjax version: "
        r"policies/agent/params/.* is missing"
    )
    with (
        open_checkpoints(tmp_path / "checkpoints", None) as manager,
        pytest.raises(DamagedCheckpointError, match=message),
    ):
        restore(manager, 3, abstract_state(learner.setup))


def test_checkpoint_with_other_fields_of_its_own_names_the_algorithm(learner, tmp_path):
    state = state_after_three(learner)
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        policies = {"agent": state.policies["agent"].replace(own={"old": jnp.zeros(2)})}
        save(manager, 3, state.replace(policies=policies), {"metrics_size": 0})
    message = (
        "or from another configuration or wdjax version, or the code of the algorithm has changed: "
        "policies/agent/own/old is unexpected"
    )
    with (
        open_checkpoints(tmp_path / "checkpoints", None) as manager,
        pytest.raises(DamagedCheckpointError, match=message),
    ):
        restore(manager, 3, abstract_state(learner.setup))


@pytest.mark.slow
def test_observations_in_states_of_adapted_environments_are_dropped(tmp_path):
    """Checkpoints before 0.3.0 contain them."""
    pytest.importorskip("gymnax")
    changes = {"env": "gymnax:CartPole-v1", "env_params": {}, "reset": "fixed"}
    learner = make_learner(small_config(**changes))
    state = state_after_three(learner)
    obs, first = state.replicas.starts
    env_state = in_class(state.replicas.env_state, obs=state.obs["agent"])
    older = {"env_state": env_state, "starts": (obs, in_class(first, obs=obs))}
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        save(
            manager, 3, state.replace(replicas=state.replicas.replace(**older)), {"metrics_size": 0}
        )
    with open_checkpoints(tmp_path / "checkpoints", None) as manager:
        restored, _ = restore(manager, 3, abstract_state(learner.setup))
    jax.tree.map(np.testing.assert_array_equal, numbers(restored), numbers(state))


def in_class(value, **fields):
    """Return a dataclass with the fields of a state and some more, as another version has it."""
    fields = {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value)
    } | fields
    other = struct.dataclass(type("Other", (), {"__annotations__": dict.fromkeys(fields, object)}))
    return other(**fields)


@pytest.mark.slow
def test_opponents_of_a_checkpoint_of_0_2_are_read(tmp_path):
    """Until 0.2 they were part of policies and memories."""
    side = {"network": {"hidden_sizes": [8]}, "past_selves": 2, "opponents": {"random": 0.1}}
    config = load_config(
        "tag_gridworld",
        num_envs=4,
        rollout_length=4,
        policies={"tagger": side, "runner": {"network": {"hidden_sizes": [8]}}},
    )
    learner = make_learner(config)
    state = state_after_three(learner)
    pool, blocks = state.opponents.pools["tagger"], state.opponents.blocks["tagger"]
    blocks = blocks.replace(active=jnp.arange(4, dtype=jnp.int32) - 1)
    state = state.replace(opponents=state.opponents.replace(blocks={"tagger": blocks}))
    policy = in_class(state.policies["tagger"], past=pool.networks, standings=pool.standings)
    memory = in_class(state.memory["tagger"], member=blocks.active, since=blocks.since)
    old = in_class(state, opponents=None).replace(
        policies={**state.policies, "tagger": policy}, memory={**state.memory, "tagger": memory}
    )
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        save(manager, 3, old, {"metrics_size": 0})
    with open_checkpoints(tmp_path / "checkpoints", None) as manager:
        found, _ = restore(manager, 3, abstract_state(learner.setup))
    jax.tree.map(np.testing.assert_array_equal, numbers(found), numbers(state))
