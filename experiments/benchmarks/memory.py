"""Memory growth of a long run: resident set size (RSS) over many chunks of a small run, with a linear fit.

    python -m wdjax.experiments.benchmarks.memory                                      # a few minutes
    python -m wdjax.experiments.benchmarks.memory --chunks 1000 --json memory.json     # a quick check

The run is cartpole_ppo with 4 replicas and rollouts of 8 steps, one update per chunk, and a checkpoint and an
evaluation every 20 chunks. RSS is read from /proc/self/statm (Linux) every 100 chunks. The least-squares fit leaves out
the first fifth of the chunks.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from wdjax.experiments.benchmarks.timing import Parser, machine, write_json
from wdjax.train import Trainer, load_config

EVERY, MUST = 100, 100  # chunks between two looks; bytes a chunk, at most


def main() -> None:
    """Trains, and prints how memory went."""
    parser = Parser(__doc__, repeats=0)
    parser.add_argument(
        "--chunks", type=int, default=10_000, help="chunks of the run (default: 10,000)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all measurements to this file"
    )
    parsed = parser.parse()
    if parsed.chunks < 2 * EVERY:
        parser.error(
            f"--chunks = {parsed.chunks}: must be at least {2 * EVERY}, for two measurements"
        )
    seen = train(parsed.chunks)
    chunks, rss = np.array([look for look in seen if look[0] >= parsed.chunks / 5], float).T
    slope = float(np.polyfit(chunks, rss, 1)[0])
    ends = f"{rss[0] / 1e6:.2f} first, {rss.min() / 1e6:.2f} to {rss.max() / 1e6:.2f}, {rss[-1] / 1e6:.2f} last"
    print(f"{machine()}\n{slope:.0f} bytes per chunk (target: below {MUST}); RSS in MB: {ends}")
    row = {
        "slope": slope,
        "must": MUST,
        "chunks": [chunk for chunk, _ in seen],
        "rss": [rss for _, rss in seen],
    }
    write_json(parsed.json, machine(), [row])


def train(num_chunks: int) -> list[tuple[int, int]]:
    """Returns (chunk, bytes in memory) every so many chunks of a run."""
    config = load_config(
        "cartpole_ppo", num_envs=4, rollout_length=8, total_env_steps=4 * 8 * num_chunks, updates_per_chunk=1,
        checkpoint_every=20,
    )  # fmt: skip
    seen: list[tuple[int, int]] = []

    def look(trainer: Trainer, row: dict[str, Any]) -> None:
        if row["updates"] % EVERY == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="utf8").split()[1])
            seen.append((row["updates"], pages * os.sysconf("SC_PAGE_SIZE")))

    with tempfile.TemporaryDirectory() as folder:
        Trainer(config, f"{folder}/run", callbacks=(look,), quiet=True, pictures=False).train()
    return seen


if __name__ == "__main__":
    main()
