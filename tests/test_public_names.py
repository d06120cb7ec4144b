"""Docstrings of public names cover arguments, fields and errors. Environments name their source."""

import ast
import functools
import importlib
import pydoc
import re
import tokenize
from pathlib import Path

import pytest

import wdjax
import wdjax.train

ROOT = Path(__file__).resolve().parents[1]
# packages with lazily imported names
LATE = (
    "wdjax",
    "wdjax.train",
    "wdjax.train.learning",
    "wdjax.adapters",
    "wdjax.experiments.sweep",
)
AT_ONCE = ("wdjax.envs", "wdjax.drawing")


def homes():
    """Yield (package, public name, defining module), without constants."""
    for package in LATE:
        for name, module in importlib.import_module(package)._HOME.items():
            yield package, name, module
    for package in AT_ONCE:
        found = importlib.import_module(package)
        yield from (
            (package, n, getattr(found, n).__module__)
            for n in found.__all__
            if callable(getattr(found, n))
        )


def path_of(module):
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def tree_of(module):
    return ast.parse(path_of(module).read_text(encoding="utf8"))


def defined(module, name):
    """Return the last definition of a name in a module, or the module.

    Earlier definitions may exist for type checkers only.
    """
    tree, kinds = tree_of(module), (ast.FunctionDef, ast.ClassDef)
    return next(
        (node for node in reversed(tree.body) if isinstance(node, kinds) and node.name == name),
        tree,
    )


@functools.cache
def comments(module):
    """Return the line numbers of the comments."""
    with path_of(module).open("rb") as file:
        return {
            token.start[0]
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT
        }


def raises_errors(function):
    """Return whether a function contains `raise` or calls `require...`."""
    called = {
        getattr(node.func, "id", "") for node in ast.walk(function) if isinstance(node, ast.Call)
    }
    raises = any(
        isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(function)
    )
    return raises or any(name.lstrip("_").startswith("require") for name in called)


def undocumented(node, commented=()):
    """Yield the undocumented parts of a function, a class or a module."""
    text = ast.get_docstring(node) or ""
    if not text:
        yield "it has no docstring"
    if isinstance(node, ast.FunctionDef):
        names = {
            argument.arg
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        }
        yield from (
            f"its argument {name}" for name in sorted(names) if not re.search(rf"\b{name}\b", text)
        )
        if raises_errors(node) and not re.search(r"[Rr]ais|refus", text):
            yield "its errors"
    elif isinstance(node, ast.ClassDef):
        for part, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation):
                below = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                listed = re.search(rf"^ +{part.target.id}: \S", text, re.MULTILINE)
                beside = {part.lineno - 1, part.end_lineno} & set(commented)
                if not below and not beside and not listed:
                    yield f"its field {part.target.id}"


def test_every_public_name_is_documented():
    wrong = []
    for package, name, module in homes():
        wrong += [
            f"{package}.{name}: {part}"
            for part in undocumented(defined(module, name), comments(module))
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f(): return 1", ["it has no docstring"]),
        ("def f(a, b):\n '''Of a.'''", ["its argument b"]),
        ("def f(a):\n '''Of a.'''\n raise ValueError(a)", ["its errors"]),
        ("def f(a):\n '''Of a.'''\n require_integer('a', a, 1)", ["its errors"]),
        ("def f(a):\n '''Of a. Raises ValueError.'''\n raise ValueError(a)", []),
        (
            "class A:\n '''One.\n\n  Attributes:\n    x: two.\n'''\n x: int\n y: int",
            ["its field y"],
        ),
        (
            "class A:\n '''One.'''\n x: int\n y: int\n '''said'''\n z: ClassVar[int] = 1",
            ["its field x"],
        ),
    ],
)
def test_undocumented_parts_are_found(source, missing):
    assert list(undocumented(ast.parse(source).body[0])) == missing


def test_help_describes_the_fields_of_states_and_the_functions_of_a_learner():
    fields = {"Learner": ("init", "run", "rollout"), "Rows": ("obs", "live"), "Memory": ("carry",)}
    for name, names in fields.items():
        text = pydoc.render_doc(getattr(wdjax.train, name), renderer=pydoc.plaintext)
        for field in names:
            assert re.search(rf"^ \|? +{field}: \S+", text, re.MULTILINE), f"{name}.{field}"


def test_every_environment_names_its_source():
    for name in wdjax.list_envs():
        module = wdjax.envs.env_class(name).__module__
        if module.startswith("wdjax.envs."):
            sources = [
                path.read_text(encoding="utf8")
                for path in (path_of(module), path_of(module).parent / "game.py")
                if path.exists()
            ]
            assert any(re.search(r"^Sources?: ", text, re.MULTILINE) for text in sources), name
