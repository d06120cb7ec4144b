"""The command line, in process: what it prints, writes and refuses."""

import json

import pytest
from PIL import Image

from wdjax.experiments.cli import main

TINY = [
    "--num-envs", "4", "--rollout-length", "8", "--total-env-steps", "64", "--updates-per-chunk", "1",
    "--policies.tagger.network.hidden-sizes", "8", "--policies.runner.network.hidden-sizes", "8",
    "--env-params.episode-length", "10",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))  # leaves the settings of the tests alone


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tag"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
        main(["train", "tag_small", "--workdir", str(folder), *TINY])
    return folder


def refused(arguments, capsys):
    """Runs a command that must end with status 2; returns what it said, in one line."""
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


def test_eval_prints_the_cross_play_table(run, capsys, tmp_path):
    main(["eval", str(run), "--episodes", "8", "--output", str(tmp_path / "cells.json")])
    out = capsys.readouterr().out
    assert "8 episodes a row" in out
    assert "x random" in out
    cells = json.loads((tmp_path / "cells.json").read_text())
    assert [tuple(cell["policies"].values()) for cell in cells] == [
        (a, b) for a in ("trained", "random") for b in ("trained", "random")
    ]
    assert list(cells[0]["policies"]) == ["tagger", "runner"]
    assert cells[0]["length"]["mean"] <= 10


def test_render_writes_a_gif(run, tmp_path):
    main(["render", str(run), "--output", str(tmp_path / "out.gif"), "--seed", "3"])
    with Image.open(tmp_path / "out.gif") as animation:
        assert animation.n_frames == 11


def test_list_names_environments_and_presets(capsys):
    main(["list"])
    out = capsys.readouterr().out
    for name in ("cartpole", "tag_continuous", "tag_gridworld_with_reset_pool", "tag_small"):
        assert name in out


def test_resume_goes_on(run, capsys):
    main(["train", "tag_small", "--workdir", str(run), *TINY, "--total-env-steps", "96", "--resume"])
    assert "Going on from" in capsys.readouterr().out
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
        (["train", "tag_small", "--policies.runner.minibatches", "7"], "policies.runner.minibatches = 7: must be a"),
        (["train", "tag_small", "--env-params.max-speed", "-1"], "max_speed = -1.0: must be above 0"),
        (["train", "tag_small", "--policies.runner.algorithm", "PPX"], "PPO"),
        (["train", "no/such.yaml"], "no such file"),
        (["eval", "no/such/run"], "holds no run"),
        (["render", "no/such/run"], "holds no run"),
        (["list", "all"], "takes no arguments"),
    ],
)
def test_bad_input_is_refused_in_words(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in refused(arguments, capsys)
    assert not (tmp_path / "runs").exists()


def test_help_lists_every_field(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "tag_small", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for flag in ("--workdir", "--resume", "--num-envs", "--env-params.max-speed", "--policies.tagger.learning-rate"):
        assert flag in out
