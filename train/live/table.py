"""The environment and the players of `wdjax play`, shared by all pages, and its compiled step."""

import functools
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.drawing import Lines, Scene
from wdjax.env import Env, is_key
from wdjax.rendering import make_scene
from wdjax.spaces import Box
from wdjax.train.evaluation.evaluate import MAX_STEPS
from wdjax.train.evaluation.players import (
    Game,
    Player,
    as_player,
    make_game,
    play_step,
    plays,
    roles_of,
    seat,
)
from wdjax.train.learner.learner import Learner
from wdjax.train.state.agents import group_sizes, to_groups
from wdjax.train.state.state import TrainState

TRAINED, RANDOM = "trained", "random"
NUM_EPISODES = 16  # for the average return
# Maximum size of the states kept for plots and paths since the reset: numbers, and states.
MOST_NUMBERS, MOST_STATES = 100_000, 1_000


@struct.dataclass
class Visitor:
    """The action of a person in one step."""

    agents: dict[str, Any]  # by group: index of the controlled agent, () int32; -1: none
    row: np.ndarray  # [components] float32, the action, padded with 0
    point: np.ndarray  # [2] float32, pointer in the picture
    is_steering: Any  # () bool, whether the pointer replaces the row


@struct.dataclass
class Moment:
    """The environment after a step."""

    state: Any  # state of the environment; keys as their data
    returns: dict[str, Any]  # by group [n_group], in this episode
    live: dict[str, Any]  # by group [n_group] bool: whether the agent is active
    over: Any  # () bool, whether the episode is over


class Table:
    """Environment, roles and their players.

    Args:
        learner: defines the environment and the roles.
        state: state of a run; None: no trained player.
        greedy: whether policies take their most likely actions.

    Raises:
        NotImplementedError: If the environment has no scene.
    """

    def __init__(self, learner: Learner, state: TrainState | None, greedy: bool = False):
        setup = learner.setup
        params = setup.env_params if state is None else state.env_params
        like: Any = state or learner.shapes
        self.env, self.greedy, self.params = setup.env, greedy, jax.device_get(params)
        self.sizes = group_sizes(self.env)  # group -> number of agents
        self.roles = roles_of(setup)
        trained = [] if state is None else [Player(TRAINED, learner, state)]
        others = [as_player(setup, name) for name in (*setup.env.scripts, RANDOM)]
        self.seats = {
            role.name: {
                player.name: seat(setup, player, role)
                for player in (*trained, *others)
                if plays(setup, player, role)
            }
            for role in self.roles
        }
        chosen = [next(iter(seats.values())) for seats in self.seats.values()]
        like = like.replace(env_params=jax.tree.map(jnp.asarray, params))
        candidates = [list(seats.values()) for seats in self.seats.values()]
        self.game = make_game(setup, like, candidates, chosen)
        self.controls = {group: self.env.controls(group, self.params) for group in self.sizes}
        self.can_steer = type(self.env).steer is not Env.steer
        self.num_recent, self.num_kept = self._count_states()
        self._returns: dict[tuple[str, ...], list[dict[str, np.ndarray]]] = {}  # by episode
        self._queue, self._device = threading.Lock(), threading.Lock()  # see `step`
        self._worker = ThreadPoolExecutor(1, "wdjax-average")

    def role_of(self, agent: tuple[str, int]) -> str:
        """Return the name of the role of an agent (group, index)."""
        return next(role.name for role in self.roles if agent in role.assignment.agents)

    def with_players(self, names: Mapping[str, str]) -> Game:
        """Return the game in which these players act, role -> name."""
        which = [
            cast.index(seats[names[role]].actor)
            for (role, seats), cast in zip(self.seats.items(), self.game.casts, strict=True)
        ]
        return self.game.replace(which=which)  # type: ignore[attr-defined]  # of flax.struct

    def visitor(
        self, agent: tuple[str, int] | None, row: list[float], point: list[float] | None
    ) -> Visitor:
        """Return the input of `step` for a controlled agent (group, index)."""
        size = max(len(controls.idle) for controls in self.controls.values())
        return Visitor(
            {
                group: np.int32(agent[1] if agent and agent[0] == group else -1)
                for group in self.sizes
            },
            np.array(row + [0.0] * (size - len(row)), np.float32),
            np.array(point or (0.0, 0.0), np.float32),
            np.bool_(point is not None),
        )

    def scene(self, states: Any) -> Scene:
        """Return the drawing of consecutive states, NumPy arrays [T, ...]."""
        return make_scene(self.env, states, self.params)

    def _count_states(self) -> tuple[int, int]:
        """Return how many states a history keeps: the last ones, for trails, and in all."""
        state = jax.device_get(begin(self.game, jax.random.key(0))[1].state)
        scene = self.scene(jax.tree.map(lambda leaf: np.stack([leaf] * 2), state))
        recent = scene.trail_length + 1
        paths = any(isinstance(mark, Lines) and mark.window is not None for mark in scene.marks)
        if not (scene.plots or paths):
            return recent, recent + 2
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(state))
        return recent, max(recent + 2, min(MOST_STATES, MOST_NUMBERS // max(1, size)))

    def average(self, names: Mapping[str, str], agent: tuple[str, int]) -> tuple[float | None, int]:
        """Return an agent's mean return over the evaluated episodes of these players.

        The first call starts the evaluation of 16 episodes in the background.

        Args:
            names: role -> name of its player.
            agent: (group, index).

        Returns:
            (mean return, None before the end of the first episode; number of episodes).
        """
        order = tuple(names[role.name] for role in self.roles)
        if order not in self._returns:
            self._returns[order] = []
            self._worker.submit(self._evaluate, self.with_players(names), self._returns[order])
        returns = [float(episode[agent[0]][agent[1]]) for episode in self._returns[order]]
        return (sum(returns) / len(returns) if returns else None), len(returns)

    def close(self) -> None:
        """Cancel evaluations, after the current step."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def step(self, game: Game, playing: tuple, visitor: Visitor) -> tuple[tuple, Moment]:
        """Return the next carry and moment, with NumPy arrays, see `step`.

        Steps of games and evaluations run one after the other, and at most one step of an
        evaluation before a game that waits: on a CPU, two programs at once take several times as
        long as in sequence.
        """
        with self._queue:
            self._device.acquire()
        try:
            playing, moment = step(game, playing, visitor, self.greedy)
            return playing, jax.device_get(moment)
        finally:
            self._device.release()

    def _evaluate(
        self,
        game: Game,
        returns: list[dict[str, np.ndarray]],
        playing: tuple | None = None,
        num_steps: int = 0,
    ) -> None:
        """Take a step of an evaluation, and queue the next one; each episode adds its returns."""
        if playing is None:
            playing, _ = begin(game, jax.random.fold_in(jax.random.key(1), len(returns)))
        playing, moment = self.step(game, playing, self.visitor(None, [], None))
        num_steps += 1
        if moment.over:
            returns.append(moment.returns)
            playing, num_steps = None, 0
        if len(returns) < NUM_EPISODES and num_steps < MAX_STEPS:  # raises after `close`
            self._worker.submit(self._evaluate, game, returns, playing, num_steps)


@jax.jit
def begin(game: Game, key: jax.Array) -> tuple[tuple, Moment]:
    """Start an episode; return ((next key, carry of `play_step`), first moment)."""
    key, reset_key = jax.random.split(key)
    carry = game.reset(reset_key[None])
    return (key, carry), _moment(game, carry, jnp.bool_(False))


@functools.partial(jax.jit, static_argnames="greedy")
def step(game: Game, playing: tuple, visitor: Visitor, greedy: bool) -> tuple[tuple, Moment]:
    """Let the players and the visitor act, and step the environment; see `begin`."""
    key, carry = playing
    key, action_key, env_key = jax.random.split(key, 3)
    replace = functools.partial(take_over, game, carry[1].env_state, visitor)
    obs = carry[0]
    carry, *_, info = play_step(game, carry, action_key, env_key[None], greedy, replace)
    if not any(actor.kind == "learned" for cast in game.casts for actor in cast):
        carry = (obs, *carry[1:])  # scripts and random play need no observations: XLA omits them
    return (key, carry), _moment(game, carry, info["over"][0])


def take_over(
    game: Game, states: Any, visitor: Visitor, actions: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Replace the action of the visitor's agent.

    Args:
        game: the environment and its params.
        states: of one replica, leaves [1, ...].
        visitor: the agent and its action.
        actions: by group, [1, n_group, ...].

    Returns:
        The actions, clipped to their space.
    """
    env, params = game.env, game.env_params
    state = jax.tree.map(lambda leaf: leaf[0], states)
    spaces: Any = env.action_space(params)
    taken = {}
    for group, action in actions.items():
        space = spaces[group].single if env.groups else spaces
        agent, shape = visitor.agents[group], action.shape[2:]
        own = jnp.reshape(visitor.row[: int(np.prod(shape))], shape)
        if type(env).steer is not Env.steer:
            target = env.steer(state, group, jnp.maximum(agent, 0), visitor.point, params)
            own = jnp.where(visitor.is_steering, target, own)
        if isinstance(space, Box):
            own = space.clip(own)
        else:
            own = jnp.clip(jnp.round(own), 0, jnp.asarray(space.sizes) - 1)
        is_own = jnp.arange(action.shape[1]) == agent
        is_own = is_own.reshape(1, -1, *[1] * len(shape))
        taken[group] = jnp.where(is_own, own.astype(action.dtype)[None, None], action)
    return taken


def _moment(game: Game, carry: tuple, over: jax.Array) -> Moment:
    _, replicas, _, live = carry
    first = functools.partial(jax.tree.map, lambda leaf: leaf[0])
    state = jax.tree.map(
        lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, first(replicas.env_state)
    )
    returns = first(to_groups(game.env, replicas.episode_return))
    return Moment(state, returns, first(live), over)
