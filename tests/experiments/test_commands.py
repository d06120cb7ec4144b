"""Commands without training: list, diff, completion, --dry-run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from quick import quick_environment

from wdjax.experiments.cli import call, cost_of, main
from wdjax.experiments.commands.diff import differing
from wdjax.experiments.commands.dry_run import changed_fields, dry_run
from wdjax.experiments.commands.help import help_topic
from wdjax.train import change_config, list_presets, load_config, load_run, plain_config


@pytest.fixture(autouse=True)
def no_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize(("header", "steps", "words"), [
    ("# A game.\n#\n# Costs: about 6 s on one H200, 12 minutes on 2 CPU cores.\n", 150_000,
     "150,000 env steps; about 6 s on one H200, 12 minutes on 2 CPU cores"),
    ("# A game.\n# Costs: 1.5 s on one H200,\n# 2 h on a CPU. Expected: a return of 3.\n", None,
     "1,000,000 env steps; 1.5 s on one H200, 2 h on a CPU"),
    ("# A game.\n# Costs: 2 h on a CPU. Quick version:\n# small_one.\n", 20,
     "20 env steps; 2 h on a CPU; quick version: small_one"),
    ("# A game. Expected: 475.\n", 20, "20 env steps"),
    ("# A game.\nx: 1\n# Costs: not in the header.\n", 20, "20 env steps"),
])  # fmt: skip
def test_list_shows_the_cost_of_a_preset(tmp_path, header, steps, words):
    file = tmp_path / "preset.yaml"
    file.write_text(
        header + ("" if steps is None else f"total_env_steps: {steps}\n") + "env: cartpole\n"
    )
    assert cost_of(file) == words


def a_run(folder, metrics, **changes):
    raw = {"env": "own:Game", "policies": {"agent": {"gamma": 0.9}}, "num_envs": 8, **changes}
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"wdjax": "0.1", **raw}))
    (folder / "metrics.jsonl").write_text(metrics)
    return str(folder)


def test_diff_lists_differences_without_imports(tmp_path, capsys):
    first = a_run(tmp_path / "a", '{"env_steps": 8, "agent/episode_return": 1.5, "loss": 3}\n')
    rows = (
        '{"env_steps": 4, "agent/episode_return": 2.25}\n{"env_steps": 8, '
        '"agent/episode_return": null}\n'
    )
    second = a_run(
        tmp_path / "b", rows, rollout_length=64, policies={"agent": {"gamma": 0.9, "clip": 0.3}}
    )
    main(["diff", first, second])
    lines = [
        line.strip("│").split("│")
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert [[word.strip() for word in line] for line in lines] == [
        ["policies.agent.clip", "0.2", "0.3"], ["rollout_length", "128", "64"],
        ["agent/episode_return", "1.5", "2.25"]
    ]  # fmt: skip
    main(["diff", first, first])
    assert capsys.readouterr().out.strip() == "The configurations are the same"


def test_diff_rejects_checkpoints(tmp_path, capsys):
    first = a_run(tmp_path / "a", "")
    with pytest.raises(SystemExit, match="2"):
        main(["diff", f"{first}@best", first])
    assert f"compares whole runs. Use {first}" in capsys.readouterr().err


def test_diff_does_not_list_env_params_at_their_defaults(tmp_path, capsys):
    complete = plain_config(load_config("cartpole_ppo"))
    complete["env_params"] = {"length": 0.5}  # the default
    (tmp_path / "same.yaml").write_text(yaml.safe_dump(complete))
    main(["diff", "cartpole_ppo", str(tmp_path / "same.yaml")])
    assert "env_params" not in capsys.readouterr().out


def test_diff_lists_no_env_params_of_different_environments(capsys):
    main(["diff", "cartpole_ppo", "acrobot_ppo"])
    assert "env_params" not in capsys.readouterr().out


@pytest.mark.parametrize("params", [{"length": 0.7}, {"length": 0.5, "unknown": 1}])
def test_diff_lists_env_params_that_differ(params, tmp_path, capsys):
    changed = plain_config(load_config("cartpole_ppo")) | {"env_params": params}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(changed))
    main(["diff", "cartpole_ppo", str(tmp_path / "other.yaml")])
    assert f"env_params.{list(params)[-1]}" in capsys.readouterr().out


def test_diff_omits_defaults_of_a_missing_policy():
    ours = {
        "policies.a.algorithm": "PPO",
        "policies.a.gamma": 0.9,
        "policies.a.clip": 0.2,
        "policies.b.clip": 0.3,
    }
    theirs = {"policies.b.clip": 0.2, "policies.b.gamma": 0.99}
    assert differing([ours, theirs]) == [
        "policies.a.algorithm",
        "policies.a.gamma",
        "policies.b.clip",
    ]


@pytest.mark.slow
def test_completion_in_a_shell(capsys, tmp_path):
    main(["completion"])
    (tmp_path / "script").write_text(script := capsys.readouterr().out)
    assert len(script) < 30_000

    def completed(*words):
        line = (
            f"COMP_WORDS=(wdjax {' '.join(words)}); COMP_CWORD={len(words)}; _wdjax; echo "
            f"${{COMPREPLY[@]}}"
        )
        command = ["bash", "-c", f". {tmp_path}/script; {line}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert completed("re") == ["render", "report"]
    assert completed("train", "cartpole") == [
        "cartpole", "cartpole_dqn", "cartpole_ppo", "cartpole_pqn"
    ]  # fmt: skip
    assert completed("diff", "cartpole", "tag_s") == ["tag_small", "tag_small_mappo"]
    assert completed("train", "cartpole", "--st") == ["--stop-at"]
    assert completed("train", "cartpole", "--he") == ["--help"]
    assert completed("train", "cartpole", "--policies.agent.clip") == []  # not an option of A2C
    assert completed("train", "tag_small", "--policies.runner.learning") == [
        "--policies.runner.learning-rate"
    ]
    assert completed("train", "tag_small", "--env-params.num-ta") == ["--env-params.num-taggers"]
    assert completed("sweep", "tag_small", "--env-params.num-ta") == ["--env-params.num-taggers"]
    assert completed("sweep", "tag_small", "--pbt-e") == ["--pbt-every-updates", "--pbt-every"]
    assert completed("sweep", "tag_small", "--dry") == []  # an option of wdjax train
    assert completed("sweep", "mine.yaml", "--sea") == ["--search"]  # once
    for command in ("train", "sweep"):
        assert completed(command, "tag_small", "--policies.all.cl") == ["--policies.all.clip"]
        assert completed(command, "cartpole", "--policies.all.clip") == []
        assert completed(command, "rice", "--env-s") == ["--env-schedules"]
    assert completed("train", "mine.yaml", "--dry") == ["--dry-run"]
    assert completed("play", "tag_s") == ["tag_small", "tag_small_mappo"]
    assert completed("eval", "runs/a", "--opp") == ["--opponents"]


def test_help_topic():
    words = (["--num-envs", "3"], ["--help"], ["--seed", "1", "-h", "env-params"])
    assert [help_topic(each) for each in words] == [None, "", "env-params"]


@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m wdjax.experiments.cli train cartpole_ppo --help all | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("run:")
    assert not done.stderr


COMMAND = f"{sys.executable} -m wdjax.experiments.cli"


# several commands in one process
IN_TURN = """
import sys
from wdjax.experiments.cli import main
for line in sys.argv[1:]:
    sys.argv = ["wdjax", *line.split()]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 2, line
"""


@pytest.mark.slow
def test_a_device_that_is_missing_is_one_sentence(tmp_path):
    commands = (
        "train cartpole_ppo --workdir new", "train cartpole_ppo --dry-run",
        "eval reference:cartpole", "render reference:cartpole",
        "sweep cartpole_ppo --seeds 2 --workdir new",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, *commands],
        env=os.environ | {"JAX_PLATFORMS": "rocm"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(commands), done.stderr
    for sentence in said:
        assert sentence.startswith("wdjax: JAX_PLATFORMS = rocm: ")
        assert "Unset JAX_PLATFORMS" in sentence


@pytest.mark.slow
def test_a_closed_stdout_ends_no_command(tmp_path):
    """It may be closed from the start, or be a pipe that closes later."""
    small = "--num-envs 4 --rollout-length 8 --total-env-steps 320 --eval-episodes 2 --no-pictures"
    closed, pipe = "2>&- >&-", "| true; exit ${PIPESTATUS[0]}"
    for command, end in (
        (f"train cartpole_ppo --workdir closed {small}", closed),
        (f"train cartpole_ppo --workdir pipe {small}", pipe),
        ("eval reference:cartpole --episodes 2", ">&-"),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{COMMAND} {command} {end}"],
            cwd=tmp_path, capture_output=True, env=quick_environment(),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
    for folder in ("closed", "pipe"):
        assert int(load_run(tmp_path / folder)[1].num_updates) == 10


def test_every_preset_has_its_steps_in_the_list(capsys):
    main(["list"])
    out = capsys.readouterr().out
    for name in list_presets():
        assert f"\n  {name:32s}" in out
    assert out.count(" env steps") >= len(list_presets())
    assert "  reference:acrobot, reference:cartpole, " in out


def test_list_names_the_memory_of_large_presets(capsys):
    main(["list"])
    out = capsys.readouterr().out
    assert "6 minutes and 15 GB on 2 CPU cores" in out
    assert "54 s and 6.3 GB on 2 CPU cores" in out


@pytest.mark.slow
def test_a_dry_run_rejects_bad_input_like_a_run(tmp_path):
    config = load_config("cartpole_ppo", stop_at={"agent/episode_retrun": 1})
    with pytest.raises(ValueError, match="did you mean 'agent/episode_return'"):
        next(dry_run(config))
    config = load_config("cartpole_ppo")
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        next(dry_run(config, callbacks=["tensorbord"]))
    config = change_config(config, **{"policies.agent.checkpoint": str(tmp_path / "nowhere")})
    with pytest.raises(FileNotFoundError, match=r"policies.agent.checkpoint = .* contains no run"):
        next(dry_run(config))
    assert next(dry_run(config, begun=True)).startswith("env: ")
    assert "env_params.gravity: 9.0" in changed_fields(
        load_config("cartpole_ppo", env_params={"gravity": 9.0})
    )


@pytest.mark.slow
def test_a_dry_run_describes_the_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    main(
        [
            "train",
            "cartpole_ppo",
            "--dry-run",
            "--seed",
            "3",
            "--policies.agent.network.hidden-sizes",
            "8",
        ]
    )
    out = capsys.readouterr().out
    config = load_config("cartpole_ppo")
    assert "seed: 3\n" in out
    updates, own = config.num_updates, config.policies["agent"]
    trunks = 1 if own.network.shared_trunk else 2
    parameters = trunks * (4 * 8 + 8) + (8 * 2 + 2) + (8 + 1)
    assert f"{updates:,} updates of {config.env_steps_per_update:,} env steps" in out
    assert (
        f"agent: PPO, {parameters:,} parameters; {config.env_steps_per_update:,} transitions "
        f"per update" in out
    )
    options = own.options
    times = options.epochs * options.minibatches
    assert (
        f"{times:,} gradient steps on {config.env_steps_per_update // options.minibatches:,} "
        f"transitions each, " in out
    )
    assert f", {times * updates:,} in the run" in out
    assert "of memory per device" in out
    assert "env: cartpole\n" in out
    assert "env_params" not in out  # all at their defaults
    assert not list(Path(tmp_path).glob("runs"))


def test_list_separates_names_from_purposes(capsys):
    call("list")
    lines = capsys.readouterr().out.splitlines()
    assert not [
        name for name in list_presets() for line in lines if re.match(rf"  {name}\w*[A-Z]", line)
    ]


def test_list_shows_whole_sentences(capsys):
    call("list")
    text = capsys.readouterr().out.partition("presets:\n")[2].partition("\nbundled")[0]
    purposes = [line for line in text.splitlines() if re.match(r"  \w", line)]
    assert len(purposes) == len(list_presets())
    assert not [line for line in purposes if not line.rstrip().endswith(".")]
