"""Cooperative algorithms on own environments: presets, changes of each variant and measures."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from wdjax.experiments.reference.rows import Measured, runners_left
from wdjax.train import (
    PPO,
    Learner,
    Player,
    TrainState,
    cross_play,
    evaluate,
    load_run,
    preset_path,
    trained_policy,
)
from wdjax.yaml_reader import read_yaml

TEAM_TAG, TEAM_COMMONS, TEAM_RICE = (
    f"wdjax.experiments.reference.team_worlds:{name}"
    for name in ("TeamTag", "TeamCommons", "TeamRice")
)
SPLIT = "PPO, separate networks for policy and value"
Changes = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """Algorithm of a comparison: its changes of the preset, by dotted names of fields."""

    text: str
    changes: Changes = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class World:
    """Comparison on one preset; `measure(learner, state, metrics, key)` returns numbers by name."""

    preset: str
    measure: Callable[..., Measured]
    variants: dict[str, Variant]
    note: str
    """text above its table"""
    changes: Changes = dataclasses.field(default_factory=dict)
    """changes of the preset for all variants"""


# --- measures ---


def taggers_against(
    learner: Learner,
    state: TrainState,
    metrics: Mapping[str, np.ndarray],
    key: jax.Array,
    episodes: int,
    bundled: str = "",
) -> Measured:
    """Return the runners left, and the mean last step, of trained taggers against all runners.

    The runners were trained in the same run, in the run `bundled`, if any, are the script
    flee_nearest, or play at random. Actions are sampled, and against trained runners also greedy.
    """
    others: list[Player | str] = ["flee_nearest", "random"]
    if bundled:
        others = [bundled_runners(learner, bundled), *others]
    measured: Measured = {}
    for greedy in (False, True):
        chosen = others[: 1 if bundled else 0] if greedy else others
        cells = cross_play(
            learner, state, key, episodes, greedy, name="own", opponents={"runner": chosen}
        )
        end = ", greedy" if greedy else ""
        for (_, runner), played in cells.items():
            measured[f"{runner} left{end}"] = runners_left(learner, played)
        if not greedy:
            measured["last step, random"] = float(cells["own", "random"].episode_length.mean())
    return measured


def bundled_runners(learner: Learner, run: str) -> Player:
    """Return the runners of a bundled run, for its environment or for a subclass of it."""
    other, state = load_run(run)
    if other.config.env == learner.config.env:
        return Player("bundled", other, state)  # its own observations (`Env.shown_by`)
    return Player("bundled", network=trained_policy(other, state, "runner"))


def returns(
    learner: Learner,
    state: TrainState,
    metrics: Mapping[str, np.ndarray],
    key: jax.Array,
    episodes: int,
    names: Mapping[str, str],
) -> Measured:
    """Return mean episode returns, greedy and with sampled actions.

    Args:
        learner: learner of the run.
        state: trained state.
        metrics: not used.
        key: key of the episodes.
        episodes: number of fresh episodes.
        names: policy -> name of the sum of the returns of its agents.
    """
    measured: Measured = {}
    for greedy, end in ((True, "greedy"), (False, "sampled")):
        played = evaluate(learner, state, key, episodes, greedy=greedy).episode_return
        measured |= {
            f"{name}, {end}": float(played[policy].mean()) for policy, name in names.items()
        }
    return measured


# --- changes of presets ---


def as_pqn(preset: str, policy: str, mixer: str, **options: Any) -> Changes:
    """Return the change of a policy of a preset to PQN with these options.

    The preset cartpole_pqn has the other options. The hidden sizes, gamma, epochs, minibatches and
    self-play of the policy remain.
    """
    own = read_yaml(preset_path(preset))["policies"][policy]
    pqn = read_yaml(preset_path("cartpole_pqn"))["policies"]["agent"]
    learned = ("gamma", "epochs", "minibatches")
    played = ("past_selves", "past_selves_every", "past_selves_fraction")
    kept = {name: own[name] for name in (*learned, *played) if name in own}
    network = {**pqn["network"], "hidden_sizes": own["network"]["hidden_sizes"]}
    return {f"policies.{policy}": {**pqn, **kept, "network": network, "mixer": mixer, **options}}


def as_team(preset: str, algorithm: str) -> Changes:
    """Return the change of all policies of a preset to one team with the options of the first."""
    own = read_yaml(preset_path(preset))["policies"]
    names = {"algorithm", *(field.name for field in dataclasses.fields(PPO.Options))}
    first = next(iter(own.values()))
    options = {name: value for name, value in first.items() if name in names}
    policies = {
        policy: {name: value for name, value in fields.items() if name not in names}
        for policy, fields in own.items()
    }
    team = {**options, "policies": list(own), "algorithm": algorithm}
    return {"policies": policies, "teams": {"all": team}}


def tag_variants(preset: str) -> dict[str, Variant]:
    """Return the variants of the taggers of a preset of continuous Tag."""
    mappo, team = {"policies.tagger.algorithm": "MAPPO"}, {"env": TEAM_TAG}
    shared = {**team, "env_params.share_reward": True}
    joint = {**team, "env_params.joint_action": True}
    return {
        "ppo": Variant("PPO (the preset)"),
        "ppo_split": Variant(SPLIT, {"policies.tagger.network.shared_trunk": False}),
        "ppo_shared": Variant("PPO, shared reward", shared),
        "mappo": Variant("MAPPO, critic sees all observations", mappo),
        "mappo_state": Variant("MAPPO, critic sees positions", {**team, **mappo}),
        "mappo_shared": Variant("MAPPO, positions, shared reward", {**shared, **mappo}),
        "pqn": Variant("PQN", {**joint, **as_pqn(preset, "tagger", "none")}),
        "pqn_sum": Variant("PQN, sum of the team", {**joint, **as_pqn(preset, "tagger", "sum")}),
    }


TAG = (
    "A tagger receives the reward of a tag only if it is the nearest tagger, and all taggers stay "
    "active until the episode ends. With a shared reward, every tagger receives the mean reward of "
    "all taggers. PQN has one action for both heads (acceleration, turn). The runners learn by PPO "
    "in the same program. `X left` is the number of runners that are left at the end: `own` "
    "runners come from the same run and have learned against these taggers"
)
GRID = (
    "Every tagger receives the reward of a tag, which ends the episode: the reward is shared "
    "already. `X left` is the share of episodes that the runner survives: the runner of the same "
    "run (`own`) or of `reference:tag_gridworld` (`bundled`, the same for all variants)."
)
GRID_VARIANTS = {
    "ppo": Variant("PPO (the preset)"),
    "mappo": Variant("MAPPO", {"policies.tagger.algorithm": "MAPPO"}),
    "pqn": Variant("PQN", as_pqn("tag_gridworld_ppo", "tagger", "none")),
    "pqn_sum": Variant("PQN, sum of the team", as_pqn("tag_gridworld_ppo", "tagger", "sum")),
}
COMMONS, HARVESTER_MAPPO = {"planner": "welfare"}, {"policies.harvester.algorithm": "MAPPO"}

WORLDS: dict[str, World] = {
    "tag_continuous": World(
        "tag_continuous_ppo",
        functools.partial(taggers_against, episodes=64, bundled="reference:tag_continuous"),
        tag_variants("tag_continuous_ppo"),
        f"5 taggers against 100 runners. {TAG}; `bundled` runners come from "
        "`reference:tag_continuous`, the same for all variants.",
    ),
    "tag_gridworld": World(
        "tag_gridworld_ppo",
        functools.partial(taggers_against, episodes=1_000, bundled="reference:tag_gridworld"),
        GRID_VARIANTS,
        f"4 taggers against 1 runner on a grid, and every agent sees all agents. {GRID}",
    ),
    "tag_gridworld_partial": World(
        "tag_gridworld_ppo",
        functools.partial(taggers_against, episodes=1_000, bundled="reference:tag_gridworld"),
        GRID_VARIANTS,
        "The same with partial observations: a tagger sees its own cell and the runner, but no "
        f"other tagger. Only the central critic sees them all. {GRID}",
        {"env_params.use_full_observation": False},
    ),
    "tag_small": World(
        "tag_small",
        functools.partial(taggers_against, episodes=1_000),
        tag_variants("tag_small"),
        f"2 taggers against 8 runners. {TAG}.",
    ),
    "commons_without_tax": World(
        "taxed_commons",
        functools.partial(returns, episodes=64, names=COMMONS),
        {
            "ppo": Variant("PPO"),
            "ppo_shared": Variant("PPO, shared reward", {"env": TEAM_COMMONS}),
            "mappo": Variant("MAPPO", HARVESTER_MAPPO),
            "mappo_shared": Variant(
                "MAPPO, shared reward", {"env": TEAM_COMMONS, **HARVESTER_MAPPO}
            ),
            "pqn": Variant("PQN", as_pqn("taxed_commons", "harvester", "none", gamma=0.99)),
            "pqn_sum": Variant(
                "PQN, sum of the team", as_pqn("taxed_commons", "harvester", "sum", gamma=0.99)
            ),
        },
        "4 harvesters of a shared stock without taxes, gamma 0.99. Each receives the profit of its "
        "own catch, or with a shared reward the mean profit. Selfish harvesters end at a welfare "
        "of 73.0 (gamma 0, the equilibrium), and the best taxes reach 246.4. All agents observe "
        "the whole state, so a central critic sees nothing new.",
        {"env_params.highest_level": 0, "policies.harvester.gamma": 0.99},
    ),
    "taxed_commons": World(
        "taxed_commons",
        functools.partial(returns, episodes=64, names=COMMONS),
        {
            "ppo": Variant("PPO (the preset)"),
            "mappo": Variant("MAPPO", HARVESTER_MAPPO),
        },
        "4 harvesters and a planner that taxes them. The harvesters have gamma 0 and the planner, "
        "which stays with A2C, gamma 1. Policies of a team have the same options, so these two "
        "cannot share a critic.",
    ),
    "covid_small": World(
        "covid_small",
        functools.partial(returns, episodes=16, names={"state": "states", "planner": "planner"}),
        {
            "ppo": Variant("PPO (the preset)"),
            "mappo": Variant("MAPPO for the states", {"policies.state.algorithm": "MAPPO"}),
            "mappo_both": Variant(
                "MAPPO for both, two critics",
                {f"policies.{name}.algorithm": "MAPPO" for name in ("state", "planner")},
            ),
            "ppo_team": Variant(
                "PPO, options of the states for both", as_team("covid_small", "PPO")
            ),
            "mappo_team": Variant(
                "MAPPO, options of the states for both, one critic", as_team("covid_small", "MAPPO")
            ),
        },
        "5 states and a planner. Each state receives its own reward, and the planner its own. "
        "States and planner share a critic only as a team, with the same options: compare the last "
        "two variants.",
    ),
    "rice": World(
        "rice_ppo",
        functools.partial(returns, episodes=16, names={"region": "all regions"}),
        {
            "ppo": Variant("PPO (the preset)"),
            "ppo_split": Variant(SPLIT, {"policies.region.network.shared_trunk": False}),
            "ppo_shared": Variant("PPO, shared reward", {"env": TEAM_RICE}),
            "mappo": Variant("MAPPO", {"policies.region.algorithm": "MAPPO"}),
            "mappo_shared": Variant(
                "MAPPO, shared reward", {"env": TEAM_RICE, "policies.region.algorithm": "MAPPO"}
            ),
        },
        "27 regions of a climate economy. Each receives its own utility, or with a shared reward "
        "the mean. Each observes the state of all regions, and the critic the observations of all "
        "(28,161 numbers). PQN does not apply: an action has 57 parts.",
    ),
}
