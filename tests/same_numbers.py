"""Compare the bits of small runs between two checkouts on one machine.

    python tests/same_numbers.py OLD NEW              # RUNS, a trainer and a sweep, bit for bit
    python tests/same_numbers.py OLD NEW --gpu-text   # and three programs lowered for GPUs
    python tests/same_numbers.py --store              # same_numbers.json for test_same_numbers.py

Only public names are used, so that it works for any module structure. Each checkout runs in its own
process. Equal programs are compiled once, through the cache in JAX_COMPILATION_CACHE_DIR or a new
one.
"""

import argparse
import collections
import dataclasses
import functools
import importlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from cards import lowered
from flax import struct

import wdjax  # subpackages are imported lazily, in the process of each checkout

TIMING = (
    "seconds",
    "seconds_per_update",
    "compile_seconds",
    "env_steps_per_second",
    "agent_steps_per_second",
)
ON_GPUS = ("tag_gridworld", "tag_continuous", "cartpole_ppo")


State = collections.namedtuple("State", "place time")  # (3,) float32, () int32


@struct.dataclass
class Params:
    episode_length: int = 5


@dataclasses.dataclass(frozen=True)
class Pushers(wdjax.Env):
    """Two pushers and a puller on a line, each with a force from a box.

    No registered environment has both groups and boxes.
    """

    groups = {"pusher": 2, "puller": 1}  # noqa: RUF012
    default_params = Params()

    def reset(self, key, params):
        state = State(jax.random.normal(key, (3,)), jnp.int32(0))
        return self.observe(state), state

    def step(self, key, state, action, params):
        force = jnp.concatenate([action["pusher"], action["puller"]])[:, 0]
        state = State(
            state.place + 0.3 * force + 0.1 * jax.random.normal(key, (3,)), state.time + 1
        )
        lost = jnp.abs(state.place) > 2.5
        flags = (-jnp.abs(state.place), lost, (state.time >= params.episode_length) & ~lost)
        return (
            self.observe(state),
            state,
            *({"pusher": flag[:2], "puller": flag[2:]} for flag in flags),
            {},
        )

    def observe(self, state):
        seen = jnp.stack([state.place, state.place - jnp.mean(state.place)], axis=-1)
        return {"pusher": seen[:2], "puller": seen[2:]}

    def observation_space(self, params):
        return wdjax.Dict(
            {name: wdjax.Box(shape=(2,)).batch(number) for name, number in self.groups.items()}
        )

    def action_space(self, params):
        return wdjax.Dict(
            {name: wdjax.Box(-1.0, 1.0, (1,)).batch(number) for name, number in self.groups.items()}
        )


def net(*sizes, **options):
    return {"hidden_sizes": list(sizes), "activation": "tanh", "shared_trunk": True, **options}


def agent(**changes):
    return {f"policies.agent.{name}": value for name, value in changes.items()}


def both(**changes):
    return {
        f"policies.{side}.{name}": value
        for side in ("tagger", "runner")
        for name, value in changes.items()
    }


SIZE = {
    "num_envs": 8,
    "num_blocks": 4,
    "rollout_length": 12,
    "total_env_steps": 100_000,
    "devices": 1,
}
SHORT, LONGER = (
    {"env_params.episode_length": 5},
    {"env_params.episode_length": 12, "rollout_length": 16},
)
NORMAL = {"normalize_observation": True, "normalize_reward": True, "normalize_advantage": True}
SCHEDULE = [[0, 5e-3], [200, 3e-3], [400, 0.0]]
# tag_small observes more
AS_WARPDRIVE = {"env_params.egocentric": False, "env_params.observe_own_motion": False}
# the schedules of the presets in env steps, since fractions refer to the length of the run
CARTPOLE_RATE, PENDULUM_RATE = [[0, 2.5e-3], [150_000, 1e-4]], [[0, 1e-3], [1_000_000, 0]]
# The first steps of Adam are signs of gradients, even of rounding errors. A large epsilon prevents
# this.
HUNT = both(
    network=net(16),
    minibatches=2,
    epochs=2,
    optimizer_epsilon=1e-2,
    learning_rate=[[0, 3e-3], [1_280_000, 5e-4]],
)
TAG = {"env_params.episode_length": 8, **AS_WARPDRIVE, **HUNT}
SELF_PLAY = both(past_selves=2, past_selves_every=1, past_selves_fraction=[[0, 0.3], [200, 0.6]])
DDPG = {
    "twin_critics": True,
    "policy_delay": 2,
    "n_step": 3,
    "noise": "ornstein_uhlenbeck",
    "noise_stddev": 0.2,
    "target_noise": 0.2,
    "batch_size": 16,
    "buffer_size": 256,
    "warmup": 24,
    "updates_per_rollout": 3,
    "noise_scale": [[0, 1.0], [300, 0.5]],
}
MIXED = {
    "pusher": {"algorithm": "DDPG", "network": net(8), "ddpg": DDPG},
    "puller": {"network": net(8, recurrent_size=4), "normalize_reward": True, "past_selves": 1},
}
SLICES = {
    "hunters": {"agents": ["tagger[0:1]"], "network": net(8), "epochs": 2},
    "crowd": {
        "agents": ["tagger[1:2]", "runner[0:3]"],
        "agent_type_feature": True,
        "algorithm": "A2C",
        "network": net(8),
        "optimizer": "rmsprop",
        "entropy_coefficient": SCHEDULE,
    },
    "rest": {"agents": ["runner[3:8]"], "network": net(8, shared_trunk=False), "trainable": False},
}
RUNS = {
    "a2c": (
        "cartpole",
        {
            **LONGER,
            "reset": "fixed",
            **agent(network=net(16), neg_pos_env_ratio=1.0, optimizer="sgd", learning_rate=1e-3),
        },
    ),
    "pool": (
        "tag_gridworld_with_reset_pool",
        {
            **SHORT,
            "env_params.grid_length": 6,
            "policies.shared.network": net(16, activation="relu"),
        },
    ),
    "ppo": (
        "cartpole_ppo",
        {
            **SHORT,
            **agent(
                network=net(16),
                epochs=3,
                minibatches=4,
                target_kl=1e-4,
                clip=0.1,
                value_clip=0.2,
                learning_rate=SCHEDULE,
                entropy_coefficient=SCHEDULE,
            ),
        },
    ),
    "recurrent": (
        "cartpole_ppo",
        {
            **LONGER,
            **agent(
                network=net(16, recurrent_size=8, shared_trunk=False),
                epochs=2,
                minibatches=2,
                normalize_observation=True,
                learning_rate=CARTPOLE_RATE,
            ),
        },
    ),
    "normalized": (
        "pendulum_ppo",
        {
            **SHORT,
            **agent(
                network=net(16), epochs=2, minibatches=2, learning_rate=PENDULUM_RATE, **NORMAL
            ),
        },
    ),
    "ddpg": (
        "pendulum_ddpg",
        {
            **SHORT,
            **agent(network=net(16), normalize_observation=True),
            **{f"policies.agent.ddpg.{name}": value for name, value in DDPG.items()},
        },
    ),
    "self_play": (
        "tag_small",
        {**TAG, **SELF_PLAY, "policies.runner.network.encoder": "deep_sets"},
    ),
    "slices": ("tag_small", {**SHORT, **AS_WARPDRIVE, "policies": SLICES}),
    "mixed": ("pendulum_ppo", {"env": "pushers", "policies": MIXED}),
    "two_devices": (
        "tag_small",
        {
            **TAG,
            **SELF_PLAY,
            **both(**NORMAL),
            "reset": 5,
            "devices": 2,
            "policies.runner.algorithm": "A2C",
            "policies.runner.minibatches": 1,
            "policies.runner.epochs": 1,
            # its observations hardly vary, which would amplify rounding errors
            "policies.runner.normalize_observation": False,
        },
    ),
}


def arrays(**trees):
    """Return path -> array of all leaves, with keys as their words."""
    leaves = [
        (f"{name}:{jax.tree_util.keystr(path, simple=True, separator=':')}", leaf)
        for name, tree in trees.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]

    def is_key(leaf):
        return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)

    return {
        path: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        for path, leaf in leaves
    }


def columns(rows):
    """Return name -> numbers of the rows of a table, NaN where missing, without timings."""
    names = sorted({name for row in rows for name in row if name not in TIMING})
    cells = {name: [row.get(name) for row in rows] for name in names}
    return {
        name: np.array([np.nan if cell is None else cell for cell in column])
        for name, column in cells.items()
    }


def play(name):
    """Run a learner for three updates."""
    if "pushers" not in wdjax.list_envs():
        wdjax.register("pushers", Pushers)
    preset, changes = RUNS[name]
    learner = wdjax.train.make_learner(wdjax.train.load_config(preset, **{**SIZE, **changes}))
    state, metrics = learner.run(learner.init(jax.random.key(1)), num_updates=3)
    return arrays(state=state, metrics=metrics)


def tiny_config():
    host = {
        "total_env_steps": 3 * 96,
        "updates_per_chunk": 1,
        "checkpoint_every": 2,
        "eval_episodes": 4,
    }
    policy = agent(network=net(8), learning_rate=CARTPOLE_RATE)
    return wdjax.train.load_config("cartpole_ppo", **{**SIZE, **SHORT, **host, **policy})


def train():
    """Run a Trainer with evaluations and checkpoints, and return all that `load_run` reads."""
    with tempfile.TemporaryDirectory() as folder:
        load = functools.partial(wdjax.train.load_run, folder)
        wdjax.train.Trainer(tiny_config(), folder, quiet=True).train()
        rows = wdjax.train.read_metrics(Path(folder) / "metrics.jsonl")
        return arrays(state=load()[1], best=load(best=True)[1], rows=columns(rows))


def train_members():
    """Run a sweep over learning rates and seeds, and return all that `load_member` reads."""
    sweeps, rates = (
        importlib.import_module("wdjax.experiments.sweep"),
        {"policies.agent.learning_rate": [1e-3, 3e-3]},
    )
    with tempfile.TemporaryDirectory() as folder:
        table = sweeps.sweep(tiny_config(), rates, seeds=2, workdir=Path(folder) / "sweep")
        states = [
            arrays(state=sweeps.load_member(Path(folder) / "sweep", row["member"])[1])
            for row in table
        ]
    return arrays(rows=columns(table)) | {
        path: np.stack([state[path] for state in states]) for path in states[0]
    }


def lower(preset):
    """Return an update lowered for NVIDIA GPUs, on this machine without one.

    jax.default_backend is replaced, since it may be called from any module of wdjax.
    """
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        learner = wdjax.train.make_learner(
            wdjax.train.load_config(preset, num_envs=16, rollout_length=8, devices=1)
        )
        state = jax.eval_shape(learner.init, jax.random.key(0))
        return {"text": lowered(learner.update, state)}


ALL = {name: functools.partial(play, name) for name in RUNS} | {
    "trainer": train,
    "sweep": train_members,
}
TEXTS = {f"gpu:{preset}": functools.partial(lower, preset) for preset in ON_GPUS}


def dump(file, names):
    """Write name -> path -> array, or the error, of the checkout of this process."""
    home = Path(wdjax.__file__).resolve().parent.parent
    if home != Path.cwd().resolve():
        raise SystemExit(f"this is wdjax of {home}, not of {Path.cwd()}")
    results = {}
    for name in names:
        begun = time.perf_counter()
        try:
            results[name] = (ALL | TEXTS)[name]()
        except Exception:  # continue with the other runs
            results[name] = traceback.format_exc()
        print(f"{home}: {name}, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    Path(file).write_bytes(pickle.dumps(results))


def run_checkout(checkout, names, cache):
    """Return the output of `dump` for a checkout."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
    env = {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **os.environ,
        "PYTHONPATH": str(checkout),
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        # otherwise texts of kernels contain names of files
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "numbers"
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--dump",
            str(file),
            "--only",
            *names,
        ]
        subprocess.run(command, cwd=checkout, env=env, check=True)
        return pickle.loads(file.read_bytes())


def bits(array):
    return str(array.dtype), array.shape, array.tobytes()


def differences(old, new):
    """Return lines that describe changed arrays and moved arrays."""
    changed = [path for path in sorted(old) if path in new and bits(old[path]) != bits(new[path])]
    changes = [f"{path}: {apart(old[path], new[path])}" for path in changed]
    homes, moved = collections.defaultdict(list), []
    for path in sorted(new.keys() - old.keys(), reverse=True):
        homes[bits(new[path])].append(path)
    for path in sorted(old.keys() - new.keys()):
        same = homes[bits(old[path])]
        (moved if same else changes).append(
            f"{path} is now {same.pop()}" if same else f"only in OLD: {path}"
        )
    return changes + [f"only in NEW: {path}" for paths in homes.values() for path in paths], moved


def apart(a, b):
    """Describe the difference of two arrays."""
    if (a.shape, a.dtype) != (b.shape, b.dtype) or a.dtype.kind not in "fiub":
        return f"{a.dtype}{list(a.shape)} is now {b.dtype}{list(b.shape)}"
    most = np.nanmax(np.abs(a.astype(float) - b.astype(float)), initial=0.0)
    return f"{np.sum((a != b) & ((a == a) | (b == b)))} of {a.size} differ, by {most:.3g} at most"


def text_differences(old, new):
    """Compare two programs for GPUs: kernels byte by byte, other lines up to their order and names.

    Returns:
        (problems, notes), lists of lines.
    """
    kernels, rest = zip(*(split_text(text["text"]) for text in (old, new)), strict=True)
    counts = f"{len(kernels[0])} kernels, {rest[0].total()} other lines"
    if kernels[0] == kernels[1] and rest[0] == rest[1]:
        return [], [f"{counts}, equal up to order and names"]
    pairs = zip(*kernels, strict=False)
    changed = sum(a != b for a, b in pairs) + abs(len(kernels[0]) - len(kernels[1]))
    only_old, only_new = rest[0] - rest[1], rest[1] - rest[0]
    where = f"{changed} kernels and {only_old.total()} lines differ (now {only_new.total()})"
    lines = [f"  OLD {n} x {line[:200]}" for line, n in list(only_old.items())[:8]]
    lines += [f"  NEW {n} x {line[:200]}" for line, n in list(only_new.items())[:8]]
    return [f"of {counts}, {where}", *lines], []


def split_text(text):
    """Return (sorted kernel calls, counter of the other lines), without names of values."""
    lines = [re.sub(r"%\w+(#\d+)?(:\d+)?", "%", line).strip() for line in text.splitlines()]
    lines = [re.sub(r"@(\w+?)_\d+\b", r"@\1", line) for line in lines]
    kernels = sorted(line for line in lines if "xla.gpu.triton" in line)
    return kernels, collections.Counter(line for line in lines if "xla.gpu.triton" not in line)


def compare(old, new, names):
    """Print a line per name and the differences. Return whether all are equal."""
    same = True
    for name in names:
        a, b = old[name], new[name]
        problems = [
            f"fails in {where}:\n{text}"
            for where, text in (("OLD", a), ("NEW", b))
            if isinstance(text, str)
        ]
        leaves, notes = f"{len(a)} leaves" if not problems else "", []
        if not problems:
            problems, notes = (text_differences if name in TEXTS else differences)(a, b)
        same = same and not problems
        print(
            f"{name:20} {'DIFFERENT' if problems else 'the same':10} "
            f"{leaves if name in ALL else ''}"
        )
        print("".join(f"    {line}\n" for line in [*problems, *notes][:40]), end="")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="OLD NEW")
    parser.add_argument("--only", nargs="+", choices=[*ALL, *TEXTS], help="compare only these")
    parser.add_argument(
        "--gpu-text", action="store_true", help="also compare programs lowered for GPUs"
    )
    parser.add_argument(
        "--store",
        action="store_true",
        help="write same_numbers.json for the checkout in this folder",
    )
    parser.add_argument("--dump", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = asked.only or [*ALL, *(TEXTS if asked.gpu_text else ())]
    if asked.dump:
        return dump(asked.dump, names)
    with tempfile.TemporaryDirectory() as cache:
        if asked.store:
            import test_same_numbers  # selects and projects the stored arrays

            return test_same_numbers.store(run_checkout(Path.cwd(), ALL, cache))
        if len(asked.checkouts) != 2:
            parser.error("name two checkouts, OLD and NEW")
        results = [run_checkout(checkout.resolve(), names, cache) for checkout in asked.checkouts]
    sys.exit(not compare(*results, names))


if __name__ == "__main__":
    main()
