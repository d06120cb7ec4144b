"""Traced hyperparameters: one mapping per policy, with the fields of policy and algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import new_policy, tiny_config, tiny_policy

from wdjax.train import make_learner, with_hypers
from wdjax.train.state.hypers import ScheduleArrays

pytestmark = pytest.mark.usefixtures("quick_compile")

ALL = {"learning_rate", "max_grad_norm"}
OFF_POLICY_CRITIC = {*ALL, "gamma", "tau", "critic_learning_rate", "v_min", "v_max"}
ACTOR_CRITIC = {*ALL, "gamma", "gae_lambda", "value_coefficient", "entropy_coefficient"}
NAMES = {
    "A2C": ACTOR_CRITIC,
    "PPO": {*ACTOR_CRITIC, "clip", "value_clip", "target_kl"},
    "DDPG": {
        *OFF_POLICY_CRITIC, "noise_scale", "noise_stddev", "noise_damping", "target_noise",
        "target_noise_clip",
    },
    "SAC": {
        *OFF_POLICY_CRITIC, "temperature", "temperature_learning_rate", "target_entropy",
    },
}  # fmt: skip


def start(policy, env="pendulum", **changes):
    """Return (learner, its initial state)."""
    learner = make_learner(tiny_config(env, {"agent": policy}, **changes))
    return learner, learner.init(jax.random.key(0))


@pytest.mark.parametrize("algorithm", NAMES)
def test_names_are_those_of_the_policy_and_its_algorithm(algorithm):
    _, state = start(new_policy(algorithm))
    hypers = state.hypers["agent"]
    assert set(hypers) == NAMES[algorithm]
    places = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path({"agent": hypers.at(0.0)})
    ]
    assert places == [f"agent/{name}" for name in sorted(hypers)]


def test_schedules_become_numbers_at_an_env_step():
    schedule = ((0.0, 0.4), (100.0, 0.2))
    _, state = start(tiny_policy("PPO", entropy_coefficient=schedule, learning_rate=0.5))
    hypers = state.hypers["agent"]
    for env_steps, value in ((0.0, 0.4), (50.0, 0.3), (1e6, 0.2)):
        now = hypers.at(jnp.float32(env_steps))
        np.testing.assert_allclose(now["entropy_coefficient"], value, rtol=1e-6)
        np.testing.assert_allclose(now["learning_rate"], 0.5)
        assert now["gamma"] is hypers["gamma"]


def test_options_have_traced_scalars_and_static_values():
    learner, state = start(tiny_policy("PPO", clip=0.3, epochs=3))
    policy = learner.setup.policies["agent"]
    traced = jax.eval_shape(
        lambda hypers: {"clip": policy.options(hypers).clip}, state.hypers["agent"]
    )
    assert (traced["clip"].shape, traced["clip"].dtype) == ((), jnp.float32)
    options = policy.options(with_hypers(state, **{"agent.clip": 0.125}).hypers["agent"])
    assert options.clip == 0.125
    assert (options.epochs, type(options.epochs)) == (3, int)
    assert policy.config.options.clip == 0.3


@pytest.mark.slow
def test_members_of_a_population_have_hyperparameters_of_their_own():
    learner = make_learner(tiny_config("pendulum", {"agent": tiny_policy("PPO")}))
    states = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), 3))
    states = with_hypers(states, **{"agent.clip": jnp.array([0.1, 0.2, 0.3]), "agent.gamma": 0.5})
    hypers = states.hypers["agent"]
    np.testing.assert_allclose(hypers["clip"], [0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_array_equal(hypers["gamma"], [0.5] * 3)
    assert jax.tree.map(lambda leaf: leaf[1], hypers)["clip"] == jnp.float32(0.2)


@pytest.mark.slow
def test_fraction_of_snapshots_needs_snapshots():
    policies = {
        "pilot": tiny_policy("A2C", past_selves=2),
        "clerk": tiny_policy("A2C"),
    }
    learner = make_learner(tiny_config("probe_pair", policies))
    hypers = jax.eval_shape(learner.init, jax.random.key(0)).hypers
    assert hypers["pilot"].keys() - hypers["clerk"].keys() == {"past_selves_fraction"}


@pytest.mark.parametrize(("name", "value", "words"), [
    ("agent.clip", -1.0, r"agent\.clip = -1\.0: must be above 0"),
    ("agent.gamma", [0.5, 2.0], r"agent\.gamma = 2\.0: must be between 0 and 1"),
    ("agent.learning_rate", -0.5, r"agent\.learning_rate = -0\.5: must be finite and at least 0"),
    ("agent.epochs", 2, r"unknown hyperparameter 'agent\.epochs'"),  # static
    ("agent.tau", 0.5, r"unknown hyperparameter 'agent\.tau'"),  # an option of DDPG
    ("agnt.clip", 0.5, r"unknown hyperparameter 'agnt\.clip': did you mean 'agent\.clip'"),
])  # fmt: skip
def test_wrong_hyperparameters_are_refused(name, value, words):
    _, state = start(tiny_policy("PPO"))
    with pytest.raises(ValueError, match=words):
        with_hypers(state, **{name: value})


@pytest.mark.parametrize("points", [1, 2, 5])
def test_schedules_have_the_bits_of_interp(points):
    rng = np.random.default_rng(points)
    steps = np.sort(rng.uniform(0, 1e6, points)).astype(np.float32)
    schedule = ScheduleArrays(jnp.array(steps), jnp.array(rng.normal(size=points), jnp.float32))
    at = jnp.array(np.concatenate([steps, rng.uniform(-1e5, 1.2e6, 200)]), jnp.float32)
    interp = jax.jit(jax.vmap(lambda x: jnp.interp(x, schedule.env_steps, schedule.values)))
    np.testing.assert_array_equal(jax.jit(jax.vmap(schedule))(at), interp(at))


def test_a_jump_of_a_schedule_takes_the_later_value():
    schedule = ScheduleArrays(jnp.array([0.0, 10.0, 10.0, 20.0]), jnp.array([1.0, 1.0, 5.0, 5.0]))
    found = [float(schedule(jnp.float32(step))) for step in (0, 9, 10, 11, 30)]
    assert found == [1.0, 1.0, 5.0, 5.0, 5.0]
