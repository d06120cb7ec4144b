"""Validation of a TrainConfig, before anything is traced."""

import math

import numpy as np

from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.env_checker import DECLARED, RETURNED, require_rules
from wdjax.metric_names import statistic_names
from wdjax.spaces import LARGEST, Dict, Space
from wdjax.train.config.env_params import make_env, require_env_schedules
from wdjax.train.config.facts import in_env_steps, points_of, require_allowed, require_schedule
from wdjax.train.config.schema import NetworkConfig, PolicyConfig, TrainConfig
from wdjax.train.networks.checks import check_options, require_layout
from wdjax.train.networks.encoders import MASK, encoder_class
from wdjax.train.networks.memories import memory_class
from wdjax.train.rollout.pool import RANDOM, pool_of
from wdjax.train.state.agents import Assignment, assign_agents, group_sizes
from wdjax.train.state.aliases import EnvParams
from wdjax.train.state.registry import find_algorithm


def validate(config: TrainConfig) -> tuple[Env, EnvParams, dict[str, Assignment]]:
    """Validate a configuration. Return (env, env_params, assignments by policy).

    Raises:
        ValueError, TypeError: with the field, its value and the allowed values.
    """
    _validate_run(config)
    env, params = make_env(config)
    require_rules(env, params, DECLARED)
    require_env_schedules(in_env_steps(config, config.total_env_steps), env)
    agents = sum(group_sizes(env).values())
    rows = config.env_steps_per_update * agents
    require(
        rows <= LARGEST,
        "transitions per rollout",
        rows,
        f"below 2**31: num_envs {config.num_envs} x rollout_length {config.rollout_length} x "
        f"agents {agents}",
    )
    for name, policy in config.policies.items():
        _validate_policy(name, policy)
    _validate_teams(config)
    assignments = assign_agents(env, params, config.policies)
    in_steps = in_env_steps(config, config.total_env_steps)
    for name, assignment in assignments.items():
        policy = config.policies[name]
        algorithm = find_algorithm(config.policy(name).algorithm)
        _validate_pool(name, in_steps, env, assignment)
        require_layout(f"policies.{name}.network", policy.network, env)
        algorithm.check(name, config, assignment)
        try:
            algorithm.make_distribution(config.policy(name), assignment)
        except (TypeError, ValueError) as error:
            raise type(error)(f"policies.{name}: {error}") from None
        _validate_mask(name, assignment)
    returns = [f"{name}/episode_return" for name in config.policies]
    best = config.best_by
    if best is not None and best not in returns:
        require_known("best_metric", best, [*returns, *reported_statistics(env, params, config)])
    return env, params, assignments


def _validate_run(config: TrainConfig) -> None:
    require_allowed("", config)
    most = LARGEST * config.env_steps_per_update
    require(
        config.total_env_steps <= most,
        "total_env_steps",
        config.total_env_steps,
        f"at most {most} (2**31 - 1 updates, counted in int32)",
    )
    require(
        config.num_envs % config.blocks == 0,
        "num_blocks",
        config.blocks,
        f"a divisor of num_envs = {config.num_envs}",
    )
    require(
        config.devices >= 0 and config.blocks % (config.devices or 1) == 0,
        "devices",
        config.devices,
        f"a divisor of num_blocks = {config.blocks} (0: as many as possible)",
    )
    require(
        isinstance(config.reset, str) or 1 <= config.reset <= LARGEST,
        "reset",
        config.reset,
        "'fresh', 'fixed' or a number of starts, at least 1 and below 2**31",
    )
    for name, goal in config.stop_at.items():
        require(math.isfinite(goal), f"stop_at.{name}", goal, "finite")
    require(len(config.policies) > 0, "policies", config.policies, "at least one policy")


def reported_statistics(env: Env, params: EnvParams, config: TrainConfig) -> list[str]:
    """Return the metrics of an environment's statistics; traces its step."""
    info = require_rules(env, params, RETURNED).step[1]["info"]
    sums, ratios = statistic_names(info, env.info_ratios, config.policies, group_sizes(env))
    return [*sums.values(), *ratios.values()]


def _validate_teams(config: TrainConfig) -> None:
    for name, team in config.teams.items():
        path, names = f"teams.{name}", list(team.policies)
        usable = _is_name(name) and name not in config.policies
        require(usable, "teams", name, "a name without '/' and '.' that no policy has")
        require(len(names) > 0, f"{path}.policies", names, "at least one policy")
        trained = {config.policies[policy].trainable for policy in names}
        require(len(trained) == 1, f"{path}.policies", names, "all trainable, or none of them")
        require_allowed(f"{path}.", team)


def _is_name(name: str) -> bool:
    return bool(name) and "/" not in name and "." not in name


def _validate_policy(name: str, policy: PolicyConfig) -> None:
    require(_is_name(name), "policies", name, "a name without '/' and '.'")
    path = f"policies.{name}"
    require_allowed(f"{path}.", policy)
    require(
        policy.trainable or not policy.past_selves,
        f"{path}.past_selves",
        policy.past_selves,
        "0 if trainable is false: the policy never changes",
    )
    check_options(f"{path}.network", policy.network)
    memory_class(policy.network.memory, f"{path}.network.memory")
    for field in ("memory", "recurrent_layers"):
        value, usual = getattr(policy.network, field), getattr(NetworkConfig(), field)
        require(
            policy.network.recurrent_size or value == usual,
            f"{path}.network.{field}",
            value,
            f"{usual!r} (the default) if recurrent_size is 0. "
            "Set recurrent_size, the width of the memory",
        )
    raw = getattr(encoder_class(policy.network.encoder), "needs_raw", False)
    require(
        not (policy.normalize_observation and raw),
        f"{path}.normalize_observation",
        True,
        f"false with encoder {policy.network.encoder!r}",
    )


def _validate_pool(name: str, config: TrainConfig, env: Env, assignment: Assignment) -> None:
    """Raise ValueError for opponents that cannot replace a policy, and for invalid shares."""
    policy, path = config.policies[name], f"policies.{name}"
    several, pool = len(config.policies) > 1, pool_of(policy)
    for field, usual in (("past_selves", "0"), ("opponents", "left out")):
        value = getattr(policy, field)
        require(
            several or not value,
            f"{path}.{field}",
            value,
            f"{usual} in a run with a single policy",
        )
    require(
        not pool.size or config.blocks >= 2,
        "num_blocks",
        config.blocks,
        f"at least 2, because {path} has {'past_selves' if policy.past_selves else 'opponents'}: "
        "each block is played by the policy or by one opponent",
    )
    for field in ("opponents_every", "opponents_priority"):
        value, usual = getattr(policy, field), getattr(PolicyConfig(), field)
        require(
            pool.size or value == usual,
            f"{path}.{field}",
            value,
            f"{usual} (the default) without opponents and past_selves",
        )
    for script in pool.rules:
        kind = f"script in {path}.opponents (a run is a path that contains '/'):"
        require_known(kind, script, [RANDOM, *env.scripts])
        group = None if script == RANDOM else env.scripts[script][0]
        others = [part.group for part in assignment.segments if group not in (None, part.group)]
        require(
            not others,
            f"{path}.opponents: script",
            script,
            f"a script that also acts for {', '.join(others)}: this one acts for {group} only",
        )
    _validate_shares(path, policy)


def _validate_shares(path: str, policy: PolicyConfig) -> None:
    shares = {f"{path}.opponents.{name}": share for name, share in policy.opponents.items()}
    if policy.past_selves:
        shares = {f"{path}.past_selves_fraction": policy.past_selves_fraction, **shares}
    for field, share in shares.items():
        require_schedule(field, share)
    points = {name: dict(points_of(share)) for name, share in shares.items()}
    for step in sorted({step for share in points.values() for step in share}):
        at = {
            name: float(np.interp(step, list(share), list(share.values())))
            for name, share in points.items()
        }
        listed = ", ".join(f"{name} {value:g}" for name, value in at.items())
        field, value = f"sum of opponent shares at env step {step:g}", sum(at.values())
        require(value <= 1 + 1e-6, field, value, f"at most 1 in total ({listed})")


def _validate_mask(name: str, assignment: Assignment) -> None:
    """Raise ValueError for an action mask inside a part of the observation."""
    observation = assignment.observation_space
    for part, inner in observation.spaces.items() if isinstance(observation, Dict) else ():
        if _has_mask(inner):
            raise ValueError(
                f"policies.{name}: observation[{part!r}] contains {MASK}: "
                "must be a top-level key of the observation"
            )


def _has_mask(space: Space) -> bool:
    return isinstance(space, Dict) and (
        MASK in space.spaces or any(map(_has_mask, space.spaces.values()))
    )
