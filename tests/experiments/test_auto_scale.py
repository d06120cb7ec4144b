"""Auto-scale: the sizes that are tried and chosen, by hand, and small measurements."""

import dataclasses

import jax
import pytest

from wdjax.experiments import auto_scale as module
from wdjax.experiments.auto_scale import (
    Trial,
    auto_scale,
    in_words,
    measure,
    trial_table,
    what_changes,
)
from wdjax.experiments.cli import main
from wdjax.train import Trainer, load_config
from wdjax.train.devices import memory
from wdjax.train.devices.memory import bytes_free, host_memory

CONFIG = load_config("cartpole", num_envs=8, rollout_length=16, total_env_steps=10**9,
    updates_per_chunk=1,
                     **{"policies.agent.network.hidden_sizes": [8]})  # fmt: skip


pytestmark = pytest.mark.usefixtures("quick_compile")


def replay(speeds):
    """Return an attempt with given speeds of (num_envs, rollout_length); None: does not fit."""
    asked = []

    def attempt(config, budget):
        size = (config.num_envs, config.rollout_length)
        asked.append(size)
        speed = speeds[size]
        return Trial(
            *size,
            memory=budget,
            env_steps_per_second=speed,
            words="" if speed else "needs too much",
        )

    return attempt, asked


def sizes_of(speeds):
    return {(num_envs, 16): speed for num_envs, speed in speeds.items()}


def test_a_size_is_doubled_while_it_is_faster():
    attempt, asked = replay(sizes_of({8: 100.0, 16: 190.0, 32: 300.0, 64: 310.0}))
    found, trials = auto_scale(CONFIG, budget=1, attempt=attempt)
    assert found == dataclasses.replace(CONFIG, num_envs=32)  # 310 is less than 5% faster
    assert [n for n, _ in asked] == [trial.num_envs for trial in trials] == [8, 16, 32, 64]


def test_the_search_ends_at_the_first_size_that_does_not_fit():
    attempt, asked = replay(sizes_of({8: 100.0, 16: 200.0, 32: None}))
    found, trials = auto_scale(CONFIG, budget=1, attempt=attempt)
    assert found.num_envs == 16
    assert len(asked) == 3
    assert trials[-1].words == "needs too much"
    attempt, _ = replay(sizes_of({8: None}))
    with pytest.raises(ValueError, match=r"num_envs = 8: must be another size \(needs too much\)"):
        auto_scale(CONFIG, budget=1, attempt=attempt)


def test_rollout_length_is_scaled_on_request():
    speeds = {
        (8, 16): 100.0,
        (16, 16): 200.0,
        (32, 16): None,
        (16, 32): 300.0,
        (16, 64): 300.0,
    }
    attempt, _ = replay(speeds)
    found, _ = auto_scale(CONFIG, budget=1, attempt=attempt)
    assert (found.num_envs, found.rollout_length) == (16, 16)
    found, trials = auto_scale(CONFIG, rollout=True, budget=1, attempt=attempt)
    assert (found.num_envs, found.rollout_length) == (16, 32)
    assert [(trial.num_envs, trial.rollout_length) for trial in trials] == [
        (8, 16), (16, 16), (32, 16), (16, 32), (16, 64)
    ]  # fmt: skip


def test_a_run_keeps_a_minimum_of_updates():
    attempt, asked = replay(sizes_of({8: 1.0, 16: 2.0, 32: 4.0}))
    config = dataclasses.replace(CONFIG, total_env_steps=20 * 16 * 16)  # 20 updates of 16 replicas
    found, trials = auto_scale(config, budget=1, attempt=attempt)
    assert found.num_envs == 16
    assert len(asked) == 2
    assert trials[-1] == Trial(32, 16, words="not run: leaves only 10 updates in the run")


def test_the_table_lists_trials_and_changes():
    attempt, _ = replay(sizes_of({8: 1e6, 16: 2e6, 32: None}))
    found, trials = auto_scale(CONFIG, budget=2_500_000, attempt=attempt)
    cells = [list(column.cells) for column in trial_table(trials, found).columns]
    assert cells == [
        ["8", "16", "32"], ["16"] * 3, ["2.5 MB"] * 3, ["1,000,000", "2,000,000", ""],
        ["", "<- chosen", "needs too much"],
    ]  # fmt: skip
    assert "256 env steps instead of 128" in what_changes(CONFIG, found)
    assert what_changes(CONFIG, CONFIG) == "The number of env steps per update is unchanged."
    assert in_words(3_400_000_000) == "3.40 GB"


# --- measurements ---


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.01)


@pytest.mark.slow
def test_only_sizes_that_fit_are_run(quick, monkeypatch):
    trial = measure(CONFIG, 10**9)
    assert trial.words == ""
    assert trial.env_steps_per_second > 0
    state = 8 * (4 + 4) * 4  # bytes of the replicas and observations of cartpole
    assert state < trial.memory < 10**9
    monkeypatch.setattr(module, "time_of", lambda *_: pytest.fail("it was run"))
    larger = measure(dataclasses.replace(CONFIG, rollout_length=160), trial.memory)
    assert larger.words.endswith("MB available")
    assert larger.memory > trial.memory + 9 * state  # a rollout is kept whole


@pytest.mark.slow
def test_out_of_memory_is_a_failed_trial(quick, monkeypatch):
    def run_out(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")

    monkeypatch.setattr(module, "time_of", run_out)
    assert measure(CONFIG, 10**9).words == "out of memory"

    def break_down(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(module, "time_of", break_down)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        measure(CONFIG, 10**9)


def test_invalid_sizes_are_not_compiled(monkeypatch):
    monkeypatch.setattr(module, "compile_run", lambda *_: pytest.fail("it was compiled"))
    trial = measure(dataclasses.replace(CONFIG, num_envs=9, num_blocks=8), 10**9)
    assert trial.words == "num_blocks = 8: must be a divisor of num_envs = 9"


def test_the_budget_is_a_share_of_free_memory(monkeypatch):
    class Device:
        def memory_stats(self):
            return stats

    monkeypatch.setattr(module.jax, "local_devices", lambda: [Device()])
    monkeypatch.setattr(memory, "host_memory", lambda: 500)  # other programs change the real one
    stats = None  # as on a CPU
    assert bytes_free() == 400
    stats = {"bytes_limit": 1_000, "bytes_in_use": 200}
    assert bytes_free() == 640


def test_the_memory_of_this_machine_is_known():
    assert 0 < host_memory() < 2**50


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    with pytest.raises(
        ValueError, match="--auto-scale = True: must be omitted in multi-process runs"
    ):
        auto_scale(CONFIG)


@pytest.mark.slow
def test_the_command_stores_the_chosen_size(tmp_path, quick, capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "draw", lambda self: None)  # pictures take long
    monkeypatch.setattr(module, "time_of", lambda run, state, size: float(size))  # 1 s per update
    arguments = [
        "train", "cartpole_ppo", "--workdir", str(tmp_path / "run"), "--auto-scale", "--num-envs",
        "4",
        "--rollout-length", "16", "--updates-per-chunk", "1",
        "--policies.agent.network.hidden-sizes", "8",
        "--best-metric", "none", "--total-env-steps", str(20 * 8 * 16),
    ]  # fmt: skip
    main(arguments)
    found = load_config(tmp_path / "run" / "config.yaml")
    assert found.num_envs == 8  # 16 would leave 10 updates
    said = " ".join(capsys.readouterr().out.split())
    assert "leaves only 10 updates" in said
    assert "<- chosen" in said
    main([*arguments, "--resume"])  # the size of the run that is there, without another search
    assert "chosen" not in capsys.readouterr().out
    assert load_config(tmp_path / "run" / "config.yaml") == found
