"""The checks of `wdjax.check_env` of what a game may declare of itself: its scripts, and who is whom in what it shows.

Each is one rule of the contract, as those in rules.py; a game that declares nothing keeps them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.env import SINGLE_AGENT, layout_of
from wdjax.env_checker.case import MASK, Case, explained, fail, has_mask, quick_jit
from wdjax.env_checker.leaves import words
from wdjax.metric_names import statistic_names
from wdjax.spaces import Dict, Space, sample_shapes

LEADING = ((4,), (2, 3))  # axes of observations: agents, or replicas and agents


def scripts_are_named_with_their_groups(case: Case) -> None:
    scripts, groups = case.env.scripts, list(case.env.groups) or [SINGLE_AGENT]
    if not isinstance(scripts, Mapping):
        fail(
            f"scripts is of type {type(scripts).__name__}: make it a dict, name -> (group, function)"
        )
    for name, script in scripts.items():
        if not isinstance(name, str) or name == "random":
            fail(
                f"scripts has the name {name!r}: must be a string, and not 'random', which is who plays at random"
            )
        if not (isinstance(script, tuple) and len(script) == 2 and callable(script[1])):
            fail(
                f"scripts[{name!r}] = {script!r:.80}: must be (group, function of (env, state, params, key))"
            )
        if script[0] not in groups:
            fail(f"scripts[{name!r}] plays the group {script[0]!r}: must be one of {groups}")


def scripts_act_for_their_groups(case: Case) -> None:
    """Traces every script, then plays it at the start of one episode."""
    for name, (group, script) in case.env.scripts.items():
        space = case.action_space[group] if case.env.groups else case.action_space
        what = f"scripts[{name!r}]"
        with explained(what):
            action = jax.eval_shape(
                lambda *args, script=script: script(case.env, *args),
                case.reset[1]["state"],
                case.params,
                case.key,
            )
        asked = jax.ShapeDtypeStruct(space.shape, jnp.dtype(space.dtype))
        found = words(action) if hasattr(action, "shape") else type(action).__name__
        if found != words(asked):
            fail(
                f"{what} returns {found}: must be {words(asked)}, the actions of {group!r}, as action_space says"
            )
        action = _first_action(case, script)
        if not space.contains(action):
            fail(
                f"{what} returns {action.tolist()!r:.80}, outside the action_space of {group!r}: clip or correct it"
            )


def _first_action(case: Case, script: Any) -> jax.Array:
    @quick_jit
    def act(key: jax.Array, params: Any) -> jax.Array:
        reset_key, script_key = jax.random.split(key)
        _, state = case.env.reset(reset_key, params)
        return script(case.env, state, params, script_key)

    return act(jax.random.key(case.seed), case.params)


def ratios_are_of_sums_in_info(case: Case) -> None:
    ratios, info = case.env.info_ratios, list(case.step[1]["info"])
    if not isinstance(ratios, Mapping):
        fail(
            f"info_ratios is of type {type(ratios).__name__}: make it a dict, name -> (sum, divisor)"
        )
    for name, ratio in ratios.items():
        if not (isinstance(ratio, tuple) and len(ratio) == 2 and set(ratio) <= set(info)):
            fail(
                f"info_ratios[{name!r}] = {ratio!r:.80}: must be (sum, divisor), two names of step's info: {info}"
            )


def moved_statistics(case: Case) -> Iterator[str]:
    """Yield a sentence for each statistic whose name collides with one of wdjax's metrics."""
    info, ratios = case.step[1]["info"], case.env.info_ratios
    groups = tuple(case.env.groups) or (SINGLE_AGENT,)
    names = statistic_names(info, ratios, policies=groups, groups=groups)
    for what, own, natural in zip(
        ("info", "info_ratios"), names, ("episode_{}", "{}"), strict=True
    ):
        for name, metric in own.items():
            if metric != natural.format(name):
                yield f"{what}[{name!r}]: {natural.format(name)} is a metric of wdjax. Training reports it as {metric}."


def observations_split_into_others_and_own(case: Case) -> None:
    layout = layout_of(case.env)
    if layout is None:
        return
    for group, space in case.by_group(case.observation_space).items():
        of_group = f" of {group!r}" if group else ""
        parts = [
            _split(layout, _without_mask(space.single), leading, of_group) for leading in LEADING
        ]
        for name, first, other in zip(("others", "own"), *parts, strict=True):
            if first != other:
                sizes = f"of sizes {first} for leading axes {LEADING[0]}, {other} for {LEADING[1]}"
                fail(
                    f"split_observation{of_group} returns {name} {sizes}: these must depend on the last axes only"
                )


def _split(
    layout: Any, space: Space, leading: tuple[int, ...], of_group: str
) -> tuple[tuple, tuple]:
    """Returns the shapes of (others, own) without the leading axes, which all parts must have."""
    what = f"split_observation{of_group}, for leading axes {leading},"

    def batch(leaf) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*leading, *leaf.shape), leaf.dtype)

    with explained("split_observation"):
        parts = jax.eval_shape(layout, jax.tree.map(batch, sample_shapes(space)))
    if (
        not isinstance(parts, tuple)
        or len(parts) != 3
        or not all(hasattr(part, "shape") for part in parts)
    ):
        found = f"{len(parts)} values" if isinstance(parts, tuple) else type(parts).__name__
        fail(f"{what} returns {found}: return (others, present, own), an array each")
    others, present, own = parts
    n = len(leading)
    for name, part, axes in (("others", others, 2), ("present", present, 1), ("own", own, 1)):
        if part.shape[:n] != leading or len(part.shape) != n + axes:
            sizes = ", ".join(map(str, leading))
            rest = {"others": "k, features", "present": "k", "own": "m"}[name]
            fail(f"{what} returns {name} of shape {part.shape}: must be ({sizes}, {rest})")
    if present.dtype != bool or present.shape != others.shape[:-1]:
        asked = words(jax.ShapeDtypeStruct(others.shape[:-1], bool))
        fail(
            f"{what} returns present as {words(present)}: must be {asked}, a flag for each of the others"
        )
    return others.shape[n:], own.shape[n:]


def _without_mask(space: Space) -> Space:
    return (
        Dict({name: part for name, part in space.spaces.items() if name != MASK})
        if has_mask(space)
        else space
    )
