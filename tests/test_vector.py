"""`vectorize`: resets in the step in which an episode ends, and initial states."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_walk import Params, Walk

import wdjax
from wdjax import ResetPool
from wdjax.branches import all_agents

T, N = 40, 6  # steps and replicas of most runs
SMALL_TAG = {"num_taggers": 3, "grid_length": 3, "episode_length": 7, "random_start": True}
GAMES = {
    "tag": ("tag_gridworld", tuple(SMALL_TAG.items())),
    "cartpole": ("cartpole", (("episode_length", 15),)),
    "walk": ("walk", ()),
}
each_game = pytest.mark.parametrize(("name", "arguments"), GAMES.values(), ids=GAMES.keys())


@functools.cache
def play(name, arguments, num_envs=N, reset="fresh", num_steps=T, seed=0):
    """Return a random rollout with leaves [T, num_envs, ...] as a dict.

    Keys: env, params, first_obs and first_state of the reset, and before, action, obs, after,
    reward, terminated, truncated and info of the steps.
    """
    env, params = (Walk(), Params()) if name == "walk" else wdjax.make(name, **dict(arguments))
    replicas = wdjax.vectorize(env, num_envs, reset)

    def body(state, key):
        action_key, step_key = jax.random.split(key)
        action = jax.vmap(env.action_space(params).sample)(jax.random.split(action_key, num_envs))
        obs, after, reward, terminated, truncated, info = replicas.step(
            step_key, state, action, params
        )
        record = {
            "before": state.env_state,
            "action": action,
            "obs": obs,
            "after": after.env_state,
            "reward": reward,
        }
        return after, {**record, "terminated": terminated, "truncated": truncated, "info": info}

    @jax.jit
    def run(key):
        reset_key, key = jax.random.split(key)
        obs, state = replicas.reset(reset_key, params)
        _, history = jax.lax.scan(body, state, jax.random.split(key, num_steps))
        return {"first_obs": obs, "first_state": state, **history}

    return {"env": env, "params": params, **jax.tree.map(np.asarray, run(jax.random.key(seed)))}


def observe(game, states):
    """Return the observations of `states`, leaves [n, ...]."""
    env, params = game["env"], game["params"]
    return jax.jit(jax.vmap(lambda state: env.observe(state, params)))(states)


def pick(tree, rows):
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def assert_near(one, other, rtol=1e-6, atol=0.0):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


# --- ends of episodes ---


@each_game
def test_only_replicas_with_finished_episodes_reset(name, arguments):
    game = play(name, arguments)
    over = game["info"]["over"]
    ended = jax.tree.map(np.logical_or, game["terminated"], game["truncated"])
    np.testing.assert_array_equal(
        over, np.all([leaf.reshape(T, N, -1).all(-1) for leaf in jax.tree.leaves(ended)], 0)
    )
    assert 0.02 < over.mean() < 0.7
    assert over.any(axis=1).mean() < 1 or name == "walk"  # in some steps no episode ends
    assert (over.any(axis=1) & ~over.all(axis=1)).any()  # in some steps some episodes end
    assert (game["after"].time[over] == 0).all()
    np.testing.assert_array_equal(game["after"].time[~over], game["before"].time[~over] + 1)


@each_game
def test_observation_at_an_end_is_the_first_of_the_next_episode(name, arguments):
    game = play(name, arguments)
    over = game["info"]["over"]
    assert_near(observe(game, pick(game["after"], over)), pick(game["obs"], over))
    assert_near(pick(game["info"]["final_obs"], ~over), pick(game["obs"], ~over), rtol=0)
    assert_near(observe(game, game["first_state"].env_state), game["first_obs"])


@pytest.mark.parametrize(
    ("name", "arguments"), [GAMES["tag"], GAMES["cartpole"]], ids=["tag", "cartpole"]
)
def test_step_equals_the_unvectorized_step_except_for_resets(name, arguments):
    game = play(name, arguments)
    step = jax.jit(jax.vmap(jax.vmap(game["env"].step, (None, 0, 0, None)), (None, 0, 0, None)))
    obs, after, reward, terminated, truncated, info = step(
        jax.random.key(0), game["before"], game["action"], game["params"]
    )
    assert_near(game["info"]["final_obs"], obs, atol=1e-6)
    assert_near((game["terminated"], game["truncated"]), (terminated, truncated))
    assert_near(game["reward"], reward)
    assert_near({key: game["info"][key] for key in info}, info)
    going_on = ~game["info"]["over"]
    assert_near(pick(game["after"], going_on), pick(after, going_on), atol=1e-6)


def test_final_obs_of_truncated_episodes_precedes_the_reset():
    game = play(*GAMES["walk"])
    cut = game["truncated"]
    assert cut.any()
    final_obs = game["info"]["final_obs"][cut]
    # the reward of a walk is its place
    np.testing.assert_array_equal(final_obs[:, 0], game["reward"][cut])
    np.testing.assert_array_equal(final_obs[:, 1], game["params"].episode_length)
    assert (game["obs"][cut][:, 1] == 0).all()


@each_game
def test_episode_statistics_are_running_sums(name, arguments):
    game = play(name, arguments)
    info, start = game["info"], game["first_state"]
    assert info["episode_length"].dtype == np.int32
    assert jax.tree.structure(info["episode_return"]) == jax.tree.structure(game["reward"])
    at_zero = (start.episode_return, start.episode_length, start.episode_info)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(at_zero))
    env_info = {key: info[key] for key in info["episode_info"]}
    sums = functools.partial(running_sums, over=info["over"])
    assert_near(info["episode_return"], jax.tree.map(sums, game["reward"]), rtol=1e-5, atol=1e-6)
    assert_near(info["episode_length"], sums(np.ones((T, N))))
    assert_near(info["episode_info"], jax.tree.map(sums, env_info), rtol=1e-5)
    assert (env_info != {}) == (name != "cartpole")


def running_sums(values, over):
    """Return the sums of values [T, N, ...] since the last end, in NumPy."""
    total, sums = np.zeros(values.shape[1:]), []
    for t in range(len(values)):
        total = total + values[t]
        sums.append(total.copy())
        total[over[t]] = 0
    return np.stack(sums)


def test_episode_ends_when_all_agents_are_done():
    flags = {
        "a": jnp.array([[True, True], [True, False], [True, True]]),
        "b": jnp.array([True, True, False]),
    }
    np.testing.assert_array_equal(all_agents(flags), [True, False, False])
    arguments = {
        "num_taggers": 1,
        "num_runners": 2,
        "tagging_distance": 0.1,
        "grid_length": 2.0,
        "episode_length": 30,
    }
    game = play("tag_continuous", tuple(arguments.items()), num_steps=60, seed=3)
    over, out = game["info"]["over"], game["terminated"]["runner"]
    assert (out.any(axis=-1) & ~over).any()  # one runner was out while the episode continued
    np.testing.assert_array_equal(over, out.all(axis=-1))


def test_every_replica_and_step_has_its_own_key():
    game = play(*GAMES["walk"])
    noise = game["reward"] - game["before"].place - game["action"][..., 0]
    assert len(np.unique(np.round(noise, 5))) > 0.99 * noise.size
    np.testing.assert_allclose([noise.mean(), noise.std()], [0, 1], atol=0.25)


# --- initial states ---


def starts(name, arguments, **options):
    """Return all initial states of a run, [n, numbers], after the reset and after ends."""
    game = play(name, arguments, **options)
    later = pick(game["after"], game["info"]["over"])
    both = jax.tree.map(
        lambda first, rest: np.concatenate([first, rest]), game["first_state"].env_state, later
    )
    columns = [leaf.reshape(leaf.shape[0], -1).astype(np.float32) for leaf in jax.tree.leaves(both)]
    return np.concatenate(columns, axis=1)


@each_game
def test_fresh_starts_differ(name, arguments):
    states = starts(name, arguments)
    # the grid has 64 possible starts
    assert len(np.unique(states, axis=0)) > (0.3 if name == "tag_gridworld" else 0.99) * len(states)


@pytest.mark.parametrize(
    ("name", "arguments"), [GAMES["tag"], GAMES["cartpole"]], ids=["tag", "cartpole"]
)
def test_fixed_resets_use_one_start(name, arguments):
    states = starts(name, arguments, reset="fixed")
    assert len(states) > 2 * N
    assert len(np.unique(states, axis=0)) == 1


@pytest.mark.parametrize(("name", "arguments"), [GAMES["tag"], GAMES["walk"]], ids=["tag", "walk"])
def test_pool_of_starts_is_used_evenly(name, arguments):
    states = starts(name, arguments, num_envs=24, reset=ResetPool(4), num_steps=60)
    distinct, counts = np.unique(states, axis=0, return_counts=True)
    assert len(distinct) == 4
    assert counts.min() > 0.6 * counts.mean()


@pytest.mark.parametrize("reset", ["fixed", ResetPool(4)], ids=str)
def test_observations_match_the_sampled_start(reset):
    game = play(*GAMES["tag"], num_envs=24, reset=reset, num_steps=60)
    over = game["info"]["over"]
    assert_near(observe(game, pick(game["after"], over)), pick(game["obs"], over))
    assert_near(observe(game, game["first_state"].env_state), game["first_obs"])


@pytest.mark.parametrize("reset", ["fresh", "fixed", ResetPool(4)], ids=str)
def test_starts_depend_on_the_seed(reset):
    env, params = wdjax.make("cartpole")
    first = jax.jit(lambda key: wdjax.vectorize(env, N, reset).reset(key, params)[0])
    one, other = first(jax.random.key(0)), first(jax.random.key(1))
    np.testing.assert_array_equal(one, first(jax.random.key(0)))
    assert not np.any(np.all(np.asarray(one)[:, None] == np.asarray(other)[None, :], axis=-1))
