"""Find phrases that make prose hard to read, in docstrings, comments, messages and pages.

    python tests/prose.py                # phrases per 1,000 words, for each part of the project
    python tests/prose.py FILE...        # every phrase in these files

prose.txt contains the phrases as regular expressions. They are hints: rewrite the sentence.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORD = re.compile(r"[A-Za-z][a-z']+")
PHRASES = Path(__file__).with_suffix(".txt").read_text(encoding="utf8").splitlines()
COMPILED = [re.compile(phrase, re.IGNORECASE | re.MULTILINE) for phrase in PHRASES]
# the text below their fields is what --help prints
HELP = ("train/config/schema.py", "experiments/commands/")
PARTS = {
    "README": ["README.md"],
    "docs": [
        "docs/**/*.md",
        "docs/*.py",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "experiments/reference/README.md",
    ],
    "notebooks": ["experiments/notebooks/*.md"],
    "presets": ["experiments/configs/*.yaml"],
    "player": ["wdjax/drawing/player.html", "wdjax/drawing/live.html"],
    "wdjax": ["wdjax/**/*.py"],
    "envs": ["envs/**/*.py", "envs/**/*.yaml"],
    "examples": ["experiments/examples/*.py", "experiments/template/*.py"],
    "benchmarks": [
        "experiments/benchmarks/*.py",
        "experiments/benchmarks/RESULTS.md",
        "experiments/reference/*.py",
    ],
    "commands": ["experiments/cli.py", "experiments/commands/*.py", "experiments/report/*.py"],
    "tests of experiments": [  # without sweeps
        "tests/experiments/[cs]*.py",
        "tests/experiments/test_[!aos]*.py",
    ],
    "messages": ["train/**/*.py", "experiments/**/*.py"],
    "tests": ["tests/*.py", "tests/adapters/*.py", "tests/envs/*.py"],
    "tests of training": [
        "tests/adversary/*.py",
        "tests/train/*.py",
        *(
            f"tests/train/{name}/*.py"
            for name in ("algorithms", "devices", "host", "networks", "storage")
        ),
    ],
}


def docstrings(tree, with_fields):
    """Yield the nodes of docstrings, and of the text below fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for i, part in enumerate(body if isinstance(body, list) else []):
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and (i == 0 or with_fields)
            ):
                yield part.value


def python_prose(text, messages_only=False, with_fields=False):
    """Yield (line, text) of docstrings, comments and strings of three words or more."""
    tree = ast.parse(text)
    skipped = set(docstrings(tree, not with_fields)) if messages_only else set()
    if not messages_only:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped
        )
        if is_text and len(WORD.findall(node.value)) >= 3:
            yield node.lineno, node.value


def prose_of(path, messages_only=False):
    """Return [(line, text)] of the prose in a file."""
    text = path.read_text(encoding="utf8")
    if path.suffix == ".py":
        name = path.relative_to(ROOT).as_posix()
        return list(python_prose(text, messages_only, with_fields=name.startswith(HELP)))
    if path.suffix == ".yaml":
        return [(n, line.partition("#")[2]) for n, line in enumerate(text.split("\n"), 1)]
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    return list(enumerate(text.split("\n"), 1))


def files_of(part):
    """Return the files of a part, without links and built pages."""
    paths = {path for pattern in PARTS[part] for path in ROOT.glob(pattern)}
    links = [ROOT / "wdjax" / name for name in ("envs", "train", "experiments")]
    built = [ROOT / "docs" / "_build", ROOT / "docs" / "notebooks"]
    return sorted(
        path for path in paths if not any(folder in path.parents for folder in (*links, *built))
    )


def count(lines):
    """Return (number of phrases, number of words) of [(line, text)]."""
    phrases = sum(len(phrase.findall(text)) for _, text in lines for phrase in COMPILED)
    return phrases, sum(len(WORD.findall(text)) for _, text in lines)


def main(*names):
    for name in names:
        for line, text in prose_of(Path(name).resolve()):
            hits = [found[0] for phrase in COMPILED for found in phrase.finditer(text)]
            if hits:
                print(f"{name}:{line}: {hits} {' '.join(text.split())[:160]}")
    for part in () if names else PARTS:
        counts = [count(prose_of(path, part == "messages")) for path in files_of(part)]
        phrases, words = map(sum, zip(*counts, strict=True))
        print(f"{part:17} {1000 * phrases / words:5.1f} per 1,000 words: {phrases} in {words:,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
