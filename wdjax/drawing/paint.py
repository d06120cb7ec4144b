"""Layout of a picture (`lay_out`) and drawing of its parts onto a canvas of pixels or SVG."""

import dataclasses
from typing import Any, Protocol, cast

import numpy as np

from wdjax.drawing.frames import at, trails, turned
from wdjax.drawing.scene import DISC, Lines, Mark, Plot, Scene, Series, Shapes, Text

SIZE = (640, 480)  # default width and maximum default height, px
FLAT = 300  # height below which a picture 640 px wide needs smaller text, px
TRAIL_OPACITY, TRAIL_WIDTH = 0.55, 1.9
SEGMENTS = 2_000  # maximum number of trail segments per mark; the newest are drawn
LABEL, LABELS = 30, 12  # maximum length of a legend entry, maximum number of entries
CROWD = 300  # above this number of agents, each is a few pixels and has no border

Rect = tuple[float, float, float, float]  # (x, y) of the upper left corner, width, height, px


class Canvas(Protocol):
    """A drawing surface. Positions are pixels from the upper left corner, colors are names."""

    def polygons(
        self, points: np.ndarray, color: str, opacity: Any, stroke: float, edge: bool
    ) -> None:
        """Fill polygons [N, V, 2] with opacities [N], or draw their outlines if `stroke` > 0.

        `edge` adds a thin border in the background color.
        """

    def lines(
        self, points: np.ndarray, color: str, width: float, opacity: float, dashed: bool
    ) -> None:
        """Draw polylines [N, V, 2], with gaps at NaN."""

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        color: str,
        align: str,
        bold: bool = False,
        upwards: bool = False,
    ) -> None:
        """Draw one or more lines of text, vertically centered at y.

        `align` is "left", "center" or "right" of x. With `upwards`, it reads from bottom to top.
        """

    def image(self, rect: Rect, opacity: np.ndarray, color: str) -> None:
        """Fill a rectangle with one color and opacities [H, W], top row first."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Positions of the parts of a picture, in pixels."""

    size: tuple[int, int]  # width and height of the picture
    unit: float  # scale of text and line widths; 1 in a picture 640 px wide
    world: Rect | None  # area of the marks; None: only plots
    caption: tuple[float, float]
    legend: tuple[tuple[float, float], ...]
    plots: tuple[Rect, ...]

    def place(self, scene: Scene, points: np.ndarray) -> np.ndarray:
        """Convert positions [..., 2] from environment units to pixels."""
        (x0, y0, x1, y1), (left, top, width, height) = scene.box, cast(Rect, self.world)
        scale = np.array([width / (x1 - x0), -height / (y1 - y0)])
        return (points - np.array([x0, y1])) * scale + np.array([left, top])


def lay_out(scene: Scene, size: tuple[int, int] | None = None) -> Layout:
    """Return the layout of a picture.

    Args:
        scene: The scene to draw.
        size: (width, height) in pixels. None: 640 wide, and as high as needed.
    """
    width, height = size or SIZE
    k = min(width / SIZE[0], height / FLAT)
    top = (10 + 18 * (1 + max(caption.count("\n") for caption in scene.captions))) * k
    if scene.extent is None:
        plots = tuple(_grid(len(scene.plots), (6 * k, top, width - 12 * k, height - top - 4 * k)))
        return Layout((width, height), k, None, (width / 2, top), (), plots)
    entries = [(24 + 6.8 * len(shorten(mark.label))) * k for mark in scene.legend[:LABELS]]
    x0, y0, x1, y1 = scene.box
    aspect = (x1 - x0) / (y1 - y0)
    is_beside = (entries and (aspect < 1.3 or not scene.equal)) or (scene.plots and aspect < 1.3)
    left, bottom = (54 * k, 42 * k) if scene.axes else (12 * k, 10 * k)
    room = (left, top, width - left, height - top - bottom)
    arrange = _place_beside if is_beside else _place_below
    world, legend, plots = arrange(scene, aspect, room, bottom, entries, k)
    ends = [world[1] + world[3] + bottom, *(y + 12 * k for _, y in legend)]
    end = max([*ends, *(y + high for _, y, _, high in plots)])
    caption = (world[0] + world[2] / 2, top)
    return Layout((width, height if size else round(end)), k, world, caption, legend, plots)


Places = tuple[Rect, tuple[tuple[float, float], ...], tuple[Rect, ...]]  # marks, legend, plots


def _place_beside(
    scene: Scene, aspect: float, room: Rect, bottom: float, entries: list[float], k: float
) -> Places:
    """Place the legend and the plots in a column next to the marks.

    Args:
        scene: The scene to draw.
        aspect: Width per height of the marks.
        room: The area of the picture between the left and lower tick labels and the caption.
        bottom: Height of the tick labels below `room`.
        entries: Widths of the legend entries.
        k: The scale of text and line widths, `Layout.unit`.
    """
    left, top, width, height = room
    heads = [max(170, 50 + 6.8 * len(plot.title) + _labels_width(plot)) * k for plot in scene.plots]
    side = max([*entries, *heads]) + 22 * k
    world = _fit(scene, aspect, (left, top, width - side, height))
    column, under = world[0] + world[2] + 16 * k, top + (19 * len(entries) + 6) * k
    legend = tuple((column, top + (9 + 19 * i) * k) for i in range(len(entries)))
    free = (world[1] + world[3] + bottom - under) / max(1, len(scene.plots))
    each, x = min(130 * k, max(60 * k, free)), column - 8 * k
    plots = tuple(
        (x, under + i * each, left + width - column, each) for i in range(len(scene.plots))
    )
    return world, legend, plots


def _place_below(
    scene: Scene, aspect: float, room: Rect, bottom: float, entries: list[float], k: float
) -> Places:
    """Place the legend and then the plots below the marks; see `_place_beside`."""
    left, top, width, height = room
    full, rows = left + width, _rows(entries, left + width - 20 * k)
    below = 20 * k * len(rows) + 120 * k * bool(scene.plots)
    world = _fit(scene, aspect, (left, top, width - 16 * k, height - below))
    world = (max(world[0], (full - world[2]) / 2), *world[1:])
    y, legend, each = world[1] + world[3] + bottom, [], full / max(1, len(scene.plots))
    for i, row in enumerate(rows):
        starts = (full - sum(row)) / 2 + np.cumsum([0.0, *row[:-1]])
        legend += [(x, y + (20 * i + 8) * k) for x in starts]
    y += 20 * k * len(rows)
    return (
        world,
        tuple(legend),
        tuple((i * each, y, each, 120 * k) for i in range(len(scene.plots))),
    )


def _fit(scene: Scene, aspect: float, room: Rect) -> Rect:
    """Return the largest rectangle for the marks inside `room`, at its upper left corner."""
    x, y, width, height = *room[:2], max(1.0, room[2]), max(1.0, room[3])
    if not scene.equal:
        return x, y, width, min(height, 0.75 * width)
    scale = min(width, height * aspect)
    return x, y, scale, scale / aspect


def _labels_width(plot: Plot) -> float:
    """Return the width of the series names above a plot, px in a picture 640 px wide."""
    return sum(10 + 5.8 * len(series.label) for series in plot.series if series.label)


def shorten(label: str) -> str:
    """Cut a legend entry to at most `LABEL` characters."""
    return label if len(label) <= LABEL else label[: LABEL - 1] + "…"


def _rows(widths: list[float], most: float) -> list[list[float]]:
    """Break widths into rows of total width at most `most`."""
    rows: list[list[float]] = []
    for width in widths:
        if rows and sum(rows[-1]) + width <= most:
            rows[-1].append(width)
        else:
            rows.append([width])
    return rows


def _grid(count: int, room: Rect) -> list[Rect]:
    """Divide `room` into `count` equal cells, in two columns if there are more than two."""
    columns = 2 if count > 2 else 1
    rows = -(-count // columns)
    x, y, width, height = room[0], room[1], room[2] / columns, room[3] / rows
    return [
        (x + (i % columns) * width, y + (i // columns) * height, width, height)
        for i in range(count)
    ]


def ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Return about `most` round tick values between low and high, each with its label."""
    step = (high - low) / max(1, most)
    power = 10.0 ** np.floor(np.log10(step))
    step = next(
        power * round_step
        for round_step in (1, 2, 5, 10)
        if power * round_step >= step * (1 - 1e-9)
    )
    first, last = np.ceil(low / step - 1e-6), np.floor(high / step + 1e-6)
    digits = max(0, -int(np.floor(np.log10(step) + 1e-9)))
    return [(i * step, f"{i * step:,.{digits}f}") for i in np.arange(first, last + 1) + 0.0]


def draw_ground(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """Draw the background that all frames share: axes, legend, and plots with faint curves."""
    k = layout.unit
    if layout.world and scene.axes:
        _draw_axes(canvas, scene, layout)
    for mark, (x, y) in zip(scene.legend[: len(layout.legend)], layout.legend, strict=True):
        if isinstance(mark, Lines):
            canvas.lines(
                np.array([[[x, y], [x + 15 * k, y]]]),
                mark.color,
                mark.width * k,
                mark.opacity,
                mark.dashed,
            )
        else:
            low, high = mark.outline.min(axis=0), mark.outline.max(axis=0)
            shape = (mark.outline - (low + high) / 2) * [13 * k, -13 * k] / np.max(high - low) + [
                x + 7 * k,
                y,
            ]
            stroke = min(mark.stroke, 1.5) * k
            canvas.polygons(
                shape[None],
                mark.color,
                np.nanmax(mark.opacity, initial=0.0, keepdims=True)[0],
                stroke,
                False,
            )
        canvas.text(x + 20 * k, y, shorten(mark.label), 11 * k, "text", "left")
    for plot, rect in zip(scene.plots, layout.plots, strict=True):
        _draw_plot(canvas, scene, plot, rect, k)


def _draw_axes(canvas: Canvas, scene: Scene, layout: Layout) -> None:
    """Draw a frame around the extent, and outside of its margin numbers and axis labels."""
    k, (x, y, width, height) = layout.unit, cast(Rect, layout.world)
    x0, y0, x1, y1 = cast(Rect, scene.extent)
    frame = layout.place(scene, np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]]))
    canvas.polygons(frame[None], "ink", np.ones(1), k, False)
    left, bottom = frame[0]
    for value, label in ticks(x0, x1, max(2, int(width / (55 * k)))):
        px = layout.place(scene, np.array([value, y0]))[0]
        canvas.lines(np.array([[[px, bottom], [px, bottom + 4 * k]]]), "ink", k, 1.0, False)
        canvas.text(px, y + height + 12 * k, label, 11 * k, "text", "center")
    for value, label in ticks(y0, y1, max(2, int(height / (35 * k)))):
        py = layout.place(scene, np.array([x0, value]))[1]
        canvas.lines(np.array([[[left - 4 * k, py], [left, py]]]), "ink", k, 1.0, False)
        canvas.text(x - 7 * k, py, label, 11 * k, "text", "right")
    canvas.text(x + width / 2, y + height + 29 * k, scene.xlabel, 11 * k, "text", "center")
    if scene.ylabel:
        canvas.text(
            x - 43 * k, y + height / 2, scene.ylabel, 11 * k, "text", "center", upwards=True
        )


def plot_range(
    scene: Scene, plot: Plot
) -> tuple[np.ndarray, tuple[float, float], tuple[float, float]]:
    """Return the x values [T] of a plot and the limits (low, high) of its x and y axes."""
    x = np.asarray(scene.time if plot.x is None else plot.x, float)
    values = np.concatenate(
        [array.reshape(-1) for series in plot.series for array in series.arrays()]
    )
    values = values[np.isfinite(values)]
    low, high = plot.ylim or (min(0.0, values.min(initial=0.0)), max(0.0, values.max(initial=0.0)))
    span = x.min(), x.max() if x.max() > x.min() else x.min() + 1.0
    return x, span, (low, high if high > low else low + 1.0)


def plot_places(scene: Scene, plot: Plot, rect: Rect, k: float) -> tuple[Rect, Any]:
    """Return the inner area of a plot, and a function that converts its data to pixels.

    Args:
        scene: The scene, which defines the default x values.
        plot: The plot.
        rect: The area of the plot including titles and tick labels, px.
        k: The scale of text and line widths, `Layout.unit`.

    Returns:
        (inner area, function from x [..., T] and y [..., T] to pixels [..., T, 2]).
    """
    left, top = rect[0] + 40 * k, rect[1] + 19 * k
    width, height = rect[2] - 54 * k, rect[3] - 41 * k
    _, (x0, x1), (y0, y1) = plot_range(scene, plot)

    def place(x: Any, y: Any) -> np.ndarray:
        return np.stack(
            [left + (x - x0) / (x1 - x0) * width, top + (y1 - y) / (y1 - y0) * height], axis=-1
        )

    return (left, top, width, height), place


def _draw_plot(canvas: Canvas, scene: Scene, plot: Plot, rect: Rect, k: float) -> None:
    """Draw a plot with its title, ticks, bands and faint curves."""
    (left, top, width, height), place = plot_places(scene, plot, rect, k)
    x, (x0, x1), (y0, y1) = plot_range(scene, plot)
    canvas.text(left - 4 * k, rect[1] + 8 * k, plot.title, 11 * k, "text", "left")
    named, at_x = [series for series in plot.series if series.label], left + width
    for series in reversed(named):
        canvas.text(at_x, rect[1] + 8 * k, series.label, 10 * k, series.color, "right")
        at_x -= (10 + 5.8 * len(series.label)) * k
    corner = np.array([[[left, top], [left, top + height], [left + width, top + height]]])
    canvas.lines(corner, "grey", 0.8 * k, 1.0, False)
    for value, label in ticks(y0, y1, max(1, int(height / (24 * k)))):
        px, py = place(x0, value)
        canvas.lines(np.array([[[px, py], [px + width, py]]]), "faint", 0.8 * k, 1.0, False)
        canvas.text(left - 5 * k, py, label, 9.5 * k, "text", "right")
    years = plot.x is not None
    for value, label in ticks(x0, x1, max(1, int(width / (44 * k)))):
        canvas.text(
            place(value, y0)[0],
            top + height + 9 * k,
            label.replace(",", "") if years else label,
            9.5 * k,
            "text",
            "center",
        )
    for series in plot.series:
        if series.low is not None and len(x) > 1:
            band = np.concatenate([place(x, series.low), place(x, series.high)[::-1]])
            band = band[np.isfinite(band).all(axis=-1)]
            canvas.polygons(band[None], series.color, np.full(1, 0.15), 0.0, False)
        canvas.lines(place(x, series.values)[None], series.color, k, 0.3, False)


def curves_of(scene: Scene, layout: Layout) -> list[tuple[Series, np.ndarray]]:
    """Return a list with (series, positions [T, 2] in pixels) of every curve in every plot."""
    curves = []
    for plot, rect in zip(scene.plots, layout.plots, strict=True):
        _, place = plot_places(scene, plot, rect, layout.unit)
        x = plot_range(scene, plot)[0]
        curves += [(series, place(x, series.values)) for series in plot.series]
    return curves


def draw_curves(canvas: Canvas, curves: list[tuple[Series, np.ndarray]], k: float, t: int) -> None:
    """Highlight the result of `curves_of` up to frame t; covered curves are wider than others."""
    for series, points in curves:
        canvas.lines(points[None, : t + 1], series.color, (2.7 * series.wide - 1) * k, 1.0, False)
        dot = points[t] + (2 + series.wide) * k * DISC
        canvas.polygons(dot[None], series.color, np.ones(1), 0.0, False)


def draw_mark(canvas: Canvas, scene: Scene, layout: Layout, mark: Mark, t: int) -> None:
    """Draw a mark at frame t."""
    k = layout.unit
    if isinstance(mark, Shapes):
        polygons = layout.place(scene, turned(mark, t))
        shown = np.isfinite(polygons).all(axis=(1, 2))
        opacity = np.broadcast_to(at(mark.opacity, t), shown.shape)
        edge = mark.edge and len(polygons) <= CROWD
        canvas.polygons(polygons[shown], mark.color, opacity[shown], mark.stroke * k, edge)
    elif isinstance(mark, Lines):
        points = at(mark.points, t)
        if mark.window is not None:
            first, last = at(mark.window, t)
            points = points[:, first:last]
        canvas.lines(
            layout.place(scene, points), mark.color, mark.width * k, mark.opacity, mark.dashed
        )
    elif isinstance(mark, Text):
        places = layout.place(scene, np.stack([at(mark.x, t), at(mark.y, t)], axis=-1))
        for (x, y), text in zip(places, at(mark.texts, t), strict=True):
            if text and np.isfinite(x + y):
                canvas.text(x, y, text, mark.size * k, mark.color, mark.align, mark.bold)
    else:
        x0, y0, x1, y1 = mark.extent
        (x, y), (right, bottom) = layout.place(scene, np.array([[x0, y1], [x1, y0]]))
        opacity = at(mark.opacity, at(mark.index, t))[::-1]
        canvas.image((x, y, right - x, bottom - y), opacity, mark.color)


def draw_caption(canvas: Canvas, scene: Scene, layout: Layout, t: int) -> None:
    """Draw the caption of frame t above the picture."""
    (x, bottom), k, caption = layout.caption, layout.unit, scene.captions[t]
    y = bottom - (5 + 8.5 * (1 + caption.count("\n"))) * k
    canvas.text(x, y, caption, 14 * k, "text", "center")


def draw_trail(canvas: Canvas, scene: Scene, layout: Layout, mark: Shapes, t: int) -> None:
    """Draw the trails of a mark at frame t, fading with age."""
    agents = sum(
        other.x.shape[1] for other in scene.marks if isinstance(other, Shapes) and other.trail
    )
    each = 2 if agents > CROWD else 1  # steps per segment
    segments, strength = trails(scene, mark, t, each)
    newest = max(1, SEGMENTS // max(1, segments.shape[1] * each))
    for lines, opacity in zip(
        layout.place(scene, segments[-newest:]), strength[-newest:], strict=True
    ):
        shown = lines[np.isfinite(lines).all(axis=(1, 2))]
        canvas.lines(shown, mark.color, TRAIL_WIDTH * layout.unit, TRAIL_OPACITY * opacity, False)
