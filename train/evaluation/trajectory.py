"""Recordings of one episode of one replica, for pictures and analysis.

episode = record_episode(*load_run("runs/mine"), jax.random.key(0))
episode.states.x, episode.action["runner"], episode.reward["runner"]
episode.choice["runner"]["probs"]
episode.to_npz("episode.npz")  # also: wdjax render runs/mine --npz episode.npz
file = np.load("episode.npz")
file["states/x"], file["action/runner"], file["choice/runner/probs"], list(file)
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import chex
import jax
import numpy as np
from flax import struct

from wdjax.checks import one_line, require_integer
from wdjax.env import draws_by_scene, is_key
from wdjax.files import new_file
from wdjax.spaces import with_axes
from wdjax.train.evaluation.evaluate import choose_players
from wdjax.train.evaluation.players import Game, Player, make_game, play_step, roles_of
from wdjax.train.learner.init import host_key
from wdjax.train.learner.learner import Learner
from wdjax.train.state.actors import Script
from wdjax.train.state.aliases import Action, EnvState, Observation
from wdjax.train.state.state import TrainState
from wdjax.train.storage.leaves import by_place

MAX_STEPS = 1_000
OBS_BYTES = 256 * 2**20  # maximum size of MAX_STEPS observations to include in an HTML player


class Trajectory(struct.PyTreeNode):
    """One episode of one replica as NumPy arrays, with T steps and T + 1 states.

    Attributes:
        states: environment states, leaves [T + 1, ...].
        action: as passed to the environment, leaves [T, ...].
        reward: as returned by the environment, leaves [T, ...].
        terminated: as returned by the environment, leaves [T, ...].
        truncated: as returned by the environment, leaves [T, ...].
        choice: by policy (or role) trained with A2C or PPO, [T, n, ...]: "value"; for discrete
            actions "probs" of all actions, components concatenated; for continuous actions "mean"
            and "std" of the normal distribution before squashing.
        obs: observations that the actions were chosen on, leaves [T, ...]; None if not recorded.
    """

    states: EnvState
    action: Action
    reward: chex.ArrayTree
    terminated: chex.ArrayTree
    truncated: chex.ArrayTree
    choice: dict[str, dict[str, np.ndarray]]
    obs: Observation | None = None

    def to_npz(self, path: str | Path) -> Path:
        """Write all arrays to a compressed file for `numpy.load` and return its path.

        Args:
            path: path of the file. Names in it are paths: "states/x", "action/runner",
                "choice/runner/probs".
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:  # numpy would add .npz to another name
            np.savez_compressed(file, **by_place(self))
        return path


def record_episode(
    learner: Learner,
    state: TrainState,
    key: jax.Array,
    greedy: bool = False,
    random: Sequence[str] = (),
    max_steps: int = MAX_STEPS,
    players: Mapping[str, Player | Script | str] | None = None,
    observations: bool = False,
    program: jax.stages.Compiled | None = None,
) -> Trajectory:
    """Record one episode, for pictures and analysis.

    Args:
        learner: learner of the run.
        state: trained state.
        key: random key for the initial state and actions.
        greedy: take the most likely actions; False: sample them as in training.
        random: policies that are replaced by uniformly random actions.
        max_steps: maximum number of steps; a longer episode is cut off.
        players: policy or role -> replacement, as in `evaluate`.
        observations: record observations, too.
        program: compiled program from `compile_recording`, valid for default arguments; None:
            compile.

    Returns:
        The Trajectory.

    Raises:
        ValueError: if a policy in `random` or `players` is unknown, or the state is a population.
    """
    require_integer("max_steps", max_steps, 1)
    _, chosen = choose_players(learner, state, random, players)
    game = make_game(learner.setup, state, [[player] for player in chosen], chosen)

    # a copy on the host, so that the program of `compile_recording` fits wherever the state lies
    game = jax.tree.map(lambda leaf: leaf if is_key(leaf) else jax.device_get(leaf), game)
    record = functools.partial(
        _record_jit, greedy=greedy, max_steps=max_steps, observations=observations
    )
    recorded = (program or record)(game, key)
    numbers = jax.tree.map(
        lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, recorded
    )
    first, states, over, rows = jax.device_get(numbers)
    length = int(np.argmax(over)) + 1 if over.any() else max_steps
    states = jax.tree.map(
        lambda start, rest: np.concatenate([start, rest[:length, 0]]), first, states
    )
    rows = jax.tree.map(lambda leaf: leaf[:length, 0], rows)
    described = zip(roles_of(learner.setup), rows.pop("choice"), strict=True)
    return Trajectory(states, **rows, choice={role.name: own for role, own in described if own})


def compile_recording(learner: Learner, like: TrainState) -> jax.stages.Compiled:
    """Compile `record_episode` with default arguments, from the shapes of a state."""
    like = with_axes(like)
    _, chosen = choose_players(learner, like)
    game = make_game(learner.setup, like, [[player] for player in chosen], chosen)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return _record_jit.lower(
        game, key, greedy=False, max_steps=MAX_STEPS, observations=False
    ).compile()


@functools.partial(jax.jit, static_argnames=("greedy", "max_steps", "observations"))
def _record_jit(
    game: Game, key: jax.Array, greedy: bool, max_steps: int, observations: bool
) -> tuple:
    reset_key, step_key = jax.random.split(key)
    first = game.reset(reset_key[None])

    def step(carry: tuple, key: jax.Array) -> tuple:
        seen, _, carries, _ = carry
        action_key, env_key = jax.random.split(key)
        described = []  # by role, which has one actor here
        for [actor], [learned], [carried] in zip(game.casts, game.learned, carries, strict=True):
            describe = actor.policy.algorithm.describe if actor.kind == "learned" else lambda *_: {}
            described.append(describe(actor.policy, learned, carried, game.shown_to(actor, seen)))
        row: dict[str, object] = {"choice": described}
        carry, row["action"], *outcome, info = play_step(
            game, carry, action_key, env_key[None], greedy
        )
        row |= zip(("reward", "terminated", "truncated"), outcome, strict=True)
        row["obs"] = seen[0] if observations else None
        return carry, (carry[1].env_state, info["over"][0], row)

    rows: tuple[chex.ArrayTree, ...]
    _, rows = jax.lax.scan(step, first, jax.random.split(step_key, max_steps))
    return (first[1].env_state, *rows)


def save_episode(
    learner: Learner,
    state: TrainState,
    path: str | Path,
    seed: int = 0,
    greedy: bool = False,
    fps: int = 12,
    program: jax.stages.Compiled | None = None,
) -> Path:
    """Record one episode and write it to a file in the format of its suffix.

    Formats: .html (interactive player), .gif, .svg, .mp4 (requires ffmpeg), .png (final state), and
    .npz with all arrays (`Trajectory.to_npz`).

    Args:
        learner: learner of the run.
        state: trained state; also provides the env_params.
        path: path of the file.
        seed: random seed of the episode.
        greedy: take the most likely actions; False: sample them as in training.
        fps: frames per second.
        program: compiled program from `compile_recording`; ignored if it does not fit the other
            arguments.

    Returns:
        The path of the file.

    Raises:
        NotImplementedError: if the environment has no drawing.
        ValueError: if the suffix is unknown, .mp4 is requested without ffmpeg, or `scene` or `draw`
            of the environment raises an error.
    """
    from wdjax.rendering import SUFFIXES, require_output, require_playable, save

    suffix = require_output(path, (*SUFFIXES, ".npz"))
    if suffix != ".npz":
        require_playable(path, learner.env, fps)
    key = jax.random.fold_in(host_key(seed), 0)
    obs = jax.eval_shape(learner.env.reset, key, state.env_params)[0]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(obs))
    seen = suffix == ".npz" or (suffix == ".html" and size * MAX_STEPS <= OBS_BYTES)
    usual = None if greedy or seen else program
    episode = record_episode(learner, state, key, greedy=greedy, observations=seen, program=usual)
    if suffix == ".npz":
        return episode.to_npz(path)
    try:
        return save(path, learner.env, episode, jax.device_get(state.env_params), fps=fps)
    except (NotImplementedError, OSError):
        raise
    except Exception as error:  # of any type: it may be the user's code
        raise ValueError(
            f"{type(learner.env).__name__}.{'scene' if draws_by_scene(learner.env) else 'draw'}"
            f" raises {type(error).__name__}: {one_line(error)}"
        ) from error
