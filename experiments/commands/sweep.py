"""wdjax sweep."""

from pathlib import Path

from rich.console import Console

from wdjax.experiments.commands.arguments import parse, require_preset
from wdjax.experiments.sweep.command import SweepArguments, run_sweep
from wdjax.train.devices.processes import STOPPED
from wdjax.train.host.signals import stop_signals
from wdjax.train.load import preset_path


def sweep(arguments: list[str]) -> None:
    """wdjax sweep PRESET [--set FIELD=VALUES ...] [--seeds N] [--search TRIALS | --pbt MEMBERS] [--workdir DIR]"""
    if arguments and arguments[0] in ("-h", "--help"):
        parse(SweepArguments, "wdjax sweep PRESET", ["--help"])
    preset, *rest = require_preset("sweep", arguments)
    default = SweepArguments(workdir=Path("runs") / f"sweep_{preset_path(preset).stem}")
    parsed = parse(SweepArguments, f"wdjax sweep {preset}", rest, default=default)
    with stop_signals(Console()) as stop:
        run_sweep(preset, parsed, stop)
    if stop.is_set():
        raise SystemExit(STOPPED)
