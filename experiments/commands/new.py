"""wdjax new: write a small project with an environment, a preset, a test and a notebook."""

import importlib.util
import keyword
import re
import shlex
import sys
from pathlib import Path

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


def new(arguments: list[str]) -> None:
    """wdjax new NAME: write a project into a new folder and print the next commands."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise ValueError("wdjax new takes the name of a new project, such as: wdjax new my_game")
    folder = Path(arguments[0])
    for file in write_project(folder):
        show(f"wrote {file}")
    command = program()
    pip = ["pip"] if command == "wdjax" else [sys.executable, "-m", "pip"]
    install, train = [*pip, "install", "-e", "."], [command, "train", f"{folder.name}.yaml"]
    show(f"Next: {' && '.join(map(shlex.join, (['cd', str(folder)], install, train)))}")


def write_project(folder: Path) -> list[Path]:
    """Write the files of a project.

    Args:
        folder: a new folder. Its name becomes the name of the package and of the environment.

    Returns:
        The files.

    Raises:
        ValueError: if a package cannot have the name, or it is in use.
        FileExistsError: if the folder exists.
        OSError: if it cannot be written.
    """
    require_name(folder.name)
    if folder.exists():
        raise FileExistsError(f"{folder} already exists. Choose another name or move it away.")
    folder.mkdir()
    files = []
    for path, source in FILES.items():
        file = folder / path.replace(NAME, folder.name)
        file.parent.mkdir(exist_ok=True)
        text = (TEMPLATE / source).read_text(encoding="utf8")
        file.write_text(text.replace(NAME, folder.name), encoding="utf8")
        files.append(file)
    return files


def require_name(name: str) -> None:
    """Raise ValueError, with a suggestion, unless a package and an environment can have a name."""
    words = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
    words = words if words[:1].isalpha() else f"env_{words}".rstrip("_")
    if name != words or keyword.iskeyword(name):
        allowed = "lower-case letters, digits and underscores, first a letter, and no keyword"
    elif name == "tests" or importlib.util.find_spec(name) is not None:
        allowed = "a name that no installed module has"
    elif name in list_envs():
        allowed = "a name that no environment of wdjax has"
    else:
        return
    hint = words if name != words else f"my_{words}"
    raise ValueError(f"project name = {name!r}: must be {allowed}. Try {hint}.")
