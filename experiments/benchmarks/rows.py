"""Rows of the benchmark suite: workloads, their sizes, and targets on one NVIDIA H200.

A workload is a preset with changes (without a preset: random actions, no learning), measured in up
to three tiers. Network, batch and algorithm of tag_gridworld and tag_continuous are from
WarpDrive's configurations of these names. The other sizes (_105, _1000), cartpole and acrobot are
our workloads, run by WarpDrive with its own programs.

Numbers of other libraries were measured by us on one H200: WarpDrive 2.7.1 with the better of its
two backends, NUMBA or CUDA (its own CUDA kernels without stopwatches; known only for tag_gridworld,
2.90 M env steps/s against 2.52 M with numba, and tag_continuous, 34 k against 42.6 k). Its matrix
products are float32 (CUDA: tf32); wdjax uses tf32 or float16, except in the rows in bfloat16. The
number of PufferLib is published, for another environment and card; that of craftax.cu is for
another environment.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from wdjax.train import PolicyConfig, TrainConfig, load_config

STEPPING, INFERENCE, TRAINING, RUNS, STARTUP = TIERS = (
    "stepping",
    "inference",
    "training",
    "runs",
    "startup",
)
TIER_TITLES = {
    STEPPING: "Environment stepping: random actions, fresh resets",
    INFERENCE: "Stepping with inference: policies act without learning",
    TRAINING: "Training: whole updates, rollout and learning",
    RUNS: "Presets as users run them: Trainer with the unchanged preset",
    STARTUP: "Start-up until the first update starts: empty / filled compilation cache",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Env steps/s on one NVIDIA H200."""

    others: float | None
    """env steps/s of another library; None: it does not start"""
    others_by: str
    """name of the library"""
    must: float
    """required of wdjax"""
    aim: float
    """next goal"""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A row of the table, in one or several tiers."""

    changes: Mapping[str, Any]
    """fields of TrainConfig that differ from the preset"""
    small: Mapping[str, Any]
    """further changes for sizes for a CPU"""
    preset: str = ""
    """name of the preset; empty: an environment without a preset, for stepping only"""
    targets: Mapping[str, Target] = dataclasses.field(default_factory=dict)
    """tier -> target"""
    tiers: tuple[str, ...] = (STEPPING, INFERENCE, TRAINING)
    """tiers in which the row is measured"""
    num_updates: int = 4
    """updates (inference: rollouts) of one timed program"""
    stepping_length: int = 0
    """steps of the timed stepping program; 0: rollout_length"""
    members: int = 0
    """seeds that train together under vmap, 8 at small size; 0: one run without vmap"""
    plays: bool = False
    """step by `wdjax.play` instead of a scan of `VectorEnv.step`"""

    def config(self, small: bool = False) -> TrainConfig:
        """Return the configuration at full size, or at small size."""
        changes = {"devices": 1, **self.changes, **(self.small if small else {})}
        if self.preset:
            return load_config(self.preset, **changes)
        return TrainConfig(policies={"agent": PolicyConfig()}, **changes)

    def num_members(self, small: bool = False) -> int:
        """Return the number of seeds under vmap, 0 without vmap."""
        return min(self.members, 8) if small else self.members


def crowd(taggers: int, runners: int, side: float = 20.0) -> dict[str, Any]:
    """Return tag_continuous on a square of this side, with taggers that tag within 0.4."""
    numbers: dict[str, Any] = {"num_taggers": taggers, "num_runners": runners}
    numbers |= {"grid_length": side, "tagging_distance": 0.4 / side}
    return {f"env_params.{name}": value for name, value in numbers.items()}


NUMBA, CUDA, PUREJAXRL = "WarpDrive 2.7.1, numba", "WarpDrive 2.7.1, CUDA", "PureJaxRL"
CRAFTAX = "craftax.cu, a heavier environment"
CLASSIC = {"num_envs": 10_000, "rollout_length": 50, "reset": "fresh"}
ACTING = (INFERENCE, TRAINING)  # classic control has separate stepping rows

WORKLOADS: dict[str, Workload] = {
    "tag_gridworld": Workload(
        preset="tag_gridworld", changes={}, small={"num_envs": 200}, num_updates=10,
        targets={TRAINING: Target(2.90e6, CUDA, 60e6, 150e6)},
    ),
    "tag_continuous": Workload(
        preset="tag_continuous",
        # faster, but compiling takes longer than the preset trains; 5 divides the rollout of 250
        changes={"rollout_unroll": 5},
        small={"num_envs": 8, "rollout_length": 25},
        targets={TRAINING: Target(42.6e3, NUMBA, 800e3, 1.2e6)},
    ),
    "tag_continuous_105": Workload(
        preset="tag_continuous",
        changes={**crowd(5, 100), "num_envs": 2_000, "rollout_length": 50},
        small={"num_envs": 8, "rollout_length": 25},
        targets={
            TRAINING: Target(158e3, NUMBA, 1.6e6, 3e6),
            STEPPING: Target(1.74e6, NUMBA, 8e6, 15e6),
        },
    ),
    "tag_continuous_1000": Workload(
        preset="tag_continuous",
        changes={**crowd(100, 900), "num_envs": 2_000, "rollout_length": 10},
        small={"num_envs": 2, "rollout_length": 5}, num_updates=2, stepping_length=50,
        targets={
            STEPPING: Target(None, NUMBA, 400e3, 1e6),
            TRAINING: Target(None, NUMBA, 100e3, 200e3),
        },
    ),
    "tag_continuous_10000": Workload(
        preset="tag_continuous",
        changes={**crowd(100, 9_900, 200.0), "num_envs": 50, "rollout_length": 10},
        small={"num_envs": 1, "rollout_length": 2}, num_updates=2, stepping_length=50,
        targets={
            STEPPING: Target(None, NUMBA, 50e3, 100e3),
            TRAINING: Target(None, NUMBA, 10e3, 20e3),
        },
    ),
    "tag_gridworld_1000": Workload(
        preset="tag_gridworld",
        changes={
            "env_params.num_taggers": 999, "env_params.use_full_observation": False,
            "rollout_length": 10,
        },
        small={"num_envs": 20}, stepping_length=100,  # whole episodes, with resets
        targets={
            STEPPING: Target(3.79e6, NUMBA, 20e6, 40e6),
            TRAINING: Target(300e3, NUMBA, 1.5e6, 4e6),
        },
    ),
    "covid_economy": Workload(
        preset="covid_economy", changes={"num_envs": 1_000},
        small={"num_envs": 16}, num_updates=2, stepping_length=540,
    ),
    "taxed_commons": Workload(preset="taxed_commons", changes={"num_envs": 10_000},
        small={"num_envs": 200}),
    "cartpole_a2c": Workload(
        preset="cartpole", changes=CLASSIC, small={"num_envs": 1_000}, tiers=ACTING, num_updates=20,
        targets={TRAINING: Target(8.9e6, NUMBA, 250e6, 500e6)},
    ),
    "acrobot_a2c": Workload(
        preset="acrobot", changes=CLASSIC, small={"num_envs": 1_000}, tiers=ACTING, num_updates=20,
        targets={TRAINING: Target(12.7e6, NUMBA, 220e6, 500e6)},
    ),
    "cartpole_ppo": Workload(
        preset="cartpole_ppo", changes={"num_envs": 10_000, "rollout_length": 128},
        small={"num_envs": 200},
        tiers=ACTING, targets={TRAINING: Target(47e6, PUREJAXRL, 95e6, 200e6)},
    ),
    "cartpole_ppo_256_seeds": Workload(
        preset="cartpole_ppo", changes={"num_envs": 4, "rollout_length": 128}, small={},
        members=256,
        tiers=ACTING, num_updates=20, targets={TRAINING: Target(16.2e6, PUREJAXRL, 33e6, 65e6)},
    ),
    "cartpole_a2c_1m": Workload(
        preset="cartpole", changes={"num_envs": 1_000_000, "rollout_length": 32, "reset": "fresh",
            "policies.agent.network.hidden_sizes": [64, 64]},
        small={"num_envs": 10_000},
        tiers=(INFERENCE,), targets={INFERENCE: Target(307e6, CRAFTAX, 2e9, 4e9)},
    ),
    "rice": Workload(preset="rice", changes={}, small={"num_envs": 4, "rollout_length": 20}),
}  # fmt: skip


HALF = {f"policies.{policy}.network.compute_dtype": "bfloat16" for policy in ("tagger", "runner")}
WORKLOADS |= {
    f"{name}_bf16": dataclasses.replace(
        WORKLOADS[name],
        changes={**WORKLOADS[name].changes, **HALF},
        tiers=(TRAINING,),
        stepping_length=0,
    )
    for name in list(WORKLOADS)
    if name.startswith("tag_continuous")
}

PUFFERLIB = "PufferLib, MinGRU, Breakout, RTX 3080 Ti"
WORKLOADS |= {
    f"cartpole_ppo_{memory}": dataclasses.replace(
        WORKLOADS["cartpole_ppo"],
        changes={
            **WORKLOADS["cartpole_ppo"].changes,
            "num_blocks": 4,  # minibatches of whole sequences
            "policies.agent.network.recurrent_size": 64,
            "policies.agent.network.memory": memory,
        },
        small={"num_envs": 160},
        tiers=(TRAINING,),
        targets={TRAINING: Target(22e6, PUFFERLIB, must, 2 * must)},
    )
    for memory, must in (("gru", 20e6), ("mingru", 40e6))
}


def _games(
    suffix: str, num_envs: int, small: int, rates: Mapping[str, float], must: int, aim: int
) -> dict:
    """Return stepping rows of a size; must and aim are multiples of the rates of gymnax."""
    rows: dict[str, Workload] = {}
    for game in GAMES:
        rate = rates.get(game)
        targets = {STEPPING: Target(rate, "gymnax 0.0.9", must * rate, aim * rate)} if rate else {}
        changes = {"env": game, "num_envs": num_envs, "rollout_length": 200}
        row = Workload(changes, {"num_envs": small}, targets=targets, tiers=(STEPPING,))
        rows |= {
            f"{game}_{suffix}": row,
            f"{game}_{suffix}_play": dataclasses.replace(row, plays=True),
        }
    return rows


GAMES = ("cartpole", "acrobot", "mountain_car", "continuous_mountain_car", "pendulum")
AT_10K = {"cartpole": 393e6, "acrobot": 248e6, "mountain_car": 481e6, "pendulum": 457e6}  # gymnax
AT_1M = {"cartpole": 10.1e9, "acrobot": 2.7e9, "mountain_car": 21e9, "pendulum": 12.6e9}
WORKLOADS |= _games("10k", 10_000, 1_000, AT_10K, must=3, aim=10)
WORKLOADS |= _games("1m", 1_000_000, 10_000, AT_1M, must=2, aim=5)
WORKLOADS["reaction_one_atom_10k"] = Workload(
    {"env": "reaction_one_atom", "num_envs": 10_000, "rollout_length": 200},
    {"num_envs": 1_000},
    tiers=(STEPPING,),
)
