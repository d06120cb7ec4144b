"""Kernels of layer normalization, interpreted in XLA, against plain XLA. No GPU is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import CARDS, lowered
from flax import nnx

from wdjax.kernels import normalization
from wdjax.kernels.normalization import Sizes
from wdjax.kernels.support import kernels_for, listening
from wdjax.spaces import Box
from wdjax.train import load_config, make_learner
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks import normalization as networks
from wdjax.train.networks.actor_critic import MLP
from wdjax.train.networks.convolutions import CNN
from wdjax.train.networks.normalization import normalize

pytestmark = pytest.mark.usefixtures("quick_compile")

EPSILON = 1e-6
PART = "layer normalization of agent"


@pytest.fixture
def interpreted(monkeypatch):
    for name in ("forward", "backward"):
        function = functools.partial(getattr(normalization, name), interpret=True)
        monkeypatch.setattr(normalization, name, function)
    call_cuda = lambda cuda, default, *operands: cuda(*operands)  # noqa: E731
    monkeypatch.setattr(networks, "cuda_or_default", call_cuda)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def operands(width, seed=0):
    """Return (parameters, rows): the last block is not full, and a row is constant."""
    num_rows = 2 * Sizes(1, width, "relu", EPSILON).rows + 3
    keys = jax.random.split(jax.random.key(seed), 2)
    parameters = tuple(jax.random.normal(keys[0], (3, 1, width)))
    rows = 3.0 * jax.random.normal(keys[1], (num_rows, width)) + 1.0
    return parameters, rows.at[2].set(-parameters[0][0])


def by_flax(activation, epsilon, parameters, rows):
    bias, scale, shift = parameters
    norm = nnx.LayerNorm(rows.shape[-1], epsilon=epsilon, rngs=nnx.Rngs(0))
    norm.scale[...], norm.bias[...] = scale[0], shift[0]
    return getattr(jax.nn, activation)(norm(rows + bias))


def results(function, activation, parameters, rows):
    """Return outputs, and gradients with respect to parameters and rows."""
    weights = jax.random.normal(jax.random.key(9), rows.shape)

    def total(parameters, rows):
        outputs = function(activation, EPSILON, parameters, rows)
        return jnp.sum(weights * outputs), outputs

    return jax.jit(jax.grad(total, (0, 1), has_aux=True))(parameters, rows)


def assert_close(found, expected):
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.max(np.abs(theirs)))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("width", [16, 24, 256])
def test_kernels_agree_with_flax(width, activation, interpreted):
    assert_close(*(results(f, activation, *operands(width)) for f in (normalize, by_flax)))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_plain_xla_agrees_with_flax(activation):
    assert_close(*(results(f, activation, *operands(24)) for f in (normalize, by_flax)))


def test_backward_kernel_loops_over_blocks(interpreted, monkeypatch):
    monkeypatch.setattr(normalization, "PROGRAMS", 2)
    assert_close(*(results(f, "relu", *operands(24)) for f in (normalize, by_flax)))


def test_rows_of_equal_numbers_have_finite_gradients(interpreted):
    rows = jnp.full((9, 24), 1000.1)  # its variance rounds to a number that may be below 0
    _, *parameters = operands(24)[0]
    found = results(normalize, "tanh", (jnp.zeros((1, 24)), *parameters), rows)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(found))


def test_vmapped_kernels_equal_the_kernels_of_members(interpreted):
    cases = [operands(24, seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)
    found = jax.vmap(functools.partial(results, normalize, "relu"))(*stacked)
    for i, case in enumerate(cases):
        ours = jax.tree.map(lambda leaf, i=i: leaf[i], found)
        assert_close(ours, results(normalize, "relu", *case))


def gradient_of_network(network, inputs, policy):
    """Return features and gradients for each step of the inputs, [T, ...]."""
    graph, params = nnx.split(network)

    def total(params, rows):
        with kernels_for(policy):
            features = nnx.merge(graph, params)(rows)
        return jnp.sum(jnp.sin(features)), features

    def step(_, rows):
        return None, jax.grad(total, (0, 1), has_aux=True)(params, rows)

    return jax.lax.scan(step, None, inputs)[1]


@pytest.mark.slow
def test_hidden_layers_agree_with_plain_xla(interpreted):
    network, inputs = mlp(), jax.random.normal(jax.random.key(0), (4, 7, 3, 5))
    with listening() as decisions:
        found = gradient_of_network(network, inputs, "agent")
    assert decisions == {PART: None}
    assert_close(found, gradient_of_network(network, inputs, None))


@pytest.mark.slow
def test_convolutions_agree_with_plain_xla(interpreted):
    options = {"channels": (4, 6), "kernel_size": 2, "layer_norm": True}
    network = CNN(Box(0.0, 1.0, (5, 4, 3)), **options, rngs=nnx.Rngs(1))
    inputs = jax.random.normal(jax.random.key(0), (2, 7, 2, 5, 4, 3))
    with listening() as decisions:
        found = gradient_of_network(network, inputs, "agent")
    assert decisions == {"layer normalization of images of agent": None}
    assert_close(found, gradient_of_network(network, inputs, None))


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((64, 9, "gelu"), "activation gelu: kernels support relu, tanh"),
        ((1025, 9, "relu"), "width 1025: kernels support up to 1024"),
        ((1024, 2**22, "relu"), "4,294,967,296 inputs: more than a kernel can index"),
        ((1000, 9, "tanh"), None),
    ],
)
def test_unsupported_sizes_have_a_reason(sizes, reason):
    assert normalization.why_not(*sizes) == reason


class OwnNorm(nnx.LayerNorm):
    """A custom normalization."""


class OwnLinear(nnx.Linear):
    """A custom layer."""


def mlp(**changes):
    network = MLP(5, NetworkConfig(hidden_sizes=(24, 16), layer_norm=True), rngs=nnx.Rngs(1))
    for name, part in changes.items():
        setattr(network, name, part)
    return network


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"activation": jnp.sin}, "its activation is custom"),
        ({"norm_1": OwnNorm(16, rngs=nnx.Rngs(0))}, "its normalization is custom"),
        ({"layer_1": OwnLinear(24, 16, rngs=nnx.Rngs(0))}, "its layers are custom"),
        (
            {"norm_1": nnx.LayerNorm(16, use_bias=False, rngs=nnx.Rngs(0))},
            "its normalization has custom settings",
        ),
        (
            {"norm_0": nnx.LayerNorm(24, param_dtype=jnp.float16, rngs=nnx.Rngs(0))},
            "its layers are float16: kernels support float32",
        ),
    ],
)
def test_custom_layers_use_plain_xla(changes, reason):
    network = mlp(**changes)
    with listening() as decisions, kernels_for("agent"):
        jax.eval_shape(network, jnp.zeros((3, 5)))
    assert decisions == {PART: reason}


def test_patched_normalization_uses_plain_xla(monkeypatch):
    monkeypatch.setattr(nnx.LayerNorm, "__call__", lambda self, x: x)
    with listening() as decisions, kernels_for("agent"):
        jax.eval_shape(mlp(), jnp.zeros((3, 5)))
    assert decisions == {PART: "its normalization is custom"}


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS)
def test_kernels_lower_for_every_gpu(card):
    text = lowered(functools.partial(results, normalize, "relu"), *operands(64), card=card)
    assert kernels_in(text) == {"normalize", "normalize_back"}


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["cartpole_pqn", "cartpole_dqn"])
def test_gradients_use_kernels_on_gpus(preset, as_on_a_gpu):
    learner, state = learner_of(preset, layer_norm=True)
    with listening() as decisions:
        text = lowered(lambda state: learner.update(state), state)
    assert decisions[PART] is None
    assert {"normalize", "normalize_back"} <= kernels_in(text)


@pytest.mark.parametrize("preset", ["cartpole_pqn", "cartpole_dqn"])
def test_acting_uses_a_kernel_on_gpus(preset, as_on_a_gpu):
    learner, state = learner_of(preset, layer_norm=True)
    policy = learner.setup.policies["agent"]

    def act(state, obs):
        keys = jax.random.split(jax.random.key(0), 1)
        return policy.algorithm.act(policy, state, None, obs, keys, {"epsilon": 0.1})[0]

    obs = jax.ShapeDtypeStruct((4, 1, 4), jnp.float32)
    assert kernels_in(lowered(act, state.policies["agent"], obs)) == {"normalize"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({"activation": "gelu"}, {PART: "activation gelu: kernels support relu, tanh"}),
        (
            {"compute_dtype": "bfloat16"},
            {PART: "its layers are bfloat16: kernels support float32"},
        ),
        ({"hidden_sizes": ()}, {}),
        ({"layer_norm": False}, {}),
    ],
)
def test_other_networks_use_plain_xla(changes, decision):
    config = NetworkConfig(**{"hidden_sizes": (24, 16), "layer_norm": True, **changes})
    network = MLP(5, config, rngs=nnx.Rngs(1))
    assert traced_with(network) == (decision, set())


def test_custom_hidden_layers_use_plain_xla(monkeypatch):
    assert traced_with(mlp()) == ({PART: None}, {"normalize", "normalize_back"})
    monkeypatch.setattr(MLP, "__call__", lambda self, inputs: self.norm_0(self.layer_0(inputs)))
    assert traced_with(mlp()) == ({}, set())


def traced_with(network):
    """Return the decisions and the kernels of a network whose gradient is computed."""
    with listening() as decisions, kernels_for("agent"):
        text = lowered(jax.grad(lambda rows: jnp.sum(network(rows))), jnp.ones((3, 5)))
    return decisions, kernels_in(text)


def kernels_in(text):
    return {name for name in ("normalize", "normalize_back") if f'name = "{name}"' in text}


def learner_of(preset, **network):
    """Return a learner with a changed network, and the shapes of its state."""
    changes = {f"policies.agent.network.{name}": value for name, value in network.items()}
    small = {"num_envs": 4, "rollout_length": 8, "devices": 1, "num_blocks": 1}
    learner = make_learner(load_config(preset, **small, **changes))
    return learner, jax.eval_shape(learner.init, jax.random.key(0))
