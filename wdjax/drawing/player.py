"""The player: a scene as one HTML file that needs no network, to play, scrub and look at.

Arrays become whole numbers of 16 bits (what agents see and densities: 8), differences from frame to frame, deflated,
which the page undoes with `DecompressionStream`.
"""

import base64
import dataclasses
import html
import importlib.resources
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from wdjax.checks import require
from wdjax.drawing.paint import CROWD, SEGMENTS, TRAIL_OPACITY, TRAIL_WIDTH, plot_range
from wdjax.drawing.scene import COLORS, DISC, Lines, Mark, Plot, Scene, Shapes, Text, starts

# of what agents see: beyond it, only that of every so many frames is kept, or of no frame
OBS_BYTES = 600_000
# so few numbers that an agent sees are written, too; of more, a bar has one of so many heights
WRITTEN, TONES = 8, 32
IFRAME = (
    '<iframe srcdoc="{}" style="width: 100%; height: {}px; border: 0" allowfullscreen '
    'title="an episode, played"></iframe>'
)


@dataclasses.dataclass(frozen=True, eq=False)
class Player:
    """An episode that plays where a notebook shows it."""

    scene: Scene
    fps: float = 12.0

    def __post_init__(self):
        require_fps(self.fps)

    def __repr__(self) -> str:
        return f"Player({self.scene.num_frames} frames, fps={self.fps:g}: a notebook shows it, to_html() is the page)"

    def to_html(self) -> str:
        """Returns the page."""
        return to_html(self.scene, self.fps)

    def _repr_html_(self) -> str:
        return IFRAME.format(html.escape(self.to_html()), 640)


def require_fps(fps: Any, fastest: float = 1000) -> None:
    """Raises ValueError where nothing plays as fast as `fps` frames a second."""
    require(np.ndim(fps) == 0 and 0 < fps <= fastest, "fps", fps, f"above 0 and at most {fastest}")


class Packer:
    """Arrays as bytes in a row, each with a note of where it is and how to read it."""

    def __init__(self):
        self.parts: list[bytes] = []
        self.at: dict[bytes, int] = {}  # what is the same is kept once

    def add(self, array: Any, bits: int = 16) -> dict[str, Any]:
        """Adds [T, ...] numbers, NaN or infinite ones as NaN. Returns the note: place, shape, bits, lowest and step.

        Values are low + (q - 1) step of whole q, step = (high - low) / (2^bits - 2), wrong by half of it; 0 is NaN.
        What is kept of q is its difference from the frame before, modulo 2^bits; of 16 bits, all low bytes come first.
        """
        note, kept = quantise(array, bits)
        if kept not in self.at:
            self.at[kept] = sum(map(len, self.parts))
            self.parts.append(kept)
        return note | {"at": self.at[kept]}


def quantise(array: Any, bits: int = 16) -> tuple[dict[str, Any], bytes]:
    """Returns (note, bytes) of one array; see `Packer.add`."""
    array = np.asarray(array, np.float64)
    fine = np.isfinite(array)
    low, high = (float(array[fine].min()), float(array[fine].max())) if fine.any() else (0.0, 0.0)
    step = (high - low) / (2**bits - 2) or 1.0
    whole = np.where(fine, 1 + np.round((np.where(fine, array, low) - low) / step), 0).astype(
        np.int64
    )
    change = np.diff(whole, axis=0, prepend=0).astype(f"<u{bits // 8}")
    kept = change.reshape(-1, 1).view(np.uint8).T.tobytes()  # low bytes, then high ones
    return {"shape": list(array.shape), "bits": bits, "low": low, "step": step}, kept


def restore(note: Mapping[str, Any], kept: bytes) -> np.ndarray:
    """Returns the array of `quantise`, as the page does."""
    planes = np.frombuffer(kept, np.uint8).reshape(note["bits"] // 8, -1)
    change = sum(plane.astype(np.int64) << 8 * i for i, plane in enumerate(planes)).reshape(
        note["shape"]
    )
    whole = np.cumsum(change, axis=0) % 2 ** note["bits"]
    return np.where(whole > 0, note["low"] + (whole - 1) * note["step"], np.nan)


def to_html(scene: Scene, fps: float = 12.0) -> str:
    """Returns the page that plays a scene at `fps` frames a second."""
    packer = Packer()
    seen = {
        group: obs
        for group, obs in scene.obs.items()
        if np.size(obs[0]) <= OBS_BYTES // len(scene.obs)
    }
    stride = max(1, -(-sum(map(np.size, seen.values())) // OBS_BYTES))
    page = {
        "frames": scene.num_frames,
        "fps": float(fps),
        "captions": scene.captions,
        "starts": starts(scene.time).tolist(),
        "extent": scene.extent,
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
        },
        "marks": [_pack_mark(packer, mark) for mark in scene.marks],
        "plots": [_pack_plot(packer, scene, plot) for plot in scene.plots],
        "obs": {group: _pack_obs(packer, obs, stride) for group, obs in seen.items()},
    }
    words = json.dumps(page, allow_nan=False).encode()
    whole = len(words).to_bytes(4, "little") + words + b"".join(packer.parts)
    data = base64.b64encode(zlib.compress(whole, 9)).decode()
    template = (
        importlib.resources.files("wdjax.drawing")
        .joinpath("player.html")
        .read_text(encoding="utf8")
    )
    return template.replace("EPISODE_DATA", data)


def _pack_mark(packer: Packer, mark: Mark) -> dict[str, Any]:
    plain = (
        "color",
        "label",
        "group",
        "stroke",
        "edge",
        "trail",
        "width",
        "dashed",
        "align",
        "bold",
    )
    page = {name: getattr(mark, name) for name in plain if hasattr(mark, name)} | {
        "kind": type(mark).__name__
    }
    if isinstance(mark, Shapes):
        arrays = {name: packer.add(getattr(mark, name)) for name in ("x", "y", "angle")}
        sides = {"w": packer.add(mark.size[..., 0]), "h": packer.add(mark.size[..., 1])}
        # of its size: games are of any
        digits = 4 - int(np.floor(np.log10(np.abs(mark.outline).max() or 1.0)))
        opacity = packer.add(mark.opacity, 8)
        is_round = mark.outline is DISC and np.array_equal(
            mark.size[..., 0], mark.size[..., 1], equal_nan=True
        )
        outline = {"outline": mark.outline.round(digits).tolist(), "round": is_round}
        return page | arrays | sides | outline | {"opacity": opacity}
    if isinstance(mark, Lines):
        window = None if mark.window is None else mark.window.tolist()
        return page | {"points": packer.add(mark.points), "opacity": mark.opacity, "window": window}
    if isinstance(mark, Text):
        return page | {
            "x": packer.add(mark.x),
            "y": packer.add(mark.y),
            "texts": mark.texts,
            "size": mark.size,
        }
    return page | {
        "opacity": packer.add(mark.opacity[:, ::-1], 8),
        "extent": mark.extent,
        "index": mark.index.tolist(),
    }


def _pack_plot(packer: Packer, scene: Scene, plot: Plot) -> dict[str, Any]:
    x, xlim, ylim = plot_range(scene, plot)
    series = [
        {"color": own.color, "label": own.label}
        | {
            name: packer.add(value)
            for name in ("values", "low", "high")
            if (value := getattr(own, name)) is not None
        }
        for own in plot.series
    ]
    span = [float(end) for end in (*xlim, *ylim)]
    return {"title": plot.title, "x": packer.add(x), "span": span, "series": series}


def _pack_obs(packer: Packer, obs: Any, stride: int) -> dict[str, Any]:
    """Packs [T, n, D], each number between its least and its greatest; of every `stride`-th frame."""
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
