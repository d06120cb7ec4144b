"""Observations and parameters of a policy in the layout of kernels."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels import pallas
from wdjax.train.kernels.layers import STREAMED, TRUNKS, Shape, Tower, dtype_of
from wdjax.train.networks.encoders import FlatEncoder, encode
from wdjax.train.networks.linear import PART, over_rows
from wdjax.train.state.aliases import Observation
from wdjax.train.state.policy import Policy
from wdjax.train.state.state import PolicyState

PARTS, FEW_ROWS = 4, 256
"""parts of a gradient of streamed inputs with few rows, and fewest rows of a part"""


def inputs_of(policy: Policy, state: PolicyState, obs: Observation) -> list[jax.Array]:
    """Return the inputs of the towers, [R, num_inputs], for observations [..., *part].

    Features of an encoder are inputs of one tower, other arrays are inputs of all towers.

    Args:
        policy: static part of the policy.
        state: its state.
        obs: observations.
    """
    seen, _ = policy.inputs(state, obs)
    if policy.encoder is FlatEncoder:
        found = [encode(policy.assignment.observation_space, seen)]
    else:
        network = nnx.merge(policy.graphdef, state.params)
        trunks = [network.trunk, network.value_trunk]
        found = [trunk.encoder(seen) for trunk in trunks if trunk is not None]
    return [rows.reshape(-1, rows.shape[-1]) for rows in found]


def first_gradients(
    inputs: Sequence[jax.Array],
    of_products: list[jax.Array],
    params: Mapping[str, Any],
    shape: Shape,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return the gradients of the factors of streamed products.

    Args:
        inputs: [R, num_inputs] of each tower, or of all towers.
        of_products: [R, units], gradients of the products of inputs and the first matrix of each
            tower.
        params: parameters of the network.
        shape: static sizes of the policy.

    Returns:
        (gradients of the matrices, [num_inputs, units]; gradients of the inputs of each tower,
        [R, num_inputs]).
    """
    first = [params[name]["mlp"]["layer_0"]["kernel"] for name in TRUNKS[: shape.num_towers]]
    gradients = of_products
    if len(inputs) < len(gradients):  # one product is faster than two
        gradients = [jnp.concatenate(gradients, axis=1)]
    part = min(PART, max(FEW_ROWS, len(inputs[0]) // PARTS))
    pairs = zip(inputs, gradients, strict=True)
    sums = [over_rows(x[:, None], d[:, None], part) for x, d in pairs]
    matrices = [matrix for both in sums for matrix in jnp.split(both, len(first) // len(sums), 1)]
    return matrices, [d @ matrix.T for d, matrix in zip(of_products, first, strict=True)]


def towers_of(params: Mapping[str, Any], shape: Shape) -> tuple[Tower, ...]:
    """Return the parameters of an actor-critic as padded towers, a linear function of them."""
    hidden = lambda trunk: [params[trunk]["mlp"][f"layer_{i}"] for i in range(len(shape.hidden))]  # noqa: E731
    heads = [params["policy_head"], params["value_head"]]
    if shape.shared:
        heads = [jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=-1), *heads)]
    trunks = zip(TRUNKS, heads, strict=False)
    return tuple(_padded_tower([*hidden(trunk), head], shape) for trunk, head in trunks)


def _padded_tower(layers: list[dict[str, jax.Array]], shape: Shape) -> Tower:
    tower: list[tuple[Any, jax.Array]] = []
    for layer, rows, columns in zip(layers, shape.widths, shape.widths[1:], strict=False):
        kernel, bias = layer["kernel"], layer["bias"]
        bias = jnp.pad(bias, (0, columns - bias.shape[0]))
        if not tower and shape.inputs == STREAMED:
            rows = pallas.cdiv(kernel.shape[0], shape.at_once) * shape.at_once
        kernel = jnp.pad(kernel, ((0, rows - kernel.shape[0]), (0, columns - kernel.shape[1])))
        tower.append((kernel, bias))
    return tuple(tower)


def transposed(towers: tuple[Tower, ...], shape: Shape) -> tuple[Tower, ...]:
    """Return towers with matrices [outputs, inputs] in the dtypes of products."""
    later = dtype_of(shape)
    return tuple(
        tuple(
            (kernel.T.astype(later if i else shape.dtype), bias)
            for i, (kernel, bias) in enumerate(tower)
        )
        for tower in towers
    )
