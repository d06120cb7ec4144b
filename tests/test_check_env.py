"""`check_env`: correct environments pass, broken ones raise, twins are compared."""

import dataclasses

import jax
import numpy as np
import pytest
from broken_declarations import Watched, walk, work
from broken_envs import BROKEN, BROKEN_IN_PLAY, BROKEN_LATE, Branch, KeyState, Leak, LeakOfReset
from broken_outputs import InfiniteReward, NanInInfo
from toy_contract import Line, LineParams, LineState, Team

import wdjax
from wdjax import env_checker
from wdjax.env_checker import play as env_play
from wdjax.env_checker import programs

pytestmark = pytest.mark.usefixtures("quick_compile")


def names_of(broken):
    return [cls.__name__ for cls, _ in broken]


@pytest.fixture
def only_play(monkeypatch):
    """Skip the slower checks that precede random play."""
    monkeypatch.setattr(env_checker, "CONTRACT", ())


# --- correct environments ---


@pytest.mark.parametrize("name", wdjax.list_envs())
def test_registered_environments_pass_checks_without_compilation(name, monkeypatch):
    rules = [rule for rule in env_checker.CONTRACT if rule is not programs.params_can_be_batched]
    monkeypatch.setattr(env_checker, "CONTRACT", rules)
    monkeypatch.setattr(env_play, "random_play", lambda case: [])
    assert wdjax.check_env(name) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", wdjax.list_envs())
def test_registered_environments_pass(name):
    if name == "rice":  # with all 27 regions, 10,000 steps take a minute
        env, params = wdjax.make(name, num_regions=4, episode_length=9)
        assert wdjax.check_env(env, params, num_steps=400) is None
    else:
        assert wdjax.check_env(name) is None


@dataclasses.dataclass(frozen=True)
class KeyInState(Line):
    """Keeps a key in its state and draws from it."""

    def reset(self, key, params):
        key, place_key = jax.random.split(key)
        obs, state = super().reset(place_key, params)
        return obs, KeyState(state.place, state.time, key)

    def step(self, key, state, action, params):
        kept_key, noise_key = jax.random.split(state.key)
        obs, after, *rest = super().step(
            noise_key, LineState(state.place, state.time), action, params
        )
        return obs, KeyState(after.place, after.time, kept_key), *rest


@dataclasses.dataclass(frozen=True)
class Scripted(Watched):
    """Declares every optional feature."""

    scripts = {"work": ("worker", work), "aim": ("pilot", lambda env, state, *_: -0.5 * state.aim)}  # noqa: RUF012


def test_environment_without_groups_may_have_scripts(monkeypatch):
    monkeypatch.setattr(env_play, "random_play", lambda case: [])
    monkeypatch.setattr(Line, "scripts", {"walk": ("agent", walk)})
    assert wdjax.check_env(Line()) is None


@pytest.mark.parametrize(
    "env",
    [Line(), Team(), Scripted(), pytest.param(KeyInState(), marks=pytest.mark.slow)],
    ids=lambda env: type(env).__name__,
)
def test_toy_environments_pass(env):
    assert wdjax.check_env(env, seed=3) is None


# --- broken environments ---


@pytest.mark.parametrize(("cls", "sentence"), BROKEN, ids=names_of(BROKEN))
def test_broken_environments_raise(cls, sentence):
    with pytest.raises(wdjax.EnvCheckError, match=f"^{sentence}") as caught:
        wdjax.check_env(cls(), num_steps=10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("cls", "sentence"), BROKEN_IN_PLAY, ids=names_of(BROKEN_IN_PLAY))
def test_environments_broken_in_random_play_raise(cls, sentence, only_play):
    with pytest.raises(wdjax.EnvCheckError, match=f"^{sentence}"):
        wdjax.check_env(cls(), num_steps=1000)


LEAKS = [case for case in BROKEN_LATE if case[0] in (Leak, LeakOfReset)]
LATE_IN_PLAY = [case for case in BROKEN_LATE if case not in LEAKS]
# the checks before random play pass, for one toy each
FULL = [case for case in LATE_IN_PLAY if case[0] in (NanInInfo, InfiniteReward)]


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "sentence"), LATE_IN_PLAY, ids=names_of(LATE_IN_PLAY))
def test_other_environments_broken_in_random_play_raise(cls, sentence, only_play):
    with pytest.raises(wdjax.EnvCheckError, match=f"^{sentence}"):
        wdjax.check_env(cls())


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "sentence"), FULL, ids=names_of(FULL))
def test_broken_environments_raise_in_the_full_check(cls, sentence):
    with pytest.raises(wdjax.EnvCheckError, match=f"^{sentence}"):
        wdjax.check_env(cls())


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "sentence"), LEAKS, ids=names_of(LEAKS))
def test_leaks_raise_in_the_full_check(cls, sentence, frozen_objects):
    with pytest.raises(wdjax.EnvCheckError, match=f"^{sentence}"):
        wdjax.check_env(cls())


def test_tracing_errors_keep_their_cause():
    with pytest.raises(wdjax.EnvCheckError) as caught:
        wdjax.check_env(Branch())
    assert isinstance(caught.value.__cause__, jax.errors.TracerBoolConversionError)


class Faulty(Line):
    def step(self, key, state, action, params):
        return {}["nothing"]


def test_other_errors_of_an_environment_are_not_wrapped():
    with pytest.raises(KeyError, match="nothing"):
        wdjax.check_env(Faulty())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env": Line}, TypeError, "must be a wdjax.Env instance, or the name"),
        ({"env": "cartpol"}, ValueError, "did you mean 'cartpole'"),
        ({"env": Line(), "params": {"reach": 1.0}}, TypeError, "must be of type LineParams"),
        (
            {"env": Line(), "params": LineParams(reach="far")},
            TypeError,
            "reach = 'far': must be a number",
        ),
        ({"env": Line(), "params": LineParams(reach=-1.0)}, ValueError, "reach: must be above 0"),
        ({"env": Line(), "twin": 3}, TypeError, "twin = 3: must be a function"),
        ({"env": Line(), "num_steps": 0}, ValueError, "num_steps = 0: must be at least 1"),
        ({"env": Line(), "seed": 0.5}, TypeError, "seed = 0.5: must be a whole number"),
        ({"env": Line(), "seed": -1}, ValueError, "seed = -1: must be at least 0"),
        ({"env": Line(), "rtol": "a"}, TypeError, "rtol = 'a': must be a number"),
        ({"env": Line(), "atol": -1}, ValueError, "atol = -1: must be at least 0"),
    ],
)
def test_invalid_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        wdjax.check_env(**arguments)


# --- random play ---


def play_of(env, num_steps):
    case = env_checker._make_case(env, None, None, num_steps, 0, 1e-5, 1e-5)
    return list(env_play.random_play(case))


def test_random_play_continues_after_episodes_and_respects_masks():
    (play,) = play_of(Line(), 1000)
    assert play.time.shape == (100, 10)
    after, truncated = play.result["state"], play.result["truncated"]
    resets = play.time == 0
    np.testing.assert_array_equal(play.time[1:], np.where(resets[1:], 0, play.time[:-1] + 1))
    np.testing.assert_array_equal(play.state.place[1:][~resets[1:]], after.place[:-1][~resets[1:]])
    np.testing.assert_array_equal(play.ended, (np.abs(play.state.place) > 3) & ~resets)
    assert set(np.unique(play.past)) == {0, 1, 2, 3}
    # immediately after a time limit, 3 steps after a termination
    assert resets[1:][truncated[:-1]].all()
    assert resets[1:][play.past[:-1] == 3].all()
    assert resets[1:].sum() == truncated[:-1].sum() + (play.past[:-1] == 3).sum()
    assert truncated.sum() > 10
    assert play.obs["action_mask"].min() == 0
    assert (np.take_along_axis(play.obs["action_mask"], play.action[..., None], axis=2) == 1).all()
    assert set(np.unique(play.action)) == {0, 1, 2}


def test_random_play_lasts_until_all_agents_terminate():
    (play,) = play_of(Team(), 1000)
    worker, pilot = play.ended["worker"], play.ended["pilot"]
    assert (worker.any(axis=2) & ~pilot[..., 0]).any()
    np.testing.assert_array_equal(play.past > 0, worker.all(axis=2) & pilot.all(axis=2))
    choices = np.concatenate(
        [play.action["worker"][..., :1], 2 + play.action["worker"][..., 1:]], axis=3
    )
    assert (
        np.take_along_axis(play.obs["worker"]["action_mask"], choices, axis=3)[~worker] == 1
    ).all()


@pytest.mark.slow
def test_random_play_in_chunks_covers_the_same_steps(monkeypatch, only_play):
    monkeypatch.setattr(env_play, "CHUNK_BYTES", 5_000)
    pieces = play_of(Line(), 200)
    assert len(pieces) > 2
    time = np.concatenate([piece.time for piece in pieces])
    assert len(time) >= 20
    assert ((time[1:] == time[:-1] + 1) | (time[1:] == 0)).all()
    with pytest.raises(wdjax.EnvCheckError, match=r"info\['moved'\] = nan in step 11"):
        wdjax.check_env(NanInInfo(), num_steps=200)


# --- twins ---


def line_twin(key, state, action, params, scale=1.0):
    """Return the outputs of `Line` without noise."""
    over = abs(state.place) > params.reach
    place = state.place if over else state.place + (action - 1) * params.pace * scale
    terminated = abs(place) > params.reach
    obs = {"place": np.array([place]), "action_mask": np.array([place > -2, 1, 1])}
    time = state.time + 1
    return (
        obs,
        LineState(place, time),
        0.0 if over else 1.0,
        terminated,
        time >= params.episode_length and not terminated,
    )


def without_noise(twin, **settings):
    wdjax.check_env(Line(), LineParams(noise=0.0), twin, num_steps=1000, **settings)


def test_correct_twin_passes_and_info_is_compared(only_play):
    calls = []

    def twin(key, state, action, params, factor=1.0):
        calls.append(int(state.time))
        assert isinstance(state.place, np.ndarray | np.generic)
        assert isinstance(params.reach, np.ndarray | np.generic)
        info = {"moved": abs(action - 1) * params.pace * factor}
        return *line_twin(key, state, action, params), info

    without_noise(twin)
    assert 70 < len(calls) <= 100  # the active steps of the first replica
    assert calls[:3] == [0, 1, 2]
    with pytest.raises(
        wdjax.EnvCheckError, match=r"^step returns info\['moved'\] = 1\.0 in step \d+ .* twin 2\.0"
    ):
        without_noise(lambda *args: twin(*args, factor=2.0))


def test_twin_may_differ_within_tolerance(only_play):
    def near(*args):
        return line_twin(*args, scale=1.001)

    without_noise(near, atol=0.01)
    without_noise(near, rtol=0.1, atol=0.001)
    with pytest.raises(
        wdjax.EnvCheckError, match=r"^step returns state\.place = .* in step \d+ of an .* twin"
    ):
        without_noise(near)


def altered_twin(index, alter):
    def twin(*args):
        values = list(line_twin(*args))
        values[index] = alter(values[index])
        return tuple(values)

    return twin


@pytest.mark.parametrize(
    ("twin", "sentence"),
    [
        (
            altered_twin(1, lambda state: state.replace(time=state.time + (state.time == 4))),
            r"step returns state\.time = 4 in step 4 of an episode, the twin 5\. Correct one of "
            r"them",
        ),
        (
            altered_twin(0, lambda obs: {**obs, "action_mask": np.ones(3)}),
            r"step returns obs\['action_mask'\]\[0\] = 0 in step \d+ of an episode, the twin 1\.0",
        ),
        (
            altered_twin(3, lambda ended: False),
            r"step returns terminated = True in step \d+ .*, the twin False",
        ),
        (
            altered_twin(2, lambda reward: np.ones(2)),
            r"the twin returns reward of shape \(2,\), step of shape \(\)",
        ),
        (
            altered_twin(1, lambda state: (state.place, state.time)),
            "the twin returns a state with another structure",
        ),
        (lambda *args: line_twin(*args)[:4], "the twin must return a tuple of 5 or 6"),
    ],
)
def test_wrong_twins_raise(twin, sentence, only_play):
    with pytest.raises(wdjax.EnvCheckError, match=f"^{sentence}"):
        without_noise(twin)
