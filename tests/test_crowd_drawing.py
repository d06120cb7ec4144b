"""Drawing of crowds: precision of the page, dots and zoom in the player, and still SVG."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from browser import browser
from test_drawing import decoded, ground, in_a_browser, page_of

import wdjax
from wdjax import rendering
from wdjax.drawing import SQUARE, Scene, Shapes
from wdjax.drawing.player import DOTS, Player
from wdjax.drawing.svg import NOTICE, STILL, to_svg
from wdjax.envs.tag.continuous import State


def crowd(frames=6, runners=4_000, hunters=3):
    """Return a scene with runners that move a little, and a few hunters in the middle."""
    rng = np.random.default_rng(0)
    marks = []
    for name, count, size, room in (("runner", runners, 0.03, 4.5), ("hunter", hunters, 0.2, 1)):
        x, y = rng.uniform(5 - room, 5 + room, (2, 1, count)) + rng.normal(
            0, 0.02, (2, frames, count)
        )
        color = "blue" if name == "runner" else "magenta"
        angle = rng.uniform(0, 6, (frames, count))
        group = {"label": name, "group": name, "trail": True}
        marks.append(Shapes(x, y, SQUARE, size, angle, color, **group))
    return ground(marks, frames)


@pytest.mark.parametrize(("count", "bits", "turn_bits"), [(DOTS, 16, 16), (DOTS + 1, 12, 6)])
def test_crowds_are_stored_with_fewer_bits(count, bits, turn_bits):
    drawn = crowd(3, count).marks[0]
    page, data = page_of(Player(crowd(3, count)).to_html())
    for name, expected in (("x", bits), ("y", bits), ("angle", turn_bits)):
        note, array = page["marks"][0][name], getattr(drawn, name)
        stored = data[note["at"] :][: array.size * (1 + (expected > 8))]
        np.testing.assert_allclose(decoded(note, stored), array, atol=0.51 * note["step"])
        assert note["bits"] == expected
        assert note["step"] == np.ptp(array) / (2**expected - 2)


def test_page_is_half_as_large_if_half_of_the_agents_rest():
    drawn = crowd(100, 1_000).marks[0]
    rests = np.arange(1_000) % 2 == 0
    x, y = (np.where(rests, array[:1], array) for array in (drawn.x, drawn.y))
    some = Player(ground([Shapes(x, y)], 100)).to_html()
    every = Player(ground([Shapes(drawn.x, drawn.y)], 100)).to_html()
    assert len(some) < 0.6 * len(every)


def paths_of(svg):
    """Return the shapes of all paths, without their colors."""
    return [element.get("d") for element in svg.iter() if element.get("d")]


def test_svg_of_a_crowd_is_a_still_of_the_last_frame_with_a_notice():
    still = ElementTree.fromstring(to_svg(crowd(5)))
    tags = [element.tag.split("}")[1] for element in still.iter()]
    assert not [tag for tag in tags if tag.startswith("animate")]
    texts = [element.text for element in still.iter() if element.tag.endswith("text")]
    assert texts[-3:] == ["frame 4", *NOTICE.split("\n")]
    marks = [
        Shapes(mark.x[-1], mark.y[-1], SQUARE, mark.size[0, 0, 0], mark.angle[-1], label=mark.label)
        for mark in crowd(5).marks
    ]
    last = ElementTree.fromstring(
        to_svg(Scene(marks, [f"frame 4\n{NOTICE}"], (0, 0, 10, 10), axes=False))
    )
    assert paths_of(still) == paths_of(last)
    assert "animateTransform" in to_svg(crowd(5, STILL - 3))
    assert "Last frame only" not in to_svg(crowd(1))


def test_taggers_stand_out_from_a_crowd():
    sizes = []
    for runners in (100, 9_900):
        env, params = wdjax.make("tag_continuous", num_taggers=5, num_runners=runners)
        x = np.full((2, env.num_agents), 3.0)
        states = State(x, x, x, x, x, x > 0, np.arange(2))
        marks = rendering.make_scene(env, states, params).marks
        sizes.append([float(mark.size[0, 0, 0]) for mark in marks[-2:]])
    np.testing.assert_allclose(sizes[0][1], 1.5 * sizes[0][0])
    np.testing.assert_allclose(sizes[1], [0.03, 0.09], atol=1e-4)


def press(page, kind, x, y, **options):
    """Send a mouse event to the page."""
    event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
    page.command("Input.dispatchMouseEvent", event | options)


def click(page, x, y):
    press(page, "mousePressed", x, y)
    press(page, "mouseReleased", x, y)


PLACE = """
const mark = page.marks[{mark}], [x, y] = place(mark, state.frame, {agent});
const box = by('world').getBoundingClientRect();
return [x + box.left, y + box.top];
"""


@pytest.mark.slow
@in_a_browser
def test_crowd_is_drawn_as_dots_and_zooms_in_to_shapes(tmp_path):
    width = 400  # test_drawing.py also shows a wide page
    (tmp_path / "a.html").write_text(Player(crowd(), fps=60).to_html(), encoding="utf8")
    with browser(tmp_path / "profile", dark=True, size=(width, 800)) as page:
        page.show(tmp_path / "a.html")
        page.wait_for("return state.ready")
        detail = "return by('detail').textContent"
        dotted = "return page.marks.map(mark => [!!mark.dotted, mark.seen.length])"
        assert page.run(detail).startswith(
            "4,003 agents. Drawn as dots without heading and trail: runner. Zoom in"
        )
        assert page.run(dotted) == [[True, 4_000], [False, 3]]
        assert page.run("return document.documentElement.scrollWidth") <= width
        page.run("by('play').click()")
        page.wait_for("return !state.playing && state.frame == 5")
        blue = (
            "const [x, y] = place(page.marks[0], state.frame, 7), g = by('world').getContext('2d');"
            "const [r, , b] = g.getImageData(x, y, 1, 1).data; return b > r"
        )
        assert page.run(blue)
        x, y = page.run(PLACE.format(mark=1, agent=2))
        click(page, x, y)
        assert page.wait_for("return by('agent').textContent").startswith("hunter 2 at")
        press(page, "mousePressed", x, y, clickCount=2)  # a double click
        press(page, "mouseReleased", x, y, clickCount=2)
        page.wait_for("return zoomed() > 2.9")
        np.testing.assert_allclose(page.run(PLACE.format(mark=1, agent=2)), [x, y], atol=3)
        (_, seen), (is_dotted, hunters) = page.run(dotted)
        assert 0 < seen < 1_500
        assert (is_dotted, hunters) == (False, 3)
        assert page.run(detail).startswith("Zoom 3. Drag to move.")
        press(page, "mousePressed", x, y + 40)
        press(page, "mouseMoved", x + 30, y + 40, buttons=1)
        press(page, "mouseReleased", x + 30, y + 40)
        np.testing.assert_allclose(
            page.run(PLACE.format(mark=1, agent=2)), [x + 30, y], atol=3
        )  # pixels of events are integers
        assert page.run("return String(state.pointed)") == "1,2"  # dragging selects nothing
        page.run("by('whole').click()")
        assert page.run(dotted)[0] == [True, 4_000]
        press(page, "mouseWheel", x, y, deltaX=0, deltaY=-200, modifiers=2)  # with Ctrl
        page.wait_for("return zoomed() > 1.5")
        page.run("dispatchEvent(new KeyboardEvent('keydown', {key: '0'}))")
        assert page.run("return zoomed()") == 1
        assert page.errors() == []
