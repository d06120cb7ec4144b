"""Figures of matplotlib: labels, axes, and safe output as PNG or SVG."""

import contextlib
import io
import itertools
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wdjax.checks import one_line
from wdjax.drawing.fields import covered
from wdjax.drawing.scene import COLORS as PALETTE
from wdjax.files import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Names of colors of policies, as in the animation. Other policies use `CURVES`, in their order.
FIXED = {"tagger": "magenta", "runner": "blue"}
CURVES = ("blue", "orange", "green", "magenta", "red", "grey")


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """Return the color of each policy, or other curve: equal in curves, player and report."""
    names = dict.fromkeys(names)
    taken = {FIXED[name] for name in names if name in FIXED}
    unused = itertools.cycle(color for color in CURVES if color not in taken)
    return {name: PALETTE[FIXED.get(name) or next(unused)][0] for name in names}


def panel_colors(curves: Collection[str], policies: Sequence[str]) -> dict[str, str]:
    """Return the color of each curve; a policy has the same color in all panels."""
    return colors_of(policies if set(policies).issuperset(curves) else curves)


def widen_covered(lines: Sequence["Line2D"]) -> None:
    """Widen lines that later ones would hide, so that their colors show on both sides."""
    for line, count in zip(lines, covered([line.get_ydata() for line in lines]), strict=True):
        line.set_linewidth(line.get_linewidth() + 3 * count)


@contextlib.contextmanager
def without_picture(name: str, say: Callable[[str], Any]) -> Iterator[None]:
    """Warn if a picture cannot be drawn, instead of ending a run that is saved."""
    try:
        yield
    except Exception as error:  # matplotlib and environments of users raise errors of any type
        say(f"Warning: could not draw {name}: {one_line(error) or type(error).__name__}")


def write_figure(figure: "Figure", file: str | Path | IO[Any], **options: Any) -> None:
    """Write a figure. Texts are literal: "$" starts no formula, and missing glyphs become boxes.

    Args:
        figure: the figure.
        file: path of a PNG file, or an open file.
        **options: further options of `savefig`.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if text.get_text():  # tick labels, which may be formulas, are empty before drawing
            text.set_parse_math(False)
            text.set_usetex(False)
    with warnings.catch_warnings():
        # missing glyphs, or long names that leave no room for axes
        warnings.simplefilter("ignore", UserWarning)
        if isinstance(file, str | Path):
            with new_file(file) as stream:
                figure.savefig(stream, format="png", **options)
        else:
            figure.savefig(file, **options)


def as_svg(figure: "Figure") -> str:
    """Return a figure as an SVG element with the background and text color of its page."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write_figure(figure, text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(
        "<svg ", '<svg fill="currentColor" style="max-width: 100%" ', 1
    )
    # pages set --blue
    colors = {light.lower(): f"var(--{name}, {light})" for name, (light, _) in PALETTE.items()}
    colors |= {"#000000": "currentColor", "#ffffff": "var(--paper, transparent)"}

    pattern = "|".join(colors)
    # names such as "#000000" are between tags
    return re.sub(f"({pattern})(?=[^<>]*>)", lambda color: colors[color[0]], svg)


def name_panel(axes: "Axes", label: str) -> None:
    """Set the title of a panel (quantity and unit), and a faint grid in place of a frame."""
    axes.set_title(label, loc="left", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)


def count_env_steps(axes: "Axes") -> None:
    """Label the axis of env steps, with short numbers: 250k, 1.5M."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("env steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def as_label(name: str) -> str:
    """Return a name for a legend, which omits names that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def tail(name: str, length: int = 36) -> str:
    """Return a name for a legend, shortened to its end if it is long."""
    return name if len(name) <= length else f"…{name[1 - length :]}"
