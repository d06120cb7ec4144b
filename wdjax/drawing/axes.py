"""Rendering of environments that override `draw` to use matplotlib instead of a scene."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from wdjax.checks import require_integer
from wdjax.drawing.paint import SIZE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

# Size of the default picture. Other sizes scale it, with its fonts, and add space on one side.
INCHES = (6.4, 4.8)
PAD = 0.08  # margin, inches


def draw_one(env: Any, state: Any, params: Any, size: tuple[int, int] | None) -> np.ndarray:
    """Return the picture of one state, [height, width, 3] uint8."""
    figure, axes = new_figure(size)
    env.draw(axes, jax.device_get(state), params)
    lay_out(figure, axes, fit_height=size is None)
    return pixels(figure)


def draw_frames(
    env: Any,
    states: Any,
    params: Any,
    steps: Iterable[int],
    trail: int,
    size: tuple[int, int] | None,
) -> Iterator[np.ndarray]:
    """Yield the picture of each step, [height, width, 4] uint8.

    All frames share one figure, the layout of the first frame, and one buffer: copy a picture to
    keep it.

    Args:
        env: An environment that overrides `draw`.
        states: NumPy states, leaves [T, ...].
        params: The environment parameters.
        steps: The indices of the states to draw.
        trail: Maximum number of earlier states that are passed to `draw` as history.
        size: (width, height) in pixels. None: 640 wide, and as high as needed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure, axes = new_figure(size)
    looks, backdrop = None, None
    for i, t in enumerate(steps):
        axes.clear()
        history = jax.tree.map(lambda leaf: leaf[max(0, t - trail) : t], states)  # noqa: B023
        env.draw(axes, jax.tree.map(lambda leaf: leaf[t], states), params, history=history)  # noqa: B023
        if i == 0:  # a common layout is faster and keeps the axes at the same position
            lay_out(figure, axes, fit_height=size is None)
            canvas = FigureCanvasAgg(figure)
        axes.apply_aspect()
        before, looks = looks, decoration(axes)
        if looks != before:
            figure.draw_without_rendering()
            title_height = axes.title.get_position()[1]  # matplotlib's choice above the ticks
            backdrop = draw_backdrop(canvas, axes)
        axes.title.set_y(title_height)
        canvas.restore_region(backdrop)
        for artist in movable(axes):
            artist.draw(canvas.get_renderer())
        yield np.asarray(canvas.buffer_rgba())


def decoration(axes: "Axes") -> tuple:
    """Return the properties that the backdrop depends on; a frame with equal ones reuses it."""
    legend = axes.get_legend()
    entries = zip(legend.legend_handles, legend.get_texts(), strict=True) if legend else ()

    def color(artist) -> Any:
        return (artist.get_color if hasattr(artist, "get_color") else artist.get_facecolor)()

    return (
        axes.get_xlim(),
        axes.get_ylim(),
        axes.get_position().bounds,
        axes.axison,
        axes.get_facecolor(),
        [
            (axis.get_label_text(), *map(str, axis.get_majorticklocs()))
            for axis in (axes.xaxis, axes.yaxis)
        ],
        [
            axis.major.formatter.format_ticks(axis.get_majorticklocs())
            for axis in (axes.xaxis, axes.yaxis)
        ],
        [(type(handle), text.get_text(), str(color(handle))) for handle, text in entries],
    )


def movable(axes: "Axes") -> list["Artist"]:
    """Return the artists that each frame redraws, bottom first.

    These are all artists except the background, the ticks, the axis labels and the legend.
    """
    fixed = (axes.patch, axes.xaxis, axes.yaxis, axes.get_legend())
    artists = [artist for artist in axes.get_children() if artist not in fixed]
    return sorted(artists, key=lambda artist: artist.get_zorder())


def draw_backdrop(canvas: "FigureCanvasAgg", axes: "Axes") -> Any:
    """Draw the artists that are not `movable` and return the result for `restore_region`.

    Drawing them takes most of the time of a frame.
    """
    hidden = [artist for artist in movable(axes) if artist.get_visible()]
    for artist in hidden:
        artist.set_visible(False)
    canvas.draw()
    for artist in hidden:
        artist.set_visible(True)
    return canvas.copy_from_bbox(canvas.figure.bbox)


def new_figure(size: tuple[int, int] | None) -> tuple["Figure", "Axes"]:
    """Return a figure of (width, height) pixels without a window, and its empty axes.

    Args:
        size: (width, height) in pixels, each at least 100. None: `SIZE`.

    Raises:
        ValueError: If a side is shorter than 100 pixels.
    """
    from matplotlib.figure import Figure

    width, height = size or SIZE
    require_integer("size[0], the width", width, 100)
    require_integer("size[1], the height", height, 100)
    dpi = min(width / INCHES[0], height / INCHES[1])
    # matplotlib rounds down. The extra half pixel protects against rounding errors.
    inches = ((width + 0.5) / dpi, (height + 0.5) / dpi)
    # The compressed layout places a legend next to axes with equal aspect.
    figure = Figure(figsize=inches, dpi=dpi, layout="compressed")
    figure.get_layout_engine().set(w_pad=PAD, h_pad=PAD)
    return figure, figure.add_subplot()


def lay_out(figure: "Figure", axes: "Axes", fit_height: bool) -> None:
    """Fix the position of the axes so that labels and legend fit.

    Args:
        figure: The figure.
        axes: Its axes.
        fit_height: Whether to remove empty space at the top and bottom.
    """
    figure.draw_without_rendering()
    if fit_height:
        needed = axes.get_tightbbox().height / figure.dpi + 2 * PAD
        figure.set_figheight(min(needed, figure.get_figheight()))
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def pixels(figure: "Figure") -> np.ndarray:
    """Return the pixels of a figure, [height, width, 3] uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
