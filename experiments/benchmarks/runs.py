"""Throughput of presets as users run them: `Trainer` with the unchanged preset, metrics, checkpoints and evaluations.

    wdjax bench --tier runs                        every preset, 20 s each after its first chunk
    wdjax bench tag_gridworld cartpole --tier runs

A run continues for `SECONDS` after its first chunk, regardless of its configured length, then gets SIGTERM and saves.
Its speed is the number of env steps after the first chunk divided by this time. The speed of the program alone is
measured afterwards in the same process, as the median of 3 calls of the same chunk. The ratio of the two is the
overhead of the host. "from start" is the time from process start to the end of the first chunk, with an empty
compilation cache.
"""

import dataclasses
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from wdjax.experiments.benchmarks.timing import machine, make_table, short, start
from wdjax.train import Trainer, load_config
from wdjax.train.host.chunks import play, room
from wdjax.train.host.programs import compile_chunk

SECONDS, SHORT = 20.0, 5.0  # of a run after its first chunk; at the size for a CPU
FOREVER = 10**9  # updates


def measure(preset: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Runs a preset in a process of its own, with a compilation cache of its own.

    Raises:
        subprocess.CalledProcessError: where it ends otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (preset, repr(time.time()), repr(seconds), f"{folder}/run")
        return start("runs", arguments, {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"})


def child(preset: str, begun: str, seconds: str, workdir: str) -> dict[str, Any]:
    """What the started process does. Returns the numbers of the run.

    Args:
        begun: when the process was started (seconds of `time.time`).
        seconds: for which it goes on after its first chunk.
    """
    config = load_config(preset)
    config = dataclasses.replace(config, total_env_steps=FOREVER * config.env_steps_per_update)
    ends: list[float] = []
    rows: list[Mapping[str, Any]] = []

    def look(trainer: Trainer, row: Mapping[str, Any]) -> None:
        ends.append(time.time())
        rows.append(row)
        if ends[-1] - ends[0] >= float(seconds):
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = Trainer(config, workdir, callbacks=[look], quiet=True, pictures=False)
    trainer.train()
    size, per_update = trainer.config.updates_per_chunk, config.env_steps_per_update
    program, _ = compile_chunk(trainer.learner, trainer.state, room(config))
    state, own = play(program, trainer.state, size).state, []
    for _ in range(3):
        played = play(program, state, size)
        state = played.state
        own.append(size * per_update / played.seconds)
    alone, wall = statistics.median(own), ends[-1] - ends[0]
    speed = (
        (rows[-1]["env_steps"] - rows[0]["env_steps"]) / wall
        if wall
        else rows[0]["env_steps_per_second"]
    )
    return {
        "machine": machine(), "workload": f"wdjax train {preset}", "updates_per_chunk": size, "seconds": wall,
        "env_steps_per_second": speed, "alone": alone, "ratio": speed / alone, "chunks": len(rows),
        "compile_seconds": rows[0]["compile_seconds"], "from_start": ends[0] - float(begun),
    }  # fmt: skip


def line(result: Mapping[str, Any]) -> str:
    """Returns a row's numbers in a sentence."""
    return (
        f"{result['workload']}: {short(result['env_steps_per_second'])} env steps/s, {result['ratio']:.2f} of the "
        f"program alone ({short(result['alone'])}); compiled in {result['compile_seconds']:.1f} s, first chunk after "
        f"{result['from_start']:.1f} s"
    )


def table(results: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Returns what was measured as a table."""
    columns = (
        "preset", "env steps/s", "ratio to program alone", "ratio", "updates per chunk", "chunks", "compile, s",
        "start to end of first chunk, s",
    )  # fmt: skip
    rows = (
        (row["row"], short(row["env_steps_per_second"]), short(row["alone"]), f"{row['ratio']:.2f}",
         f"{row['updates_per_chunk']:,}", f"{row['chunks']}", f"{row['compile_seconds']:.1f}",
         f"{row['from_start']:.1f}")
        for row in results
    )  # fmt: skip
    return make_table(columns, rows, title)


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:])))
