"""Kernels that pool sets, interpreted in XLA, against plain XLA. No GPU is needed."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import CARDS, lowered
from flax import nnx

from wdjax.kernels import pooling
from wdjax.kernels.activations import SLOPES
from wdjax.kernels.support import listening
from wdjax.spaces import Box
from wdjax.train import load_config, make_learner
from wdjax.train.networks import encoders
from wdjax.train.networks import pooling as networks
from wdjax.train.networks.actor_critic import MLP
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


def results(function, pool, layers, others, present, activation="relu"):
    """Return pooled features, and gradients with respect to layers and elements."""
    weights = jax.random.normal(jax.random.key(9), (SETS, WIDTH))

    def total(layers, others):
        pooled = function(pool, activation, layers, others, present)
        return jnp.sum(weights * pooled), pooled

    return jax.jit(jax.grad(total, (0, 1), has_aux=True))(layers, others)


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_kernels_agree_with_plain_xla(pool, depth, interpreted):
    found, expected = (results(f, pool, *operands(depth)) for f in (pool_sets, plain))
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.max(np.abs(theirs)))


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
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.max(np.abs(theirs)))


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
@pytest.mark.parametrize("shared_trunk", [True, False])
def test_updates_of_policies_with_set_encoders_use_kernels_on_gpus(card, shared_trunk, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with listening() as decisions:
        text = update_text(card, shared_trunk=shared_trunk)
    assert {name: why for name, why in decisions.items() if "runner" in name} == {
        "acting of runner": None,
        "set encoder of runner": None,
        "learning of runner": None,
    }
    assert "pool_sets_back" in text


@pytest.mark.slow
def test_custom_set_encoders_use_plain_xla(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with listening() as decisions:
        text = update_text(CARDS[0], encoder_options={"width": 24})
    assert "pool_sets" not in text
    assert decisions["set encoder of runner"] == "width 24: kernels support 16, 32, 64, 128"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, {"hidden layers of agent": None}),
        ({"hidden_sizes": [32, 64]}, {}),
        ({"layer_norm": True}, {}),
        ({"activation": "gelu"}, {}),
        ({"compute_dtype": "bfloat16"}, {}),
        ({"encoder": "fourier"}, {}),
    ],
)
def test_hidden_layers_of_recurrent_policies_use_kernels_on_gpus(changes, part, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    network = {"recurrent_size": 16, "hidden_sizes": [64, 64], **changes}
    with listening() as decisions:
        text = text_of("cartpole_ppo", "agent", network)
    assert ("pool_sets_back" in text) == bool(part)
    assert {name: why for name, why in decisions.items() if "hidden" in name} == part


@pytest.mark.slow
def test_custom_hidden_layers_use_plain_xla(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(MLP, "__call__", lambda self, inputs: self.layer_0(inputs))
    assert "pool_sets" not in text_of("cartpole_ppo", "agent", {"recurrent_size": 16})


def without_last_relu(self, rows):
    return self.layer_1(jax.nn.relu(self.layer_0(rows)))


@pytest.mark.slow
@pytest.mark.parametrize("replaced", ["layers", "parts"])
def test_replaced_parts_of_set_encoders_use_plain_xla(replaced, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    if replaced == "layers":
        monkeypatch.setattr(encoders.SetLayers, "__call__", without_last_relu)
        reason = "it is custom"
    else:
        monkeypatch.setattr(encoders.nnx.Linear, "__call__", lambda self, x: x @ self.kernel[...])
        reason = "its layers are custom"
    with listening() as decisions:
        text = update_text(CARDS[0])
    assert "pool_sets" not in text
    assert decisions["set encoder of runner"] == reason


@pytest.mark.parametrize("pool", POOLS)
def test_sets_without_elements_have_the_features_zero(pool):
    space = Box(-1.0, 1.0, (3,))
    split = lambda obs: (obs[..., :0, None], obs[..., :0] > 0, obs)  # noqa: E731
    encoder = encoders.DeepSets(space, 16, 2, pool, split=split, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(encoder(jnp.ones((2, 3)))[:, :16], 0.0)


def update_text(card, **network):
    """Return the text of an update of Tag with a set encoder, lowered for a GPU."""
    network = {"encoder": "deep_sets", "hidden_sizes": [32], **network}
    return text_of("tag_small", "runner", network, card)


def text_of(preset, policy, network, card=CARDS[0]):
    """Return the text of an update with a changed network, lowered for a GPU."""
    changes = {f"policies.{policy}.network.{name}": value for name, value in network.items()}
    small = {"num_envs": 4, "rollout_length": 4, "devices": 1, "num_blocks": 1}
    learner = make_learner(load_config(preset, **small, **changes))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    return lowered(lambda state: learner.update(state), state, card=card)
