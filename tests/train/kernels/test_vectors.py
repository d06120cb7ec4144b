"""The matrices of a tower in a vector of parameters: places by hand, and reading and writing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.kernels import pallas
from wdjax.train.kernels.layers import FEATURES, OBSERVATIONS, STREAMED, Shape
from wdjax.train.kernels.vectors import Held, Piece, computed, matrices_of, merged
from wdjax.train.state.flat import Flat

SIZES = {"num_inputs": 3, "hidden": (20,), "sizes": (2, 3), "activation": "tanh"}


def numbered(shared, inputs):
    """Return (shape, parameters) of a network whose numbers are all different."""

    def layer(rows, columns):
        return {"kernel": (rows, columns), "bias": (columns,)}

    trunk = {"mlp": {"layer_0": layer(3, 20)}}
    trunk |= {"encoder": {"kernel": (2, 2, 3)}} if inputs != OBSERVATIONS else {}
    sizes = {"trunk": trunk, "policy_head": layer(20, 5), "value_head": layer(20, 1)}
    sizes |= {} if shared else {"value_trunk": trunk}
    leaves, tree = jax.tree.flatten(sizes, is_leaf=lambda part: isinstance(part, tuple))
    counts = np.cumsum([0, *(np.prod(leaf) for leaf in leaves)])
    arrays = [
        1.0 + jnp.arange(first, first + np.prod(leaf), dtype=jnp.float32).reshape(leaf)
        for first, leaf in zip(counts, leaves, strict=False)
    ]
    shape = Shape(**SIZES, shared=shared, dtype="float32", inputs=inputs)
    return shape, jax.tree.unflatten(tree, arrays)


def test_places_of_a_piece_in_a_block():
    piece = Piece(8, (2, 3), row=1)
    places, inside = piece.places((4, 4))
    assert inside.tolist() == [4 * [False], *2 * [3 * [True] + [False]], 4 * [False]]
    assert places[1:3, :3].tolist() == [[8, 9, 10], [11, 12, 13]]
    assert piece.places((1, 4), row=2)[0][0, :3].tolist() == [11, 12, 13]
    places, inside = Piece(4, (2, 4)).places((2, 4))  # without a mask: the piece is the block
    assert inside is None
    assert places.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


def through_memory(matrices, outputs, vector, size):
    """Return (the loaded matrices, a vector into which they are stored twice as large)."""

    def kernel(vector_ref, *refs):
        for own, output, ref in zip(matrices, outputs, refs[:-1], strict=True):
            values = Held(vector_ref, own).load()
            ref[...] = values
            output.store(refs[-1], jnp.int32(4), 2.0 * values + 100.0 * (values == 0.0))

    shapes = [jax.ShapeDtypeStruct(own.shape, jnp.float32) for own in matrices]
    shapes.append(jax.ShapeDtypeStruct((4 + size,), jnp.float32))
    *loaded, stored = pallas.call(kernel, "test", shapes, (1,), 4, stages=1, interpret=True)(vector)
    return loaded, stored[4:]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("inputs", [OBSERVATIONS, FEATURES, STREAMED])
@pytest.mark.parametrize("multiple", [1, 4])
def test_matrices_are_read_and_written_in_place(shared, inputs, multiple):
    shape, params = numbered(shared, inputs)
    flat = Flat.of(params, multiple)
    towers = matrices_of(flat.layout, shape)
    outputs, arrays = computed(towers)
    size, stored = sum(piece.size for piece in arrays), 0.0
    for i, tower in enumerate(towers):
        (first, last, bias), own = through_memory(tower, outputs[i], flat.vector, size)
        stored += jnp.nan_to_num(own)  # interpreted, numbers of the other tower are NaN
        trunk = params["value_trunk" if i else "trunk"]["mlp"]["layer_0"]
        heads = [params["policy_head"], params["value_head"]]
        heads = heads if shared else heads[i : i + 1]
        expected = np.zeros((16, 32))
        kernel = trunk["kernel"][: shape.num_held]
        expected[: len(kernel) + 1, :20] = np.vstack([kernel, trunk["bias"]])
        np.testing.assert_array_equal(first, expected)
        columns = np.hstack([head["kernel"] for head in heads])
        np.testing.assert_array_equal(last, np.pad(columns, ((0, 12), (0, 16 - columns.shape[1]))))
        columns = np.hstack([head["bias"] for head in heads])
        np.testing.assert_array_equal(bias, np.pad(columns, (0, 16 - len(columns)))[None])
    vector = merged(flat.layout, [(arrays, stored)])
    doubled = Flat(vector, flat.layout).split()
    for path, value in jax.tree_util.tree_leaves_with_path(doubled):
        names = [entry.key for entry in path]
        is_first = names[-2:] == ["layer_0", "kernel"]
        is_outside = "encoder" in names or (is_first and inputs == STREAMED)
        own = params
        for entry in path:
            own = own[entry.key]
        np.testing.assert_array_equal(value, 0.0 if is_outside else 2.0 * own)
    np.testing.assert_array_equal(Flat.of(doubled, multiple).vector, vector)
    if inputs == OBSERVATIONS:  # no other parameters: the computed vector is the whole one
        np.testing.assert_array_equal(stored, vector[:size])
