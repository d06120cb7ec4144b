"""Custom environments in the learner: statistics, wrong spaces, endless episodes and masks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import wdjax
from wdjax.train import (
    PolicyConfig,
    TrainConfig,
    Trainer,
    evaluate,
    load_run,
    make_learner,
    record_episode,
)

pytestmark = pytest.mark.usefixtures("quick_compile")


@struct.dataclass
class Params:
    walls: jax.Array
    episode_length: int = 6


@dataclasses.dataclass(frozen=True)
class Masked(wdjax.Env):
    """Three actions; the first is masked. `info` flags the agents that take the last."""

    ends: bool = True
    promised: int = 1
    statistic: str = "took_last"

    @property
    def default_params(self):
        return Params(walls=np.array([True, False]))

    def reset(self, key, params):
        return self.observe(), jnp.int32(0)

    def step(self, key, state, action, params):
        truncated = (state + 1 >= params.episode_length) & self.ends
        info = {self.statistic: action == 2, "forbidden": action == 0}
        return self.observe(), state + 1, jnp.float32(1), jnp.bool_(False), truncated, info

    def observe(self):
        return {"seen": jnp.zeros(1), "action_mask": jnp.array([0.0, 1.0, 1.0])}

    def observation_space(self, params):
        return wdjax.Dict(
            {"seen": wdjax.Box(shape=(self.promised,)), "action_mask": wdjax.Box(0.0, 1.0, (3,))}
        )

    def action_space(self, params):
        return wdjax.Discrete(3)


@pytest.fixture(scope="module", autouse=True)
def masked():
    """Register the environment in this module only: other tests count the registered ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wdjax.envs, "_REGISTRY", {**wdjax.envs._REGISTRY, "masked": Masked})
        yield


def config(**env_params):
    policies = {
        "agent": PolicyConfig(
            network=dataclasses.replace(PolicyConfig().network, hidden_sizes=(4,))
        )
    }
    return TrainConfig(
        env="masked",
        env_params=env_params,
        policies=policies,
        num_envs=4,
        rollout_length=8,
        total_env_steps=64.0,
        updates_per_chunk=1,
        eval_episodes=2,
    )


@pytest.fixture(scope="module")
def trained():
    learner = make_learner(config())
    return learner, *learner.update(learner.init(jax.random.key(0)))


@pytest.mark.slow
def test_flags_in_info_are_counted(trained):
    learner, state, metrics = trained
    assert 1 < metrics["episode_took_last"] < 6
    counts = evaluate(learner, state, jax.random.key(0), 64, greedy=False).episode_info["took_last"]
    assert counts.dtype == np.int32
    assert counts.max() > 1


@pytest.mark.slow
def test_random_actions_respect_the_mask(trained):
    learner, state, _ = trained
    info = evaluate(learner, state, jax.random.key(0), 64, random=("agent",)).episode_info
    assert info["forbidden"].sum() == 0
    assert 2 < info["took_last"].mean() < 4  # half of 6


@pytest.mark.parametrize(("random", "error"), [(("agnet",), ValueError), ("agent", TypeError)])
def test_random_names_policies(trained, random, error):
    learner, state, _ = trained
    for play in (evaluate, record_episode):
        with pytest.raises(error, match="agent"):
            play(learner, state, jax.random.key(0), random=random)


def test_array_params_are_kept():
    params = wdjax.make("masked")[1]
    assert params.walls.dtype == bool
    assert params.episode_length.dtype == np.int32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"promised": 3}, "like observation_space"),
        ({"statistic": "over"}, r"info\['over'\], a name reserved by wdjax"),
    ],
)
def test_invalid_environments_are_refused(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        Trainer(config(**changes), tmp_path / "run", quiet=True).train()
    metrics = tmp_path / "run" / "metrics.jsonl"  # empty, if it exists
    assert not metrics.exists() or not metrics.read_text(encoding="utf8")


def test_ratio_of_unknown_info_is_refused(monkeypatch):
    monkeypatch.setattr(Masked, "info_ratios", {"pace": ("moved", "steps")})
    with pytest.raises(
        ValueError,
        match=r"Masked: info_ratios\['pace'\] = .* two names of step's info: \['forbidden'",
    ):
        make_learner(config())


def test_refused_configuration_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="like observation_space"):
        Trainer(config(promised=3), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_endless_episodes_train_and_resume(tmp_path, capsys):
    """Training continues without evaluations. 64.0 steps are 64, also in names of checkpoints."""
    Trainer(config(ends=False), tmp_path / "run").train()
    assert "Warning: evaluation skipped. max_steps" in capsys.readouterr().out
    assert load_run(tmp_path / "run")[1].num_updates == 2


def test_params_axis_names_the_parameter_without_a_replica_axis():
    env, params = wdjax.make("tag_continuous", tagging_distance=np.linspace(0.01, 0.1, 4))
    with pytest.raises(
        ValueError, match=r"params\.grid_length = 10\.0: must be an array with a leading axis of 4"
    ):
        wdjax.vectorize(env, 4, params_axis=0).reset(jax.random.key(0), params)
