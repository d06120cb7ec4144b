"""`wdjax new` writes a project that passes its tests, installs and trains."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib

import pytest

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
    main(["new", "flock"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "wrote flock/flock/__init__.py"
    assert re.fullmatch(r"Next: cd flock && \S.*install -e \. && \S+ train flock.yaml", lines[-1])


def test_environment_passes_its_tests_and_the_preset_loads(project, monkeypatch, registry):
    monkeypatch.syspath_prepend(project)
    tests = runpy.run_path(str(project / "tests" / "test_environment.py"))
    names = [name for name in tests if name.startswith("test_")]
    assert len(names) == 4
    for name in names:
        if "learns" not in name:
            tests[name]()
    wdjax.register("herd", tests["Walkers"])
    assert load_config(project / "herd.yaml").env == "herd"
    for module in [name for name in sys.modules if name.split(".")[0] == "herd"]:
        del sys.modules[module]


@pytest.mark.parametrize(("name", "message"), [
    ("my-herd", "project name = 'my-herd': must be lower-case letters.* Try my_herd"),
    ("Herd", "Try herd"), ("3 d", "Try env_3_d"), ("class", "no keyword. Try my_class"),
    ("numpy", "that no installed module has. Try my_numpy"), ("é", "Try env"),
    ("tests", "Try my_tests"), ("cartpole", "no environment of wdjax has. Try my_cartpole"),
    ("nowhere/herd", "No such file or directory: 'nowhere/herd'"),
    ("herd", "herd already exists. Choose another name"), ("--help-me", "takes the name"),
])  # fmt: skip
def test_wrong_name_is_an_error_and_writes_nothing(project, name, message, capsys):
    before = {path: path.read_bytes() for path in project.parent.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match="2"):
        main(["new", name])
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(message, error)
    after = {path: path.read_bytes() for path in project.parent.rglob("*") if path.is_file()}
    assert after == before


def run(*command, cwd, **environment):
    """Run a command and return its output; fail with the output."""
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_installed_project_trains_and_its_run_needs_no_trust(project, tmp_path):
    site, python = str(tmp_path / "site"), sys.executable
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site)
    run(python, "-m", "pip", "install", *options, ".", cwd=project)
    wdjax_command = (python, "-m", "wdjax.experiments.cli")
    path = {"PYTHONPATH": site}
    assert "  herd\n" in run(*wdjax_command, "list", cwd=tmp_path, **path)
    run(*wdjax_command, "train", "herd.yaml", cwd=project, **path)
    assert (project / "runs" / "herd" / "episode.gif").exists()
    table = run(*wdjax_command, "eval", "runs/herd", cwd=project, **path)
    trained, random = map(float, re.findall(r"│ (?:trained|random)\s*│\s*([\d.]+) ±", table))
    assert trained > 0.5 > 0.2 > random
    run(python, "-m", "pytest", "-q", "tests", "-k", "learns", cwd=project, **path)
    cells = json.loads((project / "herd.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    printed = run(python, "-c", "\n".join(sources), cwd=project, **path)
    assert "episode_arrived" in printed
