"""Comparison rows: configurations, stored results, intervals and the page."""

import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.experiments.over_seeds import bootstrap_interval, interval_of_mean, plain_mean
from wdjax.experiments.reference.peers import ours, run
from wdjax.experiments.reference.peers.ours import make_config, run_ours
from wdjax.experiments.reference.peers.page import newest, page, read_entries, scores_by_seed
from wdjax.experiments.reference.peers.programs import (
    GREEDY,
    RETURN,
    SAMPLED,
    TRAINING,
    WON,
    Ours,
    Task,
    Theirs,
)
from wdjax.experiments.reference.peers.run import append, main, parse
from wdjax.experiments.reference.peers.tasks import TASKS
from wdjax.experiments.reference.peers.theirs import (
    curves,
    last_mean,
    load_script,
    per_update,
    read_config,
    run_theirs,
    with_one_done,
)

OURS = [
    (name, label)
    for name, task in TASKS.items()
    for label, program in task.programs.items()
    if isinstance(program, Ours)
]


def entry(label, seeds, training, seconds=10.0, machine="NVIDIA H100 (gpu), jax 0.11.2", **fields):
    return {
        "label": label, "date": "2026-11-26", "command": "python", "seeds": seeds,
        "env_steps": 500_000, "changes": {}, "run_seconds": seconds, "machine": machine,
        "scores": {RETURN: {TRAINING: training, GREEDY: training}}, **fields,
    }  # fmt: skip


def test_the_interval_of_the_mean_by_hand():
    assert plain_mean(np.array([1.0, 2.0, 6.0])) == 3
    assert bootstrap_interval(np.array([1.0, 3.0]), plain_mean) == (1, 3)
    # the mean of n draws of 0 or 1 is binomial: 3 of 10 and 9 of 10 are the quantiles
    assert bootstrap_interval(np.array([0.0, 1.0] * 5), plain_mean) == (0.2, 0.8)
    assert interval_of_mean([5.0, math.nan], plain_mean)[0] == 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:OvercookedV2:DeprecationWarning")
def test_every_configuration_loads():
    for library in ("gymnax", "jaxmarl"):
        pytest.importorskip(library)
    for name, label in OURS:
        program = TASKS[name].programs[label]
        # smacv2 as 2s3z, Asterix as Breakout; Jumanji: `test_games_of_jumanji_are_trained`
        if not any(word in name for word in ("smacv2", "asterix", "rware", "lbf")):
            config = make_config(program, TASKS[name].env_steps, {})
            assert set(program.policies) <= set(config.policies)


def test_a_row_has_one_program_of_others():
    with pytest.raises(ValueError, match="must contain one Theirs"):
        Task("CartPole", "PQN", 1, {}, ())


def test_results_are_appended(tmp_path):
    path = tmp_path / "results" / "cartpole_pqn.yaml"
    append(path, entry("wdjax PQN", [30, 31], [1.0, 2.0]))
    append(path, entry("wdjax PQN", [31, 32], [3.0, 4.0]))
    append(path, entry("wdjax PQN", [33], [9.0], changes={"NUM_ENVS": 2}))
    entries = read_entries(path)
    assert [one["seeds"] for one in entries] == [[30, 31], [31, 32]]
    used = newest(entries, "wdjax PQN")
    assert scores_by_seed(used, RETURN, TRAINING) == {30: 1, 31: 3, 32: 4}
    assert newest([*entries, entry("wdjax PQN", [30, 31, 32], [5.0] * 3)], "wdjax PQN") == [
        entry("wdjax PQN", [30, 31, 32], [5.0] * 3)
    ]


def test_the_page_shows_means_intervals_and_seconds():
    entries = [
        entry("wdjax PQN", [30, 31], [1.0, 3.0], 10.0),
        entry("purejaxql PQN", [30, 31], [2.0, math.nan], 40.0),
    ]
    text = page({"cartpole_pqn": entries})
    first, second = [
        line for line in text.splitlines() if line.startswith("| [CartPole") or "|  |" in line
    ]
    assert "wdjax PQN: 500 k env steps, 2 seeds" in first
    assert (
        "| return, training | 2 [1, 3] | 2 (1 of 2 seeds without a number) | 10 / 40 | 0.25 |"
        in first
    )
    assert "| return, greedy | 2 [1, 3] |" in second
    assert "peers cartpole_pqn --seeds 2 --first-seed 30" in text
    assert "0.25" not in page(
        {"cartpole_pqn": [entries[0], entry("purejaxql PQN", [30], [2.0], 40.0)]}
    )
    assert "No results" in page({})


def test_the_page_shows_published_results():
    own = entry("wdjax MAPPO", [30, 31], [1.0, 3.0], 10.0)
    own["scores"][RETURN][SAMPLED] = [4.0, 6.0]
    text = page({"rware_mappo": [own]})
    assert "2 seeds | return, sampled | 5 [4, 6] | 96 [86, 106] | 10 | - |" in text
    assert "Published: [chart of Mava](https://github.com/instadeepai/Mava/" in text


def test_published_results_are_not_programs(capsys):
    with pytest.raises(SystemExit):
        parse(["rware_mappo", "--programs", "Mava MAPPO"])
    assert "unknown program 'Mava MAPPO': did you mean 'wdjax MAPPO'" in capsys.readouterr().err
    assert parse(["rware_mappo"]).programs == ["wdjax MAPPO"]


def test_scores_of_steps_in_which_an_episode_ended():
    returns = jnp.array(
        [[[1.0, 9.0], [3.0, 5.0]], [[2.0, 2.0], [4.0, 4.0]]]
    )  # [updates, T, agents]
    ended = jnp.array([[[True, False], [True, True]], [[False, False], [True, True]]])
    np.testing.assert_allclose(per_update(returns, ended, None), [3, 4])
    np.testing.assert_allclose(per_update(returns, ended, 1), [2, 4])
    np.testing.assert_allclose(per_update(returns, None, None), [4.5, 3])
    metrics = {"returned_episode_returns": returns, "returned_episode": ended}
    tests = {"test_returned_won_episode": jnp.array([0.5, 1.0])}
    program = TASKS["cartpole_pqn"].programs["purejaxql PQN"]
    found = curves({**metrics, **tests}, program)
    assert found[RETURN][TRAINING].tolist() == [3, 4]
    assert found[WON][GREEDY].tolist() == [0.5, 1]


def test_training_scores_are_means_over_the_last_updates():
    values = np.arange(100.0)[None]
    assert last_mean(values) == 98.5
    assert math.isnan(last_mean(np.array([[1.0, 2.0, np.nan]]))[0])


SCRIPT = """
import hydra
import jax.numpy as jnp

def make_train(config):
    config["NUM_UPDATES"] = config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]
    def train(key):
        score = key[1] + jnp.arange(config["NUM_UPDATES"]) * config["RATE"]
        names = "returned_episode_returns", "test/returned_episode_returns"
        return {"metrics": {name: score for name in names}}
    return train

@hydra.main(version_base=None)
def main(config):
    raise RuntimeError
"""


def test_a_script_of_others_trains_all_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "train_it.py").write_text(SCRIPT)
    config = {"NUM_STEPS": 2, "NUM_ENVS": 4, "RATE": 1.0, "TOTAL_TIMESTEPS_DECAY": 1}
    edit = ("key[1] +", "100 * key[1] +")
    program = Theirs("library", "train_it.py", config, {"RATE": 2.0}, (edit,), factor=3.0)
    assert read_config(program, tmp_path, 40)["TOTAL_TIMESTEPS_DECAY"] == 40
    result = run_theirs(program, tmp_path, [7, 8], 40, {"NUM_ENVS": 2})
    assert result["trained_env_steps"] == 40
    last = [3 * (700 + 18), 3 * (800 + 18)]
    assert result["scores"] == {RETURN: {TRAINING: last, GREEDY: last}}
    assert result["curve"][0] == 3 * 750
    assert "hydra" not in sys.modules


def test_steps_of_gymnax_report_one_done():
    info = {"discount": 1.0, "final_observation": 0.0, "terminated": True, "truncated": False}
    step = with_one_done(lambda: (0, 1, 2.0, np.False_, np.True_, info))
    assert step() == (0, 1, 2.0, True, {"discount": 1.0})


def test_an_edit_must_occur_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "script_of_others.py"
    script.write_text("a = 1\nb = 1\n")
    assert load_script(script, [("a = 1", "a = 2")]).a == 2
    with pytest.raises(ValueError, match="2 times"):
        load_script(script, [("= 1", "= 2")])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cartpol_pqn"], "cartpole_pqn"),
        (["cartpole_pqn", "--programs", "wdjax PPO"], "wdjax PQN"),
        (["cartpole_pqn", "--peers", "/nowhere"], "checkout purejaxql"),
        ([], "TASK"),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    with pytest.raises(SystemExit):
        parse(arguments)
    assert words in capsys.readouterr().err


@pytest.fixture
def few_episodes(monkeypatch):
    monkeypatch.setattr(ours, "EPISODES", 8)


@pytest.mark.slow
def test_a_small_run_is_stored(tmp_path, monkeypatch, in_this_process, few_episodes, quick_compile):
    monkeypatch.setattr(run, "in_new_process", in_this_process)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a run changes it
    pytest.importorskip("gymnax")
    main(["cartpole_pqn", "--programs", "wdjax PQN", "--seeds", "2", "--env-steps", "4096",
          "--results", str(tmp_path)])  # fmt: skip
    [stored] = read_entries(tmp_path / "cartpole_pqn.yaml")
    assert stored["seeds"] == [30, 31]
    assert stored["trained_env_steps"] == 4096
    for when in (TRAINING, SAMPLED, GREEDY):
        assert len(stored["scores"][RETURN][when]) == 2
    assert "wdjax PQN: 4.096 k env steps, 2 seeds" in page({"cartpole_pqn": [stored]})


@pytest.mark.slow
def test_games_won_are_counted(few_episodes, quick_compile):
    pytest.importorskip("jaxmarl")
    program = TASKS["smax_2s3z_mappo"].programs["wdjax MAPPO"]
    small = {
        "num_envs": 4,
        "rollout_length": 8,
        "env_params": {**program.preset["env_params"], "scenario": "3m"},
    }
    scores = run_ours(program, [30], 64, small)["scores"]
    assert 0 <= scores[WON][SAMPLED][0] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rware_mappo", "lbf_mappo"])
def test_games_of_jumanji_are_trained(name, few_episodes, quick_compile):
    pytest.importorskip("jumanji")
    program = TASKS[name].programs["wdjax MAPPO"]
    params = {**program.preset["env_params"], "time_limit": 10}
    small = {"num_envs": 4, "rollout_length": 16, "env_params": params}
    scores = run_ours(program, [30], 128, small)["scores"]
    assert np.isfinite([scores[RETURN][when] for when in (TRAINING, SAMPLED, GREEDY)]).all()
