"""Parts of pages that are made from the code, so that each fact stands in one place.

A line `<!-- from code: environment cartpole -->` of a page becomes what the function of that name here returns.
"""

import ast
import dataclasses
import inspect
import io
import re
import shutil
import textwrap
import tokenize
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

MARK = re.compile(r"^<!-- from code: (.+) -->$", re.MULTILINE)
ROOT = Path(__file__).resolve().parents[1]
PICTURES, NOTEBOOKS = ROOT / "docs" / "_build" / "pictures", ROOT / "docs" / "notebooks"
_ESCAPED = r"\\\1"
FRAMES = 40  # of an episode, the last of which is the picture


# --- what a class says of its fields ---


def field_words(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yields (name, default, what stands beside or below it) of every field of a class, its parents' first."""
    for part in reversed(cls.__mro__):
        if part.__module__.startswith("wdjax") and "__annotations__" in vars(part):
            yield from _own_field_words(textwrap.dedent(inspect.getsource(part)))


def _own_field_words(source: str) -> Iterator[tuple[str, str, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    body = ast.parse(source).body[0].body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            words = comments.get(node.end_lineno, "")
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                words = inspect.cleandoc(after.value.value)
            yield (
                node.target.id,
                _default(node.value),
                re.sub(r"^# *(noqa: \w+ *)?", "", " ".join(words.split())),
            )


def _default(value: ast.expr | None) -> str:
    """Returns how a default reads: of `traced(0.99, ...)` 0.99."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("traced", "static"):
        value = value.args[0]
    elif isinstance(value, ast.Call) and value.keywords:  # dataclasses.field(default_factory=dict)
        value = next((word.value for word in value.keywords if word.arg == "default_factory"), None)
    text = "" if value is None else ast.unparse(value)
    return {"dict": "{}", "math.inf": ".inf"}.get(text, text)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return (
        "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        + "\n"
    )


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _fields(cls: type, head: tuple[str, ...] = ("name", "default", "what")) -> str:
    rows = [(_code(name), _code(default), words) for name, default, words in field_words(cls)]
    if not any(default for _, default, _ in rows):
        return _table((head[0], head[2]), [(name, words) for name, _, words in rows])
    return _table(head, rows)


# --- a page of an environment ---


def environment(name: str, *options: str) -> str:
    """Returns what the code says of an environment: spaces, rules, parameters with units, state, scripts, source.

    Options: `picture`, drawn of a random episode of a fixed seed; `rules`, the docstrings of `reset`, `step` and
    `observe`; `source`, which a page of its own text has already.
    """
    import wdjax

    env, params = wdjax.make(name)
    cls, module = type(env), import_module(type(env).__module__)
    parts = [f"`{name}` is {{py:class}}`wdjax.envs.{cls.__name__}`. {inspect.getdoc(cls)}"]
    if "picture" in options:
        parts += [f"![{name}, random play]({picture(name)})", "*Random play of a fixed seed.*"]
    parts += ["## Spaces", _spaces(env, params)]
    if "rules" in options:
        parts += [
            "## Start",
            inspect.getdoc(cls.reset),
            "## A step, and what it pays",
            inspect.getdoc(cls.step),
        ]
        parts += [inspect.getdoc(cls.reward)] if hasattr(cls, "reward") else []
        observe = cls.observe if "observe" in vars(cls) else module.observe
        parts += ["## What an agent sees", inspect.getdoc(observe)]
        parts += [inspect.getdoc(cls.own_features)] if hasattr(cls, "own_features") else []
    parts += [
        "## Parameters",
        "Traced: `env_params` of a preset, swept and vmapped without compiling again.",
    ]
    parts += [_fields(type(params), ("name", "default", "what, unit"))]
    static = _fields(cls, ("name", "default", "what"))
    if dataclasses.fields(cls):
        parts += ["Static: these fix shapes or rules, and compile anew.", static]
    states = [value for value in vars(module).values() if getattr(value, "__name__", "") == "State"]
    if states:
        parts += ["## State", _fields(states[0], ("name", "default", "shape, type, unit"))]
    if env.scripts:
        names = ", ".join(f"`{script}` ({group})" for script, (group, _) in env.scripts.items())
        parts += [f"Scripts that play for a group (`wdjax eval --opponents`): {names}."]
    if "source" in options:
        said = inspect.getdoc(module) or ""
        parts += ["## Source", said[said.index("Source") :].partition(":")[2].strip()]
    text = "\n\n".join(parts)
    return text if "rules" in options else text.replace("\n## ", "\n### ")


def _spaces(env: Any, params: Any) -> str:
    observations, actions = env.observation_space(params), env.action_space(params)
    groups = dict(env.groups) or {"agent": 1}

    def of(spaces, group) -> Any:
        return spaces.spaces[group] if env.groups else spaces

    rows = [
        (_code(group), str(number), describe(of(observations, group)), describe(of(actions, group)))
        for group, number in groups.items()
    ]
    ends = (
        "an episode may be cut off by a time limit (truncated)"
        if env.can_truncate
        else "nothing is truncated"
    )
    return (
        _table(("group", "agents", "observation of one", "action of one"), rows)
        + f"\nWith its defaults; {ends}."
    )


def describe(space: Any) -> str:
    """Returns a space in a few words, for a table."""
    if hasattr(space, "spaces"):
        return "; ".join(f"`{name}`: {describe(part)}" for name, part in space.spaces.items())
    if hasattr(space, "n"):  # a Discrete, which has an nvec of one, too
        return f"Discrete({space.n})"
    if hasattr(space, "nvec"):
        numbers = [int(number) for number in np.ravel(space.nvec)]
        alike = len(numbers) > 4 and len(set(numbers)) == 1
        return (
            f"MultiDiscrete, {len(numbers)} of {numbers[0]}"
            if alike
            else f"MultiDiscrete{tuple(numbers)}"
        )
    low, high = np.min(np.asarray(space.low)), np.max(np.asarray(space.high))
    shape = tuple(space.shape[space.batch_ndim :])
    return f"Box {shape}" + (
        f" in [{low:.4g}, {high:.4g}]" if np.isfinite([low, high]).all() else ""
    )


def picture(name: str) -> str:
    """Draws a random episode of a fixed seed up to step FRAMES; returns the picture's path from a page's folder."""
    import jax

    import wdjax

    path = PICTURES / f"{name}.png"
    if not path.exists():
        env, params = wdjax.make(name)
        replica = wdjax.vectorize(env, num_envs=1)
        act = jax.jit(jax.vmap(env.action_space(params).sample))
        _, state = replica.reset(jax.random.key(3), params)
        step, states = jax.jit(replica.step), [state.env_state]
        for key in jax.random.split(jax.random.key(4), FRAMES):
            _, state, *_ = step(key, state, act(key[None]), params)
            states.append(state.env_state)
        episode = jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)
        path.parent.mkdir(parents=True, exist_ok=True)
        wdjax.render(env, episode, params, output=path)
    return f"../_build/pictures/{name}.png"


# --- reference ---


def names(package: str) -> str:
    """Returns directives that document every public name of a package, in alphabetical order."""
    module = import_module(package)
    homes = {name for name in module.__all__ if inspect.ismodule(getattr(module, name))}
    entries = [
        _entry(package, name, getattr(module, name)) for name in sorted(set(module.__all__) - homes)
    ]
    return "\n".join(["```{eval-rst}", *entries, "```"])


def _entry(package: str, name: str, found: Any) -> str:
    if inspect.isclass(found):
        members = "" if "Config" in name or issubclass(found, Exception) else "   :members:\n"
        return f".. autoclass:: {package}.{name}\n{members}"
    if callable(found):
        return f".. autofunction:: {package}.{name}\n"
    return f".. py:data:: {package}.{name}\n\n   {_words_of(found)}\n"


def _words_of(value: Any) -> str:
    """Returns what a constant is: Python keeps no docstring of one."""
    if isinstance(value, np.ndarray):
        return f"An outline [{len(value)}, 2] about its place, of size about 1, heading along +x."
    if isinstance(value, dict):
        return f"Name -> (on light ground, on dark ground): {', '.join(value)}."
    return f"One of {', '.join(part.__name__ for part in value.__args__)}."


def notebooks() -> str:
    """Returns the contents of the notebooks' part of the site: nothing where there is none."""
    found = sorted(NOTEBOOKS.glob("*.ipynb"))
    pages = "\n".join(f"notebooks/{path.stem}" for path in found)
    return f"```{{toctree}}\n:hidden:\n:caption: Notebooks\n\n{pages}\n```" if found else ""


def configuration(name: str) -> str:
    """Returns the fields of a part of a preset, with what is true of each."""
    from wdjax.train.config import facts, schema

    cls = getattr(schema, name)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    rows = []
    for field, default, words in field_words(cls):
        true = [facts.words_of(fields[field])[1:-1], fields[field].metadata.get("allowed", "")]
        default = {"True": "true", "False": "false"}.get(default, default.strip("'"))  # as in YAML
        rows.append((_code(field), _code(default), words, "; ".join(filter(None, true))))
    return _table(("field", "default", "what", "facts"), rows)


def docstring(module: str) -> str:
    """Returns the docstring of a module as it stands there."""
    return f"```text\n{inspect.getdoc(import_module(module))}\n```"


def presets() -> str:
    """Returns the presets, with what each is for and costs: the first lines of its file."""
    folder = ROOT / "experiments" / "configs"
    rows = []
    for path in sorted(folder.glob("*.yaml")):
        lines = path.read_text(encoding="utf8").splitlines()
        head = [
            line.lstrip("# ")
            for line in lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")]
        ]
        rows.append((_code(path.stem), " ".join(head)))
    return _table(("preset", "what"), rows)


def commands() -> str:
    """Returns what `wdjax --help` prints."""
    from wdjax.experiments import cli

    return f"```text\n{inspect.cleandoc(cli.USAGE)}\n```"


# --- Sphinx ---


def expand(app: Any, page: str, source: list[str]) -> None:
    """Puts what is made from code in the place of the marks of a page."""
    source[0] = MARK.sub(
        lambda mark: globals()[mark[1].split()[0]](*mark[1].split()[1:]), source[0]
    )


def to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring, in place: indented equations become literal, stars and bars stay such."""
    text, literal = [], None
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        ends_open = line.endswith(":") and lines[i + 1 : i + 2] == [""] and i + 2 < len(lines)
        opens = (
            literal is None
            and ends_open
            and len(lines[i + 2]) - len(lines[i + 2].lstrip()) > indent
        )
        if literal is None:
            line = re.sub(
                r"`[^`]*`|[*|]",
                lambda found: found[0] if len(found[0]) > 1 else "\\" + found[0],
                line,
            )
            line = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", line) if "`" not in line else line
        if opens:
            literal, line = indent, line if line.endswith("::") else line + ":"
        text.append(line)
    if what == "class" and dataclasses.is_dataclass(obj) and "Config" not in name:
        words = [(field, said) for field, _, said in field_words(obj) if said]
        text += [
            "",
            *(f"* ``{field}``: {re.sub(r'([*|])', _ESCAPED, said)}" for field, said in words),
            "",
        ]
    # else napoleon takes what stands before a colon for a type
    if what in ("attribute", "property"):
        text = ["..", "", *text]
    lines[:] = text


def gather_notebooks() -> None:
    """Copies the notebooks to where Sphinx finds them: a link's pages would point to each other outside of the site."""
    shutil.rmtree(NOTEBOOKS, ignore_errors=True)
    NOTEBOOKS.mkdir()
    for path in (ROOT / "experiments" / "notebooks").glob("*.ipynb"):
        shutil.copy2(path, NOTEBOOKS)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    gather_notebooks()
    app.connect("source-read", expand)
    app.connect("autodoc-process-docstring", to_rst, priority=100)  # before napoleon's
    return {"parallel_read_safe": True}
