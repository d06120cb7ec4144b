"""tag_continuous at the limits of its rules, with numbers that float32 represents exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.envs.tag.continuous import State, TagContinuous

RULES = {
    "num_taggers": 2, "num_runners": 2, "grid_length": 8.0, "episode_length": 4,
    "tagging_distance": 0.125,
    "num_acceleration_levels": 3, "num_turn_levels": 3, "edge_hit_penalty": -0.5,
    "tag_reward_for_tagger": 3.0,
    "tag_penalty_for_runner": -2.0, "end_of_game_reward_for_runner": 7.0,
}  # fmt: skip  # the margin is 1
ENVS = {
    exits: wdjax.make("tag_continuous", **RULES, runner_exits_game_after_tagged=exits)
    for exits in (True, False)
}
STEPS = {exits: jax.jit(env.step) for exits, (env, _) in ENVS.items()}
FAR = [(0.0, 0.0), (8.0, 0.0), (0.0, 8.0), (8.0, 8.0)]  # all agents far apart


def stand(places, time=0, speed=(0, 0, 0, 0), active=(1, 1, 1, 1), exits=True):
    """Return (state, reward, terminated) of a step without acceleration or turns."""
    x, y = np.array(places, np.float32).T
    state = State(
        x=x,
        y=y,
        speed=np.array(speed, np.float32),
        direction=np.zeros(4, np.float32),
        acceleration=np.zeros(4, np.float32),
        active=np.array(active, bool),
        time=np.int32(time),
    )
    still = {"tagger": jnp.zeros((2, 2), jnp.int32), "runner": jnp.zeros((2, 2), jnp.int32)}
    _, after, reward, terminated, *_ = STEPS[exits](jax.random.key(0), state, still, ENVS[exits][1])
    return after, joined(reward).tolist(), joined(terminated).tolist()


def joined(groups):
    return np.concatenate([groups["tagger"], groups["runner"]])


@pytest.mark.parametrize(
    ("gap", "tagged"), [(0.0, True), (0.99999994, True), (1.0, False), (1.0000001, False)]
)
def test_tags_are_strictly_nearer_than_the_margin(gap, tagged):
    after, reward, terminated = stand([(0, 0), FAR[1], (np.float32(gap), 0), FAR[3]])
    assert reward == ([3, 0, -2, 0] if tagged else [0, 0, 0, 0])
    assert terminated == [False, False, tagged, False]
    assert after.active.tolist() == [True, True, not tagged, True]


def test_nearest_tagger_is_rewarded_and_ties_go_to_the_first():
    assert stand([(4, 4), (4, 4), (4, 4.5), FAR[3]])[1] == [3, 0, -2, 0]
    assert stand([(4, 4.75), (4, 3.75), (4, 4), FAR[3]])[1] == [0, 3, -2, 0]
    assert stand([(4, 4.5), (4, 3.5), (4, 4), FAR[3]])[1] == [3, 0, -2, 0]
    assert stand([(4, 4), FAR[1], (4, 4.5), (4.5, 4)])[1] == [6, 0, -2, -2]
    assert stand([(4, 4), (6, 4), (4, 4.5), (6, 4.5)])[1] == [3, 3, -2, -2]


@pytest.mark.parametrize("num_taggers", [25, 60])
def test_ties_among_many_taggers_go_to_the_first(num_taggers):
    """On whole cells, several taggers are equally near, in one or several rounds of the search."""
    env, _ = wdjax.make("tag_continuous", num_taggers=num_taggers, num_runners=40)
    x, y = np.random.default_rng(0).integers(0, 6, (2, num_taggers + 40)).astype(np.float32)
    state = State(x, y, speed=None, direction=None, acceleration=None, active=None, time=None)
    square = (x[num_taggers:, None] - x[:num_taggers]) ** 2 + (
        y[num_taggers:, None] - y[:num_taggers]
    ) ** 2
    index, distance = jax.jit(env.nearest_tagger)(state)
    np.testing.assert_array_equal(index, square.argmin(axis=1))
    np.testing.assert_array_equal(distance, np.sqrt(square.min(axis=1)))
    assert ((square == square.min(axis=1, keepdims=True)).sum(axis=1) > 1).any()


def test_inactive_runners_are_not_tagged_again():
    places = [(4, 4), FAR[1], (4, 4.5), FAR[3]]
    assert stand(places, active=(1, 1, 0, 1))[1:] == ([0, 0, 0, 0], [False, False, True, False])
    after, reward, terminated = stand(places, exits=False)
    assert (reward, terminated) == ([3, 0, -2, 0], [False] * 4)
    assert after.active.all()


@pytest.mark.parametrize(
    ("exits", "time", "reward"),
    [
        (True, 2, [3, 0, -2, 0]),
        (True, 3, [3, 0, -2, 7]),  # tagged in the last step, so without the final reward
        (False, 2, [3, 0, -2, 0]),
        (False, 3, [3, 0, 5, 7]),
    ],
)
def test_final_reward_of_the_last_step(exits, time, reward):
    _, gained, terminated = stand([(4, 4), FAR[1], (4, 4.5), FAR[3]], time=time, exits=exits)
    assert gained == reward
    assert terminated == ([True] * 4 if time == 3 else [False, False, exits, False])


def test_episode_ends_with_the_last_runner():
    places = [(4, 4), FAR[1], (4, 4.5), FAR[3]]
    _, reward, terminated = stand(places, active=(1, 1, 1, 0))
    assert (reward, terminated) == ([3, 0, -2, 0], [True] * 4)
    assert stand([(4, 4), FAR[1], (4, 4.5), (4.5, 4)])[2] == [True] * 4
    assert stand(places, active=(1, 1, 0, 0))[1:] == ([0] * 4, [True] * 4)  # and stays terminated


@pytest.mark.parametrize(
    ("x", "speed", "after_x", "penalty"),
    [
        (7.5, 0.25, 7.75, 0),
        (7.5, 0.5, 8.0, 0),
        (7.5, 0.75, 8.0, -0.5),
        (8.0, 0.0, 8.0, 0),
        (8.0, 0.25, 8.0, -0.5),
    ],
)
def test_edge_penalty_requires_crossing_the_edge(x, speed, after_x, penalty):
    """Agents move along x. Speed and direction are kept. Inactive agents receive no penalty."""
    after, reward, _ = stand([(0, 0), (x, 4), FAR[2], FAR[3]], speed=(0, speed, 0, 0))
    assert after.x[1] == after_x
    assert after.speed[1] == speed
    assert reward == [0, penalty, 0, 0]
    assert stand([*FAR[:3], (x, 4)], speed=(0, 0, 0, speed), active=(1, 1, 1, 0))[1] == [0, 0, 0, 0]


def test_tag_steps_exceed_int32():
    (_, params), still = (
        ENVS[False],
        {"tagger": jnp.zeros((2, 2), jnp.int32), "runner": jnp.zeros((2, 2), jnp.int32)},
    )
    rest = np.zeros(4, np.float32)
    state = State(rest, rest, rest, rest, rest, active=np.ones(4, bool), time=np.int32(2**30))
    params = params.replace(episode_length=np.int32(2**31 - 1))
    info = STEPS[False](jax.random.key(0), state, still, params)[-1]
    assert info["tags"] == 2
    assert info["tag_steps"] == 2.0 * (2**30 + 1)


def test_the_number_of_agents_is_limited_by_the_pairs_that_are_compared():
    with pytest.raises(ValueError, match="number of agents = 50001: must be at most 46340"):
        TagContinuous(num_taggers=1, num_runners=50_000)
    crowd = {"use_full_observation": False, "num_taggers": 1_000}
    assert TagContinuous(num_runners=99_000, **crowd).num_agents == 100_000
    with pytest.raises(ValueError, match=r"num_taggers \* num_runners = .*must be less than 2\^31"):
        TagContinuous(num_runners=3_000_000, **crowd)
