"""Files that publish the package and its site: workflows, Read the Docs, pre-commit."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf8")


def read(path):
    """Return a YAML file. PyYAML reads the key `on` of workflows as True."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf8"))


def commands(workflow):
    """Return the shell commands of all jobs of a workflow."""
    jobs = read(WORKFLOWS / workflow)["jobs"].values()
    return [step["run"] for job in jobs for step in job.get("steps", ()) if "run" in step]


def test_ci_runs_on_every_supported_python():
    pythons = read(WORKFLOWS / "test.yml")["jobs"]["ci"]["strategy"]["matrix"]["python"]
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    supported = [f"3.{minor}" for minor in range(int(low), int(high))]
    assert pythons == supported
    prefix = "Programming Language :: Python :: "
    assert supported == [
        name.removeprefix(prefix) for name in PROJECT["classifiers"] if name.startswith(prefix)
    ]
    assert ".ci/run" in commands("test.yml")


@pytest.mark.parametrize("workflow", ["test.yml", "publish.yml"])
def test_make_targets_of_workflows_exist(workflow):
    targets = re.findall(r"\bmake (\w+)", " ; ".join(commands(workflow)))
    assert [name for name in targets if f"\n{name}: " not in MAKEFILE] == []


def test_only_the_last_job_of_a_tag_can_publish():
    workflow = read(WORKFLOWS / "publish.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["needs"] == ["test", "build"]
    assert jobs["publish"]["environment"]["name"] == "pypi"


def test_pre_commit_runs_the_commands_of_make_lint():
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    hooks = [
        hook["entry"] for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    ]
    assert hooks == recipe.replace("$(BIN)", ".venv/bin").replace("\t", "").splitlines()


def test_read_the_docs_builds_the_site_as_make_docs_does():
    config = read(".readthedocs.yaml")
    (command,) = config["build"]["jobs"]["build"]["html"]
    (recipe,) = re.findall(r"-m (sphinx .*) docs docs/_build/html", MAKEFILE)
    assert recipe in command
    (install,) = config["python"]["install"]
    assert set(install["extra_requirements"]) <= set(PROJECT["optional-dependencies"])
