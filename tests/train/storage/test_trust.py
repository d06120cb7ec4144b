"""Untrusted runs import no code except from modules that the reader names."""

import dataclasses
import json
import shlex
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
import yaml
from refusals import refusal
from tiny_runs import small_config

from wdjax.experiments import cli
from wdjax.experiments.sweep import load_member
from wdjax.train import Trainer, change_config, load_config, load_run, make_learner, plain_config
from wdjax.train.config.trust import code_named, require_trusted
from wdjax.train.storage.checkpoint import open_checkpoints, restore, save
from wdjax.train.storage.folder import prepare_folder

ENCODER = "policies.agent.network.encoder"
SPLIT = {
    "policies.agent.network.encoder": "deep_sets",
    "policies.agent.network.encoder_options": {"split": "evil:E"},
}
OWN = """
from wdjax.train.encoders import FlatEncoder as E
from wdjax.train.algorithms.ppo import PPO as A
"""


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Create a module on the path. Return a function: was it imported?"""
    (tmp_path / "evil.py").write_text(OWN)
    (tmp_path / "evil_too.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: "evil" in sys.modules
    sys.modules.pop("evil", None)
    sys.modules.pop("evil_too", None)


def strange_run(folder, **changes):
    """Return a run folder with a config.yaml of another author."""
    raw = plain_config(small_config())
    for name, value in (changes or {ENCODER: "evil:E"}).items():
        *path, last = name.split(".")
        inner = raw
        for part in path:
            inner = inner[part]
        inner[last] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(raw))
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {ENCODER: "evil:E"},
        {"policies.agent.algorithm": "evil:A"},
        {"env": "evil:Game"},
        SPLIT,
        {"policies.agent.options": {"deep": [{"er": "evil:E"}]}},
        {ENCODER: "evil.inner:E"},
        {ENCODER: " evil:E"},
        {ENCODER: "wdjaxevil:E"},
        {ENCODER: "evil/../wdjax:E"},
        {ENCODER: ":E"},
    ],
)
def test_all_fields_that_name_code_require_trust(tmp_path, evil, changes):
    message = refusal(load_run, strange_run(tmp_path / "run", **changes))
    assert "--trust" in message
    assert "config.yaml" in message
    assert not evil()


def routes(folder):
    """Return name -> function of the trusted modules, for every way to read a run folder."""
    shared = {"policies.agent.checkpoint": str(folder)}

    def flags(trust):
        return [word for module in trust for word in ("--trust", module)]

    train = [
        "train",
        "cartpole_ppo",
        "--workdir",
        str(folder.parent / "new"),
        "--policies.agent.checkpoint",
    ]

    def command(*words):
        return lambda trust: cli.call(*words, *flags(trust))

    return {
        "load_run": lambda trust: load_run(folder, trust=trust),
        "checkpoint": lambda trust: load_run(f"{folder}@best", trust=trust),
        "load_config": lambda trust: (
            load_config(folder / "config.yaml", trust=trust) and load_run(folder, trust=trust)
        ),
        "warm start": lambda trust: make_learner(small_config(**shared), trust).loaded(),
        "Trainer": lambda trust: Trainer(
            small_config(**shared), folder.parent / "new", quiet=True, trust=trust
        ),
        "eval": command("eval", str(folder)),
        "render": command("render", str(folder)),
        "train": command(*train, str(folder)),
    }


@pytest.mark.parametrize("route", list(routes(Path("runs/a"))))
def test_every_reader_requires_trust_before_importing(tmp_path, evil, route, capsys):
    read = routes(strange_run(tmp_path / "strange"))[route]

    def said(trust):
        try:
            read(trust)
        except SystemExit:
            return capsys.readouterr().err
        except (ValueError, OSError) as error:
            return str(error)

    for trust in ((), ("evi", "evil.inner", "evil_too")):
        message = said(trust)
        assert "'evil'" in message
        assert "--trust evil" in message
        assert not evil()
    assert "no checkpoint in" in said(("evil",))  # accepted
    assert evil()


@pytest.mark.parametrize("command", ["eval", "render", "report", "export", "train"])
def test_error_contains_the_complete_command(tmp_path, evil, command, capsys):
    folder = strange_run(
        tmp_path / "a run", **{ENCODER: "evil:E", "policies.agent.algorithm": "evil_too:A"}
    )
    (folder / "metrics.jsonl").write_text('{"updates": 1, "env_steps": 512}\n')
    words = [command, str(folder)]
    if command == "train":
        words = [
            command,
            "cartpole",
            "--workdir",
            str(tmp_path / "new"),
            "--policies.agent.checkpoint",
            str(folder),
        ]
    with pytest.raises(SystemExit):
        cli.call(*words)
    error = capsys.readouterr().err
    assert ".." not in error
    expected = ["wdjax", *words, "--trust", "evil_too", "--trust", "evil"]
    assert shlex.split(error.split("Full command: ")[1]) == expected


def test_resumed_run_may_use_code_named_by_the_command(tmp_path, evil):
    workdir = strange_run(tmp_path / "run")
    message = refusal(Trainer, small_config(), workdir, resume=True, quiet=True)
    assert "--trust evil" in message
    assert not evil()
    mine = small_config(**{ENCODER: "evil:E"})  # named by the user
    assert Trainer(mine, workdir, resume=True, quiet=True).config == mine
    assert "evil_too" in refusal(
        Trainer, mine, strange_run(tmp_path / "b", **{ENCODER: "evil_too:E"}), True
    )


def test_config_yaml_as_preset_requires_trust_unless_flags_name_the_code(tmp_path, evil, capsys):
    file = strange_run(tmp_path / "run") / "config.yaml"
    with pytest.raises(SystemExit):
        cli.call("train", str(file), "--num-envs", "0")
    assert "--trust evil" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.call("train", str(file), "--num-envs", "0", f"--{ENCODER.replace('_', '-')}=evil:E")
    assert "num_envs = 0" in capsys.readouterr().err
    preset = file.rename(tmp_path / "mine.yaml")
    assert load_config(preset).policies["agent"].network.encoder == "evil:E"


@pytest.mark.slow
def test_checkpoint_with_other_code_requires_trust(tmp_path, evil, monkeypatch):
    with open_checkpoints(tmp_path / "checkpoints", keep=1) as manager:
        save(manager, 1, {"a": jnp.zeros(2)}, {"metrics_size": 0})
    host_state = {"metrics_size": 0, "best_score": None, "config": plain_config(small_config())}
    host_state["config"]["policies"]["agent"]["algorithm"] = "evil:A"
    monkeypatch.setattr("wdjax.train.storage.checkpoint.read_host", lambda *_: host_state)
    with open_checkpoints(tmp_path / "checkpoints", keep=None) as manager:
        message = refusal(restore, manager, manager.latest_step(), None, small_config())
    assert "--trust evil" in message
    assert not evil()


@pytest.mark.parametrize("place", ["sweep.yaml", "members.json"])
def test_sweeps_require_trust(tmp_path, evil, place):
    in_sweep = place == "sweep.yaml"
    folder = strange_run(tmp_path / "sweep", **{ENCODER: "evil:E" if in_sweep else "flat"})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"config": config}))
    turn = folder / "groups" / "000"
    (turn / "checkpoints" / "1").mkdir(parents=True)
    values = {} if in_sweep else {ENCODER: "evil:E"}
    members = {"size": 1, "members": [{"member": 0, "seed": 0, "values": values}]}
    (turn / "members.json").write_text(json.dumps(members))
    assert "--trust evil" in refusal(load_member, folder, 0)
    assert not evil()
    assert "--trust" not in refusal(load_member, folder, 0, trust=["evil"])  # no checkpoint
    assert evil()


def test_changes_require_trust_only_if_read_from_a_folder(evil):
    changes = {ENCODER: "evil:E"}
    assert "--trust evil" in refusal(change_config, small_config(), trust=(), **changes)
    assert not evil()
    mine = change_config(small_config(), **changes)
    assert change_config(mine, trust=(), **changes) == mine


def test_installed_and_announced_code_is_trusted(tmp_path, monkeypatch):
    for name in ("wdjax.train.encoders:FlatEncoder", "flat", "registered"):
        require_trusted("it", {"policies": {"a": {"network": {"encoder": name}}}}, ())
    for env in ("gymnax:CartPole-v1", "jaxmarl:MPE_simple_spread_v3", "cartpole"):
        require_trusted("it", {"env": env}, ())
    announced = {"env": "zoo.worlds:World"}
    package = tmp_path / "site" / "zoo-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: zoo\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[wdjax.envs]\nworld = zoo.worlds:World\n[other]\nx = zoo.secret:y\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    require_trusted("it", announced, ())
    assert "zoo.secret" in refusal(require_trusted, "it", {"env": "zoo.secret:y"}, ())
    # entry points in the current folder are not installed
    monkeypatch.chdir(package.parent)
    assert "zoo.worlds" in refusal(require_trusted, "it", announced, ())


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "evil:E",
        {"policies": 3},
        {"policies": {"a": None}},
        {"env": 4},
        {"policies": {"a": {"network": "flat"}}},
        {"seed": {"env": "evil:E"}},
    ],
)
def test_code_named_accepts_malformed_values(values):
    assert list(code_named(values)) == []


def test_code_named_agrees_for_configurations_and_files():
    config = small_config()
    agent = dataclasses.replace(config.policies["agent"], algorithm="m:A")
    config = dataclasses.replace(config, policies={"agent": agent})
    assert (
        list(code_named(config))
        == list(code_named(plain_config(config)))
        == [("policies.agent.algorithm", "m:A")]
    )


@pytest.mark.parametrize("trust", ["evil", [3], None])
def test_trust_must_be_a_list_of_names(tmp_path, trust):
    prepare_folder(tmp_path / "run", small_config(), resume=False)
    assert "must be a list of module names" in refusal(load_run, tmp_path / "run", trust=trust)


@pytest.mark.parametrize(
    "text", ["", "yes please", "own-env", "own.", "/home/own", "own:Env", "own_env.py"]
)
def test_trust_requires_module_names(text):
    message = refusal(require_trusted, "it", {}, [text])
    assert f"trust = {text!r}: must be a module name" in message
    assert ("Try own_env" in message) == text.endswith(".py")
