"""Faults that the issue "Plain English" fixes: 35, 36, 39, 40 of FAULTS.md. Each fails until then.

The noise of importing jaxmarl while the site is built (36) has no test: the import alone takes 5 s.
"""

import re
from pathlib import Path

import pytest
import yaml

from wdjax.experiments import cli
from wdjax.train import load_config
from wdjax.train.storage.folder import plain_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REASON = "Plain English"


def read(name):
    return (ROOT / name).read_text(encoding="utf8")


def later(number, words):
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{REASON}: {words} ({number})")


@later(36, "long commands are cut off")
def test_commands_fit_on_a_page():
    texts = [page.read_text(encoding="utf8") for page in PAGES]
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    long = [line for block in blocks for line in block.splitlines() if len(line.partition("   #")[0]) > 86]
    assert not long


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
