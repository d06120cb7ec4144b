"""Kill runs at random moments, resume them, and compare with uninterrupted runs bit for bit.

    PYTHONPATH=. python tests/train/killed_runs.py              # 20 kills of the small runs
    PYTHONPATH=. python tests/train/killed_runs.py --runs tag --kills 3 --deterministic  # on a GPU

Needs only the packages that training needs. Exits with status 1 if a run differs.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL = {"updates_per_chunk": 1, "checkpoint_every": 2, "eval_episodes": 4}
AGENT, NETWORK = "policies.agent", "policies.agent.network"
# Run -> (preset, changes). Each has 24 updates, so that most of the time is spent in saving.
RUNS = {
    "ppo": ("cartpole_ppo", {"num_envs": 8, "rollout_length": 16, f"{NETWORK}.hidden_sizes": [8]}),
    "recurrent": (
        "cartpole_ppo",
        {
            "num_envs": 8,
            "rollout_length": 16,
            f"{NETWORK}.hidden_sizes": [8],
            f"{NETWORK}.recurrent_size": 4,
            "reset": 5,
            f"{AGENT}.normalize_observation": True,
            f"{AGENT}.normalize_reward": True,
            f"{AGENT}.minibatches": 1,
        },
    ),
    "ddpg": (
        "pendulum_ddpg",
        {
            "num_envs": 8,
            "rollout_length": 16,
            "best_metric": "none",
            f"{NETWORK}.hidden_sizes": [8],
            f"{AGENT}.buffer_size": 1024,
            f"{AGENT}.batch_size": 32,
            f"{AGENT}.warmup": 256,
            f"{AGENT}.updates_per_rollout": 4,
            f"{AGENT}.n_step": 3,
        },
    ),
    "self_play": (
        "tag_small",
        {
            "num_envs": 8,
            "rollout_length": 16,
            "best_metric": "runner/episode_return",
            "evaluate_every": 3,
            "env_params.episode_length": 20,
            "policies.runner.past_selves": 3,
            "policies.runner.past_selves_every": 2,
            "policies.runner.network.hidden_sizes": [8],
            "policies.tagger.network.hidden_sizes": [8],
        },
    ),
    # the size of the preset, for a GPU
    "tag": ("tag_continuous", {"best_metric": "runner/episode_return"}),
}
NUM_UPDATES = 24


def train(name: str, folder: str) -> None:
    """Train or resume one of the runs, in a process that may be killed."""
    from wdjax.train import Trainer, load_config

    # drawing follows the last checkpoint, and matplotlib may be missing
    Trainer.draw = lambda self: None
    preset, changes = RUNS[name]
    config = load_config(preset, **SMALL | changes)
    config = load_config(
        preset, **SMALL | changes, total_env_steps=NUM_UPDATES * config.env_steps_per_update
    )
    Trainer(config, folder, resume=True, quiet=True).train()


def start(name: str, folder: Path, deterministic: bool) -> subprocess.Popen:
    command = [sys.executable, __file__, "--train", name, str(folder)]
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    }
    return subprocess.Popen(command + ["--deterministic"] * deterministic, env=environment)


def kill(process: subprocess.Popen, folder: Path, draw: random.Random) -> str:
    """Kill a process at a random moment and describe it, or return "" if the process had ended."""
    moment = draw.choice(["any time", "between chunks", "while saving", "while saving"])
    begun, lines = time.monotonic(), count_lines(folder)
    until = begun + draw.uniform(0, 6)
    chunks, delay = draw.randint(1, 6), draw.uniform(0, 0.02)
    # without what earlier kills left behind
    known, remaining = set(temporary(folder)), draw.randint(1, 4)
    while process.poll() is None:
        if moment == "while saving":
            known |= set(new := set(temporary(folder)) - known)
            remaining -= len(new)
            due = remaining <= 0
        else:
            due = (
                time.monotonic() >= until
                if moment == "any time"
                else count_lines(folder) >= lines + chunks
            )
        if due:
            time.sleep(delay if moment != "any time" else 0)
            process.kill()
            if process.wait() >= 0:
                return ""  # it ended before the signal
            left = f", in the middle of {len(temporary(folder))}" if temporary(folder) else ""
            seconds, chunks = time.monotonic() - begun, count_lines(folder) - lines
            return f"{moment}, after {seconds:.1f} s and {chunks} chunks{left}"
        time.sleep(0.001)
    return ""


def temporary(folder: Path) -> list[tuple[str, int]]:
    """Return the incomplete checkpoints, each with its inode, since names are reused."""
    checkpoints = []
    for path in [*folder.glob("checkpoints/*tmp*"), *folder.glob("best/*tmp*")]:
        try:
            checkpoints.append((path.name, path.stat().st_ino))
        except FileNotFoundError:
            continue  # it has been completed
    return checkpoints


def count_lines(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def result(folder: Path) -> dict[str, bytes]:
    """Return a run's results without timings: all leaves as bytes, and metrics.jsonl."""
    import jax
    import numpy as np
    from tiny_runs import TIMING

    from wdjax.train import load_run

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in row.items() if key not in TIMING} for row in rows]
    contents = {f"metrics line {i}": json.dumps(row).encode() for i, row in enumerate(rows)}
    for best in (False, True) if (folder / "best").exists() else (False,):
        for path, leaf in jax.tree_util.tree_leaves_with_path(load_run(folder, best)[1]):
            is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
            contents[f"{'best' if best else 'state'}{jax.tree_util.keystr(path)}"] = array.tobytes()
    return contents


def compare(
    name: str, kills: int, seed: int, folder: Path, deterministic: bool = False
) -> list[str]:
    """Kill and resume runs `kills` times in all, and return the differences from a whole run."""
    whole = folder / f"{name}-whole"
    if start(name, whole, deterministic).wait() != 0:
        return [f"{name}: the uninterrupted run has failed"]
    expected, draw, killed = result(whole), random.Random(seed), 0
    assert len([line for line in expected if line.startswith("metrics line")]) == NUM_UPDATES
    for attempt in itertools.count():
        run_folder = folder / f"{name}-{attempt}"
        while True:
            process = start(name, run_folder, deterministic)
            when = kill(process, run_folder, draw) if killed < kills else ""
            if not when:
                break
            killed += 1
            print(f"{name}: kill {killed}, {when}", flush=True)
        if process.wait() != 0:
            return [f"{name}: a resumed run has failed with status {process.returncode}"]
        results = result(run_folder)
        differences = [
            key for key in expected.keys() | results.keys() if expected.get(key) != results.get(key)
        ]
        if differences or killed == kills:
            return sorted(f"{name}, {killed} kills: {key} differs" for key in differences)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train", nargs=2, metavar=("RUN", "FOLDER"), help="only train one of the runs in a folder"
    )
    parser.add_argument(
        "--runs", nargs="+", choices=RUNS, default=[name for name in RUNS if name != "tag"]
    )
    parser.add_argument("--kills", type=int, default=20, help="in all, shared by the runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deterministic", action="store_true")
    arguments = parser.parse_args()
    if arguments.deterministic:
        from wdjax.train.determinism import make_deterministic

        make_deterministic()
    if arguments.train:
        return train(*arguments.train)
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder) / "cache"))
        for i, name in enumerate(arguments.runs):
            kills = len(range(i, arguments.kills, len(arguments.runs)))
            differences += compare(
                name, kills, arguments.seed + i, Path(folder), arguments.deterministic
            )
    print("\n".join(differences) or f"{arguments.kills} of {arguments.kills} kills: no bit differs")
    raise SystemExit(bool(differences))


if __name__ == "__main__":
    main()
