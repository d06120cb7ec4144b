"""Algorithms of teams: numbers by hand, exact resume, devices, populations, masks, opponents."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

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
from wdjax.train.learning import gae

pytestmark = pytest.mark.usefixtures("quick_compile")

NETWORK = {"hidden_sizes": [16], "activation": "tanh"}
MEMORY = {**NETWORK, "recurrent_size": 8}
STEPS = {"epochs": 2, "minibatches": 2}
REPLAY = {"buffer_size": 512, "batch_size": 32, "warmup": 32, "updates_per_rollout": 4}
# name -> (algorithm with options, fields of both policies)
CASES = {
    "MAPPO": ({"algorithm": "MAPPO", **STEPS, "gamma": 0.5}, {"network": NETWORK}),
    "MAPPO, PopArt, GRU": (
        {"algorithm": "MAPPO", **STEPS, "normalize_value": True, "critic_observes": False},
        {"network": MEMORY, "normalize_observation": True},
    ),
    "PQN": ({"algorithm": "PQN", **STEPS}, {"network": {**NETWORK, "layer_norm": True}}),
    "PQN, sum": ({"algorithm": "PQN", **STEPS, "mixer": "sum"}, {"network": NETWORK}),
    "PQN, sum, GRU": ({"algorithm": "PQN", **STEPS, "mixer": "sum"}, {"network": MEMORY}),
    "DQN": ({"algorithm": "DQN", **REPLAY, "dueling": True}, {"network": NETWORK}),
    "VDN": ({"algorithm": "VDN", **REPLAY, "double": False}, {"network": NETWORK}),
    "QMIX": (
        {"algorithm": "QMIX", **REPLAY, "n_step": 2, "mixing_size": 4, "hyper_size": 8},
        {"network": NETWORK, "normalize_observation": True},
    ),
}
# each kind of state: a critic with statistics, memories, a sum of Q-values, replay and a mixer
STATES = ["MAPPO, PopArt, GRU", "PQN, sum, GRU", "QMIX"]
# each kind of network that acts: logits or Q-values, with memory, dueling, normalization
FORMS = ["MAPPO, PopArt, GRU", "PQN", "PQN, sum, GRU", "DQN", "QMIX"]


def match(name, **changes):
    """Return a run in which a caller and two answerers are a team."""
    team, policy = CASES[name]
    policy = {"learning_rate": 1e-2, **policy}
    config = {
        "env": "match_env:Match",
        "policies": {"caller": policy, "answerer": policy},
        "teams": {"pair": {"policies": ["caller", "answerer"], **team}},
        "num_envs": 16,
        "rollout_length": 4,
        "num_blocks": 4,
        "devices": 1,
        "updates_per_chunk": 1,
        "total_env_steps": 3 * 16 * 4,
    }
    return load_config(config, **changes)


@functools.cache
def learner_of(name):
    """Return one learner of `match(name)` for all tests, which share its compiled programs."""
    return make_learner(match(name))


def after_three_updates(name):
    learner = learner_of(name)
    return learner.run(learner.init(jax.random.key(0)), num_updates=3)


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
@pytest.mark.parametrize("name", STATES)
def test_a_run_in_parts_equals_one_run(name, tmp_path):
    """The trainer calls its program for each update, and saves the state."""
    config = match(name)
    whole, metrics = after_three_updates(name)
    assert all(np.isfinite(metrics[f"{policy}/loss"]).all() for policy in config.policies)
    run = tmp_path / "run"
    Trainer(config, run, quiet=True, pictures=False).train()
    assert_same(load_run(run, trust=["match_env"])[1], whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_two_devices_learn_as_one(name):
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    one, _ = after_three_updates(name)
    learner = make_learner(match(name, devices=2))
    two, _ = learner.run(learner.init(jax.random.key(0)), num_updates=3)
    assert_same((one.policies, one.shared), (two.policies, two.shared), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_members_of_a_population_equal_their_solo_runs(name):
    learner = learner_of(name)
    keys, gammas = jax.random.split(jax.random.key(1), 2), jnp.array([0.2, 0.8])
    states = with_hypers(jax.vmap(learner.init)(keys), **{"pair.gamma": gammas})
    together, _ = jax.vmap(lambda state: learner.run(state, num_updates=3))(states)
    for i in range(2):
        start = with_hypers(learner.init(keys[i]), **{"pair.gamma": float(gammas[i])})
        alone, _ = learner.run(start, num_updates=3)
        member = jax.tree.map(lambda leaf, i=i: leaf[i], (together.policies, together.shared))
        assert_same(member, (alone.policies, alone.shared), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MAPPO", "PQN", "PQN, sum", "VDN", "QMIX"])
def test_a_team_learns_to_cooperate(name):
    """Random play matches in 1 of 2 * 3 * 3 steps; the best possible is every step."""
    changes = {"num_envs": 64, "rollout_length": 6}
    if "epochs" in CASES[name][0]:
        changes["teams.pair.epochs"] = 4
    else:
        changes |= {"teams.pair.updates_per_rollout": 16, "teams.pair.tau": 0.1}
    if "MAPPO" not in name:
        changes |= {"teams.pair.epsilon": [[0, 1.0], [15_000, 0.02]], "teams.pair.gamma": 0.1}
    learner = make_learner(match(name, **changes))
    _, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=100)
    assert np.nanmean(metrics["episode_matches"][:3]) / 3 < 0.3
    assert np.nanmean(metrics["episode_matches"][-10:]) / 3 > (0.9 if "MAPPO" in name else 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_a_team_plays_without_its_partners(name):
    learner, (state, _) = learner_of(name), after_three_updates(name)
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=8)
    assert set(episodes.episode_return) == {"caller", "answerer"}
    table = cross_play(learner, state, jax.random.key(1), num_episodes=8)
    assert len(table) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_exported_policies_act_alike(name, tmp_path):
    pytest.importorskip("flatbuffers")
    learner, (state, _) = learner_of(name), after_three_updates(name)
    for role, width in {"caller": 1, "answerer": 2}.items():
        policy = trained_policy(learner, state, role)
        function, _ = export_policy(policy, tmp_path)
        act = jax.export.deserialize(bytearray(function.read_bytes()))
        memory, theirs = policy.init_memory(6), policy.init_memory(6)
        words = np.random.default_rng(0).integers(2**32, size=(6, 2), dtype=np.uint32)
        keys = jax.random.wrap_key_data(words, impl="threefry2x32")
        for step in range(3):
            obs = jax.random.uniform(jax.random.key(step), (6, width))
            drawn, _ = act.call(obs, theirs, words, False)
            own = jax.vmap(lambda obs, memory, key, act=policy.act: act(obs, memory, key)[0])
            np.testing.assert_array_equal(drawn, own(obs, memory, keys))
            best, theirs = act.call(obs, theirs, words, True)
            action, memory = policy.act(obs, memory)
            np.testing.assert_array_equal(best, action)
            assert_same(theirs, memory, atol=1e-5)
            if "MAPPO" not in name:  # plays the best action with any key
                np.testing.assert_array_equal(drawn, best)


# Numbers by hand


def first_update(name, **changes):
    """Return (state, rollout, metrics) of an update with one step on all transitions."""
    once = {"teams.pair.epochs": 1, "teams.pair.minibatches": 1}
    learner = make_learner(match(name, **once, **changes))
    state = learner.init(jax.random.key(0))
    rollout = learner.rollout(state)[1]
    return state, rollout, learner.update(state)[1]


def dense(params, x):
    return x @ np.asarray(params["kernel"]) + np.asarray(params["bias"])


def test_critic_is_fitted_to_the_returns_of_its_own_values():
    state, rollout, metrics = first_update("MAPPO")
    params = state.shared["pair"].params

    def values(global_state, obs):
        """Return [..., 3] for the caller and two answerers, from inputs [..., 3, 3 + 3 + 2]."""
        whole = np.repeat(np.asarray(global_state)[..., None, :], 3, axis=-2)
        number = np.broadcast_to(np.eye(3), (*whole.shape[:-1], 3))
        caller = np.asarray(obs["caller"])
        caller = np.concatenate([caller, np.zeros_like(caller)], axis=-1)  # as wide as answerers
        own = np.concatenate([caller, np.asarray(obs["answerer"])], axis=-2)
        inputs = np.concatenate([whole, number, own], axis=-1)
        hidden = np.tanh(dense(params["trunk"]["mlp"]["layer_0"], inputs))
        return dense(params["head"], hidden)[..., 0]

    rows = rollout.rows
    value = values(rollout.global_state, {name: own.obs for name, own in rows.items()})
    last = values(rollout.last_global_state, rollout.last_obs)
    final = values(rollout.final_global_state, {name: own.next_obs for name, own in rows.items()})
    over = np.asarray(rollout.over)[..., None]
    after = np.where(over, final, np.concatenate([value[1:], last[None]]))
    reward = np.concatenate([rows[name].reward for name in ("caller", "answerer")], axis=-1)
    advantage, target = gae(reward, value, after, np.zeros_like(over), over, 0.5, 0.95)
    np.testing.assert_allclose(metrics["pair/value_loss"], np.mean((value - target) ** 2), 1e-4)
    caller = np.mean(advantage[..., :1])
    np.testing.assert_allclose(metrics["caller/advantage_mean"], caller, 1e-3, 1e-6)


@pytest.mark.parametrize("name", ["MAPPO", "PQN", "PQN, sum"])
def test_targets_use_the_sums_of_the_engine(name, monkeypatch):
    """Engines unroll their loop."""
    learner, lengths = make_learner(match(name)), []
    engine = type(learner.setup.engine)
    sums = engine.decayed_sums

    def counted(self, term_t, decay_t):
        lengths.append(len(term_t))
        return sums(self, term_t, decay_t)

    monkeypatch.setattr(engine, "decayed_sums", counted)
    state = jax.eval_shape(learner.init, jax.random.key(0))
    jax.eval_shape(learner.update, state)
    assert lengths == [4] * (1 if name == "PQN, sum" else 2)


def test_actors_of_mappo_have_no_trunk_for_values():
    """`shared_trunk: false` asks for one, but the critic computes the values."""
    apart = {f"policies.{name}.network.shared_trunk": False for name in ("caller", "answerer")}
    params = make_learner(match("MAPPO", **apart)).init(jax.random.key(0)).policies["caller"].params
    assert "trunk" in params
    assert "value_trunk" not in params


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["none", "sum"])
def test_q_values_are_fitted_to_lambda_returns(mixer):
    changes = {"teams.pair.gamma": 0.9, "teams.pair.q_lambda": 0.6, "teams.pair.reward_scale": 0.1}
    state, rollout, metrics = first_update("PQN, sum", **changes, **{"teams.pair.mixer": mixer})
    names, rows, over = ("caller", "answerer"), rollout.rows, np.asarray(rollout.over)

    def q(name, obs):
        params = state.policies[name].params
        hidden = np.tanh(dense(params["trunk"]["mlp"]["layer_0"], np.asarray(obs)))
        return dense(params["head"], hidden)

    def joined(of):
        """Return [..., agents]; with the sum [..., 1]."""
        values = np.concatenate([of(name) for name in names], axis=-1)
        return values.sum(axis=-1, keepdims=True) if mixer == "sum" else values

    chosen = joined(
        lambda name: np.take_along_axis(
            q(name, rows[name].obs), np.asarray(rows[name].action)[..., None], -1
        )[..., 0]
    )
    best_next = joined(lambda name: q(name, rows[name].next_obs).max(axis=-1))
    best_last = joined(lambda name: q(name, rollout.last_obs[name]).max(axis=-1))
    reward = 0.1 * joined(lambda name: np.asarray(rows[name].reward))
    target, later, steps = np.zeros_like(reward), best_last, len(reward)
    for t in reversed(range(steps)):  # Peng's Q(lambda); episodes are truncated, never terminated
        is_end = (over[t] | (t == steps - 1))[:, None]
        mixed = np.where(is_end, best_next[t], 0.4 * best_next[t] + 0.6 * later)
        target[t] = reward[t] + 0.9 * mixed
        later = target[t]
    loss = 0.5 * (chosen - target) ** 2
    found = [float(metrics[f"{name}/q_loss"]) for name in names]
    wanted = [loss.mean()] * 2 if mixer == "sum" else [loss[..., :1].mean(), loss[..., 1:].mean()]
    np.testing.assert_allclose(found, wanted, 1e-4)


@pytest.mark.slow
def test_popart_keeps_the_values():
    """Without learning, a run with normalization has the values of one without."""
    means = []
    for normalize in (False, True):
        changes = {"teams.pair.normalize_value": normalize, "policies.caller.learning_rate": 0.0}
        learner = make_learner(match("MAPPO", **changes))
        metrics = learner.run(learner.init(jax.random.key(0)), num_updates=4)[1]
        means.append(metrics["caller/value_mean"])
    np.testing.assert_allclose(means[0], means[1], 1e-4, 1e-6)
    assert np.std(means[0]) > 0


def test_layer_normalization_of_hidden_layers():
    learner = make_learner(match("PQN"))
    params = learner.init(jax.random.key(0)).policies["caller"].params["trunk"]["mlp"]
    assert set(params) == {"layer_0", "norm_0"}
    assert params["norm_0"]["scale"].shape == (16,)


# Masks, opponents, several algorithms


def shift(name, **options):
    """Return a run in which both workers may often take only one action."""
    algorithm, policy = CASES[name]
    sizes = {"num_envs": 8, "num_blocks": 4, "rollout_length": 6, "devices": 1}
    policies = {"worker": {**policy, **algorithm, **options}}
    return load_config({"env": "decision_probes:Shift", "policies": policies, **sizes})


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_forbidden_actions_are_never_taken(name):
    learner = make_learner(shift(name))
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=2)
    assert np.isfinite(metrics["worker/loss"]).all()
    rows = learner.rollout(state)[1].rows["worker"]
    allowed = np.take_along_axis(
        np.asarray(rows.obs["action_mask"]), np.asarray(rows.action)[..., None], axis=-1
    )
    assert (allowed == 1).all()


@pytest.mark.slow
def test_mappo_learns_only_from_decisions():
    learner = make_learner(shift("MAPPO", decisions_only=True))
    _, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=2)
    assert (metrics["worker/decision_fraction"] < 1.0).all()
    assert np.isfinite(metrics["worker/value_loss"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_a_policy_learns_beside_ppo_and_against_its_past(name):
    algorithm, policy = CASES[name]
    own = {**policy, **algorithm, "past_selves": 2, "past_selves_every": 1}
    if "n_step" in own:  # must be 1, as past selves change the team within an episode
        own["n_step"] = 1
    other = {"algorithm": "PPO", "network": NETWORK, **STEPS}
    config = {"env": "match_env:Match", "policies": {"caller": own, "answerer": other}}
    config = load_config(
        {**config, "num_envs": 16, "rollout_length": 4, "num_blocks": 4, "devices": 1}
    )
    learner = make_learner(config)
    start = learner.init(jax.random.key(0))
    state, metrics = learner.run(start, num_updates=3)
    assert np.isfinite(metrics["caller/loss"][1:]).all()  # the first one may be warmup
    for name in config.policies:
        changed = [
            (a != b).any()
            for a, b in zip(
                arrays(start.policies[name].params),
                arrays(state.policies[name].params),
                strict=True,
            )
        ]
        assert any(changed)


@pytest.mark.parametrize("algorithm", ["PQN", "DQN", "VDN"])
def test_continuous_actions_are_refused(algorithm):
    policy = {"algorithm": algorithm, "network": NETWORK}
    with pytest.raises(ValueError, match=r"policies\.agent\.algorithm: the action space = Box"):
        make_learner(load_config({"env": "pendulum", "policies": {"agent": policy}}))


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 32),
        ({"policies.agent.mixer": "sum"}, 32),
        ({"policies.agent.network.recurrent_size": 4}, 4),
    ],
)
def test_pqn_refuses_minibatches_of_different_sizes(changes, size):
    policy = {"algorithm": "PQN", "network": NETWORK, "minibatches": 3}
    config = {"env": "cartpole", "num_envs": 16, "num_blocks": 4, "rollout_length": 8}
    words = rf"policies\.agent\.minibatches = 3: must be a divisor of {size}"
    with pytest.raises(ValueError, match=words):
        make_learner(load_config({**config, "policies": {"agent": policy}}, **changes))
