"""Controls of one agent for a person: which key sets which part of an action.

    Controls({"ArrowLeft": {0: 0}, "ArrowRight": {0: 2}}, idle=(1,))  # three choices, 1 is no push

An action is a row of numbers, one for each component: one for Discrete, len(nvec) for
MultiDiscrete, the flattened array for Box.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wdjax.checks import require, require_known
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete

# Names of keys in browsers (KeyboardEvent.key) that have a symbol on their button.
SYMBOLS = {"ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓", " ": "space"}
DIGITS = "0123456789"


@dataclasses.dataclass(frozen=True)
class Controls:
    """Keys that control one agent, in `wdjax play`.

    Raises:
        ValueError: If a key sets a component that `idle` does not have.
    """

    keys: Mapping[str, Mapping[int, float]]
    """key, as in KeyboardEvent.key -> {component of the action: value}; the last pressed key wins
    where several set the same component"""
    idle: Sequence[float]
    """action while no key is pressed, one number per component"""
    holds: bool = False
    """whether components keep their value after a key is released, instead of returning to idle"""
    turn_based: bool = False
    """whether the environment waits for a key before each step"""
    speed: float = 1.0
    """initial speed, as a multiple of `Env.frames_per_second`"""
    explanation: str = ""
    """effect of the keys in terms of the environment, for the page: "1 to 9: fish to catch";
    empty: the page lists the keys"""

    def __post_init__(self):
        for key, parts in self.keys.items():
            for component in parts:
                require(
                    0 <= component < len(self.idle),
                    f"component of key {key!r}",
                    component,
                    f"at least 0 and below {len(self.idle)}, the length of idle",
                )

    def row(self, pressed: Sequence[str], before: Sequence[float]) -> list[float]:
        """Return the action for the pressed keys, [components].

        Args:
            pressed: names of keys, in the order in which they were pressed.
            before: the action of the previous step.

        Raises:
            ValueError: If a key is unknown.
        """
        row = list(before if self.holds else self.idle)
        for key in pressed:
            require_known("key", key, self.keys)
            for component, value in self.keys[key].items():
                row[component] = value
        return row


def default_controls(space: Discrete | MultiDiscrete | Box) -> Controls:
    """Return the controls of an action space, of one agent.

    Two choices: the left and right arrow keys select them, and the last choice is held. Three
    choices: left, nothing, right. More choices: the digits select evenly spaced choices. Box: left
    and right set the first number to its bounds, down and up the second one; without a key, each
    number is the one closest to 0. MultiDiscrete: the same keys select the first and last choice
    of the first two components, which are held.

    Args:
        space: a Discrete, MultiDiscrete or Box with concrete bounds.

    Raises:
        TypeError: If the space is a Dict.
    """
    require(
        not isinstance(space, Dict), "space", space, "Discrete, MultiDiscrete or Box", TypeError
    )
    if isinstance(space, Box):
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float64), space.shape).ravel()
            for bound in (space.low, space.high)
        )
        ends = [
            (a if a > -1e6 else -1.0, b if b < 1e6 else 1.0) for a, b in zip(low, high, strict=True)
        ]
        return Controls(_arrows(ends), np.clip(0.0, low, high).tolist())
    sizes = list(space.nvec)
    if len(sizes) > 1:
        return Controls(_arrows([(0, size - 1) for size in sizes]), [0] * len(sizes), holds=True)
    (size,) = sizes
    if size <= 3:
        return Controls(_arrows([(0, size - 1)]), [size // 2 if size == 3 else 0], size == 2)
    return Controls(evenly(DIGITS, size), [0], True)


def evenly(keys: str, size: int, component: int = 0) -> dict[str, dict[int, float]]:
    """Return keys that set a component to evenly spaced choices, from 0 to size - 1."""
    keys = keys[:size]
    choices = np.round(np.linspace(0, size - 1, len(keys))).tolist()
    return {key: {component: choice} for key, choice in zip(keys, choices, strict=True)}


def _arrows(ends: Sequence[tuple[float, float]]) -> dict[str, dict[int, float]]:
    """Return arrow keys that set the first two components to (low, high)."""
    names: Any = (("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"))
    return {
        key: {component: float(value)}
        for component, (keys, pair) in enumerate(zip(names, ends, strict=False))
        for key, value in zip(keys, pair, strict=True)
    }
