"""Rows of the benchmark suite match the table of targets, at full and at small size."""

import dataclasses

import pytest

import wdjax
from wdjax.experiments.benchmarks.rows import WORKLOADS
from wdjax.train import load_config, make_learner

M, G = 1e6, 1e9
A2C, PPO = ("A2C", "relu", 1, 1), ("PPO", "tanh", 4, 4)

# Row -> (environment, its groups, replicas, steps of a rollout, hidden layers, (algorithm,
# activation, epochs, minibatches) of every policy, tier -> (others, must, aim)), by hand.
TRAINED = {
    "tag_gridworld": ("tag_gridworld", (4, 1), 2_000, 100, (32, 32), A2C,
        {"training": (2.90 * M, 60 * M, 150 * M)}),
    "tag_continuous": (
        "tag_continuous", (10, 100), 100, 250, (256, 256), A2C,
        {"training": (42_600, 800_000, 1.2 * M)},
    ),
    "tag_continuous_105": (
        "tag_continuous", (5, 100), 2_000, 50, (256, 256), A2C,
        {"training": (158_000, 1.6 * M, 3 * M), "stepping": (1.74 * M, 8 * M, 15 * M)},
    ),
    "tag_continuous_1000": (
        "tag_continuous", (100, 900), 2_000, 10, (256, 256), A2C,
        {"stepping": (None, 400_000, 1 * M), "training": (None, 100_000, 200_000)},
    ),
    "tag_continuous_10000": (
        "tag_continuous", (100, 9_900), 50, 10, (256, 256), A2C,
        {"stepping": (None, 50_000, 100_000), "training": (None, 10_000, 20_000)},
    ),
    "tag_gridworld_1000": (
        "tag_gridworld", (999, 1), 2_000, 10, (32, 32), A2C,
        {"stepping": (3.79 * M, 20 * M, 40 * M), "training": (300_000, 1.5 * M, 4 * M)},
    ),
    "cartpole_a2c": ("cartpole", (), 10_000, 50, (32, 32), A2C,
        {"training": (8.9 * M, 250 * M, 500 * M)}),
    "acrobot_a2c": ("acrobot", (), 10_000, 50, (32, 32), A2C,
        {"training": (12.7 * M, 220 * M, 500 * M)}),
    "cartpole_ppo": ("cartpole", (), 10_000, 128, (64, 64), PPO,
        {"training": (47 * M, 95 * M, 200 * M)}),
    "cartpole_ppo_256_seeds": ("cartpole", (), 4, 128, (64, 64), PPO,
        {"training": (16.2 * M, 33 * M, 65 * M)}),
    "cartpole_ppo_gru": ("cartpole", (), 10_000, 128, (64, 64), PPO,
        {"training": (22 * M, 20 * M, 40 * M)}),
    "cartpole_ppo_mingru": ("cartpole", (), 10_000, 128, (64, 64), PPO,
        {"training": (22 * M, 40 * M, 80 * M)}),
    "cartpole_a2c_1m": ("cartpole", (), 1_000_000, 32, (64, 64), A2C,
        {"inference": (307 * M, 2 * G, 4 * G)}),
    "rice": ("rice", (27,), 100, 100, (256, 256), A2C, {}),
}  # fmt: skip
WORLDS = {"covid_economy", "taxed_commons"}  # their presets for more replicas, without targets
PLAYED = {
    "cartpole_1m": (10.1 * G, 2, 5), "acrobot_1m": (2.7 * G, 2, 5),
    "mountain_car_1m": (21 * G, 2, 5),
    "continuous_mountain_car_1m": None, "pendulum_1m": (12.6 * G, 2, 5),
    "cartpole_10k": (393 * M, 3, 10), "acrobot_10k": (248 * M, 3, 10),
    "mountain_car_10k": (481 * M, 3, 10),
    "continuous_mountain_car_10k": None, "pendulum_10k": (457 * M, 3, 10),
}  # fmt: skip
PLAYED |= {f"{name}_play": target for name, target in PLAYED.items()}
PLAYED["reaction_one_atom_10k"] = None
HALVED = [f"{name}_bf16" for name in TRAINED if name.startswith("tag_continuous")]


def numbers(targets):
    return {tier: (target.others, target.must, target.aim) for tier, target in targets.items()}


def test_rows_match_the_table():
    assert set(WORKLOADS) == set(TRAINED) | WORLDS | set(PLAYED) | set(HALVED)


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_rows_of_worlds_change_only_the_replicas(name):
    row = WORKLOADS[name]
    for small in (False, True):
        config = row.config(small)
        assert config == load_config(name, devices=1, num_envs=config.num_envs)
    assert not row.targets


@pytest.mark.parametrize("name", TRAINED)
def test_trained_rows_match_the_table(name):
    row, (env, groups, num_envs, steps, hidden, learning, targets) = WORKLOADS[name], TRAINED[name]
    config = row.config()
    made, _ = wdjax.make(config.env, **config.env_params)
    assert (config.env, config.num_envs, config.rollout_length, config.reset) == (
        env,
        num_envs,
        steps,
        "fresh",
    )
    assert tuple(made.groups.values()) == groups
    for policy in config.policies.values():
        assert policy.network.hidden_sizes == hidden
        assert (
            policy.algorithm,
            policy.network.activation,
            getattr(policy.options, "epochs", 1),
            getattr(policy.options, "minibatches", 1),
        ) == learning
        assert policy.network.shared_trunk == (learning is A2C)
    assert numbers(row.targets) == targets
    memories = [p.network.memory for p in config.policies.values() if p.network.recurrent_size]
    assert memories == [memory for memory in ("gru", "mingru") if name.endswith(f"_{memory}")]
    assert row.num_members() == (256 if name == "cartpole_ppo_256_seeds" else 0)
    if env == "tag_continuous":
        assert list(config.policies) == ["tagger", "runner"]
        assert (made.use_full_observation, made.num_other_agents_observed) == (False, 10)
    elif env == "tag_gridworld":
        assert list(config.policies) == ["shared"]
        assert made.use_full_observation == (name == "tag_gridworld")


@pytest.mark.parametrize("name", HALVED)
def test_bfloat16_rows_change_only_the_dtype(name):
    row, whole = WORKLOADS[name], WORKLOADS[name.removesuffix("_bf16")]
    policies = {
        policy: dataclasses.replace(
            own, network=dataclasses.replace(own.network, compute_dtype="bfloat16")
        )
        for policy, own in whole.config().policies.items()
    }
    assert row.config() == dataclasses.replace(whole.config(), policies=policies)
    assert (row.targets, row.tiers) == (whole.targets, ("training",))


@pytest.mark.parametrize("name", PLAYED)
def test_stepping_rows_match_the_table(name):
    row, target = WORKLOADS[name], PLAYED[name]
    config, game, size = row.config(), *name.removesuffix("_play").rsplit("_", 1)
    assert row.plays == name.endswith("_play")
    assert (config.env, config.env_params, row.tiers, config.rollout_length) == (
        game,
        {},
        ("stepping",),
        200,
    )
    assert config.num_envs == (1_000_000 if size == "1m" else 10_000)
    expected = (
        {}
        if target is None
        else {"stepping": (target[0], target[0] * target[1], target[0] * target[2])}
    )
    assert numbers(row.targets) == expected


@pytest.mark.parametrize("name", WORKLOADS)
def test_small_sizes_are_small_and_valid(name):
    row = WORKLOADS[name]
    full, small = row.config(), row.config(small=True)
    rows = [
        c.env_steps_per_update * (row.num_members(s) or 1)
        for c, s in ((full, False), (small, True))
    ]
    assert rows[1] * 8 <= rows[0]
    assert small.policies == full.policies
    if "training" in row.tiers:
        make_learner(small)
