"""Interactive player of a scene: one self-contained HTML file that works offline.

Arrays are quantized to 16-bit integers (observations and opacities: 8-bit, crowds: `CROWD_BITS`),
stored as differences between frames, one agent after the other, and compressed with zlib. The page
decompresses them with `DecompressionStream`.

If more than `DOTS` agents of a group are visible, and smaller than `DOT_RADIUS`, the page draws
dots without trails, and states this. Zooming in shows their shapes again.
"""

import base64
import dataclasses
import html
import importlib.resources
import json
import zlib
from typing import Any

import numpy as np

from wdjax.checks import require
from wdjax.drawing.fields import plain_fields
from wdjax.drawing.frames import starts
from wdjax.drawing.paint import CROWD, SEGMENTS, TRAIL_OPACITY, TRAIL_WIDTH, plot_range
from wdjax.drawing.scene import COLORS, DISC, Lines, Mark, Plot, Scene, Shapes, Text

# Maximum size of the observations. Larger ones are stored for every n-th frame or left out.
OBS_BYTES = 600_000
# Observations of at most WRITTEN numbers are also shown as text. Larger ones are rounded to TONES
# bar heights.
WRITTEN, TONES = 8, 32
DOTS = 3_000  # number of visible items of a mark above which small ones are drawn as dots
DOT_RADIUS = 5.0  # px, size of an item below which it can be a dot
CROWD_BITS = {"position": 12, "angle": 6}  # precision of marks with more than `DOTS` items
ZOOM = 32  # largest zoom
IFRAME = (
    '<iframe srcdoc="{}" style="width: 100%; height: {}px; border: 0" allowfullscreen '
    'title="Episode player"></iframe>'
)


@dataclasses.dataclass(frozen=True, eq=False)
class Player:
    """An interactive player that displays in a notebook.

    Raises:
        ValueError: If `fps` is not above 0 and at most 1000.
    """

    scene: Scene
    fps: float = 12.0  # frames per second

    def __post_init__(self):
        require_fps(self.fps)

    def __repr__(self) -> str:
        return (
            f"Player({self.scene.num_frames} frames, fps={self.fps:g}; "
            "displays in a notebook, to_html() returns the page)"
        )

    def to_html(self) -> str:
        """Return the player as an HTML page."""
        data = base64.b64encode(zlib.compress(pack_scene(self.scene, self.fps), 9)).decode()
        template = importlib.resources.files("wdjax.drawing").joinpath("player.html")
        return template.read_text(encoding="utf8").replace("EPISODE_DATA", data)

    def _repr_html_(self) -> str:
        return IFRAME.format(html.escape(self.to_html()), 640)


def pack_scene(scene: Scene, fps: float, **more: Any) -> bytes:
    """Return what the page draws: length of the header (4 bytes), header (JSON), arrays.

    Args:
        scene: The scene.
        fps: Frames per second.
        **more: Further JSON values of the header.
    """
    packer = Packer()
    observations = {
        group: obs
        for group, obs in scene.obs.items()
        if np.size(obs[0]) <= OBS_BYTES // len(scene.obs)
    }
    stride = max(1, -(-sum(map(np.size, observations.values())) // OBS_BYTES))
    page = {
        "frames": scene.num_frames,
        "fps": float(fps),
        "captions": scene.captions,
        "starts": starts(scene.time).tolist(),
        "extent": scene.extent and scene.box,
        "walls": scene.extent,
        "axes": scene.axes,
        "equal": scene.equal,
        "labels": [scene.xlabel, scene.ylabel],
        "trail": scene.trail_length,
        "colors": COLORS,
        "limits": {
            "crowd": CROWD,
            "segments": SEGMENTS,
            "opacity": TRAIL_OPACITY,
            "width": TRAIL_WIDTH,
            "written": WRITTEN,
            "dots": DOTS,
            "radius": DOT_RADIUS,
            "zoom": ZOOM,
        },
        "marks": [_pack_mark(packer, mark) for mark in scene.marks],
        "plots": [_pack_plot(packer, scene, plot) for plot in scene.plots],
        "obs": {group: _pack_obs(packer, obs, stride) for group, obs in observations.items()},
        **more,
    }
    header = json.dumps(page, allow_nan=False).encode()
    return len(header).to_bytes(4, "little") + header + b"".join(packer.parts)


def require_fps(fps: Any, fastest: float = 1000) -> None:
    """Raise ValueError unless `fps` is a number above 0 and at most `fastest`."""
    is_valid = isinstance(fps, int | float | np.number) and 0 < fps <= fastest
    require(is_valid, "fps", fps, f"above 0 and at most {fastest}")


class Packer:
    """Packs arrays into one byte string; each array has a note with its position and encoding."""

    def __init__(self):
        self.parts: list[bytes] = []
        self.at: dict[bytes, int] = {}  # offset of each array, to store equal arrays once

    def add(self, array: Any, bits: int = 16) -> dict[str, Any]:
        """Add an array [T, ...] and return its note.

        A value v becomes the integer q = 1 + round((v - low) / step) with
        step = (high - low) / (2^bits - 2), so its error is at most step / 2. NaN and infinite
        values become q = 0 and are restored as NaN. Stored are the differences of q between frames,
        modulo 2^8, or 2^16 for more than 8 bits, with frames as the last axis: resting agents
        compress to almost nothing. All low bytes precede all high bytes.

        Args:
            array: The numbers, [T, ...].
            bits: 2 to 16.

        Returns:
            A dict with the offset `at`, `shape`, `bits`, `low` and `step`.
        """
        note, packed = quantise(array, bits)
        if packed not in self.at:
            self.at[packed] = sum(map(len, self.parts))
            self.parts.append(packed)
        return note | {"at": self.at[packed]}


def quantise(array: Any, bits: int = 16) -> tuple[dict[str, Any], bytes]:
    """Quantize one array and return (note, bytes); see `Packer.add`."""
    array = np.asarray(array, np.float64)
    finite = np.isfinite(array)
    low, high = (
        (float(array[finite].min()), float(array[finite].max())) if finite.any() else (0.0, 0.0)
    )
    step = (high - low) / (2**bits - 2) or 1.0
    quantized = np.where(
        finite, 1 + np.round((np.where(finite, array, low) - low) / step), 0
    ).astype(np.int64)
    change = np.moveaxis(np.diff(quantized, axis=0, prepend=0), 0, -1)
    change = change.astype("<u2" if bits > 8 else "u1", order="C")
    packed = change.reshape(-1, 1).view(np.uint8).T.tobytes()  # low bytes, then high bytes
    return {"shape": list(array.shape), "bits": bits, "low": low, "step": step}, packed


def _pack_mark(packer: Packer, mark: Mark) -> dict[str, Any]:
    """Return a mark as JSON values, with its arrays added to the packer."""
    page = {"kind": type(mark).__name__} | plain_fields(mark)
    if isinstance(mark, Shapes):
        # Round relative to the size of the outline, as environments use any unit.
        digits = 4 - int(np.floor(np.log10(np.abs(mark.outline).max() or 1.0)))
        width, height = np.moveaxis(mark.size, -1, 0)
        is_crowd = bool(mark.group) and mark.x.shape[1] > DOTS
        bits, turn_bits = CROWD_BITS.values() if is_crowd else (16, 16)
        return page | {
            "x": packer.add(mark.x, bits),
            "y": packer.add(mark.y, bits),
            "angle": packer.add(mark.angle, turn_bits),
            "w": packer.add(width),
            "h": packer.add(height),
            "outline": mark.outline.round(digits).tolist(),
            "round": mark.outline is DISC and np.array_equal(width, height, equal_nan=True),
            "opacity": packer.add(mark.opacity, 8),
        }
    if isinstance(mark, Lines):
        return page | {
            "points": packer.add(mark.points),
            "window": None if mark.window is None else mark.window.tolist(),
        }
    if isinstance(mark, Text):
        return page | {
            "x": packer.add(mark.x),
            "y": packer.add(mark.y),
            "texts": mark.texts,
        }
    return page | {
        "opacity": packer.add(mark.opacity[:, ::-1], 8),
        "extent": mark.extent,
        "index": mark.index.tolist(),
    }


def _pack_plot(packer: Packer, scene: Scene, plot: Plot) -> dict[str, Any]:
    """Return a plot as JSON values, with its arrays added to the packer."""
    x, xlim, ylim = plot_range(scene, plot)
    series = [
        {"color": curve.color, "label": curve.label, "wide": curve.wide}
        | {
            name: packer.add(value)
            for name in ("values", "low", "high")
            if (value := getattr(curve, name)) is not None
        }
        for curve in plot.series
    ]
    span = [float(end) for end in (*xlim, *ylim)]
    return {"title": plot.title, "x": packer.add(x), "span": span, "series": series}


def _pack_obs(packer: Packer, obs: Any, stride: int) -> dict[str, Any]:
    """Return observations [T, n, D] of every `stride`-th frame as JSON values.

    Each of the D numbers is scaled to 0 to 1 by its range over all frames and agents.
    """
    obs = np.asarray(obs[::stride], np.float64)
    low, high = (
        np.nan_to_num(
            end(obs, axis=(0, 1), initial=start, where=np.isfinite(obs)), posinf=0, neginf=0
        )
        for end, start in ((np.min, np.inf), (np.max, -np.inf))
    )
    shares = np.clip((obs - low) / np.where(high > low, high - low, 1), 0, 1)
    shares = shares if obs.shape[2] <= WRITTEN else np.round(TONES * shares) / TONES
    return {
        "shares": packer.add(shares, 8),
        "stride": stride,
        "low": low.tolist(),
        "high": high.tolist(),
    }
