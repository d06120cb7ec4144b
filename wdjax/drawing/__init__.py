"""Drawing of episodes: environments return a `Scene`, rendered to pixels, SVG or the player."""

from wdjax.drawing.frames import so_far, starts
from wdjax.drawing.scene import (
    BAR,
    COLORS,
    CROSS,
    DISC,
    SQUARE,
    STAR,
    TRIANGLE,
    Field,
    Lines,
    Mark,
    Plot,
    Scene,
    Series,
    Shapes,
    Text,
)

__all__ = [
    "BAR",
    "COLORS",
    "CROSS",
    "DISC",
    "SQUARE",
    "STAR",
    "TRIANGLE",
    "Field",
    "Lines",
    "Mark",
    "Plot",
    "Scene",
    "Series",
    "Shapes",
    "Text",
    "so_far",
    "starts",
]
