"""Evaluations count whole episodes once, with random and trained sides in their roles."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Signal, tiny_config, tiny_policy

from wdjax import envs
from wdjax.train import (
    Episodes,
    NetworkConfig,
    PolicyConfig,
    cross_play,
    evaluate,
    load_config,
    make_learner,
    record_episode,
    statistics,
)
from wdjax.train.evaluation.episodes import evaluation_metrics
from wdjax.train.evaluation.evaluate import play_episodes
from wdjax.train.learning import RunningStatistics

pytestmark = pytest.mark.usefixtures("quick_compile")

COST, TAG, PENALTY = 0.25, 10.0, 5.0  # exact in float32, so that sums are


@pytest.fixture(scope="module")
def gridworld():
    """Return a learner on a small grid, and a state whose greedy policy does not move."""
    params = {
        "num_taggers": 2,
        "grid_length": 4,
        "episode_length": 12,
        "wall_hit_penalty": 0.0,
        "random_start": False,
        "step_cost_for_tagger": COST,
        "tag_reward_for_tagger": TAG,
        "tag_penalty_for_runner": PENALTY,
    }
    policies = {
        "tagger": {"network": {"hidden_sizes": [8]}},
        "runner": {"network": {"hidden_sizes": [8]}},
    }
    config = load_config(
        "tag_gridworld",
        num_envs=4,
        rollout_length=4,
        env_params=params,
        policies=policies,
        best_metric="none",
    )
    learner = make_learner(config)
    state = learner.init(jax.random.key(0))
    still = {
        name: p.replace(params=jax.tree.map(jnp.zeros_like, p.params))
        for name, p in state.policies.items()
    }
    return learner, state.replace(policies=still)


def check_returns(episodes):
    """Check returns, which follow from lengths and tags."""
    tags, length = episodes.episode_info["tags"], episodes.episode_length
    np.testing.assert_array_equal(
        episodes.episode_return["tagger"], 2 * (TAG * tags - COST * (length - tags))
    )
    np.testing.assert_array_equal(
        episodes.episode_return["runner"], -PENALTY * tags + COST * (length - tags)
    )


@pytest.mark.slow
def test_terminal_rewards_are_counted_and_nothing_after(gridworld):
    episodes = evaluate(*gridworld, jax.random.key(1), num_episodes=64, random=("tagger", "runner"))
    assert set(np.unique(episodes.episode_info["tags"])) == {0, 1}  # both ends occur
    assert episodes.episode_length.min() < 12
    assert np.all(episodes.episode_length[episodes.episode_info["tags"] == 0] == 12)
    check_returns(episodes)


@pytest.mark.slow
def test_cross_play_mixes_trained_and_random_sides(gridworld):
    cells = cross_play(*gridworld, jax.random.key(1), num_episodes=64, greedy=True)
    assert list(cells) == [(a, b) for a in ("trained", "random") for b in ("trained", "random")]
    tags = {cell: int(episodes.episode_info["tags"].sum()) for cell, episodes in cells.items()}
    assert tags["trained", "trained"] == 0  # all agents stay, apart
    assert tags["random", "random"] > 0
    assert tags["random", "trained"] > 0
    for episodes in cells.values():
        check_returns(episodes)
        assert list(episodes.group_return) == ["tagger", "runner"]  # as the environment has them
    np.testing.assert_array_equal(
        episodes.group_return["tagger"], episodes.episode_return["tagger"]
    )


def test_greedy_and_sampled_actions(gridworld):
    """All actions are equally likely: sampled agents walk and meet, greedy ones stay."""
    drawn, greedy = (
        evaluate(*gridworld, jax.random.key(1), 64, greedy=greedy) for greedy in (False, True)
    )
    assert 0.1 < drawn.episode_info["tags"].mean() < 1
    assert greedy.episode_info["tags"].sum() == 0
    check_returns(drawn)


def test_results_are_in_the_order_of_policies(gridworld):
    """Greedy taggers stay, a random runner walks."""
    learner, state = gridworld
    walks = record_episode(learner, state, jax.random.key(3), greedy=True, random=("runner",))
    assert np.ptp(walks.states.x[:, :2]) == 0
    assert np.ptp(walks.states.x[:, 2]) + np.ptp(walks.states.y[:, 2]) > 0
    assert list(learner.setup.policies) == ["tagger", "runner"]


def test_recorded_episode_is_whole(gridworld):
    learner, state = gridworld
    episode = record_episode(
        learner, state, jax.random.key(5), random=("tagger", "runner"), max_steps=50
    )
    steps = len(episode.reward["runner"])
    assert len(episode.states.x) == steps + 1
    assert len(np.unique(episode.action["runner"])) > 2  # random play draws anew in every step
    np.testing.assert_array_equal(episode.states.time, np.arange(steps + 1))
    is_over = jax.jit(learner.env.is_over)
    last = jax.tree.map(lambda leaf: leaf[-1], episode.states)
    assert bool(is_over(last, learner.env_params))
    before = jax.tree.map(lambda leaf: leaf[-2], episode.states)
    assert not bool(is_over(before, learner.env_params))
    replayed = jax.jit(learner.env.step)(
        jax.random.key(0),
        jax.tree.map(lambda leaf: leaf[2], episode.states),
        jax.tree.map(lambda leaf: leaf[2], episode.action),
        learner.env_params,
    )[1]
    np.testing.assert_array_equal(replayed.x, episode.states.x[3])


def test_episodes_depend_on_the_key(gridworld):
    lengths = [
        evaluate(*gridworld, jax.random.key(seed), 64, random=("tagger", "runner")).episode_length
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(lengths[0], lengths[1])
    assert np.any(lengths[0] != lengths[2])


def test_refusals(gridworld):
    with pytest.raises(ValueError, match="did you mean 'runner'"):
        evaluate(*gridworld, jax.random.key(0), random=("runer",))
    with pytest.raises(ValueError, match="max_steps = 3"):
        evaluate(*gridworld, jax.random.key(0), num_episodes=4, max_steps=3)
    with pytest.raises(ValueError, match="num_episodes = 0"):
        evaluate(*gridworld, jax.random.key(0), num_episodes=0)
    with pytest.raises(
        ValueError, match="num_episodes = 1000000000000: must be at most 10000000 at once"
    ):
        evaluate(*gridworld, jax.random.key(0), num_episodes=10**12)


def test_single_agent_episodes():
    learner = make_learner(load_config("cartpole_ppo", num_envs=4, rollout_length=4))
    state = learner.init(jax.random.key(0))
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=16, greedy=False)
    np.testing.assert_array_equal(
        episodes.episode_return["agent"], episodes.episode_length
    )  # 1 a step, the last too
    assert 5 < episodes.episode_length.mean() < 60


@pytest.mark.slow
def test_agents_own_returns_and_the_groups():
    """The first player leaves after 2 of 4 steps of reward 1. Its later rewards do not count."""
    policies = {f"p{i}": tiny_policy("A2C", agents=(f"player[{i}]",)) for i in range(2)}
    learner = make_learner(tiny_config("probe_leaver", policies, env_params={"dead_reward": 100.0}))
    state = learner.init(jax.random.key(0))
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=3)
    np.testing.assert_array_equal(episodes.episode_length, [4, 4, 4])
    np.testing.assert_array_equal(episodes.agent_return["p0"], [[2], [2], [2]])
    np.testing.assert_array_equal(episodes.agent_return["p1"], [[4], [4], [4]])
    np.testing.assert_array_equal(episodes.episode_return["p0"], [2, 2, 2])
    np.testing.assert_array_equal(episodes.group_return["player"], [6, 6, 6])


@pytest.mark.slow
@pytest.mark.parametrize("time_limit", [False, True])
def test_the_last_reward_counts_at_either_end(time_limit):
    params = {"constant": 1.0, "at_end": 10.0, "episode_length": 3, "time_limit": time_limit}
    learner = make_learner(
        tiny_config("probe_signal", {"agent": tiny_policy("A2C")}, env_params=params)
    )
    episodes = evaluate(learner, learner.init(jax.random.key(0)), jax.random.key(1), num_episodes=5)
    np.testing.assert_array_equal(episodes.episode_return["agent"], [13] * 5)
    np.testing.assert_array_equal(episodes.episode_length, [3] * 5)


def test_evaluation_in_batches(gridworld):
    """Batches of 24 have separate keys. Only the last one is cut."""
    learner, state = gridworld
    both = {"random": ("tagger", "runner")}
    turns = evaluate(learner, state, jax.random.key(1), 64, **both, batch=24)
    parts = [
        evaluate(learner, state, key, 24, **both) for key in jax.random.split(jax.random.key(1), 3)
    ]
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:64], *parts)
    for a, b in zip(jax.tree.leaves(turns), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.any(parts[0].episode_length != parts[1].episode_length)
    for a, b in zip(
        *(
            jax.tree.leaves(evaluate(learner, state, jax.random.key(1), 24, **both, batch=size))
            for size in (None, 99)
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="batch = 0"):
        evaluate(learner, state, jax.random.key(1), 64, batch=0)


def test_statistics_by_hand():
    episodes = Episodes(
        episode_return={"pair": np.array([3.0, 7.0])},
        episode_length=np.array([4, 8]),
        episode_info={"tags": np.array([1, 3]), "tag_steps": np.array([2, 12])},
        agent_return={"pair": np.array([[1.0, 2.0], [3.0, 4.0]])},
        group_return={"all": np.array([3.0, 7.0])},
    )
    found = statistics(episodes)
    assert list(found) == [
        "tags",
        "tag_steps",
        "length",
        "all return",
        "pair return",
        "pair agent return",
    ]
    assert found["length"]["mean"] == 6
    assert found["length"]["standard_error"] == pytest.approx(
        2
    )  # sqrt(((-2)^2 + 2^2) / 1) / sqrt(2)
    assert found["length"]["quantiles"] == pytest.approx(
        {"0.05": 4.2, "0.25": 5, "0.5": 6, "0.75": 7, "0.95": 7.8}
    )
    assert found["pair return"]["mean"] == 5
    agents = found["pair agent return"]
    assert agents["mean"] == 2.5
    assert agents["standard_error"] == pytest.approx(
        1
    )  # of 1.5 and 3.5: an episode's agents are not independent
    assert agents["quantiles"]["0.5"] == 2.5
    assert agents["quantiles"]["0.25"] == 1.75
    ratio = statistics(episodes, {"time_to_tag": ("tag_steps", "tags")})
    assert "tag_steps" not in ratio
    assert ratio["time_to_tag"]["mean"] == 3.5  # 14 steps of 4 tags, not the mean of 2 and 4
    assert ratio["time_to_tag"]["standard_error"] == pytest.approx(
        0.75
    )  # of (2 - 3.5) / 2 and (12 - 10.5) / 2
    assert ratio["time_to_tag"]["quantiles"]["0.5"] == 3
    one = jax.tree.map(lambda leaf: leaf[:1], episodes)
    assert statistics(one)["length"]["standard_error"] is None
    nothing = episodes.replace(episode_info={"tags": np.zeros(2), "tag_steps": np.zeros(2)})
    assert (
        statistics(nothing, {"time_to_tag": ("tag_steps", "tags")})["time_to_tag"]["mean"] is None
    )


def test_logged_metrics_of_evaluations():
    episodes = Episodes(
        episode_return={"pair": np.array([3.0, 7.0])},
        episode_length=np.array([4, 8]),
        episode_info={"tags": np.array([1, 3]), "tag_steps": np.array([2, 12])},
        agent_return={"pair": np.array([[1.0, 2.0], [3.0, 4.0]])},
        group_return={"all": np.array([5.0, 5.0])},
    )
    assert evaluation_metrics(episodes, {"time_to_tag": ("tag_steps", "tags")}) == pytest.approx(
        {
            "eval/episode_length": 6.0,
            "eval/episode_length_standard_error": 2.0,
            "eval/time_to_tag": 3.5,
            "eval/time_to_tag_standard_error": 0.75,
            "eval/episode_tags": 2.0,
            "eval/episode_tags_standard_error": 1.0,
            "eval/all/episode_return": 5.0,
            "eval/all/episode_return_standard_error": 0.0,
            "eval/pair/episode_return": 5.0,
            "eval/pair/episode_return_standard_error": 2.0,
        }
    )


def shop_run():
    """DDPG and PPO in one group, a recurrent policy with masks in the other, normalizers in all."""
    tiny = NetworkConfig(hidden_sizes=(4,), activation="tanh", initializer="lecun")
    memory = dataclasses.replace(tiny, recurrent_size=4)
    policies = {
        "ace": PolicyConfig(
            algorithm="DDPG", agents=("pilot[1]",), network=tiny, normalize_observation=True
        ),
        "clerk": tiny_policy("A2C", network=memory, normalize_observation=True),
        "wing": tiny_policy("PPO", agents=("pilot[0]",), network=tiny),
    }
    learner = make_learner(
        tiny_config("probe_shop", policies, env_params={"dead_reward": 100.0, "leave": 0.6})
    )
    state = learner.init(jax.random.key(0))
    seen = {
        "inner": {"place": known([32.0, -1.95], [1.3, 0.01]), "choices": None},
        "clock": known([15.0], [125.0]),
        "light": None,
    }
    changed = {}
    for name, own in state.policies.items():
        normalizer = own.normalizer and own.normalizer.replace(obs=seen)
        sharper = jax.tree.map(lambda leaf: 3.0 * leaf, own.params)  # so that memory shows
        changed[name] = own.replace(params=sharper, normalizer=normalizer)
    return learner, state.replace(policies=changed)


def known(mean, variance):
    return RunningStatistics(jnp.float32(9), jnp.array(mean), jnp.array(variance))


def play_by_hand(learner, state, key, num_episodes):
    """Run the same episodes step by step. Return (return of each agent [E, 5], lengths [E])."""
    env, params, policies = learner.env, state.env_params, learner.setup.policies
    where = {
        "ace": ("pilot", slice(1, 2)),
        "clerk": ("clerk", slice(0, 3)),
        "wing": ("pilot", slice(0, 1)),
    }

    @jax.jit
    def step(key, env_state, obs, carries):
        chosen = {}
        for name, (group, agents) in where.items():
            seen = jax.tree.map(lambda leaf, agents=agents: leaf[None, agents], obs[group])
            own, learned = policies[name], state.policies[name]
            action, carry = own.algorithm.play(own, learned, carries[name], seen, key[None], True)
            chosen[name], carries = action[0], carries | {name: carry}
        pilots = jnp.clip(jnp.concatenate([chosen["wing"], chosen["ace"]]), -1.0, 3.0)
        return *env.step(key, env_state, {"pilot": pilots, "clerk": chosen["clerk"]}, params)[
            :5
        ], carries

    played, reset = [], jax.jit(env.reset)
    reset_key, step_key = jax.random.split(key)
    for i, own_key in enumerate(jax.random.split(reset_key, num_episodes)):
        obs, env_state = reset(own_key, params)
        carries = {name: own.algorithm.init_carry(own, 1) for name, own in policies.items()}
        total, alive, time, over = np.zeros(5), np.ones(5, bool), 0, False
        while not over:
            env_key = jax.random.split(
                jax.random.split(jax.random.fold_in(step_key, time))[1], num_episodes
            )[i]
            obs, env_state, *flags, carries = step(env_key, env_state, obs, carries)
            reward, terminated, truncated = (
                np.concatenate([part["pilot"], part["clerk"]]) for part in flags
            )
            total += np.where(alive, reward, 0.0)
            alive &= ~terminated
            over, time = bool(np.all(terminated | truncated)), time + 1
        played.append((total, time))
    return np.stack([total for total, _ in played]), np.array([time for _, time in played])


@pytest.mark.slow
def test_all_features_against_a_loop_over_episodes():
    learner, state = shop_run()
    episodes = evaluate(learner, state, jax.random.key(4), 6, greedy=True)
    returns, lengths = play_by_hand(learner, state, jax.random.key(4), 6)
    assert len(set(lengths)) > 1
    np.testing.assert_array_equal(episodes.episode_length, lengths)
    own = {"ace": returns[:, 1:2], "clerk": returns[:, 2:], "wing": returns[:, :1]}
    for name, expected in own.items():
        np.testing.assert_allclose(episodes.agent_return[name], expected, rtol=1e-5)
        np.testing.assert_allclose(episodes.episode_return[name], expected.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(
        episodes.group_return["pilot"], returns[:, :2].sum(axis=1), rtol=1e-5
    )
    np.testing.assert_allclose(
        episodes.group_return["clerk"], returns[:, 2:].sum(axis=1), rtol=1e-5
    )
    assert np.abs(returns).max() < 100 * 4 / 2  # no rewards after the end


def test_members_of_a_population(gridworld):
    """Members are evaluated one by one with the same program. A whole population is refused."""
    learner, state = gridworld
    states = jax.jit(lambda state: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state))(state)
    one = jax.jit(lambda states: jax.tree.map(lambda leaf: leaf[1], states))(states)
    alone = evaluate(learner, state, jax.random.key(1), 64, random=("tagger", "runner"))
    before = play_episodes._cache_size()
    member = evaluate(learner, one, jax.random.key(1), 64, random=("tagger", "runner"))
    assert play_episodes._cache_size() == before
    np.testing.assert_array_equal(member.episode_length, alone.episode_length)
    for function in (evaluate, cross_play, record_episode):
        with pytest.raises(ValueError, match=r"Select a population member"):
            function(learner, states, jax.random.key(1))
        with pytest.raises(TypeError, match=r"state = .*must be a state outside of jax.jit and"):
            jax.vmap(functools.partial(function, learner), in_axes=(0, None))(
                states, jax.random.key(1)
            )


class Uneven(Signal):
    """A signal of 1 truncates the episode after 2 steps, one of -1 after 4."""

    def step(self, key, state, action, params):
        obs, state, reward, over, _, _ = super().step(key, state, action, params)
        return (
            obs,
            state,
            reward,
            over & False,
            state.time >= jnp.where(state.signal > 0, 2, 4),
            {"steps": True},
        )


@pytest.mark.slow
def test_nothing_counts_after_a_time_limit(monkeypatch):
    """Truncated replicas are still stepped until the others end."""
    monkeypatch.setitem(envs._REGISTRY, "uneven", Uneven)
    params = {"constant": 1.0, "episode_length": 99, "same_signal": True}
    learner = make_learner(tiny_config("uneven", {"agent": tiny_policy("A2C")}, env_params=params))
    episodes = evaluate(
        learner, learner.init(jax.random.key(0)), jax.random.key(1), num_episodes=16
    )
    assert set(episodes.episode_length) == {2, 4}
    np.testing.assert_array_equal(episodes.episode_return["agent"], episodes.episode_length)
    np.testing.assert_array_equal(episodes.episode_info["steps"], episodes.episode_length)


def test_actions_are_sampled_by_default():
    defaults = [
        inspect.signature(function).parameters
        for function in (evaluate, cross_play, record_episode)
    ]
    assert [own["greedy"].default for own in defaults] == [False] * 3
    assert [own["num_episodes"].default for own in defaults[:2]] == [256] * 2
