"""check_env with NumPy twins: CartPole in float64, and the reference of tag_gridworld."""

import dataclasses

import numpy as np
import pytest
import reference_tag_gridworld as reference

import wdjax
from wdjax import env_checker
from wdjax.envs.classic_control.cartpole import State as CartPoleState
from wdjax.envs.tag.gridworld import State as GridState

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def only_play(monkeypatch):
    """Skip the checks before random play, which tests/test_check_env.py covers."""
    monkeypatch.setattr(env_checker, "CONTRACT", ())


def cartpole_twin(key, state, action, params, gravity=9.8):
    """Step CartPole in float64, after Barto, Sutton, Anderson."""
    x, v, theta, omega = (
        float(number) for number in (state.x, state.x_dot, state.theta, state.theta_dot)
    )
    total, moment = params.masspole + params.masscart, params.masspole * params.length
    push = (params.force_mag * (2 * action - 1) + moment * omega**2 * np.sin(theta)) / total
    lever = params.length * (4 / 3 - params.masspole * np.cos(theta) ** 2 / total)
    alpha = (gravity * np.sin(theta) - np.cos(theta) * push) / lever
    acceleration = push - moment * alpha * np.cos(theta) / total
    numbers = [x + 0.02 * v, v + 0.02 * acceleration, theta + 0.02 * omega, omega + 0.02 * alpha]
    terminated = abs(numbers[0]) > 2.4 or abs(numbers[2]) > np.deg2rad(12)
    return np.array(numbers), CartPoleState(*numbers, state.time + 1), 1.0, terminated, False


def gridworld_twin(key, state, action, params):
    """Step with the reference of tests/envs."""
    names = {field.name for field in dataclasses.fields(params)} - {
        "starting_location_x",
        "starting_location_y",
    }
    rules = reference.Rules(num_taggers=4, **{name: getattr(params, name) for name in names})
    start = reference.State(state.x.tolist(), state.y.tolist(), int(state.time))
    new, obs, reward, done, tagged = reference.step(
        rules, start, np.concatenate([action["tagger"], action["runner"]])
    )

    def split(rows):
        return {"tagger": rows[:4], "runner": rows[4:]}

    after = GridState(np.array(new.x), np.array(new.y), new.time)
    info = {"tags": int(tagged), "tag_steps": int(tagged) * new.time}
    return split(obs), after, split(reward), split(np.full(5, done)), split(np.zeros(5, bool)), info


def test_cartpole_agrees_with_its_twin():
    wdjax.check_env("cartpole", twin=cartpole_twin, num_steps=3_000)
    with pytest.raises(
        wdjax.EnvCheckError, match=r"^step returns state\.(x|theta)_dot = .* in step \d of"
    ):
        wdjax.check_env(
            "cartpole", twin=lambda *args: cartpole_twin(*args, gravity=9.81), atol=1e-6
        )


def test_gridworld_agrees_with_its_twin():
    env, params = wdjax.make("tag_gridworld", num_taggers=4, grid_length=4)
    wdjax.check_env(env, params, gridworld_twin, num_steps=3_000)
    other = wdjax.make("tag_gridworld", num_taggers=4, grid_length=4, wall_hit_penalty=0.25)[1]

    def wrong(key, state, action, _):
        return gridworld_twin(key, state, action, params)

    with pytest.raises(
        wdjax.EnvCheckError, match=r"^step returns reward\['(tagger|runner)'\]\[\d\] = .*, the twin"
    ):
        wdjax.check_env(env, other, wrong)
