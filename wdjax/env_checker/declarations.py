"""Rules of `wdjax.check_env` on optional declarations: scripts, ratios and split_observation.

An environment without such declarations keeps these rules.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.env import SINGLE_AGENT, layout_of
from wdjax.env_checker.case import MASK, Case, count_of, expect, explained, has_mask
from wdjax.env_checker.leaves import words
from wdjax.kernels.backend import quick_jit
from wdjax.metric_names import statistic_names
from wdjax.spaces import Dict, Space, sample_shapes

LEADING = ((4,), (2, 3))  # leading axes of observations: agents, or replicas and agents


def scripts_are_named_with_their_groups(case: Case) -> None:
    """Require scripts to map names to (group, function)."""
    scripts, groups = case.env.scripts, list(case.env.groups) or [SINGLE_AGENT]
    expect(
        isinstance(scripts, Mapping),
        f"scripts has type {type(scripts).__name__}: must be a dict, name -> (group, function)",
    )
    for name, script in scripts.items():
        expect(
            isinstance(name, str) and name != "random",
            f"scripts has the key {name!r}: must be a string other than 'random', the name of "
            "random play",
        )
        expect(
            isinstance(script, tuple) and len(script) == 2 and callable(script[1]),
            f"scripts[{name!r}] = {script!r:.80}: must be (group, function of (env, state, "
            "params, key))",
        )
        expect(
            script[0] in groups,
            f"scripts[{name!r}] plays the group {script[0]!r}: must be one of {groups}",
        )


def scripts_act_for_their_groups(case: Case) -> None:
    """Trace every script, and play it at the start of one episode."""
    for name, (group, script) in case.env.scripts.items():
        space: Any = case.action_space
        space = space[group] if case.env.groups else space
        label = f"scripts[{name!r}]"
        with explained(label):
            action = jax.eval_shape(
                lambda *args, script=script: script(case.env, *args),
                case.reset[1]["state"],
                case.params,
                case.key,
            )
        expected = words(jax.ShapeDtypeStruct(space.shape, jnp.dtype(space.dtype)))
        expect(
            words(action) == expected,
            f"{label} returns {words(action)}: must be {expected}, the actions of {group!r} in "
            "action_space",
        )
        action = _first_action(case, script)
        expect(
            space.contains(action),
            f"{label} returns {action.tolist()!r:.80}: must be inside the action_space of "
            f"{group!r}. Clip it.",
        )


def _first_action(case: Case, script: Any) -> jax.Array:
    @quick_jit
    def act(key: jax.Array, params: Any) -> jax.Array:
        reset_key, script_key = jax.random.split(key)
        _, state = case.env.reset(reset_key, params)
        return script(case.env, state, params, script_key)

    return act(jax.random.key(case.seed), case.params)


def ratios_are_of_sums_in_info(case: Case) -> None:
    """Require info_ratios to refer to names in info."""
    ratios, info = case.env.info_ratios, list(case.step[1]["info"])
    expect(
        isinstance(ratios, Mapping),
        f"info_ratios has type {type(ratios).__name__}: must be a dict, name -> (sum, divisor)",
    )
    for name, ratio in ratios.items():
        expect(
            isinstance(ratio, tuple) and len(ratio) == 2 and set(ratio) <= set(info),
            f"info_ratios[{name!r}] = {ratio!r:.80}: must be (sum, divisor), two names of step's "
            f"info: {info}",
        )


def moved_statistics(case: Case) -> Iterator[str]:
    """Yield a warning for each statistic that is renamed because its metric name is taken."""
    info, ratios = case.step[1]["info"], case.env.info_ratios
    groups = tuple(case.env.groups) or (SINGLE_AGENT,)
    names = statistic_names(info, ratios, policies=groups, groups=groups)
    for label, metrics, pattern in zip(
        ("info", "info_ratios"), names, ("episode_{}", "{}"), strict=True
    ):
        for name, metric in metrics.items():
            if metric != pattern.format(name):
                yield (
                    f"{label}[{name!r}]: {pattern.format(name)} is already a metric. "
                    f"Training reports it as {metric}."
                )


def observations_split_into_others_and_own(case: Case) -> None:
    """Require split_observation to work with any leading axes."""
    layout = layout_of(case.env)
    if layout is None:
        return
    for group, space in case.by_group(case.observation_space).items():
        of_group = f" of {group!r}" if group else ""
        one = space.single
        if has_mask(one):
            one = Dict({name: part for name, part in one.spaces.items() if name != MASK})
        parts = [_split(layout, one, leading, of_group) for leading in LEADING]
        for name, first, other in zip(("others", "own"), *parts, strict=True):
            expect(
                first == other,
                f"split_observation{of_group} returns {name} of sizes {first} for leading axes "
                f"{LEADING[0]}, {other} for {LEADING[1]}. Its size must depend on the last axes "
                "only.",
            )


def _split(
    layout: Any, space: Space, leading: tuple[int, ...], of_group: str
) -> tuple[tuple, tuple]:
    """Return the shapes of others and own without the leading axes; fail if these are missing."""
    label = f"split_observation{of_group}, for leading axes {leading},"

    batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype), sample_shapes(space)
    )
    with explained("split_observation"):
        parts = jax.eval_shape(layout, batch)
    expect(
        isinstance(parts, tuple)
        and len(parts) == 3
        and all(hasattr(part, "shape") for part in parts),
        f"{label} returns {count_of(parts)}: must be three arrays, (others, present, own)",
    )
    others, present, own = parts
    n = len(leading)
    for name, part, axes in (
        ("others", others, "k, features"),
        ("present", present, "k"),
        ("own", own, "m"),
    ):
        expect(
            part.shape[:n] == leading and len(part.shape) == n + axes.count(",") + 1,
            f"{label} returns {name} of shape {part.shape}: must be "
            f"({', '.join(map(str, leading))}, {axes})",
        )
    expected = words(jax.ShapeDtypeStruct(others.shape[:-1], bool))
    expect(
        words(present) == expected,
        f"{label} returns present as {words(present)}: must be {expected}, a flag per other agent",
    )
    return others.shape[n:], own.shape[n:]
