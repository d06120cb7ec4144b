"""Custom losses on kernels: analysis of a loss, and gradients against plain XLA."""

import dataclasses
import functools

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest
from cards import for_card

from wdjax.kernels.support import listening
from wdjax.train import A2C, PPO, load_config, make_learner, traced
from wdjax.train.algorithms.ddpg import DDPG
from wdjax.train.algorithms.fit import Batch
from wdjax.train.fast.cuda import kernel_gradient
from wdjax.train.kernels.loss import is_custom, is_linear, study
from wdjax.train.state.engine import BatchRows, Engine
from wdjax.train.state.state import current_hypers

pytestmark = pytest.mark.usefixtures("quick_compile")

AGENT = "policies.agent"
ONE = jnp.zeros(1)
ROWS = BatchRows(ONE, ONE, ONE, ONE, ONE > 0)


@dataclasses.dataclass(frozen=True)
class Options(PPO.Options):
    """Options of PPO and the weights of two terms."""

    value_change: float = traced(0.3)
    reference: float = traced(0.2)


class TwoTerms(PPO):
    """PPO with one more term of the value and one of the policy."""

    Options = Options

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        terms = {
            "value_change": (new.value - batch.value) ** 2,
            "reference": (new.log_prob - batch.log_prob) ** 2 * new.entropy,
        }
        more = mean(terms)
        loss += options.value_change * more["value_change"] + options.reference * more["reference"]
        return loss, means | more


class Mixed(PPO):
    """A term that multiplies value and log-probability."""

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        more = mean({"mix": new.value * new.log_prob})
        return loss + 0.1 * more["mix"], means | more


class MixedGradient(PPO):
    """A loss whose gradient in the value depends on the policy, in terms that do not."""

    def loss(self, new, batch, options, mean):
        weight = jax.lax.stop_gradient(new.entropy)
        loss, means = super().loss(new, batch, options, mean)
        more = mean({"weighted": weight * new.value})
        return loss + more["weighted"], means | more


class Squared(PPO):
    """The square of a mean is not the mean of squares."""

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        return loss + options.entropy_coefficient * means["entropy"] ** 2, means


class Shifted(PPO):
    """A constant summand is no mean of a term."""

    def loss(self, new, batch, options, mean):
        loss, means = super().loss(new, batch, options, mean)
        return loss + options.clip, means


# --- the study of a loss ---


def test_study_of_ppo():
    found = study(PPO().loss, PPO.Options(), ROWS)
    assert found.read == ["clip", "value_clip", "value_coefficient", "entropy_coefficient"]
    expected = ["approx_kl", "clip_fraction", "entropy", "policy_loss", "value_loss"]
    assert found.terms == expected
    assert found.of_value == {"value_loss"}
    assert found.mixed is None


def test_study_of_a2c():
    """It reads no clipping range, and no log-probability of the policy that acted."""
    rows = ROWS.replace(log_prob=None)
    found = study(A2C().loss, A2C.Options(normalize_advantage=True), rows)
    assert found.read == ["value_coefficient", "entropy_coefficient"]
    assert found.terms == ["entropy", "normalized_advantage_mean", "policy_loss", "value_loss"]
    assert found.of_value == {"value_loss"}
    assert found.mixed is None


def test_study_of_a_custom_loss():
    found = study(TwoTerms().loss, Options(), ROWS)
    assert found.read[-2:] == ["value_change", "reference"]
    assert {"value_change", "reference"} < set(found.terms)
    assert found.of_value == {"value_loss", "value_change"}
    assert found.mixed is None


@pytest.mark.parametrize("algorithm", [Mixed, MixedGradient])
def test_study_finds_terms_of_policy_and_value(algorithm):
    assert study(algorithm().loss, PPO.Options(), ROWS).mixed is not None


def test_losses_of_wdjax_are_not_custom():
    assert [is_custom(cls().loss) for cls in (A2C, PPO, TwoTerms)] == [False, False, True]


# --- linear in the means ---


@pytest.mark.parametrize("algorithm", [A2C, PPO, TwoTerms, Mixed, MixedGradient])
def test_linear_losses(algorithm):
    assert is_linear(algorithm().loss, algorithm.Options())


@pytest.mark.parametrize("value", [0.0, [[0, 0.1], [1000, 0]], {"fraction": [[0, 0.1], [1, 0]]}])
@pytest.mark.parametrize("algorithm", [TwoTerms, Squared])
def test_linearity_does_not_depend_on_values_of_options(algorithm, value):
    changes = {f"{AGENT}.algorithm": name_of(algorithm), f"{AGENT}.entropy_coefficient": value}
    options = load_config("cartpole_ppo", **changes).policies["agent"].options
    assert is_linear(algorithm().loss, options) == (algorithm is TwoTerms)


@pytest.mark.parametrize("algorithm", [Squared, Shifted])
def test_nonlinear_loss_is_refused_before_it_is_traced_by_the_learner(algorithm):
    config = load_config("cartpole_ppo", **{f"{AGENT}.algorithm": name_of(algorithm)})
    words = (
        rf"policies\.agent\.algorithm: its loss = '{name_of(algorithm)}': must be linear in the "
        "means of its terms"
    )
    with pytest.raises(ValueError, match=words):
        make_learner(config)


class OtherLoss(DDPG):
    """An algorithm whose own function `loss` is no loss of an actor-critic."""

    def loss(self, params, scale):
        return params * scale**2


def test_functions_named_loss_of_other_algorithms_are_not_checked():
    config = load_config("pendulum_ddpg", **{f"{AGENT}.algorithm": name_of(OtherLoss)})
    assert make_learner(config).setup.policies["agent"].engine.shape is None


# --- gradients ---


def name_of(algorithm):
    return f"{__name__}:{algorithm.__name__}"


def make_case(algorithm, shared_trunk, **changes):
    """Return the learner of a small run, and changes of cartpole_ppo."""
    network = {"shared_trunk": shared_trunk, "hidden_sizes": [16, 16], "activation": "relu"}
    changes |= {f"{AGENT}.network.{name}": value for name, value in network.items()}
    changes |= {f"{AGENT}.algorithm": name_of(algorithm), f"{AGENT}.value_clip": 0.3}
    small = {"num_envs": 16, "rollout_length": 8, "devices": 1}
    return make_learner(load_config("cartpole_ppo", **small, **changes))


def random_batch(size):
    keys = iter(jax.random.split(jax.random.key(3), 8))
    obs, action = (
        jax.random.normal(next(keys), (size, 4)),
        jax.random.randint(next(keys), (size,), 0, 2),
    )
    log_prob = jnp.log(0.5) + 0.2 * jax.random.normal(next(keys), (size,))
    numbers = {
        name: jax.random.normal(next(keys), (size,)) for name in ("value", "advantage", "target")
    }
    valid = jax.random.bernoulli(next(keys), 0.8, (size,))
    return Batch(obs, action, log_prob, valid=valid, **numbers)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "shared_trunk"), [(TwoTerms, False), (Mixed, True)])
def test_kernel_gradient_of_a_custom_loss_equals_plain_xla(algorithm, shared_trunk):
    learner = make_case(algorithm, shared_trunk)
    state, policy = learner.init(jax.random.key(0)), learner.setup.policies["agent"]
    hypers = current_hypers(learner.config, state)["agent"]
    inputs, batch = (
        (policy.algorithm.loss, policy, state.policies["agent"], hypers),
        random_batch(200),
    )
    expected, terms = jax.jit(functools.partial(Engine().sum_gradient, *inputs))(batch)
    found, sums = jax.jit(functools.partial(kernel_gradient, *inputs, interpret=True))(batch)
    assert sums.keys() == terms.keys()
    for name, value in terms.items():
        np.testing.assert_allclose(sums[name], value, rtol=3e-3, err_msg=name)
    for path, value in jax.tree.leaves_with_path(expected):
        size = float(np.max(np.abs(value)))
        assert size > 0
        leaf = functools.reduce(lambda tree, entry: tree[entry.key], path, found)
        # rounding to float16 changes the sign of a few inputs of relu
        np.testing.assert_allclose(leaf, value, atol=2e-2 * size, err_msg=str(path))


def kernels_in(jaxpr):
    """Return the names of the kernels of a program that is traced, not lowered."""
    names = {eqn.params["name"] for eqn in jaxpr.eqns if eqn.primitive.name == "pallas_call"}
    inner = (part for eqn in jaxpr.eqns for part in jex.core.jaxprs_in_params(eqn.params))
    return names.union(*map(kernels_in, inner))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "shared_trunk", "plain"),
    [
        (TwoTerms, False, False),
        (Mixed, True, False),
        (Mixed, False, True),
        (MixedGradient, False, True),
    ],
)
def test_mixed_loss_of_two_trunks_is_learned_by_plain_xla(
    algorithm, shared_trunk, plain, monkeypatch
):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    learner = make_case(algorithm, shared_trunk)
    with listening() as decisions, for_card():
        update = jax.make_jaxpr(learner.update)(jax.eval_shape(learner.init, jax.random.key(0)))
    assert ("gradient" in kernels_in(update.jaxpr)) == (not plain)
    reason = decisions["learning of agent"]
    assert (reason is not None) == plain
    assert not plain or reason.endswith("depends on policy and value, which have a trunk each")
