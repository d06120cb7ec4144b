"""Names of metrics: those that wdjax writes, and those under which statistics of an environment are reported."""

from collections.abc import Callable, Collection, Iterable, Mapping

USER = "user"  # the part of the name before a user's statistic that collides
EVALUATED = "eval"  # the part before what evaluations find
SPREAD = ("", "_min", "_max", "_std")  # of episode lengths and returns: mean, extremes, deviation
LENGTHS = tuple(f"episode_length{end}" for end in SPREAD)
STANDARD_ERROR = "_standard_error"
# and an opponent
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
# Fields of a run's configuration: columns of the tables of sweeps (tests compare them with TrainConfig).
CONFIGURED = frozenset(
    {
        "env",
        "policies",
        "env_params",
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
RECORDED = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})  # what Weights & Biases adds


def user_space(policies: Collection[str]) -> str:
    """Return the prefix of statistics that collide: "user", or "user_" where a policy is named "user"."""
    space = USER
    while space in policies:
        space += "_"
    return space


def free_name(name: str, space: str, taken: Callable[[str], bool]) -> str:
    """Return `name`, with the prefix `space/` added until the name is free."""
    while taken(name):
        name = f"{space}/{name}"
    return name


def statistic_names(
    info: Iterable[str],
    ratios: Mapping[str, tuple[str, str]],
    policies: Collection[str] = (),
    groups: Collection[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the metrics of an environment's statistics: ({name in info: metric}, {name in info_ratios: metric}).

    A sum X is reported as `episode_X` and a ratio R as `R`. One that collides with a name that wdjax writes, or with
    another statistic, is reported as `user/X` or `user/R`. Sums that a ratio replaces are not reported.

    Args:
        info: names of the statistics in `step`'s info.
        ratios: `Env.info_ratios`.
        policies, groups: names of the run's policies and of the environment's groups.
    """
    space = user_space(policies)
    fixed = {*WRITTEN, *CONFIGURED, *RECORDED, *(f"{name}/episode_return" for name in groups)}
    names = {*fixed, *(f"{name}{STANDARD_ERROR}" for name in fixed)}

    def taken(name: str) -> bool:
        first, _, rest = name.partition("/")
        of_library = bool(rest) and first in (*policies, EVALUATED)
        return of_library or not names.isdisjoint((name, f"{name}{STANDARD_ERROR}"))

    def collides(name: str) -> bool:
        # readers find policies by these
        read = name.removesuffix(STANDARD_ERROR).endswith("/episode_return")
        # sweeps' columns, eval/best/...
        in_table = name.startswith(("policies.", "env_params.", "best/"))
        return read or in_table or taken(name)

    sums = set(info) - divided_away(ratios)
    wanted = [(0, name, f"episode_{name}") for name in sorted(sums)] + [
        (1, name, name) for name in sorted(ratios)
    ]
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    moved = []
    for kind, name, natural in wanted:
        if collides(natural):
            moved.append((kind, name))
            continue
        found[kind][name] = natural
        names.update((natural, f"{natural}{STANDARD_ERROR}"))
    for kind, name in moved:
        found[kind][name] = free_name(f"{space}/{name}", space, taken)
        names.update((found[kind][name], f"{found[kind][name]}{STANDARD_ERROR}"))
    return found


def divided_away(ratios: Mapping[str, tuple[str, str]]) -> set[str]:
    """Return the sums that `Env.info_ratios` replaces: numerators that are no denominator."""
    return {total for total, _ in ratios.values()} - {count for _, count in ratios.values()}
