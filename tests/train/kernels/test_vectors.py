"""Arrays of a tower in vectors: places by hand."""

import jax.numpy as jnp
import numpy as np

from wdjax.train.kernels.vectors import as_vectors, held, places_of


def test_places_follow_each_other():
    matrix, bias = places_of([(2, 3), (4,)])
    np.testing.assert_array_equal(matrix.index(), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(matrix.index(1, 1), [[3, 4, 5]])
    np.testing.assert_array_equal(bias.index(), [6, 7, 8, 9])
    vector = jnp.arange(10.0)
    np.testing.assert_array_equal(matrix.of(vector), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(bias.of(vector), [6, 7, 8, 9])


def test_arrays_of_a_tower_are_found_in_its_vectors():
    shapes = [
        (3, 2),
        (2, 4),
        (4,),
        (4, 1),
        (1,),
    ]  # first matrix, then matrix and bias of each layer
    sizes = [int(np.prod(shape)) for shape in shapes]
    arrays = [
        jnp.arange(size, dtype=jnp.float32).reshape(shape) + 100 * i
        for i, (size, shape) in enumerate(zip(sizes, shapes, strict=True))
    ]
    vectors = as_vectors(arrays, "float16")
    assert [vector.dtype for vector in vectors] == [jnp.float32, jnp.float16]
    assert [vector.size for vector in vectors] == [6 + 4 + 1, 8 + 4]
    for array, found in zip(arrays, held(vectors, shapes), strict=True):
        assert found.shape == array.shape
        np.testing.assert_array_equal(found.place.of(found.ref), array)
