"""Programs in alternation: order of calls, speeds relative to the first one, and failures."""

import json
import re
import sys
import types
from pathlib import Path

import pytest

from wdjax.experiments.benchmarks import alternate

SCRIPT = """
import pathlib, time
def build(name, env_steps, fails=False):
    log = pathlib.Path(__file__).with_name("log")
    def call():
        with log.open("a") as file:
            file.write(f"{name} ")
        if fails and log.read_text().count(name) > 1:
            raise RuntimeError("no\\n  more")
    return "words", env_steps, call
"""


@pytest.mark.slow
def test_programs_run_in_alternation(tmp_path, capsys):
    script, file = tmp_path / "theirs.py", tmp_path / "out.json"
    script.write_text(SCRIPT)
    programs = [f"{script} a 100", f"{script} b 50", f"{script} c 1 true", "cartpole_11k"]
    alternate.main([*programs, "--repeats", "2", "--json", str(file)])
    calls = (tmp_path / "log").read_text().split()
    assert sorted(calls[:3]) == ["a", "b", "c"]  # built together
    assert calls[3:] == ["a", "b", "c", "a", "b"]
    a, b, c, unknown = json.loads(file.read_text())
    assert (a["workload"], a["env_steps"], len(a["turns"])) == ("words", 100, 2)
    assert a["env_steps_per_second"] > 0
    assert "x_first_by_seconds" not in a
    assert b["x_first_by_cpu_seconds"] > 0
    assert c["error"] == "RuntimeError: no more"
    assert unknown["error"].startswith("ValueError: unknown row 'cartpole_11k': did you mean")
    assert "failed: RuntimeError: no more" in capsys.readouterr().out


def test_speeds_are_relative_to_the_first_program():
    """The calls of the second one take 2, 1 and 1.5 times as long for half of the env steps."""
    first = {"env_steps": 100, "turns": [turn(1.0), turn(2.0), turn(4.0)]}
    second = {"env_steps": 50, "turns": [turn(2.0, 1.0), turn(2.0, 1.0), turn(6.0, 1.0)]}
    assert alternate.numbers(first, first) == {"env_steps_per_second": 50.0, "spread": 1.5}
    rates = alternate.numbers(second, first)
    assert rates["env_steps_per_second"] == 25.0
    assert rates["x_first_by_seconds"] == pytest.approx(1 / 3)
    assert rates["x_first_by_cpu_seconds"] == pytest.approx(1.0)
    assert alternate.numbers({"error": "none"}, first) == {}
    assert "x_first_by_seconds" not in alternate.numbers(second, {"error": "none"})


def turn(seconds, cpu_seconds=None):
    return {"seconds": seconds, "cpu_seconds": cpu_seconds or seconds}


@pytest.mark.slow
def test_rows_are_built_with_changes(quick_compile):
    changes = ["num_envs=2", "rollout_length=3", "policies.shared.learning_rate=1e-3"]
    words, env_steps, call = alternate.build_row("tag_gridworld", changes, small=True)
    assert "2 envs, 3-step rollouts" in words
    assert env_steps == 10 * 2 * 3
    _, metrics = call()
    assert metrics["episodes"].shape == (10,)


@pytest.fixture
def scripts():
    """Return file name -> code of the scripts on the page of baselines."""
    page = Path(__file__).parents[2] / "docs" / "explanation" / "baselines.md"
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", page.read_text(), re.DOTALL)
    return dict(blocks)


def built(code, *arguments):
    """Return what `build` of a script returns."""
    names = {}
    exec(code, names)
    return names["build"](*arguments)


@pytest.mark.slow
def test_random_play_of_gymnax(scripts, quick_compile):
    pytest.importorskip("gymnax")
    _, env_steps, call = built(scripts["gymnax_play.py"], "CartPole-v1", 2)
    assert env_steps == 400
    assert call().shape == ()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [0, 2])
def test_whole_ppo_of_wdjax(seeds, scripts, quick_compile):
    _, env_steps, call = built(scripts["whole_ppo.py"], "wdjax", 2, 3, seeds)
    _, metrics = call()
    assert metrics["episodes"].shape == ((2, 3) if seeds else (3,))
    assert env_steps == 3 * 2 * 128 * (seeds or 1)


def test_settings_match_ppo_py(scripts, monkeypatch):
    """ppo.py and wdjax get the same hyperparameters; 5e5 env steps are 976 whole updates."""
    given = []
    ppo = types.SimpleNamespace(make_train=given.append)
    monkeypatch.setitem(sys.modules, "ppo", ppo)
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        monkeypatch.setitem(sys.modules, name, ppo)
    names = {}
    exec(scripts["whole_ppo.py"], names)
    names["by_purejaxrl"](4, 976)
    learner = names["by_wdjax"](4, 976).__closure__[0].cell_contents
    [settings], config = given, learner.config
    sizes = config.num_envs, config.rollout_length, config.num_updates * config.env_steps_per_update
    assert sizes == tuple(settings[name] for name in ("NUM_ENVS", "NUM_STEPS", "TOTAL_TIMESTEPS"))
    assert settings["TOTAL_TIMESTEPS"] == 976 * 512
    assert config.blocks == 1
    policy = config.policies["agent"]
    network, options = policy.network, policy.options
    assert (network.hidden_sizes, network.shared_trunk) == ((64, 64), False)
    assert network.activation == settings["ACTIVATION"]
    assert policy.learning_rate == ((0, settings["LR"]), (976 * 512, 0))
    assert (policy.max_grad_norm, policy.optimizer_epsilon) == (settings["MAX_GRAD_NORM"], 1e-5)
    assert options.value_clip == options.clip == settings["CLIP_EPS"]
    assert 2 * options.value_coefficient == settings["VF_COEF"]  # ppo.py halves the squared error
    assert options.entropy_coefficient == settings["ENT_COEF"]
    assert (options.gamma, options.gae_lambda) == (settings["GAMMA"], settings["GAE_LAMBDA"])
    minibatches = settings["UPDATE_EPOCHS"], settings["NUM_MINIBATCHES"]
    assert (options.epochs, options.minibatches) == minibatches
