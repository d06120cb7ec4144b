"""One page's game in `wdjax play`."""

import dataclasses
import json
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.controls import Controls
from wdjax.drawing.frames import starts
from wdjax.train import load_run, make_learner
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.live.match import PAUSE, History, Match
from wdjax.train.live.table import NUM_EPISODES, Table, take_over

pytestmark = pytest.mark.usefixtures("quick_compile")


def grid_config(**params):
    return TrainConfig(
        env="tag_gridworld",
        env_params={"num_taggers": 2, "episode_length": 6, **params},
        policies={"tagger": PolicyConfig(), "runner": PolicyConfig()},
        num_envs=1,
        rollout_length=8,
    )


@pytest.fixture(scope="module")
def table(quick_compile):
    made = Table(make_learner(grid_config()), None)
    yield made
    made.close()


@pytest.fixture
def match(table):
    started = Match(table, 30, 0)
    started.receive('{"agent": ["runner", 0]}')
    return started


def header(frame):
    return json.loads(frame[4 : 4 + int.from_bytes(frame[:4], "little")])


def place(match):
    state = match.moment.state
    return int(state.x[-1]), int(state.y[-1])


def test_a_key_moves_the_visitors_agent_and_no_other(match):
    match.receive('{"player": ["tagger", "random"]}')
    x, y = place(match)
    key = "ArrowUp" if y < 4 else "ArrowDown"
    match.receive(json.dumps({"keys": [key]}))
    match.step()
    assert place(match) == (x, y + (1 if y < 4 else -1))
    match.receive('{"keys": []}')
    after = place(match)
    match.step()
    assert place(match) == after


def test_a_key_released_before_the_step_counts_once(match):
    x, y = place(match)
    key, way = ("ArrowRight", 1) if x < 4 else ("ArrowLeft", -1)
    match.receive(json.dumps({"keys": [key]}))
    match.receive('{"keys": []}')
    match.step()
    match.step()
    assert place(match) == (x + way, y)


def test_keys_that_the_agent_does_not_have_are_ignored(match):
    x, y = place(match)
    key, way = ("ArrowRight", 1) if x < 4 else ("ArrowLeft", -1)
    match.receive(json.dumps({"keys": ["x", key, "y"]}))
    match.step()
    assert place(match) == (x + way, y)


def test_keys_pressed_before_an_episode_or_in_a_pause_do_not_count(match):
    match.receive('{"keys": ["ArrowUp"]}')
    match.receive('{"keys": []}')
    match.restart()
    match.receive('{"paused": true}')
    match.receive('{"keys": ["ArrowRight"]}')
    match.receive('{"keys": []}')
    before = place(match)
    match.step()
    assert place(match) == before


def test_the_pointer_replaces_the_keys(match):
    x, y = place(match)
    match.receive(json.dumps({"point": [0.0, float(y)]}))
    match.receive('{"keys": ["ArrowUp"]}')
    match.step()
    assert place(match) == (max(x - 1, 0), y)


def test_take_over_replaces_one_agent_and_clips_its_action(table):
    visitor = table.visitor(("tagger", 1), [9.0], None)
    actions = {"tagger": jnp.array([[1, 1]]), "runner": jnp.array([[2]])}
    states = jax.tree.map(lambda leaf: leaf[None], Match(table, 30, 0).moment.state)
    taken = take_over(table.game, states, visitor, actions)
    np.testing.assert_array_equal(taken["tagger"], [[1, 4]])
    np.testing.assert_array_equal(taken["runner"], [[2]])
    watched = take_over(table.game, states, table.visitor(None, [], None), actions)
    np.testing.assert_array_equal(watched["tagger"], actions["tagger"])


def test_an_episode_ends_with_a_result_and_the_next_one_starts(match):
    match.receive('{"player": ["tagger", "random"]}')
    while not match.moment.over:
        match.step()
    assert match.wait == PAUSE
    shown = header(match.frame())
    assert shown["live"]["over"]
    assert shown["live"]["results"] == [[shown["live"]["return"], shown["live"]["average"]]]
    match.step()
    assert not match.moment.over
    assert header(match.frame())["captions"][-1].startswith("step 0")


def test_the_average_is_the_mean_return_of_the_chosen_players(table):
    def average(tagger, runner):
        end = time.monotonic() + 60
        while True:
            mean, count = table.average({"tagger": tagger, "runner": runner}, ("runner", 0))
            assert (mean is None) == (count == 0)
            if count == NUM_EPISODES:
                return mean
            assert time.monotonic() < end
            time.sleep(0.01)

    assert average("chase_nearest", "random") < average("random", "flee_nearest")


def test_a_waiting_game_steps_next_even_if_an_evaluation_never_pauses(table, monkeypatch):
    """Steps that overlapped made both slower: 3 instead of 7.5 frames per second in a crowd."""
    running, order = [], []

    def slow(game, playing, visitor, greedy):
        running.append(playing)
        time.sleep(0.005)
        assert running == [playing]
        order.append(running.pop())
        return playing, {}

    def evaluate():
        while order.count("game") < 10:
            table.step(None, "evaluation", None)

    monkeypatch.setattr("wdjax.train.live.table.step", slow)
    other = threading.Thread(target=evaluate)
    other.start()
    for _ in range(10):
        table.step(None, "game", None)
    other.join()
    assert len(order) <= 30


def observations(match):
    return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(match.playing[1][0])])


def test_without_trained_policies_nobody_observes(match):
    before = observations(match)
    match.step()
    np.testing.assert_array_equal(observations(match), before)


def test_choices_restart_the_episode(match):
    match.step()
    match.receive('{"agent": ["tagger", 1]}')
    status = header(match.frame())["live"]
    assert status["agent"] == ["tagger", 1]
    assert status["players"]["tagger"] == "chase_nearest"
    assert len(match.history.numbers) == 1
    match.receive('{"agent": null}')
    status = header(match.frame())["live"]
    assert (status["return"], status["keys"], status["active"]) == (None, [], False)
    match.step()


def test_pause_and_speed_determine_the_wait(match):
    assert match.wait == pytest.approx(1 / (30 * 0.2))
    match.receive('{"speed": 2}')
    assert match.wait == pytest.approx(1 / 60)
    match.receive('{"paused": true}')
    assert match.wait is None


def test_a_turn_based_environment_waits_for_a_key(match, monkeypatch):
    own = dataclasses.replace(match.table.controls["runner"], turn_based=True)
    monkeypatch.setitem(match.table.controls, "runner", own)
    assert match.wait is None
    match.receive('{"keys": ["ArrowUp"]}')
    assert match.wait is not None
    match.step()
    assert match.wait is None  # although the key is held
    match.receive('{"keys": []}')
    match.receive('{"keys": ["ArrowUp"]}')
    match.receive('{"keys": []}')
    assert match.wait is not None


def test_held_keys_are_marked_and_explained(match, monkeypatch):
    own = Controls({"1": {0: 1}, "2": {0: 2}}, (1,), holds=True, explanation="1, 2: move")
    monkeypatch.setitem(match.table.controls, "runner", own)
    match.restart()
    assert header(match.frame())["live"]["chosen"] == ["1"]
    match.receive('{"keys": ["2"]}')
    match.receive('{"keys": []}')
    match.step()
    status = header(match.frame())["live"]
    assert (status["chosen"], status["explanation"]) == (["2"], "1, 2: move")
    match.receive('{"agent": ["tagger", 0]}')
    assert header(match.frame())["live"]["chosen"] == []  # returns to idle


MALFORMED = [
    b"{}", "", "{", "[]", "null", "1", '"keys"', "{}", '{"keys": [], "speed": 1}', '{"other": 1}',
    '{"keys": null}', '{"keys": "ArrowUp"}', '{"keys": {}}', '{"keys": [["ArrowUp"]]}',
    '{"drawn": 9}', '{"drawn": true}', '{"drawn": "1"}', '{"point": [1]}',
    '{"point": [1, NaN]}', '{"point": ["1", "2"]}', '{"point": {}}', '{"point": [1, Infinity]}',
    '{"agent": ["runner", 1]}', '{"agent": ["runner", -1]}', '{"agent": ["runner", true]}',
    '{"agent": ["runner", 0.0]}', '{"agent": ["none", 0]}', '{"agent": [["runner"], 0]}',
    '{"agent": "runner"}', '{"player": ["tagger", "flee_nearest"]}', '{"player": ["none", "a"]}',
    '{"player": [["tagger"], "random"]}', '{"player": 3}', '{"speed": 0}', '{"speed": NaN}',
    '{"speed": "1"}', '{"speed": 1e9}', '{"speed": [1]}', "[" * 4000, '{"point":' + "[" * 4000,
    '{"point": [1e999, 1]}', '{"point": [1e39, 0]}', '{"point": [1' + "0" * 4000 + ", 1]}",
]  # fmt: skip


@pytest.mark.parametrize("message", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_messages_change_nothing(match, message):
    before = (match.agent, match.players, match.held, match.point, match.speed, match.is_paused)
    with pytest.raises(ValueError, match="malformed message"):
        match.receive(message)
    assert before == (
        match.agent, match.players, match.held, match.point, match.speed, match.is_paused
    )  # fmt: skip


@pytest.mark.slow
def test_trained_policies_of_105_agents_play():
    table = Table(*load_run("reference:tag_continuous"))
    match = Match(table, 30, 0)
    shown = observations(match)
    match.step()
    match.frame()
    table.close()
    assert sum(table.sizes.values()) == 105
    assert not np.array_equal(observations(match), shown)  # trained policies observe each step


@pytest.mark.parametrize(("size", "count", "kept"), [
    (12, 12, [*range(12)]),
    (5, 100, [0, 97, 98, 99]),
    (12, 41, [0, 8, 16, 24, 32, 38, 39, 40]),
])  # fmt: skip
def test_history_keeps_the_last_states_and_evenly_spaced_ones(size, count, kept):
    history = History(3, size)
    for number in range(count):
        history.append({"time": np.int32(number), "x": np.full(2, number, np.float32)})
    states = history.states
    np.testing.assert_array_equal(states["time"], kept)
    np.testing.assert_array_equal(states["x"][:, 1], kept)
    assert list(starts(states["time"])) == [0] * len(kept)


def test_an_environment_without_scene_is_refused(registry):
    class Undrawn(type(wdjax.make("cartpole")[0])):
        scene = wdjax.Env.scene

    wdjax.register("undrawn", Undrawn)
    config = TrainConfig(env="undrawn", policies={"agent": PolicyConfig()}, num_envs=1)
    with pytest.raises(NotImplementedError, match="Undrawn has no drawing"):
        Table(make_learner(config), None)
