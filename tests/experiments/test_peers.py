"""Peers and results: programs take turns, a peer that cannot be had is a row in words, and both are counted alike."""

import json
import math
import types

import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.experiments.benchmarks import growth, peer_programs, peers, purejaxrl, results
from wdjax.experiments.benchmarks.rows import TRAINING, WORKLOADS
from wdjax.train import load_config, make_learner
from wdjax.train.load import change_config

THEIRS = {  # as the main block of ppo.py has it, but for DEBUG; 5e5 env steps are 976 whole updates
    "LR": 2.5e-4, "NUM_ENVS": 4, "NUM_STEPS": 128, "TOTAL_TIMESTEPS": 976 * 512, "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": "CartPole-v1", "ANNEAL_LR": True,
}  # fmt: skip


def test_own_numbers_are_those_of_ppo_py():
    config = purejaxrl.own_numbers()
    assert purejaxrl.as_purejaxrl(config) == THEIRS
    policy = config.policies["agent"]
    assert (policy.network.hidden_sizes, policy.network.shared_trunk, policy.value_clip) == (
        (64, 64),
        False,
        0.2,
    )
    assert (policy.learning_rate[-1][1], policy.optimizer_epsilon, config.blocks) == (0, 1e-5, 1)
    large = purejaxrl.as_purejaxrl(purejaxrl.own_numbers(10_000, 4))
    assert large == {**THEIRS, "NUM_ENVS": 10_000, "TOTAL_TIMESTEPS": 4 * 1_280_000}


def test_rows_of_peers_are_rows_of_the_suite():
    assert set(peer_programs.ROWS) - set(peer_programs.PPO) <= set(WORKLOADS)
    for row, programs in peer_programs.ROWS.items():
        own = (
            ["wdjax"]
            if row in peer_programs.PPO or TRAINING in WORKLOADS[row].tiers
            else ["wdjax", "wdjax.play"]
        )
        assert list(programs)[: len(own)] == own
        assert len(programs) > len(own)
    for row in ("cartpole_ppo", "cartpole_ppo_256_seeds"):  # of the sizes of the suite's
        num_envs, _, seeds = peer_programs.PPO[row][0]
        assert (num_envs, seeds) == (WORKLOADS[row].config().num_envs, WORKLOADS[row].num_members())
    assert sum("gymnax" in programs for programs in peer_programs.ROWS.values()) == 10


class Scripted:
    """Stands for a process: answers as a script says, and writes down in what order it was asked."""

    asked: list = []  # noqa: RUF012
    script = {  # noqa: RUF012
        "wdjax": [
            {"words": "a", "env_steps": 100},
            *({"seconds": s, "cpu_seconds": 2 * s} for s in (1.0, 2.0, 4.0)),
        ],
        "gymnax": [
            {"words": "b", "env_steps": 50},
            *({"seconds": s, "cpu_seconds": s} for s in (2.0, 2.0, 6.0)),
        ],
        "dead": [{"error": "ImportError: no dead"}],
        "dies": [
            {"words": "dies", "env_steps": 1},
            *[{"error": "its process ended with status -9"}] * 3,
        ],
    }

    def __init__(self, path):
        self.process, self.waiting = types.SimpleNamespace(poll=lambda: None), []
        self.answers = None

    def ask(self, row, name, small):
        self.asked.append(name)
        self.answers = self.answers or iter(self.script[name])

    def answer(self):
        return next(self.answers)

    def close(self):
        pass


def test_programs_take_turns(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Scripted, "asked", [])
    monkeypatch.setattr(peers, "Worker", Scripted)
    monkeypatch.setattr(peers, "ROWS", {"row": dict.fromkeys(Scripted.script)})
    file = tmp_path / "out.json"
    peers.main(["row", "--repeats", "3", "--json", str(file)])
    assert Scripted.asked == ["wdjax", "gymnax", "dead", "dies", *["wdjax", "gymnax", "dies"] * 3]
    ours, theirs, dead, dies = json.loads(file.read_text())["rows"]
    assert (ours["env_steps_per_second"], theirs["env_steps_per_second"]) == (50.0, 25.0)
    # by turns a call takes 2, 1 and 1.5 times as long, and is half of the work
    assert theirs["wdjax faster by seconds"] == 3.0
    assert theirs["wdjax faster by cpu_seconds"] == 1.5
    assert (dead["error"], dies["error"]) == (
        "ImportError: no dead",
        "its process ended with status -9",
    )
    out = capsys.readouterr().out
    assert "row, dead: ImportError: no dead" in out
    assert any(
        line.split()[1::2][:3] == ["row", "gymnax", "25.0"]
        for line in out.splitlines()
        if "│" in line
    )


def test_a_folder_that_is_not_there_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        peers.main(["cartpole_10k", "--peers-path", str(tmp_path / "none")])
    assert ended.value.code == 2
    assert "--peers-path" in capsys.readouterr().err


def test_a_peer_that_does_not_start_is_told(monkeypatch):
    def broken(path, small):
        raise RuntimeError("no\n  GPU")

    calls = []
    works = lambda path, small: peer_programs.Built("w", 3, lambda: calls.append(1))  # noqa: E731
    monkeypatch.setattr(
        peer_programs, "ROWS", {"row": {"broken": broken, "works": works}, "next": {"works": works}}
    )
    built = {}
    assert peer_programs.first(built, "row", "broken", None, False) == {
        "error": "RuntimeError: no GPU"
    }
    assert peer_programs.first(built, "row", "works", None, False) == {"words": "w", "env_steps": 3}
    assert peer_programs.timed(built["row", "works"])["seconds"] >= 0
    assert len(calls) == 2  # one to warm up
    peer_programs.first(built, "next", "works", None, False)
    assert list(built) == [("next", "works")]  # the last row's are forgotten


def test_ended_episodes_of_purejaxrl():
    returned = jnp.array(
        [[[10.0, 3.0], [10.0, 20.0]], [[1.0, 2.0], [3.0, 4.0]]]
    )  # [updates, steps, replicas]
    over = jnp.array([[[True, False], [False, True]], [[False, False], [False, False]]])
    means, numbers = purejaxrl.ended(returned, over)
    np.testing.assert_array_equal(means, [15.0, np.nan])
    np.testing.assert_array_equal(numbers, [2, 0])


def test_time_to_a_level():
    """Three seeds of ten updates: reached at the sixth, at the ninth and never; the window is of five."""
    config = load_config(
        "cartpole_ppo", num_envs=1, rollout_length=8, total_env_steps=80, devices=1
    )
    returns = np.zeros((3, 10))
    returns[0, 1:], returns[1, 4:] = 475.0, 475.0
    returns[2, 5] = np.nan
    episodes = np.ones((3, 10))
    episodes[2, 5] = 0
    run = results.Run(lambda: jnp.zeros(()), 7.0, lambda _: (returns, episodes))
    found = results.time_to(run, config, 475.0)
    assert found["updates"] == [6, 9, math.inf]
    assert found["share"] == pytest.approx(2 / 3)
    assert found["steps"] == {"median": 72.0, "slowest": math.inf}
    assert found["seconds"]["median"] == pytest.approx(0.9 * found["program_seconds"])
    shown = results.cells({"row": "r", "program": "p", "seeds": 3, **found})
    assert shown[3:6] == ["67%", "72.0", "never"]
    assert shown[7:10] == ["never", "never", "7.0"]


def test_levels_are_those_of_the_learning_table():
    assert {row: task.level for row, task in results.TASKS.items()} == {
        "cartpole": 475.0, "acrobot": -89.25, "mountain_car": -120.75,
    }  # fmt: skip
    assert all(
        any(name.startswith("PureJaxRL") for name in task.runs) for task in results.TASKS.values()
    )


def test_a_missing_peer_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ppo", None)  # as if it were nowhere
    purejaxrl.load.cache_clear()
    parsed = types.SimpleNamespace(peers_path=None)
    found = results.reach("PureJaxRL", purejaxrl.own_numbers(), 475.0, 1, parsed)
    assert "ppo" in found["error"]
    assert results.cells({"row": "r", "program": "p", **found})[3] == "-"


@pytest.mark.slow
def test_runs_of_wdjax_alone_and_side_by_side():
    config = change_config(purejaxrl.own_numbers(num_updates=3), num_envs=2, rollout_length=64)
    config = change_config(config, total_env_steps=3 * config.env_steps_per_update)
    for seeds in (0, 2):
        run = purejaxrl.our_run(config, seeds)
        returns, episodes = run.curve(run.call())
        assert returns.shape == episodes.shape == (seeds or 1, 3)
        assert episodes.sum() > 0
        assert 8 < np.nanmean(returns) < 100


@pytest.mark.slow
def test_gymnax_in_a_process_of_its_own(tmp_path):
    pytest.importorskip("gymnax")
    file = tmp_path / "out.json"
    peers.main(["cartpole_10k", "--small", "--repeats", "1", "--json", str(file)])
    programs = json.loads(file.read_text())["rows"]
    assert [program["program"] for program in programs] == ["wdjax", "wdjax.play", "gymnax"]
    assert all(program["env_steps"] == 200_000 for program in programs)


@pytest.mark.parametrize("number", growth.CURVES["policies"])
def test_policies_share_all_agents_evenly(number):
    learner = make_learner(
        growth.config_of("policies", number, small=True)
    )  # refuses an agent of two, or of none
    assert [policy.assignment.num_agents for policy in learner.setup.policies.values()] == [
        16 // number
    ] * number


@pytest.mark.parametrize("curve", growth.CURVES)
def test_points_of_growth_are_what_they_say(curve):
    for size in growth.CURVES[curve]:
        config = growth.config_of(curve, size)
        agents = config.env_params.get("num_taggers", 0) + 1
        values = {
            "replicas": config.num_envs,
            "rollout_length": config.rollout_length,
            "agents": agents,
        }
        assert (values | {"policies": len(config.policies)})[curve] == size
    assert str(size) not in growth.title_of(curve, config).replace(",", "")


def point(curve, size, ms):
    return {
        "curve": curve,
        "size": size,
        "ms_per_pass": ms,
        "bytes": 10**6 * size,
        "title": "a game: of one kind",
    }


def test_slopes_of_growth():
    before, there = point("agents", 10, 2.0), point("agents", 1_000, 20.0)
    assert growth.slope([before], there)["slope"] == pytest.approx(0.5)
    assert growth.slope([], there) == growth.slope([point("policies", 1, 1.0)], there) == {}
    assert growth.slope([{**before, "error": "memory"}], there) == {}


def test_growth_is_drawn_again(tmp_path, capsys):
    stored, picture = tmp_path / "growth.json", tmp_path / "new" / "growth.png"
    rate = {"spread": 0.1, "env_steps_per_second": 3e6}
    rows = [{**point("agents", size, size / 4), **rate} for size in (1, 10)]
    rows.append({**rows[1], "size": 99, "error": "full"})
    stored.write_text(json.dumps({"machine": "abacus (cpu)", "rows": rows}))
    growth.main(["--redraw", str(stored), "--picture", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "abacus" in out
    assert "full" in out
