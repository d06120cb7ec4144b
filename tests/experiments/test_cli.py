"""The command line in this process: output, files and errors."""

import csv
import json
import subprocess
import sys
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from wdjax.experiments import cli
from wdjax.experiments.cli import main
from wdjax.experiments.commands.matrix import other_params
from wdjax.train import BadNumbersError, FailedCheckError, Player, Trainer, load_run
from wdjax.train.evaluation.episodes import QUANTILES

pytestmark = pytest.mark.usefixtures("quick_compile")

TINY = [
    "--num-envs", "4", "--rollout-length", "8", "--total-env-steps", "64", "--updates-per-chunk",
    "1",
    "--checkpoint-every", "1", "--env-params.episode-length", "10",
    "--policies.tagger.network.hidden-sizes", "8", "--policies.runner.network.hidden-sizes", "8",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(
        "JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache")
    )  # leaves the settings of the tests alone


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tag"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
        main(["train", "tag_small", "--workdir", str(folder), *TINY])
    return folder


def refused(arguments, capsys):
    """Run a command that must end with status 2, and return its error line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    return " ".join((said.out + said.err).replace("│", " ").split())


def test_train_writes_a_run(run):
    assert (run / "curves.png").stat().st_size > 10_000
    with Image.open(run / "episode.gif") as animation:
        assert animation.n_frames == 11
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["env_steps"] for row in rows] == [32, 64]
    assert "episode_length: 10" in (run / "config.yaml").read_text()


ORDER = """
import sys
from concurrent.futures import Future
from wdjax.experiments import cli
from wdjax.train.devices import processes
said, connect = {}, processes.connect
processes.connect = lambda *arguments: said.update(connected=True) or connect(*arguments)
def wake():
    imported = {name: name in sys.modules for name in ("flax", "wdjax.train.trainer")}
    raise ValueError({"connected": False, **said, **imported})
cli.wake_device = wake
cli.main(["train", "tag_small", "--workdir", *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "said"), [
    ([], {"connected": False, "flax": False}),
    (["--num-processes", "1", "--process-id", "0", "--coordinator", "here:1"],
        {"connected": True, "flax": True}),
])  # fmt: skip
def test_the_device_starts_during_imports_or_after_connecting(flags, said, tmp_path):
    command = [sys.executable, "-c", ORDER, str(tmp_path), *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == f"wdjax: {said | {'wdjax.train.trainer': False}}"
    assert ended.returncode == 2


@pytest.mark.parametrize(("arguments", "at_once"), [
    (["tag_small"], True), (["tag_small", "--num-envs", "8", "--resume", "--debug"], True),
    ([], False),
    (["--help"], False), (["tag_small", "--help", "ppo"], False), (["tag_small", "-h"], False),
    (["mine.yaml"], False), (["runs/a"], False), (["tag_smal"], False),
    (["tag_small", "--env", "my.game:Game"], False),
    (["tag_small", "--env", "announced"], False), (["tag_small", "--env=announced"], False),
    (["tag_small", "--env-params.episode-length", "9"], True),
    (["tag_small", "--deterministic"], False), (["tag_small", "--dry_run"], False),
    (["tag_small", "--trust=a"], False),
    (["tag_small", "--process_id=0"], False), (["tag_small", "--callbacks", "my:f"], False),
])  # fmt: skip
def test_a_device_starts_early_only_without_flags_for_jax(arguments, at_once, monkeypatch):
    assert cli.wakes_at_once("train", arguments) == at_once
    assert not cli.wakes_at_once("eval", arguments)
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    assert not cli.wakes_at_once("train", arguments)


def test_a_device_that_fails_at_once_fails_the_run(monkeypatch, capsys, tmp_path):
    """jax itself reports it once and continues on the CPU."""
    failed = Future()
    failed.set_exception(OSError("no driver"))
    monkeypatch.setattr(cli, "wake_device", lambda: failed)
    assert (
        refused(["train", "tag_small", "--workdir", str(tmp_path / "run")], capsys)
        == "wdjax: no driver"
    )
    assert not (tmp_path / "run").exists()
    assert not cli._AWAKE


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_gpu_that_fails_is_not_replaced_by_the_cpu(command, capsys, monkeypatch, tmp_path):
    def refuse():
        raise RuntimeError("Unable to initialize backend 'cuda':\nno driver")

    monkeypatch.setattr(jax, "devices", refuse)
    said = refused([command, "tag_small", "--workdir", str(tmp_path / "run")], capsys)
    assert said == "wdjax: Unable to initialize backend 'cuda': no driver"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_eval_prints_the_cross_play_table(run, capsys, tmp_path):
    main(["eval", str(run), "--episodes", "8", "--output", str(tmp_path / "cells.json")])
    out = capsys.readouterr().out
    assert "8 episodes each" in out
    assert "x random" in out
    cells = json.loads((tmp_path / "cells.json").read_text())
    assert [tuple(cell["policies"].values()) for cell in cells] == [
        (a, b) for a in ("trained", "random") for b in ("trained", "random")
    ]
    assert list(cells[0]["policies"]) == ["tagger", "runner"]
    assert cells[0]["length"]["mean"] <= 10


def test_eval_between_checkpoints_and_scripts(run, capsys, tmp_path, monkeypatch):
    """Print a matrix per quantity, and write a CSV line per quantity and combination."""
    monkeypatch.chdir(run.parent)
    output = tmp_path / "new" / "cells.csv"
    players = ["tag", "tag@1", "random", "chase_nearest"]
    amount = ["--episodes", "4", "--batch", "3"]
    main(["eval", *players[:2], "--opponents", *players[2:], *amount, "--output", str(output)])
    out = capsys.readouterr().out
    assert out.count("tagger \\ runner") == 5  # time_to_tag, tags, length, two returns
    assert "x random" not in out
    with open(output, newline="") as file:
        lines = list(csv.DictReader(file))
    cells = [
        tuple(line[role] for role in ("tagger", "runner"))
        for line in lines
        if line["quantity"] == "tags"
    ]
    assert cells == [
        (a, b) for a in players for b in players[:3]
    ]  # a script plays its own group only
    assert {line["quantity"] for line in lines} == {
        "time_to_tag", "tags", "length", "tagger return", "runner return", "tagger agent return",
        "runner agent return"
    }  # fmt: skip
    assert all(float(line["mean"]) <= 10 for line in lines if line["quantity"] == "length")
    assert list(lines[0])[3:] == ["mean", "standard_error", *(f"quantile_{q}" for q in QUANTILES)]
    assert f"{float(lines[1]['mean']):.2f} ± {float(lines[1]['standard_error']):.2f}" in out


def test_eval_warns_of_different_env_params(run, tmp_path):
    """Runs may have different env_params: the first run's are used, with a warning."""
    learner, state = load_run(run)
    wider = state.replace(env_params=state.env_params.replace(tagging_distance=jnp.float32(0.05)))
    others = [Player("same", learner, state), Player("b", learner, wider)]
    said = list(other_params(Player("first", learner, state), others))
    assert said == [
        "Warning: b was trained with tagging_distance = 0.05; all runs use 0.04, as first"
    ]


@pytest.mark.slow
def test_render_writes_a_gif(run, tmp_path):
    main(["render", str(run), "--output", str(tmp_path / "out.gif"), "--seed", "3"])
    with Image.open(tmp_path / "out.gif") as animation:
        assert animation.n_frames == 11


@pytest.mark.slow
def test_render_writes_arrays(run, tmp_path, capsys):
    main(["render", f"{run}@1", "--npz", str(tmp_path / "episode.npz")])
    assert capsys.readouterr().out == f"Wrote {tmp_path / 'episode.npz'}\n"  # and no GIF
    with np.load(tmp_path / "episode.npz") as file:
        assert file["states/x"].shape == (11, 10)
        assert file["action/runner"].shape == (10, 8, 2)
        assert file["choice/runner/probs"].shape == (10, 8, 10)
        assert {name.split("/")[0] for name in file} == {
            "states", "action", "reward", "terminated", "truncated", "choice", "obs"
        }  # fmt: skip


def test_list_names_environments_and_presets(capsys):
    main(["list"])
    out = capsys.readouterr().out
    for name in ("cartpole", "tag_continuous", "tag_gridworld_with_reset_pool", "tag_small"):
        assert name in out


def test_resume_continues(run, capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "draw", lambda self: None)  # pictures take long
    main(
        ["train", "tag_small", "--workdir", str(run), *TINY, "--total-env-steps", "96", "--resume"]
    )
    assert "Resuming from" in capsys.readouterr().out
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage"),
        (["trian", "tag_small"], "did you mean 'train'"),
        (["train"], "needs a preset"),
        (["train", "tag_smal"], "did you mean 'tag_small'"),
        (["train", "tag_small", "--policies.taggr.clip", "0.1"], "--policies.tagger.clip"),
        (["train", "tag_small", "--num-env", "3"], "--num-envs"),
        (["train", "tag_small", "--num-envs", "many"], "--num-envs"),
        (["train", "tag_small", "--num-envs", "0"], "num_envs = 0: must be at least 1"),
        (
            ["train", "tag_small", "--policies.runner.minibatches", "7"],
            "policies.runner.minibatches = 7: must be a",
        ),
        (
            ["train", "tag_small", "--env-params.max-speed", "-1"],
            "max_speed = -1.0: must be above 0",
        ),
        (["train", "tag_small", "--policies.runner.algorithm", "PPX"], "PPO"),
        (
            ["train", "tag_small", "--policies.runner.trainable", "maybe"],
            "--policies.runner.trainable",
        ),
        (["train", "no/such.yaml"], "no such file"),
        (["eval", "no/such/run"], "contains no run"),
        (["render", "no/such/run"], "contains no run"),
        (["eval"], "needs a run"),
        (["eval", "RUN", "--opponents", "chase_nearst"], "did you mean 'chase_nearest'"),
        (["eval", "RUN@9"], "no checkpoint of 9 updates"),
        (
            ["eval", "RUN", "--checkpoint", "bst"],
            "'bst': must be newest, best, or a number of updates",
        ),
        (["eval", "RUN", "RUN"], "must be unique"),
        (["eval", "RUN", "--episodes", "0"], "num_episodes = 0: must be at least 1"),
        (["eval", "RUN", "--output", "cells.txt"], "must be a file that ends in .json or .csv"),
        (["render", "RUN", "--npz", "episode.gif"], "must end in .npz"),
        (["render", "RUN@best"], "no checkpoint in"),
        (["render", "RUN", "--output", "episode.gfi"], "did you mean '.gif'"),
        (["list", "all"], "takes no arguments"),
    ],
)
def test_bad_input_is_one_sentence(run, arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [argument.replace("RUN", str(run)) for argument in arguments]
    assert words in refused(arguments, capsys)
    assert not (tmp_path / "runs").exists()


def test_help_is_one_screen_and_lists_topics(capsys):
    main(["train", "tag_small", "--help"])
    screen = capsys.readouterr().out.splitlines()
    assert len(screen) <= 30
    assert max(map(len, screen)) <= 120
    assert any(line.split()[:1] == ["policies.runner.network"] for line in screen)
    of_topics = [line for line in screen if " flags: " in line]
    assert of_topics
    assert not any("--" in line for line in of_topics)  # only whole names are shown as flags
    main(["train", "tag_small", "--help", "all"])
    out = capsys.readouterr().out
    for flag in (
        "--workdir",
        "--resume",
        "--num-envs",
        "--env-params.max-speed",
        "--policies.tagger.learning-rate",
    ):
        assert flag in out


@pytest.mark.slow
def test_help_of_a_topic(capsys):
    main(["train", "tag_small", "--help", "learning_rate"])
    out = capsys.readouterr().out
    assert "--policies.tagger.learning-rate" in out
    assert "--num-envs" not in out
    assert "no flag name contains this" in refused(
        ["train", "tag_small", "--help", "lerning"], capsys
    )


@pytest.mark.parametrize(
    "error", [BadNumbersError("update 4: rewards"), FailedCheckError("a check failed")]
)
def test_a_run_that_fails_ends_with_a_sentence_and_status_1(tmp_path, monkeypatch, capsys, error):
    def fail(self):
        raise error

    monkeypatch.setattr(Trainer, "train", fail)
    with pytest.raises(SystemExit) as ended:
        main(["train", "cartpole", "--workdir", str(tmp_path / "run")])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"wdjax: {error}\n"
