"""Environments of gymnax through `from_gymnax`: steps, ends, spaces, names and training."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from bare_done import BareDone
from flax import struct

import wdjax
from wdjax.drawing import Scene, Shapes
from wdjax.train import (
    PPO,
    NetworkConfig,
    PolicyConfig,
    TrainConfig,
    Trainer,
    load_run,
    make_learner,
)
from wdjax.train.config.env_params import complete_env_params

N, T = 4, 40
POLICY = PolicyConfig(
    network=NetworkConfig((32,), "tanh", shared_trunk=False),
    learning_rate=5e-3,
    options=PPO.Options(epochs=4, minibatches=2, normalize_advantage=True),
)
SMALL = {  # compiles fast
    "policies": {"agent": PolicyConfig(network=NetworkConfig((8,), "tanh"), algorithm="A2C")},
    "num_envs": 4,
    "rollout_length": 8,
}


@pytest.fixture(scope="module", autouse=True)
def library(quick_compile):  # compilation takes most of the time
    """Skip if gymnax is not installed. Importing it here saves time when no test runs."""
    return pytest.importorskip("gymnax", exc_type=ImportError)


@functools.cache
def play(name, **changes):
    """Return (env, params, starts, steps) of N random replicas, leaves [T, N, ...].

    Steps hold the outputs of gymnax and of wdjax. gymnax steps from the state of the adapter, with
    the same key and action, until the agent terminates.
    """
    env, params = wdjax.make(f"gymnax:{name}", **changes)

    def step(state, key):
        action_key, step_key = jax.random.split(key)
        action = env.action_space(params).sample(action_key)
        with jax.numpy_rank_promotion("allow"):
            obs, inner, reward, terminated, _ = env.inner.step_env(
                step_key, state.inner, action, params
            )
            theirs = obs, inner, reward, terminated, env.inner.is_truncated(inner, params)
        ours = env.step(step_key, state, action, params)
        return ours[1], (theirs, ours, action)

    @jax.jit
    @jax.vmap
    def run(key):
        obs, state = env.reset(key, params)
        with jax.numpy_rank_promotion("allow"):
            their_obs, their_state = env.inner.reset_env(key, params)
        return (obs, state, their_obs, their_state), jax.lax.scan(
            step, state, jax.random.split(key, T)
        )[1]

    starts, steps = run(jax.random.split(jax.random.key(0), N))
    starts, steps = jax.tree.map(np.asarray, (starts, steps))
    return env, params, starts, jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), steps)


# An episode ends in each: a fall, a time limit, a lost ball, a ball that reaches the floor.
GAMES = [
    ("CartPole-v1", {}),
    ("Pendulum-v1", {"max_steps_in_episode": 30}),
    ("Breakout-MinAtar", {}),
    ("Catch-bsuite", {}),
]
each_game = pytest.mark.parametrize(("name", "changes"), GAMES)


@pytest.mark.slow
@each_game
def test_steps_agree_with_gymnax(name, changes):
    _, _, (obs, state, their_obs, their_state), (theirs, ours, _) = play(name, **changes)
    np.testing.assert_array_equal(obs, their_obs)
    jax.tree.map(np.testing.assert_array_equal, state.inner, their_state)
    their_next, their_inner, their_reward, their_terminated, their_truncated = theirs
    next_obs, after, reward, terminated, truncated, info = ours
    live = np.concatenate([np.ones((1, N), bool), ~terminated[:-1]])
    assert live.sum() > 4 * N

    def same(a, b):
        return np.testing.assert_allclose(a[live], b[live], rtol=1e-6, atol=1e-6)

    same(next_obs, their_next)
    jax.tree.map(same, after.inner, their_inner)
    same(reward, their_reward)
    np.testing.assert_array_equal(terminated[live], their_terminated[live])
    np.testing.assert_array_equal(truncated[live], (their_truncated & ~their_terminated)[live])
    assert (terminated | truncated).any()
    assert info == {}
    np.testing.assert_array_equal(after.time, np.broadcast_to(np.arange(1, T + 1)[:, None], (T, N)))


@pytest.mark.parametrize(("name", "changes"), [game for game in GAMES if game[0] != "Pendulum-v1"])
def test_termination_is_absorbing(name, changes):
    _, _, _, (_, (_, after, reward, terminated, truncated, _), _) = play(name, **changes)
    ended = terminated[:-1]
    assert ended.sum() > N
    assert terminated[1:][ended].all()
    assert (reward[1:][ended] == 0).all()
    assert not truncated[terminated].any()
    for leaf in jax.tree.leaves(after.inner):
        np.testing.assert_array_equal(leaf[1:][ended], leaf[:-1][ended])


def test_time_limit_truncates():
    env, _, _, (_, (_, _, _, terminated, truncated, _), _) = play(
        "Pendulum-v1", max_steps_in_episode=30
    )
    assert env.can_truncate
    assert not terminated.any()
    np.testing.assert_array_equal(truncated.all(axis=1), np.arange(1, T + 1) >= 30)


def test_termination_takes_precedence_over_the_time_limit():
    """Episodes of CartPole are truncated at their second step, unless they end there by a fall."""
    env, params = wdjax.make("gymnax:CartPole-v1", max_steps_in_episode=2)
    _, state = env.reset(jax.random.key(0), params)
    step = jax.jit(env.step)
    for x, ends in ((0.0, (False, True)), (2.39, (True, False))):
        inner = state.inner.replace(x=jnp.float32(x), x_dot=jnp.float32(1), time=jnp.int32(1))
        _, _, reward, terminated, truncated, _ = step(
            jax.random.key(0), state.replace(inner=inner), 1, params
        )
        assert (bool(terminated), bool(truncated)) == ends
        assert reward == 1


@pytest.mark.parametrize(
    ("name", "changes", "space", "actions"),
    [
        ("Breakout-MinAtar", {}, wdjax.Box(0, 1, (10, 10, 4)), wdjax.Discrete(3)),
        ("Pendulum-v1", {"max_torque": 3.0}, None, wdjax.Box(-3.0, 3.0, (1,))),
        # declared as int32, returned as float32
        ("Catch-bsuite", {}, wdjax.Box(0, 1, (10, 5)), wdjax.Discrete(3)),
        # returned as int32, outside its bounds
        ("FourRooms-misc", {}, wdjax.Box(0, 1, (4,)), wdjax.Discrete(4)),
        ("FrozenLake-misc", {"map_name": "8x8"}, wdjax.Discrete(64), wdjax.Discrete(4)),
    ],
)
def test_spaces_match_the_returned_arrays(name, changes, space, actions):
    env, params = wdjax.make(f"gymnax:{name}", **changes)
    observation_space = env.observation_space(params)
    assert env.action_space(params) == actions
    obs, state = jax.eval_shape(env.reset, jax.random.key(0), params)
    assert (obs.shape, obs.dtype) == (observation_space.shape, observation_space.dtype)
    action = env.action_space(params).sample(jax.random.key(0))
    stepped = jax.eval_shape(env.step, jax.random.key(0), state, action, params)
    kind = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type))
    assert kind((obs, state)) == kind(stepped[:2])  # otherwise the second step compiles again
    if isinstance(space, wdjax.Box):
        assert (observation_space.shape, observation_space.dtype) == (space.shape, space.dtype)
    elif space is not None:
        assert observation_space == space


def test_arguments_reach_constructor_and_params():
    env, params = wdjax.make("gymnax:DeepSea-bsuite", size=5, unscaled_move_cost=0.25)
    assert env.inner.size == 5
    assert (params.max_steps_in_episode, params.unscaled_move_cost) == (5, 0.25)
    assert params.unscaled_move_cost.dtype == np.float32
    assert params.max_steps_in_episode.dtype == np.int32
    assert env.observation_space(params).shape == (5, 5)
    _, params = wdjax.make("gymnax:Acrobot-v1", available_torque=[-2, 0, 2])
    np.testing.assert_array_equal(params.available_torque, np.array([-2, 0, 2], np.float32))


def test_params_may_be_vmapped():
    env, params = wdjax.make("gymnax:CartPole-v1")
    gravity = jnp.linspace(1.0, 20.0, 5)
    many = jax.tree.map(lambda leaf: jnp.full(5, leaf), params).replace(gravity=gravity)

    def run(params):
        _, state = env.reset(jax.random.key(0), params)
        for i in range(2):
            _, state, *_ = env.step(jax.random.key(i), state, jnp.int32(1), params)
        return state.inner.theta_dot

    together = jax.jit(jax.vmap(run))(many)
    assert len(np.unique(together)) == 5
    np.testing.assert_allclose(
        together[3], jax.jit(run)(params.replace(gravity=gravity[3])), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        (
            "gymnax:Cartpole-v1",
            {},
            ValueError,
            "environment of gymnax 'Cartpole-v1': did you mean 'CartPole-v1'",
        ),
        ("gymnx:CartPole-v1", {}, ValueError, "unknown library 'gymnx': did you mean 'gymnax'"),
        (
            "gymnax:CartPole-v1",
            {"gravty": 3.0},
            ValueError,
            "argument of gymnax:CartPole-v1 'gravty'.*'gravity'",
        ),
        ("gymnax:CartPole-v1", {"gravity": "3"}, TypeError, "gravity = '3': must be a number"),
        (
            "gymnax:CartPole-v1",
            {"max_steps_in_episode": 2.5},
            TypeError,
            "max_steps_in_episode = 2.5: must be a whole",
        ),
        (
            "gymnax:Acrobot-v1",
            {"available_torque": [1.0]},
            ValueError,
            r"available_torque = \[1.0\]: .* shape \(3,\)",
        ),
        ("gymnax:DeepSea-bsuite", {"sise": 3}, ValueError, "did you mean 'size'"),
    ],
)
def test_wrong_names_and_arguments_raise(name, changes, error, message):
    with pytest.raises(error, match=message):
        wdjax.make(name, **changes)


def test_missing_library_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError, match="gymnax is not installed: pip install gymnax"):
        wdjax.make("gymnax:CartPole-v1")


def run_config(**changes):
    config = {
        "env": "gymnax:CartPole-v1",
        "env_params": {"max_steps_in_episode": 200},
        "policies": {"agent": POLICY},
        "num_envs": 16,
        "rollout_length": 64,
    }
    return TrainConfig(**{**config, **changes})


@pytest.mark.slow
def test_ppo_learns_cartpole():
    learner = make_learner(run_config())
    _, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=25)
    length = np.asarray(metrics["agent/episode_return"])
    assert np.nanmean(length[:2]) < 35
    assert np.nanmean(length[-5:]) > 100


@pytest.mark.slow
def test_run_resumes_exactly(tmp_path):
    small = {**SMALL, "updates_per_chunk": 1, "best_metric": "none"}
    config = run_config(**small, total_env_steps=4 * 32)
    whole = Trainer(config, tmp_path / "whole", quiet=True).train()
    Trainer(run_config(**small, total_env_steps=2 * 32), tmp_path / "parts", quiet=True).train()
    Trainer(config, tmp_path / "parts", resume=True, quiet=True).train()
    assert (
        yaml.safe_load((tmp_path / "parts" / "config.yaml").read_text())["env"]
        == "gymnax:CartPole-v1"
    )
    learner, parts = load_run(tmp_path / "parts")
    assert whole.num_updates == 4
    assert learner.env_params.max_steps_in_episode == 200

    def data(leaf):
        return (
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )

    jax.tree.map(lambda a, b: np.testing.assert_array_equal(data(a), data(b)), whole, parts)
    other = run_config(**SMALL, env_params={"max_steps_in_episode": 100}, best_metric="none")
    with pytest.raises(ValueError, match="max_steps_in_episode"):
        Trainer(other, tmp_path / "parts", resume=True, quiet=True)


def test_complete_env_params_can_be_written_and_read():
    config = run_config(env="gymnax:DeepSea-bsuite", env_params={"size": 5})
    complete = complete_env_params(config).env_params
    assert complete["size"] == complete["max_steps_in_episode"] == 5
    assert complete == yaml.safe_load(yaml.safe_dump(complete))
    params = wdjax.make("gymnax:DeepSea-bsuite", **complete)[1]
    jax.tree.map(
        np.testing.assert_array_equal, params, wdjax.make("gymnax:DeepSea-bsuite", size=5)[1]
    )
    torque = complete_env_params(run_config(env="gymnax:Acrobot-v1", env_params={})).env_params[
        "available_torque"
    ]
    assert torque == [-1.0, 0.0, 1.0]


@struct.dataclass
class StrangeParams:
    speed: float = 1.0


class Strange:
    """An object in the form of a gymnax environment, with a given space."""

    default_params = StrangeParams()

    def __init__(self, space, obs):
        self.space, self.obs = space, obs

    def reset_env(self, key, params):
        return jax.tree.map(jnp.asarray, self.obs), params.speed

    step_env = action_space = None

    def observation_space(self, params):
        return self.space


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (
            lambda spaces: spaces.Tuple([spaces.Discrete(2)]),
            (1,),
            "space of Strange is a Tuple: must be Box, Discrete",
        ),
        (
            lambda spaces: spaces.Dict({"a": spaces.Discrete(2)}),
            1.0,
            "is a dict of a: the environment must",
        ),
        (
            lambda spaces: spaces.Box(0, 1, ()),
            {"a": 1.0},
            "is an array, but the environment returns a dict",
        ),
    ],
)
def test_unsupported_spaces_raise(library, space, obs, message):
    with pytest.raises(TypeError, match=message):
        wdjax.adapters.from_gymnax(Strange(space(library.environments.spaces), obs))


def test_other_objects_raise():
    with pytest.raises(
        TypeError, match="must be a gymnax environment, an object with attribute reset_env"
    ):
        wdjax.adapters.from_gymnax(wdjax.make("cartpole")[0])
    with pytest.raises(TypeError, match="must be a gymnax environment"):
        wdjax.adapters.from_gymnax(BareDone)


def test_wrong_params_raise():
    env = BareDone()
    with pytest.raises(TypeError, match=r"params is a builtins\.int: must be a Params of BareDone"):
        wdjax.adapters.from_gymnax(env, 3)
    with pytest.raises(TypeError, match=r"EnvParams: must be a Params of BareDone"):
        wdjax.adapters.from_gymnax(env, wdjax.make("gymnax:CartPole-v1")[1])
    with pytest.raises(
        ValueError, match=r"params\.step_reward has shape \(3,\): must be one number"
    ):
        wdjax.adapters.from_gymnax(env, env.default_params.replace(step_reward=jnp.arange(3.0)))


@pytest.mark.usefixtures("registry")
def test_adapters_are_equal_for_equal_params():
    env = BareDone()
    one, same, other = (
        wdjax.adapters.from_gymnax(env, env.default_params.replace(step_reward=reward))[0]
        for reward in (1.0, 1.0, 2.0)
    )
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    wdjax.register("bare", one)
    with pytest.raises(ValueError, match="must be a name that is not in use"):
        wdjax.register("bare", other)


def test_rendering_requires_a_scene(tmp_path):
    env, params = wdjax.make("gymnax:CartPole-v1")
    _, state = env.reset(jax.random.key(0), params)
    with pytest.raises(
        NotImplementedError, match="CartPole is an environment of gymnax, which wdjax cannot draw"
    ):
        wdjax.render(env, state, params)
    states = jax.tree.map(lambda leaf: leaf[None], state)
    with pytest.raises(
        NotImplementedError, match="CartPole is an environment of gymnax, which wdjax cannot draw"
    ):
        wdjax.render(env, states, params, output=tmp_path / "a.html")

    with pytest.raises(
        NotImplementedError, match=r"write a subclass of type\(env\) with a method scene"
    ):
        wdjax.render(env, state, params)

    class Drawn(type(env)):
        def scene(self, states, params):
            return Scene(
                [Shapes(states.inner.x, 0.5)], ["cart"] * len(states.inner.x), (-3, 0, 3, 1)
            )

    assert wdjax.render(Drawn(env.inner, params), state, params).ndim == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-misc"])
def test_adapters_pass_check_env(name):
    wdjax.check_env(wdjax.make(f"gymnax:{name}")[0], num_steps=300)


# --- a single done, as in gymnax 0.0.9


def test_single_done_is_a_termination():
    env, params = wdjax.adapters.from_gymnax(BareDone())
    assert not env.can_truncate
    obs, state = env.reset(jax.random.key(0), params)
    assert obs.tolist() == [0, 0]
    step = jax.jit(env.step)
    rows = []
    for _ in range(5):
        _, state, reward, terminated, truncated, info = step(
            jax.random.key(0), state, jnp.int32(1), params
        )
        rows.append(
            (
                float(state.inner.place),
                float(reward),
                bool(terminated),
                bool(truncated),
                int(info["jumps"]),
            )
        )
    assert rows == [
        (1.0, 1.0, False, False, 1),
        (2.0, 1.0, False, False, 1),
        (3.0, 1.0, True, False, 1),
        (3.0, 0.0, True, False, 0),
        (3.0, 0.0, True, False, 0),
    ]
    assert state.time == 5
    assert (obs.dtype, reward.dtype) == (jnp.float32, jnp.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
def test_registered_adapter_trains_by_name(tmp_path):
    env, params = wdjax.adapters.from_gymnax(
        BareDone(), BareDone.default_params.replace(step_reward=2.0)
    )
    assert params.step_reward == np.float32(2)
    wdjax.register("mine", env)
    assert wdjax.make("mine")[0] == env
    assert wdjax.make("mine", max_steps_in_episode=7)[1] == params.replace(
        max_steps_in_episode=np.int32(7)
    )
    with pytest.raises(TypeError, match="must be a whole number"):
        wdjax.make("mine", max_steps_in_episode=7.5)
    config = run_config(**SMALL, env="mine", env_params={"max_steps_in_episode": 4})
    _, metrics = (learner := make_learner(config)).update(learner.init(jax.random.key(0)))
    assert metrics["agent/episode_return"] == 8  # 4 steps of 2
    assert metrics["episode_jumps"] <= 4
    assert complete_env_params(config).env_params == {"step_reward": 2.0, "max_steps_in_episode": 4}


@pytest.mark.slow
def test_adapter_agrees_with_gymnax_0_0_9(tmp_path):
    """The old version runs in its own process, since both cannot be installed together."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path),
    ]
    process = subprocess.run(
        [*install, "gymnax==0.0.9"], capture_output=True, text=True, check=False
    )
    if process.returncode:
        pytest.skip(f"pip cannot fetch gymnax 0.0.9: {process.stderr[-200:]}")
    script = Path(__file__).parent / "gymnax_0_0_9.py"
    options = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **options}
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert "0.0.9 agrees" in process.stdout
