"""DQN, VDN and QMIX: targets, losses and one gradient step, numbers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train import load_config, make_learner
from wdjax.train.algorithms.qmix import Mixer
from wdjax.train.algorithms.vdn import team_steps
from wdjax.train.learning import ReplayBatch
from wdjax.train.state.state import current_hypers

pytestmark = pytest.mark.usefixtures("quick_compile")

NETWORK = {"hidden_sizes": [8], "activation": "tanh"}
REPLAY = {"buffer_size": 64, "batch_size": 8, "warmup": 8, "updates_per_rollout": 1}
PLAIN = {"optimizer": "sgd", "learning_rate": 0.1, "max_grad_norm": 1e9}


def learner_of(env, algorithm, *names, **options):
    policies = {name: {"network": NETWORK, **PLAIN} for name in names}
    team = {"policies": list(names), "algorithm": algorithm, **REPLAY, "tau": 0.25, **options}
    sizes = {"num_envs": 4, "rollout_length": 4, "num_blocks": 1, "devices": 1}
    config = {"env": env, "policies": policies, "teams": {"team": team}, **sizes}
    return make_learner(load_config(config))


def moved(params, seed):
    """Return parameters with random numbers added."""
    leaves, structure = jax.tree.flatten(params)
    draw = np.random.default_rng(seed).normal
    return jax.tree.unflatten(structure, [leaf + draw(size=leaf.shape) for leaf in leaves])


def q_by_hand(params, obs):
    params = jax.device_get(params)
    hidden = params["trunk"]["mlp"]["layer_0"]
    features = np.tanh(obs @ hidden["kernel"] + hidden["bias"])
    return features @ params["head"]["kernel"] + params["head"]["bias"]


@pytest.fixture(scope="module", params=[True, False], ids=["double", "single"])
def cartpole(request):
    learner = learner_of("cartpole", "DQN", "agent", double=request.param)
    state = learner.init(jax.random.key(0))
    own = state.policies["agent"]
    return request.param, learner, state, own.replace(target_params=moved(own.params, 1))


@pytest.mark.slow
def test_targets_and_a_step_of_dqn(cartpole):
    double, learner, state, own = cartpole
    policy = learner.setup.policies["agent"]
    draw = np.random.default_rng(0).normal
    obs, next_obs, reward = draw(size=(5, 4)), draw(size=(5, 4)), draw(size=5)
    discount, action = np.array([0.9, 0.9, 0.0, 0.81, 0.9]), np.array([0, 1, 1, 0, 1])
    rows = np.arange(5)
    q, target_q = (q_by_hand(part, next_obs) for part in (own.params, own.target_params))
    best = np.argmax(q if double else target_q, axis=1)
    assert not double or (best != np.argmax(target_q, axis=1)).any()
    target = reward + discount * target_q[rows, best]
    batch = ReplayBatch(
        *(jnp.asarray(leaf, jnp.float32) for leaf in (obs,)),
        jnp.asarray(action, jnp.int32),
        *(jnp.asarray(leaf, jnp.float32) for leaf in (reward, next_obs, discount)),
    )
    hypers = current_hypers(learner.config, state)["agent"]
    after, metrics = policy.algorithm.gradient_step(policy, own, hypers, batch, None)
    error = q_by_hand(own.params, obs)[rows, action] - target
    np.testing.assert_allclose(metrics["loss"], (error**2).mean() / 2, rtol=1e-4)
    np.testing.assert_allclose(metrics["target_mean"], target.mean(), rtol=1e-4)
    bias = np.zeros(2)
    np.add.at(bias, action, error / 5)  # the gradient of the head's bias
    head = [np.asarray(part["head"]["bias"]) for part in (own.params, after.params)]
    np.testing.assert_allclose(head[1], head[0] - 0.1 * bias, rtol=1e-4, atol=1e-6)
    jax.tree.map(
        lambda new, old, params: np.testing.assert_allclose(
            new, 0.75 * old + 0.25 * params, rtol=1e-4, atol=1e-6
        ),
        after.target_params,
        own.target_params,
        after.params,
    )
    assert after.gradient_steps == 1


@pytest.mark.slow
def test_dueling_values_are_the_value_plus_centred_advantages():
    learner = learner_of("cartpole", "DQN", "agent", dueling=True)
    policy = learner.setup.policies["agent"]
    own = learner.init(jax.random.key(0)).policies["agent"]
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    value, advantage = (q_by_hand(own.params[name], obs) for name in ("value", "advantage"))
    expected = value + advantage - advantage.mean(axis=1, keepdims=True)
    found = policy.algorithm.q_values(policy, own, jnp.asarray(obs))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["VDN", "QMIX"])
def test_a_step_of_a_team_ignores_agents_that_have_left(algorithm):
    options = {"mixing_size": 3, "hyper_size": 4} if algorithm == "QMIX" else {}
    learner = learner_of("match_env:Match", algorithm, "caller", "answerer", **options)
    state = learner.init(jax.random.key(0))
    team, (shared,) = learner.setup.teams["team"], state.shared.values()
    draw, sizes = np.random.default_rng(0).normal, {"caller": 1, "answerer": 2}
    obs, next_obs = (
        {name: draw(size=(4, n, n)).astype(np.float32) for name, n in sizes.items()}
        for _ in range(2)
    )
    active = {"caller": np.ones((4, 1), bool), "answerer": np.array([[1, 1], [1, 0]] * 2, bool)}
    goes_on = {"caller": np.ones((4, 1), bool), "answerer": np.array([[1, 0], [0, 0]] * 2, bool)}
    size = learner.setup.context.global_state_space.shape[0]
    seen, following = (draw(size=(4, size)).astype(np.float32) for _ in range(2))
    if algorithm == "VDN":
        seen = following = None
    action = {name: np.zeros((4, n), np.int32) for name, n in sizes.items()}
    reward, discount = draw(size=4).astype(np.float32), np.array([0.9, 0.9, 0.0, 0.9])
    joint = shared.replace(
        params={
            "policies": {name: own.params for name, own in state.policies.items()},
            "mixer": shared.params,
        },
        target_params=moved(shared.target_params, 1),
    )
    batch = ReplayBatch(
        (obs, active, seen), action, reward, (next_obs, goes_on, following), discount
    )
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), batch)
    hypers = current_hypers(learner.config, state)[team.first.name]
    step = team.algorithm.team_step
    _, metrics = step(team, state.policies, hypers, joint, batch, None)

    def mixed(params, q, state):
        if algorithm == "VDN":
            return q.sum(axis=1)
        return mix_by_hand(params, q, state, 3)

    q, next_q = [], []
    for name in team.policies:
        params, target = (part["policies"][name] for part in (joint.params, joint.target_params))
        q.append(active[name] * q_by_hand(params, obs[name])[..., 0])
        best = np.argmax(q_by_hand(params, next_obs[name]), axis=-1)[..., None]
        chosen = np.take_along_axis(q_by_hand(target, next_obs[name]), best, axis=-1)[..., 0]
        next_q.append(goes_on[name] * chosen)
    value = mixed(joint.params["mixer"], np.concatenate(q, axis=1), seen)
    next_value = mixed(joint.target_params["mixer"], np.concatenate(next_q, axis=1), following)
    error = value - (reward + discount * next_value)
    np.testing.assert_allclose(metrics["loss"], (error**2).mean() / 2, rtol=1e-3)


def mix_by_hand(params, q, state, width):
    params = jax.device_get(params)

    def linear(name, x):
        return x @ params[name]["kernel"] + params[name]["bias"]

    def of_state(name):
        return linear(name, np.maximum(linear(f"hidden_{name}", state), 0))

    first = np.abs(of_state("w1")).reshape(len(q), -1, width)
    hidden = (q[..., None] * first).sum(axis=1) + linear("b1", state)
    hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    return (hidden * np.abs(of_state("w2"))).sum(axis=1) + of_state("b2")[:, 0]


@pytest.mark.slow
def test_the_value_of_qmix_rises_with_every_agent():
    from flax import nnx

    mixer = Mixer(3, 5, 4, 8, rngs=nnx.Rngs(0))
    state = jax.random.normal(jax.random.key(0), (50, 5))
    q = jax.random.normal(jax.random.key(1), (50, 3))
    slopes = jax.vmap(jax.grad(mixer))(q, state)
    assert (slopes >= 0).all()
    assert (slopes > 0).any()
    assert np.unique(np.asarray(slopes).round(4)).size > 50  # they depend on state and values


@pytest.mark.slow
def test_steps_of_a_team_contain_the_global_state_after_each_step():
    learner = learner_of("match_env:Match", "QMIX", "caller", "answerer")
    rollout = learner.rollout(learner.init(jax.random.key(0)))[1]
    steps = team_steps(learner.setup.teams["team"], rollout, keeps_state=True)
    state, following = np.asarray(steps.obs[2]), np.asarray(steps.next_obs[2])
    over = np.asarray(rollout.over)
    assert over.any()
    goes_on = ~over[:-1]
    np.testing.assert_array_equal(following[:-1][goes_on], state[1:][goes_on])
    np.testing.assert_array_equal(following[-1][~over[-1]], rollout.last_global_state[~over[-1]])
    np.testing.assert_allclose(
        steps.reward, sum(row.reward.sum(axis=-1) for row in rollout.rows.values()), rtol=1e-6
    )


def test_a_team_with_past_selves_needs_one_step_targets():
    config = {
        "env": "match_env:Match",
        "policies": {
            "caller": {"algorithm": "VDN", "network": NETWORK, "n_step": 2, "past_selves": 2},
            "answerer": {"algorithm": "PPO", "network": NETWORK},
        },
    }
    with pytest.raises(ValueError, match=r"policies\.caller\.n_step = 2: must be 1"):
        make_learner(load_config(config))
