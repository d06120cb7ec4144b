"""`wdjax new` writes a project that passes its tests, installs and trains."""

import importlib
import json
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from quick import quick_environment

import wdjax
from wdjax.experiments.cli import main
from wdjax.train import load_config


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write the project `herd` in a folder and return its path."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    main(["new", "herd"])
    return tmp_path / "herd"


def test_project_is_complete_and_named(project, capsys):
    files = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    package = {"herd/__init__.py", "herd/environment.py", "pyproject.toml"}
    assert files == {
        *package, "herd.yaml", "herd.ipynb", "tests/test_environment.py", "README.md", ".gitignore"
    }  # fmt: skip
    assert not any("my_project" in (project / name).read_text() for name in files)
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert described["entry-points"] == {"wdjax.envs": {"herd": "herd.environment:Walkers"}}
    cells = json.loads((project / "herd.ipynb").read_text())["cells"]
    for source in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        compile(source, "herd.ipynb", "exec")
    main(["new", "true"])  # a value of YAML
    assert yaml.safe_load((project.parent / "true" / "true.yaml").read_text())["env"] == "true"
    lines = capsys.readouterr().out.splitlines()
    assert lines[-9] == "wrote true/true/__init__.py"
    assert re.fullmatch(r"Next: cd true && \S.*install -e \. && \S+ train true.yaml", lines[-1])


def test_preset_loads_with_the_environment(project, monkeypatch, registry):
    monkeypatch.syspath_prepend(project)
    environment = importlib.import_module("herd").Walkers
    wdjax.register("herd", environment)
    config = load_config(project / "herd.yaml")
    assert (config.env, list(config.policies)) == ("herd", list(environment().groups))
    for module in ("herd", "herd.environment"):
        del sys.modules[module]


@pytest.mark.parametrize(("name", "message"), [
    ("my-herd", "project name = 'my-herd': must be lower-case letters.* Try my_herd"),
    ("Herd", "Try herd"), ("3 d", "Try my_3_d"), ("class", "no keyword. Try my_class"),
    ("numpy", "that no installed module, environment .*Try my_numpy"), ("é", "Try my_game"),
    ("tests", "Try my_tests"), ("runs", "Try my_runs"), ("cartpole", "Try my_cartpole"),
    ("nowhere/herd", "No such file or directory: 'nowhere/herd'"), ("", "Try my_game"),
    ("herd", "folder = 'herd': must be new. Choose another"), ("--help-me", "takes the name"),
])  # fmt: skip
def test_wrong_name_is_an_error_and_writes_nothing(project, name, message, capsys):
    before = {path: path.read_bytes() for path in project.parent.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match="2"):
        main(["new", name])
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(message, error)
    after = {path: path.read_bytes() for path in project.parent.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize(("folder", "name", "file"), [
    (".", "herd", "herd/herd.yaml"), ("herd", "herd", "herd.yaml"), (".", "mine", "mine.yaml"),
])  # fmt: skip
def test_name_of_a_file_as_a_preset_is_an_error_with_the_file(
    project, folder, name, file, monkeypatch, capsys
):
    (project.parent / "mine.yaml").touch()
    monkeypatch.chdir(project.parent / folder)
    with pytest.raises(SystemExit, match="2"):
        main(["train", name])
    assert f"run folder. Did you mean {file}?" in " ".join(capsys.readouterr().err.split())


def run(*command, cwd, **environment):
    """Run a command and return its output; fail with the output."""
    result = subprocess.run(
        command, cwd=cwd, env=quick_environment(**environment), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_installed_project_trains_and_passes_its_tests(project, tmp_path):
    site, python = str(tmp_path / "site"), sys.executable
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site)
    run(python, "-m", "pip", "install", *options, ".", cwd=project)
    path = {"PYTHONPATH": site}
    commands = ("list",), ("train", "herd.yaml"), ("eval", "runs/herd")
    lines = (f"main({[*words]})" for words in commands)  # in one process
    code = "\n".join(("from wdjax.experiments.cli import main", *lines))
    table = run(python, "-c", code, cwd=project, **path)
    assert "  herd\n" in table
    assert (project / "runs" / "herd" / "episode.gif").exists()
    trained, random = map(float, re.findall(r"│ (?:trained|random)\s*│\s*([\d.]+) ±", table))
    assert trained > 0.5 > 0.2 > random
    assert "4 passed" in run(python, "-m", "pytest", "-q", "tests", cwd=project, **path)
    cells = json.loads((project / "herd.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    printed = run(python, "-c", "\n".join(sources), cwd=project, **path)
    assert "episode_arrived" in printed
