"""One page's game in `wdjax play`: the visitor's input, the episode, and the frames to draw."""

import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from wdjax.checks import require, require_known
from wdjax.controls import SYMBOLS
from wdjax.drawing.player import pack_scene
from wdjax.train.live.table import Table, begin, step

PAUSE = 2.0  # seconds between the end of an episode and the next one
NUM_RESULTS = 5  # episodes listed on the page
FASTEST = 8.0  # highest speed


class Match:
    """A game of one visitor.

    Args:
        table: the environment and its players.
        fps: steps per second at speed 1.
        seed: of start states and actions.
    """

    def __init__(self, table: Table, fps: float, seed: int):
        self.table, self.fps = table, fps
        self.key = jax.random.key(seed)
        self.players = {role: next(iter(seats)) for role, seats in table.seats.items()}
        group = next(iter(table.sizes))
        self.agent: tuple[str, int] | None = (group, 0)
        self.results: list[list[float | None]] = []
        self.speed, self.is_paused = table.controls[group].speed, False
        self.held: list[str] = []
        self.tapped: list[str] = []  # keys pressed since the last step
        self.point: list[float] | None = None
        self.restart()

    # --- time ---

    @property
    def wait(self) -> float | None:
        """Seconds until the next step; None: it waits for the visitor."""
        if self.is_paused:
            return None
        if self.moment.over:
            return PAUSE
        is_turn = bool(self.tapped or self.point)
        if self.agent and self.table.controls[self.agent[0]].turn_based and not is_turn:
            return None
        return 1 / (self.fps * self.speed)

    def restart(self) -> None:
        """Start a new episode."""
        self.game = self.table.with_players(self.players)
        self.row = list(self.table.controls[self.agent[0]].idle) if self.agent else []
        self.carry, moment = begin(self.game, self._next_key())
        self.history = History(self.table.num_kept)
        self._show(moment)

    def step(self) -> None:
        """Advance by one step, or start the next episode if this one is over."""
        if self.moment.over:
            self.restart()
            return
        if self.agent:
            pressed = [*self.tapped, *(key for key in self.held if key not in self.tapped)]
            self.row = self.table.controls[self.agent[0]].row(pressed, self.row)
        visitor = self.table.visitor(self.agent, self.row, self.point)
        self.tapped = []
        self.carry, moment = step(
            self.game, self.carry, self._next_key(), visitor, self.table.greedy
        )
        self._show(moment)
        if self.moment.over and self.agent:
            self.results = [*self.results, [self.own_return, self._average()]][-NUM_RESULTS:]

    def _next_key(self) -> jax.Array:
        self.key, key = jax.random.split(self.key)
        return key

    def _show(self, moment: Any) -> None:
        self.moment = jax.device_get(moment)
        self.history.append(self.moment.state)

    # --- frames ---

    @property
    def own_return(self) -> float | None:
        """Return of the visitor's agent in this episode."""
        return float(self.moment.returns[self.agent[0]][self.agent[1]]) if self.agent else None

    def _average(self) -> float | None:
        return self.table.average(self.players, self.agent) if self.agent else None

    def frame(self) -> bytes:
        """Return the picture and the status, as the page decodes them."""
        table, agent = self.table, self.agent
        controls = table.controls[agent[0]] if agent else None
        status = {
            "agent": agent,
            "sizes": table.sizes,
            "players": self.players,
            "rival": self.players[table.role_of(agent)] if agent else "",
            "choices": {role: list(seats) for role, seats in table.seats.items()},
            "keys": [[key, SYMBOLS.get(key, key)] for key in (controls.keys if controls else ())],
            "steers": table.can_steer and agent is not None,
            "waits": controls is not None and controls.turn_based,
            "active": agent is not None and bool(self.moment.live[agent[0]][agent[1]]),
            "over": bool(self.moment.over),
            "paused": self.is_paused,
            "speed": self.speed,
            "return": _finite(self.own_return),
            "average": _finite(self._average()),
            "results": [[_finite(number) for number in pair] for pair in self.results],
        }
        return pack_scene(table.scene(self.history.states), self.fps, live=status)

    # --- messages ---

    def receive(self, message: str | bytes) -> bool:
        """Apply a message of the page, a JSON object with one entry, and return if it shows.

        Raises:
            ValueError: If the message is malformed.
        """
        try:
            require(isinstance(message, str), "message", type(message).__name__, "text")
            ((name, value),) = json.loads(message).items()
            require_known("message", name, self.MESSAGES)
            self.MESSAGES[name](self, value)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"malformed message: {error}") from None
        except RecursionError:
            raise ValueError("malformed message: too many brackets") from None
        return name not in ("keys", "point")

    def _set_keys(self, keys: Any) -> None:
        known = self.table.controls[self.agent[0]].keys if self.agent else {}
        require(isinstance(keys, list) and len(keys) <= len(known), "keys", keys, "pressed keys")
        for key in keys:
            require_known("key", key, known)
        self.tapped += [key for key in keys if key not in (*self.tapped, *self.held)]
        self.held = keys

    def _set_point(self, point: Any) -> None:
        if point is not None:
            x, y = point
            require(math.isfinite(x) and math.isfinite(y), "point", point, "two finite numbers")
            point = [float(x), float(y)]
        self.point = point

    def _set_agent(self, agent: Any) -> None:
        if agent is not None:
            group, index = agent
            require_known("group", group, self.table.sizes)
            is_agent = type(index) is int and 0 <= index < self.table.sizes[group]
            require(is_agent, "agent", index, f"below {self.table.sizes[group]}")
            agent = (group, index)
        if self.agent is None or agent is None or agent[0] != self.agent[0]:
            self.results = []
        self.agent, self.held, self.tapped, self.point = agent, [], [], None
        self.restart()

    def _set_player(self, choice: Any) -> None:
        role, name = choice
        require_known("role", role, self.players)
        require_known("player", name, self.table.seats[role])
        self.players = {**self.players, role: name}
        self.restart()

    def _set_speed(self, speed: Any) -> None:
        require(0.01 <= speed <= FASTEST, "speed", speed, f"from 0.01 to {FASTEST}")
        self.speed = float(speed)

    def _set_paused(self, paused: Any) -> None:
        self.is_paused = paused is True

    def _restart(self, _: Any) -> None:
        self.restart()

    MESSAGES: ClassVar[dict[str, Callable[["Match", Any], None]]] = {
        "keys": _set_keys,
        "point": _set_point,
        "agent": _set_agent,
        "player": _set_player,
        "speed": _set_speed,
        "paused": _set_paused,
        "restart": _restart,
    }


class History:
    """The last `size` states, as arrays [T, ...]."""

    def __init__(self, size: int):
        self.size, self.count = size, 0
        self.arrays: Any = None

    @property
    def states(self) -> Any:
        return jax.tree.map(lambda array: array[: self.count], self.arrays)

    def append(self, state: Any) -> None:
        """Add a state; the oldest one is dropped if there are more than `size`."""
        if self.arrays is None:
            self.arrays = jax.tree.map(
                lambda leaf: np.zeros((self.size, *np.shape(leaf)), np.asarray(leaf).dtype), state
            )
        is_full = self.count == self.size
        self.count += not is_full

        def write(array: np.ndarray, leaf: np.ndarray) -> None:
            if is_full:
                array[:-1] = array[1:]
            array[self.count - 1] = leaf

        jax.tree.map(write, self.arrays, state)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
