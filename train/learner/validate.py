"""What a TrainConfig may hold: checked before anything is traced."""

import math
from typing import Any

import numpy as np

from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.env_checker import DECLARED, RETURNED, require_rules
from wdjax.metric_names import statistic_names
from wdjax.spaces import LARGEST, Dict
from wdjax.train.config.env_params import make_env
from wdjax.train.config.facts import in_env_steps, points_of, require_allowed, require_schedule
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.networks.encoders import MASK, check_options, encoder_class, require_layout
from wdjax.train.rollout.opponents import RANDOM, pool_of
from wdjax.train.state.agents import Assignment, assign_agents, group_sizes
from wdjax.train.state.registry import find_algorithm


def validate(config: TrainConfig) -> tuple[Env, Any, dict[str, Assignment]]:
    """Checks a configuration whole. Returns (env, env_params, assignments), which the checks have built anyway.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed.
    """
    require_allowed("", config)
    steps = config.total_env_steps
    most = LARGEST * config.env_steps_per_update
    require(
        steps <= most,
        "total_env_steps",
        steps,
        f"at most {most} (2**31 - 1 updates, counted in int32)",
    )
    divides = config.num_envs % config.blocks == 0
    require(divides, "num_blocks", config.blocks, f"a divisor of num_envs = {config.num_envs}")
    fits = config.devices >= 0 and config.blocks % (config.devices or 1) == 0
    require(
        fits,
        "devices",
        config.devices,
        f"a divisor of num_blocks = {config.blocks} (0: as many as possible)",
    )
    if not isinstance(config.reset, str):
        allowed = "'fresh', 'fixed' or a number of starts, at least 1 and below 2**31"
        require(1 <= config.reset <= LARGEST, "reset", config.reset, allowed)
    for name, goal in config.stop_at.items():
        require(math.isfinite(goal), f"stop_at.{name}", goal, "finite")
    require(len(config.policies) > 0, "policies", config.policies, "at least one policy")
    env, params = make_env(config)
    require_rules(env, params, DECLARED)
    agents = sum(group_sizes(env).values())
    factors = (
        f"num_envs {config.num_envs} x rollout_length {config.rollout_length} x agents {agents}"
    )
    rows = config.env_steps_per_update * agents
    require(rows <= LARGEST, "transitions per rollout", rows, f"below 2**31: {factors}")
    for name, policy in config.policies.items():
        require(
            name and "/" not in name and "." not in name,
            "policies",
            name,
            "a name without '/' and '.'",
        )
        _validate_policy(name, policy)
    _validate_teams(config)
    assignments = assign_agents(env, params, config.policies)
    in_steps = in_env_steps(config, config.total_env_steps)
    for name, assignment in assignments.items():
        policy = config.policies[name]
        algorithm = find_algorithm(policy.algorithm)
        _validate_pool(name, in_steps, env, assignment)
        require_layout(f"policies.{name}.network", policy.network, env)
        algorithm.check(name, config, assignment)
        _validate_mask(name, assignment)
    returns = [f"{name}/episode_return" for name in config.policies]
    if config.best_by not in (None, *returns):
        require_known(
            "best_metric", config.best_by, [*returns, *reported_statistics(env, params, config)]
        )
    return env, params, assignments


def reported_statistics(env: Env, params: Any, config: TrainConfig) -> list[str]:
    """Return the metrics of an environment's statistics; traces its step."""
    info = require_rules(env, params, RETURNED).step[1]["info"]
    sums, ratios = statistic_names(info, env.info_ratios, config.policies, group_sizes(env))
    return [*sums.values(), *ratios.values()]


def _validate_teams(config: TrainConfig) -> None:
    for name, team in config.teams.items():
        path, trained = (
            f"teams.{name}",
            [config.policies[policy].trainable for policy in team.policies],
        )
        usable = name and "/" not in name and "." not in name and name not in config.policies
        require(usable, "teams", name, "a name without '/' and '.', and not that of a policy")
        require(len(trained) > 0, f"{path}.policies", list(team.policies), "at least one policy")
        require(
            len(set(trained)) == 1,
            f"{path}.policies",
            list(team.policies),
            "all trainable, or none of them",
        )
        require_allowed(f"{path}.", team)


def _validate_policy(name: str, policy: PolicyConfig) -> None:
    path = f"policies.{name}"
    frozen = policy.past_selves and not policy.trainable
    require_allowed(f"{path}.", policy)
    require(
        not frozen,
        f"{path}.past_selves",
        policy.past_selves,
        "0 if trainable is false: the policy never changes",
    )
    check_options(f"{path}.network", policy.network)
    raw = getattr(encoder_class(policy.network.encoder), "needs_raw", False)
    shifted = policy.normalize_observation and raw
    require(
        not shifted,
        f"{path}.normalize_observation",
        True,
        f"false with encoder {policy.network.encoder!r}",
    )


def _validate_pool(name: str, config: TrainConfig, env: Env, assignment: Assignment) -> None:
    """Refuses what cannot play in the place of a policy, and shares that are none."""
    policy, path = config.policies[name], f"policies.{name}"
    alone, pool = len(config.policies) == 1, pool_of(policy)
    for field, usual in (("past_selves", "0"), ("opponents", "left out")):
        value = getattr(policy, field)
        require(
            not (value and alone),
            f"{path}.{field}",
            value,
            f"{usual} in a run with a single policy",
        )
    what = "past_selves" if policy.past_selves else "opponents"
    words = f"at least 2, because {path} has {what}: each block is played by the policy or by one opponent"
    require(not pool.size or config.blocks >= 2, "num_blocks", config.blocks, words)
    for field in ("opponents_every", "opponents_priority"):
        usual = getattr(PolicyConfig(), field)
        words = f"{usual} (the default) without opponents and past_selves"
        require(
            pool.size or getattr(policy, field) == usual,
            f"{path}.{field}",
            getattr(policy, field),
            words,
        )
    for who in pool.rules:
        require_known(
            f"script in {path}.opponents (a run is a path that contains '/'):",
            who,
            [RANDOM, *env.scripts],
        )
        group = None if who == RANDOM else env.scripts[who][0]
        others = [part.group for part in assignment.segments if group not in (None, part.group)]
        words = f"a script that also acts for {', '.join(others)}: this one acts for {group} only"
        require(not others, f"{path}.opponents: script", who, words)
    _validate_shares(path, policy)


def _validate_shares(path: str, policy: PolicyConfig) -> None:
    past = (
        {f"{path}.past_selves_fraction": policy.past_selves_fraction} if policy.past_selves else {}
    )
    shares = {
        **past,
        **{f"{path}.opponents.{who}": share for who, share in policy.opponents.items()},
    }
    for field, share in shares.items():
        require_schedule(field, share)
    points = {name: dict(points_of(share)) for name, share in shares.items()}
    for step in sorted({step for share in points.values() for step in share}):
        at = {
            name: float(np.interp(step, list(share), list(share.values())))
            for name, share in points.items()
        }
        words = (
            f"at most 1 in total ({', '.join(f'{name} {value:g}' for name, value in at.items())})"
        )
        require(
            sum(at.values()) <= 1 + 1e-6,
            f"sum of opponent shares at env step {step:g}",
            sum(at.values()),
            words,
        )


def _validate_mask(name: str, assignment: Assignment) -> None:
    """Raise ValueError for an action mask inside a part of the observation."""
    observation = assignment.observation_space
    for part, inner in observation.spaces.items() if isinstance(observation, Dict) else ():
        if _has_mask(inner):
            raise ValueError(
                f"policies.{name}: observation[{part!r}] contains {MASK}: must be a top-level key of the observation"
            )


def _has_mask(space: Any) -> bool:
    return isinstance(space, Dict) and (
        MASK in space.spaces or any(map(_has_mask, space.spaces.values()))
    )
