"""Classic control against gymnasium: what tests need of each environment, and steps of both."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import wdjax

EPSILON = 2.0**-24  # half a unit in the last place of 1, in float32


class Steps(NamedTuple):
    """One step from each of N states."""

    obs: np.ndarray  # [N, ...] float32
    numbers: np.ndarray  # [N, D], the next state without time
    reward: np.ndarray  # [N]
    terminated: np.ndarray  # [N] bool


@dataclasses.dataclass(frozen=True)
class Game:
    """Data for the tests of one environment.

    States are rows [N, D] in the order of `fields`, without time.
    """

    gym_id: str
    fields: tuple[str, ...]
    draw_starts: Callable  # (rng, num, params) -> [num, D], many at the limits of the rules
    draw_actions: Callable  # (rng, num) -> [num] int or [num, 1] float
    # starts [N, D] -> [N, 1] or [N, D], allowed distance of float32 from float64 after a step
    tolerance: Callable
    # (numbers [N, D], params) -> [N], distance beyond the end; negative before it
    beyond: Callable
    starts: tuple[tuple[float, float], ...]  # (low, high) of each field after a reset
    rest: tuple[float, ...]  # a state in which action `rest_action` does not end the episode
    rest_action: Any
    ended: tuple[tuple[float, ...], ...]  # states in which the episode has ended
    changes: dict[str, Any]  # params that differ from the defaults
    reward_tolerance: float = 0.0
    # name in wdjax -> name in gymnasium, where they differ
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    derived: Callable = lambda theirs: None  # updates the derived values of gymnasium


def near(rng, edges, num, width):
    """Return [num] numbers within `width` of one of the edges, on both sides."""
    return rng.choice(edges, num) + rng.uniform(-width, width, num)


def cartpole_starts(rng, num, params):
    edges = np.array([params.x_threshold, params.theta_threshold_radians])
    rows = rng.uniform(-1, 1, (num, 4)) * [edges[0], 3.0, edges[1], 3.0]
    third = num // 3
    rows[:third, 0] = near(rng, [-edges[0], edges[0]], third, 0.05)
    rows[third : 2 * third, 2] = near(rng, [-edges[1], edges[1]], third, 0.004)
    return rows


def cartpole_beyond(numbers, params):
    edges = np.array([params.x_threshold, params.theta_threshold_radians])
    return np.max(np.abs(numbers[:, [0, 2]]) - edges, axis=1)


def cartpole_derived(theirs):
    theirs.total_mass = theirs.masspole + theirs.masscart
    theirs.polemass_length = theirs.masspole * theirs.length


def acrobot_starts(rng, num, params):
    """Return half of the states at low speeds, as in most episodes, and half at all speeds."""
    rows = rng.uniform(-1, 1, (num, 4)) * [np.pi, np.pi, params.MAX_VEL_1, params.MAX_VEL_2]
    rows[: num // 2, 2:] *= 0.1
    rows[::4, 0] = near(rng, [-np.pi, np.pi], len(rows[::4]), 0.1)  # most of these wrap around
    return rows


def acrobot_beyond(numbers, params):
    return -np.cos(numbers[:, 0]) - np.cos(numbers[:, 0] + numbers[:, 1]) - 1


def car_starts(rng, num, params):
    rows = rng.uniform(-1, 1, (num, 2)) * [0, params.max_speed]
    rows[:, 0] = rng.uniform(params.min_position, params.max_position, num)
    third = num // 3
    rows[:third, 0] = near(rng, [params.min_position], third, params.max_speed)
    rows[third : 2 * third, 0] = near(rng, [params.goal_position], third, params.max_speed)
    rows[1::5, 1] = rng.choice([-1, 1], len(rows[1::5])) * params.max_speed
    # slowly backwards at the far end: a push moves them into it, at the goal
    last = len(rows[::10])
    rows[::10] = np.stack(
        [params.max_position - rng.uniform(0, 2e-4, last), rng.uniform(-1e-3, 0, last)], axis=1
    )
    rows[:, 0] = np.clip(rows[:, 0], params.min_position, params.max_position)
    return rows


def car_beyond(numbers, params):
    return np.min(numbers - [params.goal_position, params.goal_velocity], axis=1)


def pendulum_starts(rng, num, params):
    rows = rng.uniform(-1, 1, (num, 2)) * [4 * np.pi, params.max_speed]
    rows[::3, 0] = near(rng, np.pi * np.array([-3, -1, 1, 3]), len(rows[::3]), 0.3)
    return rows


def car(gym_id, goal, draw_actions, rest_action, changes, **more):
    return Game(
        gym_id,
        ("position", "velocity"),
        car_starts,
        draw_actions,
        # Sums of numbers up to 1.2 (positions) and 0.07 (velocities), each rounded a few times.
        tolerance=lambda starts: np.array([[4 * 1.2 * EPSILON, 4 * 0.07 * EPSILON]]),
        beyond=car_beyond,
        starts=((-0.6, -0.4), (0, 0)),
        rest=(-0.5, 0.0),
        rest_action=rest_action,
        ended=((goal, 0.0), (0.6, 0.07), (0.55, 0.001)),
        changes=changes,
        **more,
    )


GAMES = {
    "acrobot": Game(
        "Acrobot-v1",
        ("theta1", "theta2", "theta1_dot", "theta2_dot"),
        acrobot_starts,
        lambda rng, num: rng.integers(0, 3, num),
        # Accelerations contain squares of speeds, up to 800 (rad/s)^2, and their rounding errors.
        tolerance=lambda starts: (
            8 * EPSILON * (1 + np.sum(starts[:, 2:] ** 2, axis=1, keepdims=True))
        ),
        beyond=acrobot_beyond,
        starts=((-0.1, 0.1),) * 4,
        rest=(0.1, 0.0, 0.0, 0.0),
        rest_action=1,
        ended=((np.pi, 0.0, 1.0, 0.0), (2.0, 1.0, 0.0, -2.0), (-3.0, -0.1, 12.0, 28.0)),
        changes={
            "LINK_LENGTH_1": 1.3,
            "LINK_LENGTH_2": 0.8,
            "LINK_MASS_1": 0.7,
            "LINK_MASS_2": 1.4,
            "LINK_COM_POS_1": 0.6,
            "LINK_COM_POS_2": 0.3,
            "LINK_MOI": 1.2,
            "MAX_VEL_1": 9.0,
            "MAX_VEL_2": 20.0,
            "dt": 0.15,
            "AVAIL_TORQUE": [-2.0, 0.5, 3.0],
        },
    ),
    "cartpole": Game(
        "CartPole-v1",
        ("x", "x_dot", "theta", "theta_dot"),
        cartpole_starts,
        lambda rng, num: rng.integers(0, 2, num),
        # Sums of numbers up to 8, each rounded a few times.
        tolerance=lambda starts: np.full((1, 1), 2 * 8 * EPSILON),
        beyond=cartpole_beyond,
        starts=((-0.05, 0.05),) * 4,
        rest=(0.0, 0.0, 0.0, 0.0),
        rest_action=0,
        ended=((2.5, 0.3, 0.1, 0.2), (-2.41, 1, 0, 0), (0, 0, 0.22, -5), (0, 0, -0.3, 9)),
        changes={
            "masscart": 2.5,
            "masspole": 0.7,
            "length": 0.9,
            "gravity": 3.0,
            "force_mag": 6.0,
            "tau": 0.05,
            "x_threshold": 1.5,
            "theta_threshold_radians": 0.5,
        },
        derived=cartpole_derived,
    ),
    "continuous_mountain_car": car(
        "MountainCarContinuous-v0",
        0.45,
        lambda rng, num: rng.uniform(-2, 2, (num, 1)),
        np.zeros(1, np.float32),
        {
            "min_action": -0.5,
            "max_action": 1.5,
            "min_position": -1.0,
            "max_position": 0.7,
            "max_speed": 0.05,
            "goal_position": 0.3,
            "goal_velocity": 0.01,
            "power": 0.004,
        },
        reward_tolerance=100 * EPSILON,
    ),
    "mountain_car": car(
        "MountainCar-v0",
        0.5,
        lambda rng, num: rng.integers(0, 3, num),
        1,
        {
            "min_position": -1.0,
            "max_position": 0.7,
            "max_speed": 0.05,
            "goal_position": 0.3,
            "goal_velocity": 0.01,
            "force": 0.003,
            "gravity": 0.004,
        },
    ),
    "pendulum": Game(
        "Pendulum-v1",
        ("theta", "theta_dot"),
        pendulum_starts,
        lambda rng, num: rng.uniform(-3, 3, (num, 1)),
        # Sums of numbers up to 16, each rounded a few times.
        tolerance=lambda starts: np.full((1, 1), 2 * 16 * EPSILON),
        beyond=lambda numbers, params: np.full(len(numbers), -1.0),
        starts=((-np.pi, np.pi), (-1, 1)),
        rest=(0.0, 0.0),
        rest_action=np.zeros(1, np.float32),
        ended=(),
        changes={
            "max_speed": 6.0,
            "max_torque": 1.5,
            "dt": 0.08,
            "gravity": 9.81,
            "m": 0.6,
            "l": 1.7,
        },
        # costs reach 16, and their angle has the rounding error of 4 pi
        reward_tolerance=8 * 16 * EPSILON,
        names={"gravity": "g"},
    ),
}


@functools.cache
def compiled(name):
    """Return (one step, N steps) of an environment. Both take (key, state, action, params)."""
    env, _ = wdjax.make(name)
    return jax.jit(env.step), jax.jit(jax.vmap(env.step, (None, 0, 0, None)))


@functools.cache
def state_type(name):
    env, params = wdjax.make(name)
    return type(jax.eval_shape(env.reset, jax.random.key(0), params)[1])


def as_state(name, numbers, time=0):
    """Return the state with these numbers, [D], or N states from [N, D]."""
    columns = np.asarray(numbers, np.float32).T
    return state_type(name)(*jnp.asarray(columns), jnp.full(columns.shape[1:], time, jnp.int32))


def as_numbers(name, state):
    """Return the numbers of a state without time, [D] or [N, D]. Inverse of `as_state`."""
    return np.stack([np.asarray(getattr(state, field)) for field in GAMES[name].fields], axis=-1)


def as_action(action):
    action = np.asarray(action)
    return jnp.asarray(action, jnp.int32 if action.dtype.kind == "i" else jnp.float32)


def our_steps(name, starts, actions, params):
    """Return one step from each of the states [N, D]."""
    state, action = as_state(name, starts), as_action(actions)
    obs, after, reward, terminated, truncated, _ = compiled(name)[1](
        jax.random.key(0), state, action, params
    )
    assert not truncated.any()
    assert (after.time == 1).all()
    return Steps(
        np.asarray(obs), as_numbers(name, after), np.asarray(reward), np.asarray(terminated)
    )


def their_env(name, params=None):
    """Return gymnasium's environment without wrappers, with the changes in `params` if given."""
    game = GAMES[name]
    env = gymnasium.make(game.gym_id).unwrapped
    env.reset(seed=0)
    if params is not None:
        for change in game.changes:
            value = np.asarray(getattr(params, change)).tolist()  # rounded to float32
            assert hasattr(env, game.names.get(change, change))
            setattr(env, game.names.get(change, change), value)
        game.derived(env)
    return env


def put(env, numbers):
    """Set the state of a gymnasium environment without wrappers."""
    env.state = np.asarray(numbers, np.float64)
    env.steps_beyond_terminated = None  # of CartPole


def as_their_action(action):
    return int(action) if np.ndim(action) == 0 else np.asarray(action, np.float64)


def their_steps(env, starts, actions):
    """Return one step of a gymnasium environment from each of the states [N, D]."""
    rows = []
    for start, action in zip(starts, actions, strict=True):
        put(env, start)
        obs, reward, terminated, truncated, _ = env.step(as_their_action(action))
        assert not truncated
        rows.append((obs, np.array(env.state, np.float64), reward, terminated))
    return Steps(*(np.array(column) for column in zip(*rows, strict=True)))


def random_steps(name, num, seed=0, changed=False):
    """Return (params, starts, actions, steps of wdjax, steps of gymnasium).

    Both start in the same states, before the end, and take the same actions.
    """
    game, rng = GAMES[name], np.random.default_rng(seed)
    _, params = wdjax.make(name, **(game.changes if changed else {}))
    starts = game.draw_starts(rng, 3 * num, params).astype(np.float32)
    starts = rng.permutation(starts[game.beyond(starts, params) < 0])[:num]
    assert len(starts) == num
    actions = game.draw_actions(rng, num)
    actions = actions.astype(np.float32) if actions.dtype.kind == "f" else actions
    theirs = their_steps(their_env(name, params if changed else None), starts, actions)
    return params, starts, actions, our_steps(name, starts, actions, params), theirs
