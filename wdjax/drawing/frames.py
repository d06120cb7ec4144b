"""One frame of a scene: values, polygons and trails of its marks."""

from typing import Any

import numpy as np

from wdjax.drawing.scene import Mark, Scene, Shapes


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
