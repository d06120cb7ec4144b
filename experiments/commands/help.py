"""Help of wdjax train and sweep: a first screen, then one topic at a time."""

import contextlib
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from wdjax.experiments.commands.arguments import FACTS

SCREEN = """\
usage: wdjax train {preset} [--FIELD VALUE ...]

  wdjax train {name} --workdir runs/a --seed 1      set the run folder and the seed
  wdjax train {name} --dry-run                      print sizes and memory without training
  wdjax train {name} --workdir runs/a --resume      continue from the newest checkpoint
  wdjax train {name} --num-envs 64 --total-env-steps 100_000
  wdjax train {name} --policies.all.learning-rate 1e-3      set a field of every policy
  wdjax train {name} --lr 1e-3                      show the full name of a field
  wdjax train {name} --callbacks csv tensorboard    or wandb, or custom: package.module:function

An env step advances one replica once, with all its agents. An update is one rollout (num_envs x
rollout_length env steps) and the learning from it. A chunk is a number of updates that ends with a
line in metrics.jsonl."""


def help_topic(arguments: Sequence[str]) -> str | None:
    """Return the word after --help, "" if it is the last one, None without --help."""
    for i, word in enumerate(arguments):
        if word in ("-h", "--help"):
            return next(iter(arguments[i + 1 : i + 2]), "")
    return None


def help_text(screen: str, panels: Mapping[str, Sequence[str]], topic: str) -> str:
    """Return a screen and a line for each topic, or the flags of a topic (see `of_topic`).

    Args:
        screen: text before the list of topics.
        panels: topic -> texts of its flags.
        topic: a topic, part of a flag's name, or "".

    Raises:
        ValueError: for a topic without flags; the message lists the topics.
    """
    if topic:
        return of_topic(panels, topic)
    lines = [
        f"  {name:28s}{len(flags):3d} flags: {_first(flags)}" for name, flags in panels.items()
    ]
    head = "topics: --help TOPIC, or part of a flag's name: --help learning-rate"
    return "\n".join([screen, "", head, *lines, f"  {'all':31s}every flag"])


def panels_by_tyro(cls: type, prog: str, **options: Any) -> dict[str, list[str]]:
    """Return topic -> texts of its flags in tyro's help; those without a prefix are "run"."""
    screen = io.StringIO()  # without an encoding: tyro writes neither boxes nor colors
    with contextlib.redirect_stdout(screen), contextlib.suppress(SystemExit):
        tyro.cli(cls, prog=prog, args=["--help"], registry=FACTS, **options)
    plain = re.sub(r" +$", "", screen.getvalue(), flags=re.MULTILINE)
    _, *panels = re.split(r"^ (?:(\S+) )?options\n -+\n", plain, flags=re.MULTILINE)
    flags = (
        re.findall(r"^  --?\w.*(?:\n(?!  --?\w).+)*", panel, re.MULTILINE) for panel in panels[1::2]
    )
    return {topic or "run": own for topic, own in zip(panels[::2], flags, strict=True)}


def of_topic(panels: Mapping[str, Sequence[str]], topic: str) -> str:
    """Return the flags of a topic, or those whose names contain the word.

    Raises:
        ValueError: if there are none.
    """
    word = topic.lstrip("-").replace("_", "-")
    if word == "all" or word in panels:
        chosen = panels if word == "all" else {word: panels[word]}
    else:
        found = {
            name: [f for f in flags if word in f.splitlines()[0]] for name, flags in panels.items()
        }
        chosen = {name: flags for name, flags in found.items() if flags}
    if not chosen:
        raise ValueError(
            f"--help {topic}: no flag name contains this. Topics: {', '.join(panels)}, all"
        )
    return "\n".join(line for name, flags in chosen.items() for line in [f"{name}:", *flags])


def _first(flags: Sequence[str]) -> str:
    flags = [flag for flag in flags if "--help" not in flag.splitlines()[0]]
    names = [re.sub(r"--(.*\.)?", "", flag.split()[0].rstrip(",")) for flag in flags]
    return textwrap.shorten(", ".join(names), 58, placeholder=" ...", break_on_hyphens=False)
