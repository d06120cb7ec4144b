"""One page's game in `wdjax play`: the visitor's input, the episode, and the frames to draw."""

import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from wdjax.checks import require, require_known
from wdjax.controls import SYMBOLS, Controls
from wdjax.drawing.player import pack_scene
from wdjax.train.live.table import Table, begin

PAUSE = 2.0  # seconds between the end of an episode and the next one
NUM_RESULTS = 5  # episodes listed on the page
FASTEST = 8.0  # highest speed
MOST = float(np.finfo(np.float32).max)
MOST_AHEAD = 4  # frames that the page has not drawn yet


class Match:
    """A game of one visitor.

    Args:
        table: the environment and its players.
        fps: steps per second at speed 1.
        seed: of start states and actions.
    """

    def __init__(self, table: Table, fps: float, seed: int):
        self.table, self.fps = table, fps
        self.playing: tuple = (jax.random.key(seed), None)  # see `begin`
        self.players = {role: next(iter(seats)) for role, seats in table.seats.items()}
        group = next(iter(table.sizes))
        self.agent: tuple[str, int] | None = (group, 0)
        self.results: list[list[float | None]] = []
        self.speed, self.is_paused = table.controls[group].speed, False
        self.num_sent = self.num_drawn = 0  # frames
        self.held: list[str] = []
        self.tapped: list[str] = []  # keys pressed since the last step
        self.point: list[float] | None = None
        self.restart()

    # --- time ---

    @property
    def wait(self) -> float | None:
        """Seconds until the next step; None: it waits for the visitor or for a slow page."""
        if self.is_paused or self.num_sent - self.num_drawn >= MOST_AHEAD:
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
        self.tapped = []
        self.playing, moment = begin(self.game, self.playing[0])
        self.history = History(self.table.num_recent, self.table.num_kept)
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
        self.playing, moment = self.table.step(self.game, self.playing, visitor)
        self._show(moment)
        if self.moment.over and self.agent:
            result = [_finite(self.own_return), _finite(self._average()[0])]
            self.results = [*self.results, result][-NUM_RESULTS:]

    def _show(self, moment: Any) -> None:
        self.moment = jax.device_get(moment)
        self.history.append(self.moment.state)

    # --- frames ---

    @property
    def own_return(self) -> float | None:
        """Return of the visitor's agent in this episode."""
        return float(self.moment.returns[self.agent[0]][self.agent[1]]) if self.agent else None

    def _chosen(self, controls: Controls) -> list[str]:
        """Return the keys whose values are in the held action."""
        return [
            key
            for key, parts in controls.keys.items()
            if all(self.row[component] == value for component, value in parts.items())
        ]

    def _average(self) -> tuple[float | None, int]:
        return self.table.average(self.players, self.agent) if self.agent else (None, 0)

    def frame(self) -> bytes:
        """Return the picture and the status, as the page decodes them."""
        table, agent = self.table, self.agent
        controls = table.controls[agent[0]] if agent else None
        average, num_episodes = self._average()
        self.num_sent += 1
        status = {
            "frame": self.num_sent,
            "agent": agent,
            "sizes": table.sizes,
            "players": self.players,
            "rival": self.players[table.role_of(agent)] if agent else "",
            "choices": {role: list(seats) for role, seats in table.seats.items()},
            "keys": [[key, SYMBOLS.get(key, key)] for key in (controls.keys if controls else ())],
            "explanation": controls.explanation if controls else "",
            "chosen": self._chosen(controls) if controls and controls.holds else [],
            "steers": table.can_steer and agent is not None,
            "waits": controls is not None and controls.turn_based,
            "active": agent is not None and bool(self.moment.live[agent[0]][agent[1]]),
            "over": bool(self.moment.over),
            "paused": self.is_paused,
            "speed": self.speed,
            "return": _finite(self.own_return),
            "average": _finite(average),
            "episodes": num_episodes,
            "results": self.results,
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
        return name not in ("drawn", "keys", "point")

    def _set_drawn(self, number: Any) -> None:
        require(type(number) is int and number <= self.num_sent, "drawn", number, "a sent frame")
        self.num_drawn = max(self.num_drawn, number)

    def _set_keys(self, keys: Any) -> None:
        require(isinstance(keys, list), "keys", keys, "a list of pressed keys")
        # the page may send keys of another agent until it has drawn the chosen one
        known = self.table.controls[self.agent[0]].keys if self.agent else {}
        keys = [key for key in dict.fromkeys(keys) if key in known]
        if not self.is_paused:
            self.tapped += [key for key in keys if key not in (*self.tapped, *self.held)]
        self.held = keys

    def _set_point(self, point: Any) -> None:
        if point is not None:
            x, y = point
            fits = all(abs(value) <= MOST for value in (x, y))  # false for NaN
            require(fits, "point", point, "two finite numbers of float32")
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

    MESSAGES: ClassVar[dict[str, Callable[["Match", Any], None]]] = {
        "drawn": _set_drawn,
        "keys": _set_keys,
        "point": _set_point,
        "agent": _set_agent,
        "player": _set_player,
        "speed": _set_speed,
        "paused": _set_paused,
        "restart": lambda self, _: self.restart(),
    }


class History:
    """States of one episode, as arrays [T, ...]: the last ones, and evenly spaced ones before.

    Args:
        recent: number of last states that are kept all, for trails.
        size: maximum number of states, at least recent + 2.
    """

    def __init__(self, recent: int, size: int):
        self.recent, self.size = recent, size
        self.numbers: list[int] = []  # step of each kept state
        self.spacing = 1
        self.arrays: Any = None

    @property
    def states(self) -> Any:
        return jax.tree.map(lambda array: array[: len(self.numbers)], self.arrays)

    def append(self, state: Any) -> None:
        """Add a state; drop others if there are `size`."""
        if self.arrays is None:
            self.arrays = jax.tree.map(
                lambda leaf: np.zeros((self.size, *np.shape(leaf)), np.asarray(leaf).dtype), state
            )
        if len(self.numbers) == self.size:
            self._thin()
        for array, leaf in zip(*map(jax.tree.leaves, (self.arrays, state)), strict=True):
            array[len(self.numbers)] = leaf
        self.numbers.append(self.numbers[-1] + 1 if self.numbers else 0)

    def _thin(self) -> None:
        """Keep the last states, and each older one at a multiple of the spacing."""
        numbers = np.array(self.numbers)
        is_recent = numbers > numbers[-1] + 1 - self.recent
        while np.sum(kept := is_recent | (numbers % self.spacing == 0)) > self.size - 2:
            self.spacing *= 2
        self.numbers = numbers[kept].tolist()
        for array in jax.tree.leaves(self.arrays):
            array[: len(self.numbers)] = array[kept]


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
