"""Rendering of states and episodes to arrays and files: `render`, `save_png` and `save_gif`.

    states = ...                                           # one episode, leaves [T, ...]
    save_gif("hunt.gif", env, states, params)              # from wdjax.rendering
    wdjax.render(env, states, params)                      # a player in a notebook
    wdjax.render(env, states, params, output="hunt.html")

An environment defines its pictures with `scene`, or with `draw` to use matplotlib. No window is
opened. matplotlib and Pillow are imported on first use, and pyplot's global state is not changed.
"""

import dataclasses
import functools
import itertools
import math
import pathlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from wdjax.checks import did_you_mean, require, require_integer
from wdjax.drawing import Plot, Scene, Series, Shapes, axes, raster
from wdjax.drawing.figures import CURVES
from wdjax.drawing.movie import write_frames, write_text
from wdjax.drawing.paint import SIZE as SIZE
from wdjax.drawing.player import Player, require_fps
from wdjax.drawing.svg import to_svg
from wdjax.env import SINGLE_AGENT, Env, draws_by_scene, first_axis, is_key, require_params

ANIMATIONS = (".gif", ".html", ".mp4", ".svg")
SUFFIXES = (*ANIMATIONS, ".png")
Size = tuple[int, int] | None


def render(
    env: Env,
    state: Any,
    params: Any,
    size: Size = None,
    output: str | pathlib.Path | None = None,
    fps: float = 12.0,
) -> Any:
    """Draw one state or an episode.

    Args:
        env: An environment that defines `scene` or `draw`.
        state: One state of one replica; or an episode, either as its states in order (leaves
            [T, ...]) or as returned by `record_episode`. A recorded episode also shows a plot of
            the returns and, if recorded, the observations. The leaves are NumPy or JAX arrays.
        params: The environment parameters.
        size: (width, height) of the picture in pixels, each at least 100. None: 640 wide, and as
            high as needed. The player always adapts to the size of its window.
        output: A file to write. For an episode: .html (the player, works offline), .gif, .svg
            (animated without scripts), .mp4 (requires ffmpeg) or .png (the last state). For one
            state: .png.
        fps: Frames per second of an episode.

    Returns:
        For one state, its picture as [height, width, 3] uint8 RGB. For an episode, a `Player` that
        displays in a notebook. With `output`, the path of the file.

    Raises:
        NotImplementedError: If the environment has no drawing, or a player is requested for an
            environment that draws with matplotlib.
        ValueError: If `state` has a wrong shape, `size` or `fps` is out of range, the suffix of
            `output` is not supported, or ffmpeg is needed and not installed.
        TypeError: If `state` is not a state of `env`, or a value in `size` is not an int.
    """
    states, record = split_record(state)
    size = _checked(size)
    played = record is not None or _leading_axes(env, states, params) == 1
    check_states(env, states, params, leading=int(played))
    if output is not None:
        require_output(output, SUFFIXES if played else (".png",))
        return save(output, env, state if played else first_axis(state), params, fps=fps, size=size)
    if played:
        require_fps(fps)
        return Player(make_scene(env, state, params), fps)
    if draws_by_scene(env):
        return raster.picture(make_scene(env, first_axis(states), params), size=size)
    one = jax.device_get(first_axis(states))
    (pixels,) = axes.draw_frames(env, one, params, [0], 0, size)
    return pixels[..., :3].copy()


def save_png(
    path: str | pathlib.Path, env: Env, state: Any, params: Any, size: Size = None
) -> None:
    """Write the picture of one state as a PNG file.

    Missing folders are created. See `render` for the arguments.
    """
    require_output(path, (".png",))
    check_states(env, state, params)
    save(path, env, first_axis(state), params, size=size)


def save_gif(
    path: str | pathlib.Path,
    env: Env,
    states: Any,
    params: Any,
    fps: float = 10.0,
    trail: int | None = None,
    hold: float = 1.5,
    size: Size = None,
) -> None:
    """Write an episode as a looping GIF with one frame per state.

    Missing folders are created.

    Args:
        path: The file to write.
        env: An environment that defines `scene` or `draw`.
        states: The states in order, with leaves [T, ...] that are NumPy or JAX arrays.
        params: The environment parameters.
        fps: Frames per second, at most 50 (viewers slow down faster GIFs).
        trail: Number of earlier states drawn as a trail in each frame. None: `env.trail`.
        hold: Seconds for which the last frame is shown.
        size: (width, height) in pixels, as for `render`.

    Raises:
        NotImplementedError: If the environment has no drawing.
        ValueError: If `states` has a wrong shape, or another argument is out of range.
        TypeError: If `states` are not states of `env`, or `trail` or `size` is not an int.
    """
    require_output(path, (".gif",))
    save(path, env, states, params, fps, trail, hold, size)


def save(
    path: str | pathlib.Path,
    env: Env,
    states: Any,
    params: Any,
    fps: float = 12.0,
    trail: int | None = None,
    hold: float = 1.5,
    size: Size = None,
) -> pathlib.Path:
    """Write an episode in the format given by the suffix of `path`, one of `SUFFIXES`.

    See `save_gif` for the arguments. `states` may also be the result of `record_episode`. Returns
    the path.
    """
    suffix, size = require_playable(path, env, fps), _checked(size)
    require_hold(hold)
    if trail is not None:
        require_integer("trail", trail, 0)
    env_states, _ = split_record(states)
    num_frames = check_states(env, env_states, params, leading=1)
    if draws_by_scene(env):
        return save_scene(path, make_scene(env, states, params, trail), fps, hold, size)
    trail = env.trail if trail is None else trail
    trail = 0 if suffix == ".png" else trail
    env_states = jax.device_get(env_states)
    draw = functools.partial(axes.draw_frames, env, env_states, params, trail=trail, size=size)
    return write_frames(path, draw, num_frames, fps, hold)


def save_scene(
    path: str | pathlib.Path, scene: Scene, fps: float = 12.0, hold: float = 1.5, size: Size = None
) -> pathlib.Path:
    """Write a scene in the format given by the suffix of `path`, one of `SUFFIXES`.

    A .png contains the last frame. See `save_gif` for `fps`, `hold` and `size`. Returns the path.
    """
    suffix, size = require_output(path, SUFFIXES), _checked(size)
    require_fps(fps, fastest(suffix))
    require_hold(hold)
    if suffix == ".html":
        return write_text(path, Player(scene, fps).to_html())
    if suffix == ".svg":
        return write_text(path, to_svg(scene, fps, hold, size))
    draw = functools.partial(raster.draw_frames, scene, size=size)
    keep = sorted({"paper", "text", *(mark.color for mark in scene.marks)})
    return write_frames(path, draw, scene.num_frames, fps, hold, keep)


def require_output(
    path: str | pathlib.Path, suffixes: Iterable[str] = SUFFIXES, field: str = "path"
) -> str:
    """Return the suffix of `path` in lower case.

    Args:
        path: The file to write.
        suffixes: The supported suffixes, for example (".gif", ".html").
        field: The name of the argument, for error messages.

    Raises:
        ValueError: If the suffix is not supported, or if it needs ffmpeg and ffmpeg is missing.
    """
    suffix, suffixes = pathlib.Path(path).suffix.lower(), tuple(suffixes)
    if suffix not in suffixes:
        names = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        suggestion = f": {did_you_mean(suffix, suffixes)}" if suffix and len(suffixes) > 1 else ""
        raise ValueError(
            f"{field} = {str(path)!r}: must be a file that ends in {names}{suggestion}"
        )
    if suffix == ".mp4" and not shutil.which("ffmpeg"):
        raise ValueError(
            f"{field} = {str(path)!r}: .mp4 requires ffmpeg, which is not on the PATH. "
            "Install ffmpeg, or use .html or .gif."
        )
    return suffix


def fastest(suffix: str) -> float:
    """Return the largest number of frames per second that a file with this suffix supports."""
    return 50 if suffix == ".gif" else 1000


def require_hold(hold: float) -> None:
    """Raise ValueError unless `hold` is a finite number of seconds, at least 0."""
    is_valid = isinstance(hold, int | float | np.number) and 0 <= hold < math.inf
    require(is_valid, "hold", hold, "a number of seconds, at least 0, and finite")


def require_playable(path: str | pathlib.Path, env: Env, fps: float) -> str:
    """Return the suffix of `path`, after checking that an episode of `env` can be written to it.

    Call it before running the episode, so that a bad path or frame rate fails early.

    Raises:
        NotImplementedError: If the format needs `scene` and the environment draws with matplotlib.
        ValueError: If the suffix is not supported, ffmpeg is missing, or `fps` is out of range.
    """
    suffix = require_output(path, SUFFIXES)
    require_fps(fps, fastest(suffix))
    if suffix in (".html", ".svg"):
        require_scene(env, "draws with matplotlib, which supports only .gif, .mp4 and .png")
    return suffix


def require_scene(env: Env, words: str) -> None:
    """Raise NotImplementedError with the reason `words` if `env` draws with matplotlib."""
    if not draws_by_scene(env):
        raise NotImplementedError(
            f"{type(env).__name__} {words}. Define the method scene(states, params)."
        )


def split_record(states: Any) -> tuple[Any, Any]:
    """Return (states, record) of an episode; the record is None for plain states."""
    if hasattr(states, "states") and hasattr(states, "reward"):
        return states.states, states
    return states, None


def _checked(size: Size) -> Size:
    if size is not None:
        require(np.shape(size) == (2,), "size", size, "(width, height) in pixels, or None")
        require_integer("size[0], the width", size[0], 100)
        require_integer("size[1], the height", size[1], 100)
    return size


def make_scene(env: Env, states: Any, params: Any, trail: int | None = None) -> Scene:
    """Return the scene of an episode.

    Args:
        env: An environment that defines `scene`.
        states: The states in order, leaves [T, ...], or the result of `record_episode`. The latter
            adds a plot of the returns, and the observations if they were recorded.
        params: The environment parameters.
        trail: Length of trails in frames. None: as in the scene, or else `env.trail`.

    Raises:
        NotImplementedError: If the environment draws with matplotlib.
    """
    require_scene(env, "draws with matplotlib, which the player does not support")
    states, record = split_record(states)
    scene = env.scene(*jax.device_get((states, params)))
    if trail is None:
        trail = env.trail if scene.trail is None else scene.trail
    scene = dataclasses.replace(scene, trail=trail)
    return scene if record is None else add_record(scene, record, tuple(env.groups))


def add_record(scene: Scene, record: Any, groups: Sequence[str] = ()) -> Scene:
    """Add the returns and observations of a recorded episode to its scene.

    The returns, summed over the agents of a group, are added as a plot, and the observations if
    they were recorded.

    Args:
        scene: The scene of the episode, with T frames.
        record: The result of `record_episode`. Its `reward` and `obs` have leaves [T - 1, ...].
        groups: The order of the groups in the legend.

    Returns:
        The new scene.
    """
    grouped = isinstance(record.reward, Mapping)
    rewards = record.reward if grouped else {SINGLE_AGENT: record.reward}
    order = [*filter(rewards.__contains__, groups), *rewards]
    rewards = {group: np.asarray(rewards[group]) for group in dict.fromkeys(order)}
    marks = [mark for mark in scene.marks if isinstance(mark, Shapes) and len(rewards) > 1]
    colors = {mark.group: mark.color for mark in marks}
    used = {colors.get(group) for group in rewards}
    unused = itertools.cycle([color for color in CURVES if color not in used] or CURVES)
    returns = []
    for group, reward in rewards.items():
        total = np.cumsum(reward.sum(axis=tuple(range(1, reward.ndim)), dtype=np.float64))
        label = group if len(rewards) > 1 else ""
        returns.append(Series(np.append(0.0, total), colors.get(group) or next(unused), label))
    scene = dataclasses.replace(scene, plots=(*scene.plots, Plot("return", returns)))
    if record.obs is None or scene.num_frames == 1:
        return scene
    obs = record.obs if grouped else {SINGLE_AGENT: record.obs}
    rows = {group: _as_rows(obs[group], reward) for group, reward in rewards.items()}
    return dataclasses.replace(scene, obs=rows)


def _as_rows(obs: Any, reward: np.ndarray) -> np.ndarray:
    """Return the observations of a record as [T, n, D] for n agents, without action masks.

    A record of T - 1 steps contains no observation of the last state: the last row is repeated.
    """
    if isinstance(obs, Mapping):
        obs = {name: leaf for name, leaf in obs.items() if name != "action_mask"}
    agents = math.prod(reward.shape[1:])
    rows = [np.asarray(leaf).reshape(len(reward), agents, -1) for leaf in jax.tree.leaves(obs)]
    features = np.concatenate(rows, axis=-1)
    return np.concatenate([features, features[-1:]])


def _leading_axes(env: Env, states: Any, params: Any) -> int:
    """Return the number of leading axes: 0 for one state, 1 for an episode."""
    expected, leaves = (jax.tree.leaves(tree) for tree in (_one_state(env, params), states))
    return np.ndim(leaves[0]) - expected[0].ndim if expected and leaves else 0


def _one_state(env: Env, params: Any) -> Any:
    """Return the shapes and dtypes of one state."""
    require_params(env, params)
    return jax.eval_shape(lambda params: env.reset(jax.random.key(0), params)[1], params)


def check_states(env: Env, states: Any, params: Any, leading: int = 0) -> int:
    """Check the type and shapes of one state (leading=0) or of T states (leading=1).

    Returns:
        T, or 1 for one state.

    Raises:
        TypeError: If `states` has another tree structure than a state of `env`.
        ValueError: If a leaf has a wrong shape, or there are no states.
    """
    one_state = _one_state(env, params)
    structure: object = jax.tree.structure(states)  # jax has no type for it
    if structure != jax.tree.structure(one_state):
        hint = " (pass its env_state)" if hasattr(states, "env_state") else ""
        actual = f"a {type(states).__module__}.{type(states).__name__}{hint}"
        raise TypeError(
            f"state is {actual}: must be a {type(one_state).__module__}."
            f"{type(one_state).__name__}, the state of {type(env).__name__}"
        )
    paths_and_leaves = jax.tree_util.tree_leaves_with_path(states)
    length = np.shape(paths_and_leaves[0][1])[:leading]
    for (path, leaf), expected in zip(paths_and_leaves, jax.tree.leaves(one_state), strict=True):
        # Recorded episodes store typed keys as their key data.
        if jax.numpy.issubdtype(expected.dtype, jax.dtypes.prng_key) and not is_key(leaf):
            expected = jax.eval_shape(jax.random.key_data, expected)
        if len(length) < leading or np.shape(leaf) != (*length, *expected.shape):
            shapes = np.shape(leaf), (*("T",) * leading, *expected.shape)
            actual, allowed = (", ".join(map(str, shape)) for shape in shapes)
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape [{actual}]: must be [{allowed}]. "
                "From a batch of replicas, select one: jax.tree.map(lambda leaf: leaf[..., i], "
                "state), "
                "with the index i at the axis of the replicas."
            )
    require(length != (0,), "states", "of length 0", "at least one state")
    return length[0] if length else 1
