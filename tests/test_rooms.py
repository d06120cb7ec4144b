"""Subpackages import only those below them and no modules in cycles. Files stay small."""

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Subpackages from top to bottom. Those on one line do not import each other.
HOUSE = (
    "experiments",
    "train",
    "adapters env_checker playing",
    "envs vector rendering",
    "arguments stepping",
    "env signals progress",
    "controls",
    "spaces neighbors replicas branches named drawing console yaml_reader",
    "cells",
    "searching kernels all_policies checks files lazy metric_names overrides tables version",
)
TRAIN = (
    "live",
    "trainer load population",
    "evaluation host",
    "learner",
    "algorithms",
    "fast",
    "kernels",
    "rollout storage",
    "state",
    "networks",
    "config devices",
)
# lists of public names, and two shims
PUBLIC = (
    "wdjax",
    "wdjax.train",
    "wdjax.train.determinism",
    "wdjax.train.encoders",
    "wdjax.train.learning",
)

MOST_IN_A_FILE, MOST_IN_A_FUNCTION = 250, 40  # statements


def modules():
    """Return dotted name -> path of every file, without the duplicates behind symbolic links."""
    files = [
        path
        for folder in ("envs", "train", "experiments")
        for path in (ROOT / folder).rglob("*.py")
    ]
    files += [
        path
        for path in (ROOT / "wdjax").rglob("*.py")
        if not any(part.is_symlink() for part in path.parents)
    ]

    def inside(path):
        return path.relative_to(ROOT).with_suffix("").parts

    names = (".".join(p for p in ("wdjax", *inside(path)) if p != "__init__") for path in files)
    return {
        name.replace("wdjax.wdjax", "wdjax", 1): path
        for name, path in zip(names, files, strict=True)
    }


MODULES = modules()


def imports(path):
    """Yield the modules of wdjax that a file imports, including those in functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "wdjax")
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "wdjax"
        ):
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in MODULES else node.module for name in whole)


def level(name):
    """Return the level of a module and its subpackage, such as ((1, 4), "train.kernels")."""
    _, room, *rest = name.split(".")
    row = next(i for i, rooms in enumerate(HOUSE) if room in rooms.split())
    if room != "train":
        return (row, 0), room
    return (
        row,
        next(i for i, rooms in enumerate(TRAIN) if rest[0] in rooms.split()),
    ), f"train.{rest[0]}"


def test_subpackages_import_only_lower_ones():
    violations = []
    for name, path in MODULES.items():
        if name in PUBLIC or ".examples" in name or ".template" in name:  # code of users
            continue
        for other in imports(path):
            public = other in PUBLIC and level(
                f"{other}.trainer" if other == "wdjax.train" else "wdjax.version"
            )
            (own_level, room), (other_level, other_room) = level(name), public or level(other)
            if other == "wdjax" or (room != other_room and own_level >= other_level):
                violations.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not violations, "\n".join(violations)


def test_imports_have_no_cycles():
    graph = {
        name: {other for other in imports(path) if other != name} for name, path in MODULES.items()
    }
    graphlib.TopologicalSorter(
        {name: graph[name] for name in graph if name not in PUBLIC}
    ).prepare()


def test_train_has_few_top_level_files():
    assert len(list((ROOT / "train").glob("*.py"))) <= 6


def num_statements(tree):
    """Return the number of statements below a node, without docstrings and texts of fields."""
    statements = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node is not tree
    ]
    return sum(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in statements
    )


def sizes():
    """Yield (name, number of statements, limit) of every file, and of every function in it."""
    for path in MODULES.values():
        name, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf8"))
        yield name, num_statements(tree), MOST_IN_A_FILE
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}:{node.name}", num_statements(node), MOST_IN_A_FUNCTION


def test_files_and_functions_are_small():
    large = [
        f"{name}: {number} statements, at most {limit}"
        for name, number, limit in sizes()
        if number > limit
    ]
    assert not large, "\n".join(large)
