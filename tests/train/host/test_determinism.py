"""--deterministic sets its flag before jax starts, and resuming without it warns."""

import dataclasses
import os
import subprocess
import sys

import pytest
import yaml
from tiny_runs import small_config

from wdjax.experiments import cli
from wdjax.train import Trainer, make_deterministic
from wdjax.train.host import start
from wdjax.train.storage import switches
from wdjax.train.storage.switches import FLAG, is_deterministic

# XLA dumps its options with every program
COMMAND = """
import sys, jax
from wdjax.experiments import cli
from wdjax.train import Trainer
Trainer.train = lambda self: jax.jit(lambda x: x + 1)(1.0)
cli.main(["train", "cartpole", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_deterministic_flag_applies_to_every_program(tmp_path):
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_dump_to={tmp_path / 'dump'}",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
    }
    command = [sys.executable, "-c", COMMAND, "--workdir", str(tmp_path / "run"), "--deterministic"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    options = list((tmp_path / "dump").rglob("*debug_options*"))
    assert options
    for file in options:
        assert "xla_gpu_deterministic_ops: true" in file.read_text(), file


@pytest.mark.slow
def test_default_is_not_deterministic(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(Trainer, "train", lambda self: trained.append(is_deterministic()))
    cli.call("train", "cartpole", "--workdir", str(tmp_path / "run"))
    assert trained == [False]


def test_flag_is_added_once_to_other_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_x=1")
    assert not is_deterministic()
    make_deterministic()
    make_deterministic()
    assert os.environ["XLA_FLAGS"].split() == ["--xla_cpu_x=1", FLAG]
    assert is_deterministic()


class BeforeCompilingError(Exception):
    """Ends a run after its warnings."""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile", "no_pictures")
def test_resuming_without_the_flag_warns_on_a_gpu(tmp_path, monkeypatch, capsys):
    def end(*_):
        raise BeforeCompilingError

    config = small_config(total_env_steps=128, best_metric="none")
    Trainer(config, tmp_path, quiet=True).train()
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    content["made_with"]["deterministic"] = True
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    longer = dataclasses.replace(config, total_env_steps=2 * 128)
    monkeypatch.setattr(start, "compile_chunk", end)
    for on_cpu in (True, False):  # a CPU is always deterministic
        monkeypatch.setattr(switches, "on_cpu", lambda on_cpu=on_cpu: on_cpu)
        with pytest.raises(BeforeCompilingError):
            Trainer(longer, tmp_path, resume=True).train()
        output = " ".join(capsys.readouterr().out.split())
        assert ("Warning: deterministic = False, was True" in output) == (not on_cpu)


def test_warning_is_limited_to_gpus_without_the_flag(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", FLAG)
    stored = switches.switches()
    assert switches.switch_warnings(stored) == []
    monkeypatch.setenv("XLA_FLAGS", "")
    assert switches.switch_warnings(stored) == []
    monkeypatch.setattr(switches, "on_cpu", lambda: False)
    (warning,) = switches.switch_warnings(stored)
    assert warning.startswith("Warning: deterministic = False, was True: ")
