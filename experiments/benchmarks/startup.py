"""Start-up time: from process start until the first update of `wdjax train tag_continuous` starts.

Each measurement is a separate process that stops when its first program is ready to run. The first
process has an empty compilation cache (cold); the others reuse it (warm, median). Targets: cold
under 25 s on a CPU and 20 s on a GPU, warm 6 s. The first stage, "until the Trainer", includes
imports and parsing of arguments; the second one, "compile and init", includes tracing.
"""

import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax

from wdjax.experiments import cli
from wdjax.experiments.benchmarks.timing import in_new_process, machine
from wdjax.train import load_config

PRESET = "tag_continuous"
COLD_SECONDS = {"cpu": 25.0, "gpu": 20.0}  # targets by platform
WARM_SECONDS = 6.0
STAGES = ("until the Trainer", "compile and init", "the rest")


def measure(repeats: int, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Start the command 1 + `repeats` times.

    Args:
        repeats: number of runs with a filled cache.
        changes: further arguments of `wdjax train`.

    Returns:
        `cold` and `warm`: the seconds of every stage, their `total`, and the target `must`;
        `warm_totals`; `machine` and `workload`.

    Raises:
        subprocess.CalledProcessError: if a run fails.
    """
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        variables = {"XDG_CACHE_HOME": f"{folder}/cache", "JAX_COMPILATION_CACHE_DIR": ""}
        for i in range(1 + repeats):
            arguments = (time.time(), f"{folder}/run{i}", *changes)
            runs.append(in_new_process(run, *arguments, variables=variables))
    cold, *warm = runs
    median = sorted(warm, key=lambda run: run["total"])[(repeats - 1) // 2]
    must = COLD_SECONDS.get(cold["platform"], COLD_SECONDS["gpu"])
    return {
        "machine": cold["machine"],
        "workload": f"wdjax train {' '.join((PRESET, *changes))}",
        "cold": cold | {"must": must},
        "warm": median | {"must": WARM_SECONDS},
        "warm_totals": [run["total"] for run in warm],
    }


class Started(BaseException):
    """The first program is ready to run."""


def run(started: float, workdir: str, *changes: str) -> dict[str, Any]:
    """Run the command until its first update could start, and return the seconds of each stage.

    Args:
        started: `time.time()` when the process was started.
        workdir: folder of the run.
        changes: further arguments of `wdjax train`.
    """
    seconds: dict[str, Any] = {}
    import_trainer = cli.import_trainer

    def import_and_patch() -> type:
        trainer_class = import_trainer()
        seconds["until the Trainer"] = time.time() - started
        module: Any = sys.modules["wdjax.train.host.start"]
        compile_and_init = module.compile_and_init

        def compile_and_stop(*arguments: Any) -> None:
            start = time.time()
            jax.block_until_ready(compile_and_init(*arguments)[0])
            seconds["compile and init"] = time.time() - start
            raise Started

        module.compile_and_init = compile_and_stop
        return trainer_class

    cli.import_trainer = import_and_patch
    try:
        run_command(workdir, *changes)
    except Started:
        seconds["total"] = time.time() - started
    seconds["the rest"] = seconds["total"] - sum(seconds[stage] for stage in STAGES[:2])
    return seconds | {"machine": machine(), "platform": jax.devices()[0].platform}


def run_command(workdir: str, *changes: str) -> None:
    """Run the command, or without tyro the Trainer with the unchanged preset."""
    if importlib.util.find_spec("tyro") is not None:
        return cli.main(["train", PRESET, "--workdir", workdir, *changes])
    if changes:
        raise ValueError("changing fields of the preset needs tyro. Run pip install tyro")
    cli.cache_compilations()
    config, trainer_class = load_config(PRESET), cli.import_trainer()
    with cli.no_garbage_collection():
        trainer = trainer_class(config, workdir)
    trainer.train()
