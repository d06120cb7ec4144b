"""Animated SVG of a scene (SMIL), for pages that do not run scripts, such as GitHub's.

To limit the file size, positions are stored for at most `FRAMES` frames (fewer with many agents)
and interpolated in between, and trails are left out. The colors follow the reader's light or dark
setting.
"""

import base64
import io
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from wdjax.drawing.paint import (
    CROWD,
    Layout,
    Rect,
    curves_of,
    draw_ground,
    draw_mark,
    lay_out,
)
from wdjax.drawing.scene import COLORS, DISC, Lines, Mark, Scene, Shapes, Text, at, is_static

MOST = 20_000  # maximum number of stored positions: moving items and vertices times frames
FRAMES = 200  # maximum number of frames
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
                self.parts.append(
                    f'<path d="{path_of(polygons, True)}" {look(color, stroke, edge)} opacity="{shade:g}"/>'
                )

    def lines(
        self, points: np.ndarray, color: str, width: float, opacity: float, dashed: bool
    ) -> None:
        """Draw polylines [N, V, 2], with gaps at NaN."""
        if len(points) and points.shape[1] > 1:
            self.parts.append(
                f'<path d="{path_of(points, False)}" {line_look(color, width, opacity, dashed)}/>'
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
            f'<text x="{x:.1f}" y="{top + 1.16 * i * size:.1f}" font-size="{size:.1f}" text-anchor="{anchor}" '
            f'class="{color}"{weight}{turn}>{escape(line)}</text>'
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
            f'<mask id="{name}" maskUnits="userSpaceOnUse" {place}><image {place} preserveAspectRatio="none" '
            f'style="image-rendering: pixelated" href="data:image/png;base64,{data}"/></mask>'
            f'<rect {place} class="{color}" mask="url(#{name})"/>'
        )


def look(color: str, stroke: float, edge: bool) -> str:
    """Return the SVG attributes of a filled shape, or of an outline if `stroke` > 0."""
    if stroke:
        return f'fill="none" stroke-width="{stroke:g}" class="s-{color}"'
    return f'class="{color} edge"' if edge else f'class="{color}"'


def line_look(color: str, width: float, opacity: float, dashed: bool) -> str:
    """Return the SVG attributes of a line."""
    dashes = f' stroke-dasharray="{3.5 * width:.1f} {2.2 * width:.1f}"' if dashed else ""
    return (
        f'fill="none" class="s-{color}" stroke-width="{width:.3g}" opacity="{opacity:.2g}"{dashes}'
    )


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

    Long scenes are thinned to at most `FRAMES` frames, without changing the playback speed.

    Args:
        scene: The scene to draw.
        fps: Frames of the scene per second.
        hold: Seconds for which the last frame is shown.
        size: (width, height) in pixels. None: 640 wide, and as high as needed.
    """
    layout = lay_out(scene, size)
    count = sum(
        mark.x.shape[1] for mark in scene.marks if isinstance(mark, Shapes) and not is_static(mark)
    )
    count += sum(
        mark.points[0].size // 2
        for mark in scene.marks
        if isinstance(mark, Lines) and not is_static(mark)
    )
    most = max(2, min(FRAMES, MOST // max(1, count)))
    frames = np.unique(
        np.linspace(0, scene.num_frames - 1, min(scene.num_frames, most)).round().astype(int)
    )
    seconds = (scene.num_frames - 1) / fps + hold
    clock = Clock(frames, frames / fps / seconds if seconds else np.zeros(1), seconds)
    canvas = Svg()
    draw_ground(canvas, scene, layout)
    for mark in scene.marks:
        if is_static(mark):
            draw_mark(canvas, scene, layout, mark, 0)
        else:
            _move_mark(canvas, scene, layout, mark, clock)
    _move_curves(canvas, scene, layout, clock)
    x, top = layout.caption

    def write(canvas: Svg, t: int) -> None:
        k, caption = layout.unit, scene.captions[t]
        canvas.text(
            x, top - (4 + 8.5 * (1 + caption.count("\n"))) * k, caption, 14 * k, "text", "center"
        )

    _switch(canvas, clock, [scene.captions[t] for t in frames], write)
    width, height = layout.size
    light, dark = (
        "".join(
            f".{name}{{fill:{tones[i]}}}.s-{name}{{stroke:{tones[i]}}}"
            for name, tones in COLORS.items()
        )
        + f".edge{{stroke:{COLORS['paper'][i]};stroke-width:.6}}"
        for i in (0, 1)
    )
    style = f"{light}@media(prefers-color-scheme:dark){{{dark}}}text{{font-family:DejaVu Sans,Verdana,sans-serif}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{style}</style><rect width="100%" height="100%" class="paper"/>{"".join(canvas.parts)}</svg>\n'
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
        self, what: str, values: Iterable[str], times: Any = None, glide: bool = False
    ) -> str:
        """Return an SVG element that animates an attribute.

        Args:
            what: The attribute, or "transform:<type>".
            values: One value per time.
            times: Fractions of the duration. None: the times of the frames.
            glide: Whether to interpolate between the values.
        """
        times, values = list(self.times if times is None else times), list(values)
        if glide:  # hold the last value until the end
            times, values = [*times, 1.0], [*values, values[-1]]
        kind, mode = what.split(":"), "linear" if glide else "discrete"
        name = (
            f'Transform attributeName="transform" type="{kind[1]}"'
            if kind[1:]
            else f' attributeName="{kind[0]}"'
        )
        keys = ";".join(f"{time:.4f}".rstrip("0").rstrip(".") or "0" for time in times)
        return (
            f'<animate{name} values="{";".join(values)}" keyTimes="{keys}" calcMode="{mode}" '
            f'dur="{self.seconds:.2f}s" repeatCount="indefinite"/>'
        )


def _switch(
    canvas: Svg, clock: Clock, keys: Sequence[Any], draw: Callable[[Svg, int], None]
) -> None:
    """Draw frames in sequence, once for each run of equal keys."""
    begins = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]]
    if len(begins) == 1:
        return draw(canvas, int(clock.frames[0]))
    for begin, end in zip(begins, [*begins[1:], None], strict=True):
        frame = Svg()
        draw(frame, int(clock.frames[begin]))
        spans = ([] if begin == 0 else [(0.0, "0")]) + [(clock.times[begin], "1")]
        spans += [] if end is None else [(clock.times[end], "0")]
        shown = clock.animate("opacity", [value for _, value in spans], [time for time, _ in spans])
        canvas.parts += [f'<g opacity="{int(begin == 0)}">', *frame.parts, shown, "</g>"]


def _move_mark(canvas: Svg, scene: Scene, layout: Layout, mark: Mark, clock: Clock) -> None:
    """Draw an animated mark."""
    if isinstance(mark, Shapes):
        return _move_shapes(canvas, scene, layout, mark, clock)

    def draw(target: Svg, t: int) -> None:
        draw_mark(target, scene, layout, mark, t)

    if isinstance(mark, Lines):
        paths = []
        for t in clock.frames:
            frame = Svg()
            draw(frame, t)
            paths.append(frame.parts[0].split('"')[1] if frame.parts else "M0 0")
        style = line_look(mark.color, mark.width * layout.unit, mark.opacity, mark.dashed)
        canvas.parts.append(f'<path d="{paths[0]}" {style}>{clock.animate("d", paths)}</path>')
    elif isinstance(mark, Text):
        keys = [
            (at(mark.texts, t), at(mark.x, t).tobytes(), at(mark.y, t).tobytes())
            for t in clock.frames
        ]
        _switch(canvas, clock, keys, draw)
    else:
        _switch(canvas, clock, [at(mark.index, t) for t in clock.frames], draw)


def _move_shapes(canvas: Svg, scene: Scene, layout: Layout, mark: Shapes, clock: Clock) -> None:
    """Draw animated shapes: a moving group per item, with a nested rotation and scaling."""
    # Pixels per environment unit along x and y. The y component is negative, as pixels count down.
    scale = layout.place(scene, np.ones(2)) - layout.place(scene, np.zeros(2))
    full = (scene.num_frames, mark.x.shape[1])

    def take(array) -> np.ndarray:
        return np.broadcast_to(array, (*full, *array.shape[2:]))[clock.frames]

    positions = layout.place(scene, take(np.stack([mark.x, mark.y], axis=-1)))
    angles, sizes = take(mark.angle), take(mark.size)
    valid = (
        np.isfinite(positions).all(axis=-1) & np.isfinite(angles) & np.isfinite(sizes).all(axis=-1)
    )
    opacities = take(mark.opacity) * valid
    edge = mark.edge and full[1] <= CROWD
    for i in range(full[1]):
        if not opacities[:, i].any():
            continue
        shown = valid[:, i]
        # Hidden frames repeat the last visible values, so that the animation has no gaps.
        known = np.maximum.accumulate(np.where(shown, np.arange(len(shown)), np.argmax(shown)))
        filled, size = positions[known, i], sizes[known, i]
        degrees = -np.degrees(np.unwrap(angles[known, i]))
        animations, inner = "", ""
        biggest = np.abs(size).max(axis=0)
        path = path_of((mark.outline * biggest * scale)[None], True)
        if np.ptp(size, axis=0).any():
            share = size / np.where(biggest > 0, biggest, 1)
            inner += clock.animate(
                "transform:scale", [f"{w:.3g} {h:.3g}" for w, h in share], glide=True
            )
        outline = (
            f'<path d="{path}" {look(mark.color, mark.stroke * layout.unit, edge)}>{inner}</path>'
        )
        if degrees.any():
            turn = clock.animate(
                "transform:rotate", [f"{angle:.0f}" for angle in degrees], glide=True
            )
            outline = f'<g transform="rotate({degrees[0]:.0f})">{outline}{turn}</g>'
        move = [f"{x:.1f} {y:.1f}" for x, y in filled]
        if len(set(move)) > 1:
            animations += clock.animate("transform:translate", move, glide=True)
        change = [j for j in range(len(shown)) if j == 0 or opacities[j, i] != opacities[j - 1, i]]
        if len(change) > 1:
            values = [f"{opacities[j, i]:.2g}" for j in change]
            animations += clock.animate("opacity", values, clock.times[change])
        canvas.parts.append(
            f'<g transform="translate({move[0]})" opacity="{opacities[0, i]:.2g}">{outline}{animations}</g>'
        )


def _move_curves(canvas: Svg, scene: Scene, layout: Layout, clock: Clock) -> None:
    """Draw the complete curves of all plots, each with a dot that follows its current value."""
    k = layout.unit
    for color, points in curves_of(scene, layout):
        canvas.lines(points[None], color, 1.5 * k, 0.8, False)
        dots = points[clock.frames]
        dots = (
            dots[np.isfinite(dots).all(axis=-1)]
            if len(dots) == 1
            else np.where(np.isfinite(dots), dots, -99.0)
        )
        if len(dots):
            move = [f"{a:.1f} {b:.1f}" for a, b in dots]
            shape = f'<path d="{path_of(3 * k * DISC[None], True)}" class="{color}"/>'
            moving = clock.animate("transform:translate", move, glide=True) if len(move) > 1 else ""
            canvas.parts.append(f'<g transform="translate({move[0]})">{shape}{moving}</g>')
