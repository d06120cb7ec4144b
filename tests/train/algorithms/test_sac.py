"""SAC in the learner: acting, exact resume, devices, populations, other policies, opponents."""

import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import HIGH, LOW, tiny_sac
from flax import nnx
from probes import tiny_config, tiny_policy

from wdjax.train import (
    Trainer,
    cross_play,
    evaluate,
    export_policy,
    load_config,
    load_run,
    make_learner,
    trained_policy,
    with_hypers,
)
from wdjax.train.state.state import current_hypers

pytestmark = pytest.mark.usefixtures("quick_compile")

GAME = {"by_match": 1.0, "target": 0.5, "episode_length": 4, "time_limit": True}
LEARNED = {"temperature": 0.5, "learn_temperature": True, "warmup": 64, "updates_per_rollout": 2}
SLOW = pytest.mark.slow


def signal_config(**changes):
    """Return a run of one SAC policy, which learns from its third update of 48 transitions on."""
    policy = tiny_sac(**LEARNED, n_step=2, normalize_observation=True)
    return tiny_config("probe_box_signal", {"agent": policy}, **{"env_params": GAME, **changes})


@pytest.fixture(scope="module")
def trained():
    """Return (learner, states after 0, 1, 2 and 3 updates, metrics of each update)."""
    learner = make_learner(signal_config(num_blocks=4))
    states, rows = [learner.init(jax.random.key(0))], []
    for _ in range(3):
        state, metrics = learner.update(states[-1])
        states.append(state)
        rows.append(metrics)
    return learner, states, rows


def arrays(tree):
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [
        np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        for leaf in jax.tree.leaves(tree)
    ]


def assert_same(one, other, **tolerance):
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_allclose(a, b, **{"rtol": 0, "atol": 0, **tolerance})


@pytest.mark.slow
def test_training_changes_every_parameter_and_the_temperature(trained):
    _, states, rows = trained
    first, last = states[1].policies["agent"], states[3].policies["agent"]
    assert last.gradient_steps == 4
    for a, b in zip(arrays(first.params), arrays(last.params), strict=True):
        assert np.any(a != b)
    assert last.params["log_temperature"] < 0  # a new policy has more entropy than the target
    assert last.target_params.keys() == {"critic", "critic2"}
    names = ("critic_loss", "actor_loss", "grad_norm_critic", "grad_norm_actor", "entropy",
             "temperature", "q_mean", "target_mean")  # fmt: skip
    assert all(np.isnan(rows[0][f"agent/{name}"]) for name in names)
    assert all(np.isfinite(rows[2][f"agent/{name}"]) for name in names)
    assert LOW <= rows[2]["agent/action_min/0"] < rows[2]["agent/action_max/0"] <= HIGH


def act(learner, state, keys):
    """Return actions in training at observation 0, [N]; 8 blocks of as many replicas."""
    policy, obs = learner.setup.policies["agent"], jnp.zeros((4_000, 1, 2))
    hypers = current_hypers(learner.config, state)["agent"]
    own = state.policies["agent"]
    return np.asarray(policy.algorithm.act(policy, own, None, obs, keys, hypers)[0])[:, 0, 0]


@pytest.mark.slow
def test_actions_are_uniform_during_warmup_then_samples_of_the_actor(trained):
    learner, states, _ = trained
    policy, keys = learner.setup.policies["agent"], jax.random.split(jax.random.key(5), 8)
    uniform = act(learner, states[1], keys)
    np.testing.assert_allclose([uniform.mean(), uniform.std()], [1, 4 / np.sqrt(12)], atol=0.06)
    own = states[3].policies["agent"]
    outputs = learner_outputs(policy, own)
    mean, std = outputs[0], np.exp(outputs[1])
    free = np.arctanh((act(learner, states[3], keys) - 1) / 2)
    np.testing.assert_allclose(free.mean(), mean, atol=5 * std / np.sqrt(4_000))
    np.testing.assert_allclose(free.std(), std, rtol=0.06)


def learner_outputs(policy, state):
    """Return the mean and log standard deviation at observation 0."""
    obs = policy.inputs(state, jnp.zeros((1, 1, 2)))[0]
    return np.asarray(nnx.merge(policy.graphdef, state.params).actor(obs))[0, 0]


@pytest.mark.slow
def test_greedy_evaluation_plays_the_squashed_mean(trained):
    learner, states, _ = trained
    policy, own = learner.setup.policies["agent"], states[3].policies["agent"]
    action, _ = policy.algorithm.play(policy, own, None, jnp.zeros((1, 1, 2)), None, greedy=True)
    expected = 1 + 2 * np.tanh(learner_outputs(policy, own)[0])
    np.testing.assert_allclose(action[0, 0, 0], expected, rtol=1e-5)


@SLOW
def test_evaluation_samples_unless_greedy(trained):
    learner, states, _ = trained
    one, two = (
        evaluate(learner, states[3], jax.random.key(1), 4, greedy=greedy).episode_return["agent"]
        for greedy in (True, False)
    )
    assert np.any(one != two)


@pytest.mark.slow
def test_no_key_is_used_twice(trained):
    learner = trained[0]
    with jax.debug_key_reuse(True):  # checks while tracing
        learner.update.trace(jax.eval_shape(learner.init, jax.random.key(0)))


@SLOW
def test_a_run_resumes_exactly(trained, tmp_path):
    sizes = {"num_blocks": 4, "updates_per_chunk": 1, "total_env_steps": 3 * 48}
    config = signal_config(**sizes, best_metric="none")
    half = dataclasses.replace(config, total_env_steps=2 * 48)
    for resume, run in ((False, half), (True, config)):
        Trainer(run, tmp_path, resume=resume, quiet=True, pictures=False).train()
    whole = trained[1][3]
    assert whole.policies["agent"].gradient_steps > 0
    assert_same(load_run(tmp_path)[1], whole)


@SLOW
def test_two_devices_learn_as_one(trained):
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    learner = make_learner(signal_config(devices=2, num_blocks=4))
    two, _ = learner.run(learner.init(jax.random.key(0)), num_updates=3)
    assert_same(trained[1][3].policies, two.policies, rtol=1e-3, atol=1e-5)


@SLOW
def test_members_of_a_population_equal_their_solo_runs(trained):
    learner = trained[0]
    keys, num = jax.random.split(jax.random.key(7), 2), 3
    changes = {
        "agent.temperature": jnp.array([0.1, 1.0]),
        "agent.target_entropy": jnp.array([-1.0, 0.2]),
        "agent.temperature_learning_rate": jnp.array([1e-3, 1e-2]),
    }
    states = with_hypers(jax.vmap(learner.init)(keys), **changes)
    together, update = states, jax.jit(jax.vmap(learner.update))
    for _ in range(num):
        together, _ = update(together)
    for i in range(2):
        own = {name: float(pair[i]) for name, pair in changes.items()}
        alone = with_hypers(learner.init(keys[i]), **own)
        for _ in range(num):
            alone, _ = learner.update(alone)
        member = jax.tree.map(lambda leaf, i=i: leaf[i], together.policies)
        assert_same(member, alone.policies, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def mixed():
    """Return (learner, states, metrics): PPO clerks, two SAC pilots, one against its past."""
    past = {"past_selves": 2, "past_selves_every": 1, "past_selves_fraction": 0.25}
    soon = {**LEARNED, "batch_size": 16, "warmup": 16}
    policies = {
        "clerk": tiny_policy("PPO"),
        "pilot": dataclasses.replace(tiny_sac(**soon, agents=("pilot[0]",)), **past),
        "other": tiny_sac(**soon, agents=("pilot[1]",)),
    }
    learner = make_learner(tiny_config("probe_pair", policies))
    start = learner.init(jax.random.key(0))
    return learner, start, *learner.run(start, num_updates=4)


@SLOW
def test_policies_learn_beside_ppo_and_against_the_past(mixed):
    _, start, end, metrics = mixed
    assert metrics["pilot/past_self_blocks"].sum() > 0
    for name in start.policies:
        pairs = zip(*(arrays(state.policies[name].params) for state in (start, end)), strict=True)
        assert any(np.any(a != b) for a, b in pairs)
    assert np.isfinite(metrics["other/actor_loss"][-1])


@SLOW
def test_policies_meet_in_cross_play(mixed):
    learner, _, state, _ = mixed
    assert len(cross_play(learner, state, jax.random.key(1), num_episodes=8)) == 8


@SLOW
def test_an_exported_policy_acts_alike(trained, tmp_path):
    pytest.importorskip("flatbuffers")
    learner, states, _ = trained
    policy = trained_policy(learner, states[3], "agent")
    exported, _ = export_policy(policy, tmp_path)
    call = jax.export.deserialize(bytearray(exported.read_bytes())).call
    words = np.random.default_rng(0).integers(2**32, size=(6, 2), dtype=np.uint32)
    keys = jax.random.wrap_key_data(words, impl="threefry2x32")
    obs, memory = jax.random.uniform(jax.random.key(0), (6, 2)), policy.init_memory(6)
    drawn, _ = call(obs, memory, words, False)
    own = jax.vmap(lambda obs, memory, key: policy.act(obs, memory, key)[0])(obs, memory, keys)
    np.testing.assert_allclose(drawn, own, rtol=1e-5, atol=1e-6)
    best, _ = call(obs, memory, words, True)
    np.testing.assert_allclose(best, policy.act(obs, memory)[0], rtol=1e-5, atol=1e-6)
    assert np.any(best != drawn)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "cartpole"}, "algorithm = 'SAC': requires a Box of floats as action space"),
        ({"policies.agent.temperature": 0}, "temperature = 0.0: must be finite and above 0"),
        ({"policies.agent.target_entropy": np.inf}, "target_entropy = inf: must be finite"),
        (
            {"policies.agent.network.recurrent_size": 4},
            "network.recurrent_size = 4: must be 0: SAC",
        ),
        (
            {"policies.agent.network.head_hidden_sizes": [4]},
            "network.head_hidden_sizes = [4]: must",
        ),
        ({"policies.agent.noise": "none"}, "noise = 'none': SAC has no such option (DDPG has it)"),
    ],
)
def test_wrong_options_are_refused(changes, words):
    with pytest.raises((ValueError, TypeError)) as error:
        make_learner(load_config("pendulum_sac", **changes))
    assert str(error.value).startswith(f"policies.agent.{words}")
