"""Compact HTML tables with escaped content, for notebooks and web pages."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CELL = "text-align: left; vertical-align: top; padding: 2px 12px 2px 0"


def html_table(rows: Iterable[Sequence[Any]], header: Sequence[Any] = (), caption: str = "") -> str:
    """Return an HTML table with cells formatted by `brief`, and an optional header and caption."""
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
    """Format a value as a short text.

    Text is cut after 200 characters and then ends in " ...". A float has six significant digits. An
    array becomes its dtype and shape if it has more than eight elements or no data (a
    ShapeDtypeStruct or a deleted array). None becomes an empty string. A mapping becomes
    "name: value, ...", with each value formatted in this way.
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {brief(item)}" for name, item in value.items())
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        # donated to a program, which has reused its memory
        deleted = getattr(value, "is_deleted", lambda: False)()
        if deleted or not hasattr(value, "tolist") or value.size > 8:
            return f"{value.dtype}{list(value.shape)}"
        value = value.tolist()
    shown = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= 200 else f"{shown[:200]} ..."
