"""Custom environments by import path, and by entry points of installed packages."""

import sys
import textwrap

import pytest
from refusals import refusal

import wdjax
from wdjax.envs import env_class, list_envs

MODULE = """
from wdjax.envs import CartPole

class Longer(CartPole):
    "A custom cartpole."

one = CartPole()
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a folder with an installed package that announces environments."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "ownenvs.py").write_text(textwrap.dedent(MODULE))
    info = tmp_path / "site" / "ownenvs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ownenvs\nVersion: 1.0\n")
    lines = (
        "[wdjax.envs]\nlonger = ownenvs:Longer\nbroken = ownenvs:Nothing\n"
        "[wdjax.other]\nlonger = elsewhere:f\n"
    )
    (info / "entry_points.txt").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path
    sys.modules.pop("ownenvs", None)


def test_make_accepts_import_paths(package):
    env, params = wdjax.make("ownenvs:Longer", length=0.7)
    assert (type(env).__name__, float(params.length)) == ("Longer", pytest.approx(0.7))
    assert type(wdjax.make("ownenvs:one")[0]).__name__ == "CartPole"


def test_make_accepts_names_from_entry_points(package):
    assert "longer" in list_envs()
    assert type(wdjax.make("longer")[0]).__module__ == "ownenvs"
    assert env_class("longer").__name__ == "Longer"


def test_entry_points_in_the_current_folder_are_ignored(package, monkeypatch):
    """Otherwise, changing into a downloaded folder could run its code."""
    monkeypatch.chdir(package / "site")
    assert "longer" not in list_envs()
    assert "unknown environment 'longer'" in refusal(wdjax.make, "longer")
    assert "ownenvs" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("longr", "did you mean 'longer'"),
        ("broken", "has no attribute 'Nothing'"),
        ("ownenvs:CartPol", "has no attribute 'CartPol'"),
        ("ownenvz:Longer", "No module named 'ownenvz'"),
        ("own envs:Longer", "a full import path"),
        ("ownenvs:sys", "has no attribute"),
        ("math:pi", "must be a subclass of wdjax.Env"),
        ("gymnx:CartPole-v1", "did you mean 'gymnax'"),
    ],
)
def test_wrong_names_raise(package, name, message):
    assert message in refusal(wdjax.make, name)
