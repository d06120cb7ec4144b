"""Pictures of games that draw themselves onto matplotlib's axes (their own `draw`), in the place of a scene."""

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

# of a picture of SIZE; others are it enlarged, fonts included, with more room on one side
INCHES = (6.4, 4.8)
PAD = 0.08  # inches around everything


def draw_one(env: Any, state: Any, params: Any, size: tuple[int, int] | None) -> np.ndarray:
    """Returns the picture of one state, [height, width, 3] uint8."""
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
    """Draws states (leaves [T, ...] of NumPy) on one figure, each with up to `trail` states before it.

    Yields [height, width, 4] uint8 for each of `steps`, in the layout that suits the first of them; the next one
    overwrites it.
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
        yield np.asarray(canvas.buffer_rgba())


def decoration(axes: "Axes") -> tuple:
    """Returns what `draw_backdrop` depends on: where it is the same, a frame keeps the backdrop of the one before."""
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


def new_figure(size: tuple[int, int] | None) -> tuple["Figure", "Axes"]:
    """Returns a figure of (width, height) pixels that no window shows, and its empty axes."""
    from matplotlib.figure import Figure

    width, height = size or SIZE
    require_integer("size[0], the width", width, 100)
    require_integer("size[1], the height", height, 100)
    dpi = min(width / INCHES[0], height / INCHES[1])
    # the half is cut off: no rounding error loses a pixel
    inches = ((width + 0.5) / dpi, (height + 0.5) / dpi)
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
