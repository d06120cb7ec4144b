"""Networks: encoding of observations, and which parameters each loss depends on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from wdjax import Box, Dict, Discrete, MultiDiscrete
from wdjax.train import NetworkConfig
from wdjax.train.learning import ActorCritic, Categorical, Gaussian, encode, encoded_size
from wdjax.train.networks.actor_critic import empty_carry, split_mask

pytestmark = pytest.mark.usefixtures("quick_compile")

FORM = Dict(
    {
        "b": Box(-1.0, 1.0, (2, 2)),
        "action_mask": MultiDiscrete((2, 2)),
        "a": Discrete(3),
        "c": MultiDiscrete((2, 3)),
        "inner": Dict({"x": Box(0.0, 9.0)}),
    }
)
FILLED = {
    "a": jnp.array(2),
    "b": jnp.array([[1.0, 2.0], [3.0, 4.0]]),
    "c": jnp.array([1, 0]),
    "inner": {"x": jnp.array(7.0)},
}
# in the order of the space, discrete entries one-hot, without mask
ROW = [1, 2, 3, 4, 0, 0, 1, 0, 1, 1, 0, 0, 7]


def test_encode_by_hand():
    np.testing.assert_array_equal(encode(FORM, FILLED), ROW)
    assert encoded_size(FORM) == len(ROW)


def test_encode_keeps_leading_axes():
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (5, 3, *leaf.shape)), FILLED)
    np.testing.assert_array_equal(
        encode(FORM, many), np.broadcast_to(np.array(ROW, np.float32), (5, 3, len(ROW)))
    )


def test_encode_converts_integers_to_floats():
    assert encode(Box(0, 9, (2,), jnp.int32), jnp.array([1, 2])).dtype == jnp.float32


@pytest.mark.parametrize(
    "space", [Discrete(4), MultiDiscrete((2, 2)), Box(shape=(4,)), Box(shape=(2, 2))]
)
def test_encoded_size_of_each_kind(space):
    assert encoded_size(space) == 4


def test_split_mask_separates_the_mask():
    rest, mask = split_mask({"x": 1, "action_mask": 2})
    assert rest == {"x": 1}
    assert mask == 2
    for obs in ({"x": 1}, jnp.ones(3)):
        assert split_mask(obs) == (obs, None) or split_mask(obs)[1] is None


CHOICES = Categorical((2, 3), scalar=False)


def make(distribution=CHOICES, **changes):
    def build():
        return ActorCritic(
            Box(shape=(4,)), distribution, NetworkConfig(**changes), rngs=nnx.Rngs(0)
        )

    network = nnx.jit(build)()
    graphdef, params = nnx.split(network, nnx.Param)
    return jax.jit(lambda params, obs: nnx.merge(graphdef, params)(obs)[:2]), params


def moved_by(part, apply, params):
    """Return the parameters that the sum of the outputs (0) or the value (1) depends on."""
    obs = jnp.linspace(-1, 1, 4)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(apply(params, obs)[part]))))(params)
    return {path[0] for path, leaf in nnx.to_flat_state(gradient) if np.any(np.asarray(leaf[...]))}


def test_shared_trunk_receives_both_gradients():
    apply, params = make(hidden_sizes=(8,), shared_trunk=True)
    assert moved_by(0, apply, params) == {"trunk", "policy_head"}
    assert moved_by(1, apply, params) == {"trunk", "value_head"}


def test_separate_trunks_receive_one_gradient_each():
    apply, params = make(hidden_sizes=(8,), shared_trunk=False)
    assert moved_by(0, apply, params) == {"trunk", "policy_head"}
    assert moved_by(1, apply, params) == {"value_trunk", "value_head"}


def test_outputs_have_leading_axes():
    apply, params = make(hidden_sizes=(8, 6))
    outputs, value = apply(params, jnp.ones((5, 3, 4)))
    assert outputs.shape == (5, 3, 5)
    assert value.shape == (5, 3)


def test_network_without_hidden_layers_is_linear():
    apply, params = make(hidden_sizes=())
    obs = jnp.linspace(-1, 1, 4)
    np.testing.assert_allclose(apply(params, 3 * obs)[0], 3 * apply(params, obs)[0], rtol=1e-5)


def test_initial_policy_is_nearly_uniform():
    apply, params = make(hidden_sizes=(64,))
    probability = jax.nn.softmax(apply(params, jnp.ones(4))[0][2:])
    np.testing.assert_allclose(probability, 1 / 3, atol=0.02)


def test_gaussian_deviations_are_free_parameters_initialized_to_1():
    apply, params = make(Gaussian(2, (2,)), hidden_sizes=(8,))
    for obs in (jnp.zeros(4), jnp.ones(4)):
        np.testing.assert_array_equal(apply(params, obs)[0][2:], 0)  # log deviation
    params["free"][...] = jnp.array([0.5, -0.5])
    np.testing.assert_array_equal(apply(params, jnp.ones((3, 4)))[0][:, 2:], [[0.5, -0.5]] * 3)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "silu"])
def test_activations_by_hand(activation):
    apply, params = make(hidden_sizes=(4,), activation=activation, shared_trunk=True)
    params["trunk"]["mlp"]["layer_0"]["kernel"][...] = jnp.eye(4)
    params["value_head"]["kernel"][...] = jnp.array([[1.0], [0], [0], [0]])
    expected = {
        "relu": 0,
        "tanh": np.tanh(-0.5),
        "gelu": -0.1542,
        "silu": -0.5 / (1 + np.exp(0.5)),
    }[activation]
    np.testing.assert_allclose(apply(params, jnp.full(4, -0.5))[1], expected, atol=1e-3)


def kernels(initializer):
    """Return the hidden layer [4, 64], policy head [64, 5] and value head [64, 1] of a network."""
    params = make(hidden_sizes=(64,), initializer=initializer)[1]
    assert np.all(np.asarray(params["trunk"]["mlp"]["layer_0"]["bias"][...]) == 0)
    parts = (params["trunk"]["mlp"]["layer_0"], params["policy_head"], params["value_head"])
    return [np.asarray(part["kernel"][...]) for part in parts]


def test_orthogonal_initializer_has_its_gains():
    hidden, policy, value = kernels("orthogonal")
    np.testing.assert_allclose(hidden @ hidden.T, 2 * np.eye(4), atol=1e-5)  # gain sqrt(2)
    np.testing.assert_allclose(policy.T @ policy, 1e-4 * np.eye(5), atol=1e-8)
    np.testing.assert_allclose(value.T @ value, [[1]], atol=1e-5)


@pytest.mark.parametrize(
    ("initializer", "deviation"),
    [
        ("xavier", lambda inputs, outputs: np.sqrt(2 / (inputs + outputs))),
        ("lecun", lambda inputs, _: inputs**-0.5),
    ],
)
def test_initializers_have_their_deviation(initializer, deviation):
    for kernel in kernels(initializer):
        expected = deviation(*kernel.shape)
        np.testing.assert_allclose(kernel.std(), expected, rtol=0.25)
        if initializer == "xavier":  # uniform
            assert np.abs(kernel).max() <= np.sqrt(3) * expected * (1 + 1e-6)


@pytest.mark.slow
def test_bfloat16_is_used_in_hidden_layers_only():
    def made(dtype):
        config = NetworkConfig(hidden_sizes=(16, 16), activation="tanh", compute_dtype=dtype)
        return nnx.jit(
            lambda: ActorCritic(Box(-1.0, 1.0, (5,)), CHOICES, config, rngs=nnx.Rngs(0))
        )()

    exact, rounded = made("float32"), made("bfloat16")
    obs = jax.random.normal(jax.random.key(1), (7, 5))
    apply = nnx.jit(lambda network, obs: network(obs)[:2])
    exact_outputs, rounded_outputs = apply(exact, obs), apply(rounded, obs)
    for ours, theirs in zip(rounded_outputs, exact_outputs, strict=True):
        assert ours.dtype == theirs.dtype == jnp.float32
        error = np.max(np.abs(np.subtract(ours, theirs)))
        assert 0 < error < 0.02 * max(1.0, np.max(np.abs(theirs)))
    state = nnx.state(rounded, nnx.Param)
    grads = jax.jit(
        jax.grad(lambda state: jnp.sum(nnx.merge(nnx.graphdef(rounded), state)(obs)[1]))
    )(state)
    parameters = nnx.to_pure_dict(state), nnx.to_pure_dict(grads)
    assert {leaf.dtype for leaf in jax.tree.leaves(parameters)} == {jnp.dtype("float32")}
    hidden = rounded.trunk.mlp.layer_1(rounded.trunk.mlp.activation(rounded.trunk.mlp.layer_0(obs)))
    assert hidden.dtype == jnp.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("shared_trunk", [True, False])
def test_hidden_layers_of_heads_follow_the_cell(shared_trunk):
    config = NetworkConfig(
        (5,), "tanh", shared_trunk=shared_trunk, recurrent_size=6, head_hidden_sizes=(3, 2)
    )
    network = nnx.jit(lambda: ActorCritic(Box(shape=(4,)), CHOICES, config, rngs=nnx.Rngs(0)))()
    obs, carry = jnp.linspace(-1.0, 1.0, 4)[None], empty_carry(network.trunk.cell, config, (1,))
    outputs, value, (after, _) = network(obs, carry)
    trunk = network.trunk
    features = trunk.cell(carry[0], jnp.tanh(trunk.mlp.layer_0(obs)))[1]
    heads = {"policy": (features, outputs), "value": (features, value[..., None])}
    if not shared_trunk:
        heads["value"] = network.value_trunk(obs, carry[1])[0], value[..., None]
    for name, (inputs, expected) in heads.items():
        layers, head = getattr(network, f"{name}_mlp"), getattr(network, f"{name}_head")
        assert layers.layer_0.kernel.shape == (6, 3)
        hidden = jnp.tanh(layers.layer_1(jnp.tanh(layers.layer_0(inputs))))
        np.testing.assert_allclose(head(hidden), expected, atol=1e-6)
    np.testing.assert_allclose(after, features)
    row = network.unroll(obs[None], carry, jnp.zeros((1, 1), bool))
    np.testing.assert_allclose(row[0][0], outputs, atol=1e-6)
    np.testing.assert_allclose(row[1][0], value, atol=1e-6)
