"""Memory growth of a long run: resident set size (RSS) over many chunks of a small run.

    python -m wdjax.experiments.benchmarks.memory                  # some minutes
    python -m wdjax.experiments.benchmarks.memory --chunks 1000    # a quick check

The run is cartpole_ppo with 4 replicas and rollouts of 8 steps, one update per chunk, and a
checkpoint and an evaluation every 20 chunks. RSS is read from /proc/self/statm (Linux) every 100
chunks. A least-squares fit of the slope leaves out the first fifth of the chunks. The exit status
is 1 if the slope is not below 100 bytes per chunk.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.experiments.benchmarks.timing import Parser
from wdjax.train import Trainer, load_config

EVERY, MUST = 100, 100  # chunks between measurements; maximum bytes per chunk


def main() -> None:
    """Train, print the growth of memory, and exit with status 1 if it is too large."""
    parser = Parser(__doc__, timed=False)
    words = "chunks of the run (default: 10,000)"
    parser.add_argument("--chunks", type=int, default=10_000, help=words)
    parsed = parser.parse()
    if parsed.chunks < 2 * EVERY:
        parser.error(f"--chunks = {parsed.chunks}: must be at least {2 * EVERY}")
    seen = [(chunk, rss) for chunk, rss in train(parsed.chunks) if chunk >= parsed.chunks / 5]
    chunks, rss = np.array(seen, float).T
    slope = np.polyfit(chunks, rss, 1)[0]
    first, *_, last = rss / 1e6
    print(f"{slope:.0f} bytes per chunk (must be below {MUST}), RSS {first:.2f} to {last:.2f} MB")
    raise SystemExit(not slope < MUST)


def train(num_chunks: int) -> list[tuple[int, int]]:
    """Return (chunk, RSS in bytes) every `EVERY` chunks of a run."""
    config = load_config(
        "cartpole_ppo",
        num_envs=4,
        rollout_length=8,
        total_env_steps=4 * 8 * num_chunks,
        updates_per_chunk=1,
        checkpoint_every=20,
    )
    seen: list[tuple[int, int]] = []

    def read_memory(trainer: Trainer, row: dict[str, Any]) -> None:
        if row["updates"] % EVERY == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="utf8").split()[1])
            seen.append((row["updates"], pages * os.sysconf("SC_PAGE_SIZE")))

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            config, f"{folder}/run", callbacks=(read_memory,), quiet=True, pictures=False
        )
        trainer.train()
    return seen


if __name__ == "__main__":
    main()
