"""wdjax completion: a completion script for shells."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from wdjax.experiments.commands.help import panels_by_tyro
from wdjax.experiments.commands.play import PlayArguments
from wdjax.experiments.commands.players import EvalArguments, ExportArguments, RenderArguments
from wdjax.experiments.commands.report import ReportArguments
from wdjax.experiments.commands.sweep import SweepArguments
from wdjax.experiments.commands.train import TrainArguments, of_preset
from wdjax.train import list_presets

SCRIPT = """\
# bash: add eval "$(wdjax completion)" to ~/.bashrc.
# zsh: first run autoload -U bashcompinit && bashcompinit.
_wdjax() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words
{shared}
    case ${{COMP_CWORD}}:${{COMP_WORDS[1]}}:${{COMP_WORDS[2]}}:$word in
        1:*) words="{commands}" ;;
{cases}
        2:train:*|2:sweep:*|2:play:*|*:diff:*) words="{presets}" ;;
    esac
    case ${{COMP_WORDS[1]}}:$word in
        train:-*) words="$run $words" ;;
        sweep:-*) words="$sweep $words" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _wdjax wdjax"""

CLASSES = {
    "sweep": SweepArguments, "eval": EvalArguments, "render": RenderArguments,
    "play": PlayArguments, "report": ReportArguments, "export": ExportArguments,
}  # fmt: skip


# flags of a run that are no fields
TRAIN_ONLY = {
    f"--{start}{name.replace('_', '-')}"
    for name in TrainArguments.__dataclass_fields__ for start in ("", "no-")
}  # fmt: skip
BLOCK = re.compile(r"(--(?:policies\.[^.]+\.|teams\.[^.]+\.|env-params\.|))(.+)")


def completion(arguments: list[str]) -> None:
    """wdjax completion: print a script for bash and zsh."""
    from wdjax.experiments.cli import COMMANDS

    if arguments:
        raise ValueError(f"wdjax completion takes no arguments, not {' '.join(arguments)}")
    variables: dict[str, str] = {}  # names of fields -> variable: many presets share them
    cases: dict[str, str] = defaultdict(str)
    run: list[str] = []
    for preset in list_presets():
        _, default = of_preset(preset, [])
        flags = flags_of_class(TrainArguments, default=default)
        run = [flag for flag in flags if flag in TRAIN_ONLY]
        case = f"*:train:{preset}:-*|*:sweep:{preset}:-*"
        for block, names in blocks_of(flags).items():
            variable = variables.setdefault(" ".join(["", *names]), f"f{len(variables)}")
            cases[case] += f"${{{variable}// / {block}}}"
    own = {name: " ".join(dict.fromkeys(flags_of_class(cls))) for name, cls in CLASSES.items()}
    variables |= {" ".join(run): "run", own.pop("sweep"): "sweep"}
    cases |= {f"*:{name}:*:-*": words for name, words in own.items()}
    script = SCRIPT.format(
        shared="\n".join(f'    local {name}="{words}"' for words, name in variables.items()),
        cases="\n".join(f'        {case}) words="{words}" ;;' for case, words in cases.items()),
        presets=" ".join(list_presets()), commands=" ".join(COMMANDS),
    )  # fmt: skip
    print(script)


def blocks_of(flags: Iterable[str]) -> dict[str, list[str]]:
    """Return the fields among flags: start of their names -> rest; with `policies.all`."""
    blocks: dict[str, list[str]] = defaultdict(list)
    for flag in dict.fromkeys(flags):
        if flag not in TRAIN_ONLY and (match := BLOCK.fullmatch(flag)):
            blocks[match[1]].append(match[2])
    policies = [names for block, names in blocks.items() if block.startswith("--policies.")]
    every = list(dict.fromkeys(itertools.chain(*policies)))
    return {"--policies.all.": every, **blocks}


def flags_of_class(cls: type, **options: Any) -> list[str]:
    """Return the flags of a class of arguments; `options` as for `tyro.cli`."""
    panels = panels_by_tyro(cls, "wdjax", **options).values()
    lines = (flag.splitlines()[0] for flags in panels for flag in flags)
    return re.findall(r"--[\w.-]+", " ".join(lines))
