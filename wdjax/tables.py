"""Tables of HTML, for notebooks and pages: short, and everything in them escaped."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

_CELL = "text-align: left; vertical-align: top; padding: 2px 12px 2px 0"


def html_table(rows: Iterable[Sequence[Any]], header: Sequence[Any] = (), caption: str = "") -> str:
    """Returns rows of cells as a table, each cell in the words of `brief`, under a line of bold ones and a caption."""
    lines = [_line("th", header)] if header else []
    lines += [_line("td", row) for row in rows]
    title = f'<caption style="text-align: left"><b>{html.escape(caption)}</b></caption>' if caption else ""
    return f"<table>{title}{''.join(lines)}</table>"


def _line(tag: str, cells: Sequence[Any]) -> str:
    inside = (f'<{tag} style="{_CELL}">{html.escape(brief(value))}</{tag}>' for value in cells)
    return f"<tr>{''.join(inside)}</tr>"


def brief(value: Any) -> str:
    """Returns a value in a few words: numbers with six digits, an array of more than eight numbers by its kind and
    shape, all else as Python writes it, cut off after 200 characters; "" for None."""
    if value is None:
        return ""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if np.prod(value.shape) > 8 or not isinstance(value, (np.ndarray, np.generic)):
            return f"{value.dtype}{list(value.shape)}"
        value = value.tolist()
    words = f"{value:.6g}" if isinstance(value, float) else str(value)
    return words if len(words) <= 200 else f"{words[:200]} ..."
