"""Rendering of a scene to pixels.

Drawing calls matplotlib's Agg rasterizer directly, without figures and axes. These would take about
90 % of the time per frame.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from wdjax.drawing.frames import is_static
from wdjax.drawing.paint import (
    Rect,
    curves_of,
    draw_caption,
    draw_curves,
    draw_ground,
    draw_mark,
    draw_trail,
    lay_out,
)
from wdjax.drawing.scene import COLORS, Scene, Shapes

SHADES = 10  # number of opacity levels within a mark
MOVE, LINE, CLOSE = 1, 2, 79  # matplotlib's path codes


def rgb(color: str) -> tuple[float, float, float]:
    """Return the (red, green, blue) of a color in `COLORS` for light backgrounds, 0 to 1."""
    red, green, blue = (int(COLORS[color][0][i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


class Pixels:
    """A `Canvas` of (width, height) pixels with a white background."""

    def __init__(self, size: tuple[int, int]):
        from matplotlib.backends.backend_agg import RendererAgg
        from matplotlib.transforms import Affine2D

        self.size = size
        self.renderer = RendererAgg(*size, 72)  # 72 dpi: one point is one pixel
        self.flip = Affine2D().scale(1, -1).translate(0, size[1])
        self.array = np.asarray(self.renderer.buffer_rgba())  # [height, width, 4], a view
        self.array[:] = 255

    def _path(
        self,
        points: np.ndarray,
        closed: bool,
        color: str,
        opacity: float,
        width: float,
        fill: bool,
        dashed: bool = False,
    ) -> None:
        """Draw lines [N, V, 2] as one path."""
        from matplotlib.path import Path

        if closed:
            points = np.concatenate([points, points[:, :1]], axis=1)
        gc = self.renderer.new_gc()
        gc.set_linewidth(width)
        gc.set_foreground((*rgb(color), opacity), isRGBA=True)
        gc.set_joinstyle("round")
        gc.set_capstyle("butt" if dashed or opacity < 1 else "round")
        gc.set_snap(False)
        if dashed:
            gc.set_dashes(0, (3.5 * width, 2.2 * width))
        gc.set_antialiased(True)
        path = Path(points.reshape(-1, 2), path_codes(*points.shape[:2], closed))
        self.renderer.draw_path(gc, path, self.flip, (*rgb(color), opacity) if fill else None)

    def polygons(
        self, points: np.ndarray, color: str, opacity: Any, stroke: float, edge: bool
    ) -> None:
        """Fill polygons [N, V, 2] with opacities [N], or draw their outlines if `stroke` > 0."""
        shades = np.round(np.asarray(opacity) * SHADES).astype(int) * (points.shape[1] > 0)
        for shade in np.unique(shades[shades > 0]):
            polygons = points[shades == shade]
            if edge:
                self._path(polygons, True, "paper", 1.0, 1.2, fill=False)
            self._path(polygons, True, color, shade / SHADES, stroke, fill=not stroke)

    def lines(
        self, points: np.ndarray, color: str, width: float, opacity: float, dashed: bool
    ) -> None:
        """Draw polylines [N, V, 2], with gaps at NaN."""
        if len(points) and points.shape[1] > 1:
            self._path(points, False, color, opacity, width, fill=False, dashed=dashed)

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
        strength = letters(text, round(2 * size) / 2, bold) / np.float32(255)
        strength = np.rot90(strength) if upwards else strength
        height, width = strength.shape
        left = (
            round(x - {"left": 0, "center": width / 2, "right": width}[align])
            if not upwards
            else round(x - width / 2)
        )
        self._blend(left, round(y - height / 2), strength, color)

    def image(self, rect: Rect, opacity: np.ndarray, color: str) -> None:
        """Fill a rectangle with one color and opacities [H, W], top row first."""
        x, y, right, bottom = (
            round(rect[0]),
            round(rect[1]),
            round(rect[0] + rect[2]),
            round(rect[1] + rect[3]),
        )
        self._blend(
            x, y, enlarged(opacity.tobytes(), opacity.shape, (right - x, bottom - y)), color
        )

    def _blend(self, left: int, top: int, strength: np.ndarray, color: str) -> None:
        """Blend a color into pixels with opacities [h, w] float32, clipped to the canvas."""
        height, width = strength.shape
        part = self.array[
            max(0, top) : max(0, top + height), max(0, left) : max(0, left + width), :3
        ]
        opacity = strength[max(0, -top) :, max(0, -left) :][: part.shape[0], : part.shape[1], None]
        part[:] = part + opacity * (255 * np.array(rgb(color), np.float32) - part) + 0.5


@functools.lru_cache(256)
def path_codes(count: int, vertices: int, closed: bool) -> np.ndarray:
    """Return matplotlib's codes for `count` lines of `vertices` each, [count * vertices] uint8."""
    codes = np.full((count, vertices), LINE, np.uint8)
    codes[:, 0] = MOVE
    codes[:, -1] = CLOSE if closed else codes[:, -1]
    return codes.reshape(-1)


@functools.lru_cache(256)
def letters(text: str, size: float, bold: bool) -> np.ndarray:
    """Return the coverage of a rendered text, [h, w] uint8.

    h depends on the font size and the number of lines, but not on the letters.
    """
    from PIL import Image, ImageDraw

    font = load_font(size, bold)
    ascent, descent = font.getmetrics()
    lines = text.split("\n")
    width = max(1, round(max(font.getlength(line) for line in lines)))
    image = Image.new("L", (width, (ascent + descent + 1) * len(lines)))
    ImageDraw.Draw(image).multiline_text(
        (width / 2, 0), text, 255, font, "ma", spacing=1, align="center"
    )
    return np.asarray(image)


@functools.lru_cache
def load_font(size: float, bold: bool) -> Any:
    """Return matplotlib's copy of DejaVu Sans at `size` pixels."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' * bold}.ttf", size)


@functools.lru_cache(32)
def enlarged(cells: bytes, shape: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Scale cells to [height, width] float32 by nearest neighbor.

    Args:
        cells: The bytes of float64 cells (hashable, for the cache).
        shape: The shape of the cells, (rows, columns).
        size: (width, height) in pixels.
    """
    rows, columns = (np.arange(size[i]) * shape[1 - i] // size[i] for i in (1, 0))
    return np.frombuffer(cells, np.float64).reshape(shape)[rows][:, columns].astype(np.float32)


def draw_frames(
    scene: Scene, frames: Iterable[int], size: tuple[int, int] | None = None
) -> Iterator[np.ndarray]:
    """Yield the picture of each frame, [height, width, 4] uint8.

    All frames share one buffer: copy a picture to keep it.

    Args:
        scene: The scene to draw.
        frames: The indices of the frames.
        size: (width, height) in pixels. None: 640 wide, and as high as needed.
    """
    layout = lay_out(scene, size)
    canvas = Pixels(layout.size)
    draw_ground(canvas, scene, layout)
    still = next((i for i, mark in enumerate(scene.marks) if not is_static(mark)), len(scene.marks))
    for mark in scene.marks[:still]:
        draw_mark(canvas, scene, layout, mark, 0)
    backdrop, curves = canvas.array.copy(), curves_of(scene, layout)
    for t in frames:
        canvas.array[:] = backdrop
        for mark in scene.marks[still:]:
            if isinstance(mark, Shapes) and mark.trail:
                draw_trail(canvas, scene, layout, mark, t)
        for mark in scene.marks[still:]:
            draw_mark(canvas, scene, layout, mark, t)
        draw_caption(canvas, scene, layout, t)
        draw_curves(canvas, curves, layout.unit, t)
        yield canvas.array


def picture(scene: Scene, t: int = -1, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the picture of one frame, [height, width, 3] uint8."""
    (pixels,) = draw_frames(scene, [range(scene.num_frames)[t]], size)
    return pixels[..., :3].copy()
