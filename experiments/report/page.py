"""The page of `wdjax report`: one HTML file without network access, in both color schemes."""

import dataclasses
import html
import re
from collections.abc import Sequence

from rich.table import Table

from wdjax.drawing.scene import COLORS
from wdjax.tables import CELL, html_table

_LIGHT, _DARK = (
    " ".join(f"--{name}: {tones[i]};" for name, tones in COLORS.items()) for i in range(2)
)
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
body {{ margin: 0 auto; padding: 16px; max-width: 1200px; background: var(--paper);
       color: var(--text); font: 14px/1.5 "DejaVu Sans", system-ui, sans-serif }}
h1 {{ font-size: 20px; margin: 0 }} h2 {{ font-size: 16px; margin: 28px 0 6px }}
p {{ margin: 4px 0; color: var(--grey) }}
section > div {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 12px; margin: 4px 0 12px }}
tr + tr {{ border-top: 1px solid var(--faint) }} td, th {{ white-space: nowrap }}
details td, section:last-child td + td {{ white-space: normal; overflow-wrap: anywhere }}
summary {{ cursor: pointer; color: var(--blue) }}
.panels, .players {{ display: grid; gap: 8px 16px }}
.panels {{ grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)) }}
.panels svg {{ width: 100%; height: auto }}
.players {{ grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)) }}
.matrices {{ display: flex; flex-wrap: wrap; gap: 0 32px }}
.matrices td + td {{ padding: 2px 8px !important }}
iframe {{ color-scheme: normal }}
@media (max-width: 640px) {{ body {{ padding: 10px }} iframe {{ height: 900px !important }}
  table {{ font-size: 10px }} td, th {{ white-space: normal; padding: 2px 4px 2px 0 !important }}
  th:first-child, td:first-child {{ overflow-wrap: anywhere; min-width: 56px }}
  .matrices td + td {{ padding: 2px 4px 2px 0 !important }} }}
"""
# in a cell after the first one, the name of a player
NUMBER = rf'(?<=</td><td style="{CELL})">(-?\d+\.\d+) ±'


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page: a title, HTML, and a description below the title."""

    title: str
    body: str
    words: str = ""


def page(title: str, words: str, sections: Sequence[Section]) -> str:
    """Return the page; titles and words are escaped, bodies are HTML."""
    parts = [
        f"<section><h2>{html.escape(own.title)}</h2><p>{html.escape(own.words)}</p><div>{own.body}</div></section>"
        for own in sections
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n<p>{html.escape(words)}</p>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def folded(summary: str, body: str) -> str:
    """Return HTML that is shown on a click."""
    return f"<details><summary>{html.escape(summary)}</summary>{body}</details>"


def of_terminal(table: Table) -> str:
    """Return a terminal table as HTML; in titled tables, larger numbers have darker backgrounds."""
    rows = zip(*(column.cells for column in table.columns), strict=True)
    body = html_table(rows, [column.header for column in table.columns], str(table.title or ""))
    numbers = [float(number) for number in re.findall(NUMBER, body)]
    if not table.title or not numbers:
        return body
    least, span = min(numbers), max(numbers) - min(numbers) or 1.0

    def shade(found: re.Match) -> str:
        percent = round(45 * (float(found[1]) - least) / span)
        return f"; background: color-mix(in srgb, var(--blue) {percent}%, transparent){found[0]}"

    return re.sub(NUMBER, shade, body)
