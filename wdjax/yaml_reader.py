"""YAML reader for config.yaml, presets, sweep.yaml and calibrations, which may be untrusted."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from wdjax.checks import one_line
from wdjax.files import read_text

MOST_BYTES, MOST_VALUES, MOST_DEPTH = 2**22, 200_000, 50


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader that also reads 1e-4 as a float (YAML 1.2) and rejects duplicate keys.

    It limits the nesting depth and the number of values. Values behind an alias count every time it
    is used, because aliases can expand a few hundred bytes to billions of values.
    """

    def __init__(self, stream: str):
        super().__init__(stream)
        self.depth = self.values = 0
        self.sizes: dict[yaml.Node, int] = {}  # number of values inside a complete node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        alias, before = self.check_event(yaml.AliasEvent), self.values
        mark = self.peek_event().start_mark
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if alias and node not in self.sizes:
            raise yaml.MarkedYAMLError(problem="a value contains itself", problem_mark=mark)
        self.values += self.sizes[node] if alias else 1
        self.sizes.setdefault(node, self.values - before)
        if self.depth > MOST_DEPTH or self.values > MOST_VALUES:
            most = f"{MOST_DEPTH} deep, or more than {MOST_VALUES:,} values, aliases included"
            problem = f"nested more than {most}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return node


_EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d+)[eE][-+]?\d+$")
_ODD = re.compile(r"[-+]?(0[0-7_]+|0b[01_]+|0x[\da-fA-F_]+|\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?)$")
# YAML 1.1 reads 010 as 8 and 1:30 as 90. Here both are strings, which numeric fields reject.
_Loader.yaml_implicit_resolvers = {
    first: [("tag:yaml.org,2002:str", _ODD), *others] if first in "-+0123456789" else others
    for first, others in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_yaml_value(source: Path | str) -> Any:
    """Return the content of a YAML file (a Path) or of a YAML text (a str).

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if the YAML is invalid or too large. The message begins with the path or text.
    """
    name = source if isinstance(source, Path) else repr(source)
    try:
        return yaml.load(
            read_text(source, MOST_BYTES) if isinstance(source, Path) else source, _Loader
        )
    # ValueError: invalid UTF-8, or a date such as 2020-13-01
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{name}: invalid YAML: {_yaml_words(error)}") from None
    except RecursionError:
        raise ValueError(f"{name}: invalid YAML: nested too deeply") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        OSError, ValueError: as `read_yaml_value`, and for a file without a mapping.
    """
    content = read_yaml_value(path)
    if not isinstance(content, dict):
        held = "nothing" if content is None else type(content).__name__
        raise ValueError(f"{path}: must contain a mapping of fields, not {held}")
    return content


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """Return dotted name -> value of nested mappings, with `path` before the names."""
    if not isinstance(values, Mapping):
        return {path: values}
    return {
        k: v
        for name, item in values.items()
        for k, v in flat(item, f"{path}.{name}" if path else name).items()
    }


def _yaml_words(error: Exception) -> str:
    """Return the problem in a YAML file and its position, as a single line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return one_line(error)
    problem, context = (
        one_line(getattr(error, "problem", None) or ""),
        getattr(error, "context", None),
    )
    if context and (not problem or problem.startswith("but ")):
        problem = one_line(f"{context} {problem}")
    tab = ": indent with spaces" if "'\\t'" in problem else ""
    return f"{problem}{tab} (line {mark.line + 1}, column {mark.column + 1})"
