"""Throughput of presets as users run them: `Trainer` with the unchanged preset.

    wdjax bench --tier runs                        every preset, 20 s each after its first chunk
    wdjax bench tag_gridworld cartpole --tier runs

The Trainer writes metrics and checkpoints and evaluates, as in `wdjax train`. A run continues for
`SECONDS` after its first chunk, regardless of its configured length, then gets SIGTERM and saves.
Its speed is the number of env steps after the first chunk divided by this time. The speed of the
program alone is measured afterwards in the same process, as the median of 3 calls with the updates
of one chunk. The ratio of the two is the overhead of the host. The time to the end of the first
chunk is counted from process start, with an empty compilation cache.
"""

import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from wdjax.experiments.benchmarks.measure import learner_program, measure_program
from wdjax.experiments.benchmarks.rows import TRAINING
from wdjax.experiments.benchmarks.timing import in_new_process
from wdjax.train import Trainer, load_config

SECONDS, SHORT = 20.0, 5.0  # after the first chunk, at full and at small size
FOREVER = 10**9  # updates


def measure(preset: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Run a preset in a new process with a new compilation cache.

    Raises:
        subprocess.CalledProcessError: if the run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
        arguments = (preset, time.time(), seconds, f"{folder}/run")
        return in_new_process(run, *arguments, variables=cache)


def run(preset: str, started: float, seconds: float, workdir: str) -> dict[str, Any]:
    """Train a preset and return its numbers.

    Args:
        preset: name of the preset.
        started: `time.time()` when the process was started.
        seconds: duration of the run after its first chunk.
        workdir: folder of the run.
    """
    config = load_config(preset)
    config = dataclasses.replace(config, total_env_steps=FOREVER * config.env_steps_per_update)
    ends: list[float] = []
    rows: list[Mapping[str, Any]] = []

    def stop_in_time(trainer: Trainer, row: Mapping[str, Any]) -> None:
        ends.append(time.time())
        rows.append(row)
        if ends[-1] - ends[0] >= seconds:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = Trainer(config, workdir, callbacks=[stop_in_time], quiet=True, pictures=False)
    trainer.train()
    size, wall, first = trainer.config.updates_per_chunk, ends[-1] - ends[0], rows[0]
    alone = measure_program(learner_program(TRAINING, config, size), repeats=3)
    speed = first["env_steps_per_second"]
    if wall:
        speed = (rows[-1]["env_steps"] - first["env_steps"]) / wall
    return {
        "machine": alone["machine"],
        "workload": f"wdjax train {preset}",
        "updates_per_chunk": size,
        "seconds": wall,
        "env_steps_per_second": speed,
        "alone": alone["env_steps_per_second"],
        "ratio": speed / alone["env_steps_per_second"],
        "chunks": len(rows),
        "compile_seconds": first["compile_seconds"],
        "from_start": ends[0] - started,
    }
