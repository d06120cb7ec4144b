"""wdjax completion: a completion script for shells."""

import dataclasses
from collections.abc import Iterable

from wdjax.experiments.commands.players import EvalArguments, ExportArguments, RenderArguments
from wdjax.experiments.commands.report import ReportArguments
from wdjax.experiments.commands.sweep import SweepArguments
from wdjax.experiments.commands.train import TrainArguments
from wdjax.train import TrainConfig, complete_env_params, list_presets, load_config
from wdjax.train.state.registry import known_fields

SCRIPT = """\
# bash: add eval "$(wdjax completion)" to ~/.bashrc. zsh: first run autoload -U bashcompinit && bashcompinit.
_wdjax() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words policies params name field
    case ${{COMP_CWORD}}:${{COMP_WORDS[1]}}:$word in
        1:*) words="{commands}" ;;
{cases}
        2:train:*|2:sweep:*|*:diff:*) words="{presets}" ;;
    esac
    if [[ ${{COMP_WORDS[1]}}:$word == train:--* ]]; then
        case ${{COMP_WORDS[2]}} in
{inside}
        esac
        for name in $policies; do
            for field in {fields}; do words+=" --policies.$name.$field"; done
        done
        for name in $params; do words+=" --env-params.$name"; done
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _wdjax wdjax"""

FLAGS = {
    "train": (TrainArguments, TrainConfig), "sweep": (SweepArguments,), "eval": (EvalArguments,),
    "render": (RenderArguments,), "report": (ReportArguments,), "export": (ExportArguments,),
}  # fmt: skip


def completion(arguments: list[str]) -> None:
    """wdjax completion: print a script for bash and zsh."""
    from wdjax.experiments.cli import COMMANDS

    if arguments:
        raise ValueError(f"wdjax completion takes no arguments, not {' '.join(arguments)}")
    cases = []
    for command, classes in FLAGS.items():
        hidden = ("config", "policies", "env_params", "run", "runs")
        names = [
            field.name
            for cls in classes
            for field in dataclasses.fields(cls)
            if field.name not in hidden
        ]
        flags = " ".join(["--help", *(f"--{name.replace('_', '-')}" for name in names)])
        cases.append(f'        *:{command}:-*) words="{flags}" ;;')
    fields = _flags(known_fields())
    print(SCRIPT.format(
        commands=" ".join(COMMANDS), presets=" ".join(list_presets()), cases="\n".join(cases),
        inside="\n".join(map(_inside, list_presets())), fields=fields,
    ))  # fmt: skip


def _inside(preset: str) -> str:
    config = complete_env_params(load_config(preset))
    return (
        f'            {preset}) policies="{" ".join(config.policies)}" '
        f'params="{_flags(config.env_params)}" ;;'
    )


def _flags(names: Iterable[str]) -> str:
    return " ".join(name.replace("_", "-") for name in names)
