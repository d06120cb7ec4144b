"""Faults that the issue "Plain English" fixes: 35, 36, 39, 40 of FAULTS.md. Each fails until then.

The noise of importing jaxmarl while the site is built (36) has no test: the import alone takes 5 s.
"""

import importlib.util
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


def from_code():
    """Return the module that makes parts of pages from the code."""
    spec = importlib.util.spec_from_file_location("from_code", ROOT / "docs" / "from_code.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@later(35, "a page tells readers not to edit it")
def test_the_reference_curves_page_has_no_note_to_maintainers():
    assert "do not edit" not in read("experiments/reference/README.md")


@later(35, "the table of reference curves is wider than a page")
def test_tables_of_the_reference_curves_have_at_most_eight_columns():
    rows = [line for line in read("experiments/reference/README.md").splitlines() if line.startswith("|")]
    assert rows
    assert max(line.count("|") - 1 for line in rows) <= 8


@later(35, "several speeds of one workload")
def test_a_workload_has_one_speed_on_all_pages():
    lines = [line for page in PAGES for line in page.read_text(encoding="utf8").splitlines()]
    ours = [line for line in lines if re.match(r"\| (`tag_gridworld`|the same as `wdjax train tag_gridworld`)", line)]
    speeds = {speed for line in ours for speed in re.findall(r"^\|[^|]+\| (\d+) M ", line)}
    assert speeds
    assert len(speeds) == 1


@later(36, "notebooks of the site have no outputs")
def test_notebooks_of_the_site_have_outputs_by_default():
    executes = re.search(r'nb_execution_mode = .*else "off"', read("docs/conf.py")) is None
    notebooks = [path.read_text(encoding="utf8") for path in (ROOT / "experiments").rglob("*.ipynb")]
    saved = all('"outputs": []' not in text for text in notebooks)
    assert executes or saved


@later(36, "long commands are cut off")
def test_commands_fit_on_a_page():
    texts = [page.read_text(encoding="utf8") for page in PAGES]
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    long = [line for block in blocks for line in block.splitlines() if len(line.partition("   #")[0]) > 86]
    assert not long


@later(36, "pages of environments show docstrings of inner functions")
def test_a_page_of_an_environment_shows_no_docstring_of_an_inner_function():
    text = from_code().environment("tag_continuous", "rules")
    assert "num_own" not in text
    assert not re.search(r"^Returns? the rewards", text, re.MULTILINE)


@later(36, "pictures made for the site are white on dark pages")
def test_the_picture_of_an_environment_follows_the_theme(tmp_path):
    module = from_code()
    module.PICTURES = tmp_path
    (tmp_path / "cartpole.png").touch()  # as if drawn before
    top = module.environment("cartpole", "picture").partition("# Spaces")[0]
    assert re.search(r"\.svg\b|only-dark|prefers-color-scheme", top)


@later(36, "stored pictures are white on dark pages")
def test_stored_pictures_of_the_site_follow_the_theme():
    pages = [page.read_text(encoding="utf8") for page in PAGES if page.parent != ROOT]
    image = re.compile(r"(!\[[^\]]*\]\(|\{(image|figure)\} )\S+\.(png|gif)\b")
    assert not [text for text in pages if image.search(text) and not re.search("only-dark|prefers-color-scheme", text)]


@later(39, "Adam's epsilon is missing")
def test_the_warp_drive_page_names_the_epsilon_of_adam():
    assert "optimizer_epsilon" in read("docs/from_warp_drive.md")


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


@later(40, "algorithms of peers are missing")
@pytest.mark.parametrize("name", ["PQN-VDN", "TransfQMIX", "SHAQ"])
def test_the_comparison_names_the_algorithms_of_jaxmarl(name):
    assert name in read("docs/comparison.md")


@later(40, "limits of custom algorithms")
def test_the_limits_page_does_not_say_less_than_is_true_of_custom_algorithms():
    assert "what learns from more than its own policy's rows is\n  not foreseen" not in read("docs/limits.md")
