"""Start-up time: from process start until the first update of `wdjax train tag_continuous` starts.

Each measurement is a separate process that stops when its first program is ready to run. The first process has an empty
compilation cache (cold); the others reuse it (warm, median). Targets: cold under 25 s on a CPU and 20 s on a GPU, warm
6 s. The first stage, "until the Trainer", includes imports and parsing of arguments.
"""

import importlib
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
from rich.table import Table

from wdjax.experiments import cli
from wdjax.experiments.benchmarks.timing import machine, make_table, start
from wdjax.train import load_config
from wdjax.train.devices.startup import no_garbage_collection

PRESET = "tag_continuous"
COLD_SECONDS = {"cpu": 25.0, "gpu": 20.0}  # by platform, at most
WARM_SECONDS = 6.0
STAGES = ("until the Trainer", "make_learner", "trace and lower", "init and compile", "the rest")


def measure(repeats: int, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Starts the command 1 + `repeats` times.

    Args:
        repeats: runs with a warm cache.
        changes: further arguments of `wdjax train`.

    Returns:
        `cold` and `warm`: the seconds of every stage and their `total`; `machine`; `must`, the targets in seconds.

    Raises:
        subprocess.CalledProcessError: where a run ends otherwise.
    """
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        variables = {"XDG_CACHE_HOME": f"{folder}/cache", "JAX_COMPILATION_CACHE_DIR": ""}
        for i in range(1 + repeats):
            arguments = (repr(time.time()), "--workdir", f"{folder}/run{i}", *changes)
            runs.append(start("startup", arguments, variables))
    cold, *warm = runs
    totals = [run["seconds"]["total"] for run in warm]
    nearest = min(warm, key=lambda run: abs(run["seconds"]["total"] - statistics.median(totals)))
    return {
        "machine": cold["machine"],
        "workload": f"wdjax train {' '.join((PRESET, *changes))}",
        "cold": cold["seconds"],
        "warm": nearest["seconds"],
        "warm_totals": totals,
        "must": {
            "cold": COLD_SECONDS.get(cold["platform"], COLD_SECONDS["gpu"]),
            "warm": WARM_SECONDS,
        },
    }


class Started(BaseException):
    """The first update could start now."""


def child(begun: str, *arguments: str) -> None:
    """What the started process does: the command, with a clock around its stages, until the first update could run.
    Prints its seconds by stage, machine and platform as a line of JSON.

    Args:
        begun: when the process was started (seconds of `time.time`).
        arguments: the command's own.
    """
    seconds: dict[str, float] = {}
    import_trainer = cli.import_trainer

    def timed(stage: str, module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: Any) -> Any:
            start = time.time()
            result = jax.block_until_ready(function(*arguments))
            seconds[stage] = time.time() - start
            if stage == "init and compile":
                raise Started
            return result

        setattr(module, name, call)

    def imported() -> type:
        found = import_trainer()
        seconds["until the Trainer"] = time.time() - float(begun)
        trainer, programs = (
            importlib.import_module(f"wdjax.train.{name}") for name in ("trainer", "host.programs")
        )
        timed("make_learner", trainer, "make_learner")
        timed("trace and lower", programs, "lower_chunk")
        timed("init and compile", trainer, "compile_and_init")
        return found

    cli.import_trainer = imported
    try:
        run_command(arguments)
    except Started:
        total = time.time() - float(begun)
        seconds["init and compile"] -= seconds["trace and lower"]
        seconds |= {"the rest": total - sum(seconds.values()), "total": total}
        print(
            json.dumps(
                {"seconds": seconds, "machine": machine(), "platform": jax.devices()[0].platform}
            )
        )


def run_command(arguments: Sequence[str]) -> None:
    """Runs the command; where tyro is not installed, the trainer, with the preset as it is."""
    if importlib.util.find_spec("tyro") is not None:
        return cli.main(["train", PRESET, *arguments])
    _, workdir, *changes = arguments
    if changes:
        raise ValueError("changing fields of the preset needs tyro. Run pip install tyro")
    cli.cache_compilations()
    config, trainer_class = load_config(PRESET), cli.import_trainer()
    with no_garbage_collection():
        trainer = trainer_class(config, workdir)
    trainer.train()


def table(result: Mapping[str, Any]) -> Table:
    """Returns what was measured as a table, a row for the empty cache and one for the filled."""
    title = f"Start-up time in seconds: {result['workload']}, until the first update starts"
    rows = (
        (
            words,
            *(f"{result[name][stage]:.2f}" for stage in ("total", *STAGES)),
            f"{result['must'][name]:.0f}",
        )
        for name, words in (("cold", "empty"), ("warm", "filled"))
    )
    return make_table(("compilation cache", "total", *STAGES, "must"), rows, title)


if __name__ == "__main__":
    child(*sys.argv[1:])
