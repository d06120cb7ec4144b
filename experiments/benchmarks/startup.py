"""Start-up: from process start until the first update of `wdjax train tag_continuous` starts to run.

Each run is a process of its own, stopped when its first program is ready to run: the first with an empty compilation
cache (cold), the others with what it left there (warm, their median counts). Targets: under 25 s on a CPU and 20 s on a
GPU; warm 6 s. The first stage ends when the Trainer is imported: it holds imports and what is done with arguments.
"""

import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

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
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = [start(Path(folder), i, changes) for i in range(1 + repeats)]
    cold, *warm = runs
    median = statistics.median([run["seconds"]["total"] for run in warm])
    nearest = min(warm, key=lambda run: abs(run["seconds"]["total"] - median))
    return {
        "machine": cold["machine"],
        "workload": f"wdjax train {' '.join((PRESET, *changes))}",
        "cold": cold["seconds"],
        "warm": nearest["seconds"],
        "warm_totals": [run["seconds"]["total"] for run in warm],
        "must": {"cold": COLD_SECONDS.get(cold["platform"], COLD_SECONDS["gpu"]), "warm": WARM_SECONDS},
    }


def start(folder: Path, index: int, changes: Sequence[str]) -> dict[str, Any]:
    """Runs the command once in a process of its own. Returns its seconds by stage, machine and platform."""
    from wdjax.experiments.benchmarks.timing import environment

    output = folder / f"{index}.json"
    arguments = [str(output), "--workdir", str(folder / f"run{index}"), *changes]
    environ = {**environment(), "XDG_CACHE_HOME": str(folder / "cache")}
    environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    now = repr(time.time())
    command = [sys.executable, "-m", "wdjax.experiments.benchmarks.startup", now, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environ, check=True)
    return json.loads(output.read_text(encoding="utf8"))


class Started(BaseException):
    """The first update could start now."""


def child(arguments: Sequence[str]) -> None:
    """What the started process does: the command, with a clock around its stages, until the first update could run.

    Args:
        arguments: when the process was started (seconds of `time.time`), the file to write, and the command's own.
    """
    begun, output, *rest = arguments
    total: dict[str, float] = {}
    learning = importlib.import_module("wdjax.train")
    find = learning.__getattr__

    def get(name: str) -> Any:  # what the command imports last is the Trainer
        found = find(name)
        if name == "Trainer" and not total:  # asked for first
            total["until the Trainer"] = time.time() - float(begun)
            time_stages(total)
        return found

    learning.__getattr__ = get
    try:
        command_line()(rest)
    except Started:
        write(Path(output), total, time.time() - float(begun))


def time_stages(total: dict[str, float]) -> None:
    """Puts a clock around what a Trainer calls: its seconds go into `total`. It ends by raising Started."""
    import jax

    from wdjax.train import trainer
    from wdjax.train.host import programs as chunks

    def timed(stage: str, function: Callable) -> Callable:
        def call(*arguments: Any) -> Any:
            start = time.time()
            result = function(*arguments)
            total[stage] = time.time() - start
            return result

        return call

    compile_and_init = trainer.compile_and_init

    def ready(*arguments: Any) -> None:
        start = time.time()
        state, _, _ = compile_and_init(*arguments)
        jax.block_until_ready(state)
        total["init and compile"] = time.time() - start - total["trace and lower"]
        raise Started

    trainer.make_learner = timed("make_learner", trainer.make_learner)
    chunks.lower_chunk = timed("trace and lower", chunks.lower_chunk)
    trainer.compile_and_init = ready


def command_line() -> Callable[[Sequence[str]], None]:
    """Returns the command line; where tyro is not installed, the trainer, which then runs the preset as it is."""
    if importlib.util.find_spec("tyro") is not None:
        from wdjax.experiments import cli

        return lambda arguments: cli.main(["train", PRESET, *arguments])
    from wdjax import train as learning
    from wdjax.experiments.cli import import_trainer
    from wdjax.train.devices.startup import no_garbage_collection

    def train(arguments: Sequence[str]) -> None:
        import jax

        if list(arguments[:1]) != ["--workdir"] or len(arguments) != 2:
            raise ValueError("changes to the preset need tyro: pip install tyro")
        cache = Path(os.environ["XDG_CACHE_HOME"]) / "wdjax"  # as the command line does
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        config = learning.load_config(PRESET)
        trainer_class = import_trainer()
        with no_garbage_collection():
            trainer = trainer_class(config, arguments[1])
        trainer.train()

    return train


def write(output: Path, seconds: Mapping[str, float], total: float) -> None:
    """Writes what was measured to a file, as JSON."""
    import jax

    from wdjax.experiments.benchmarks.timing import machine

    stages = {stage: seconds.get(stage, 0.0) for stage in STAGES[:-1]}
    stages |= {"the rest": total - sum(stages.values()), "total": total}
    result = {"seconds": stages, "machine": machine(), "platform": jax.devices()[0].platform}
    output.write_text(json.dumps(result), encoding="utf8")


def table(result: Mapping[str, Any]) -> Table:
    """Returns what was measured as a table, a row for the empty cache and one for the filled."""
    shown = Table(title=f"Start-up, seconds: {result['workload']}, until its first update starts", title_justify="left")
    for column in ("compilation cache", "in all", *STAGES, "must"):
        shown.add_column(column, justify="right")
    for name, words in (("cold", "empty"), ("warm", "filled")):
        seconds = result[name]
        cells = [f"{seconds[stage]:.2f}" for stage in ("total", *STAGES)]
        shown.add_row(words, *cells, f"{result['must'][name]:.0f}")
    return shown


if __name__ == "__main__":
    child(sys.argv[1:])
