"""Custom terms of a loss: `evaluate` with `extra`, and a reference policy kept by `begin`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import tiny_config, tiny_policy
from tiny_runs import small_config

from wdjax.kernels.support import listening
from wdjax.train import A2C, PPO, Trainer, make_learner, traced, with_hypers

pytestmark = pytest.mark.usefixtures("quick_compile")

STEPS = {"epochs": 2, "minibatches": 2}


@dataclasses.dataclass(frozen=True)
class Options(PPO.Options):
    beta: float = traced(0.1, allowed="at least 0")


class KLPPO(PPO):
    """PPO with a penalty on the KL divergence from the policy at the start of the run."""

    Options = Options

    def begin(self, policy, state):
        return state.replace(own=(state.params, state.normalizer))

    def evaluate(self, policy, state, batch):
        params, normalizer = state.own
        reference = state.replace(params=params, normalizer=normalizer)
        outputs, others = (batch.outputs(policy, one)[0] for one in (state, reference))
        kl = policy.distribution.kl(outputs, others)
        return super().evaluate(policy, state, batch)._replace(extra={"kl": kl})

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        term = mean({"kl_reference": new.extra["kl"]})
        return loss + options.beta * term["kl_reference"], {**means, **term}


def custom(name, algorithm=PPO, **options):
    """Return a learner with an algorithm of this module."""
    policy = tiny_policy(algorithm.__name__, **STEPS if algorithm is PPO else {})
    policy = dataclasses.replace(
        policy, algorithm=f"{__name__}:{name}", options=dataclasses.asdict(policy.options) | options
    )
    return make_learner(tiny_config("probe_signal", {"agent": policy}))


def learn(learner, **hypers):
    """Return (state, metrics) after 3 updates."""
    return learner.run(with_hypers(learner.init(jax.random.key(0)), **hypers), 3)


@pytest.fixture(scope="module")
def with_reference():
    return custom("KLPPO")


@pytest.mark.slow
def test_term_of_the_reference_pulls_the_policy_towards_it(with_reference):
    distances = []
    for beta in (0.0, 100.0):
        state, _ = learn(with_reference, **{"agent.beta": beta})
        for _ in range(3):  # the same program
            state, metrics = with_reference.run(state, 3)
        distances.append(float(metrics["agent/kl_reference"][-1]))
    free, pulled = distances
    assert 0 <= pulled < 0.1 * free


@pytest.mark.slow
def test_additional_term_of_weight_0_has_no_effect(with_reference):
    states = [
        state.policies["agent"].params
        for state, _ in (learn(with_reference, **{"agent.beta": 0.0}), learn(make_ppo()))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *states)


def make_ppo():
    return make_learner(tiny_config("probe_signal", {"agent": tiny_policy("PPO", **STEPS)}))


@pytest.mark.slow
def test_begin_receives_parameters_and_normalizer_of_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "draw", lambda self: None)  # plots take long
    change = {
        "policies.agent.algorithm": f"{__name__}:KLPPO",
        "policies.agent.normalize_observation": True,
        "total_env_steps": 2 * 128,
        "best_metric": "none",  # evaluations take long
    }
    first = Trainer(small_config(**change), tmp_path / "first", quiet=True).train()
    given = first.policies["agent"]
    assert given.normalizer.obs.count > 0
    change["policies.agent.checkpoint"] = str(tmp_path / "first")
    second = Trainer(small_config(**change), tmp_path / "second", quiet=True).train()
    params, normalizer = second.policies["agent"].own
    jax.tree.map(np.testing.assert_array_equal, params, given.params)
    jax.tree.map(np.testing.assert_array_equal, normalizer, given.normalizer)
    changes = jax.tree.map(
        lambda a, b: np.abs(a - b).max(), second.policies["agent"].params, params
    )
    assert max(jax.tree.leaves(changes)) > 0
    # a resumed run keeps the reference
    change["total_env_steps"] = 4 * 128
    third = Trainer(small_config(**change), tmp_path / "second", resume=True, quiet=True).train()
    jax.tree.map(np.testing.assert_array_equal, third.policies["agent"].own[0], given.params)
    assert third.num_updates == 4


class Stored(A2C):
    """A term of a number that was stored while acting."""

    def act(self, policy, state, carry, obs, keys, hypers):
        action, fields, carry = super().act(policy, state, carry, obs, keys, hypers)
        return action, {**fields, "own": {"one": jnp.ones_like(fields["value"])}}, carry

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        term = mean({"stored": batch.extra["one"], "times": batch.extra["one"] * new.value})
        return loss + term["times"], {**means, **term}


@pytest.mark.slow
def test_loss_reads_numbers_that_were_stored_while_acting():
    assert learn(custom("Stored", A2C))[1]["agent/stored"][-1] == 1.0


class NoField(KLPPO):
    def loss(self, new, batch, options, mean):
        return mean({"kl": new.kl})["kl"], {}


class NoObservation(KLPPO):
    def loss(self, new, batch, options, mean):
        return mean({"size": new.value * batch.obs})["size"], {}


class NoName(KLPPO):
    def loss(self, new, batch, options, mean):
        means = mean({"kl": new.extra["divergence"]})
        return means["kl"], means


class NotLinear(KLPPO):
    def loss(self, new, batch, options, mean):
        means = mean({"kl": new.extra["kl"]})
        return means["kl"] ** 2, means


class NoMetric(KLPPO):
    def loss(self, new, batch, options, mean):
        return mean({"kl": new.extra["kl"]})["kl"], {}


@pytest.mark.parametrize("name", ["NoField", "NoObservation"])
def test_a_loss_that_reads_another_field_is_refused_with_the_fields_it_may_read(name):
    words = "its loss may read only log_prob, entropy, value, extra of `new` and log_prob, value"
    with pytest.raises(ValueError, match=f"policies.agent.algorithm: {words}.* extra of `batch`"):
        custom(name)


@pytest.mark.slow
def test_a_loss_that_reads_a_name_that_evaluate_lacks_is_refused():
    words = r"its loss reads 'divergence', but new.extra has \['kl'\], and batch.extra has \[\]"
    learner = custom("NoName")
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))


def test_a_loss_of_extra_terms_must_be_linear():
    with pytest.raises(ValueError, match="linear in the means of its terms"):
        custom("NotLinear")


def test_a_loss_must_return_the_means_that_it_uses():
    words = "its loss must return the mean of 'kl' in its second result"
    with pytest.raises(ValueError, match=words):
        custom("NoMetric")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [("KLPPO", "its evaluate is custom"), ("Stored", "its loss reads extra one")],
)
def test_terms_of_extra_are_learned_by_plain_xla(name, reason, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    learner = custom(name, A2C if name == "Stored" else PPO)
    with listening() as decisions:
        jax.eval_shape(learner.update, jax.eval_shape(learner.init, jax.random.key(0)))
    assert decisions["learning of agent"] == reason
