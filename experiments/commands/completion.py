"""wdjax completion: what a shell completes."""

import dataclasses

from wdjax.experiments.commands.players import EvalArguments, ExportArguments, RenderArguments
from wdjax.experiments.commands.report import ReportArguments
from wdjax.experiments.commands.sweep import SweepArguments
from wdjax.experiments.commands.train import TrainArguments
from wdjax.train import TrainConfig, list_presets

SCRIPT = """\
# bash: eval "$(wdjax completion)" in ~/.bashrc; zsh: autoload -U bashcompinit && bashcompinit before it
_wdjax() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words
    case ${{COMP_CWORD}}:${{COMP_WORDS[1]}}:$word in
        1:*) words="{commands}" ;;
{cases}
        2:train:*|2:sweep:*|*:diff:*) words="{presets}" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _wdjax wdjax"""

FLAGS = {
    "train": (TrainArguments, TrainConfig), "sweep": (SweepArguments,), "eval": (EvalArguments,),
    "render": (RenderArguments,), "report": (ReportArguments,), "export": (ExportArguments,),
}  # fmt: skip


def completion(arguments: list[str]) -> None:
    """wdjax completion: prints a script for bash (and zsh) that completes commands, presets, flags and files"""
    from wdjax.experiments.cli import COMMANDS

    if arguments:
        raise ValueError(f"wdjax completion takes no arguments, not {' '.join(arguments)}")
    cases = []
    for command, classes in FLAGS.items():
        hidden = ("config", "policies", "env_params", "run", "runs")
        names = [field.name for cls in classes for field in dataclasses.fields(cls) if field.name not in hidden]
        flags = " ".join(["--help", *(f"--{name.replace('_', '-')}" for name in names)])
        cases.append(f'        *:{command}:-*) words="{flags}" ;;')
    presets, commands = " ".join(list_presets()), " ".join(COMMANDS)
    print(SCRIPT.format(commands=commands, presets=presets, cases="\n".join(cases)))
