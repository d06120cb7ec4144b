"""The environment and the players of `wdjax play`, shared by all pages, and its compiled step."""

import functools
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from wdjax.drawing import Lines, Scene
from wdjax.env import Env, is_key
from wdjax.rendering import make_scene
from wdjax.spaces import Box
from wdjax.train.evaluation.evaluate import MAX_STEPS, UnfinishedEpisodeError, play_in_turns
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
BATCH, NUM_BATCHES = 2, 8  # episodes for the average return
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
        self.num_kept = self._num_kept()
        self._is_closed = False
        self._averages: dict[tuple[str, ...], Future] = {}
        self._worker = ThreadPoolExecutor(1, "wdjax-average")

    @property
    def sizes(self) -> dict[str, int]:
        """Group -> number of agents."""
        return group_sizes(self.env)

    def role_of(self, agent: tuple[str, int]) -> str:
        """Return the name of the role of an agent (group, index)."""
        return next(role.name for role in self.roles if agent in role.assignment.agents)

    def with_players(self, names: Mapping[str, str]) -> Game:
        """Return the game in which these players act, role -> name."""
        which = []
        for seats, cast in zip(self.seats.items(), self.game.casts, strict=True):
            role, candidates = seats
            which.append(cast.index(candidates[names[role]].actor))
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

    def _num_kept(self) -> int:
        """Return the number of states to draw: more than a trail for plots and whole paths."""
        _, moment = jax.device_get(begin(self.game, jax.random.key(0)))
        scene = self.scene(jax.tree.map(lambda leaf: np.stack([leaf] * 2), moment.state))
        paths = any(isinstance(mark, Lines) and mark.window is not None for mark in scene.marks)
        if not (scene.plots or paths):
            return scene.trail_length + 1
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(moment.state))
        return max(scene.trail_length + 1, min(MOST_STATES, MOST_NUMBERS // max(1, size)))

    def average(self, names: Mapping[str, str], agent: tuple[str, int]) -> float | None:
        """Return an agent's mean return over 16 episodes of these players, once it is known.

        The first call starts the evaluation in the background and returns None.
        """
        names_in_order = tuple(names[role.name] for role in self.roles)
        if names_in_order not in self._averages:
            game = self.with_players(names)
            self._averages[names_in_order] = self._worker.submit(self._evaluate, game)
        future = self._averages[names_in_order]
        if not future.done() or future.exception():
            return None
        return future.result().get(agent)

    def close(self) -> None:
        """Cancel evaluations, after the current batch of episodes."""
        self._is_closed = True
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _evaluate(self, game: Game) -> dict[tuple[str, int], float]:
        """Return the mean return of every agent; empty if an episode does not end."""
        assignments = {role.name: role.assignment for role in self.roles}
        sums: dict[tuple[str, int], float] = dict.fromkeys(
            [agent for assignment in assignments.values() for agent in assignment.agents], 0.0
        )
        for key in jax.random.split(jax.random.key(1), NUM_BATCHES):
            if self._is_closed:  # Python waits for this thread before it ends
                return {}
            try:
                episodes = play_in_turns(
                    game, assignments, key, BATCH, self.greedy, MAX_STEPS, None
                )
            except UnfinishedEpisodeError:
                return {}
            for name, assignment in assignments.items():
                returns = episodes.agent_return[name].sum(axis=0) / (BATCH * NUM_BATCHES)
                for agent, value in zip(assignment.agents, returns.tolist(), strict=True):
                    sums[agent] += value
        return sums


@jax.jit
def begin(game: Game, key: jax.Array) -> tuple[tuple, Moment]:
    """Start an episode; return (carry of `play_step`, first moment)."""
    carry = game.reset(key[None])
    return carry, _moment(game, carry, jnp.bool_(False))


@functools.partial(jax.jit, static_argnames="greedy")
def step(
    game: Game, carry: tuple, key: jax.Array, visitor: Visitor, greedy: bool
) -> tuple[tuple, Moment]:
    """Let the players and the visitor act, and step the environment."""
    action_key, env_key = jax.random.split(key)
    replace = functools.partial(take_over, game, carry[1].env_state, visitor)
    carry, *_, info = play_step(game, carry, action_key, env_key[None], greedy, replace)
    return carry, _moment(game, carry, info["over"][0])


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
