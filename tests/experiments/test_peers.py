"""Baselines: programs alternate, a failing baseline is reported, settings agree."""

import json
import multiprocessing

import pytest

from wdjax.experiments.benchmarks import growth, peer_programs, peers, purejaxrl
from wdjax.experiments.benchmarks.rows import TRAINING, WORKLOADS
from wdjax.train import make_learner


def test_settings_match_ppo_py():
    """As in the main block of ppo.py, without DEBUG; 5e5 env steps are 976 whole updates."""
    settings, config = purejaxrl.settings_of(4, 976), purejaxrl.config_of(4, 976)
    sizes = config.num_envs, config.rollout_length, config.num_updates * config.env_steps_per_update
    assert sizes == tuple(settings[name] for name in ("NUM_ENVS", "NUM_STEPS", "TOTAL_TIMESTEPS"))
    assert settings["TOTAL_TIMESTEPS"] == 976 * 512
    assert config.blocks == 1
    policy = make_learner(config).config.policies["agent"]
    network = policy.network
    assert (network.hidden_sizes, network.shared_trunk) == ((64, 64), False)
    assert network.activation == settings["ACTIVATION"]
    assert policy.learning_rate == ((0, settings["LR"]), (976 * 512, 0))
    assert (policy.max_grad_norm, policy.optimizer_epsilon) == (settings["MAX_GRAD_NORM"], 1e-5)
    options = policy.options
    assert options.value_clip == options.clip == settings["CLIP_EPS"]
    assert 2 * options.value_coefficient == settings["VF_COEF"]  # ppo.py halves the squared error
    assert options.entropy_coefficient == settings["ENT_COEF"]
    assert (options.gamma, options.gae_lambda) == (settings["GAMMA"], settings["GAE_LAMBDA"])
    assert (options.epochs, options.minibatches) == (
        settings["UPDATE_EPOCHS"],
        settings["NUM_MINIBATCHES"],
    )


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
    for row in ("cartpole_ppo", "cartpole_ppo_256_seeds"):  # sizes as in the suite
        num_envs, _, seeds = peer_programs.PPO[row][0]
        assert (num_envs, seeds) == (WORKLOADS[row].config().num_envs, WORKLOADS[row].num_members())
    assert sum("gymnax" in programs for programs in peer_programs.ROWS.values()) == 10


class Process:
    """Replaces a process: returns scripted answers, and records the order of calls."""

    calls = []  # noqa: RUF012
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
        "dies": [{"words": "dies", "env_steps": 1}, multiprocessing.TimeoutError()],
    }

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def apply_async(self, function, arguments=()):
        if arguments:
            self.name = arguments[1]
            self.answers = iter(self.script[self.name])
        self.calls.append(self.name)
        self.answer = next(self.answers)
        return self

    def get(self, limit):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_programs_run_in_alternation(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Process, "calls", [])
    monkeypatch.setattr(peers, "start_process", Process)
    monkeypatch.setattr(peers, "ROWS", {"row": dict.fromkeys(Process.script)})
    file = tmp_path / "out.json"
    peers.main(["row", "--repeats", "3", "--json", str(file)])
    turns = ["wdjax", "gymnax", "dies", "wdjax", "gymnax", "wdjax", "gymnax"]
    assert Process.calls == ["wdjax", "gymnax", "dead", "dies", *turns]
    ours, theirs, dead, dies = json.loads(file.read_text())
    assert (ours["env_steps_per_second"], theirs["env_steps_per_second"]) == (50.0, 25.0)
    # gymnax's calls take 2, 1 and 1.5 times as long for half of the env steps
    assert theirs["wdjax faster by seconds"] == 3.0
    assert theirs["wdjax faster by cpu_seconds"] == 1.5
    assert dead["error"] == "ImportError: no dead"
    assert dies["error"] == "no answer from its process within 120 s"
    out = capsys.readouterr().out
    assert "row, program: dead, failed: ImportError: no dead" in out
    assert any(
        line.split()[1::2][:3] == ["row", "gymnax", "25.0"]
        for line in out.splitlines()
        if "│" in line
    )


def test_a_missing_folder_is_rejected(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        peers.main(["cartpole_10k", "--peers-path", str(tmp_path / "none")])
    assert ended.value.code == 2
    assert "--peers-path" in capsys.readouterr().err


def test_a_baseline_that_does_not_start_is_reported(monkeypatch):
    def broken(path, small):
        raise RuntimeError("no\n  GPU")

    calls = []
    works = lambda path, small: peer_programs.Built("w", 3, lambda: calls.append(1))  # noqa: E731
    monkeypatch.setattr(peer_programs, "ROWS", {"row": {"broken": broken, "works": works}})
    assert peer_programs.build("row", "broken", None, False) == {"error": "RuntimeError: no GPU"}
    assert peer_programs.build("row", "works", None, False) == {"words": "w", "env_steps": 3}
    assert peer_programs.call()["seconds"] >= 0
    assert len(calls) == 2  # one to warm up


@pytest.mark.slow
@pytest.mark.parametrize("row", ["cartpole_ppo_one_seed", "cartpole_ppo_256_seeds"])
def test_whole_ppo_of_wdjax(row, monkeypatch):
    monkeypatch.setitem(peer_programs.PPO, row, (None, (2, 3, 2 * ("256" in row))))
    program = peer_programs.ROWS[row]["wdjax"](None, True)
    _, metrics = program.call()
    assert metrics["episodes"].shape == ((2, 3) if "256" in row else (3,))
    assert program.env_steps == 3 * 2 * 128 * (2 if "256" in row else 1)


@pytest.mark.slow
def test_gymnax_runs_in_a_new_process(tmp_path):
    pytest.importorskip("gymnax")
    file = tmp_path / "out.json"
    peers.main(["cartpole_10k", "--small", "--repeats", "1", "--json", str(file)])
    programs = json.loads(file.read_text())
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
def test_points_of_growth_have_their_size(curve):
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


def test_slopes_of_growth():
    before, after = {"size": 10, "ms_per_pass": 2.0}, {"size": 1_000, "ms_per_pass": 20.0}
    assert growth.slope(before, after)["slope"] == pytest.approx(0.5)
    assert growth.slope({}, after) == growth.slope(before, {"size": 10, "error": "memory"}) == {}


def test_growth_is_measured_and_drawn(monkeypatch, tmp_path, capsys):
    def measure_program(program, repeats):
        rate = {"ms_per_pass": 2.0, "spread": 0.1, "env_steps_per_second": 3e6}
        return {
            "machine": "abacus (cpu)",
            "compiled_bytes": {"all": 10**6},
            **(rate if repeats else {"error": "full"}),
        }

    monkeypatch.setattr(growth, "measure_program", measure_program)
    monkeypatch.setitem(growth.CURVES, "agents", (2, 5))
    picture = tmp_path / "new" / "growth.png"
    growth.main(["agents", "--small", "--picture", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "abacus" in out
    assert "tag_gridworld, agents: 20 replicas, rollouts of 10" in out
