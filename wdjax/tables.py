"""Tables of HTML, for notebooks and pages: short, and everything in them escaped."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CELL = "text-align: left; vertical-align: top; padding: 2px 12px 2px 0"


def html_table(rows: Iterable[Sequence[Any]], header: Sequence[Any] = (), caption: str = "") -> str:
    """Returns rows of cells as a table, each cell in the words of `brief`, under a line of bold ones and a caption."""
    lines = [_line("th", header)] if header else []
    lines += [_line("td", row) for row in rows]
    title = (
        f'<caption style="text-align: left"><b>{html.escape(caption)}</b></caption>'
        if caption
        else ""
    )
    return f"<table>{title}{''.join(lines)}</table>"


def _line(tag: str, cells: Sequence[Any]) -> str:
    inside = (f'<{tag} style="{CELL}">{html.escape(brief(value))}</{tag}>' for value in cells)
    return f"<tr>{''.join(inside)}</tr>"


def brief(value: Any) -> str:
    """Returns a value in a few words: numbers with six digits, an array of more than eight numbers, or one whose
    numbers are not there, by its kind and shape, the rest as Python writes it, cut off after 200 characters; "" for
    None."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {brief(item)}" for name, item in value.items())
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        # given to a program, which has taken its memory
        gone = getattr(value, "is_deleted", lambda: False)()
        if gone or not hasattr(value, "tolist") or value.size > 8:
            return f"{value.dtype}{list(value.shape)}"
        value = value.tolist()
    words = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return words if len(words) <= 200 else f"{words[:200]} ..."
