"""Compare rollouts as one kernel, interpreted in XLA, with the scan: numbers, ends and resets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import lowered
from interpreted import (
    with_interpreted_notes,
    with_interpreted_rollouts,
    with_interpreted_steps,
)

from wdjax.train import load_config, make_learner
from wdjax.train.kernels.rollout import step_replicas, why_by_scan
from wdjax.train.learner.setup import make_setup
from wdjax.train.rollout.scan import rollout

pytestmark = pytest.mark.usefixtures("quick_compile")

SLOW = pytest.mark.slow
LINE = {"num_taggers": 1, "grid_length": 4, "episode_length": 3, "random_start": True}
# wider layers of two policies in one kernel take 20 s to compile, interpreted
SMALL = {"hidden_sizes": [4], "activation": "tanh"}


def gridworld(**tagger):
    """Return a run of two agents with a policy each: one is trained, one is frozen."""
    policies = {
        "tagger": {"algorithm": "PPO", "network": {**SMALL, "shared_trunk": False}, **tagger},
        "runner": {"algorithm": "A2C", "network": SMALL, "trainable": False},
    }
    base = {
        "env": "tag_gridworld",
        "env_params": LINE,
        "num_envs": 6,
        "num_blocks": 3,
        "rollout_length": 7,
    }
    return load_config({**base, "policies": policies})


def pooled(name, reset, steps=5, **changes):
    return preset(name, reset=reset, **limit(steps), **changes)


def preset(name, **changes):
    small = {"num_envs": 20, "num_blocks": 4, "rollout_length": 8, "reset": "fresh"}
    return load_config(name, **{**small, **changes})


def limit(steps):
    return {"env_params.episode_length": steps}


CASES = {
    "cartpole": lambda: preset("cartpole", rollout_length=16),
    "two_policies": gridworld,
    "acrobot": lambda: preset("acrobot", **limit(5)),
    "cartpole, a pool of one": lambda: pooled("cartpole", 1),
    "mountain_car, a pool of many": lambda: pooled("mountain_car", 10_000),
    "tag_gridworld, a pool": lambda: pooled(
        "tag_gridworld_with_reset_pool", 1000, **{"env_params.grid_length": 4}
    ),
    "tag_gridworld, one start": lambda: pooled(
        "tag_gridworld", "fixed", **{"env_params.grid_length": 4}
    ),
    "normalized": lambda: preset(
        "cartpole_ppo", **limit(5), **{"policies.agent.normalize_observation": True}
    ),
    "recurrent": lambda: preset(
        "cartpole_ppo",
        **limit(5),
        **{"policies.agent.network.recurrent_size": 8, "policies.agent.minibatches": 1},
    ),
}


def both(config, members=0, engine=with_interpreted_rollouts, head=1.0):
    """Return the results of a rollout by the scan and by a kernel for whole rollouts or for steps.

    With `members`, results of a population of this size. `head` multiplies the last layer of
    policies, whose actions are almost uniform at the start.
    """
    begun = begin(config, members, head)
    return play(begun), play(begun, engine)


def begin(config, members=0, head=1.0):
    """Return (static part of a run, state, key, members)."""
    learner = make_learner(config)
    key, state = jax.random.key(1), learner.init(jax.random.key(0))
    for own in state.policies.values():
        own.params["policy_head"]["kernel"] *= head
    if members:
        key = jax.random.split(key, members)
        state = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), members))
    return learner.setup, state, key, members


def play(begun, engine=None):
    """Return the results of a rollout by the kernels of an engine; None: by the scan."""
    setup, state, key, members = begun
    run = rollout if engine is None else functools.partial(rollout_by_kernel, engine)
    run = functools.partial(run, setup)
    return jax.jit(jax.vmap(run) if members else run)(state, key)


@functools.cache
def by_scan(name, members=0):
    """Return (what `begin` returns, the results by the scan) of a case."""
    begun = begin(CASES[name](), members)
    return begun, play(begun)


def check(name, engine, members=0):
    """Compare a kernel with the scan, and return the rollout."""
    begun, expected = by_scan(name, members)
    assert_same(expected, play(begun, engine))
    return expected[1]


def rollout_by_kernel(engine, setup, state, key):
    with pytest.MonkeyPatch.context() as patch:  # on a CPU matrix products may take another form
        patch.setattr(jax, "default_backend", lambda: "gpu")
        return rollout(engine(setup), state, key)


def assert_same(expected, found):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for (path, a), b in zip(
        jax.tree.leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):
        where = jax.tree_util.keystr(path)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        if a.dtype == jnp.float32:
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=where)
        elif jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))
        else:
            np.testing.assert_array_equal(b, a, err_msg=where)


@pytest.mark.parametrize("name", ["normalized", pytest.param("two_policies", marks=SLOW)])
def test_values_and_log_probabilities_are_computed_after_the_rollout(name):
    results = both(CASES[name](), engine=with_interpreted_notes, head=100.0)
    expected, found = (played for _, played in results)
    for policy, rows in expected.rows.items():
        own = found.rows[policy]
        for note in ("value", "log_prob"):  # the kernel rounds products to float16
            values = getattr(rows, note)
            assert np.ptp(values) > 0.1
            np.testing.assert_allclose(getattr(own, note), values, atol=3e-3, err_msg=note)
        found.rows[policy] = own.replace(value=rows.value, log_prob=rows.log_prob)
    assert_same(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "recurrent"])
def test_kernel_against_scan(name):
    assert check(name, with_interpreted_rollouts).over.sum() >= 2  # resets happen


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["cartpole, a pool of one", "two_policies", "tag_gridworld, one start", "recurrent"],
)
def test_kernels_for_steps_against_plain_xla(name):
    assert check(name, with_interpreted_steps).over.sum() >= 2  # resets happen


@pytest.mark.slow
@pytest.mark.parametrize("engine", [with_interpreted_rollouts, with_interpreted_steps])
def test_kernels_under_vmap(engine):
    actions = check("two_policies", engine, members=2).rows["tagger"].action
    assert jnp.any(actions[0] != actions[1])


@pytest.mark.slow
def test_a_rollout_contains_the_kernel_only_on_a_gpu(monkeypatch):
    small = {"devices": 1, "policies.agent.network.hidden_sizes": [16]}
    config = preset("cartpole", reset=1000, **small)
    learner = make_learner(config)
    state = jax.eval_shape(learner.init, jax.random.key(0))
    assert "pallas" not in str(jax.make_jaxpr(learner.rollout)(state))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    learner = make_learner(config)
    members = jax.eval_shape(jax.vmap(learner.init), jax.random.split(jax.random.key(0), 3))
    for run, start in ((learner.rollout, state), (jax.vmap(learner.rollout), members)):
        assert "scan_replicas" in lowered(run, start)


def own(**changes):
    return {"num_envs": 4, "policies.agent.minibatches": 1, **changes}


REFUSED = {
    "recurrent": lambda: preset(
        "cartpole_ppo", **own(**{"policies.agent.network.recurrent_size": 8})
    ),
    "wide": lambda: preset("cartpole_ppo", **own(**{"policies.agent.network.hidden_sizes": [128]})),
    "continuous": lambda: load_config("pendulum_warpdrive", num_envs=4, reset="fresh"),
    "many": lambda: preset("tag_gridworld", **{"env_params.num_taggers": 8}),
    "past_selves": lambda: gridworld(past_selves=2),
    "opponents": lambda: gridworld(opponents={"random": 0.5}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_rollouts_are_scanned(name, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert why_by_scan(make_setup(REFUSED[name]()))


def test_supported_rollout_is_one_kernel_on_a_gpu(monkeypatch):
    setup = make_setup(gridworld())
    assert why_by_scan(setup) == "there is no GPU"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert why_by_scan(setup) is None


@pytest.mark.parametrize(
    ("runners", "why"),
    [(500, "more than 2,500 numbers"), (100, r"an observation has shape \(100, 71\)")],
)
def test_a_large_environment_is_refused_before_it_is_traced(runners, why, monkeypatch):
    crowd = {"env_params.num_taggers": 4, "env_params.num_runners": runners, "num_envs": 2}
    setup = make_setup(load_config("tag_continuous", devices=1, rollout_length=2, **crowd))
    key = jax.random.key(0)

    def step(*_):
        raise AssertionError("traced")

    state = jax.eval_shape(setup.replicas.reset, key, setup.env_params)[1]
    monkeypatch.setattr(type(setup.replicas), "step_with_keys", step)
    with pytest.raises(NotImplementedError, match=why):
        step_replicas(setup, (key, key), state, None, setup.env_params)
