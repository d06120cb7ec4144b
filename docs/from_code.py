"""Sphinx extension that generates parts of pages from the code.

A line `<!-- from code: environment cartpole -->` is replaced by the result of
`environment("cartpole")`.
"""

import ast
import dataclasses
import inspect
import io
import itertools
import re
import shutil
import textwrap
import tokenize
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

MARK = re.compile(r"^<!-- from code: (.+) -->$", re.MULTILINE)
ROOT = Path(__file__).resolve().parents[1]
PICTURES, NOTEBOOKS = ROOT / "docs" / "_build" / "pictures", ROOT / "docs" / "notebooks"
_ESCAPED = r"\\\1"
FRAMES = 40  # env steps in the picture of an environment


# --- fields of a class ---


def field_words(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yield (name, default, comment or docstring) for each field of a class, parents first."""
    for part in reversed(cls.__mro__):
        if part.__module__.startswith("wdjax") and "__annotations__" in vars(part):
            yield from _own_field_words(textwrap.dedent(inspect.getsource(part)))


def _own_field_words(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, default, comment or docstring) for each field in the source of one class."""
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
    """Return the default as text; the first argument of `traced(...)` and `static(...)`."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("traced", "static"):
        value = value.args[0]
    elif isinstance(value, ast.Call) and value.keywords:  # dataclasses.field(default_factory=dict)
        value = next((word.value for word in value.keywords if word.arg == "default_factory"), None)
    text = "" if value is None else ast.unparse(value)
    return {"dict": "{}", "math.inf": ".inf"}.get(text, text)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _code(text: str) -> str:
    """Mark text as code, unless it is empty."""
    return f"`{text}`" if text else ""


def _fields(cls: type, head: tuple[str, ...] = ("name", "default", "description")) -> str:
    """Return a table of the fields of a class; without defaults, a table of two columns."""
    rows = [(_code(name), _code(default), words) for name, default, words in field_words(cls)]
    if not any(default for _, default, _ in rows):
        return _table((head[0], head[2]), [(name, words) for name, _, words in rows])
    return _table(head, rows)


# --- a page of an environment ---


def environment(name: str, *options: str) -> str:
    """Describe an environment: spaces, rules, parameters with units, state, scripts and source.

    Args:
        name: a registered environment.
        *options: `picture` adds a random episode with a fixed seed; `rules` adds the docstrings of
            its methods; `source` adds the source named by the module.

    Returns:
        Markdown.
    """
    import wdjax

    env, params = wdjax.make(name)
    cls, module = type(env), import_module(type(env).__module__)
    parts = [f"`{name}` is {{py:class}}`wdjax.envs.{cls.__name__}`. {inspect.getdoc(cls)}"]
    if "picture" in options:
        parts += [f"![{name}, random play]({picture(name)})", "*Random play, fixed seed.*"]
    parts += ["## Spaces", _spaces(env, params)]
    if "rules" in options:
        methods = {"Start": getattr(cls, "start", cls.reset), "Step and reward": cls.step}
        if not {"step", "advance"} & vars(cls).keys():  # inherited from ClassicControl
            methods = {"Start": cls.start, "Step": cls.dynamics, "Termination": cls.is_over}
            methods["Reward"] = cls.reward
        if hasattr(cls, "observe"):
            methods["Observation"] = cls.observe
        for heading, method in methods.items():
            parts += [f"## {heading}", rules(method)]
    parts += [
        "## Parameters",
        "Traced parameters: set by `env_params` of a preset; swept and vmapped without "
        "recompiling.",
    ]
    parts += [_fields(type(params), ("name", "default", "description, unit"))]
    if dataclasses.fields(cls):
        parts += ["Static fields: they fix shapes or rules; changing one recompiles.", _fields(cls)]
    states = [value for value in vars(module).values() if getattr(value, "__name__", "") == "State"]
    if states:
        parts += ["## State", _fields(states[0], ("name", "default", "shape, type, unit"))]
    if env.scripts:
        names = ", ".join(f"`{script}` ({group})" for script, (group, _) in env.scripts.items())
        parts += [f"Scripted policies and their groups (`wdjax eval --opponents`): {names}."]
    if "source" in options:
        doc = inspect.getdoc(module) or ""
        parts += ["## Source", doc[doc.index("Source") :].partition(":")[2].strip()]
    text = "\n\n".join(parts)
    return text if "rules" in options else text.replace("\n## ", "\n### ")


def rules(method: Any) -> str:
    """Return the rules in the docstring of a method.

    The sections `Args`, `Returns` and `Raises` are removed. A summary that names the returned value
    is removed too if details follow it.
    """
    doc = inspect.getdoc(method) or ""
    doc = re.split(r"^(?:Args|Returns|Raises):$", doc, maxsplit=1, flags=re.MULTILINE)[0].strip()
    summary, _, details = doc.partition("\n\n")
    if summary.startswith("Return whether "):
        return f"If {doc.removeprefix('Return whether ')}"
    return details or summary.removeprefix("Return ") if summary.startswith("Return ") else doc


def _spaces(env: Any, params: Any) -> str:
    observations, actions = env.observation_space(params), env.action_space(params)
    groups = dict(env.groups) or {"agent": 1}

    def space_of(spaces: Any, group: str) -> Any:
        return spaces.spaces[group] if env.groups else spaces

    rows = [
        (
            _code(group),
            str(number),
            describe(space_of(observations, group)),
            describe(space_of(actions, group)),
        )
        for group, number in groups.items()
    ]
    ends = "can be" if env.can_truncate else "are never"
    table = _table(("group", "agents", "observation of one agent", "action of one agent"), rows)
    return f"{table}\nWith default parameters; episodes {ends} truncated by a time limit."


def describe(space: Any) -> str:
    """Return a short description of a space, for a table."""
    if hasattr(space, "spaces"):
        return "; ".join(f"`{name}`: {describe(part)}" for name, part in space.spaces.items())
    if hasattr(space, "n"):  # Discrete, which also has nvec
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
    """Draw FRAMES env steps of random play with a fixed seed; return the path relative to a page.

    The SVG has a light and a dark palette and follows `prefers-color-scheme`.
    """
    import jax

    import wdjax

    path = PICTURES / f"{name}.svg"
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
    return f"../_build/pictures/{name}.svg"


# --- reference ---


def names(package: str, parent: str = "") -> str:
    """Return directives that document every public name of a package, in alphabetical order.

    Classes that `parent` exports, too, are documented there: here is a link to each.
    """
    with mock.patch("builtins.print"):  # importing jaxmarl prints, and replaces sys.stdout
        module = import_module(package)
        public = {name: getattr(module, name) for name in sorted(module.__all__)}
    outer = import_module(parent).__all__ if parent else ()
    entries = [
        _entry(package, name, value)
        for name, value in public.items()
        if not inspect.ismodule(value) and name not in outer
    ]
    links = ", ".join(f":py:obj:`{parent}.{name}`" for name in public if name in outer)
    if links:
        entries = [f"Also exported by ``{parent}``, and documented there: {links}.\n", *entries]
    return "\n".join(["```{eval-rst}", *entries, "```"])


def _entry(package: str, name: str, value: Any) -> str:
    """Return the directive that documents one public name."""
    if inspect.isclass(value):
        members = "" if "Config" in name or issubclass(value, Exception) else "   :members:\n"
        return f".. autoclass:: {package}.{name}\n{members}"
    if callable(value) and not typing.get_args(value):
        return f".. autofunction:: {package}.{name}\n"
    text = _text_below(package, name) or _describe_constant(value)
    return f".. py:data:: {package}.{name}\n\n   {text}\n"


def _text_below(package: str, name: str) -> str:
    """Return the string below the definition of a constant in its module, or ""."""
    home = getattr(import_module(package), "_HOME", {}).get(name, package)
    body = ast.parse(inspect.getsource(import_module(home))).body
    for part, after in itertools.pairwise(body):
        if isinstance(part, ast.AnnAssign) and ast.unparse(part.target) == name:
            return ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
    return ""


def _describe_constant(value: Any) -> str:
    """Describe a constant without a string below it."""
    if isinstance(value, np.ndarray):
        return (
            f"Outline, [{len(value)}, 2], centered at the origin, size about 1, pointing along +x."
        )
    if isinstance(value, dict):
        return f"Name -> (color on light ground, color on dark ground): {', '.join(value)}."
    return f"Type: ``{re.sub(r'([a-z_]+[.])+', '', str(value))}``."


def notebooks() -> str:
    """Return the table of contents of the notebooks; empty if there are none."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"), key=lambda path: int(path.stem.partition("_")[0]))
    pages = "\n".join(f"notebooks/{path.stem}" for path in paths)
    return f"```{{toctree}}\n:hidden:\n:caption: Notebooks\n\n{pages}\n```" if paths else ""


def configuration(name: str) -> str:
    """Return a table of the fields of a config class, or of the options of an algorithm."""
    from wdjax.train.config import facts, schema
    from wdjax.train.state.registry import find_algorithm

    cls = getattr(schema, name) if hasattr(schema, name) else find_algorithm(name).Options
    fields = {field.name: field for field in dataclasses.fields(cls)}
    rows = []
    for field, default, words in field_words(cls):
        notes = [
            "traced" * facts.is_traced(fields[field]),
            fields[field].metadata.get("allowed", ""),
        ]
        default = {"True": "true", "False": "false"}.get(default, default.strip("'"))  # as in YAML
        rows.append((_code(field), _code(default), words, "; ".join(filter(None, notes))))
    return _table(("field", "default", "description", "notes"), rows)


def docstring(module: str) -> str:
    """Return the docstring of a module as a text block."""
    return f"```text\n{inspect.getdoc(import_module(module))}\n```"


def presets() -> str:
    """Return a table of the presets with the comment at the top of each file."""
    folder = ROOT / "experiments" / "configs"
    rows = []
    for path in sorted(folder.glob("*.yaml")):
        lines = path.read_text(encoding="utf8").splitlines()
        head = [
            line.lstrip("# ")
            for line in lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")]
        ]
        rows.append((_code(path.stem), " ".join(head)))
    return _table(("preset", "description"), rows)


def commands() -> str:
    """Return the output of `wdjax --help`."""
    from wdjax.experiments import cli

    return f"```text\n{inspect.cleandoc(cli.USAGE)}\n```"


# --- Sphinx ---


def expand(app: Any, page: str, source: list[str]) -> None:
    """Replace the marks of a page by generated text."""
    source[0] = MARK.sub(
        lambda mark: globals()[mark[1].split()[0]](*mark[1].split()[1:]), source[0]
    )


def to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring to reStructuredText in place.

    Indented equations become literal blocks; stars and bars are escaped.
    """
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
                lambda match: match[0] if len(match[0]) > 1 else "\\" + match[0],
                line,
            )
            line = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", line) if "`" not in line else line
        if opens:
            literal, line = indent, line if line.endswith("::") else line + ":"
        text.append(line)
    if what == "class" and dataclasses.is_dataclass(obj) and "Config" not in name:
        descriptions = [(field, words) for field, _, words in field_words(obj) if words]
        text += [
            "",
            *(
                f"* ``{field}``: {re.sub(r'([*|])', _ESCAPED, words)}"
                for field, words in descriptions
            ),
            "",
        ]
    # an empty comment first, or napoleon reads text before a colon as a type
    if what in ("attribute", "property"):
        text = ["..", "", *text]
    lines[:] = text


def gather_notebooks() -> None:
    """Copy the notebooks below `docs`, so that links between them stay inside the site."""
    shutil.rmtree(NOTEBOOKS, ignore_errors=True)
    NOTEBOOKS.mkdir()
    for path in (ROOT / "experiments" / "notebooks").glob("*.ipynb"):
        shutil.copy2(path, NOTEBOOKS)


def setup(app: Any) -> dict[str, bool]:
    """Register the extension."""
    gather_notebooks()
    app.connect("source-read", expand)
    app.connect("autodoc-process-docstring", to_rst, priority=100)  # before napoleon's
    return {"parallel_read_safe": True}
