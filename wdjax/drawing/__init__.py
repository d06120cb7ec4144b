"""How episodes are drawn: a game fills a `Scene`, from which pixels, SVG and the player are made."""

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
    so_far,
    starts,
)  # fmt: skip

__all__ = [
    "BAR", "COLORS", "CROSS", "DISC", "SQUARE", "STAR", "TRIANGLE", "Field", "Lines", "Mark", "Plot", "Scene", "Series",
    "Shapes", "Text", "so_far", "starts",
]  # fmt: skip
