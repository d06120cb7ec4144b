"""Special rules of classic control: walls, clipping, angles, costs and additional params."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium_parity import EPSILON, GAMES, as_numbers, as_state, compiled, our_steps, random_steps

import wdjax
from wdjax.envs.classic_control.game import wrap_angle

CARS = ["mountain_car", "continuous_mountain_car"]
NUM = 1000


def step(name, numbers, action, time=0, **changes):
    """Return (next numbers, reward, terminated, truncated)."""
    _, params = wdjax.make(name, **changes)
    kind = jnp.int32 if isinstance(action, int) else jnp.float32
    state = as_state(name, numbers, time)
    _, after, *rest, _ = compiled(name)[0](
        jax.random.key(0), state, jnp.asarray(action, kind), params
    )
    return as_numbers(name, after), *(leaf.item() for leaf in rest)


def test_random_steps_cover_all_limits():
    """The steps of the parity tests include each clip, wall and wrap at least 10 times."""
    _, starts, _, ours, theirs = random_steps("acrobot", NUM)
    # changes by more than half a turn are wrapped
    turned = np.round((theirs.numbers - starts)[:, :2] / (2 * np.pi))
    speeds = theirs.numbers[:, 2:] / [4 * np.pi, 9 * np.pi]
    edges = [*(turned > 0).T, *(turned < 0).T, *(speeds >= 1).T, *(speeds <= -1).T, ours.terminated]
    for name in CARS:
        _, _, _, ours, theirs = random_steps(name, NUM)
        place, speed = theirs.numbers.T
        at_wall = (place < -1.2 + 1e-6) & (speed == 0)
        edges += [
            at_wall,
            place > 0.6 - 1e-6,
            speed >= 0.07 - 1e-9,
            speed <= 1e-9 - 0.07,
            ours.terminated,
        ]
    _, starts, actions, _, theirs = random_steps("pendulum", NUM)
    theta, speed = theirs.numbers.T
    edges += [
        theta > np.pi,
        theta < -np.pi,
        speed >= 8,
        speed <= -8,
        actions[:, 0] > 2,
        actions[:, 0] < -2,
    ]
    counts = [int(np.sum(edge)) for edge in edges]
    assert min(counts) >= 10, counts


def test_wrap_angle_is_periodic():
    half = np.float32(np.pi)
    inside = np.array([-half, -3, -1e-30, 0, 0.3, np.nextafter(half, np.float32(0))], np.float32)
    np.testing.assert_array_equal(wrap_angle(jnp.asarray(inside)), inside)
    turns = np.array([[-3], [-1], [1], [2]])
    many = wrap_angle(jnp.asarray(inside + 2 * np.pi * turns, jnp.float32))
    # The argument, up to 7 pi, is rounded. pi and -pi are equal.
    np.testing.assert_allclose(
        np.cos(many), np.broadcast_to(np.cos(inside), many.shape), atol=32 * EPSILON
    )
    np.testing.assert_allclose(
        np.sin(many), np.broadcast_to(np.sin(inside), many.shape), atol=32 * EPSILON
    )
    assert (np.abs(many) <= np.pi + 32 * EPSILON).all()


def test_angles_of_acrobot_are_wrapped():
    _, _, _, ours, _ = random_steps("acrobot", NUM)
    assert (np.abs(ours.numbers[:, :2]) <= np.pi + 16 * EPSILON).all()


def test_gravity_of_acrobot_scales_time():
    """With 4 times the gravity and torque, motion is twice as fast.

    In gymnasium the gravity is a literal.
    """
    _, starts, actions, ours, _ = random_steps("acrobot", NUM)
    _, fast = wdjax.make(
        "acrobot",
        gravity=4 * 9.8,
        AVAIL_TORQUE=[-4, 0, 4],
        dt=0.1,
        MAX_VEL_1=8 * np.pi,
        MAX_VEL_2=18 * np.pi,
    )
    scale = np.array([1, 1, 2, 2])
    theirs = our_steps("acrobot", starts * scale, actions, fast)
    tolerance = 2 * GAMES["acrobot"].tolerance(starts)
    apart = theirs.numbers / scale - ours.numbers
    apart[:, :2] = (apart[:, :2] + np.pi) % (2 * np.pi) - np.pi
    assert (np.abs(apart) <= tolerance).all()


def test_gravity_of_continuous_mountain_car_is_that_of_mountain_car():
    """Actions -1, 0 and 1 correspond to mountain_car. gymnasium has the gravity as a literal."""
    shared = {"gravity": 0.004, "goal_position": 0.4}
    _, starts, actions, _, _ = random_steps("mountain_car", NUM)
    one = our_steps(
        "mountain_car", starts, actions, wdjax.make("mountain_car", force=0.002, **shared)[1]
    )
    push = (actions - 1)[:, None].astype(np.float32)
    other = our_steps(
        "continuous_mountain_car",
        starts,
        push,
        wdjax.make("continuous_mountain_car", power=0.002, **shared)[1],
    )
    np.testing.assert_array_equal(one.numbers, other.numbers)
    np.testing.assert_array_equal(one.terminated, other.terminated)


@pytest.mark.parametrize(("action", "torque"), [(0, -0.5), (1, 2.0), (2, 5.0)])
def test_actions_of_acrobot_apply_their_torques(action, torque):
    """At rest, d1 = 3.5 and d2 = 1.75. The torque turns the lower link, and the upper one back."""
    numbers, *_ = step("acrobot", (0, 0, 0, 0), action, AVAIL_TORQUE=[-0.5, 2.0, 5.0], dt=1e-3)
    d1, d2 = 1 * 0.25 + (1 + 0.25 + 1) + 2, 0.25 + 0.5 + 1
    acceleration = torque / (0.25 + 1 - d2**2 / d1)
    np.testing.assert_allclose(
        numbers[2:], [-d2 / d1 * acceleration * 1e-3, acceleration * 1e-3], rtol=1e-5
    )


@pytest.mark.parametrize("name", CARS)
def test_only_the_left_wall_stops_the_car(name):
    push = {"mountain_car": (0, 2), "continuous_mountain_car": ([-1.0], [1.0])}[name]
    numbers, *_ = step(name, (-1.19, -0.06), push[0])
    np.testing.assert_array_equal(numbers, np.array([-1.2, 0], np.float32))
    numbers, *_ = step(name, (-1.2, 0), push[1])
    assert numbers[0] > -1.2
    assert numbers[1] > 0
    numbers, _, terminated, _ = step(name, (0.58, 0.06), push[1], goal_position=0.6)
    assert numbers[0] == np.float32(0.6)
    assert numbers[1] > 0.05
    assert terminated


@pytest.mark.parametrize("name", CARS)
def test_goal_requires_its_velocity(name):
    push = {"mountain_car": 1, "continuous_mountain_car": [0.0]}[name]
    for speed, arrives in ((0.03, True), (0.02, False)):
        _, reward, terminated, _ = step(
            name, (0.49, speed), push, goal_position=0.5, goal_velocity=0.025
        )
        assert terminated == arrives
        assert reward == (-1 if name == "mountain_car" else 100 * arrives)


@pytest.mark.parametrize(("push", "force"), [(0.5, 0.5), (1.0, 1.0), (1.5, 1.0), (-3.0, -1.0)])
def test_cost_depends_on_the_unclipped_action(push, force):
    numbers, reward, *_ = step("continuous_mountain_car", (-0.5, 0.0), [push])
    np.testing.assert_allclose(numbers[1], 0.0015 * force - 0.0025 * np.cos(-1.5), atol=1e-9)
    np.testing.assert_allclose(reward, -0.1 * push**2, rtol=1e-6)


def test_cost_of_pendulum_depends_on_the_previous_state():
    for theta in (0.5, 0.5 + 2 * np.pi, 0.5 - 4 * np.pi):
        _, reward, *_ = step("pendulum", (theta, 2.0), [5.0])
        np.testing.assert_allclose(reward, -(0.25 + 0.4 + 0.004), rtol=1e-5)
    _, reward, *_ = step("pendulum", (np.pi - 0.1, 0.0), [0.0])
    np.testing.assert_allclose(reward, -((np.pi - 0.1) ** 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "numbers", "action"),
    [
        ("cartpole", (2.39, 1, 0, 0), 1),
        ("cartpole", (0, 0, -0.2, -1), 1),
        ("acrobot", (1.9, 0.2, 2, 0), 1),
        ("mountain_car", (0.49, 0.03), 2),
        ("continuous_mountain_car", (0.44, 0.03), [1.0]),
    ],
)
def test_termination_takes_precedence_over_the_time_limit(name, numbers, action):
    limit = int(wdjax.make(name)[1].episode_length)
    for time in (100, limit - 1):
        assert step(name, numbers, action, time)[2:] == (True, False)
    rest, rest_action = GAMES[name].rest, GAMES[name].rest_action
    rest_action = rest_action if isinstance(rest_action, int) else [0.0]
    assert step(name, rest, rest_action, limit - 2)[2:] == (False, False)
    assert step(name, rest, rest_action, limit - 1)[2:] == (False, True)
    assert step(name, rest, rest_action, 4, episode_length=5)[2:] == (False, True)
