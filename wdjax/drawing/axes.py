"""Rendering of environments that override `draw` to use matplotlib instead of a scene."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from wdjax.drawing.paint import SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Size of the default picture. Other sizes scale it, with its fonts, and add space on one side.
INCHES = (6.4, 4.8)
PAD = 0.08  # margin, inches


def draw_frames(
    env: Any,
    states: Any,
    params: Any,
    steps: Iterable[int],
    trail: int,
    size: tuple[int, int] | None,
) -> Iterator[np.ndarray]:
    """Yield the picture of each step, [height, width, 4] uint8.

    All frames share one figure and the layout of the first frame, which keeps the axes at the same
    position, and one buffer: copy a picture to keep it.

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
    canvas = FigureCanvasAgg(figure)
    for i, t in enumerate(steps):
        axes.clear()
        first = max(0, t - trail)
        history = jax.tree.map(lambda leaf: leaf[first:t], states) if first < t else None  # noqa: B023
        env.draw(axes, jax.tree.map(lambda leaf: leaf[t], states), params, history=history)  # noqa: B023
        if i == 0:
            _lay_out(figure, axes, fit_height=size is None)
        canvas.draw()
        yield np.asarray(canvas.buffer_rgba())


def new_figure(size: tuple[int, int] | None) -> tuple["Figure", "Axes"]:
    """Return a figure of (width, height) pixels without a window, and its empty axes.

    Args:
        size: (width, height) in pixels, each at least 100. None: `SIZE`.

    """
    from matplotlib.figure import Figure

    width, height = size or SIZE
    dpi = min(width / INCHES[0], height / INCHES[1])
    # matplotlib rounds down. The extra half pixel protects against rounding errors.
    inches = ((width + 0.5) / dpi, (height + 0.5) / dpi)
    # The compressed layout places a legend next to axes with equal aspect.
    figure = Figure(figsize=inches, dpi=dpi, layout="compressed")
    cast(Any, figure.get_layout_engine()).set(w_pad=PAD, h_pad=PAD)
    return figure, figure.add_subplot()


def _lay_out(figure: "Figure", axes: "Axes", fit_height: bool) -> None:
    """Fix the position of the axes so that labels and legend fit.

    Args:
        figure: The figure.
        axes: Its axes.
        fit_height: Whether to remove empty space at the top and bottom.
    """
    figure.draw_without_rendering()
    if fit_height:
        needed = cast(Any, axes.get_tightbbox()).height / figure.dpi + 2 * PAD
        figure.set_figheight(min(needed, figure.get_figheight()))
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
