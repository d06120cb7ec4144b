"""What checkpoints cost: the same run with and without them, in chunks as long as the trainer's should be.

    python -m wdjax.experiments.benchmarks.saving                      # all rows, 12 minutes
    python -m wdjax.experiments.benchmarks.saving cartpole_ppo --repeats 1 --saves 2

A run's time is that from the end of its first chunk to the end of its last but one, so that neither compiling nor the
checkpoint at a run's end counts. Runs with and without checkpoints take turns; medians count. `blocked` is the time in
which the device waits for a save to begin; the rest goes on in the background, and costs where cores are scarce.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from wdjax.experiments.benchmarks.timing import machine
from wdjax.train import TrainConfig, Trainer, load_config, make_learner
from wdjax.train.host import loop

ROWS = ("cartpole_ppo", "pendulum_ddpg", "tag_small", "tag_continuous")  # presets


def main() -> None:
    """Measures the rows named on the command line, or all, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"presets; none: {', '.join(ROWS)}")
    parser.add_argument("--chunk-seconds", type=float, default=2.0, help="how long a chunk is, about")
    parser.add_argument("--every", type=int, default=TrainConfig.checkpoint_every, help="chunks from save to save")
    parser.add_argument("--saves", type=int, default=3, help="checkpoints in each run")
    parser.add_argument("--repeats", type=int, default=1, help="runs with checkpoints, and as many without")
    parser.add_argument("--json", help="also write the results to this file")
    arguments = parser.parse_args()
    print(machine(), flush=True)
    results = [measure(name, arguments) for name in arguments.rows or ROWS]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": machine(), "rows": results}, indent=1), encoding="utf8")


def measure(preset: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Times runs of a preset. Returns its numbers, which are also printed."""
    chunks = arguments.every * arguments.saves + 2
    updates, size = calibrate(preset, arguments.chunk_seconds)
    steps = load_config(preset).env_steps_per_update * updates * chunks
    common = {"updates_per_chunk": updates, "total_env_steps": steps, "best_metric": "none"}
    seconds: dict[int, list[float]] = {arguments.every: [], chunks: []}
    blocked: list[float] = []
    for _ in range(arguments.repeats):
        for every, found in seconds.items():
            whole, waiting = timed(load_config(preset, **common, checkpoint_every=every))
            found.append(whole)
            if every == arguments.every:
                blocked.append(waiting)
    with_, without = (statistics.median(found) for found in seconds.values())
    row = {
        "row": preset, "state_mb": size / 1e6, "chunk_seconds": without / (chunks - 2), "saves": arguments.saves,
        "seconds_with": with_, "seconds_without": without, "share": with_ / without - 1,
        "blocked_ms_per_save": 1e3 * statistics.median(blocked) / arguments.saves,
        "blocked_share": statistics.median(blocked) / without,
    }  # fmt: skip
    print(
        f"{preset}: state of {row['state_mb']:.2f} MB, {arguments.saves} checkpoints, {arguments.every} chunks of "
        f"{row['chunk_seconds']:.2f} s apart: {with_:.2f} s with, {without:.2f} s without, {row['share']:+.2%}; "
        f"blocked {row['blocked_ms_per_save']:.0f} ms a save, {row['blocked_share']:.2%}",
        flush=True,
    )
    return row


def calibrate(preset: str, chunk_seconds: float) -> tuple[int, int]:
    """Returns (updates that take about so many seconds, bytes of the state)."""
    learner = make_learner(load_config(preset))
    state = learner.init(jax.random.key(0))
    updates, seconds = 1, 0.0
    while True:
        program = learner.run.lower(state, num_updates=updates).compile()
        state, _ = jax.block_until_ready(program(state))  # DDPG warms up
        start = time.perf_counter()
        state, _ = jax.block_until_ready(program(state))
        seconds = time.perf_counter() - start
        if seconds > chunk_seconds / 5:
            return max(1, round(updates * chunk_seconds / seconds)), sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        updates *= 8


def timed(config: TrainConfig) -> tuple[float, float]:
    """Returns (seconds between the ends of the first chunk and the last but one, seconds in which saving blocked)."""
    ends: list[float] = []
    waited: list[float] = []
    save = loop.save

    def timed_save(*arguments: Any) -> None:
        start = time.perf_counter()
        save(*arguments)
        waited.append(time.perf_counter() - start)

    loop.save = timed_save
    Trainer.draw = lambda self: None  # its pictures are no part of this
    try:
        with tempfile.TemporaryDirectory() as folder:
            note = lambda trainer, row: ends.append(time.perf_counter())  # noqa: E731
            Trainer(config, folder, callbacks=[note], quiet=True).train()
    finally:
        loop.save = save
    return ends[-2] - ends[0], sum(waited[:-1])  # the last one is that at the run's end


if __name__ == "__main__":
    main()
