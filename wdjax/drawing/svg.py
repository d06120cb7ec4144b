"""Animated SVG of a scene (SMIL), for pages that do not run scripts, such as GitHub's.

To limit the file size, positions are stored for at most `FRAMES` frames (fewer with many agents)
and interpolated in between, and trails are left out. Of more than `STILL` moving items, the SVG
shows only the last frame and states this. The colors follow the reader's light or dark setting.
"""

import base64
import dataclasses
import io
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from wdjax.drawing.frames import is_static
from wdjax.drawing.paint import (
    CROWD,
    Layout,
    Rect,
    curves_of,
    draw_caption,
    draw_ground,
    draw_mark,
    lay_out,
)
from wdjax.drawing.scene import COLORS, DISC, Lines, Scene, Shapes

MOST = 20_000  # maximum number of stored positions: moving items and vertices times frames
FRAMES = 200  # maximum number of frames
STILL = 2_000  # number of moving items above which fewer than 10 frames would be stored
NOTICE = "Last frame only: too many agents for an animated SVG.\nUse .html, .gif or .mp4."
# Control characters and unpaired surrogates, which XML does not allow.
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Svg:
    """A `Canvas` that collects SVG elements."""

    def __init__(self):
        self.parts: list[str] = []

    def polygons(
        self, points: np.ndarray, color: str, opacity: Any, stroke: float, edge: bool
    ) -> None:
        """Fill polygons [N, V, 2] with opacities [N], or draw their outlines if `stroke` > 0."""
        for shade in np.unique(np.round(opacity, 2)):
            polygons = points[np.round(opacity, 2) == shade]
            if shade > 0 and len(polygons):
                style = look(color, stroke, edge)
                self.parts.append(
                    f'<path d="{path_of(polygons, True)}" {style} opacity="{shade:g}"/>'
                )

    def lines(
        self, points: np.ndarray, color: str, width: float, opacity: float, dashed: bool
    ) -> None:
        """Draw polylines [N, V, 2], with gaps at NaN."""
        if len(points) and points.shape[1] > 1:
            dashes = f' stroke-dasharray="{3.5 * width:.1f} {2.2 * width:.1f}"' if dashed else ""
            self.parts.append(
                f'<path d="{path_of(points, False)}" fill="none" class="s-{color}" '
                f'stroke-width="{width:.3g}" opacity="{opacity:.2g}"{dashes}/>'
            )

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
        """Draw one or more lines of text, vertically centered at y."""
        anchor = {"left": "start", "center": "middle", "right": "end"}[align]
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upwards else ""
        weight = ' font-weight="bold"' if bold else ""
        lines = NOT_XML.sub("", text).split("\n")
        top = y + (0.35 - 0.58 * (len(lines) - 1)) * size
        self.parts += [
            f'<text x="{x:.1f}" y="{top + 1.16 * i * size:.1f}" font-size="{size:.1f}" '
            f'text-anchor="{anchor}" class="{color}"{weight}{turn}>{escape(line)}</text>'
            for i, line in enumerate(lines)
            if line
        ]

    def image(self, rect: Rect, opacity: np.ndarray, color: str) -> None:
        """Fill a rectangle with one color and opacities [H, W], top row first."""
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(np.round(255 * opacity).astype(np.uint8)).save(file, "PNG")
        x, y, width, height = rect
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        data = base64.b64encode(file.getvalue()).decode()
        name = f"m{zlib.crc32((place + data).encode()):08x}"
        # A mask lets the style sheet choose the light or the dark tone of the color.
        self.parts.append(
            f'<mask id="{name}" maskUnits="userSpaceOnUse" {place}><image {place} '
            'preserveAspectRatio="none" style="image-rendering: pixelated" '
            f'href="data:image/png;base64,{data}"/></mask>'
            f'<rect {place} class="{color}" mask="url(#{name})"/>'
        )


def look(color: str, stroke: float, edge: bool) -> str:
    """Return the SVG attributes of a filled shape, or of an outline if `stroke` > 0."""
    if stroke:
        return f'fill="none" stroke-width="{stroke:g}" class="s-{color}"'
    return f'class="{color} edge"' if edge else f'class="{color}"'


def path_of(points: np.ndarray, closed: bool) -> str:
    """Return the SVG path data of lines [N, V, 2], with gaps at NaN."""
    commands = []
    for line in points:
        pen = False
        for x, y in line:
            if np.isfinite(x + y):
                commands.append(f"{'L' if pen else 'M'}{x:.1f} {y:.1f}")
            pen = bool(np.isfinite(x + y))
        commands.append("Z" * closed)
    return "".join(commands)


def to_svg(
    scene: Scene, fps: float = 12.0, hold: float = 1.5, size: tuple[int, int] | None = None
) -> str:
    """Return a looping SVG animation of a scene.

    Long scenes are thinned to at most `FRAMES` frames, without changing the playback speed. Scenes
    with more than `STILL` moving items become a picture of the last frame, with a notice.

    Args:
        scene: The scene to draw.
        fps: Frames of the scene per second.
        hold: Seconds for which the last frame is shown.
        size: (width, height) in pixels. None: 640 wide, and as high as needed.
    """
    is_still = _moving_items(scene) > STILL and scene.num_frames > 1
    if is_still:
        captions = [f"{caption}\n{NOTICE}" for caption in scene.captions]
        scene = dataclasses.replace(scene, captions=captions)
    layout, clock = lay_out(scene, size), _clock_of(scene, fps, hold, is_still)
    canvas = Svg()
    draw_ground(canvas, scene, layout)
    for mark in scene.marks:
        if is_still or is_static(mark):
            draw_mark(canvas, scene, layout, mark, int(clock.frames[-1]))
        elif isinstance(mark, Shapes):
            _move_shapes(canvas, scene, layout, mark, clock)
        else:
            _switch(canvas, clock, draw_mark, scene, layout, mark)
    _move_curves(canvas, scene, layout, clock)
    _switch(canvas, clock, draw_caption, scene, layout)
    width, height = layout.size
    light, dark = (
        "".join(
            f".{name}{{fill:{tones[i]}}}.s-{name}{{stroke:{tones[i]}}}"
            for name, tones in COLORS.items()
        )
        + f".edge{{stroke:{COLORS['paper'][i]};stroke-width:.6}}"
        for i in (0, 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">'
        f"<style>{light}@media(prefers-color-scheme:dark){{{dark}}}"
        "text{font-family:DejaVu Sans,Verdana,sans-serif}</style>"
        f'<rect width="100%" height="100%" class="paper"/>{"".join(canvas.parts)}</svg>\n'
    )


class Clock:
    """The frames of an animation and their start times.

    Args:
        frames: [F] int, indices of the frames.
        times: [F], start of each frame as a fraction of the duration.
        seconds: Duration of one loop.
    """

    def __init__(self, frames: np.ndarray, times: np.ndarray, seconds: float):
        self.frames, self.times, self.seconds = frames, times, seconds

    def animate(
        self, what: str, values: Iterable[str], times: Iterable[float], mode: str = "discrete"
    ) -> str:
        """Return an SVG element that animates an attribute.

        Args:
            what: The attribute, or "transform:<type>".
            values: One value per time.
            times: Fractions of the duration.
            mode: "discrete", or "linear" to interpolate between the values.
        """
        name, _, kind = what.partition(":")
        tag = f'animateTransform attributeName="{name}" type="{kind}"'
        tag = tag if kind else f'animate attributeName="{name}"'
        keys = ";".join(f"{time:.4f}".rstrip("0").rstrip(".") or "0" for time in times)
        return (
            f'<{tag} values="{";".join(values)}" keyTimes="{keys}" calcMode="{mode}" '
            f'dur="{self.seconds:.2f}s" repeatCount="indefinite"/>'
        )

    def glide(self, kind: str, values: list[str]) -> str:
        """Return an SVG element that moves smoothly between transforms, one per frame.

        The last one is held until the end. Return "" if all are equal.
        """
        if len(set(values)) == 1:
            return ""
        held = ([*values, values[-1]], [*self.times, 1.0])
        return self.animate(f"transform:{kind}", *held, mode="linear")


def _moving_items(scene: Scene) -> int:
    """Return the number of items of all marks with `Shapes` that move."""
    shapes = [mark for mark in scene.marks if isinstance(mark, Shapes)]
    return sum(mark.x.shape[1] for mark in shapes if not is_static(mark))


def _clock_of(scene: Scene, fps: float, hold: float, is_still: bool) -> Clock:
    """Return the frames of an animation: fewer than the scene's if many positions move."""
    lines = [mark for mark in scene.marks if isinstance(mark, Lines) and not is_static(mark)]
    positions = _moving_items(scene) + sum(mark.points[0].size // 2 for mark in lines)
    count = min(scene.num_frames, max(2, min(FRAMES, MOST // max(1, positions))))
    first = scene.num_frames - 1 if is_still else 0
    frames = np.unique(np.linspace(first, scene.num_frames - 1, count).round().astype(int))
    seconds = (scene.num_frames - 1) / fps + hold
    return Clock(frames, frames / fps / seconds if seconds else np.zeros(1), seconds)


def _switch(canvas: Svg, clock: Clock, draw: Callable[..., None], *what: Any) -> None:
    """Draw frames in sequence by draw(canvas, *what, t), each run of equal frames once."""
    parts = []
    for t in clock.frames:
        frame = Svg()
        draw(frame, *what, int(t))
        parts.append("".join(frame.parts))
    begins = [i for i in range(len(parts)) if i == 0 or parts[i] != parts[i - 1]]
    if len(begins) == 1:
        canvas.parts.append(parts[0])
        return
    for begin, end in zip(begins, [*begins[1:], None], strict=True):
        spans = ([] if begin == 0 else [(0.0, "0")]) + [(clock.times[begin], "1")]
        spans += [] if end is None else [(clock.times[end], "0")]
        shown = clock.animate("opacity", [value for _, value in spans], [time for time, _ in spans])
        canvas.parts.append(f'<g opacity="{int(begin == 0)}">{parts[begin]}{shown}</g>')


def _move_shapes(canvas: Svg, scene: Scene, layout: Layout, mark: Shapes, clock: Clock) -> None:
    """Draw animated shapes: a moving group per item, with a nested rotation and scaling."""
    # Pixels per environment unit along x and y. The y component is negative, as pixels count down.
    scale = layout.place(scene, np.ones(2)) - layout.place(scene, np.zeros(2))
    full = (scene.num_frames, mark.x.shape[1])

    def take(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array, (*full, *array.shape[2:]))[clock.frames]

    positions = layout.place(scene, take(np.stack([mark.x, mark.y], axis=-1)))
    angles, sizes = take(mark.angle), take(mark.size)
    numbers = np.concatenate([positions, angles[..., None], sizes], axis=-1)
    valid = np.isfinite(numbers).all(axis=-1)
    opacities = take(mark.opacity) * valid
    style = look(mark.color, mark.stroke * layout.unit, mark.edge and full[1] <= CROWD)
    for i in np.flatnonzero(opacities.any(axis=0)):
        # Hidden frames repeat the last visible values, so that the animation has no gaps.
        shown = np.where(valid[:, i], np.arange(len(valid)), np.argmax(valid[:, i]))
        known = np.maximum.accumulate(shown)
        size, opacity = sizes[known, i], opacities[:, i]
        degrees = -np.degrees(np.unwrap(angles[known, i]))
        biggest = np.abs(size).max(axis=0)
        shares = [f"{w:.3g} {h:.3g}" for w, h in size / np.where(biggest > 0, biggest, 1)]
        path = path_of((mark.outline * biggest * scale)[None], True)
        outline = f'<path d="{path}" {style}>{clock.glide("scale", shares)}</path>'
        if degrees.any():
            turn = clock.glide("rotate", [f"{angle:.0f}" for angle in degrees])
            outline = f'<g transform="rotate({degrees[0]:.0f})">{outline}{turn}</g>'
        move = [f"{x:.1f} {y:.1f}" for x, y in positions[known, i]]
        animations = clock.glide("translate", move)
        change = [j for j in range(len(opacity)) if j == 0 or opacity[j] != opacity[j - 1]]
        if len(change) > 1:
            values = [f"{opacity[j]:.2g}" for j in change]
            animations += clock.animate("opacity", values, clock.times[change])
        canvas.parts.append(
            f'<g transform="translate({move[0]})" opacity="{opacity[0]:.2g}">'
            f"{outline}{animations}</g>"
        )


def _move_curves(canvas: Svg, scene: Scene, layout: Layout, clock: Clock) -> None:
    """Draw the complete curves of all plots, each with a dot that follows its current value."""
    width, height = layout.size
    # A world in pixels, with y upwards, so that the dots are shapes like any other.
    pixels = dataclasses.replace(layout, world=(0, 0, width, height))
    scene = dataclasses.replace(scene, extent=(0, 0, width, height), margin=0.0)
    for series, points in curves_of(scene, layout):
        wide, color = series.wide, series.color
        canvas.lines(points[None], color, (2.5 * wide - 1) * layout.unit, 0.8, False)
        x, y = points[:, :1], height - points[:, 1:]
        _move_shapes(
            canvas, scene, pixels, Shapes(x, y, DISC, (2 + wide) * layout.unit, 0, color), clock
        )
