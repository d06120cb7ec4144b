"""Arguments of the commands, and their error messages."""

import contextlib
import dataclasses
import difflib
import fractions
import functools
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.table import Column, Table
from rich.text import Text

from wdjax.checks import one_line, require
from wdjax.console import table_console
from wdjax.tables import brief
from wdjax.train import (
    Fraction,
    Schedule,
    TrainConfig,
    change_config,
    preset_path,
    read_warp_drive,
)
from wdjax.train.storage.fields import Fields

Modules = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(
        metavar="MODULE",
        help="Allow saved runs to import code from this module or its submodules. "
        "Repeat for several.",
    ),
]
Callbacks = Annotated[
    tuple[str, ...],
    tyro.conf.arg(
        metavar="NAME ...",
        help="Callbacks after every chunk: csv, tensorboard, wandb (each logs the metrics), or a "
        "custom one, package.module:function (docs/how_to/callbacks.md).",
    ),
]

# Runs and files, with short help texts without "(default: None)" or "(default: )".
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Runs = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="")
]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]

PATHS = ("--workdir", "--output", "--npz", "--file")

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
    fields = []
    for field in spec.fields:
        facts = info.type.__dataclass_fields__[field.name].metadata
        words = functools.partial(_in_one_paragraph, "traced" in facts, field.helptext)
        changes: dict[str, Any] = {"helptext": words}
        if facts.get("flat"):
            changes["type"] = Annotated[type(field.default), tyro.conf.arg(name="")]
        fields.append(dataclasses.replace(field, **changes))
    return dataclasses.replace(spec, fields=tuple(fields))


_UNDER_WAY: list[tyro.constructors.StructTypeInfo] = []


def _in_one_paragraph(traced: bool, helptext: Any) -> str:
    words = helptext() if callable(helptext) else helptext
    return " ".join([*["(traced)"] * bool(traced), *(words or "").split()])


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
        instance_from_str=Fields.schedule,
        is_instance=lambda value: isinstance(value, float | int | tuple),
        str_from_instance=_schedule_words,
    )  # fmt: skip


def _schedule_words(schedule: Schedule) -> list[str]:
    kind = ["fraction"] if isinstance(schedule, Fraction) else []
    return kind + [str(number) for number in np.ravel(schedule).tolist()]


def _whole(word: str) -> int:
    with contextlib.suppress(ValueError):
        if float(word).is_integer():
            return int(fractions.Fraction(word))  # a float would round large numbers
    raise ValueError(f"{word!r} must be a whole number")


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
    raise ValueError(mistake(panel.getvalue(), getattr(options.get("default"), "config", None)))


def flags_of(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (flag, value) of "--flag value" and "--flag=value", also of unknown flags."""
    return itertools.pairwise(
        itertools.chain.from_iterable(word.split("=", 1) for word in arguments)
    )


def mistake(panel: str, config: TrainConfig | None = None) -> str:
    """Return the error in a panel of tyro as one sentence, with the closest flag.

    Args:
        panel: title, error and hints, separated by horizontal lines, with or without box and
            colors.
        config: configuration of a run, whose fields are flags.
    """
    plain = one_line(re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯]", " ", panel))
    _, wrong, hints = re.split(r" ?[─-]{3,} ?", plain, maxsplit=2)
    wrong = wrong.split(" Got errors:")[0].rstrip(".")
    if flag := re.match(r"Unrecognized options: --([\w.-]+)(?:(?:, |=)(.*))?", wrong):
        last = lambda name: name.rpartition(".")[2]  # noqa: E731
        near = re.findall(r"--([\w.-]+)", hints) if hints.startswith("Perhaps") else []
        if difflib.get_close_matches(last(flag[1]), map(last, near[:1]), cutoff=0.7):
            same = [name for name in near if last(name) == last(flag[1])] or near[:1]
            return f"{wrong}: did you mean --{' or --'.join(same)}?"
        if config is not None:
            try:
                change_config(config, **{flag[1].replace("-", "_"): flag[2]})
            except (ValueError, TypeError) as error:
                return f"{wrong}: {error}"
    return f"{wrong} (see --help)"


def require_preset(command: str, arguments: list[str]) -> list[str]:
    """Return the arguments of a command; raise ValueError if the first one is no preset."""
    if not arguments or arguments[0].startswith("-"):
        words = "such as tag_small (see wdjax list), or a YAML file"
        raise ValueError(
            f"wdjax {command} needs a preset first, {words}. Help: wdjax {command} PRESET --help"
        )
    return arguments


def show_warp_drive(preset: str) -> None:
    """Print the settings of a run configuration of WarpDrive and their effects, as a table."""
    if (run := read_warp_drive(preset_path(preset))) is None:
        return
    columns = (Column(name, overflow="fold") for name in ("setting", "value", "status", "wdjax"))
    table = Table(*columns, title=f"{preset}: WarpDrive configuration")
    for own in run.settings:
        value = f"{brief(own.value)}{' (default)' * own.is_default}"
        table.add_row(*map(Text, (own.name, value, own.status, own.effect)))
    table_console(highlight=False).print(table)


def require_run(command: str, arguments: Sequence[str]) -> None:
    """Raise ValueError if a command got no run."""
    if not arguments:
        more = f"wdjax {command} --help"
        raise ValueError(
            f"wdjax {command} needs a run, the folder that wdjax train wrote. Help: {more}"
        )


def folder_of(run: str) -> Path:
    """Return the folder of a run that may end with a checkpoint, such as "runs/a@best"."""
    return Path(run.rpartition("@")[0] if "@" in run and not Path(run).exists() else run)


def require_seed(seed: int) -> None:
    """Raise ValueError for a seed that jax would truncate."""
    require(0 <= seed < 2**32, "--seed", seed, "at least 0 and below 2**32")
