"""Pictures of games as arrays and files, without a window: `render`, `save_png`, `save_gif`.

    states = ...                                         # one episode, leaves with a leading [T]
    save_gif("hunt.gif", env, states, params)            # from wdjax.rendering
    wdjax.render(env, states, params)                    # a player, in a notebook
    wdjax.render(env, states, params, output="hunt.html")

What a picture shows is up to the environment's `scene`, or to its `draw` if it would rather use matplotlib. matplotlib
and Pillow are imported when something is drawn, and matplotlib's global state (pyplot) is left alone.
"""

import dataclasses
import itertools
import math
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import jax
import numpy as np

from wdjax.checks import did_you_mean, require, require_integer
from wdjax.drawing import Plot, Scene, Series, axes, raster
from wdjax.drawing.paint import SIZE as SIZE
from wdjax.drawing.player import Player, require_fps
from wdjax.env import SINGLE_AGENT, Env, draws_by_scene, first_axis, is_key
from wdjax.files import new_file

ANIMATIONS = (".gif", ".html", ".mp4", ".svg")
SUFFIXES = (*ANIMATIONS, ".png")
CURVES = ("blue", "magenta", "green", "orange")  # of returns of groups that no mark shows
Size = tuple[int, int] | None


def render(
    env: Env,
    state: Any,
    params: Any,
    size: Size = None,
    output: str | pathlib.Path | None = None,
    fps: float = 12.0,
) -> Any:
    """Draws one state, or an episode.

    Args:
        env: an environment with a drawing.
        state: one state of one replica; or an episode: its states in order, leaves with a leading [T], or what
            `record_episode` returns, whose returns are then plotted (and, where it holds them, what agents see shown).
            Arrays of NumPy or JAX.
        params: its params.
        size: (width, height) of the picture in pixels, each at least 100; None: 640 wide and as high as is needed. The
            player takes what room there is.
        output: a file to write: of an episode .html (the player, without network), .gif, .svg (moves without a script),
            .mp4 (where ffmpeg is), .png (the last state); of one state .png.
        fps: frames a second of an episode.

    Returns:
        of one state its picture, [height, width, 3] uint8, red, green, blue; of an episode a `Player`, which a notebook
        shows and plays; with `output` the path of the file.

    Raises:
        NotImplementedError: where the environment has no drawing, or none that can be played.
        ValueError, TypeError: where state is not one of `env`, the size makes no picture, or output ends in none of
            these or needs ffmpeg and there is none.
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
    return axes.draw_one(env, states, params, size)


def save_png(
    path: str | pathlib.Path, env: Env, state: Any, params: Any, size: Size = None
) -> None:
    """Writes the picture of one state as a PNG; makes the folder where there is none. Arguments as for `render`."""
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
    """Writes an episode as a GIF that plays for ever, one frame a state; makes the folder where there is none.

    Args:
        path: of the file.
        env: an environment with a drawing.
        states: the states in order, leaves with a leading [T]; arrays of NumPy or JAX.
        params: their params.
        fps: frames a second, at most 50 (players slow down faster ones).
        trail: how many earlier states show in each; None: `env.trail`.
        hold: seconds for which the last frame stays.
        size: as for `render`.

    Raises:
        NotImplementedError: where the environment has no drawing.
        ValueError, TypeError: where states are not states of `env`, or another argument is out of range.
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
    """Writes an episode as what its path ends in (`SUFFIXES`). Arguments as for `save_gif`; states may also be what
    `record_episode` returns. Returns the path."""
    suffix, size = require_playable(path, env, fps), _checked(size)
    require_hold(hold)
    if trail is not None:
        require_integer("trail", trail, 0)
    own, _ = split_record(states)
    num_frames = check_states(env, own, params, leading=1)
    if draws_by_scene(env):
        scene = make_scene(env, states, params)
        scene = scene if trail is None else dataclasses.replace(scene, trail=trail)
        return save_scene(path, scene, fps, hold, size)
    trail = env.trail if trail is None else trail
    own, steps = jax.device_get(own), range(num_frames)

    def draw(steps) -> Any:
        return axes.draw_frames(env, own, params, steps, trail, size)

    if suffix == ".png":
        last = jax.tree.map(lambda leaf: leaf[-1], own)
        return _write(path, lambda file: save_pixels(file, axes.draw_one(env, last, params, size)))
    return _write(path, lambda file: save_frames(file, str(path), draw, steps, fps, hold))


def save_scene(
    path: str | pathlib.Path, scene: Scene, fps: float = 12.0, hold: float = 1.5, size: Size = None
) -> pathlib.Path:
    """Writes a scene as what its path ends in (`SUFFIXES`); of a .png its last frame. Arguments as for `save_gif`."""
    suffix, size = require_output(path, SUFFIXES), _checked(size)
    require_fps(fps, fastest(suffix))
    require_hold(hold)
    if suffix in (".html", ".svg"):
        from wdjax.drawing.svg import to_svg

        page = Player(scene, fps).to_html() if suffix == ".html" else to_svg(scene, fps, hold, size)
        return _write(path, lambda file: file.write(page.encode()))
    if suffix == ".png":
        return _write(path, lambda file: save_pixels(file, raster.picture(scene, size=size)))

    def draw(steps) -> Any:
        return raster.draw_frames(scene, steps, size)

    keep = {"paper", "text", *(mark.color for mark in scene.marks)}
    steps = range(scene.num_frames)
    return _write(
        path, lambda file: save_frames(file, str(path), draw, steps, fps, hold, sorted(keep))
    )


def save_pixels(file: IO[bytes], picture: np.ndarray) -> None:
    from PIL import Image

    # a quarter less time, a tenth larger
    Image.fromarray(picture).save(file, format="PNG", compress_level=3)


def save_frames(
    file: IO[bytes],
    name: str,
    draw: Any,
    steps: range,
    fps: float,
    hold: float,
    keep: Iterable[str] = (),
) -> None:
    """Write the frames that `draw(steps)` yields as a GIF or, if `name` ends so, by ffmpeg as an MP4."""
    if name.lower().endswith(".mp4"):
        return save_mp4(file.name, name, draw(steps), fps, round(hold * fps))
    samples = sorted({int(t) for t in np.linspace(0, len(steps) - 1, 6)})
    palette = raster.choose_palette([raster.codes_of(frame) for frame in draw(samples)], keep)
    images = raster.to_images(map(raster.codes_of, draw(steps)), palette)
    durations = [round(1000 / fps)] * len(steps)  # milliseconds
    durations[-1] = max(durations[-1], round(1000 * hold))
    first = next(images)
    first.save(
        file,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=durations,
        loop=0,
        optimize=False,
    )


def save_mp4(path: str, name: str, frames: Iterator[np.ndarray], fps: float, more: int) -> None:
    """Write frames [height, width, 4] uint8 as H.264, the last one `more` times again, through ffmpeg's input.

    Args:
        path: of a new temporary file.
        name: of the file that it will be, for errors.
    """
    first = next(frames)
    height, width = first.shape[:2]
    command = [
        "ffmpeg",
        "-y",
        "-loglevel",
        "error",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgba",
        "-s",
        f"{width}x{height}",
    ]
    command += [
        "-r",
        f"{fps:g}",
        "-i",
        "-",
        "-vf",
        "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white",
        "-c:v",
        "libx264",
    ]
    command += [
        "-preset",
        "veryfast",
        "-pix_fmt",
        "yuv420p",
        "-crf",
        "20",
        "-movflags",
        "+faststart",
        "-f",
        "mp4",
    ]
    command += [f"file:{path}"]  # taken literally: "-a" is no option, "a:b" no protocol
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        try:
            ffmpeg.stdin.write(first.tobytes())
            last = first
            for last in frames:
                ffmpeg.stdin.write(last.tobytes())
            for _ in range(more):
                ffmpeg.stdin.write(last.tobytes())
        except BrokenPipeError:  # it says why
            pass
        _, words = ffmpeg.communicate()
    if ffmpeg.returncode:
        raise OSError(f"ffmpeg could not write {name}: {words.decode(errors='replace').strip()}")


def require_output(
    path: str | pathlib.Path, suffixes: Iterable[str] = SUFFIXES, field: str = "path"
) -> str:
    """Returns what a path ends in; raises where nothing could be written there, before anything is played."""
    suffix, suffixes = pathlib.Path(path).suffix.lower(), tuple(suffixes)
    if suffix not in suffixes:
        names = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        near = f": {did_you_mean(suffix, suffixes)}" if suffix and len(suffixes) > 1 else ""
        raise ValueError(f"{field} = {str(path)!r}: must be a file that ends in {names}{near}")
    if suffix == ".mp4" and not shutil.which("ffmpeg"):
        raise ValueError(
            f"{field} = {str(path)!r}: needs ffmpeg, which is not on the PATH: install it, or take .html or .gif"
        )
    return suffix


def fastest(suffix: str) -> float:
    """Returns how many frames a second such a file may have."""
    return 50 if suffix == ".gif" else 1000


def require_hold(hold: float) -> None:
    require(hold >= 0 and np.isfinite(hold), "hold", hold, "at least 0, and finite")


def require_playable(path: str | pathlib.Path, env: Env, fps: float) -> str:
    """Returns what a path ends in; raises where an episode of `env` could not be written there at `fps` frames a
    second, whatever happens in it: before it is played."""
    suffix = require_output(path, SUFFIXES)
    require_fps(fps, fastest(suffix))
    if suffix in (".html", ".svg"):
        require_scene(env, "draws with matplotlib, so only .gif, .mp4 and .png")
    return suffix


def require_scene(env: Env, words: str) -> None:
    """Raises where `env` is drawn by a `draw` of its own: with these words, before what to do."""
    if not draws_by_scene(env):
        raise NotImplementedError(
            f"{type(env).__name__} {words}: write its method scene(states, params)"
        )


def split_record(states: Any) -> tuple[Any, Any]:
    """Returns (states, None) of states, (its states, itself) of what `record_episode` returns."""
    if hasattr(states, "states") and hasattr(states, "reward"):
        return states.states, states
    return states, None


def _write(path: str | pathlib.Path, write: Callable[[IO[bytes]], Any]) -> pathlib.Path:
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as file:
        write(file)
    return path


def _checked(size: Size) -> Size:
    if size is not None:
        require_integer("size[0], the width", size[0], 100)
        require_integer("size[1], the height", size[1], 100)
    return size


def make_scene(env: Env, states: Any, params: Any) -> Scene:
    """Returns the scene of an episode: of its states (leaves [T, ...]), or of what `record_episode` returns, with its
    returns and what agents see."""
    require_scene(env, "cannot be played")
    states, record = split_record(states)
    scene = env.scene(*jax.device_get((states, params)))
    if scene.trail is None:
        scene = dataclasses.replace(scene, trail=env.trail)
    return scene if record is None else add_record(scene, record)


def add_record(scene: Scene, record: Any) -> Scene:
    """Returns the scene with the returns of all groups so far, and what their agents see: of `record.reward` and
    `record.obs`, leaves [T - 1, ...] of one episode."""

    def by_group(tree) -> Any:
        return tree if isinstance(tree, Mapping) else {SINGLE_AGENT: tree}

    rewards = {group: np.asarray(reward) for group, reward in by_group(record.reward).items()}
    colors = {getattr(mark, "group", ""): mark.color for mark in scene.marks}
    free = [
        color for color in CURVES if color not in {colors.get(group) for group in rewards}
    ] or CURVES
    spare = dict(
        zip(
            (group for group in rewards if group not in colors), itertools.cycle(free), strict=False
        )
    )
    returns = []
    for group, reward in rewards.items():
        total = np.cumsum(reward.sum(axis=tuple(range(1, reward.ndim)), dtype=np.float64))
        label = group if len(rewards) > 1 else ""
        returns.append(Series(np.append(0.0, total), colors.get(group) or spare[group], label))
    seen = (
        {}
        if record.obs is None or scene.num_frames == 1
        else {
            group: _as_rows(
                record.obs[group] if isinstance(record.reward, Mapping) else record.obs, reward
            )
            for group, reward in rewards.items()
        }
    )
    return dataclasses.replace(scene, plots=(*scene.plots, Plot("return", returns)), obs=seen)


def _as_rows(obs: Any, reward: np.ndarray) -> np.ndarray:
    """Returns what agents see as [T, n, D], without masks; the last frame, in which nobody chooses, repeats the one
    before."""
    obs = (
        {name: leaf for name, leaf in obs.items() if name != "action_mask"}
        if isinstance(obs, Mapping)
        else obs
    )
    agents = math.prod(reward.shape[1:])
    rows = [np.asarray(leaf).reshape(len(reward), agents, -1) for leaf in jax.tree.leaves(obs)]
    whole = np.concatenate(rows, axis=-1) if len(rows) > 1 else rows[0]
    return np.concatenate([whole, whole[-1:]])


def _leading_axes(env: Env, states: Any, params: Any) -> int:
    one, found = (jax.tree.leaves(tree) for tree in (_one_state(env, params), states))
    return np.ndim(found[0]) - one[0].ndim if one and found else 0


def _one_state(env: Env, params: Any) -> Any:
    return jax.eval_shape(lambda params: env.reset(jax.random.key(0), params)[1], params)


def check_states(env: Env, states: Any, params: Any, leading: int = 0) -> int:
    """Raises where `states` is not one state of `env` (leading=0) or T of them in a row (leading=1); returns T or 1."""
    one = _one_state(env, params)
    if jax.tree.structure(states) != jax.tree.structure(one):
        hint = " (take its env_state)" if hasattr(states, "env_state") else ""
        found = f"a {type(states).__module__}.{type(states).__name__}{hint}"
        raise TypeError(
            f"state is {found}, not a {type(one).__module__}.{type(one).__name__} of {type(env).__name__}"
        )
    paths_and_leaves = jax.tree_util.tree_leaves_with_path(states)
    length = np.shape(paths_and_leaves[0][1])[:leading]
    for (path, leaf), expected in zip(paths_and_leaves, jax.tree.leaves(one), strict=True):
        # recorded as numbers
        if jax.numpy.issubdtype(expected.dtype, jax.dtypes.prng_key) and not is_key(leaf):
            expected = jax.eval_shape(jax.random.key_data, expected)
        if len(length) < leading or np.shape(leaf) != (*length, *expected.shape):
            shapes = np.shape(leaf), (*("T",) * leading, *expected.shape)
            found, wanted = (", ".join(map(str, shape)) for shape in shapes)
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape [{found}], not [{wanted}]: of a batch, take one replica "
                "(jax.tree.map(lambda leaf: leaf[..., i], state), with its axis in the place of i)"
            )
    require(length != (0,), "states", "of length 0", "at least one state")
    return length[0] if length else 1
