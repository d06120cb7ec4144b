"""Arguments of the commands, and their error messages."""

import contextlib
import dataclasses
import difflib
import functools
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from wdjax.checks import did_you_mean, one_line, require
from wdjax.train import Fraction, Schedule
from wdjax.train.config.facts import words_of
from wdjax.train.state.registry import policy_fields

_OF_MODULES = (
    "Allow saved runs to import code from this module or its submodules. Repeat for several."
)
Modules = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MODULE", help=_OF_MODULES)
]

_OF_CALLBACKS = (
    "Callbacks after every chunk: csv, tensorboard, wandb (each logs the metrics), or a "
    "custom one, "
    "package.module:function (docs/how_to/callbacks.md)."
)
Callbacks = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help=_OF_CALLBACKS)]

# Runs and files, with short help texts without "(default: None)" or "(default: )".
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Runs = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="")
]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]

PATHS = ("--workdir", "--output", "--npz", "--file")

# An example of a mapping's flag, by the last part of its name.
PAIRS = {
    "stop-at": "agent/episode_return 475",
    "opponents": "random 0.3",
    "encoder-options": "num_heads 4",
}

# Pattern of an error by tyro -> our text.
REWORDED = (
    (r"could not convert string to float: (.*)", r"\1 must be a number"),
    (r"(--\S*?([\w-]+)): Failed to parse key-value pairs!?",
     lambda match: f"{match[1]}: must be name and value pairs, such as "
                   f"{PAIRS.get(match[2], 'NAME VALUE')}"),
    (r"Could not find valid parse for arguments: \[(.*)\]",
        r"\1 must be values separated by spaces, such as 64 64"),
    (r"Missing value for argument '(.*)'\. Expected .* values?", r"\1 needs a value"),
    (r"no type matching FLOAT\|\S*\[FLOAT FLOAT .* could be instantiated from \[(.*)\]",
     r"\1 must be a number, or pairs of env step and value, such as 0 1e-3 100_000 1e-4"),
    (r"no type matching \{(\w+),(\w+)\}\|INT could be instantiated from \[(.*)\]",
     r"\3 must be \1, \2 or a whole number"),
)  # fmt: skip

FACTS = tyro.constructors.ConstructorRegistry()


@FACTS.struct_rule
def facts_in_help(
    info: tyro.constructors.StructTypeInfo,
) -> tyro.constructors.StructConstructorSpec | None:
    """Put "(traced)" before the help of traced fields; omit the name of a `flat` field in flags."""
    if not dataclasses.is_dataclass(info.type) or info in _UNDER_WAY:
        return None
    _UNDER_WAY.append(info)
    try:
        # the rule of tyro, because this one returns None
        spec: Any = tyro.constructors.ConstructorRegistry.get_struct_spec(info)
    finally:
        _UNDER_WAY.remove(info)
    told = []
    for given in spec.fields:
        field = info.type.__dataclass_fields__[given.name]
        own = dataclasses.replace(
            given, helptext=functools.partial(_told, words_of(field), given.helptext)
        )
        if field.metadata.get("flat"):
            own = dataclasses.replace(
                own, type=Annotated[type(given.default), tyro.conf.arg(name="")]
            )
        told.append(own)
    return dataclasses.replace(spec, fields=tuple(told))


@FACTS.primitive_rule
def whole_numbers(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Accept 1e6 as an integer, as presets do."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=lambda words: _whole(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )  # fmt: skip


@FACTS.primitive_rule
def schedules(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Accept a number, or pairs of env step (after `fraction`: fraction of the run) and value."""
    if info.type != Schedule:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*", metavar="FLOAT|[FLOAT FLOAT ...]|fraction FLOAT FLOAT ...",
        instance_from_str=_schedule,
        is_instance=lambda value: isinstance(value, float | int | tuple),
        str_from_instance=_schedule_words,
    )  # fmt: skip


def _schedule(words: list[str]) -> Schedule:
    kind, words = (Fraction, words[1:]) if words[:1] == ["fraction"] else (tuple, words)
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and kind is tuple:
        return numbers[0]
    if not numbers or len(numbers) % 2:
        pairs = (
            "pairs of env step and value (0 1e-3 100_000 1e-4), or of fraction and value "
            "(fraction 0 1e-3 1 1e-4)"
        )
        raise ValueError(f"{' '.join(words)!r} must be a number, or {pairs}")
    return kind(zip(numbers[::2], numbers[1::2], strict=True))


def _schedule_words(schedule: Schedule) -> list[str]:
    kind = ["fraction"] if isinstance(schedule, Fraction) else []
    return kind + [str(number) for number in np.ravel(schedule).tolist()]


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        with contextlib.suppress(ValueError):
            if float(word).is_integer():
                return int(float(word))
        raise ValueError(f"{word!r} must be a whole number") from None


_UNDER_WAY: list[tyro.constructors.StructTypeInfo] = []


def _told(facts: str, helptext: Any) -> str:
    words = helptext() if callable(helptext) else helptext
    return " ".join([facts, *(words or "").split()]).strip()  # one paragraph


def parse(cls: type, prog: str, arguments: list[str], **options: Any) -> Any:
    """Parse arguments as a dataclass.

    Raises:
        ValueError: if tyro rejects them; its panel becomes one sentence.
    """
    for flag, value in flags_of([*arguments, "--"]):
        require(
            value or flag not in PATHS, flag, value, "a path"
        )  # "" would mean the current folder
        named = flag != "--callbacks" or not value.startswith("--")
        require(named, flag, "", "followed by a name, such as csv or mine:function")
    panel = io.StringIO()
    try:
        with contextlib.redirect_stderr(panel):
            return tyro.cli(cls, prog=prog, args=arguments, registry=FACTS, **options)
    except SystemExit as ended:
        if ended.code != 2:  # 0: --help
            raise
    policies = getattr(getattr(options.get("default"), "config", None), "policies", ())
    raise ValueError(mistake(panel.getvalue(), arguments, policies))


def flags_of(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (flag, value) of "--flag value" and "--flag=value", also of unknown flags."""
    return itertools.pairwise(
        itertools.chain.from_iterable(word.split("=", 1) for word in arguments)
    )


def mistake(panel: str, arguments: list[str], policies: Iterable[str] = ()) -> str:
    """Return the error in a panel of tyro as one sentence, with the closest flag.

    Args:
        panel: title, error and hints, separated by horizontal lines, with or without box and
            colors.
        arguments: arguments of the command line.
        policies: names of policies, for flags that lack one.
    """
    plain = one_line(re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯]", " ", panel))
    _, wrong, hints = re.split(r" ?[─-]{3,} ?", plain, maxsplit=2)
    wrong = wrong.split(" Got errors:")[0].rstrip(".")
    for pattern, words in REWORDED:
        wrong = re.sub(pattern, words, wrong)
    if choice := re.match(r"invalid choice '(.*)' for .* Expected one of \('(.*)'\)$", wrong):
        allowed = choice[2].split("', '")
        return f"{wrong}: {did_you_mean(choice[1], allowed)}"
    if short := re.match(
        r"Unrecognized options: -?(\w[\w.-]*)=(\S+)|Unrecognized options: -(\w[\w.-]*)", wrong
    ):
        flag = f"--{short[1]} {short[2]}" if short[1] else f"--{short[3]}"
        return f"{wrong}: flags start with two dashes: {flag} (see --help)"
    if unknown := re.match(r"Unrecognized options: --(policies\.[^.]+\.)?([\w-]+)", wrong):
        if unknown[2] in ("options", "ddpg"):
            return f"{wrong}: set each option on its own, such as --{unknown[1] or ''}clip 0.1"
        inside = policy_fields(unknown[2].replace("-", "_"), policies)
        own = [name for name in inside if name.startswith(unknown[1] or "")] or inside
        if f"{unknown[1]}{unknown[2]}".replace("-", "_") in own:
            return f"{wrong}: the algorithm of this policy has no such option"
        name = (unknown[1] or "").removeprefix("policies.").rstrip(".")
        if not own and isinstance(policies, Mapping) and name in policies:
            config = policies[name]
            fields = [f.name for part in (config, config.options) for f in dataclasses.fields(part)]
            if not difflib.get_close_matches(unknown[2].replace("-", "_"), fields):
                reason = f"{config.algorithm} has no option {unknown[2]}"
                return f"{wrong}: {reason}. Set --{unknown[1]}algorithm to one that has it"
        if own:
            return (
                f"{wrong}: did you mean "
                f"{' or '.join('--' + name.replace('_', '-') for name in own)}?"
            )
    if near := re.match(r"Perhaps you meant: (--[^\s,]+)", hints):
        return f"{wrong}: did you mean {near[1]}?"
    first = wrong.removeprefix("Unrecognized options: ").split(",")[0]
    before = (
        arguments[: arguments.index(first)]
        if first in arguments and not first.startswith("-")
        else []
    )
    flags = [argument for argument in before if argument.startswith("--")]
    return f"{wrong}{f', after {flags[-1]}' if flags else ''} (see --help)"


def require_preset(command: str, arguments: list[str]) -> list[str]:
    """Return the arguments of a command; raise ValueError if the first one is no preset."""
    if not arguments or arguments[0].startswith("-"):
        words = "such as tag_small (see wdjax list), or a YAML file"
        raise ValueError(
            f"wdjax {command} needs a preset first, {words}. Help: wdjax {command} PRESET --help"
        )
    return arguments


def require_run(command: str, arguments: Sequence[str]) -> None:
    """Raise ValueError if a command got no run."""
    if not arguments:
        more = f"wdjax {command} --help"
        raise ValueError(
            f"wdjax {command} needs a run, the folder that wdjax train wrote. Help: {more}"
        )


def require_seed(seed: int) -> None:
    """Raise ValueError for a seed that jax would truncate."""
    require(0 <= seed < 2**32, "--seed", seed, "at least 0 and below 2**32")
