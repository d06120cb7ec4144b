"""Trust in custom code: which modules a configuration from a folder may import.

Presets, the command line and Python code are written by the user, and thus trusted. The
configuration in the folder of a run or a sweep may come from another person: `require_trusted`
checks it before anything that it names is imported, wherever such a folder is read.
"""

import dataclasses
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from wdjax.checks import require
from wdjax.envs import LIBRARIES
from wdjax.named import announced, lies_here
from wdjax.train.config.schema import TrainConfig


class UntrustedModuleError(ValueError):
    """A configuration names code of modules that are not trusted."""

    def __init__(self, message: str, modules: Collection[str] = ()):
        super().__init__(message)
        self.modules = modules


def code_named(values: object, cls: Any = TrainConfig, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield all code that a configuration names.

    Args:
        values: an instance of `cls`, or raw mappings from a file, with any content.
        cls: class of the configuration.
        path: prefix of the names of fields.

    Yields:
        (dotted field, "package.module:Name").
    """
    values = vars(values) if isinstance(values, cls) else values
    if not isinstance(values, Mapping):
        return
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        name, value, hint = f"{path}{field.name}", values.get(field.name), hints[field.name]
        held = typing.get_args(hint)[-1] if typing.get_origin(hint) is dict else None
        if field.metadata.get("code"):
            yield from ((name, text) for text in _texts(value) if ":" in text)
        elif dataclasses.is_dataclass(hint):
            yield from code_named(value, hint, f"{name}.")
        elif dataclasses.is_dataclass(held) and isinstance(value, Mapping):
            for key, inner in value.items():
                yield from code_named(inner, held, f"{name}.{key}.")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def with_own(trust: Collection[str], config: TrainConfig) -> tuple[str, ...]:
    """Return the modules that a configuration from the user may name, including those it names."""
    return (*_checked(trust), *(text.partition(":")[0] for _, text in code_named(config)))


def require_trusted(what: str, values: object, trust: Collection[str]) -> None:
    """Raise UntrustedModuleError if a configuration names code of an untrusted module.

    Trusted are wdjax; the modules of `trust` with their submodules; libraries whose environments
    wdjax supports; and modules of entry points of installed packages in the groups "wdjax.*". The
    last two must not be in the current folder.

    Args:
        what: name of the configuration in the message.
        values: the configuration as raw mappings.
        trust: additional trusted modules.
    """
    if others := untrusted_code(values, trust):
        module, field, text = others[0]
        raise UntrustedModuleError(
            f"{what} names code in the module {module!r} ({field} = {text!r}), which would be "
            f'executed. If you trust it, pass --trust {module} (in Python trust=("{module}",)).',
            tuple(dict.fromkeys(module for module, _, _ in others)),
        )


def untrusted_code(values: object, trust: Collection[str] = ()) -> list[tuple[str, str, str]]:
    """Return the code in a configuration that `require_trusted` refuses.

    Returns:
        [(module, dotted field, "package.module:Name")].
    """
    trusted = ("wdjax", *_checked(trust))
    named = [(text.partition(":")[0], field, text) for field, text in code_named(values)]
    return [code for code in named if not (_is_inside(code[0], trusted) or _is_installed(code[0]))]


def custom_modules(config: TrainConfig) -> tuple[str, ...]:
    """Return the modules of custom code that a configuration names: `trust` to load its run.

    Modules of wdjax, of known libraries and of packages with entry points for wdjax are omitted.

    Args:
        config: the configuration.
    """
    return tuple(dict.fromkeys(module for module, _, _ in untrusted_code(config)))


def _is_installed(module: str) -> bool:
    """Return whether a module is of a known library or an entry point, and not a local file."""
    known = (*LIBRARIES, *(entry.module for entry in announced("wdjax.")))
    return _is_inside(module, known) and not lies_here(module.partition(".")[0])


def _checked(trust: Collection[str]) -> Collection[str]:
    several = isinstance(trust, Collection) and not isinstance(trust, str)
    if not (several and all(isinstance(module, str) for module in trust)):
        raise TypeError(f"trust = {trust!r}: must be a list of module names")
    for module in trust:
        file = module.endswith(".py")
        named = not file and all(part.isidentifier() for part in module.split("."))
        hint = f". Try {Path(module).stem}." if file else ""
        require(named, "trust", module, f"a module name such as package.module{hint}")
    return trust


def _is_inside(module: str, trusted: Collection[str]) -> bool:
    return any(module == own or module.startswith(f"{own}.") for own in trusted)
