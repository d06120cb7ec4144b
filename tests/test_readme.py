"""Code, commands and links in the README and the site work."""

import dataclasses
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from quick import quick_environment

from wdjax.experiments.cli import COMMANDS
from wdjax.experiments.commands.arguments import parse
from wdjax.experiments.commands.play import PlayArguments
from wdjax.experiments.commands.players import EvalArguments, ExportArguments, RenderArguments
from wdjax.experiments.commands.report import ReportArguments
from wdjax.experiments.commands.sweep import OPTIONS, SweepArguments, as_settings, collect
from wdjax.experiments.commands.train import of_preset, with_flags
from wdjax.train import load_config

READ = {
    "eval": EvalArguments,
    "render": RenderArguments,
    "play": PlayArguments,
    "report": ReportArguments,
    "export": ExportArguments,
}
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [
    path
    for path in (README, *ROOT.glob("C*.md"), *DOCS.rglob("*.md"))
    if "_build" not in path.parts
]
EXCERPT = re.search(
    r"<!-- begin excerpt -->\n```python\n(.*?)```", README.read_text(encoding="utf8"), re.DOTALL
)[1]


def blocks_of(path):
    return re.findall(
        r"^```python\n(.*?)^```", path.read_text(encoding="utf8"), re.DOTALL | re.MULTILINE
    )


# Complete programs of the README, which type checkers also read (test_types.py).
BLOCKS = [block for block in blocks_of(README) if block != EXCERPT]
NOTEBOOK, LIBRARY = BLOCKS
RUN = {
    "library": LIBRARY,
    "notebook": NOTEBOOK + blocks_of(DOCS / "how_to" / "notebook.md")[-1],  # a player at the end
    "adapters": blocks_of(DOCS / "how_to" / "library.md")[-1],
    "sweep": blocks_of(DOCS / "how_to" / "sweeps.md")[-1],
}


@pytest.mark.slow  # they train, which is too slow for `make test`
@pytest.mark.parametrize("name", RUN)
def test_python_blocks_run(name, quick_compile):
    exec(compile(RUN[name], name, "exec"), {"__name__": "readme"})


RECIPES = [page for page in sorted((DOCS / "recipes").glob("*.md")) if blocks_of(page)]
# name of a recipe -> {code: code of a shorter run}, which prints as many lines and numbers
SHORTER = {
    "ablation": {'"total_env_steps": 61_440': '"total_env_steps": 5_120'},
    "cooperative_game": {"num_updates=200": "num_updates=5", "num_episodes=256": "num_episodes=16"},
    "domain_randomisation": {
        "num_updates=120": "num_updates=5",
        "num_episodes=64": "num_episodes=8",
    },
    "fine_tune": {'"total_env_steps": 20_480': '"total_env_steps": 4_096'},
    "rice_by_gradient": {"length=400": "length=20"},
    "sweep_to_picture": {
        '"total_env_steps": 40_960': '"total_env_steps": 5_120',
        "iloc[::81]": "iloc[::10]",
    },
}
NUMBER = re.compile(r"-?\d[\d.,]*(e[+-]?\d+)?")


@pytest.mark.slow  # most of them train
@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_recipes_print_and_draw_what_they_show(page, tmp_path):
    """Run the code of a page as a user would; compare its output and pictures except numbers.

    Runs are shorter than shown, and compiled with few optimizations.
    """
    code, text = "\n".join(blocks_of(page)), page.read_text(encoding="utf8")
    for module in re.findall(r"^import (\w+)$", code, re.MULTILINE):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[dev]'")
    for own, shorter in SHORTER.get(page.stem, {}).items():
        assert code.count(own) == 1, own
        code = code.replace(own, shorter)
    (tmp_path / "recipe.py").write_text(code, encoding="utf8")
    environment = quick_environment(PYTHONPATH=str(ROOT / "src"), MPLBACKEND="agg")
    result = subprocess.run(
        [sys.executable, "-W", "error:::__main__", "recipe.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    shown = "".join(re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    words = [
        [NUMBER.sub("#", line).split() for line in own.splitlines()]
        for own in (shown, result.stdout)
    ]
    assert shown
    assert words[0] == words[1]
    pictures = re.findall(r"!\[.*?\]\((\S+)\)", text)
    assert [name for name in pictures if not (tmp_path / name).exists()] == []


def test_recipes_are_short_and_in_the_index():
    index = (DOCS / "recipes" / "index.md").read_text(encoding="utf8")
    assert SHORTER.keys() <= {page.stem for page in RECIPES}
    for page in sorted((DOCS / "recipes").glob("*.md")):
        assert page.stem == "index" or f"\n{page.stem}\n" in index
        assert sum(len(block.splitlines()) for block in blocks_of(page)) <= 110


def test_pictures_of_the_readme_exist():
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README.read_text(encoding="utf8")):
        assert (README.parent / path).stat().st_size > 10_000


def test_excerpt_matches_the_example():
    method = textwrap.indent(EXCERPT.rstrip(), "    ")
    assert method in (ROOT / "experiments" / "examples" / "own_environment.py").read_text(
        encoding="utf8"
    )


def test_readme_is_short():
    assert len(README.read_text(encoding="utf8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_includes_of_pages_exist(page):
    text = page.read_text(encoding="utf8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    links = [
        link.partition("#")[0]
        for link in re.findall(r"\]\(([^)\s]+)\)", prose)
        if "://" not in link
    ]
    missing = [link for link in links if link and not (page.parent / link).exists()]
    # `include` and `literalinclude`, with the marks of their excerpts
    for name, options in re.findall(
        r"^```\{(?:literal)?include\} (\S+)\n((?::.*\n)*)", text, re.MULTILINE
    ):
        included = page.parent / name
        source = included.read_text(encoding="utf8") if included.exists() else ""
        marks = re.findall(r"^:(?:start|end)-\w+: (.+)$", options, re.MULTILINE)
        missing += [f"{name} {mark}" for mark in ("", *marks) if mark not in source or not source]
    assert not missing


def test_paths_named_in_the_readme_exist():
    named = re.findall(
        r"`((?:docs|experiments|tests|train|envs)/[\w./]+)`", README.read_text(encoding="utf8")
    )
    built = "docs/_build/html"
    assert [path for path in named if not (ROOT / path).exists() and path != built] == []


def shown_commands():
    """Yield the words of each command in sh blocks, inline code and headers of presets."""
    for page in (
        *PAGES,
        *ROOT.glob("experiments/configs/*.yaml"),
        ROOT / "experiments" / "reference" / "README.md",
    ):
        text = page.read_text(encoding="utf8")
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`((?:wdjax|make|python -m) [^`]+)`", text)
        lines += (
            re.findall(r"^#   ((?:wdjax|python -m) .+)", text, re.MULTILINE)
            if page.suffix == ".yaml"
            else []
        )
        for line in lines:
            words = shlex.split(line.partition(" --help")[0], comments=True)
            while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):  # JAX_PLATFORMS=cpu wdjax ...
                words = words[1:]
            if words:
                yield pytest.param(
                    [Path(words[0]).name, *words[1:]], id=f"{page.stem}: {' '.join(words)[:60]}"
                )


@pytest.mark.parametrize("words", list(shown_commands()))
def test_commands_on_pages_are_valid(words):
    """Parse the commands with all flags, without running them."""
    program, *words = words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf8")
        assert all(
            re.search(rf"^{word}:", makefile, re.MULTILINE) for word in words if "=" not in word
        )
    elif program.startswith("python"):
        assert words[0] != "-m" or importlib.util.find_spec(words[1]) is not None
    elif program != "wdjax":
        assert program in (
            "pip",
            "twine",
            "git",
            "cd",
            "source",
            "eval",
            "jupyter",
            "pytest",
            "sbatch",
            "kubectl",
            "docker",
        )
    elif words and words != ["--version"]:
        parse_command(*words)


def parse_command(command, *arguments):
    """Parse a command of wdjax. If it names no preset or run, check that its flags exist."""
    assert command in COMMANDS
    complete = (
        arguments
        and not arguments[0].startswith("-")
        and not re.search(r"\b[A-Z]{3,}\b", " ".join(arguments))
    )
    if command == "train" and complete:
        preset, *changes = arguments
        if preset in ("warp_drive.yaml", "herd.yaml"):  # files of the reader
            preset = "tag_small"
        with_flags(preset, *of_preset(preset, changes), changes)
    elif command == "sweep" and complete:
        preset, *flags = arguments
        parsed = parse(SweepArguments, "wdjax sweep", as_settings(flags, OPTIONS))
        settings, points = collect(parsed, load_config(preset))
        assert settings or points
        for name, values in settings.items():  # the preset accepts the first value
            if isinstance(values, list):
                load_config(preset, **{name: values[0]})
    elif command in READ and complete:
        parse(READ[command], f"wdjax {command}", arguments)
    elif command in ("sweep", *READ):
        fields = dataclasses.fields({**READ, "sweep": SweepArguments}[command])
        flags = {f"--{field.name.replace('_', '-')}" for field in fields}
        named = {word for word in arguments if word.startswith("--") and "." not in word}
        assert flags >= named  # with a dot: a field of the preset


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    for module in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "-q", "--keep-going", DOCS, tmp_path]
    environment = {**os.environ, "EXECUTE": "0"}  # notebooks are tested in test_notebooks.py
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    for page in ("index", "environments/cartpole", "reference/train", "from_warp_drive"):
        assert (tmp_path / f"{page}.html").stat().st_size > 10_000
    shutil.rmtree(tmp_path)
