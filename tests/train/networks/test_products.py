"""Matrix products against NumPy in float64, and the form of their gradients in XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from wdjax.train.networks import linear
from wdjax.train.networks.linear import FEW_PRODUCTS, HEAD, PART, product, sequence_product

LAYERS = {
    "a head": ((7, 3), 16, 16 // HEAD),
    "the head of one output": ((5,), 6, 1),
    "few rows": ((7, 3), 6, 4),
    "one row": ((), 6, 4),
    "no rows": ((0,), 6, 4),
    "many rows": ((FEW_PRODUCTS // 128 + 1,), 8, 16),
}
SEQUENCES = {"one part": (7, 3), "three parts": (6, PART // 2), "one step": (1, 2 * PART)}


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYERS)
def test_product_and_gradients_agree_with_numpy(case):
    check_product(product, *LAYERS[case])


@pytest.mark.parametrize("case", SEQUENCES)
def test_products_of_sequences_on_gpus_agree_with_numpy(case, monkeypatch):
    monkeypatch.setattr(linear, "on_cpu", lambda: False)
    check_product(sequence_product, SEQUENCES[case], 8, 3)


def check_product(product, leading, num_inputs, num_outputs):
    rng = np.random.default_rng(0)
    shapes = ((*leading, num_inputs), (num_inputs, num_outputs), (*leading, num_outputs))
    inputs, kernel, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in shapes)

    def layer():
        return nnx.Linear(
            num_inputs, num_outputs, use_bias=False, dot_general=product, rngs=nnx.Rngs(0)
        )

    graph = nnx.graphdef(nnx.eval_shape(layer))

    def apply(inputs, kernel):
        return nnx.merge(graph, nnx.State({"kernel": nnx.Param(kernel)}))(inputs)

    @jax.jit
    def both(inputs, kernel):
        outputs, back = jax.vjp(apply, inputs, kernel)
        return outputs, *back(cotangent)

    x, w, d = (np.asarray(array, np.float64) for array in (inputs, kernel, cotangent))
    rows, d_rows = x.reshape(-1, num_inputs), d.reshape(-1, num_outputs)
    expected = x @ w, d @ w.T, rows.T @ d_rows
    for array, right in zip(both(inputs, kernel), expected, strict=True):
        assert array.shape == right.shape
        np.testing.assert_allclose(
            array, right, rtol=1e-4, atol=1e-4 * max(np.abs(right).max(initial=0), 1)
        )


@pytest.mark.parametrize("case", ["a head", "few rows"])
def test_gradient_keeps_its_form_in_xla(case):
    """The form is for speed only, so no other test would notice a change."""
    _, num_inputs, num_outputs = LAYERS[case]
    inputs, kernel = jnp.ones((32, num_inputs)), jnp.ones((num_inputs, num_outputs))
    numbers = (((1,), (0,)), ((), ()))

    def weighed(times):
        return jax.jit(jax.grad(lambda kernel: jnp.sum(jnp.tanh(times(inputs, kernel, numbers)))))

    assert sums_over_rows(weighed(jax.lax.dot_general), kernel)
    assert not sums_over_rows(weighed(product), kernel)


def sums_over_rows(function, kernel):
    """Return the products of kernel shape in a program that contract the first axis on the left."""
    lines = function.lower(kernel).compile().as_text().splitlines()
    like = "f32[" + ",".join(map(str, kernel.shape)) + "]"
    return [
        line
        for line in lines
        if f"{like}{{1,0}} dot(" in line and "lhs_contracting_dims={0}" in line
    ]


def test_product_under_vmap_and_forward_mode():
    rng = np.random.default_rng(1)
    inputs, kernels = (
        rng.normal(size=shape).astype(np.float32) for shape in ((2, 7, 6), (2, 6, 4))
    )

    def times(inputs, kernel):
        return product(inputs, kernel, (((1,), (0,)), ((), ())))

    expected = np.einsum("bri,bio->bro", inputs, kernels)
    np.testing.assert_allclose(jax.jit(jax.vmap(times))(inputs, kernels), expected, rtol=1e-5)
    _, tangent = jax.jit(lambda *pairs: jax.jvp(times, *pairs))(
        (inputs[0], kernels[0]), (inputs[1], kernels[1])
    )
    right = inputs[1] @ kernels[0] + inputs[0] @ kernels[1]
    np.testing.assert_allclose(tangent, right, rtol=1e-4, atol=1e-5)
