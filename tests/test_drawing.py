"""Drawing primitives: pixels, SVG and HTML of a scene, and rejected scenes."""

import base64
import dataclasses
import json
import re
import types
import xml.etree.ElementTree as ElementTree
import zlib

import jax
import numpy as np
import pytest
from browser import browser, in_a_browser
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from test_rendering import GAMES, after_reset, at, play

import wdjax
from wdjax import rendering
from wdjax.drawing import (
    SQUARE,
    Field,
    Lines,
    Plot,
    Scene,
    Series,
    Shapes,
    Text,
    frames,
    paint,
    raster,
    so_far,
    starts,
)
from wdjax.drawing.player import Player, quantise
from wdjax.drawing.svg import to_svg

BLUE, RED, WHITE = (0x24, 0x5E, 0xB6), (0xB3, 0x26, 0x1E), (255, 255, 255)


def decoded(note, data):
    """Decode the output of `quantise`, as player.html does."""
    steps, *rest = note["shape"]
    planes = np.frombuffer(data, np.uint8).reshape(1 + (note["bits"] > 8), *rest, steps)
    change = sum(plane.astype(np.int64) << 8 * i for i, plane in enumerate(planes))
    quantized = np.moveaxis(np.cumsum(change, axis=-1) % 256 ** len(planes), -1, 0)
    return np.where(quantized > 0, note["low"] + (quantized - 1) * note["step"], np.nan)


def ground(marks, frames=1, **options):
    """Return a scene of 10 x 10 without axes."""
    return Scene(
        marks, [f"frame {t}" for t in range(frames)], (0, 0, 10, 10), axes=False, **options
    )


def pixel(scene, x, y, t=0):
    """Return the color at a position in world coordinates."""
    layout = paint.lay_out(scene)
    column, row = layout.place(scene, np.array([x, y]))
    return tuple(int(v) for v in raster.picture(scene, t)[int(row), int(column)])


def test_shapes_have_the_given_position_size_and_angle():
    drawn = ground([Shapes([2.0, 7.0], [3.0, 7.0], SQUARE, (2.0, 0.5), [0.0, np.pi / 2], "blue")])
    assert [pixel(drawn, *place) for place in ((2, 3), (3.8, 3.3), (7, 8.8))] == [BLUE] * 3
    assert [pixel(drawn, *place) for place in ((2, 4), (4.3, 3), (8.8, 7), (5, 5))] == [WHITE] * 4
    polygons = frames.turned(drawn.marks[0], 0)
    np.testing.assert_allclose(polygons[0], [[0, 2.5], [4, 2.5], [4, 3.5], [0, 3.5]])
    np.testing.assert_allclose(polygons[1], [[7.5, 5], [7.5, 9], [6.5, 9], [6.5, 5]])


def test_later_marks_cover_earlier_ones_and_nan_hides_a_shape():
    x = np.array([[5.0], [np.nan], [5.0]])
    marks = [
        Shapes([5.0], [5.0], SQUARE, 2, color="blue"),
        Shapes(x, 5.0, SQUARE, 1, color="red", opacity=[[1], [1], [0]]),
    ]
    drawn = ground(marks, 3)
    assert [pixel(drawn, 5, 5, t) for t in range(3)] == [RED, BLUE, BLUE]
    half = pixel(ground([Shapes([5.0], [5.0], SQUARE, 2, color="blue", opacity=0.5)]), 5, 5)
    np.testing.assert_allclose(half, (np.array(BLUE) + WHITE) / 2, atol=2)


def test_lines_draw_their_window_and_break_at_nan():
    points = [[0, 5], [4, 5], [np.nan, np.nan], [6, 5], [10, 5]]
    drawn = ground([Lines(points, "red", 4, window=[[0, 2], [0, 5], [3, 5]])], 3)
    at = [[pixel(drawn, x, 5, t) == RED for x in (2, 5, 8)] for t in range(3)]
    assert at == [[True, False, False], [True, False, True], [False, False, True]]


def test_field_draws_its_first_row_at_the_bottom():
    drawn = ground(
        [
            Field(
                [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]], (0, 0, 10, 10), "red", [0, 1]
            )
        ],
        2,
    )
    assert (pixel(drawn, 2, 2), pixel(drawn, 8, 8)) == (RED, WHITE)
    assert (pixel(drawn, 2, 2, 1), pixel(drawn, 8, 8, 1)) == (WHITE, RED)


def test_trail_has_the_given_length_and_starts_at_the_reset():
    x = np.arange(6.0)[:, None]
    drawn = ground([Shapes(x, 5.0, trail=True)], 6, time=[0, 1, 2, 3, 0, 1], trail=2)
    segments, strength = frames.trails(drawn, drawn.marks[0], 3)
    np.testing.assert_array_equal(segments[:, 0, :, 0], [[1, 2], [2, 3]])
    np.testing.assert_array_equal(strength, [0.5, 1.0])
    segments, strength = frames.trails(
        dataclasses.replace(drawn, trail=3), drawn.marks[0], 3, each=2
    )
    np.testing.assert_array_equal(segments[:, 0, :, 0], [[1, 3]])  # one segment covers two steps
    np.testing.assert_array_equal(strength, [1.0])
    assert len(frames.trails(drawn, drawn.marks[0], 4)[0]) == 0
    np.testing.assert_array_equal(frames.trails(drawn, drawn.marks[0], 5)[0][:, 0, :, 0], [[4, 5]])


def test_frames_of_an_episode_start_at_its_reset():
    np.testing.assert_array_equal(starts([5, 6, 0, 1, 0]), [0, 0, 2, 2, 4])
    np.testing.assert_array_equal(so_far([5, 6, 0, 1]), [[0, 1], [0, 2], [2, 3], [2, 4]])


def test_ticks_are_round_numbers():
    assert [label for _, label in paint.ticks(0, 10, 5)] == ["0", "2", "4", "6", "8", "10"]
    assert [label for _, label in paint.ticks(-0.3, 0.3, 3)] == ["-0.2", "0.0", "0.2"]
    assert [label for _, label in paint.ticks(0, 6000, 3)] == ["0", "2,000", "4,000", "6,000"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shapes([0], [0], color="blu"), "unknown color 'blu': did you mean 'blue'"),
        (lambda: Text([0], [0], ["a"], align="centre"), "did you mean 'center'"),
        (
            lambda: ground([Shapes(np.zeros((3, 1)), 0.0)], 2),
            "length of an array of Shapes = 3: must be 1 or 2, the number of captions",
        ),
        (lambda: ground([], 0), "captions"),
        (lambda: Scene([], ["a"]), "extent = None: must be four numbers (x0, y0, x1, y1), unless"),
        (lambda: Scene([], ["a"], (0, 0, 0, 1)), "x0 < x1"),
        (lambda: ground([], 2, time=[0]), "time.shape = (1,): must be (2,)"),
        (lambda: Scene([], ["a"], (0, 0, 1, np.nan)), "four finite numbers (x0, y0, x1, y1)"),
        (
            lambda: Shapes([0, 1], [0, 1], angle=[0, 1, 2]),
            "Shapes: x [1, 2], y [1, 2], angle [1, 3]",
        ),
        (lambda: Shapes([0], [0], np.zeros(2)), "outline.shape = (2,): must be (V, 2)"),
        (lambda: Lines(np.zeros((4, 3))), "points.shape = (4, 3): must be (..., V, 2)"),
        (lambda: Lines(np.zeros((4, 2)), window=[0, 2]), "window.shape = (2,): must be (T, 2)"),
        (lambda: Lines(np.zeros((4, 2)), width=np.nan), "width = nan: must be finite"),
        (
            lambda: Text([0, 1], [0], ["a", "b", "c"]),
            "texts per frame = [3]: must be [2], the number of positions",
        ),
        (
            lambda: Field(np.zeros((2, 1, 1)), (0, 0, 1, 1), index=[0, 2]),
            "index = [0, 2]: must be from 0 to 1",
        ),
        (lambda: Plot("p", []), "series = []: must be a sequence of at least one"),
        (
            lambda: Series([0.0, 1.0], low=[0.0, 0.0]),
            "must be values alone, or values with both low and high",
        ),
        (
            lambda: Scene([], ["a", "b"], plots=[Plot("p", [Series(1.0)], [0])]),
            "Plot.x.shape = (1,): must be (2,)",
        ),
        (lambda: ground([], trail=-1), "trail = -1"),
        (lambda: Player(ground([]), 0), "fps = 0: must be above 0"),
    ],
)
def test_invalid_scenes_raise(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_scalar_fields_of_a_wrong_type_are_refused_by_name():
    for mark in (
        lambda: Lines([[0, 0], [1, 1]], opacity="half"),
        lambda: Text([0], [0], ["a"], size=[]),
    ):
        with pytest.raises(TypeError, match=r"(opacity = 'half'|size = \[\]): must be a float"):
            mark()


def test_arrays_of_one_entry_are_broadcast():
    drawn = ground([Shapes([2.0], [3.0], opacity=[0.5, 1.0])], 2, plots=[Plot("p", [Series(4.0)])])
    assert drawn.marks[0].x.shape == (1, 2)
    np.testing.assert_array_equal(drawn.plots[0].series[0].values, [4, 4])


def test_field_opacity_is_clipped_and_nan_is_transparent():
    field = Field([[np.nan, 7.0], [-1.0, 0.5]], (0, 0, 1, 1))
    np.testing.assert_array_equal(field.opacity[0], [[0, 1], [0, 0.5]])


def test_legend_has_limited_length():
    marks = [Shapes([5.0], [5.0], label=f"{i} {'name ' * 40}") for i in range(40)]
    layout = paint.lay_out(ground(marks, plots=[Plot("p", [Series(1.0)])]))
    assert len(layout.legend) == paint.LABELS
    assert layout.world[2] > 150
    assert layout.world[3] > 150
    assert len(paint.shorten(marks[0].label)) == paint.LABEL


# --- HTML ---

NUMBERS = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    elements=st.one_of(st.floats(-1e6, 1e6), st.just(np.nan), st.just(np.inf)),
)


@given(NUMBERS, st.sampled_from([6, 8, 12, 16]))
def test_quantised_values_are_restored_within_half_a_step(array, bits):
    note, data = quantise(array, bits)
    back, fine = decoded(note, data), np.isfinite(array)
    assert len(data) == array.size * -(-bits // 8)
    np.testing.assert_array_equal(np.isnan(back), ~fine)
    assert np.all(np.abs(back - array)[fine] <= 0.5 * note["step"] * (1 + 1e-6) + 1e-9)
    span = np.ptp(array[fine]) if fine.any() else 0
    assert note["step"] == (span / (2**bits - 2) or 1)


def page_of(html):
    """Return the header and the bytes of the arrays in a page."""
    whole = zlib.decompress(base64.b64decode(re.search(r'DATA = "([^"]+)"', html)[1]))
    length = int.from_bytes(whole[:4], "little")
    return json.loads(whole[4 : 4 + length]), whole[4 + length :]


def episode(steps=8, agents=3, seen=4):
    rng = np.random.default_rng(0)
    marks = [
        Shapes(
            rng.uniform(0, 10, (steps + 1, agents)), 5.0, label="walker", group="walker", trail=True
        )
    ]
    record = types.SimpleNamespace(
        reward={"walker": np.ones((steps, agents))},
        obs={"walker": rng.normal(size=(steps, agents, seen))},
    )
    return rendering.add_record(ground(marks, steps + 1), record)


def test_html_contains_the_scene_and_loads_nothing():
    drawn = episode()
    html = Player(drawn).to_html()
    page, data = page_of(html)
    assert not re.search(r"https?://|src=|@import|url\(", html)
    note = page["marks"][0]["x"]
    x = decoded(note, data[note["at"] : note["at"] + 2 * drawn.marks[0].x.size])
    np.testing.assert_allclose(x, drawn.marks[0].x, atol=1e-3)
    assert page["captions"] == list(drawn.captions)
    assert [series["label"] for series in page["plots"][0]["series"]] == [""]
    np.testing.assert_array_equal(drawn.plots[0].series[0].values, 3 * np.arange(9.0))
    assert drawn.obs["walker"].shape == (9, 3, 4)
    shown = Player(drawn)._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert shown.count('"') == 6  # the page is escaped


def test_returns_of_groups_without_marks_have_distinct_colors():
    marks = [Shapes([5.0], [5.0], color="blue", group="state")]
    record = types.SimpleNamespace(
        reward={name: np.ones((1, 2)) for name in ("planner", "state", "bank")}, obs=None
    )
    (plot,) = rendering.add_record(ground(marks, 2), record).plots
    assert [(series.label, series.color) for series in plot.series] == [
        ("planner", "orange"),
        ("state", "blue"),
        ("bank", "green"),
    ]


def test_plot_is_wide_enough_for_its_title_and_series_names():
    marks = [Shapes([5.0], [5.0], label="a")]
    named = Plot("return", [Series(1.0, label="harvesters"), Series(2.0, label="planner")])
    narrow, wide = (
        paint.lay_out(ground(marks, 2, plots=[plot]))
        for plot in (Plot("return", [Series(1.0)]), named)
    )
    assert narrow.plots[0][2] == 176
    # px: axis, title, names, margin
    assert wide.plots[0][2] > 40 + 6 * 6.8 + 10 * 5.8 + 7 * 5.8 + 14
    assert wide.world[2] < narrow.world[2]


def test_numpy_scalars_are_serialized():
    number = np.float32(2.0)
    marks = [
        Shapes([number], [number], stroke=number, edge=np.bool_(True), label=np.str_("a")),
        Lines([[0, 0], [1, 1]], width=number, opacity=number),
        Text([1], [1], [np.str_("b")], size=number),
        Field([[0.5]], np.array([0.0, 0.0, 1.0, 1.0], np.float32), index=np.int32(0)),
    ]
    drawn = Scene(
        marks,
        [np.float32(3.0)],
        np.array([0, 0, 9, 9], np.float32),
        time=np.zeros(1, np.int32),
        axes=np.bool_(False),
        trail=np.int64(3),
        plots=[Plot("p", [Series(number)], ylim=np.array([0, 3]))],
    )
    page, _ = page_of(Player(drawn, np.float32(5)).to_html())
    assert (page["captions"], page["extent"], page["trail"], page["fps"]) == (
        ["3.0"],
        [0, 0, 9, 9],
        3,
        5,
    )


def test_observations_that_are_too_large_are_omitted():
    page, _ = page_of(
        Player(
            dataclasses.replace(
                ground([], 2),
                obs={"much": np.zeros((2, 3, 200_000)), "little": np.zeros((2, 3, 4))},
            )
        ).to_html()
    )
    assert list(page["obs"]) == ["little"]


def test_outlines_of_extreme_scale_keep_their_shape():
    for scale in (1e-6, 1e6):
        outline = page_of(Player(ground([Shapes([5.0], [5.0], scale * SQUARE)])).to_html())[0][
            "marks"
        ][0]["outline"]
        np.testing.assert_allclose(outline, scale * SQUARE)


def test_episode_without_steps_and_group_without_agents():
    record = types.SimpleNamespace(
        reward={"walker": np.ones((0, 3))}, obs={"walker": np.ones((0, 3, 4))}
    )
    drawn = rendering.add_record(ground([]), record)
    np.testing.assert_array_equal(drawn.plots[0].series[0].values, [0])
    assert drawn.obs == {}
    assert raster.picture(ground([Shapes(np.zeros((3, 0)), 0.0, trail=True)], 3)).shape[2] == 3


def test_html_of_105_agents_and_500_steps_is_below_one_megabyte():
    drawn = episode(500, 105, 40)
    assert len(Player(drawn).to_html()) < 1_000_000
    assert page_of(Player(drawn).to_html())[0]["obs"]["walker"]["stride"] == 4


def test_equal_arrays_are_stored_once():
    y = np.random.default_rng(0).uniform(0, 10, (9, 3))
    page, data = page_of(
        Player(ground([Shapes(np.zeros((9, 3)), y), Shapes(np.ones((9, 3)), y)], 9)).to_html()
    )
    assert page["marks"][0]["y"] == page["marks"][1]["y"]
    assert len(data) < 4 * y.size * 2


def test_svg_is_animated_without_a_script():
    root = ElementTree.fromstring(to_svg(episode(40)))
    tags = [element.tag.split("}")[1] for element in root.iter()]
    assert "script" not in tags
    assert tags.count("animateTransform") == 4  # three walkers, and the cursor of the plot
    moves = next(element for element in root.iter() if element.tag.endswith("animateTransform"))
    # the last frame is held
    assert len(moves.get("values").split(";")) == len(moves.get("keyTimes").split(";")) == 42
    assert len(to_svg(episode(100, 500))) < 1_000_000


def test_svg_hides_shapes_while_size_or_angle_is_nan():
    size, angle = [[np.nan], [1.0], [2.0], [1.0]], [[np.nan], [0.5], [np.nan], [1.0]]
    drawn = to_svg(ground([Shapes([[5.0]] * 4, 5.0, SQUARE, size, angle)], 4))
    assert "nan" not in drawn
    elements = ElementTree.fromstring(drawn).iter()
    turns = [element.get("values") for element in elements if element.get("type") == "rotate"]
    assert turns == ["-29;-29;-29;-57;-57"]  # the previous angle while it is hidden
    assert 'values="0;1;0;1"' in drawn  # its opacity


def test_svg_drops_invalid_xml_characters_and_supports_named_colors():
    drawn = Scene(
        [Field([[0.5]], (0, 0, 1, 1), "red")], ["a\x00\x1b\ud800b"], (0, 0, 1, 1), axes=False
    )
    root = ElementTree.fromstring(to_svg(drawn))
    assert [element.text for element in root.iter() if element.tag.endswith("text")] == ["ab"]
    (mask,) = [element for element in root.iter() if element.tag.endswith("mask")]
    (field,) = [element for element in root.iter() if element.get("mask")]
    assert (field.get("class"), field.get("mask")) == ("red", f"url(#{mask.get('id')})")


# --- environments ---


@pytest.mark.parametrize(
    "name", [pytest.param("tag_continuous", marks=pytest.mark.slow), "cartpole"]
)
def test_environment_is_rendered_in_every_format(name, tmp_path):
    env, params, states = play(name)
    for suffix in (".html", ".svg", ".png"):
        path = wdjax.render(env, states, params, output=tmp_path / f"game{suffix}")
        assert path.stat().st_size > 3_000
    ElementTree.parse(tmp_path / "game.svg")
    assert page_of((tmp_path / "game.html").read_text())[0]["frames"] == 9
    assert isinstance(wdjax.render(env, states, params), Player)


@pytest.mark.slow
@pytest.mark.parametrize("name", wdjax.list_envs())
def test_every_registered_environment_is_rendered(name, tmp_path):
    env, params, state = after_reset(name)
    twice = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), state)
    # test_rendering.py draws frames of the others
    for suffix in (".html", ".svg") if name in GAMES else (".html", ".svg", ".gif", ".png"):
        assert (
            wdjax.render(env, twice, params, output=tmp_path / f"a{suffix}").stat().st_size > 1_000
        )
    text = re.sub('base64,[^"]*', "", (tmp_path / "a.svg").read_text())
    assert not re.search(r"\bnan\b", text)


def test_player_and_file_use_the_trail_of_the_environment(tmp_path):
    env, params, states = play("cartpole")

    class Long(type(env)):
        trail = 33

    shown = page_of(wdjax.render(Long(), states, params).to_html())[0]
    written = page_of(wdjax.render(Long(), states, params, output=tmp_path / "a.html").read_text())[
        0
    ]
    assert shown["trail"] == written["trail"] == 33


def test_invalid_render_arguments_raise():
    env, params, states = play("cartpole")
    with pytest.raises(ValueError, match="fps = -1: must be above 0"):
        wdjax.render(env, states, params, fps=-1)
    with pytest.raises(ValueError, match="the height = 20: must be at least 100"):
        wdjax.render(env, states, params, size=(640, 20))


def test_overridden_draw_takes_precedence_over_the_scene_of_the_parent(tmp_path):
    parent, params, states = play("cartpole")

    class Mine(type(parent)):
        def draw(self, axes, state, params, history=None):
            axes.plot([0, 1], [0, float(state.x)], color="#123456", linewidth=9)

    picture = wdjax.render(Mine(), at(states, 0), params)
    assert np.any(np.all(picture == (0x12, 0x34, 0x56), axis=-1))
    with pytest.raises(
        NotImplementedError, match=r"draws with matplotlib, which supports only .gif, .mp4 and .png"
    ):
        wdjax.render(Mine(), states, params, output=tmp_path / "a.html")
    two = jax.tree.map(lambda leaf: leaf[:2], states)
    assert (
        wdjax.render(Mine(), two, params, size=(200, 150), output=tmp_path / "a.gif").stat().st_size
        > 1_000
    )


def test_mp4_frames_are_piped_to_ffmpeg(tmp_path, monkeypatch):
    (tmp_path / "ffmpeg").write_text(
        '#!/bin/sh\necho "$@" > "$(dirname "$0")/asked"\ncat > "$(dirname "$0")/read"\n'
    )
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    drawn = ground([Shapes([[5.0], [6.0]], 5.0)], 2)
    rendering.save_scene(tmp_path / "a.mp4", drawn, fps=10, hold=0.3, size=(200, 150))
    assert "-s 200x150" in (tmp_path / "asked").read_text()
    # the last frame is held for three more
    frames = np.frombuffer((tmp_path / "read").read_bytes(), np.uint8).reshape(5, 150, 200, 4)
    np.testing.assert_array_equal(frames[1, ..., :3], raster.picture(drawn, 1, (200, 150)))
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\ncat > /dev/null\necho no such codec >&2\nexit 1\n")
    with pytest.raises(OSError, match=r"ffmpeg could not write .*a.mp4: no such codec"):
        rendering.save_scene(tmp_path / "a.mp4", drawn)


def test_gif_keeps_the_colors_of_thin_lines(tmp_path):
    rng = np.random.default_rng(1)
    marks = [
        Shapes(
            rng.uniform(0, 10, 99),
            rng.uniform(0, 10, 99),
            SQUARE,
            0.5,
            angle=rng.uniform(0, 6, 99),
            color=color,
            opacity=rng.uniform(0.1, 1, 99),
        )
        for color in ("green", "orange")
    ]
    drawn = ground([*marks, Lines([[0, 5], [10, 5]], "red", 3)])
    exact = np.all(raster.picture(drawn) == RED, axis=-1)
    with Image.open(rendering.save_scene(tmp_path / "a.gif", drawn)) as gif:
        red_pixels = np.all(np.asarray(gif.convert("RGB")) == RED, axis=-1)
    assert exact.sum() > 100
    assert red_pixels[exact].all()


def test_plots_grow_with_the_frame():
    drawn = Scene([], ["a", "b", "c"], plots=[Plot("p", [Series([0.0, 1.0, 0.0], "red")])])
    reds = [int(np.sum(np.all(raster.picture(drawn, t) == RED, axis=-1))) for t in range(3)]
    assert 0 < reds[0] < reds[1] < reds[2]


# --- in a browser ---


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize(("dark", "width"), [(False, 1200), (True, 400)])
def test_player_works_in_a_browser(tmp_path, dark, width):
    drawn = dataclasses.replace(episode(40), captions=[f"frame {t} <&>" for t in range(41)])
    (tmp_path / "a.html").write_text(Player(drawn, fps=60).to_html(), encoding="utf8")
    with browser(tmp_path / "profile", dark=dark, size=(width, 800)) as page:
        page.show(tmp_path / "a.html")
        page.wait_for("return state.ready")
        assert page.run("return document.documentElement.dataset.theme") == (
            "dark" if dark else "light"
        )
        assert page.run("return document.documentElement.scrollWidth") <= width
        page.run("by('scrub').value = 7; by('scrub').dispatchEvent(new Event('input'))")
        assert page.run("return [state.frame, by('caption').textContent]") == [7, "frame 7 <&>"]
        page.run("dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', shiftKey: true}))")
        assert page.run("return state.frame") == 17
        np.testing.assert_allclose(
            page.run("return get(page.marks[0].x, 17, 2)"), drawn.marks[0].x[17, 2], atol=1e-3
        )
        page.run("by('play').click()")
        page.wait_for("return !state.playing && state.frame == 40")
        x, y = page.run(
            "const [x, y] = place(page.marks[0], 40, 1), box = by('world').getBoundingClientRect();"
            "return [x + box.left, y + box.top]"
        )
        page.command("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
        assert page.wait_for("return by('agent').textContent").startswith("walker 1 at")
        page.wait_for("return location.hash == '#t=40'")
        page.run("location.hash = '#t=3'")
        page.wait_for("return state.frame == 3")
        page.run(
            "HTMLAnchorElement.prototype.click = function () { window.saved = [this.href, "
            "this.download] }"
        )
        page.run("save()")
        saved, name = page.run("return saved")
        (tmp_path / name).write_bytes(base64.b64decode(saved.split(",")[1]))
        with Image.open(tmp_path / "frame_3.png") as image:
            assert image.size[0] > 0.9 * width - 20
            assert len(image.getcolors(10**6)) > 50
        assert page.errors() == []


@pytest.mark.slow
@in_a_browser
def test_player_draws_60_frames_of_1000_agents(tmp_path):
    (tmp_path / "a.html").write_text(Player(episode(100, 1000), fps=60).to_html(), encoding="utf8")
    with browser(tmp_path / "profile") as page:
        page.show(tmp_path / "a.html")
        page.wait_for("return state.ready")
        page.run("for (let t = 20; t < 80; t++) seek(t)")
        assert page.run("return state.frame") == 79
