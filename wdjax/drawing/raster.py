"""Pictures of a scene as pixels, and GIFs with one palette for all frames.

matplotlib's rasteriser (Agg) draws them, without its figures and axes: those were nine tenths of a frame's time.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wdjax.drawing.paint import (
    Layout,
    Rect,
    curves_of,
    draw_curves,
    draw_ground,
    draw_mark,
    draw_trail,
    lay_out,
)
from wdjax.drawing.scene import COLORS, Scene, Shapes, is_static

if TYPE_CHECKING:
    from PIL.Image import Image

PALETTE_COLORS = 256  # of a GIF, shared by its frames
SHADES = 10  # of opacity, that are told apart within a mark
COARSE = 0xFCFCFC
MOVE, LINE, CLOSE = 1, 2, 79  # matplotlib's codes of a path


def rgb(color: str) -> tuple[float, float, float]:
    """Returns the tone on light ground of a name of `COLORS`, 0 to 1."""
    code = COLORS[color][0]
    return tuple(int(code[i : i + 2], 16) / 255 for i in (1, 3, 5))


class Pixels:
    """A `Canvas` of (width, height) pixels; light."""

    def __init__(self, size: tuple[int, int]):
        from matplotlib.backends.backend_agg import RendererAgg
        from matplotlib.transforms import Affine2D

        self.size = size
        self.renderer = RendererAgg(*size, 72)  # dots an inch: a point is a pixel
        self.flip = Affine2D().scale(1, -1).translate(0, size[1])
        self.array = np.asarray(self.renderer.buffer_rgba())  # [height, width, 4], what is drawn
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
        """Draws [N, V, 2] as one path."""
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
        shades = np.round(np.asarray(opacity) * SHADES).astype(int) * (points.shape[1] > 0)
        for shade in np.unique(shades[shades > 0]):
            own = points[shades == shade]
            if edge:
                self._path(own, True, "paper", 1.0, 1.2, fill=False)
            self._path(own, True, color, shade / SHADES, stroke, fill=not stroke)

    def lines(
        self, points: np.ndarray, color: str, width: float, opacity: float, dashed: bool
    ) -> None:
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
        """Covers pixels with a color, as densely as [h, w] float32 says; what lies outside is left out."""
        height, width = strength.shape
        part = self.array[
            max(0, top) : max(0, top + height), max(0, left) : max(0, left + width), :3
        ]
        own = strength[max(0, -top) :, max(0, -left) :][: part.shape[0], : part.shape[1], None]
        part[:] = part + own * (255 * np.array(rgb(color), np.float32) - part) + 0.5


@functools.lru_cache(256)
def path_codes(count: int, vertices: int, closed: bool) -> np.ndarray:
    """Returns matplotlib's codes of a path of `count` lines, each of so many vertices, [count * vertices] uint8."""
    codes = np.full((count, vertices), LINE, np.uint8)
    codes[:, 0] = MOVE
    codes[:, -1] = CLOSE if closed else codes[:, -1]
    return codes.reshape(-1)


@functools.lru_cache(256)
def letters(text: str, size: float, bold: bool) -> np.ndarray:
    """Returns how dense a text's pixels are, [h, w] uint8; h does not depend on the text."""
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
    """Returns DejaVu Sans, which comes with matplotlib, `size` pixels high."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' * bold}.ttf", size)


@functools.lru_cache(32)
def enlarged(cells: bytes, shape: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Returns float64 cells as [height, width] float32, each a rectangle with sharp edges."""
    rows, columns = (np.arange(size[i]) * shape[1 - i] // size[i] for i in (1, 0))
    return np.frombuffer(cells, np.float64).reshape(shape)[rows][:, columns].astype(np.float32)


def draw_frames(
    scene: Scene, frames: Iterable[int], size: tuple[int, int] | None = None
) -> Iterator[np.ndarray]:
    """Yields the pictures of these frames, [height, width, 4] uint8, each of which the next one overwrites."""
    layout = lay_out(scene, size)
    canvas = Pixels(layout.size)
    draw_ground(canvas, scene, layout)
    still = next((i for i, mark in enumerate(scene.marks) if not is_static(mark)), len(scene.marks))
    for mark in scene.marks[:still]:
        draw_mark(canvas, scene, layout, mark, 0)
    backdrop, curves = canvas.array.copy(), curves_of(scene, layout)
    for t in frames:
        canvas.array[:] = backdrop
        draw_frame(canvas, scene, layout, t, still)
        draw_curves(canvas, curves, layout.unit, t)
        yield canvas.array


def draw_frame(canvas: Pixels, scene: Scene, layout: Layout, t: int, still: int) -> None:
    """Draws what frame t has over the first `still` marks."""
    for mark in scene.marks[still:]:
        if isinstance(mark, Shapes) and mark.trail:
            draw_trail(canvas, scene, layout, mark, t)
    for mark in scene.marks[still:]:
        draw_mark(canvas, scene, layout, mark, t)
    x, top = layout.caption
    lines = 1 + scene.captions[t].count("\n")
    canvas.text(
        x,
        top - (5 + 8.5 * lines) * layout.unit,
        scene.captions[t],
        14 * layout.unit,
        "text",
        "center",
    )


def picture(scene: Scene, t: int = -1, size: tuple[int, int] | None = None) -> np.ndarray:
    """Returns the picture of a frame, [height, width, 3] uint8."""
    (pixels,) = draw_frames(scene, [range(scene.num_frames)[t]], size)
    return pixels[..., :3].copy()


def codes_of(pixels: np.ndarray) -> np.ndarray:
    """Returns a number for each color of [..., 4] uint8: red + 2^8 green + 2^16 blue, looked up faster than three."""
    return pixels.view("<u4")[..., 0] & 0xFFFFFF


def colors_of(code: np.ndarray) -> np.ndarray:
    """Returns the colors [..., 3] uint8, red, green, blue, of such numbers [...]."""
    return np.ascontiguousarray(code, "<u4")[..., None].view(np.uint8)[..., :3]


def choose_palette(frames: Iterable[np.ndarray], keep: Iterable[str] = ()) -> np.ndarray:
    """Returns the colors, [at most PALETTE_COLORS, 3] uint8, that stand for those of frames of numbers (`codes_of`).

    Those named in `keep` (of `COLORS`) and the commonest, those of whole surfaces, stay as they are, so that thin lines
    are not dulled; the others stand for many, as at smoothed edges.
    """
    from PIL import Image

    codes, counts = np.unique(
        np.concatenate([frame.reshape(-1) for frame in frames]), return_counts=True
    )
    if len(codes) <= PALETTE_COLORS:
        return colors_of(codes)
    kept = [
        sum(int(COLORS[name][0][i : i + 2], 16) << 4 * (i - 1) for i in (1, 3, 5)) for name in keep
    ]
    commonest = codes[np.argsort(-counts, kind="stable")[: PALETTE_COLORS // 4]]
    exact = np.array(list(dict.fromkeys([*kept, *commonest.tolist()])), codes.dtype)
    # each once: rare hues count as well
    shades = Image.fromarray(colors_of(np.setdiff1d(codes, exact))[None])
    shades = shades.quantize(
        PALETTE_COLORS - len(exact), kmeans=1, dither=Image.Dither.NONE
    ).getpalette()
    return np.concatenate([colors_of(exact), np.array(shades, np.uint8).reshape(-1, 3)])


def to_images(frames: Iterable[np.ndarray], palette: np.ndarray) -> Iterator["Image"]:
    """Yields each frame of numbers (`codes_of`) as an image of `palette` [P, 3], every color the nearest there is.

    The lowest two bits of red, green and blue are left out of account, but a color of the palette
    stands for itself, and the first of two so near for both.
    (Pillow's own mapping to a given palette is coarser: it would make white a light grey.)
    """
    from PIL import Image

    colors = palette.astype(np.float32)
    # color -> row of the palette, looked for when the color first comes
    nearest = np.full(1 << 24, -1, np.int16)
    own = codes_of(np.insert(palette, 3, 0, axis=1)) & COARSE
    nearest[own[::-1]] = np.arange(len(own))[::-1]
    for frame in frames:
        frame = frame & COARSE
        rows = nearest[frame]
        new = np.unique(frame[rows < 0])
        if len(new):  # |new - color|^2 less what is the same for all colors
            far = (colors**2).sum(axis=1) - 2 * (colors_of(new).astype(np.float32) + 1.5) @ colors.T
            nearest[new] = np.argmin(far, axis=1)
            rows = nearest[frame]
        image = Image.fromarray(rows.astype(np.uint8))
        image.putpalette(palette.tobytes())
        yield image
