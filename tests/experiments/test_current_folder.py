"""Commands run no file of the current folder, except modules that the user names."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from quick import quick_environment
from refusals import refusal

from wdjax import named
from wdjax.envs import LIBRARIES
from wdjax.experiments.cli import USAGE, main
from wdjax.experiments.commands.train import next_commands
from wdjax.named import import_named, lies_here
from wdjax.train import load_config, load_run, plain_config
from wdjax.version import __version__

MODULES = (
    "nest_asyncio", "libtpu", "winreg", "queue", "yaml", "jax", "numpy", "rich", "tyro",
    "sitecustomize", "optuna",
    "IPython", "pandas", "ipywidgets", "torch", "google",
)  # fmt: skip
PACKAGES = ("gymnax", "jaxmarl", "jumanji", "jax_plugins.evil")
SIZE = ["--num-envs", "8", "--num-blocks", "4", "--rollout-length", "4", "--total-env-steps", "64"]

# as in a shell, with the sys.path of the installed script: several commands in one process
COMMANDS = """
import json, sys
sys.path.pop(0)
from wdjax.experiments.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["wdjax", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
"""
OWN_GAME = "from helper import CartPole\n\nclass Env(CartPole):\n    pass\n"


@pytest.fixture
def strange(tmp_path):
    """Return a folder of files named like libraries, which write to `ran` when imported."""
    folder = tmp_path / "strange"
    leave = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\n"
    for name in (*MODULES, *(f"{package}.__init__" for package in PACKAGES)):
        file = folder.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(leave)
    return folder


def run_commands(folder, *commands):
    line = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    ended = subprocess.run(
        line,
        cwd=folder,
        env=quick_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    ran = folder.parent / "ran"
    return ended.stdout, ran.read_text() if ran.exists() else ""


@pytest.mark.slow
def test_commands_ignore_a_matplotlibrc_of_the_current_folder(tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    find = "from wdjax import named; named.find_modules_here(); import matplotlib"
    code = f"{find}; print(matplotlib.rcParams['text.usetex'])"
    line = [sys.executable, "-c", code]
    ended = subprocess.run(
        line, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.stdout == "False\n", ended.stderr[-2000:]


@pytest.mark.slow
def test_no_file_of_the_current_folder_runs_by_python_m(strange):
    line = [sys.executable, "-m", "wdjax.experiments.cli", "list"]
    ended = subprocess.run(
        line, cwd=strange, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    # Python itself imports sitecustomize only where PYTHONPATH names the folder
    assert not (strange.parent / "ran").exists()


@pytest.mark.slow
def test_no_file_of_the_current_folder_runs_in_any_command(strange):
    run = ["--workdir", "run"]
    out, ran = run_commands(
        strange, ["list"], ["completion"], ["train", "tag_small", "--help"],
        ["train", "tag_gridworld", "--dry-run"], ["train", "tag_gridworld", *run, *SIZE],
        ["train", "tag_gridworld", *run, *SIZE, "--resume"], ["eval", "run", "--episodes", "4"],
        ["render", "run", "--output", "run/a.html"], ["report", "run"], ["export", "run"],
        ["diff", "run", "run"],
        ["sweep", "cartpole_ppo", "--seeds", "2", "--workdir", "sweep", "--set", "num_envs=8",
            "--set", "num_blocks=4",
         "--set", "rollout_length=4", "--set", "total_env_steps=64"],
        ["bench", "cartpole_10k", "--small", "--repeats", "1"],
    )  # fmt: skip
    assert "tag_continuous" in out
    assert ran == ""


@pytest.mark.slow
def test_a_module_that_the_user_names_is_found_in_the_current_folder(strange):
    (strange / "helper.py").write_text("from wdjax.envs import CartPole\n")
    (strange / "my_env.py").write_text(OWN_GAME)
    (strange / "my_callback.py").write_text("def f(trainer, row):\n    print('called back')\n")
    small = {"num_envs": 8, "num_blocks": 4, "rollout_length": 4, "total_env_steps": 64}
    preset = plain_config(load_config("cartpole_ppo", **small)) | {"env": "my_env:Env"}
    (strange / "mine.yaml").write_text(yaml.safe_dump(preset))
    trusted, own = ["--trust", "my_env"], ["--callbacks", "my_callback:f"]
    out, ran = run_commands(
        strange, ["train", "mine.yaml", "--workdir", "a", *own],
        ["eval", "a", "--episodes", "2", *trusted],
        ["train", "cartpole_ppo", "--env", "my_env:Env", "--workdir", "b", *SIZE, "--no-pictures"],
        ["render", "a", "--output", "a.html", *trusted], ["report", "a", *trusted],
        ["sweep", "mine.yaml", "--seeds", "2", "--workdir", "sweep"],
    )  # fmt: skip
    assert "called back" in out
    assert ran == ""


@pytest.mark.slow
def test_train_prints_next_commands_that_run_as_printed(
    tmp_path, monkeypatch, capsys, quick_compile
):
    (tmp_path / "next_env.py").write_text(
        "from wdjax.envs import CartPole\n\nclass Env(CartPole):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named, "_FOLDERS", [str(tmp_path)])
    monkeypatch.setattr(sys, "argv", ["wdjax"])
    monkeypatch.setenv(
        "JAX_COMPILATION_CACHE_DIR", "unused"
    )  # leaves the settings of the tests alone
    main(
        [
            "train",
            "cartpole_ppo",
            "--env",
            "next_env:Env",
            "--workdir",
            "my runs/a",
            *SIZE,
            "--no-pictures",
        ]
    )
    printed = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: ")
    commands = [shlex.split(command) for command in printed.split(" && ")]
    assert commands == [
        ["wdjax", name, "my runs/a", "--trust", "next_env"]
        for name in ("eval", "render", "report", "play")
    ]
    main(commands[0][1:])
    assert "my runs/a: 256 episodes each" in capsys.readouterr().out
    sys.modules.pop("next_env")


def test_next_commands_of_a_run_without_custom_code_or_drawing(tmp_path, monkeypatch):
    started = tmp_path / "wdjax"
    started.write_text("")
    monkeypatch.setattr(sys, "argv", [str(started)])  # not the one on PATH
    config = load_config("cartpole_ppo")
    for folder in ("-a", "reference:a"):
        commands = next_commands(config, Path(folder), pictures=True)
        assert commands == f"{started} eval ./{folder} && {started} report ./{folder}"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("changes", [
    {"env": "{}:CartPole-v1"}, {"policies": {"agent": {"algorithm": "{}.inner:A"}}},
    {"policies": {"agent": {"network": {"encoder": "{}:E"}}}},
])  # fmt: skip
def test_a_known_library_is_not_trusted_in_the_current_folder(
    strange, library, changes, monkeypatch
):
    monkeypatch.chdir(strange)
    monkeypatch.syspath_prepend("")  # as in a notebook; commands do not have it
    raw = json.loads(json.dumps(changes).replace("{}", library))
    (strange / "theirs").mkdir()
    (strange / "theirs" / "config.yaml").write_text(yaml.safe_dump(raw))
    assert f"--trust {library}" in refusal(load_run, "theirs")
    assert not (strange.parent / "ran").exists()


def test_an_announced_package_is_not_trusted_in_the_current_folder(tmp_path, monkeypatch):
    package = tmp_path / "site" / "zoo-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: zoo\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[wdjax.envs]\nworld = zoo:World\n")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "zoo.py").write_text("")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.syspath_prepend("")
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "config.yaml").write_text(yaml.safe_dump({"env": "zoo:World"}))
    assert "--trust zoo" in refusal(load_run, ".")


def test_the_current_folder_is_on_the_path_for_one_import_only(strange, monkeypatch):
    (strange / "mine_alone.py").write_text(
        "import sys\nfrom helper_alone import found\npath = list(sys.path)\n"
    )
    (strange / "helper_alone.py").write_text("found = 3\n")
    (strange / "linked").symlink_to(strange.parent)
    monkeypatch.chdir(strange)
    monkeypatch.setattr(named, "_FOLDERS", [])
    assert "No module named" in refusal(import_named, "env", "mine_alone:found")
    named.find_modules_here()
    before = list(sys.path)
    assert import_named("env", "mine_alone:found") == 3
    assert import_named("env", "mine_alone:path") == [*before, os.getcwd()]
    assert sys.path == before
    assert import_named("env", "pathlib:Path") is Path
    assert [lies_here(name) for name in ("mine_alone", "linked", "pathlib", "math", "wdjax",
        "nowhere")] == [
        True, True, False, False, False, False
    ]  # fmt: skip
    for name in ("mine_alone", "helper_alone"):
        sys.modules.pop(name)


def test_a_deleted_current_folder_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "gone").mkdir()
    code = COMMANDS.replace("assert not ended.code, words", "print(ended.code)")
    line = [
        "bash",
        "-c",
        'cd gone && rmdir ../gone && exec "$0" -c "$1" "$2"',
        sys.executable,
        code,
    ]
    words = json.dumps([["--version"], ["--help"], ["list"], ["report", "/a"]])
    ended = subprocess.run([*line, words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"wdjax {__version__}\n{USAGE}\n0\n2\n2\n")
    sentence = (
        "wdjax: the current folder was deleted. Change to another folder (cd) and try again\n"
    )
    assert ended.stderr == sentence * 2
