"""Pictures and GIFs of environments, their colors and frames, and errors."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from matplotlib.figure import Figure
from PIL import Image

import wdjax
from wdjax import rendering
from wdjax.drawing import Lines, Scene, Shapes, axes, raster
from wdjax.envs.tag.drawing import share_cells

TAGGER, RUNNER = (0xC8, 0x43, 0xC3), (0x24, 0x5E, 0xB6)
GAMES = {
    "acrobot": {},
    "cartpole": {},
    "continuous_mountain_car": {},
    "mountain_car": {},
    "pendulum": {},
    "tag_continuous": {"num_taggers": 2, "num_runners": 8},
    "tag_gridworld": {"num_taggers": 4},
}
# environments with slow tests only
OTHERS = sorted(GAMES.keys() - {"cartpole", "tag_continuous"})


@functools.cache
def after_reset(name, **arguments):
    """Return (env, params, state after a reset), with NumPy arrays."""
    env, params = wdjax.make(name, **arguments)
    return env, params, jax.device_get(jax.jit(env.reset)(jax.random.key(0), params)[1])


@functools.cache
def play(name):
    """Return (env, params, states [9]) of eight random steps, with NumPy arrays."""
    env, params, state = after_reset(name, **GAMES[name])

    def step(state, key):
        state = env.step(key, state, env.action_space(params).sample(key), params)[1]
        return state, state

    states = jax.jit(lambda keys: jax.lax.scan(step, state, keys)[1])(
        jax.random.split(jax.random.key(1), 8)
    )
    return (
        env,
        params,
        jax.tree.map(lambda first, rest: np.concatenate([first[None], rest]), state, states),
    )


def at(states, t):
    return jax.tree.map(lambda leaf: leaf[t], states)


def count(picture, color):
    return int(np.sum(np.all(picture == color, axis=-1)))


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("size", [(640, 480), (333, 257)])
def test_environments_draw_in_any_size(name, size):
    env, params, states = play(name)
    picture = wdjax.render(env, at(states, 2), params, size=size)
    assert picture.dtype == np.uint8
    assert picture.shape == (size[1], size[0], 3)
    assert np.mean(np.any(picture != 255, axis=-1)) > 0.02
    assert not np.array_equal(picture, wdjax.render(env, at(states, 3), params, size=size))


@pytest.mark.parametrize("name", wdjax.list_envs())
def test_every_registered_environment_draws(name):
    env, params, state = after_reset(name)
    height, width, channels = wdjax.render(env, state, params).shape
    assert (width, channels) == (640, 3)
    assert height <= 480


@pytest.mark.parametrize("name", ["tag_continuous", "tag_gridworld"])
def test_groups_have_distinct_colors(name):
    env, params, states = play(name)
    picture = wdjax.render(env, at(states, 1), params)
    assert count(picture, TAGGER) > 50
    assert count(picture, RUNNER) > 50


def test_inactive_runners_lose_their_color():
    env, params, states = play("tag_continuous")
    state = at(states, 1)
    all_active = wdjax.render(env, state, params)
    none_active = wdjax.render(env, state.replace(active=env.is_tagger), params)
    assert count(none_active, TAGGER) == pytest.approx(count(all_active, TAGGER), rel=0.2)
    assert count(none_active, RUNNER) < 0.3 * count(all_active, RUNNER)  # runners in the legend


def test_direction_is_drawn():
    env, params, states = play("tag_continuous")
    state = at(states, 1)
    turned = state.replace(direction=state.direction + np.float32(1.0))
    assert not np.array_equal(wdjax.render(env, state, params), wdjax.render(env, turned, params))


def test_jax_and_numpy_arrays_give_the_same_picture():
    env, params, states = play("tag_continuous")
    state = at(states, 1)
    expected = wdjax.render(env, state, params)
    np.testing.assert_array_equal(
        wdjax.render(env, jax.tree.map(jnp.asarray, state), params), expected
    )
    np.testing.assert_array_equal(
        wdjax.render(env, state, jax.tree.map(jnp.asarray, params)), expected
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tag_continuous", {"num_taggers": 1, "num_runners": 1}),
        ("tag_continuous", {"num_taggers": 10, "num_runners": 100}),
        ("tag_gridworld", {"num_taggers": 10, "grid_length": 100}),  # all taggers in one small cell
    ],
)
def test_few_and_many_agents(name, arguments):
    env, params, state = after_reset(name, **arguments)
    picture = wdjax.render(env, state, params)
    assert count(picture, TAGGER) > 30
    assert count(picture, RUNNER) > 30


def test_agents_in_one_cell_are_drawn_apart():
    x, y = np.array([3, 3, 3, 7, 3, 3]), np.array([2, 2, 2, 2, 2, 2])
    places_x, places_y, side = share_cells(x, y)
    np.testing.assert_array_equal(side, [3, 3, 3, 1, 3, 3])
    assert len(set(zip(places_x, places_y, strict=True))) == 6
    np.testing.assert_array_equal((np.round(places_x), np.round(places_y)), (x, y))
    assert (places_x[3], places_y[3]) == (7, 2)


@pytest.mark.parametrize(
    "name",
    [
        "cartpole",
        "tag_continuous",
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_gif_has_a_frame_for_every_state(name, tmp_path):
    env, params, states = play(name)
    path, states = tmp_path / "new" / "game.gif", jax.tree.map(lambda leaf: leaf[:4], states)
    rendering.save_gif(path, env, states, params, fps=20)
    with Image.open(path) as gif:
        assert (gif.n_frames, gif.info["loop"]) == (4, 0)
        durations = []
        for t in range(4):
            gif.seek(t)
            gif.load()
            durations.append(gif.info["duration"])
        last = np.asarray(gif.convert("RGB"))
    assert durations == [50] * 3 + [1500]
    assert tuple(last[0, 0]) == (255, 255, 255)
    assert count(last, TAGGER) > 50 or not name.startswith("tag")
    # without trails, frames agree except for shades
    if name in ("cartpole", "mountain_car", "continuous_mountain_car"):
        exact = wdjax.render(env, at(states, 3), params)
        assert last.shape == exact.shape
        assert np.abs(last.astype(int) - exact).max() < 64


def scene_of(name, numbers, **arguments):
    """Return the scene of a state with these numbers."""
    env, params, state = after_reset(name, **arguments)
    fields = [field.name for field in dataclasses.fields(state)]
    state = state.replace(
        **dict(zip(fields, (*map(np.float32, numbers), np.int32(7)), strict=True))
    )
    return env.scene(jax.tree.map(lambda leaf: np.asarray(leaf)[None], state), params)


def ends(scene):
    """Return the last point (x, y) of every line in the first frame."""
    return [
        tuple(np.round(line[-1], 4))
        for mark in scene.marks
        if isinstance(mark, Lines)
        for line in mark.points[0]
    ]


def test_acrobot_is_drawn_to_scale():
    scene = scene_of("acrobot", (np.pi / 2, 0.5, 0, 0))
    assert scene.captions == ("step 7 of 500, tip at +0.48 m",)
    # the first line is the goal
    assert ends(scene)[1:] == [(1, 0), (round(1 + np.cos(0.5), 4), round(np.sin(0.5), 4))]
    scene = scene_of("acrobot", (np.pi, 0.1, 0, 0), LINK_LENGTH_1=2.0)
    assert scene.captions == ("step 7 of 500, swung up",)
    assert (0, 2) in ends(scene)
    assert len(ends(scene)) == 2  # without a goal line, since the goal is not a height


def test_car_is_drawn_on_the_track():
    for name, goal in (("mountain_car", 0.5), ("continuous_mountain_car", 0.45)):
        scene = scene_of(name, (-0.1, -0.035))
        assert scene.captions[0].endswith("velocity -0.035 m/step")
        wheels = next(
            mark for mark in scene.marks if isinstance(mark, Shapes) and mark.x.shape == (1, 2)
        )
        np.testing.assert_allclose(
            (wheels.x.mean(), wheels.y.mean()), (-0.1, 0.55 + 0.45 * np.sin(-0.3)), atol=0.025
        )
        assert scene_of(name, (goal, 0.0)).captions[0].endswith("arrived")
        assert not scene_of(name, (goal, -0.001)).captions[0].endswith("arrived")
        assert not scene_of(name, (goal - 0.01, 0.01)).captions[0].endswith("arrived")


def test_pendulum_turns_counter_clockwise():
    scene = scene_of("pendulum", (np.pi / 6 + 4 * np.pi, -1.5), l=2.0)
    assert scene.captions == ("step 7 of 200, 30° from upright, -1.5 rad/s",)
    assert (-1, round(np.sqrt(3), 4)) in ends(scene)


def last_frame(env, states, params, trail):
    scene = dataclasses.replace(env.scene(states, params), trail=trail)
    return raster.picture(scene)[:, :460]  # the world, without the plots


def test_trail_shows_previous_positions():
    env, params, states = play("tag_continuous")
    assert not np.array_equal(
        last_frame(env, states, params, 0), last_frame(env, states, params, 6)
    )


def test_trail_ends_at_a_reset():
    env, params, states = play("tag_continuous")
    states = states.replace(time=np.array([5, 6, 7, 8, 9, 10, 0, 1, 2], np.int32))
    this_episode = jax.tree.map(lambda leaf: leaf[6:], states)
    np.testing.assert_array_equal(
        last_frame(env, states, params, 8), last_frame(env, this_episode, params, 8)
    )
    assert not np.array_equal(
        last_frame(env, states, params, 8), last_frame(env, states, params, 0)
    )


def test_png_equals_the_rendered_picture(tmp_path):
    env, params, states = play("cartpole")
    rendering.save_png(tmp_path / "new" / "cart.png", env, at(states, 1), params)
    with Image.open(tmp_path / "new" / "cart.png") as png:
        np.testing.assert_array_equal(np.asarray(png), wdjax.render(env, at(states, 1), params))


@struct.dataclass
class BareState:
    time: jax.Array


@struct.dataclass
class BareParams:
    episode_length: int = 3


@dataclasses.dataclass(frozen=True)
class Bare(wdjax.Env):
    @property
    def default_params(self):
        return BareParams()

    def reset(self, key, params):
        return jnp.zeros(1), BareState(jnp.int32(0))

    def step(self, key, state, action, params):
        raise AssertionError

    def observation_space(self, params):
        return wdjax.Box(shape=(1,))

    def action_space(self, params):
        return wdjax.Discrete(2)


@struct.dataclass
class KeyedState:
    time: jax.Array
    key: jax.Array


class Keyed(Bare):
    def reset(self, key, params):
        return jnp.zeros(1), KeyedState(jnp.int32(0), key)

    def scene(self, states, params):
        return Scene([], [f"step {t}" for t in states.time], (0, 0, 1, 1))


def test_states_with_keys_are_drawn(tmp_path):
    keys, time = jax.random.split(jax.random.key(0), 3), np.arange(3, dtype=np.int32)
    picture = wdjax.render(Keyed(), KeyedState(time[1], keys[1]), BareParams())
    # typed keys, and their data as recorded
    for stored_keys in (keys, np.asarray(jax.random.key_data(keys))):
        rendering.save_png(
            tmp_path / "a.png", Keyed(), KeyedState(time[1], stored_keys[1]), BareParams()
        )
        with Image.open(tmp_path / "a.png") as png:
            np.testing.assert_array_equal(np.asarray(png), picture)
        assert (
            rendering.make_scene(Keyed(), KeyedState(time, stored_keys), BareParams()).num_frames
            == 3
        )
        wdjax.render(
            Keyed(), KeyedState(time, stored_keys), BareParams(), output=tmp_path / "a.html"
        )
    ground = Figure().add_subplot()
    history = KeyedState(time[:1], keys[:1])
    Keyed().draw(ground, KeyedState(time[1], keys[1]), BareParams(), history)
    np.testing.assert_array_equal(ground.images[0].get_array(), picture)


def test_environment_without_a_drawing_raises(tmp_path):
    with pytest.raises(
        NotImplementedError, match=r"Bare has no drawing\. Implement the method scene\(states"
    ):
        wdjax.render(Bare(), BareState(np.int32(0)), BareParams())
    with pytest.raises(NotImplementedError, match="Bare has no drawing"):
        rendering.save_gif(
            tmp_path / "bare.gif", Bare(), BareState(np.zeros(2, np.int32)), BareParams()
        )
    assert not (tmp_path / "bare.gif").exists()


def test_render_rejects_states_of_wrong_shape(tmp_path):
    env, params, states = play("tag_continuous")
    with pytest.raises(
        ValueError, match=r"state.x has shape \[1, 9, 10\]: must be \[10\].*select one"
    ):
        wdjax.render(env, jax.tree.map(lambda leaf: leaf[None], states), params)
    with pytest.raises(ValueError, match=r"state.x has shape \[10\]: must be \[T, 10\]"):
        rendering.save_gif(tmp_path / "a.gif", env, at(states, 0), params)
    with pytest.raises(ValueError, match="at least one state"):
        rendering.save_gif(
            tmp_path / "a.gif", env, jax.tree.map(lambda leaf: leaf[:0], states), params
        )
    _, batch = jax.jit(wdjax.vectorize(env, 2).reset)(jax.random.key(0), params)
    with pytest.raises(TypeError, match=r"VectorState.*pass its env_state"):
        wdjax.render(env, batch, params)
    with pytest.raises(
        TypeError,
        match=r"classic_control.cartpole.State: must be a wdjax.envs.tag.continuous.State",
    ):
        wdjax.render(env, at(play("cartpole")[2], 0), params)
    with pytest.raises(TypeError, match="must be a Params of TagContinuous"):
        wdjax.render(env, at(states, 0), play("cartpole")[1])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"fps": 0}, "fps = 0: must be above 0"),
        ({"fps": 51}, "at most 50"),
        ({"trail": -1}, "trail = -1"),
        ({"hold": -1.0}, "hold"),
        ({"hold": "long"}, "hold = 'long': must be a number of seconds"),
        ({"fps": "fast"}, "fps = 'fast': must be above 0"),
        ({"size": 640}, r"size = 640: must be \(width, height\)"),
        ({"size": (640, 20)}, "the height = 20: must be at least 100"),
    ],
)
def test_invalid_gif_arguments_raise(argument, message, tmp_path):
    env, params, states = play("cartpole")
    with pytest.raises(ValueError, match=message):
        rendering.save_gif(tmp_path / "a.gif", env, states, params, **argument)


class Camera(Bare):
    """Shows a different range in every state, and a different legend from the third on."""

    def draw(self, axes, state, params, history=None):
        time = int(state.time)
        axes.plot([0, 9], [0, 9], label="early" if time < 2 else "late")
        axes.set(xlim=(min(time, 1), 9), ylabel="height [m]", title=f"step {time}")
        axes.legend()


class Still(Bare):
    """Shows the same range in every state, with moving content."""

    def draw(self, axes, state, params, history=None):
        axes.plot([0, int(state.time)], [0, 5], "o-", label="path")
        axes.set(xlim=(0, 9), ylim=(0, 9), title=f"step {int(state.time)}")
        axes.legend()


@pytest.mark.parametrize("name", ["still", "camera"])
def test_frames_of_one_figure_equal_separate_pictures(name):
    if name == "camera":
        env, params, states = Camera(), BareParams(), BareState(np.array([0, 1, 1, 2], np.int32))
    else:
        env, params, states = Still(), BareParams(), BareState(np.arange(5, dtype=np.int32))
    steps = range(len(states.time))
    frames = [frame.copy() for frame in axes.draw_frames(env, states, params, steps, 4, (320, 240))]
    for t in steps:
        # the first frame determines the layout
        *_, last = axes.draw_frames(env, states, params, sorted({0, t}), 4, (320, 240))
        np.testing.assert_array_equal(last, frames[t])
