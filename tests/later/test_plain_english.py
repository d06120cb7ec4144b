"""Faults that the issue "Plain English" fixes: 39 of FAULTS.md. Each fails until then."""

import pytest
import yaml

from wdjax.experiments import cli
from wdjax.train import load_config
from wdjax.train.storage.folder import plain_config

REASON = "Plain English"


def later(number, words):
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{REASON}: {words} ({number})")


@later(39, "equal env_params are listed as different")
def test_diff_does_not_list_env_params_at_their_defaults(tmp_path, capsys):
    complete = plain_config(load_config("cartpole_ppo"))
    complete["env_params"] = {"length": 0.5}  # the default
    (tmp_path / "same.yaml").write_text(yaml.safe_dump(complete))
    cli.call("diff", "cartpole_ppo", str(tmp_path / "same.yaml"))
    assert "env_params" not in capsys.readouterr().out


@later(39, "the memory of WarpDrive's sizes is not named")
def test_list_names_the_memory_of_large_presets(capsys):
    cli.call("list")
    assert "GB" in capsys.readouterr().out
