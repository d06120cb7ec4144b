"""Runs saved by wdjax 0.2.2 and 0.3.0 load, and continue with the numbers of that version.

What has changed since is the order of transitions in epochs: these versions sorted random words.
saved_by_VERSION/NAME.tgz holds a run of 4 updates, with checkpoints after 2 and 4. It is never
regenerated.
"""

import dataclasses
import shutil
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from tiny_runs import TIMING, numbers, small_config

from wdjax.train import (
    PPO,
    Trainer,
    load_config,
    load_policy,
    load_run,
    make_learner,
    plain_config,
    read_metrics,
)
from wdjax.train.algorithms import shuffle
from wdjax.train.learner.init import abstract_state
from wdjax.train.storage.checkpoint import DamagedCheckpointError, open_checkpoints, restore, save
from wdjax.train.storage.folder import load_run_config

pytestmark = pytest.mark.usefixtures("quick_compile", "no_pictures")

FOLDER = Path(__file__).parent
CLIENTS = FOLDER.parents[1] / "clients"
RUNS = {  # run -> (policy, some of its options)
    "ppo": (
        "agent",
        {"clip": 0.15, "gamma": 0.97, "epochs": 2, "minibatches": 2, "normalize_reward": True},
    ),
    "ddpg": ("agent", {"tau": 0.1, "n_step": 2, "batch_size": 16, "critic_learning_rate": 0.002}),
    "self_play": (
        "runner",
        {"epochs": 2, "minibatches": 2},
    ),  # with snapshots and a random opponent
}


# folder of saved runs -> names; with teams (MAPPO of tests/clients), and with an LSTM
SAVED = {
    "saved_by_0_2": ("ppo", "ddpg", "self_play"),
    "saved_by_0_3": ("ppo", "ddpg", "self_play", "team", "lstm"),
}


def order_by_sorting(key, size):
    words = jax.random.bits(key, (size,))
    return jax.lax.sort_key_val(words, jnp.arange(size, dtype=jnp.int32))[1]


def unpack(saved, name, folder):
    with tarfile.open(FOLDER / saved / f"{name}.tgz") as file:
        file.extractall(folder, filter="data")
    return folder / name


@pytest.fixture(params=["ppo", "ddpg", pytest.param("self_play", marks=pytest.mark.slow)])
def run(request, tmp_path):
    """Return the folder of a run of 0.2."""
    return unpack("saved_by_0_2", request.param, tmp_path)


def test_its_options_are_read(run):
    policy, expected = RUNS[run.name]
    config = load_run_config(run)
    options = config.policies[policy].options
    for name, value in expected.items():
        assert getattr(options, name) == value
    assert "ddpg" in yaml.safe_load((run / "config.yaml").read_text())["policies"][policy]
    learner, state = load_run(run)
    assert learner.config == dataclasses.replace(config, devices=1)
    hypers = state.hypers[policy].at(0.0)
    for name in expected.keys() & hypers.keys():
        assert hypers[name] == np.float32(expected[name])
    assert load_policy(run, policy).act is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "name"), [(saved, name) for saved, names in SAVED.items() for name in names]
)
def test_a_saved_run_continues_with_the_same_numbers(saved, name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(CLIENTS)
    monkeypatch.setattr(shuffle, "random_order", order_by_sorting)
    run = unpack(saved, name, tmp_path)
    shutil.rmtree(run / "checkpoints" / "4")
    rows = read_metrics(run / "metrics.jsonl")
    trust = ["mappo", "match_env"]
    assert int(load_run(run, trust=trust)[1].num_updates) == 2
    Trainer(load_run_config(run, trust), run, resume=True, quiet=True).train()
    resumed = read_metrics(run / "metrics.jsonl")
    assert len(resumed) == len(rows) == 4
    for old, new in zip(rows, resumed, strict=True):
        assert old.keys() <= new.keys()
        for name in old.keys() - {*TIMING}:
            pair = np.array([new[name], old[name]], float)  # None becomes NaN
            np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-6, err_msg=name)
    expected = load_run(unpack(saved, run.name, tmp_path / "whole"), trust=trust)[1]
    for a, b in zip(numbers(load_run(run, trust=trust)[1]), numbers(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_its_config_yaml_is_written_flat(run):
    policy, expected = RUNS[run.name]
    written = plain_config(load_run_config(run))["policies"][policy]
    assert not {"ddpg", "options"} & written.keys()
    assert {name: written[name] for name in expected} == expected
    assert load_config(plain_config(load_run_config(run))) == load_run_config(run)


# --- the leaves of hyperparameters ---


@pytest.fixture(scope="module")
def learner():
    return make_learner(small_config())


def save_with_hypers(learner, folder, change):
    """Save the state after 3 updates with other leaves of hyperparameters. Return the state."""
    state = learner.init(jax.random.key(0)).replace(num_updates=np.int32(3))
    other = state.replace(hypers={"agent": change(dict(state.hypers["agent"]))})
    with open_checkpoints(folder, 1) as manager:
        save(manager, 3, other, {"metrics_size": 0})
    return state


def restored(learner, folder, config=None):
    with open_checkpoints(folder, None) as manager:
        return restore(manager, 3, abstract_state(learner.setup), config)[0]


@pytest.mark.parametrize("block", ["options", "ddpg"])
def test_hyperparameters_in_a_block_are_found(block, learner, tmp_path):
    def change(hypers):
        clip = hypers.pop("clip")
        return {**hypers, block: {"clip": clip + 0.5}}

    state = save_with_hypers(learner, tmp_path / "checkpoints", change)
    found = restored(learner, tmp_path / "checkpoints", learner.config).hypers["agent"]
    assert found["clip"] == state.hypers["agent"]["clip"] + 0.5
    assert found.keys() == state.hypers["agent"].keys()
    assert found["gamma"] == state.hypers["agent"]["gamma"]


def test_unknown_hyperparameters_are_dropped_and_missing_ones_configured(learner, tmp_path):
    def change(hypers):
        del hypers["gae_lambda"]
        return {**hypers, "ddpg": {"tau": np.float32(0.5)}}

    save_with_hypers(learner, tmp_path / "checkpoints", change)
    found = restored(learner, tmp_path / "checkpoints", learner.config).hypers["agent"]
    assert found["gae_lambda"] == np.float32(PPO.Options().gae_lambda)
    assert "tau" not in found


def test_missing_hyperparameters_need_a_configuration(learner, tmp_path):
    def change(hypers):
        del hypers["gae_lambda"]
        return hypers

    save_with_hypers(learner, tmp_path / "checkpoints", change)
    words = "hypers/agent/gae_lambda is missing"
    with pytest.raises(DamagedCheckpointError, match=words):
        restored(learner, tmp_path / "checkpoints")


def test_missing_parameters_are_refused(learner, tmp_path):
    state = learner.init(jax.random.key(0)).replace(num_updates=np.int32(3))
    agent = state.policies["agent"]
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        policies = {"agent": dataclasses.replace(agent, params={})}
        save(manager, 3, state.replace(policies=policies), {"metrics_size": 0})
    with pytest.raises(DamagedCheckpointError, match=r"policies/agent/params/.* is missing"):
        restored(learner, tmp_path / "checkpoints", learner.config)
