"""Comparisons of cooperative algorithms on own environments, and their page."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.experiments.over_seeds import interval_of_mean, plain_mean
from wdjax.experiments.reference import worlds
from wdjax.experiments.reference.team_worlds import TeamCommons, TeamRice, TeamTag
from wdjax.experiments.reference.world_table import WORLDS, as_pqn, as_team

RESULT = {
    "command": "python -m X tag_small --variants ppo",
    "seeds": [10, 11, 12],
    "env_steps_per_seed": 1_280_000,
    "seconds": 12.3,
    "machine": "a card",
    "numbers": {"own left": [3.0, 4.0, 8.0]},
}


def test_page_has_means_intervals_seconds_machine_and_command():
    other = {**RESULT, "command": "python -m X tag_small --variants mappo", "seconds": 20.0}
    text = worlds.page({"tag_small": {"ppo": RESULT, "mappo_state": other}})
    _, low, high = interval_of_mean([3.0, 4.0, 8.0], plain_mean)
    assert f"| `ppo`: PPO (the preset) | 5 [{low:.4g}, {high:.4g}] | 12 |" in text
    assert "| `mappo_state`: MAPPO, critic sees positions | 5 [" in text
    assert "`ppo`, `mappo_state`: 3 seeds of 1,280,000 env steps. Machine: a card." in text
    assert "tag_small --variants ppo\n" in text


def test_page_matches_the_stored_results():
    text = worlds.PAGE.read_text(encoding="utf8")
    assert text == worlds.page(worlds.read_results(worlds.FOLDER))


def test_interval_of_the_plain_mean_by_hand():
    # resamples of (0, 1): means 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4
    assert interval_of_mean([0.0, 1.0], plain_mean) == (0.5, 0.0, 1.0)
    assert interval_of_mean([2.0, 2.0, 5.0], plain_mean)[0] == 3.0


def test_pqn_keeps_the_sizes_and_self_play_of_the_preset():
    policy = as_pqn("tag_continuous_ppo", "tagger", "sum")["policies.tagger"]
    assert policy["network"]["hidden_sizes"] == [128, 128]
    assert policy["network"]["layer_norm"]
    kept = [policy[name] for name in ("gamma", "minibatches", "past_selves", "mixer", "algorithm")]
    assert kept == [0.98, 8, 1, "sum", "PQN"]


def test_team_has_the_options_of_the_first_policy():
    changes = as_team("covid_small", "MAPPO")
    team = changes["teams"]["all"]
    assert (team["gamma"], team["algorithm"], team["policies"]) == (
        0.999,
        "MAPPO",
        ["state", "planner"],
    )
    assert all("gamma" not in policy for policy in changes["policies"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tag_smal"], "row"),
        (["tag_small", "--variants", "mapo"], "mappo"),
        (["--seeds", "0"], "at least 1"),
    ],
)
def test_invalid_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        worlds.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_joint_actions_play_like_pairs(quick_compile):
    pairs, joint = (
        TeamTag(num_taggers=2, num_runners=3, joint_action=flag) for flag in (False, True)
    )
    params, key = pairs.default_params, jax.random.key(0)
    _, state = jax.jit(pairs.reset)(key, params)
    tagger, runner = jnp.array([[3, 10], [0, 7]]), jnp.array([[1, 2], [5, 0], [9, 9]])
    one = jax.jit(pairs.step)(key, state, {"tagger": tagger, "runner": runner}, params)
    number = tagger[:, 0] * 11 + tagger[:, 1]
    other = jax.jit(joint.step)(key, state, {"tagger": number, "runner": runner}, params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), one, other)
    assert joint.action_space(params).spaces["tagger"] == wdjax.Discrete(121).batch(2)


@pytest.mark.slow
def test_shared_rewards_are_means(quick_compile):
    own, team = TeamTag(num_taggers=2, num_runners=2), TeamTag(2, 2, share_reward=True)
    params, key = own.default_params, jax.random.key(0)
    _, state = jax.jit(own.reset)(key, params)
    # both runners stand next to the first tagger
    x, y = jnp.array([1.0, 9.0, 1.0, 1.0]), jnp.array([1.0, 9.0, 1.01, 1.02])
    state = state.replace(x=x, y=y)
    stay = {"tagger": jnp.zeros((2, 2), int), "runner": jnp.zeros((2, 2), int)}
    rewards = [jax.jit(env.step)(key, state, stay, params)[2] for env in (own, team)]
    np.testing.assert_array_equal(rewards[0]["tagger"], [2.0, 0.0])
    np.testing.assert_array_equal(rewards[1]["tagger"], [1.0, 1.0])
    np.testing.assert_array_equal(rewards[0]["runner"], rewards[1]["runner"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", [TeamTag(2, 3, share_reward=True, joint_action=True), TeamCommons(), TeamRice(3)]
)
def test_team_worlds_are_environments(env, quick_compile):
    wdjax.check_env(env)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_configurations_are_valid(name):
    for variant in WORLDS[name].variants:
        config = worlds.configuration(name, variant, {})
        learner = worlds.make_learner(config)
        assert set(learner.config.policies) == set(config.policies)


@pytest.mark.slow
def test_variant_is_measured_and_stored(
    tmp_path, capsys, monkeypatch, in_this_process, quick_compile
):
    """In this process, and with few episodes per evaluation."""
    monkeypatch.setattr(worlds, "in_new_process", in_this_process)
    world = WORLDS["commons_without_tax"]
    few = functools.partial(world.measure, episodes=4)
    monkeypatch.setitem(WORLDS, "commons_without_tax", dataclasses.replace(world, measure=few))
    arguments = ["commons_without_tax", "--variants", "pqn_sum", "--env-steps", "3840"]
    worlds.main([*arguments, "--seeds", "2", "--results", str(tmp_path)])
    stored = worlds.read_results(tmp_path)["commons_without_tax"]["pqn_sum"]
    assert stored["seeds"] == [10, 11]
    assert stored["env_steps_per_seed"] == 3_840
    assert set(stored["numbers"]) == {"welfare, greedy", "welfare, sampled"}
    assert "pqn_sum" in capsys.readouterr().out
