"""--deterministic sets its flag before jax starts, and resuming without it warns."""

import dataclasses
import os
import subprocess
import sys

import jax
import pytest
from tiny_runs import small_config

from wdjax.train import Trainer
from wdjax.train import trainer as trainer_module
from wdjax.train.host import start
from wdjax.train.host.determinism import (
    FLAG,
    forgets_determinism,
    is_deterministic,
    make_deterministic,
)

# XLA dumps its options with every program
COMMAND = """
import sys, jax
from wdjax.experiments import cli
from wdjax.train import Trainer
Trainer.train = lambda self: jax.jit(lambda x: x + 1)(1.0)
cli.main(["train", "cartpole", *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--deterministic"], []])
def test_deterministic_flag_applies_to_every_program(flags, tmp_path):
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_dump_to={tmp_path / 'dump'}",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
    }
    command = [sys.executable, "-c", COMMAND, "--workdir", str(tmp_path / "run"), *flags]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    options = list((tmp_path / "dump").rglob("*debug_options*"))
    assert options
    for file in options:
        assert ("xla_gpu_deterministic_ops: true" in file.read_text()) == bool(flags), file


def test_flag_is_added_once_to_other_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_x=1")
    assert not is_deterministic()
    make_deterministic()
    make_deterministic()
    assert os.environ["XLA_FLAGS"].split() == ["--xla_cpu_x=1", FLAG]
    assert is_deterministic()


@pytest.mark.slow
def test_resuming_without_the_flag_warns(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Trainer, "draw", lambda self: None)
    config = small_config(total_env_steps=128, best_metric="none")
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "is_deterministic", lambda: True)
        Trainer(config, tmp_path, quiet=True).train()
    Trainer(config, tmp_path, resume=True).train()
    assert "--deterministic" not in capsys.readouterr().out  # a CPU is always deterministic
    monkeypatch.setattr(start, "forgets_determinism", lambda before: before)
    Trainer(dataclasses.replace(config, total_env_steps=256), tmp_path, resume=True).train()
    assert "this run used --deterministic" in " ".join(capsys.readouterr().out.split())


def test_warning_is_limited_to_gpus_without_the_flag(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert forgets_determinism(True)
    assert not forgets_determinism(False)
    monkeypatch.setenv("XLA_FLAGS", FLAG)
    assert not forgets_determinism(True)
