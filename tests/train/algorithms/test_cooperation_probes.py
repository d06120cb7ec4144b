"""MAPPO, PQN and DQN on probe environments with known values, each for one part of learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Leaver, SignalParams

from wdjax.train import evaluate, load_config, make_learner
from wdjax.train.algorithms.central_critic import critic_inputs, to_rewards

pytestmark = pytest.mark.usefixtures("quick_compile")

GAMMA = 0.7
ENDLESS = 1 / (1 - GAMMA)  # the value of a reward of 1 in every step, without end
UPDATES = 300
NETWORK = {"hidden_sizes": [8], "activation": "tanh", "initializer": "lecun"}
LEARNING = {
    "gamma": GAMMA,
    "epochs": 2,
    "minibatches": 2,
    "learning_rate": [[0, 0.02], [UPDATES * 8 * 6, 0.0]],
    "max_grad_norm": 10.0,
}
MAPPO = {"algorithm": "MAPPO", **LEARNING, "entropy_coefficient": 0.0, "value_coefficient": 0.5}
PQN = {"algorithm": "PQN", **LEARNING, "epsilon": [[0, 1.0], [UPDATES * 8 * 6, 0.2]]}
REPLAY = {"buffer_size": 512, "batch_size": 64, "warmup": 64, "updates_per_rollout": 8, "tau": 0.2}
DQN = {name: value for name, value in PQN.items() if name not in ("epochs", "minibatches")} | REPLAY
ALGORITHMS = {
    "MAPPO": {**MAPPO, "normalize_advantage": True},
    "MAPPO, PopArt": {**MAPPO, "normalize_advantage": True, "normalize_value": True},
    "PQN": PQN,
    "PQN, sum": {**PQN, "mixer": "sum"},
    "DQN, dueling": {**DQN, "algorithm": "DQN", "dueling": True, "double": False, "n_step": 2},
    "VDN": {**DQN, "algorithm": "VDN"},
}
SIGNAL_PROBES = {
    "constant": SignalParams(constant=1.0),
    "by_signal": SignalParams(by_signal=1.0),
    "delayed": SignalParams(at_end=1.0, episode_length=2),
    "by_match": SignalParams(by_match=1.0),
    "time_limit": SignalParams(constant=1.0, episode_length=2, time_limit=True),
    "final_obs": SignalParams(by_signal=1.0, episode_length=2, time_limit=True, same_signal=True),
    "terminates": SignalParams(constant=1.0, episode_length=2),
}
# MAPPO without PopArt only omits the scales of values
SINGLE = [name for name in ALGORITHMS if name != "MAPPO"]
# all observations (signal, time)
SIGNALS = jnp.array([[-1.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [1.0, 1.0]])
VALUES = {
    "constant": [1, 1],
    "by_signal": [-1, 1],
    "delayed": [GAMMA, GAMMA, 1, 1],
    "by_match": [1, 1],
    "time_limit": [ENDLESS] * 4,
    "final_obs": [-ENDLESS, ENDLESS, -ENDLESS, ENDLESS],
    "terminates": [1 + GAMMA, 1 + GAMMA, 1, 1],
}


def run_of(env, name, options, **changes):
    """Return a learner with 8 replicas and rollouts of 6 steps."""
    policy = {"network": NETWORK, **options}
    sizes = {"num_envs": 8, "rollout_length": 6, "devices": 1}
    return make_learner(load_config({"env": env, "policies": {name: policy}, **sizes}, **changes))


def values(learner, name, state, obs):
    """Return the values of the policy or of its critic, [..., n], for obs [..., n, *part]."""
    policy, own = learner.setup.policies[name], state.policies[name]
    if learner.config.policies[name].algorithm != "MAPPO":
        return policy.algorithm.value(policy, own, obs, None)
    team, shared = learner.setup.teams[name], state.shared[name]
    global_state = obs.reshape(*obs.shape[:-2], -1)  # all observations
    inputs = critic_inputs(team, True, {name: own}, shared, global_state, {name: obs})
    return to_rewards(shared, team.module(shared)(inputs)[0])


@pytest.fixture(scope="module", params=SINGLE)
def learned(request):
    """Return probe -> (value [4], probability that action 1 is chosen [4]) for SIGNALS."""
    learner = run_of("probes:Signal", "agent", ALGORITHMS[request.param])
    keys = jax.random.split(jax.random.key(0), len(SIGNAL_PROBES))
    state = jax.vmap(learner.init)(keys)
    params = jax.tree.map(lambda *numbers: jnp.array(numbers), *SIGNAL_PROBES.values())
    state = state.replace(env_params=params)
    run = jax.jit(jax.vmap(functools.partial(learner.run, num_updates=UPDATES)))
    state = run(state)[0]
    policy, obs = learner.setup.policies["agent"], SIGNALS[:, None]
    found = jax.vmap(lambda state: values(learner, "agent", state, obs)[..., 0])(state)

    def greedy(state):
        play = policy.algorithm.play
        return play(policy, state.policies["agent"], None, obs, keys[:1], True)[0][..., 0]

    action = jax.vmap(greedy)(state)
    return {name: (found[i], action[i]) for i, name in enumerate(SIGNAL_PROBES)}


@pytest.mark.slow
@pytest.mark.parametrize("probe", VALUES)
def test_values_of_probes(learned, probe):
    expected = VALUES[probe]
    np.testing.assert_allclose(learned[probe][0][: len(expected)], expected, atol=0.1)


@pytest.mark.slow
def test_action_depends_on_the_observation(learned):
    np.testing.assert_array_equal(learned["by_match"][1][:2], [0, 1])


# --- two agents, one leaves early ---


@pytest.fixture(scope="module", params=["MAPPO", "PQN", "PQN, sum", "VDN"])
def leaver(request):
    """Return (name of the algorithm, learner, function env params -> state after UPDATES)."""
    learner = run_of("probes:Leaver", "player", ALGORITHMS[request.param])
    start = learner.init(jax.random.key(0))

    def run(**params):
        # keep the types, because other types compile again
        params = start.env_params.replace(**params)
        cast = lambda old, new: jnp.asarray(new, old.dtype)  # noqa: E731
        params = jax.tree.map(cast, start.env_params, params)
        return learner.run(start.replace(env_params=params), num_updates=UPDATES)[0]

    return request.param, learner, run


@pytest.mark.slow
def test_rewards_after_leaving_have_no_value(leaver):
    name, learner, run = leaver
    state = run(dead_reward=-5.0)
    times, length = np.arange(Leaver.LENGTH), Leaver.LENGTH
    # the first one repeats its observation of step 1
    shown = np.stack([np.minimum(times, 1), length + times], axis=-1)
    value = np.asarray(values(learner, "player", state, jnp.eye(2 * length)[shown]))
    leaves = np.array([1 + GAMMA, 1, 0, 0])
    stays = np.array([sum(GAMMA**k for k in range(length - time)) for time in times])
    if name in ("PQN, sum", "VDN"):  # only the sum is determined
        is_active = np.array([[True, True]] * 2 + [[False, True]] * 2)
        np.testing.assert_allclose((value * is_active).sum(axis=-1), leaves + stays, atol=0.1)
    else:
        np.testing.assert_allclose(value[:2, 0], leaves[:2], atol=0.1)
        np.testing.assert_allclose(value[:, 1], stays, atol=0.1)


@pytest.mark.slow
def test_transitions_after_leaving_change_no_bit(leaver):
    name, _, run = leaver
    # a central critic observes agents that have left
    garbage = {} if name == "MAPPO" else {"dead_obs": 1e6}
    states = [run(), run(dead_reward=-1e6, **garbage)]
    one, other = ((state.policies["player"].params, state.shared) for state in states)
    jax.tree.map(np.testing.assert_array_equal, one, other)


# --- memory ---


def recall(algorithm, **network):
    """Train on Recall. Return the mean return of sampled episodes, in [-1, 1]."""
    network = {**NETWORK, "hidden_sizes": [16], **network}
    options = {**ALGORITHMS[algorithm], "gamma": 0.9, "learning_rate": 5e-3, "network": network}
    if algorithm.startswith("PQN"):
        options |= {"epsilon": [[0, 1.0], [20_000, 0.05]], "q_lambda": 0.9}
    learner = run_of("probes:Recall", "agent", options, num_envs=64, rollout_length=8)
    state, _ = learner.run(learner.init(jax.random.key(0)), num_updates=120)
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=128)
    return episodes.episode_return["agent"].mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "memory"),
    [("MAPPO", "lstm"), ("PQN", "mingru"), ("PQN, sum", "gru")],
)
def test_every_memory_recalls_a_signal(algorithm, memory):
    """`test_recurrent` shows that a policy without memory does not."""
    layer_norm = {"layer_norm": True} if "PQN" in algorithm else {}
    assert recall(algorithm, recurrent_size=8, memory=memory, **layer_norm) > 0.9
