"""Names are drawn literally in pictures, and failing pictures do not end a run."""

import numpy as np
import pytest

from wdjax.drawing.figures import as_svg, without_picture, write_figure
from wdjax.train.host.plots import draw_run

NAMES = ["$\\frac{$", "$x$", "_hidden", "a\nb", "日本", "{0} %s"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_not_parsed_as_formulas(name, tmp_path):
    rows = [
        {
            "env_steps": step,
            f"{name}/episode_return": 1.0,
            "episode_length": 2.0,
            f"episode_{name}": 3.0,
            f"{name}/entropy": 0.5,
            f"{name}/explained_variance": 0.1,
            f"eval/{name}/episode_return": 2.0,
        }
        for step in (100, 200)
    ]
    figure = draw_run(rows, f"cartpole: {name}")
    write_figure(figure, tmp_path / "curves.png", dpi=30)
    assert (
        np.frombuffer((tmp_path / "curves.png").read_bytes()[:4], np.uint8)[1:].tobytes() == b"PNG"
    )
    assert len(figure.axes[0].get_legend().get_texts()) == 2  # trained and evaluated
    if name == "$x$":
        assert "cartpole: $x$" in as_svg(figure)


def test_failing_picture_warns():
    warnings = []
    with without_picture("curves.png", warnings.append):
        raise KeyError("width")
    assert warnings[0].startswith("Warning: could not draw curves.png: ")
