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

COLORS = {  # name -> (on light ground, on dark ground)
    "blue": ("#245EB6", "#6EA4F4"),
    "magenta": ("#C843C3", "#E583E0"),
    "green": ("#2E8B57", "#54C389"),
    "orange": ("#E07B00", "#F5A54A"),
    "red": ("#B3261E", "#F07A72"),
    "ink": ("#444444", "#C9CED6"),
    "text": ("#1F2933", "#E8EBEF"),
    "grey": ("#7A7F87", "#949BA6"),
    "faint": ("#E4E4E4", "#30363D"),
    "paper": ("#FFFFFF", "#15181C"),
}
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
CROSS = (
    np.array(
        [
            [0, 1],
            [3, 4],
            [4, 3],
            [1, 0],
            [4, -3],
            [3, -4],
            [0, -1],
            [-3, -4],
            [-4, -3],
            [-1, 0],
            [-4, 3],
            [-3, 4],
        ]
    )
    / 4.0
)
# A bar upwards from its position. Use it with size=(width, height).
BAR = np.array([[-0.5, 0.0], [0.5, 0.0], [0.5, 1.0], [-0.5, 1.0]])


def _floats(value: Any, ndim: int, field: str) -> np.ndarray:
    """Convert a value to float64, and prepend axes of length 1 until it has `ndim` axes."""
    value = np.asarray(value, np.float64)
    require(value.ndim <= ndim, f"{field}.shape", value.shape, f"at most {ndim}-dimensional")
    return value.reshape((1,) * (ndim - value.ndim) + value.shape)


def _set(mark: Any, **fields: Any) -> None:
    """Set fields of a frozen dataclass."""
    for name, value in fields.items():
        object.__setattr__(mark, name, value)


def _set_plain(mark: Any) -> None:
    """Check the color, and convert float, bool and str fields to Python types.

    NumPy scalars are not valid JSON.
    """
    for field in dataclasses.fields(mark):
        value = getattr(mark, field.name)
        if field.name == "color":
            require_known("color", value, COLORS)
        if field.type in (float, bool, str):
            try:
                plain = "" if field.type is str and value is None else field.type(value)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"{field.name} = {value!r}: must be a {field.type.__name__}"
                ) from error
            require(field.type is not float or np.isfinite(plain), field.name, value, "finite")
            _set(mark, **{field.name: plain})


def _require_alike(mark: Any, **arrays: np.ndarray) -> tuple[int, int]:
    """Return the common (T, N) of a mark's arrays; raise ValueError if they do not broadcast."""
    try:
        return np.broadcast_shapes(*(array.shape[:2] for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {list(array.shape[:2])}" for name, array in arrays.items())
        raise ValueError(
            f"{type(mark).__name__}: {shapes}: must have equal [T, N], except for axes of length 1"
        ) from None


def _corners(extent: Any) -> tuple[float, ...]:
    """Return an extent as four floats; raise ValueError if it is not a rectangle."""
    corners = np.asarray(extent, np.float64)
    require(
        corners.shape == (4,) and np.isfinite(corners).all() and np.all(corners[:2] < corners[2:]),
        "extent",
        extent,
        "four finite numbers (x0, y0, x1, y1) with x0 < x1 and y0 < y1",
    )
    return tuple(corners.tolist())


def _shade(opacity: Any, ndim: int) -> np.ndarray:
    """Return opacities with `ndim` axes, clipped to [0, 1]; NaN becomes 0."""
    return np.clip(np.nan_to_num(_floats(opacity, ndim, "opacity")), 0, 1)


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
        size = np.stack(np.broadcast_arrays(*(_floats(side, 2, "size") for side in sides)), axis=-1)
        arrays = {name: _floats(getattr(self, name), 2, name) for name in ("x", "y", "angle")}
        arrays |= {"size": size, "opacity": _shade(self.opacity, 2)}
        _, count = _require_alike(self, **arrays)
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
        _set_plain(self)
        _set(self, **arrays, outline=outline)

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
        points = _floats(self.points, 4, "points")
        require(points.shape[3] == 2, "points.shape", np.shape(self.points), "(..., V, 2)")
        window = None if self.window is None else np.asarray(self.window, np.int64)
        require(
            window is None or (window.ndim == 2 and window.shape[1] == 2),
            "window.shape",
            np.shape(cast(np.ndarray, window)),
            "(T, 2)",
        )
        _set_plain(self)
        _set(self, points=points, window=window, opacity=min(max(self.opacity, 0.0), 1.0))

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
        arrays = {name: _floats(getattr(self, name), 2, name) for name in ("x", "y")}
        x, y = (np.broadcast_to(array, _require_alike(self, **arrays)) for array in arrays.values())
        counts = sorted({len(frame) for frame in texts})
        require(
            counts == [x.shape[1]],
            "texts per frame",
            counts,
            f"[{x.shape[1]}], the number of positions",
        )
        _set_plain(self)
        _set(self, x=x, y=y, texts=texts)

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
        opacity, index = _shade(self.opacity, 3), np.atleast_1d(np.asarray(self.index, np.int64))
        require(
            np.all((index >= 0) & (index < len(opacity))),
            "index",
            index,
            f"from 0 to {len(opacity) - 1}, an index into opacity",
        )
        _set_plain(self)
        _set(self, opacity=opacity, index=index, extent=_corners(self.extent))

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

    def __post_init__(self):
        curves = {
            name: _floats(value, 1, name)
            for name in ("values", "low", "high")
            if (value := getattr(self, name)) is not None
        }
        require(
            len(curves) in (1, 3) and "values" in curves,
            "arrays of a Series",
            sorted(curves),
            "values alone, or values with both low and high",
        )
        _set_plain(self)
        _set(self, **curves)

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
        if self.ylim is not None:
            ends = np.asarray(self.ylim, np.float64)
            require(
                ends.shape == (2,) and np.isfinite(ends).all(),
                "ylim",
                self.ylim,
                "two finite numbers",
            )
            _set(self, ylim=tuple(ends.tolist()))
        _set_plain(self)


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
        if self.extent is not None:
            _set(self, extent=_corners(self.extent))
        if self.trail is not None:
            require_integer("trail", self.trail, 0)
            _set(self, trail=int(self.trail))
        _set_plain(self)
        _set(
            self,
            time=time,
            marks=tuple(self.marks),
            captions=tuple(map(str, self.captions)),
            plots=tuple(_of_frames(plot, frames) for plot in self.plots),
        )

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
    series = [
        dataclasses.replace(
            curve,
            **{  # type: ignore[arg-type]  # the names of three fields
                name: np.broadcast_to(value, (frames,))
                for name in ("values", "low", "high")
                if (value := getattr(curve, name)) is not None
            },
        )
        for curve in plot.series
    ]
    return dataclasses.replace(plot, x=x, series=tuple(series))


def starts(time: Any) -> np.ndarray:
    """Return the index of the first frame of each frame's episode, [T] int.

    Args:
        time: [T], steps since the reset. A new episode starts where it does not increase.
    """
    time = np.asarray(time)
    first = np.append(True, np.diff(time) <= 0)
    return np.maximum.accumulate(np.where(first, np.arange(len(time)), 0))


def so_far(time: Any) -> np.ndarray:
    """Return a `Lines.window` that shows a path from the last reset to the current frame.

    The path has one vertex per frame.

    Args:
        time: [T], steps since the reset.

    Returns:
        [T, 2] int, first vertex and last vertex + 1.
    """
    return np.stack([starts(time), np.arange(len(time)) + 1], axis=1)


def at(array: Any, t: int) -> Any:
    """Return frame t of a mark's array [T, ...], or its only entry if the array is [1, ...]."""
    return array[t if len(array) > 1 else 0]


def is_static(mark: Mark) -> bool:
    """Return whether a mark looks the same in all frames."""
    return all(len(array) == 1 for array in mark.arrays()) and not getattr(mark, "trail", False)


def turned(mark: Shapes, t: int) -> np.ndarray:
    """Return the rotated and scaled polygons of frame t, [N, V, 2] in environment units."""
    angle, size = at(mark.angle, t)[:, None], at(mark.size, t)[:, None, :]
    place = np.stack([at(mark.x, t), at(mark.y, t)], axis=-1)[:, None, :]
    outline = mark.outline * size
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = outline[..., 0], outline[..., 1]
    return place + np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def trails(scene: Scene, mark: Shapes, t: int, each: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the line segments of the trails at frame t, and their strength.

    A trail starts at most `scene.trail_length` frames ago, and not before the last reset. Its
    strength decreases linearly with age.

    Args:
        scene: The scene, which defines the time and the trail length.
        mark: The mark whose N items leave the trails.
        t: The current frame.
        each: Number of steps per segment.

    Returns:
        (segments [K, N, 2, 2], oldest first, NaN for positions that are not drawn; strength [K],
        0 to 1).
    """
    first = max(t - scene.trail_length, int(starts(scene.time)[t]), 0)
    position = np.zeros((0, 1, 2))
    if len(mark.x) > 1:
        position = np.stack(np.broadcast_arrays(mark.x, mark.y), axis=-1)[first : t + 1]
    position = position[(len(position) - 1) % each :: each]
    if len(position) < 2:
        return np.zeros((0, 1, 2, 2)), np.zeros(0)
    strength = 1 - each * np.arange(len(position) - 1)[::-1] / scene.trail_length
    return np.stack([position[:-1], position[1:]], axis=2), strength
