"""Invalid arguments of single functions raise at the call."""

import functools
import math
import re
from types import SimpleNamespace

import jax
import pytest
from refusals import refusal

import wdjax
from wdjax.rendering import save_gif, save_png
from wdjax.train import load_config, make_learner, read_metrics, save_episode, with_hypers
from wdjax.train.evaluation import trajectory

AGENT = "policies.agent"
RETURN = "agent/episode_return"


@functools.cache
def learner():
    return make_learner(load_config("cartpole_ppo", **{f"{AGENT}.network.hidden_sizes": [4]}))


@pytest.mark.parametrize("number", [2.7, 2.0, -1, "3", True, None, [2]])
def test_num_updates_must_be_a_whole_number(number):
    assert "num_updates = " in refusal(learner().run, None, num_updates=number)


def test_true_is_rejected_after_1_was_compiled():
    state = jax.eval_shape(learner().init, jax.random.key(0))
    jax.eval_shape(functools.partial(learner().run, num_updates=1), state)
    assert "num_updates = True" in refusal(learner().run, state, num_updates=True)


@functools.cache
def state_of(preset="cartpole_ppo"):
    """Return the shapes of an initial state."""
    return jax.eval_shape(make_learner(load_config(preset)).init, jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("agent.gamma", 7, "agent.gamma = 7: must be between 0 and 1"),
        ("agent.gamma", math.nan, "agent.gamma = nan: must be between 0 and 1"),
        ("agent.learning_rate", -1, "must be finite and at least 0"),
        ("agent.learning_rate", math.nan, "must be finite and at least 0"),
        ("agent.learning_rate", [1e-3, math.inf], "agent.learning_rate = inf: must be finite"),
        ("agent.clip", 0, "must be above 0"),
        ("agent.past_selves_fraction", 1.0, "unknown hyperparameter"),
        ("agent.clip", "wide", "agent.clip = 'wide': must be a number"),
        ("agent.clip", True, "must be a number"),
        ("agent.clip", None, "must be a number"),
    ],
)
def test_with_hypers_validates_values(name, value, message):
    assert message in refusal(with_hypers, state_of(), **{name: value})


@pytest.mark.parametrize("name", ["agent.tau", "agent.ddpg.tau", "agent.options.tau"])
def test_with_hypers_accepts_names_of_older_versions(name):
    state = state_of("continuous_mountain_car_ddpg")
    assert f"{name} = 2.0: must be above 0 and at most 1" in refusal(
        with_hypers, state, **{name: 2.0}
    )
    assert with_hypers(state, **{name: 0.5}).hypers["agent"]["tau"] == 0.5
    traced = jax.jit(lambda value: with_hypers(state, **{name: value}).hypers["agent"]["tau"])
    assert traced(0.25) == 0.25  # unknown while tracing


@pytest.mark.parametrize("action", [None, "left"])
def test_eager_step_rejects_values_that_are_not_actions(action):
    env, params = wdjax.make("cartpole")
    _, state = env.reset(jax.random.key(0), params)
    refusal(env.step, jax.random.key(0), state, action, params)


@pytest.mark.parametrize("game", ["tag_continuous", "tag_gridworld"])
def test_number_of_agents_is_limited_by_int32_pairs(game):
    assert "number of agents" in refusal(wdjax.make, game, num_taggers=10**9)
    wdjax.make(game, num_taggers=1_000)


@pytest.mark.parametrize(
    ("game", "field"),
    [
        ("covid_economy", "num_states"),
        ("covid_economy", "num_subsidy_levels"),
        ("rice", "num_regions"),
        ("rice", "levels"),
        ("tag_continuous", "num_turn_levels"),
        ("taxed_commons", "max_catch"),
        ("taxed_commons", "num_harvesters"),
        ("taxed_commons", "num_levels"),
    ],
)
def test_static_sizes_are_limited(game, field):
    message = f"{field} = {2**31 - 1}: must be at least "
    assert re.fullmatch(
        f"{message}[0-9] and at most 10000", refusal(wdjax.make, game, **{field: 2**31 - 1})
    )


def test_keys_are_not_numbers():
    assert "gravity = " in refusal(wdjax.make, "cartpole", gravity=jax.random.key(0))


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        (
            "cartpole_ppo",
            {"epochs": 10**12},
            "epochs = 1000000000000: must be at least 1 and below 2**31",
        ),
        ("tag_small", {}, "past_selves_every = 2147483648: must be"),
        (
            "continuous_mountain_car_ddpg",
            {"ddpg.n_step": 100, "ddpg.buffer_size": 64, "ddpg.batch_size": 64, "ddpg.warmup": 64},
            "policies.agent.n_step = 100: must be at most buffer_size = 64",
        ),
    ],
)
def test_impossible_counts_raise(preset, changes, message):
    named = {f"{AGENT}.{name}": value for name, value in changes.items()}
    named = named or {"policies.runner.past_selves_every": 2**31}
    assert message in refusal(load_config, preset, **named)


@pytest.mark.parametrize("goal", [math.nan, math.inf, 10**400])
def test_stop_at_must_be_finite(goal):
    assert "stop_at.agent/episode_return = " in refusal(
        load_config, "cartpole_ppo", stop_at={RETURN: goal}
    )


def test_number_of_parameters_is_limited():
    config = load_config("cartpole_ppo", **{f"{AGENT}.network.hidden_sizes": [2**31 - 1]})
    assert "policies.agent.network: number of parameters = " in refusal(make_learner, config)


@pytest.mark.parametrize(
    ("write", "name", "suffix"),
    [
        (save_gif, "x.mp4", ".gif"),
        (save_png, "x.jpg", ".png"),
        (save_gif, "x", ".gif"),
    ],
)
def test_pictures_require_their_suffix(tmp_path, write, name, suffix):
    env, params = wdjax.make("cartpole")
    _, state = env.reset(jax.random.key(0), params)
    states = jax.tree.map(lambda leaf: leaf[None], state) if write is save_gif else state
    assert f"must be a file that ends in {suffix}" in refusal(
        write, tmp_path / name, env, states, params
    )
    assert not list(tmp_path.iterdir())


def test_save_episode_rejects_unknown_suffixes(monkeypatch):
    message = (
        "must be a file that ends in .gif, .html, .mp4, .svg, .png or .npz: did you mean '.html'?"
    )
    assert message in refusal(save_episode, None, None, "x.htm")
    monkeypatch.setenv("PATH", "")
    # raised before the episode is recorded
    assert "requires ffmpeg" in refusal(save_episode, None, None, "x.mp4")


def test_save_episode_validates_before_recording():
    env, params = wdjax.make("cartpole")
    run, state = SimpleNamespace(env=env), SimpleNamespace(env_params=params)
    assert "fps = 60: must be above 0 and at most 50" in refusal(
        save_episode, run, state, "x.gif", fps=60
    )
    run.env = type("CartPole", (type(env),), {"draw": lambda *_, **__: None})()
    with pytest.raises(
        NotImplementedError,
        match=r"CartPole draws with matplotlib, which supports only \.gif, \.mp4",
    ):
        save_episode(run, state, "x.html")


@pytest.mark.parametrize(
    ("name", "max_bytes", "recorded"),
    [
        ("x.html", 16_000, True),
        ("x.html", 15_999, False),
        ("x.npz", 0, True),
        ("x.svg", 16_000, False),
    ],
)
def test_observations_are_recorded_for_html_up_to_a_size(monkeypatch, name, max_bytes, recorded):
    calls = []

    def ask(*_, observations, **__):
        return calls.append(observations) or 1 / 0

    monkeypatch.setattr(trajectory, "record_episode", ask)
    # an episode of cartpole has 1,000 steps of 4 float32
    monkeypatch.setattr(trajectory, "OBS_BYTES", max_bytes)
    env, params = wdjax.make("cartpole")
    with pytest.raises(ZeroDivisionError):
        save_episode(SimpleNamespace(env=env), SimpleNamespace(env_params=params), name)
    assert calls == [recorded]


def test_read_metrics_accepts_a_run_folder(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"updates": 1}\n')
    assert read_metrics(tmp_path) == read_metrics(tmp_path / "metrics.jsonl") == [{"updates": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise KeyError('mine')", "KeyError: 'mine'"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
    ],
)
def test_failing_user_modules_raise_one_line(tmp_path, monkeypatch, text, message):
    (tmp_path / "fails_at_once.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    named = {f"{AGENT}.network.encoder": "fails_at_once:E"}
    assert message in refusal(load_config, "cartpole_ppo", **named)


def test_failing_drawing_does_not_fail_the_run(tmp_path, monkeypatch, capsys):
    from wdjax.train import Trainer

    def fails(*_, **__):
        raise ValueError("Mine.draw raises KeyError: 'x'")

    monkeypatch.setattr("wdjax.train.trainer.save_episode", fails)
    trainer = Trainer(learner().config, tmp_path / "run")
    trainer.state = state_of()
    trainer.draw()
    assert (
        "Warning: could not draw episode.gif: Mine.draw raises KeyError" in capsys.readouterr().out
    )


def test_deeply_nested_metrics_lines_raise(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    assert "metrics.jsonl, line 1, is not valid JSON" in refusal(read_metrics, tmp_path)
