"""Scene description of an episode: marks in environment units, with arrays over all frames.

    x, y = states.x[:, None], states.height[:, None]  # [T, 1]
    ball = Shapes(x, y, DISC, size=0.2, color="blue", label="ball")
    captions = [f"step {t}" for t in states.time]
    Scene([ball], extent=(-5, 0, 5, 10), captions=captions, time=states.time)

An environment fills these classes with NumPy arrays. Pictures, animations and the player are drawn
from them. T is the number of frames, N the number of items of a mark.

* Colors are names in `COLORS`, each with one tone for light and one for dark backgrounds.
* An array whose leading axis is 1 or missing is the same in all frames.
* A one-dimensional array is [N]. Pass an array [T] of a single agent as `array[:, None]`.
* Items at NaN are not drawn.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from wdjax.checks import require, require_integer, require_known
from wdjax.drawing.fields import COLORS as COLORS
from wdjax.drawing.fields import common_shape, corners, covered, finish, floats, shade

ALIGN = ("left", "center", "right")
TRAIL = 10  # default length of a trail, frames

_ROUND = np.linspace(0, 2 * np.pi, 49)[:-1]
_STAR = np.array([1.0, 0.42] * 5)
# Outlines [V, 2] around the position, with size about 1 and heading +x.
DISC = np.stack([np.cos(_ROUND), np.sin(_ROUND)], axis=1)
SQUARE = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
TRIANGLE = np.array([[0.0, 1.15], [-1.0, -0.75], [1.0, -0.75]])
STAR = _STAR[:, None] * np.stack(
    [np.sin(np.arange(10) * np.pi / 5), np.cos(np.arange(10) * np.pi / 5)], axis=1
)
_ARM = np.array([[0.0, 1.0], [3.0, 4.0], [4.0, 3.0]])
_TURN = np.array([[0.0, -1.0], [1.0, 0.0]])  # (x, y) -> (y, -x), a quarter clockwise
CROSS = np.concatenate([_ARM @ np.linalg.matrix_power(_TURN, i) for i in range(4)]) / 4.0
# A bar upwards from its position. Use it with size=(width, height).
BAR = np.array([[-0.5, 0.0], [0.5, 0.0], [0.5, 1.0], [-0.5, 1.0]])


@dataclasses.dataclass(frozen=True, eq=False)
class Shapes:
    """One outline drawn at N positions, each with its own size, angle and opacity.

    Raises:
        ValueError: If the shapes of the arrays do not broadcast, the color is unknown, or `stroke`
            or `outline` is not finite.
        TypeError: If a scalar field has a wrong type.
    """

    x: Any  # [T, N] or [N]
    y: Any  # [T, N] or [N]
    outline: np.ndarray = dataclasses.field(default_factory=lambda: DISC)
    """[V, 2], a closed polygon"""
    size: Any = 1.0
    """[T, N], scale of the outline in environment units, or a tuple of two (along x, along y)"""
    angle: Any = 0.0  # [T, N], rad, counter-clockwise
    color: str = "blue"
    opacity: Any = 1.0  # [T, N], 0 to 1
    stroke: float = 0.0  # px, line width of the outline; 0: the outline is filled
    edge: bool = False  # draw a thin line in the background color, to separate neighbors
    label: str = ""  # name in the legend
    group: str = ""
    """group of agents that the N items are, in order; the player shows their paths and obs"""
    trail: bool = False  # draw recent positions as a fading line

    def __post_init__(self):
        sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        size = np.stack(np.broadcast_arrays(*(floats(side, 2, "size") for side in sides)), axis=-1)
        arrays = {name: floats(getattr(self, name), 2, name) for name in ("x", "y", "angle")}
        arrays |= {"size": size, "opacity": shade(self.opacity, 2)}
        _, count = common_shape(self, **arrays)
        frames, _ = np.broadcast_shapes(arrays["x"].shape, arrays["y"].shape)
        arrays |= {name: np.broadcast_to(arrays[name], (frames, count)) for name in ("x", "y")}
        outline = np.asarray(self.outline, np.float64)
        require(
            outline.ndim == 2
            and len(outline)
            and outline.shape[1] == 2
            and np.isfinite(outline).all(),
            "outline.shape",
            outline.shape,
            "(V, 2), with finite values",
        )
        finish(self, **arrays, outline=outline)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the fields that may differ between frames, each of length T or 1."""
        return self.x, self.y, self.size, self.angle, self.opacity


@dataclasses.dataclass(frozen=True, eq=False)
class Lines:
    """N polylines of V vertices each. A NaN vertex leaves a gap.

    Raises:
        ValueError: If an array has a wrong shape, the color is unknown, or `width` or `opacity` is
            not finite.
        TypeError: If a scalar field has a wrong type.
    """

    points: Any  # [T, N, V, 2], [N, V, 2] or [V, 2]
    color: str = "ink"
    width: float = 1.5  # px
    dashed: bool = False
    opacity: float = 1.0  # 0 (invisible) to 1
    window: Any = None  # [T, 2] int: draw vertices window[t, 0] to window[t, 1] - 1; None: all
    label: str = ""  # name in the legend

    def __post_init__(self):
        points = floats(self.points, 4, "points")
        require(points.shape[3] == 2, "points.shape", np.shape(self.points), "(..., V, 2)")
        window = None if self.window is None else np.asarray(self.window, np.int64)
        require(
            window is None or (window.ndim == 2 and window.shape[1] == 2),
            "window.shape",
            np.shape(cast(np.ndarray, window)),
            "(T, 2)",
        )
        finish(self, points=points, window=window)
        object.__setattr__(self, "opacity", min(max(self.opacity, 0.0), 1.0))

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the fields that may differ between frames, each of length T or 1."""
        return (self.points,) if self.window is None else (self.points, self.window)


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """N short texts at N positions.

    Raises:
        ValueError: If the number of texts differs from the number of positions, the color or
            alignment is unknown, or `size` is not finite.
        TypeError: If a scalar field has a wrong type.
    """

    x: Any  # [T, N] or [N]
    y: Any  # [T, N] or [N], the vertical middle of the line
    texts: Sequence[Any]  # N strings, or T sequences of N strings
    color: str = "text"
    size: float = 11.0  # font size, px
    align: str = "center"  # "left", "center" or "right"
    bold: bool = False

    def __post_init__(self):
        require_known("align", self.align, ALIGN)
        texts = (self.texts,) if all(isinstance(text, str) for text in self.texts) else self.texts
        texts = tuple(tuple(map(str, frame)) for frame in texts)
        arrays = {name: floats(getattr(self, name), 2, name) for name in ("x", "y")}
        x, y = (np.broadcast_to(array, common_shape(self, **arrays)) for array in arrays.values())
        counts = sorted({len(frame) for frame in texts})
        require(
            counts == [x.shape[1]],
            "texts per frame",
            counts,
            f"[{x.shape[1]}], the number of positions",
        )
        finish(self, x=x, y=y, texts=texts)

    def arrays(self) -> tuple[Any, ...]:
        """Return the fields that may differ between frames, each of length T or 1."""
        return self.x, self.y, self.texts


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """A grid of cells in one color, such as a heat map, with an opacity for each cell.

    Raises:
        ValueError: If an index is out of range, the extent is not a rectangle, or the color is
            unknown.
        TypeError: If a scalar field has a wrong type.
    """

    opacity: Any  # [K, H, W] or [H, W], 0 to 1, bottom row first
    extent: tuple[float, float, float, float]  # (x0, y0, x1, y1), lower left and upper right corner
    color: str = "blue"
    index: Any = 0  # [T] int, which of the K maps each frame shows

    def __post_init__(self):
        opacity, index = shade(self.opacity, 3), np.atleast_1d(np.asarray(self.index, np.int64))
        require(
            np.all((index >= 0) & (index < len(opacity))),
            "index",
            index,
            f"from 0 to {len(opacity) - 1}, an index into opacity",
        )
        finish(self, opacity=opacity, index=index, extent=corners(self.extent))

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return the fields that may differ between frames, each of length T or 1."""
        return (self.index,)


Mark = Shapes | Lines | Text | Field


@dataclasses.dataclass(frozen=True, eq=False)
class Series:
    """A curve of a plot, with an optional band.

    Raises:
        ValueError: If only one of `low` and `high` is given, or the color is unknown.
        TypeError: If a scalar field has a wrong type.
    """

    values: Any  # [T]; NaN leaves a gap
    color: str = "blue"
    label: str = ""  # name in the plot's legend; "": not listed
    low: Any = None  # [T], lower end of the band
    high: Any = None  # [T], upper end of the band
    wide: int = 1
    """line width; a `Scene` widens curves that later ones cover, so that both colors show"""

    def __post_init__(self):
        curves = {
            name: floats(value, 1, name)
            for name in ("values", "low", "high")
            if (value := getattr(self, name)) is not None
        }
        require(
            len(curves) in (1, 3) and "values" in curves,
            "arrays of a Series",
            sorted(curves),
            "values alone, or values with both low and high",
        )
        finish(self, **curves)

    def arrays(self) -> list[np.ndarray]:
        """Return the fields that may differ between frames, each of length T or 1."""
        return [array for array in (self.values, self.low, self.high) if array is not None]


@dataclasses.dataclass(frozen=True, eq=False)
class Plot:
    """Curves over time; each frame highlights them up to the current time.

    Raises:
        ValueError: If there are no curves, or `ylim` is not two finite numbers.
        TypeError: If `title` cannot be converted to a string.
    """

    title: str  # above the plot, with the unit
    series: Sequence[Series]  # at least one curve, bottom first
    x: Any = None  # [T], values of the x axis, such as years; None: the scene's time
    ylim: tuple[float, float] | None = None  # None: the range of the values, including 0

    def __post_init__(self):
        require(self.series, "series", self.series, "a sequence of at least one Series")
        ends = np.asarray((0.0, 1.0) if self.ylim is None else self.ylim, np.float64)
        is_range = ends.shape == (2,) and np.isfinite(ends).all()
        require(is_range, "ylim", self.ylim, "two finite numbers")
        finish(self, ylim=None if self.ylim is None else tuple(ends.tolist()))


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """A drawable episode: marks, captions and plots over T frames.

    Raises:
        ValueError: If the number of frames of an array differs from the number of captions, or
            neither an extent nor plots are given.
    """

    marks: Sequence[Mark]  # bottom first
    captions: Sequence[str]  # [T], above the picture
    extent: tuple[float, float, float, float] | None = None
    """(x0, y0, x1, y1), lower left and upper right corner; None: only plots are drawn"""
    time: Any = None  # [T] int, steps since the reset; None: 0, 1, ...
    margin: float = 0.0
    """Space around the extent, in environment units, for marks at its border"""
    axes: bool = True  # draw axes with tick labels
    equal: bool = True  # use the same scale for x and y
    xlabel: str = ""  # label of the x axis, with the unit
    ylabel: str = ""  # label of the y axis, with the unit
    plots: Sequence[Plot] = ()  # next to the marks, or alone if there is no extent
    trail: int | None = None  # length of trails in frames; None: the environment's `trail`
    obs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """group -> [T, n, D], observations of its n agents"""

    def __post_init__(self):
        frames = len(self.captions)
        require(frames, "captions", list(self.captions), "a sequence of one string per frame")
        time = np.arange(frames) if self.time is None else np.asarray(self.time)
        require(
            time.shape == (frames,), "time.shape", time.shape, f"({frames},), one value per caption"
        )
        require(np.isfinite(time).all(), "time", time, "finite")
        for mark in (*self.marks, *(series for plot in self.plots for series in plot.series)):
            for array in mark.arrays():
                require(
                    len(array) in (1, frames),
                    f"length of an array of {type(mark).__name__}",
                    len(array),
                    f"1 or {frames}, the number of captions",
                )
        require(
            self.extent is not None or self.plots,
            "extent",
            self.extent,
            "four numbers (x0, y0, x1, y1), unless there are plots",
        )
        require(self.margin >= 0, "margin", self.margin, "at least 0")
        if self.trail is not None:
            require_integer("trail", self.trail, 0)
        finish(
            self,
            time=time,
            extent=None if self.extent is None else corners(self.extent),
            trail=None if self.trail is None else int(self.trail),
            marks=tuple(self.marks),
            captions=tuple(map(str, self.captions)),
            plots=tuple(_of_frames(plot, frames) for plot in self.plots),
        )

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The part of the environment that pictures show: the extent with its margin."""
        x0, y0, x1, y1 = cast(Any, self.extent)
        return x0 - self.margin, y0 - self.margin, x1 + self.margin, y1 + self.margin

    @property
    def num_frames(self) -> int:
        """Number of frames, T."""
        return len(self.captions)

    @property
    def trail_length(self) -> int:
        """Length of trails in frames."""
        return TRAIL if self.trail is None else self.trail

    @property
    def legend(self) -> list[Shapes | Lines]:
        """Marks with a label, top first."""
        labeled = (mark for mark in reversed(self.marks) if isinstance(mark, Shapes | Lines))
        return [mark for mark in labeled if mark.label]


def _of_frames(plot: Plot, frames: int) -> Plot:
    """Return the plot with all curves broadcast to [T]."""
    x = None if plot.x is None else np.asarray(plot.x, np.float64)
    require(
        x is None or (x.shape == (frames,) and np.isfinite(x).all()),
        "Plot.x.shape",
        np.shape(cast(np.ndarray, x)),
        f"({frames},), with finite values",
    )
    hidden = covered([np.broadcast_to(curve.values, (frames,)) for curve in plot.series])
    series = [
        dataclasses.replace(
            curve,
            wide=1 + count,
            **{  # type: ignore[arg-type]  # the names of three fields
                name: np.broadcast_to(value, (frames,))
                for name in ("values", "low", "high")
                if (value := getattr(curve, name)) is not None
            },
        )
        for curve, count in zip(plot.series, hidden, strict=True)
    ]
    return dataclasses.replace(plot, x=x, series=tuple(series))
