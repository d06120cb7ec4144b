"""What a picture of an episode is made of: a `Scene` of marks in the units of the game, over all frames at once.

    ball = Shapes(states.x[:, None], states.height[:, None], DISC, size=0.2, color="blue", label="ball")
    Scene([ball], extent=(-5, 0, 5, 10), captions=[f"step {t}" for t in states.time], time=states.time)

A game fills these few classes with arrays of NumPy; pictures, animations and the player are drawn from them. Colors are
names of `COLORS`, each with a tone on white and one on black. T counts frames, N what a mark shows; an array whose
leading axis is 1 (or missing, as a number's) holds for all frames, and a place that is NaN is not shown. Of one axis it
is [N], of many things in one frame: what is [T] for a single agent is given as [:, None].
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

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
TRAIL = 10  # frames that a trail is long where nobody says

_ROUND = np.linspace(0, 2 * np.pi, 49)[:-1]
_STAR = np.array([1.0, 0.42] * 5)
# Outlines [V, 2] about the place, of size about 1, heading along +x.
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
# upwards from its place; of sizes (width, height)
BAR = np.array([[-0.5, 0.0], [0.5, 0.0], [0.5, 1.0], [-0.5, 1.0]])


def _floats(value: Any, ndim: int, field: str) -> np.ndarray:
    """Returns the value with leading axes of 1 up to `ndim`."""
    value = np.asarray(value, np.float64)
    require(value.ndim <= ndim, field, f"of shape {value.shape}", f"of at most {ndim} axes")
    return value.reshape((1,) * (ndim - value.ndim) + value.shape)


def _set(mark: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(mark, name, value)


def _set_plain(mark: Any) -> None:
    """Makes what is declared a float, bool or str one of Python: NumPy's own are no JSON."""
    for field in dataclasses.fields(mark):
        value = getattr(mark, field.name)
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
    """Returns (T, N) of a mark's arrays, each of which is either 1 or the same in all of them; else raises."""
    try:
        return np.broadcast_shapes(*(array.shape[:2] for array in arrays.values()))
    except ValueError:
        found = ", ".join(f"{name} {list(array.shape[:2])}" for name, array in arrays.items())
        raise ValueError(
            f"{type(mark).__name__}: {found}: must agree in [T, N], but for axes of length 1"
        ) from None


def _corners(extent: Any) -> tuple[float, ...]:
    found = np.asarray(extent, np.float64)
    fine = found.shape == (4,) and np.isfinite(found).all() and np.all(found[:2] < found[2:])
    require(fine, "extent", extent, "four finite numbers (x0, y0, x1, y1) with x0 < x1 and y0 < y1")
    return tuple(found.tolist())


def _shade(opacity: Any, ndim: int) -> np.ndarray:
    return np.clip(np.nan_to_num(_floats(opacity, ndim, "opacity")), 0, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Shapes:
    """One outline at N places, turned and enlarged; or, with a `stroke`, the line around it."""

    x: Any  # [T, N] or [N]
    y: Any  # [T, N] or [N]
    outline: np.ndarray = dataclasses.field(default_factory=lambda: DISC)
    """[V, 2], a closed polygon"""
    size: Any = 1.0
    """[T, N], units of the game that the outline's 1 is; or a tuple (along x, along y) of such"""
    angle: Any = 0.0  # [T, N], rad, counter-clockwise
    color: str = "blue"
    opacity: Any = 1.0  # [T, N], 0 to 1
    stroke: float = 0.0  # px; 0: the outline is filled
    edge: bool = False  # a thin line in the color of the paper, which tells neighbours apart
    label: str = ""  # in the legend
    group: str = (
        # whose agents these are, all of them in order: where one points, their paths and what they see show
        ""
    )
    trail: bool = False  # whether their last places are shown, the fainter the older

    def __post_init__(self):
        require_known("color", self.color, COLORS)
        sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        size = np.stack(np.broadcast_arrays(*(_floats(side, 2, "size") for side in sides)), axis=-1)
        both = {name: _floats(getattr(self, name), 2, name) for name in ("x", "y", "angle")}
        both |= {"size": size, "opacity": _shade(self.opacity, 2)}
        _, count = _require_alike(self, **both)
        frames, _ = np.broadcast_shapes(both["x"].shape, both["y"].shape)
        both |= {name: np.broadcast_to(both[name], (frames, count)) for name in ("x", "y")}
        outline = np.asarray(self.outline, np.float64)
        fine = (
            outline.ndim == 2
            and len(outline)
            and outline.shape[1] == 2
            and np.isfinite(outline).all()
        )
        require(fine, "outline", f"of shape {outline.shape}", "of shape (V, 2), finite")
        _set_plain(self)
        _set(self, **both, outline=outline)

    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.x, self.y, self.size, self.angle, self.opacity


@dataclasses.dataclass(frozen=True, eq=False)
class Lines:
    """N polylines of V vertices each, broken where one is NaN."""

    points: Any  # [T, N, V, 2], [N, V, 2] or [V, 2]
    color: str = "ink"
    width: float = 1.5  # px
    dashed: bool = False
    opacity: float = 1.0  # from 0, not to be seen, to 1
    window: Any = None  # [T, 2] int: the vertices first, ..., last - 1 are shown; None: all
    label: str = ""

    def __post_init__(self):
        require_known("color", self.color, COLORS)
        points = _floats(self.points, 4, "points")
        require(
            points.shape[3] == 2,
            "points",
            f"of shape {np.shape(self.points)}",
            "of shape (..., V, 2)",
        )
        window = None if self.window is None else np.asarray(self.window, np.int64)
        fine = window is None or (window.ndim == 2 and window.shape[1] == 2)
        require(fine, "window", f"of shape {np.shape(window)}", "of shape (T, 2)")
        _set_plain(self)
        _set(self, points=points, window=window, opacity=min(max(self.opacity, 0.0), 1.0))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.points,) if self.window is None else (self.points, self.window)


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """N short texts."""

    x: Any  # [T, N] or [N]
    y: Any  # [T, N] or [N], the middle of the line
    texts: Sequence[Any]  # N of them, or T sequences of N
    color: str = "text"
    size: float = 11.0  # px
    align: str = "center"
    bold: bool = False  # whether the letters are

    def __post_init__(self):
        require_known("color", self.color, COLORS)
        require_known("align", self.align, ALIGN)
        texts = (self.texts,) if all(isinstance(text, str) for text in self.texts) else self.texts
        texts = tuple(tuple(map(str, words)) for words in texts)
        both = {name: _floats(getattr(self, name), 2, name) for name in ("x", "y")}
        x, y = (np.broadcast_to(array, _require_alike(self, **both)) for array in both.values())
        counts = sorted({len(words) for words in texts})
        require(
            counts == [x.shape[1]],
            "texts",
            f"{counts} in a frame",
            f"{x.shape[1]}, as there are places",
        )
        _set_plain(self)
        _set(self, x=x, y=y, texts=texts)

    def arrays(self) -> tuple[Any, ...]:
        return self.x, self.y, self.texts


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """A map of one color, over a part of the ground: how dense it is in each of its cells."""

    opacity: Any  # [K, H, W] or [H, W], 0 to 1, the lowest row first
    extent: tuple[float, float, float, float]  # x, y of its lower left and upper right corner
    color: str = "blue"
    index: Any = 0  # [T] int, which of the K is shown

    def __post_init__(self):
        require_known("color", self.color, COLORS)
        opacity, index = _shade(self.opacity, 3), np.atleast_1d(np.asarray(self.index, np.int64))
        fine = np.all((index >= 0) & (index < len(opacity)))
        require(fine, "index", index, f"from 0 to {len(opacity) - 1}, as there are maps")
        _set_plain(self)
        _set(self, opacity=opacity, index=index, extent=_corners(self.extent))

    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.index,)


Mark = Shapes | Lines | Text | Field


@dataclasses.dataclass(frozen=True, eq=False)
class Series:
    """A curve of a plot."""

    values: Any  # [T]; NaN: a gap
    color: str = "blue"
    label: str = ""  # in the plot's legend; "": it is left out
    low: Any = None  # [T], of a band about it
    high: Any = None  # [T]

    def __post_init__(self):
        require_known("color", self.color, COLORS)
        curves = {
            name: value
            for name in ("values", "low", "high")
            if (value := getattr(self, name)) is not None
        }
        curves = {name: _floats(value, 1, name) for name, value in curves.items()}
        require(
            len(curves) in (1, 3) and "values" in curves,
            "low and high",
            sorted(curves),
            "given both, or neither",
        )
        _set_plain(self)
        _set(self, **curves)

    def arrays(self) -> list[np.ndarray]:
        return [array for array in (self.values, self.low, self.high) if array is not None]


@dataclasses.dataclass(frozen=True, eq=False)
class Plot:
    """Curves over time, of which a picture shows how far they have come."""

    title: str  # over the plot, with the unit
    series: Sequence[Series]  # at least one curve, the lowest first
    x: Any = None  # [T], what time is called here (years, say); None: the scene's time
    ylim: tuple[float, float] | None = None  # None: what the values need

    def __post_init__(self):
        require(self.series, "series", self.series, "at least one")
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
    """An episode as it is drawn.

    Raises:
        ValueError: where arrays are of another number of frames than there are captions, or there is neither an extent
            nor a plot; marks, plots and series raise where their own arrays do not fit, or a color is unknown.
    """

    marks: Sequence[Mark]  # the lowest first
    captions: Sequence[str]  # [T], over the picture
    extent: tuple[float, float, float, float] | None = None
    """x, y of the lower left and upper right corner"""
    time: Any = None  # [T] int, steps since the reset; None: 0, 1, ...
    axes: bool = True  # whether a frame with numbers stands around the ground
    equal: bool = True  # whether a unit is as long upwards as sideways
    xlabel: str = ""  # of the ground's axes, with the unit
    ylabel: str = ""  # likewise
    plots: Sequence[Plot] = ()  # beside the ground, or alone
    trail: int | None = None  # frames that a trail is long; None: the environment's `trail`
    obs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """group -> [T, n, D], what agents see"""

    def __post_init__(self):
        frames = len(self.captions)
        require(frames, "captions", list(self.captions), "one for each frame, at least one")
        time = np.arange(frames) if self.time is None else np.asarray(self.time)
        require(
            time.shape == (frames,),
            "time",
            f"of shape {time.shape}",
            f"of shape ({frames},), as there are captions",
        )
        require(np.isfinite(time).all(), "time", time, "finite")
        drawn = [*self.marks, *(series for plot in self.plots for series in plot.series)]
        for mark in drawn:
            for array in mark.arrays():
                name = f"an array of {type(mark).__name__}"
                require(
                    len(array) in (1, frames),
                    name,
                    f"of length {len(array)}",
                    f"of length 1 or {frames}",
                )
        require(
            self.extent is not None or self.plots,
            "extent",
            self.extent,
            "four numbers, where there are no plots",
        )
        if self.extent is not None:
            _set(self, extent=_corners(self.extent))
        if self.trail is not None:
            require_integer("trail", self.trail, 0)
            _set(self, trail=int(self.trail))
        _set_plain(self)
        plots = tuple(_of_frames(plot, frames) for plot in self.plots)
        _set(
            self,
            time=time,
            marks=tuple(self.marks),
            captions=tuple(map(str, self.captions)),
            plots=plots,
        )

    @property
    def num_frames(self) -> int:
        return len(self.captions)

    @property
    def trail_length(self) -> int:
        return TRAIL if self.trail is None else self.trail

    @property
    def legend(self) -> list[Shapes | Lines]:
        """The marks with a label, the highest first."""
        return [mark for mark in reversed(self.marks) if getattr(mark, "label", "")]


def _of_frames(plot: Plot, frames: int) -> Plot:
    """Returns the plot with all its curves [T]."""
    x = None if plot.x is None else np.asarray(plot.x, np.float64)
    fine = x is None or (x.shape == (frames,) and np.isfinite(x).all())
    require(fine, "x of a Plot", f"of shape {np.shape(x)}", f"of shape ({frames},), finite")

    def whole(array) -> np.ndarray | None:
        return None if array is None else np.broadcast_to(array, (frames,))

    series = tuple(
        dataclasses.replace(own, values=whole(own.values), low=whole(own.low), high=whole(own.high))
        for own in plot.series
    )
    return dataclasses.replace(plot, x=x, series=series)


def starts(time: Any) -> np.ndarray:
    """Returns of each frame the first one of its episode, [T]: time [T] goes on within one, and falls at a reset."""
    time = np.asarray(time)
    first = np.append(True, np.diff(time) <= 0)
    return np.maximum.accumulate(np.where(first, np.arange(len(time)), 0))


def so_far(time: Any) -> np.ndarray:
    """Returns the `Lines.window` of a path with a vertex a frame, [T, 2]: from the reset up to now. `time`: [T], steps
    since the reset."""
    return np.stack([starts(time), np.arange(len(time)) + 1], axis=1)


def at(array: Any, t: int) -> Any:
    """Returns frame t of a mark's array, whose leading axis is T, or 1 where it holds for all frames."""
    return array[t if len(array) > 1 else 0]


def is_static(mark: Mark) -> bool:
    """Returns whether a mark looks the same in all frames."""
    return all(len(array) == 1 for array in mark.arrays()) and not getattr(mark, "trail", False)


def turned(mark: Shapes, t: int) -> np.ndarray:
    """Returns the polygons of frame t, [N, V, 2] in units of the game."""
    angle, size = at(mark.angle, t)[:, None], at(mark.size, t)[:, None, :]
    place = np.stack([at(mark.x, t), at(mark.y, t)], axis=-1)[:, None, :]
    outline = mark.outline * size
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = outline[..., 0], outline[..., 1]
    return place + np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def trails(scene: Scene, mark: Shapes, t: int, each: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Returns the last steps of all places of a mark up to frame t ([K, N, 2, 2], NaN where none) and how strong each
    is ([K], 0 to 1): a full trail fades out, a short one is its newest part. `each`: steps that are one line."""
    first = max(t - scene.trail_length, int(starts(scene.time)[t]), 0)
    place = (
        np.stack(np.broadcast_arrays(mark.x, mark.y), axis=-1)[first : t + 1]
        if len(mark.x) > 1
        else ()
    )
    place = place[(len(place) - 1) % each :: each]
    if len(place) < 2:
        return np.zeros((0, 1, 2, 2)), np.zeros(0)
    strength = 1 - each * np.arange(len(place) - 1)[::-1] / scene.trail_length
    return np.stack([place[:-1], place[1:]], axis=2), strength
