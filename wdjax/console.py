"""Text on the terminal: names and values may come from a stranger's file, so nothing in them controls the terminal."""

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from wdjax.checks import printable


def show(text: Any) -> None:
    """Print a text in one piece, without control characters."""
    print(printable(text), flush=True)


class Console(rich.console.Console):
    """A console of rich that prints every text as it is: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
