"""Pictures of games as arrays and files, without a window: `render`, `save_png`, `save_gif`.

    states = ...                                         # one episode, leaves with a leading [T]
    save_gif("hunt.gif", env, states, params)            # from wdjax.rendering

What a picture shows is up to the environment's `draw`. matplotlib and Pillow are imported when something is drawn, and
matplotlib's global state (pyplot) is left alone.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from wdjax.checks import require, require_integer
from wdjax.env import Env

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL.Image import Image

SIZE = (640, 480)  # pixels, width and height; the height is the most where none is asked for
INCHES = (6.4, 4.8)  # of that picture; others are it enlarged, fonts included, with more room on one side
PAD = 0.08  # inches around everything
PALETTE_COLORS = 128  # of a GIF, shared by its frames; flat drawings with smoothed edges need no more


def render(env: Env, state: Any, params: Any, size: tuple[int, int] | None = None) -> np.ndarray:
    """Draws one state.

    Args:
        env: an environment with a drawing.
        state: one state of one replica; arrays of NumPy or JAX.
        params: its params.
        size: (width, height) of the picture in pixels, each at least 100; None: 640 wide and as high as is needed.

    Returns:
        [height, width, 3] uint8, red, green, blue.

    Raises:
        NotImplementedError: where the environment has no drawing.
        ValueError, TypeError: where state is not one state of `env`, or the size makes no picture.
    """
    check_states(env, state, params)
    figure, axes = new_figure(size)
    env.draw(axes, jax.device_get(state), params)
    lay_out(figure, axes, fit_height=size is None)
    return pixels(figure)


def save_png(path: str | pathlib.Path, env: Env, state: Any, params: Any, size: tuple[int, int] | None = None) -> None:
    """Writes the picture of one state as a PNG; makes the folder where there is none. Arguments as for `render`."""
    from PIL import Image

    _require_suffix(path, ".png")
    picture = Image.fromarray(render(env, state, params, size))
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, format="PNG")


def save_gif(
    path: str | pathlib.Path, env: Env, states: Any, params: Any, fps: float = 10.0, trail: int | None = None,
    hold: float = 1.5, size: tuple[int, int] | None = None,
) -> None:  # fmt: skip
    """Writes an episode as a GIF that plays for ever, one frame a state; makes the folder where there is none.

    Args:
        path: of the file.
        env: an environment with a drawing.
        states: the states in order, leaves with a leading [T]; arrays of NumPy or JAX.
        params: their params.
        fps: frames a second, at most 50 (players slow down faster ones).
        trail: how many earlier states `draw` gets with each, as its `history`; None: `env.trail`.
        hold: seconds for which the last frame stays.
        size: as for `render`.

    Raises:
        NotImplementedError: where the environment has no drawing.
        ValueError, TypeError: where states are not states of `env`, or another argument is out of range.
    """
    _require_suffix(path, ".gif")
    require(0 < fps <= 50, "fps", fps, "above 0 and at most 50")
    require(hold >= 0, "hold", hold, "at least 0")
    trail = env.trail if trail is None else trail
    require_integer("trail", trail, 0)
    num_frames = check_states(env, states, params, leading=1)
    states = jax.device_get(states)
    samples = sorted({int(t) for t in np.linspace(0, num_frames - 1, 6)})
    palette = choose_palette(draw_frames(env, states, params, samples, trail, size))
    frames = to_images(draw_frames(env, states, params, range(num_frames), trail, size), palette)
    durations = [round(1000 / fps)] * num_frames  # milliseconds
    durations[-1] = max(durations[-1], round(1000 * hold))
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    first = next(frames)
    first.save(path, format="GIF", save_all=True, append_images=frames, duration=durations, loop=0, optimize=False)


def _require_suffix(path: str | pathlib.Path, suffix: str) -> None:
    require(pathlib.Path(path).suffix.lower() == suffix, "path", str(path), f"a file that ends in {suffix}")


def draw_frames(
    env: Env, states: Any, params: Any, steps: Iterable[int], trail: int, size: tuple[int, int] | None
) -> Iterator[np.ndarray]:
    """Draws states (leaves [T, ...] of NumPy) on one figure, each with up to `trail` states before it.

    Yields [height, width] for each of `steps`, in the layout that suits the first of them: a number for each color,
    red + 2^8 green + 2^16 blue (`colors_of`), as one number is looked up faster than three.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure, axes = new_figure(size)
    looks, backdrop = None, None
    for i, t in enumerate(steps):
        axes.clear()
        history = jax.tree.map(lambda leaf: leaf[max(0, t - trail) : t], states)  # noqa: B023  (used at once)
        env.draw(axes, jax.tree.map(lambda leaf: leaf[t], states), params, history=history)  # noqa: B023
        if i == 0:  # one layout for all: quick, and nothing jumps
            lay_out(figure, axes, fit_height=size is None)
            canvas = FigureCanvasAgg(figure)
        axes.apply_aspect()
        before, looks = looks, decoration(axes)
        if looks != before:
            figure.draw_without_rendering()
            title_height = axes.title.get_position()[1]  # out of the ticks' way
            backdrop = draw_backdrop(canvas, axes)
        axes.title.set_y(title_height)
        canvas.restore_region(backdrop)
        for artist in movable(axes):
            artist.draw(canvas.get_renderer())
        yield np.asarray(canvas.buffer_rgba()).view("<u4")[..., 0] & 0xFFFFFF  # without the alpha


def decoration(axes: "Axes") -> tuple:
    """Returns what `draw_backdrop` depends on: where it is the same, a frame keeps the backdrop of the one before."""
    legend = axes.get_legend()
    entries = zip(legend.legend_handles, legend.get_texts(), strict=True) if legend else ()
    color = lambda artist: (artist.get_color if hasattr(artist, "get_color") else artist.get_facecolor)()  # noqa: E731
    return (
        axes.get_xlim(), axes.get_ylim(), axes.get_position().bounds, axes.axison, axes.get_facecolor(),
        [(axis.get_label_text(), *map(str, axis.get_majorticklocs())) for axis in (axes.xaxis, axes.yaxis)],
        [axis.major.formatter.format_ticks(axis.get_majorticklocs()) for axis in (axes.xaxis, axes.yaxis)],
        [(type(handle), text.get_text(), str(color(handle))) for handle, text in entries],
    )  # fmt: skip


def movable(axes: "Axes") -> list["Artist"]:
    """Returns what is drawn anew in every frame, bottom first: all but the axes' ground, ticks, labels and legend."""
    fixed = (axes.patch, axes.xaxis, axes.yaxis, axes.get_legend())
    artists = [artist for artist in axes.get_children() if artist not in fixed]
    return sorted(artists, key=lambda artist: artist.get_zorder())


def draw_backdrop(canvas: "FigureCanvasAgg", axes: "Axes") -> Any:
    """Draws what is not `movable`, which takes matplotlib most of a frame's time. Returns it, for `restore_region`."""
    hidden = [artist for artist in movable(axes) if artist.get_visible()]
    for artist in hidden:
        artist.set_visible(False)
    canvas.draw()
    for artist in hidden:
        artist.set_visible(True)
    return canvas.copy_from_bbox(canvas.figure.bbox)


def choose_palette(frames: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the colors, [at most PALETTE_COLORS, 3] uint8, that stand for those of frames of `draw_frames`.

    The commonest, those of whole surfaces, stay as they are; the others stand for many, as at smoothed edges.
    """
    from PIL import Image

    codes, counts = np.unique(np.concatenate([frame.reshape(-1) for frame in frames]), return_counts=True)
    if len(codes) <= PALETTE_COLORS:
        return colors_of(codes)
    exact = codes[np.argsort(-counts, kind="stable")[: PALETTE_COLORS // 4]]
    shades = Image.fromarray(colors_of(np.setdiff1d(codes, exact))[None])  # each once: rare hues count as well
    shades = shades.quantize(PALETTE_COLORS - len(exact), kmeans=1, dither=Image.Dither.NONE).getpalette()
    return np.concatenate([colors_of(exact), np.array(shades, np.uint8).reshape(-1, 3)])


def to_images(frames: Iterable[np.ndarray], palette: np.ndarray) -> Iterator["Image"]:
    """Yields each frame of `draw_frames` as an image of `palette` [P, 3], every color the nearest there is.

    (Pillow's own mapping to a given palette is coarser: it would make white a light grey.)
    """
    from PIL import Image

    nearest = np.full(1 << 24, -1, np.int16)  # color -> row of the palette, looked for when the color first comes
    for frame in frames:
        rows = nearest[frame]
        new = np.unique(frame[rows < 0])
        if len(new):
            difference = colors_of(new)[:, None, :].astype(np.int32) - palette[None]
            nearest[new] = np.argmin(np.sum(difference**2, axis=-1), axis=1)
            rows = nearest[frame]
        image = Image.fromarray(rows.astype(np.uint8))
        image.putpalette(palette.tobytes())
        yield image


def colors_of(code: np.ndarray) -> np.ndarray:
    """Returns the colors [..., 3] uint8, red, green, blue, of numbers [...] that `draw_frames` yields."""
    return np.ascontiguousarray(code, "<u4")[..., None].view(np.uint8)[..., :3]


def new_figure(size: tuple[int, int] | None) -> tuple["Figure", "Axes"]:
    """Returns a figure of (width, height) pixels that no window shows, and its empty axes."""
    from matplotlib.figure import Figure

    width, height = size or SIZE
    require_integer("size[0], the width", width, 100)
    require_integer("size[1], the height", height, 100)
    dpi = min(width / INCHES[0], height / INCHES[1])
    inches = ((width + 0.5) / dpi, (height + 0.5) / dpi)  # the half is cut off: no rounding error loses a pixel
    figure = Figure(figsize=inches, dpi=dpi, layout="compressed")  # keeps a legend beside a square
    figure.get_layout_engine().set(w_pad=PAD, h_pad=PAD)
    return figure, figure.add_subplot()


def lay_out(figure: "Figure", axes: "Axes", fit_height: bool) -> None:
    """Places the axes, for good, so that labels and legend have room; `fit_height` cuts off what stays empty."""
    figure.draw_without_rendering()
    if fit_height:
        needed = axes.get_tightbbox().height / figure.dpi + 2 * PAD
        figure.set_figheight(min(needed, figure.get_figheight()))
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def pixels(figure: "Figure") -> np.ndarray:
    """Returns a figure as [height, width, 3] uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def check_states(env: Env, states: Any, params: Any, leading: int = 0) -> int:
    """Raises where `states` is not one state of `env` (leading=0) or T of them in a row (leading=1); returns T or 1."""
    one = jax.eval_shape(lambda params: env.reset(jax.random.key(0), params)[1], params)
    if jax.tree.structure(states) != jax.tree.structure(one):
        hint = " (take its env_state)" if hasattr(states, "env_state") else ""
        found = f"a {type(states).__module__}.{type(states).__name__}{hint}"
        raise TypeError(f"state is {found}, not a {type(one).__module__}.{type(one).__name__} of {type(env).__name__}")
    paths_and_leaves = jax.tree_util.tree_leaves_with_path(states)
    length = np.shape(paths_and_leaves[0][1])[:leading]
    for (path, leaf), expected in zip(paths_and_leaves, jax.tree.leaves(one), strict=True):
        if len(length) < leading or np.shape(leaf) != (*length, *expected.shape):
            shapes = np.shape(leaf), (*("T",) * leading, *expected.shape)
            found, wanted = (", ".join(map(str, shape)) for shape in shapes)
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape [{found}], not [{wanted}]: of a batch, take one replica "
                "(jax.tree.map(lambda leaf: leaf[..., i], state), with its axis in the place of i)"
            )
    require(length != (0,), "states", "of length 0", "at least one state")
    return length[0] if length else 1
