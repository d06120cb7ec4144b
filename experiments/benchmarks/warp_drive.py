"""WarpDrive 2.7.1 training its own tag_gridworld.yaml and tag_continuous.yaml.

It is searched in PATH/warp_drive, where PATH is `--peers-path` (it writes into its own folder),
then in installed packages. torch and numba must be installed. Its CUDA kernels need nvcc on the
PATH, and the headers of CURAND (CPATH):

    pip install --no-deps --target PATH/warp_drive rl-warp-drive==2.7.1 gym==0.26.2 gym-notices \\
        cloudpickle pycuda pytools mako platformdirs siphash24

This compiles pycuda, which finds the driver's library with CUDA_ROOT=/usr/local/cuda and
LDFLAGS="-L$CUDA_ROOT/lib64/stubs -lcuda".
"""

import importlib
import importlib.metadata
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

UPDATES = {"tag_gridworld": 5, "tag_continuous": 2}  # of one call, about a second
ENVS = {
    "tag_gridworld": ("tag_gridworld", "CUDATagGridWorld"),
    "tag_continuous": ("tag_continuous", "TagContinuous"),
}


def train(trainer: Any, num_updates: int) -> None:
    """Run rollouts and updates as the trainer's `train`, without logs and checkpoints."""
    for _ in range(num_updates):
        trainer._generate_rollout_batch()
        trainer._update_model_params(
            iteration=1
        )  # neither the first nor the last: those log; it waits for the device


def make_trainer(name: str, backend: str) -> Any:
    """Return WarpDrive's trainer for one of its configurations.

    Args:
        name: name of the configuration.
        backend: "pycuda" (its CUDA kernels) or "numba".

    Raises:
        ImportError: if it, or one of its dependencies, is missing.
        Exception: any other error of WarpDrive.
    """
    for gone, now in (
        ("row_stack", "vstack"),
        ("trapz", "trapezoid"),
    ):  # numba-cuda asks for them; numpy 2.5 has not
        setattr(np, gone, getattr(np, now))
    import torch
    from warp_drive.env_wrapper import EnvWrapper
    from warp_drive.training.trainers.trainer_a2c import TrainerA2C
    from warp_drive.utils.common import get_project_root

    logging.getLogger().setLevel(logging.ERROR)
    if backend == "pycuda":
        from warp_drive.utils.architecture_validate import DeviceArchitectures as Known

        for table, of_hopper in ((Known.MaxBlocksPerSM, 32), (Known.MaxThreadsPerSM, 2048)):
            table.setdefault(
                "sm_90", of_hopper
            )  # its list ends with sm_87, and it refuses to start on others
    torch.set_float32_matmul_precision(
        "high"
    )  # tf32, as wdjax's products; its own default is float32
    configs = Path(get_project_root()) / "warp_drive" / "training" / "run_configs"
    config = yaml.safe_load((configs / f"{name}.yaml").read_text(encoding="utf8"))
    module, kind = ENVS[name]
    env = getattr(importlib.import_module(f"example_envs.{module}.{module}"), kind)(**config["env"])
    config["trainer"]["seed"] = (
        0  # its own, the time, is of a type that random.seed has not taken since Python 3.11
    )
    config["saving"]["basedir"] = tempfile.mkdtemp()
    agents = {
        policy: [*getattr(env, f"{policy}s")] for policy in config["policy"] if policy != "shared"
    }
    trainer = TrainerA2C(
        env_wrapper=EnvWrapper(env, num_envs=config["trainer"]["num_envs"], env_backend=backend),
        config=config,
        policy_tag_to_agent_id_map=agents or {"shared": [*env.taggers, *env.runners]},
        verbose=False,
    )
    trainer.cuda_envs.reset_all_envs()
    return trainer


def words(backend: str) -> str:
    """Return the backend and the versions as text."""
    how = "its CUDA kernels" if backend == "pycuda" else "its numba backend"
    libraries = ("torch", "numba" if backend == "numba" else "pycuda", "numpy")
    versions = ", ".join(
        f"{library} {importlib.metadata.version(library)}" for library in libraries
    )
    return (
        f"WarpDrive {importlib.metadata.version('rl-warp-drive')} by {how}, its own yaml, "
        f"tf32, {versions}"
    )
