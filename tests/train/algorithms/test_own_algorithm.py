"""Custom algorithms: named by registration or import path, with their own losses and options."""

import dataclasses
import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from probes import NETWORK, SignalParams, tiny_config, tiny_policy
from tiny_runs import numbers

from wdjax.experiments.examples.own_algorithm import AWR
from wdjax.experiments.sweep import load_member, sweep
from wdjax.train import (
    A2C,
    PPO,
    Algorithm,
    OnPolicy,
    PolicyConfig,
    PolicyState,
    Trainer,
    evaluate,
    load_config,
    load_run,
    make_learner,
    register_algorithm,
    sample_blocks,
    traced,
    with_hypers,
)
from wdjax.train.learning import Evaluation, Schedule, masked_mean
from wdjax.train.state.registry import ALGORITHMS

pytestmark = pytest.mark.usefixtures("quick_compile")

PATH = "wdjax.experiments.examples.own_algorithm:AWR"
TEMPERATURE = "policies.agent.temperature"


@pytest.fixture
def registry(monkeypatch):
    """Undo the registrations of a test."""
    for name in list(ALGORITHMS):
        monkeypatch.setitem(ALGORITHMS, name, ALGORITHMS[name])
    yield
    ALGORITHMS.pop("mine", None)


@dataclasses.dataclass(frozen=True)
class ReinforceOptions:
    decay: float = 0.9
    """Decay of the running mean of rewards, the baseline."""
    heat: Schedule = traced(1.0)
    """Divisor of the logits."""


class Reinforce(Algorithm):
    """REINFORCE (Williams, 1992), a linear network with a running mean of rewards as baseline."""

    Options = ReinforceOptions

    def make_network(self, context, config, assignment, rngs):
        return nnx.Linear(
            assignment.observation_space.shape[0], assignment.action_space.n, rngs=rngs
        )

    def init(self, policy, params):
        return PolicyState(params, None, own={"baseline": jnp.float32(0)})

    def logits(self, policy, params, obs, heat=1.0):
        return nnx.merge(policy.graphdef, params)(obs) / heat

    def act(self, policy, state, carry, obs, keys, hypers):
        logits = self.logits(policy, state.params, obs, hypers["heat"])
        return (
            sample_blocks(policy.distribution, keys, logits),
            {"own": {"largest": logits.max(axis=-1)}},
            carry,
        )

    def play(self, policy, state, carry, obs, keys, greedy):
        logits = self.logits(policy, state.params, obs)
        return policy.distribution.mode(logits) if greedy else sample_blocks(
            policy.distribution, keys, logits
        ), carry

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        rows, baseline = rollout.rows[policy.name], state.own["baseline"]

        def loss(params):
            logits = self.logits(policy, params, rows.obs, hypers["heat"])
            log_prob = policy.distribution.log_prob(logits, rows.action)
            return -jnp.mean(jnp.where(rows.live, log_prob * (rows.reward - baseline), 0.0))

        value, grads = jax.value_and_grad(loss)(state.params)
        params = jax.tree.map(
            lambda param, grad: param - hypers["learning_rate"] * grad, state.params, grads
        )
        decay = policy.config.options.decay
        own = {"baseline": decay * baseline + (1 - decay) * jnp.mean(rows.reward)}
        norm = jnp.sqrt(sum(jnp.sum(grad**2) for grad in jax.tree.leaves(grads)))
        metrics = {"loss": value, "grad_norm": norm, "largest_mean": rows.own["largest"].mean()}
        return state.replace(params=params, own=own), memory, metrics


def awr_config(**changes):
    base = {
        "policies.agent.algorithm": PATH,
        "best_metric": "none",  # evaluations take long
        "num_envs": 8,
        "rollout_length": 8,
        "total_env_steps": 6 * 64,
    }
    base["policies.agent.network.hidden_sizes"] = [8]
    # independent of the run length
    base["policies.agent.learning_rate"] = [[0, 1e-2], [150_000, 1e-4]]
    return load_config("cartpole_ppo", **(base | changes))


# --- another loss: the example ---


def batch_of(advantage):
    advantage = jnp.array(advantage)
    zeros = jnp.zeros_like(advantage)
    return types.SimpleNamespace(
        log_prob=None, value=zeros, advantage=advantage, target=zeros, valid=jnp.isfinite(advantage)
    )


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_example_weights_actions_by_their_advantage(temperature):
    new = Evaluation(jnp.full(4, -2.0), jnp.full(4, 0.5), jnp.full(4, 3.0))
    options = AWR.Options(temperature=temperature, max_weight=3.0, entropy_coefficient=0.1)
    # without averaging: the loss of each transition
    loss, terms = AWR().loss(new, batch_of([1.0, -1.0, 9.0, math.inf]), options, dict)
    weight = [min(math.exp(a / temperature), 3.0) for a in (1.0, -1.0, 9.0)]
    np.testing.assert_allclose(terms["weight"][:3], weight, rtol=1e-6)
    np.testing.assert_allclose(
        loss[:3], [2 * w + 0.5 * 3**2 - 0.1 * 0.5 for w in weight], rtol=1e-6
    )


def test_the_example_ignores_invalid_transitions():
    """Also in gradients, if the advantage of an invalid transition is infinite."""
    batch = batch_of([1.0, math.inf])

    def mean(terms):
        return {name: masked_mean(values, batch.valid) for name, values in terms.items()}

    def loss(log_prob):
        new = Evaluation(log_prob, log_prob * 0, log_prob * 0)
        return AWR().loss(new, batch, AWR.Options(), mean)[0]

    gradient = jax.grad(loss)(jnp.array([-2.0, -3.0]))
    np.testing.assert_allclose(gradient, [-min(math.exp(1 / 0.3), 20.0), 0], rtol=1e-6)


PPO_ALONE = {"policies.agent.algorithm": "PPO"}


def pulled_config(**changes):
    return awr_config(**{"policies.agent.algorithm": "custom_losses:Pulled", **changes})


@pytest.mark.slow
def test_a_loss_with_another_term_and_option():
    learner, ppo = make_learner(pulled_config()), make_learner(awr_config(**PPO_ALONE))
    state = learner.init(jax.random.key(0))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    states = with_hypers(states, **{"agent.pull": jnp.array([0.0, 10.0])})
    after, metrics = jax.vmap(learner.update)(states)
    metrics = {name.removeprefix("agent/"): values for name, values in metrics.items()}
    loss = metrics["policy_loss"] + 0.5 * metrics["value_loss"] - 0.01 * metrics["entropy"]
    pull = metrics["loss"] - loss
    np.testing.assert_allclose(pull, jnp.array([0.0, 10.0]) * metrics["pull"], atol=1e-4)
    assert metrics["entropy"][1] < metrics["entropy"][0]
    alone, _ = ppo.update(ppo.init(jax.random.key(0)))  # equals the member without a pull
    params = [each.policies["agent"].params for each in (after, alone)]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(lambda members, one: close(members[0], one), *params)


class Squared(PPO):
    """A loss that is not linear in the means of its terms."""

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        return loss**2, means


def test_a_loss_that_is_not_linear_in_its_means_is_refused():
    config = awr_config(**{"policies.agent.algorithm": f"{__name__}:Squared"})
    with pytest.raises(
        ValueError, match=r"^policies\.agent\.algorithm: its loss .* must be linear"
    ):
        make_learner(config)


@functools.cache
def alone_after_6_updates(temperature):
    """Return the state of a run of `awr_config` with this temperature."""
    learner = awr_learner()
    state = with_hypers(learner.init(jax.random.key(0)), **{"agent.temperature": temperature})
    return learner.run(state, num_updates=6)[0]


@functools.cache
def awr_learner():
    return make_learner(awr_config())


@pytest.mark.slow
def test_a_sweep_over_options_is_one_program_that_equals_separate_runs(tmp_path):
    table = sweep(awr_config(), {TEMPERATURE: [0.1, 1.0]}, workdir=tmp_path / "sweep")
    assert [row[TEMPERATURE] for row in table] == [0.1, 1.0]
    assert len(list((tmp_path / "sweep" / "groups").iterdir())) == 1  # one program
    together = [load_member(tmp_path / "sweep", i)[1].policies["agent"].params for i in range(2)]
    alone = [alone_after_6_updates(value).policies["agent"].params for value in (0.1, 1.0)]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, together, alone)
    gaps = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), *alone)
    assert max(jax.tree.leaves(gaps)) > 1e-3


@pytest.mark.slow
def test_unknown_hyperparameters_are_refused_with_the_traced_options():
    state = awr_learner().init(jax.random.key(0))
    with pytest.raises(
        ValueError, match=r"unknown hyperparameter 'agent.temprature'.*agent.temperature"
    ):
        with_hypers(state, **{"agent.temprature": 1.0})


@pytest.mark.slow
def test_a_run_resumes_exactly_and_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "draw", lambda self: None)  # plots take long
    chunks = {"updates_per_chunk": 1, "checkpoint_every": 1, TEMPERATURE: 0.7}
    whole = alone_after_6_updates(0.7)
    Trainer(awr_config(**chunks, total_env_steps=3 * 64), tmp_path / "parts", quiet=True).train()
    again = Trainer(awr_config(**chunks), tmp_path / "parts", resume=True, quiet=True).train()
    jax.tree.map(np.testing.assert_array_equal, numbers(whole), numbers(again))
    learner, state = load_run(tmp_path / "parts")
    assert learner.config.policies["agent"].options.temperature == 0.7
    assert state.hypers["agent"]["temperature"] == np.float32(0.7)
    with pytest.raises(
        ValueError, match=r"policies.agent.temperature = 0.5: the run in .* was started with 0.7"
    ):
        Trainer(
            awr_config(**chunks | {TEMPERATURE: 0.5}), tmp_path / "parts", resume=True, quiet=True
        )


@pytest.mark.slow
def test_the_example_learns_beside_ppo_in_one_program():
    policies = {"clerk": PolicyConfig(algorithm=PATH, network=NETWORK), "pilot": tiny_policy("PPO")}
    learner = make_learner(tiny_config("probe_pair", policies))
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=2)
    assert np.isfinite(metrics["clerk/weight"]).all()
    assert np.isfinite(metrics["pilot/approx_kl"]).all()
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=4)
    assert set(episodes.episode_return) == {"clerk", "pilot"}


@pytest.mark.slow
def test_the_example_starts_from_a_checkpoint_of_ppo(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "draw", lambda self: None)
    config = awr_config(**PPO_ALONE, total_env_steps=64)
    ppo = Trainer(config, tmp_path / "ppo", quiet=True).train()
    learner = make_learner(awr_config(**{"policies.agent.checkpoint": str(tmp_path / "ppo")}))
    begun = learner.init(jax.random.key(7)).policies["agent"].params
    jax.tree.map(np.testing.assert_array_equal, begun, ppo.policies["agent"].params)


class Orders(AWR):
    """Records the order of policies in each dict of a rollout."""

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        fields = ("rows", "first_carry", "last_carry", "last_obs", "episode_return")
        Orders.seen = {field: list(getattr(rollout, field)) for field in fields}
        return super().update(policy, state, memory, hypers, rollout, key, num_blocks)


def test_dicts_of_a_rollout_list_policies_in_alphabetical_order():
    names = {"second": ("player[0]",), "first": ("player[1]",)}
    policies = {
        name: PolicyConfig(agents, algorithm=f"{__name__}:Orders") for name, agents in names.items()
    }
    learner = make_learner(tiny_config("probe_leaver", policies))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    jax.eval_shape(learner.update, state)
    assert set(map(tuple, Orders.seen.values())) == {("first", "second")}
    assert list(state.policies) == list(state.memory) == ["first", "second"]


# --- a whole algorithm ---


def reinforce_config(**changes):
    return tiny_config(
        "probe_signal", {"agent": PolicyConfig(algorithm="mine", **changes)}, num_envs=32
    )


def test_a_custom_algorithm_learns_the_better_action(registry):
    register_algorithm("mine", Reinforce)
    learner = make_learner(reinforce_config(learning_rate=0.3))
    state = learner.init(jax.random.key(0))
    params = jax.tree.map(
        lambda a, b: jnp.asarray(b, a.dtype), state.env_params, SignalParams(by_match=1.0)
    )
    state, metrics = learner.run(state.replace(env_params=params), num_updates=150)
    episodes = evaluate(learner, state, jax.random.key(1), num_episodes=64)
    best = episodes.episode_length.astype(float)
    assert (episodes.episode_return["agent"] > 0.9 * best).mean() > 0.95
    assert metrics["agent/heat"][0] == 1.0  # a schedule is among the metrics
    assert state.policies["agent"].own["baseline"] > 0.3


@pytest.mark.slow
def test_static_options_are_available_in_the_update(registry):
    register_algorithm("mine", Reinforce)
    learner = make_learner(reinforce_config(options={"decay": 0.25}))
    state = learner.init(jax.random.key(0))
    params = jax.tree.map(
        lambda a, b: jnp.asarray(b, a.dtype), state.env_params, SignalParams(constant=1.0)
    )
    after = learner.update(state.replace(env_params=params))[0]
    np.testing.assert_allclose(after.policies["agent"].own["baseline"], 0.75)


class Gumbel(Reinforce):
    """Draws random numbers from the keys of the blocks of replicas."""

    def act(self, policy, state, carry, obs, keys, hypers):
        logits = self.logits(policy, state.params, obs)
        share = (logits.shape[0] // len(keys), *logits.shape[1:])
        noise = jax.vmap(lambda key: jax.random.gumbel(key, share))(keys).reshape(logits.shape)
        return jnp.argmax(logits + noise, axis=-1), {"own": {"largest": logits.max(axis=-1)}}, carry


class CustomAct(A2C):
    """A2C with a custom `act`."""

    def act(self, policy, state, carry, obs, keys, hypers):
        assert jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
        return super().act(policy, state, carry, obs, keys, hypers)


@pytest.mark.parametrize("num_envs", [8, 264])
@pytest.mark.parametrize("algorithm", [Gumbel, CustomAct])
def test_a_custom_act_receives_keys_at_any_number_of_replicas(algorithm, num_envs):
    policy = PolicyConfig(algorithm=f"{__name__}:{algorithm.__name__}")
    learner = make_learner(tiny_config("probe_signal", {"agent": policy}, num_envs=num_envs))
    jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"policies.agent.algorithm": "AWRR"},
            r"policies.agent.algorithm = 'AWRR'.*package.module:Class",
        ),
        (
            {"policies.agent.algorithm": "nowhere:X"},
            "policies.agent.algorithm 'nowhere:X': No module named 'nowhere'",
        ),
        (
            {"policies.agent.algorithm": "math:pi"},
            r"must be a subclass of wdjax.train.Algorithm, not 3.14",
        ),
        ({TEMPERATURE: "hot"}, r"policies.agent.temperature = 'hot': must be a number"),
        ({TEMPERATURE: -1.0}, r"policies.agent.temperature = -1.0: must be above 0"),
        (
            {"policies.agent.temprature": 1.0},
            r"unknown field policies.agent.temprature: did you mean 'temperature'",
        ),
        (
            {"policies.agent.noise_stddev": 3},
            r"noise_stddev = 3: .*AWR has no such option \(DDPG has it\)",
        ),
        (
            {"policies.agent.algorithm": "PPO", "policies.agent.max_weight": 1.0},
            "unknown field policies.agent.max_weight: known names",
        ),
    ],
)
def test_wrong_options_are_refused(changes, words):
    with pytest.raises((ValueError, TypeError), match=words):
        awr_config(**changes)


def test_schedules_of_options_are_checked(registry):
    register_algorithm("mine", Reinforce)
    with pytest.raises(ValueError, match=r"policies.agent.heat = .*: must be sorted by env_step"):
        make_learner(reinforce_config(options={"heat": [[5, 1.0], [0, 2.0]]}))


class Half(OnPolicy):
    pass


class Clashing(AWR):
    @dataclasses.dataclass(frozen=True)
    class Options:
        learning_rate: float = traced(1.0)


class Loose(AWR):
    @dataclasses.dataclass
    class Options:
        width: int = 1


class Bare(AWR):
    @dataclasses.dataclass(frozen=True)
    class Options:
        width: int


@pytest.mark.parametrize(
    ("name", "algorithm", "words"),
    [
        ("a:b", AWR, "must be a name without ':'"),
        ("PPO", AWR, "must be a name that is not used by another algorithm"),
        ("mine", 3, "must be a subclass of wdjax.train.Algorithm, not 3"),
        ("mine", Half, "Implement update"),
        ("mine", Loose, "Options must be a frozen dataclass"),
        (
            "mine",
            Clashing,
            "an option = 'learning_rate': must be a name that is not a field of every policy",
        ),
        ("mine", Bare, "a default for every field: width has none"),
    ],
)
def test_wrong_algorithms_are_not_registered(name, algorithm, words, registry):
    with pytest.raises((ValueError, TypeError), match=words):
        register_algorithm(name, algorithm)


def test_registering_the_class_of_a_rerun_cell_replaces_it(registry):
    register_algorithm("mine", Reinforce)
    again = type("Reinforce", (Reinforce,), {"__qualname__": Reinforce.__qualname__})
    register_algorithm("mine", again)
    assert ALGORITHMS["mine"] is again
