"""Metric names: the built-in metrics, and the statistics of environments."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

USER = "user"  # prefix of environment statistics whose name collides
EVALUATED = "eval"  # prefix of evaluation results
SPREAD = ("", "_min", "_max", "_std")  # of episode lengths and returns: mean, extremes, deviation
LENGTHS = tuple(f"episode_length{end}" for end in SPREAD)
STANDARD_ERROR = "_standard_error"
# per opponent
OPPONENT = ("opponent_blocks/", "opponent_games/", "opponent_return/", "opponent_win_rate/")

# Fields of metrics.jsonl and of the tables of sweeps that belong to no policy.
WRITTEN = frozenset(
    {
        "updates",
        "env_steps",
        "seconds",
        "seconds_per_update",
        "compile_seconds",
        "env_steps_per_second",
        "agent_steps_per_second",
        "episodes",
        "episode_return",
        "bad_numbers",
        "skipped_updates",
        "member",
        "parent",
        "score",
        "trial",
        "values",
        "state",
        *LENGTHS,
    }
)
# Fields of a run configuration, which are columns in the tables of sweeps; tests compare both.
CONFIGURED = frozenset(
    {
        "env",
        "policies",
        "teams",
        "env_params",
        "env_schedules",
        "num_envs",
        "rollout_length",
        "rollout_unroll",
        "kernels",
        "search_products",
        "total_env_steps",
        "stop_at",
        "reset",
        "seed",
        "num_blocks",
        "devices",
        "on_bad_numbers",
        "updates_per_chunk",
        "checkpoint_every_updates",
        "checkpoint_every",
        "keep_checkpoints",
        "best_metric",
        "evaluate_every_updates",
        "evaluate_every",
        "eval_episodes",
        "eval_greedy",
    }
)
RECORDED = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})  # added by Weights & Biases


def user_space(policies: Collection[str]) -> str:
    """Return the prefix of colliding statistics: "user", or "user_" if a policy is named "user"."""
    space = USER
    while space in policies:
        space += "_"
    return space


def free_name(name: str, space: str, taken: Callable[[str], bool]) -> str:
    """Return `name`, prefixed with `space/` until it is free."""
    while taken(name):
        name = f"{space}/{name}"
    return name


def policies_of(row: Mapping[str, Any]) -> list[str]:
    """Return the policies with metrics in a row of metrics.jsonl."""
    return [
        name.split("/")[0]
        for name in row
        if name.endswith("/episode_return") and name.count("/") == 1
    ]


def summed_over(row: Mapping[str, Any]) -> str:
    """Return the unit of the returns in a row of metrics.jsonl: "sum over 3 agents", or "".

    The returns of a policy are sums over its agents. The text contains their number if there is one
    policy. It is empty if each policy has one agent, and if the row has no speeds, from which
    agents are counted: members of a sweep or a population have none.
    """
    policies, both = policies_of(row), ("agent_steps_per_second", "env_steps_per_second")
    total, steps = (row.get(name) for name in both)
    agents = round(total / steps) if total and steps else None
    if agents in (None, len(policies)):
        return ""
    return f"sum over {agents} agents" if len(policies) == 1 else "sum over agents"


def spreads_of(row: Mapping[str, Any]) -> set[str]:
    """Return the extremes and deviations of episode lengths and returns in a row."""
    means = ["episode_length", *(f"{name}/episode_return" for name in policies_of(row))]
    return {f"{mean}{end}" for mean in means for end in SPREAD if end}


def statistic_names(
    info: Iterable[str],
    ratios: Mapping[str, tuple[str, str]],
    policies: Collection[str] = (),
    groups: Collection[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the metric names of an environment's statistics.

    The sum of a statistic X over an episode is reported as `episode_X`, and a ratio R as `R`. If
    that metric name is reserved or used by another statistic, the metric is `user/X` or `user/R`
    instead (see `user_space` and `free_name`). Sums that ratios replace (`divided_away`) are not
    reported.

    Args:
        info: names of the statistics in `step`'s info.
        ratios: `Env.info_ratios`.
        policies: names of the run's policies.
        groups: names of the environment's groups.

    Returns:
        Two dicts: name in info -> metric, and name in info_ratios -> metric.
    """
    space = user_space(policies)
    fixed = {*WRITTEN, *CONFIGURED, *RECORDED, *(f"{name}/episode_return" for name in groups)}
    names = {*fixed, *(f"{name}{STANDARD_ERROR}" for name in fixed)}

    def taken(name: str) -> bool:
        first, _, rest = name.partition("/")
        is_builtin = bool(rest) and first in (*policies, EVALUATED)
        return is_builtin or not names.isdisjoint((name, f"{name}{STANDARD_ERROR}"))

    def collides(name: str) -> bool:
        # readers of metrics.jsonl find policies by this suffix
        looks_like_policy = name.removesuffix(STANDARD_ERROR).endswith("/episode_return")
        # columns of sweep tables, and eval/best/...
        in_table = name.startswith(("policies.", "env_params.", "best/"))
        return looks_like_policy or in_table or taken(name)

    sums = set(info) - divided_away(ratios)
    wanted = [(0, name, f"episode_{name}") for name in sorted(sums)] + [
        (1, name, name) for name in sorted(ratios)
    ]
    metrics: tuple[dict[str, str], dict[str, str]] = {}, {}
    moved = []
    for kind, name, default in wanted:
        if collides(default):
            moved.append((kind, name))
            continue
        metrics[kind][name] = default
        names.update((default, f"{default}{STANDARD_ERROR}"))
    for kind, name in moved:
        metrics[kind][name] = free_name(f"{space}/{name}", space, taken)
        names.update((metrics[kind][name], f"{metrics[kind][name]}{STANDARD_ERROR}"))
    return metrics


def divided_away(ratios: Mapping[str, tuple[str, str]]) -> set[str]:
    """Return the sums that ratios replace: numerators in `ratios` that are not also divisors."""
    return {total for total, _ in ratios.values()} - {count for _, count in ratios.values()}
