"""The algorithm of a team on the command line, in `load_config` and in the folder of a run."""

from pathlib import Path

import pytest
import yaml

from wdjax.experiments.cli import main
from wdjax.train import change_config, load_config, plain_config

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
PRESET = {
    "env": "match_env:Match",
    "num_envs": 4,
    "rollout_length": 6,
    "total_env_steps": 48,
    "policies": {"caller": {}, "answerer": {}},
    "teams": {
        "pair": {"policies": ["caller", "answerer"], "algorithm": "vdn:VDN", "gamma": 0.5},
    },
}


@pytest.fixture
def preset(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(CLIENTS)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "match.yaml"
    path.write_text(yaml.safe_dump(PRESET))
    return path


@pytest.mark.slow
def test_a_flag_changes_the_algorithm_of_a_team(preset, capsys):
    arguments = ["--teams.pair.algorithm", "mappo:MAPPO", "--teams.pair.epochs", "3"]
    assert not main(["train", str(preset), *arguments, "--dry-run"])
    text = capsys.readouterr().out
    assert "teams.pair.algorithm: mappo:MAPPO" in text
    assert "teams.pair.epochs: 3" in text
    assert "teams.pair.gamma: 0.5" in text
    assert "policies.caller.algorithm" not in text
    assert "caller: mappo:MAPPO" in text


def test_a_team_gives_its_policies_the_algorithm(preset):
    config = load_config(preset)
    assert config.policy("caller").algorithm == "vdn:VDN"
    plain = plain_config(config)
    assert "algorithm" not in plain["policies"]["caller"]
    assert load_config(plain) == config
    changes = {"teams.pair.algorithm": "mappo:MAPPO", "teams.pair.epochs": 2}
    changed = change_config(config, **changes)
    assert changed == load_config(plain, **changes) == load_config(preset, **changes)
    options = changed.policy("answerer").options
    assert (options.gamma, options.epochs) == (0.5, 2)


def test_a_policy_of_a_team_keeps_its_own_algorithm_out(preset):
    words = "policies.caller.algorithm = 'A2C': must be left out, as policies.caller belongs to"
    with pytest.raises(ValueError, match=words):
        load_config(preset, **{"policies.caller.algorithm": "A2C"})


@pytest.mark.slow
def test_the_folder_of_a_run_is_read_again(preset, capsys, quick_compile):
    run = ["train", str(preset), "--workdir", "runs/a", "--no-pictures"]
    run += ["--teams.pair.algorithm", "mappo:MAPPO"]
    assert not main(run)
    assert "algorithm" not in Path("runs/a/config.yaml").read_text().partition("teams:")[0]
    assert not main([*run, "--total-env-steps", "72", "--resume"])
