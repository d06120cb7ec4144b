"""wdjax completion: a completion script for shells."""

import re
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
    case ${{COMP_CWORD}}:${{COMP_WORDS[1]}}:${{COMP_WORDS[2]}}:$word in
        1:*) words="{commands}" ;;
{cases}
        2:train:*|2:sweep:*|2:play:*|*:diff:*) words="{presets}" ;;
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


def completion(arguments: list[str]) -> None:
    """wdjax completion: print a script for bash and zsh."""
    from wdjax.experiments.cli import COMMANDS

    if arguments:
        raise ValueError(f"wdjax completion takes no arguments, not {' '.join(arguments)}")
    flags = {}
    sweep = flags_of_class(SweepArguments)
    for preset in list_presets():
        _, default = of_preset(preset, [])
        own = flags_of_class(TrainArguments, default=default)
        flags[f"train:{preset}"] = own
        flags[f"sweep:{preset}"] = [*sweep, *(flag for flag in own if flag not in TRAIN_ONLY)]
    flags |= {f"{name}:*": flags_of_class(cls) for name, cls in CLASSES.items()}
    cases = "\n".join(
        f'        *:{case}:-*) words="{" ".join(dict.fromkeys(words))}" ;;'
        for case, words in flags.items()
    )
    presets, commands = " ".join(list_presets()), " ".join(COMMANDS)
    print(SCRIPT.format(commands=commands, presets=presets, cases=cases))


def flags_of_class(cls: type, **options: Any) -> list[str]:
    """Return the flags of a class of arguments; `options` as for `tyro.cli`."""
    panels = panels_by_tyro(cls, "wdjax", **options).values()
    lines = (flag.splitlines()[0] for flags in panels for flag in flags)
    return re.findall(r"--[\w.-]+", " ".join(lines))
