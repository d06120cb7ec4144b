"""The scripted policies of Tag, one decision at a time, by hand."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.envs.tag import continuous, gridworld

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
PLANE = {
    "num_taggers": 2,
    "num_runners": 2,
    "num_acceleration_levels": 3,
    "num_turn_levels": 5,
    "grid_length": 10.0,
    "min_acceleration": -0.5,
    "max_acceleration": 0.5,
    "min_turn": -math.pi / 2,
    "max_turn": math.pi / 2,
}
SLOWER, FASTER = 1, 3  # acceleration levels 1 .. 3: -0.5, 0, 0.5
# turn levels 1 .. 5: -pi/2, -pi/4, 0, pi/4, pi/2; index 0 is none
RIGHT, HALF_RIGHT, HALF_LEFT, LEFT = 1, 2, 4, 5


def plane(x, y, direction, speed=(0.0,) * 4, active=(True,) * 4):
    """Return a state of two taggers and two runners. Directions are in quarter circles."""
    arrays = [jnp.array(values, jnp.float32) for values in (x, y, speed)]
    direction = jnp.array(direction, jnp.float32) * math.pi / 2
    return continuous.State(*arrays, direction, jnp.zeros(4), jnp.array(active), jnp.int32(3))


@functools.partial(jax.jit, static_argnums=(0, 1))  # compiles one program, not one per operation
def follow(script, env, *rest):
    return env.scripts[script][1](env, *rest)


chase, flee = (functools.partial(follow, script) for script in ("chase_nearest", "flee_nearest"))


@pytest.fixture(scope="module")
def game():
    return wdjax.make("tag_continuous", **PLANE)


def test_chase_turns_to_the_nearest_active_runner(game):
    state = plane(x=[5, 1, 5, 9], y=[5, 1, 8, 1], direction=[0, 3, 0, 0])
    chosen = chase(game[0], state, game[1], KEY)
    assert chosen.dtype == jnp.int32
    # up; (8, 7) from a downward heading is 131 degrees
    np.testing.assert_array_equal(chosen, [[FASTER, LEFT], [FASTER, HALF_LEFT + 1]])
    # the nearest is now at (4, -4) and (8, 0)
    alone = state.replace(active=jnp.array([True, True, False, True]))
    np.testing.assert_array_equal(
        chase(game[0], alone, game[1], KEY), [[FASTER, HALF_RIGHT], [FASTER, LEFT]]
    )


def test_chase_brakes_if_it_cannot_turn_or_would_overshoot(game):
    behind = plane(x=[5, 5, 1, 1], y=[5, 5, 5, 5], direction=[0, 2, 0, 0], speed=[0.6, 0.5, 0, 0])
    chosen = chase(
        game[0], behind, game[1].replace(min_turn=-math.pi / 4, max_turn=math.pi / 4), KEY
    )
    assert chosen[0, 0] == SLOWER  # three eighths of a circle remain after the sharpest turn
    assert chosen[1, 0] == FASTER  # already in the right direction
    near = plane(x=[5, 9, 5.1, 9], y=[5, 9, 5, 0], direction=[0, 0, 0, 0], speed=[0.5, 0, 0, 0])
    # distance 0.1 at 0.5 per step
    np.testing.assert_array_equal(chase(game[0], near, game[1], KEY)[0], [SLOWER, 0])


def test_flee_turns_away_at_full_speed(game):
    state = plane(x=[5, 1, 5, 2], y=[5, 1, 8, 1], direction=[0, 0, 0, 3], speed=[0, 0, 1.0, 0.0])
    chosen = flee(game[0], state, game[1], KEY)
    assert chosen[0, 1] == LEFT  # the tagger is below, so up
    assert chosen[0, 0] in (0, 2)  # already at the limit
    speeding = state.replace(
        speed=jnp.array([0, 0, 0.6, 0.6]), acceleration=jnp.array([0, 0, 0.5, 0.0])
    )
    accelerate = flee(game[0], speeding, game[1], KEY)[:, 0]
    # accelerations add up: the previous one already leads from 0.6 to 1.1
    assert accelerate[0] in (0, 2)
    assert accelerate[1] == FASTER
    slow = game[1].replace(skill_level_runner=0.6)  # scales the limit of 1, for runners only
    assert flee(game[0], speeding, slow, KEY)[1, 0] in (0, 2)
    # heading down, with the tagger to the left: turn right
    np.testing.assert_array_equal(chosen[1], [FASTER, LEFT])


def test_chase_tags_a_resting_runner():
    """The time is about the shortest possible."""
    env, params = wdjax.make(
        "tag_continuous", **PLANE | {"num_taggers": 1, "num_runners": 1, "tagging_distance": 0.03}
    )
    params = params.replace(
        starting_location_x=np.array([1.0, 8.0]), starting_location_y=np.array([2.0, 9.0])
    )
    _, state = jax.jit(env.reset)(KEY, params)

    def step(state, _):
        action = {
            "tagger": chase(env, state, params, KEY),
            "runner": jnp.zeros((1, 2), jnp.int32),
        }
        return env.step(KEY, state, action, params)[1], state.active[1]

    _, alive = jax.lax.scan(step, state, length=30)
    # distance 9.9 at no more than 1 per step from rest, with margin 0.3
    assert 10 <= int(alive.sum()) <= 14


def grid(x, y):
    return gridworld.State(jnp.array(x, jnp.int32), jnp.array(y, jnp.int32), jnp.int32(1))


def test_scripts_of_tag_gridworld():
    """Actions: 0 stay, 1 x+1, 2 x-1, 3 y+1, 4 y-1. The longer direction is first."""
    env, params = wdjax.make("tag_gridworld", num_taggers=3, grid_length=6)
    state = grid([3, 1, 4, 3], [0, 2, 3, 3])
    np.testing.assert_array_equal(chase(env, state, params, KEY), [3, 1, 2])
    # from (4, 3), where y+1 increases the distance less
    np.testing.assert_array_equal(flee(env, state, params, KEY), [2])
    apart = grid([0, 5, 2, 2], [0, 3, 6, 3])  # distances (2, 3), (3, 0), (0, 3)
    np.testing.assert_array_equal(chase(env, apart, params, KEY), [3, 2, 4])
    cornered = grid([2, 6, 6, 0], [0, 6, 6, 0])
    # along the wall
    np.testing.assert_array_equal(flee(env, cornered, params, KEY), [3])
    walled = grid([0, 6, 6, 0], [3, 6, 6, 6])
    # y+1 is blocked by the wall
    np.testing.assert_array_equal(flee(env, walled, params, KEY), [1])


@pytest.mark.parametrize("name", ["tag_continuous", "tag_gridworld"])
def test_scripts_return_valid_actions(name):
    env, params = wdjax.make(name)
    _, state = jax.jit(env.reset)(KEY, params)
    action = {
        group: follow(script, env, state, params, KEY) for script, (group, _) in env.scripts.items()
    }
    assert env.action_space(params).contains(action)
