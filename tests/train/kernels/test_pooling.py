"""Kernels that pool sets, interpreted in XLA, against plain XLA. No GPU is needed."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import CARDS, kernels_in, lowered
from flax import nnx

from wdjax.kernels import pooling
from wdjax.kernels.activations import SLOPES
from wdjax.kernels.support import kernels_for, listening
from wdjax.spaces import Box
from wdjax.train import load_config, make_learner
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks import encoders
from wdjax.train.networks import pooling as networks
from wdjax.train.networks.actor_critic import MLP, Trunk
from wdjax.train.networks.pooling import POOLS, pool_sets, run_layers

pytestmark = pytest.mark.usefixtures("quick_compile")

SETS, ELEMENTS, FEATURES, WIDTH = 2 * pooling.ROWS + 3, 5, 7, 16  # the last program is not full


@pytest.fixture
def interpreted(monkeypatch):
    for name in ("forward", "backward"):
        function = functools.partial(getattr(pooling, name), interpret=True)
        monkeypatch.setattr(pooling, name, function)
    call_cuda = lambda cuda, default, *operands: cuda(*operands)  # noqa: E731
    monkeypatch.setattr(networks, "cuda_or_default", call_cuda)


def plain(pool, activation, layers, others, present):
    for kernel, bias in layers:
        others = getattr(jax.nn, activation)(others @ kernel + bias[None, None])
    return POOLS[pool](others, present[..., None])


def operands(depth, seed=0):
    """Return (layers, elements, presence), with equal elements and with sets without elements."""
    keys = iter(jax.random.split(jax.random.key(seed), 2 * depth + 2))
    sizes = (FEATURES, *[WIDTH] * depth)
    layers = [
        (jax.random.normal(next(keys), shape), jax.random.normal(next(keys), shape[1:]))
        for shape in itertools.pairwise(sizes)
    ]
    others = jax.random.normal(next(keys), (SETS, ELEMENTS, FEATURES))
    others = others.at[3, 4].set(others[3, 2]).at[5].set(others[5, :1])
    present = jax.random.bernoulli(next(keys), 0.6, (SETS, ELEMENTS)).at[5].set(True)
    return layers, others, present.at[7].set(False)


def results(function, pool, layers, others, present, activation="relu", scale=1.0):
    """Return (gradients of a scaled sum of pooled features, for layers and elements; features)."""
    weights = scale * jax.random.normal(jax.random.key(9), (SETS, WIDTH))

    def total(layers, others):
        pooled = function(pool, activation, layers, others, present)
        return jnp.sum(weights * pooled), pooled

    return jax.jit(jax.grad(total, (0, 1), has_aux=True))(layers, others)


def assert_close(found, expected):
    """Compare trees up to the errors of products of float16, relative to the largest number."""
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=4e-3 * np.max(np.abs(theirs)))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "depth", "scale"),
    [("max", 1, 1), ("max", 3, 1e-12), ("mean", 2, 1e9), ("sum", 1, 1e-12), ("sum", 3, 1)],
)
def test_kernels_agree_with_plain_xla(pool, depth, scale, interpreted):
    layers, others, present = operands(depth)
    found, expected = (
        results(f, pool, layers, others, present, scale=scale) for f in (pool_sets, plain)
    )
    assert_close(found, expected)


@pytest.mark.slow
def test_features_beyond_float16_make_gradients_infinite(interpreted):
    ((kernel, bias), second), others, present = operands(2)
    layers = [(kernel * 1e5, bias), second]
    (d_layers, _), pooled = results(pool_sets, "max", layers, others, present)
    assert np.all(np.isfinite(pooled))
    assert not np.all(np.isfinite(d_layers[1][0]))


@pytest.mark.slow
@pytest.mark.parametrize("activation", SLOPES)
def test_layers_of_rows_agree_with_plain_xla(activation, interpreted):
    layers, others, _ = operands(2)

    def total(function, layers, rows):
        features = function(layers, rows)
        return jnp.sum(features**2), features

    def by_layers(layers, rows):
        for kernel, bias in layers:
            rows = getattr(jax.nn, activation)(rows @ kernel + bias[None, None])
        return rows

    found, expected = (
        jax.jit(jax.grad(functools.partial(total, f), (0, 1), has_aux=True))(layers, others)
        for f in (functools.partial(run_layers, activation), by_layers)
    )
    assert_close(found, expected)


@pytest.mark.slow
def test_vmapped_kernels_equal_the_kernels_of_members(interpreted):
    cases = [operands(2, seed) for seed in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)
    found = jax.vmap(functools.partial(results, pool_sets, "max"))(*stacked)
    for i, case in enumerate(cases):
        expected = results(pool_sets, "max", *case)
        for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((9, 5, 7, 48, 1, "max"), "width 48: kernels support 16, 32, 64, 128"),
        ((9, 5, 200, 64, 1, "max"), "200 features of an element: kernels support up to 127"),
        ((9, 25, 7, 64, 1, "max"), "25 elements: kernels support up to 24"),
        ((2**30, 2, 7, 64, 1, "max"), "68,719,476,736 inputs: more than a kernel can index"),
        ((9, 1, 7, 64, 1, "sum", "gelu"), "activation gelu: kernels support relu, tanh"),
        ((9, 0, 7, 64, 1, "sum"), "sets have no elements"),
        ((9, 24, 7, 128, 3, "sum"), "3 layers of width 128: too many for registers"),
        ((9, 24, 7, 128, 2, "sum"), None),
    ],
)
def test_unsupported_sizes_have_a_reason(sizes, reason):
    assert pooling.why_not(pooling.Sizes(*sizes)) == reason


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS)
def test_kernels_lower_for_every_gpu(card):
    function = functools.partial(results, pool_sets, "max")
    assert {"pool_sets", "pool_sets_back"} <= kernels_in(lowered(function, *operands(2), card=card))


@pytest.mark.slow
@pytest.mark.parametrize("shared_trunk", [True, False])
def test_updates_of_policies_with_set_encoders_use_kernels_on_gpus(shared_trunk, as_on_a_gpu):
    network = {"encoder": "deep_sets", "hidden_sizes": [32], "shared_trunk": shared_trunk}
    with listening() as decisions:
        text = update_text("tag_small", "runner", network, **{"policies.tagger.trainable": False})
    assert {name: why for name, why in decisions.items() if "runner" in name} == {
        "acting of runner": None,
        "set encoder of runner": None,
        "learning of runner": None,
    }
    assert "pool_sets_back" in kernels_in(text)


@pytest.mark.slow
def test_updates_of_recurrent_policies_use_kernels_for_hidden_layers_on_gpus(as_on_a_gpu):
    network = {"recurrent_size": 16, "hidden_sizes": [64, 64]}
    with listening() as decisions:
        text = update_text("cartpole_ppo", "agent", network)
    assert decisions["hidden layers of agent"] is None
    assert "pool_sets_back" in kernels_in(text)


def traced(function, *arguments):
    """Return the jaxpr of a call, as text, and the decisions about kernels."""
    with listening() as decisions, kernels_for("runner"):
        return str(jax.make_jaxpr(lambda *arguments: function(*arguments))(*arguments)), decisions


def without_last_relu(self, rows):
    return self.layer_1(jax.nn.relu(self.layer_0(rows)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("nothing", None),
        ("width", "width 24: kernels support 16, 32, 64, 128"),
        ("layers", "it is custom"),
        ("parts", "its layers are custom"),
    ],
)
def test_custom_set_encoders_use_plain_xla(changed, reason, monkeypatch):
    if changed == "layers":
        monkeypatch.setattr(encoders.SetLayers, "__call__", without_last_relu)
    elif changed == "parts":
        monkeypatch.setattr(encoders.nnx.Linear, "__call__", lambda self, x: x @ self.kernel[...])
    split = lambda obs: (obs[..., None], obs > 0, obs)  # noqa: E731
    width = 24 if changed == "width" else 32
    encoder = encoders.DeepSets(Box(-1.0, 1.0, (3,)), width, 2, split=split, rngs=nnx.Rngs(0))
    text, decisions = traced(encoder, jnp.ones((4, 3)))
    assert decisions == {"set encoder of runner": reason}
    assert ("pool_sets" in text) == (reason is None)


def one_layer(self, inputs):
    return self.layer_0(inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "by_kernel"),
    [
        ({}, True),
        ({"hidden_sizes": (32, 64)}, False),
        ({"layer_norm": True}, False),
        ({"activation": "gelu"}, False),
        ({"compute_dtype": "bfloat16"}, False),
        ({"encoder": "fourier"}, False),
        (None, False),  # custom layers
    ],
)
def test_other_hidden_layers_of_recurrent_policies_use_plain_xla(changes, by_kernel, monkeypatch):
    if changes is None:
        monkeypatch.setattr(MLP, "__call__", one_layer)
    sizes = {"recurrent_size": 16, "hidden_sizes": (64, 64), **(changes or {})}
    trunk = Trunk(Box(-1.0, 1.0, (3,)), NetworkConfig(**sizes), rngs=nnx.Rngs(0))
    carry = trunk.cell.empty((4,))
    text, decisions = traced(trunk.unroll, jnp.ones((5, 4, 3)), carry, jnp.zeros((5, 4), bool))
    assert ("pool_sets" in text) == by_kernel
    assert ("hidden layers of runner" in decisions) == by_kernel
    assert not any(why for name, why in decisions.items() if "hidden" in name)


@pytest.mark.parametrize("pool", POOLS)
def test_sets_without_elements_have_the_features_zero(pool):
    space = Box(-1.0, 1.0, (3,))
    split = lambda obs: (obs[..., :0, None], obs[..., :0] > 0, obs)  # noqa: E731
    encoder = encoders.DeepSets(space, 16, 2, pool, split=split, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(encoder(jnp.ones((2, 3)))[:, :16], 0.0)


def update_text(preset, policy, network, **changes):
    """Return the text of an update with a changed network, lowered for a GPU."""
    changes |= {f"policies.{policy}.network.{name}": value for name, value in network.items()}
    small = {"num_envs": 4, "rollout_length": 4, "devices": 1, "num_blocks": 1}
    learner = make_learner(load_config(preset, **small, **changes))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    return lowered(lambda state: learner.update(state), state)
