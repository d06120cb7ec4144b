"""The notebooks: each is text and .ipynb that agree, without outputs, and runs to its end."""

import os
import re
from pathlib import Path

import pytest
from quick import quick_environment

jupytext = pytest.importorskip("jupytext", reason="needs jupytext: pip install -e '.[notebooks]'")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install -e '.[notebooks]'")

FOLDER = Path(__file__).parents[2] / "experiments" / "notebooks"
TEXTS = sorted(FOLDER.glob("*.md"))
# name of a notebook -> {code: code of a shorter run}. Most results are printed and drawn only.
SHORTER = {
    "2_two_policies_learn_tag": {"ENV_STEPS = 160_000": "ENV_STEPS = 32_000"},
    "3_own_environment": {"num_updates=50": "num_updates=5"},
    "4_own_network_algorithm_reward": {"UPDATES = 40": "UPDATES = 5"},
    "5_populations": {"20_480": "2_048", "32_000": "6_400"},
    "6_single_agent_control": {
        "REPLICAS = (10, 100, 1_000, 10_000)": "REPLICAS = (10, 1_000)",
        "SECONDS = 3.0": "SECONDS = 0.3",
    },
    "8_devices_and_hosts": {"--total-env-steps 64000": "--total-env-steps 8000"},
    "9_from_warpdrive": {"total_env_steps=10_000": "total_env_steps=2_000"},
    "10_cooperation": {"UPDATES = 100": "UPDATES = 4"},
    "11_learning_from_replay": {
        "total_env_steps=100_000": "total_env_steps=8_000",
        "32_000": "1_280",
        "total_env_steps=20_000": "total_env_steps=4_000",
    },
}
by_name = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)


def test_every_notebook_is_a_pair():
    assert TEXTS
    assert [path.with_suffix(".ipynb") for path in TEXTS] == sorted(FOLDER.glob("*.ipynb"))
    assert SHORTER.keys() <= {path.stem for path in TEXTS}


@by_name
def test_a_pair_agrees_and_holds_no_outputs(text):
    notebook = nbformat.read(text.with_suffix(".ipynb"), as_version=4)
    jupytext.compare.compare_notebooks(
        jupytext.read(text), notebook, fmt="md:myst"
    )  # else: jupytext --sync *.md
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@by_name
def test_links_lead_somewhere(text):
    links = re.findall(r"\]\(([^)#]+)\)", text.read_text(encoding="utf8"))
    local = [link for link in links if "://" not in link]
    assert local  # each ends with what to read next
    assert not [link for link in local if not (FOLDER / link).exists()]


@pytest.mark.slow
@by_name
def test_a_notebook_runs(text, tmp_path):
    """Run a notebook in a new kernel on one CPU device, in a new folder; raise errors of cells.

    Programs are compiled with few optimizations, since compilation takes most of the time. Runs
    are shorter than shown.
    """
    nbclient = pytest.importorskip(
        "nbclient", reason="needs nbclient: pip install -e '.[notebooks]'"
    )
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install -e '.[notebooks]'")
    notebook = jupytext.read(text)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for shown, shorter in SHORTER.get(text.stem, {}).items():
        (cell,) = [cell for cell in code if shown in cell.source]
        cell.source = cell.source.replace(shown, shorter)
    paths = os.pathsep.join([str(FOLDER.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=quick_environment(PYTHONPATH=paths))
    assert all(cell.execution_count for cell in code)
