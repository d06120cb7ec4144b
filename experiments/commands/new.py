"""wdjax new: write a small project with an environment, a preset, a test and a notebook."""

import importlib.util
import keyword
import re
import shlex
import sys
from pathlib import Path

from wdjax.checks import require
from wdjax.console import show
from wdjax.envs import list_envs
from wdjax.experiments.cli import program

TEMPLATE, NAME = Path(__file__).parents[1] / "template", "my_project"

# file of the project -> file of the template
FILES = {
    f"{NAME}/__init__.py": "package.txt",
    f"{NAME}/environment.py": "environment.py",
    f"{NAME}.yaml": "preset.yaml",
    f"{NAME}.ipynb": "notebook.txt",
    "tests/test_environment.py": "test_environment.txt",
    "pyproject.toml": "pyproject.txt",
    "README.md": "readme.txt",
    ".gitignore": "gitignore.txt",
}
OWN = ("tests", "runs", "build")  # other folders of a project


def new(arguments: list[str]) -> None:
    """wdjax new NAME: write a project into a new folder and print the next commands."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise ValueError("wdjax new takes the name of a new project, such as: wdjax new my_game")
    folder = Path(arguments[0])
    require_name(folder.name)
    require(not folder.exists(), "folder", str(folder), "new. Choose another name or move it away")
    folder.mkdir()
    for path, source in FILES.items():
        file = folder / path.replace(NAME, folder.name)
        file.parent.mkdir(exist_ok=True)
        text = (TEMPLATE / source).read_text(encoding="utf8")
        file.write_text(text.replace(NAME, folder.name), encoding="utf8")
        show(f"wrote {file}")
    pip = ["pip"] if program() == "wdjax" else [sys.executable, "-m", "pip"]
    train = [program(), "train", f"{folder.name}.yaml"]
    commands = (["cd", str(folder)], [*pip, "install", "-e", "."], train)
    show(f"Next: {' && '.join(map(shlex.join, commands))}")


def require_name(name: str) -> None:
    """Raise ValueError, with a suggestion, unless a package and an environment can have a name."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
    hint = plain if plain != name and plain[:1].isalpha() else f"my_{plain or 'game'}"
    words = "lower-case letters, digits and underscores, first a letter, and no keyword"
    fits = re.fullmatch("[a-z][a-z0-9_]*", name) and not keyword.iskeyword(name)
    require(fits, "project name", name, f"{words}. Try {hint}")
    used = name in OWN or name in list_envs() or importlib.util.find_spec(name) is not None
    words = "a name that no installed module, environment or folder of the project has"
    require(not used, "project name", name, f"{words}. Try {hint}")
