"""Linear and convolutional layers with layer normalization and an activation.

On NVIDIA GPUs one kernel computes all that follows the product, and another one its gradient
(wdjax/kernels/normalization.py). In plain XLA they are chains of short kernels.
"""

import functools
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels import normalization
from wdjax.kernels.activations import ACTIVATIONS
from wdjax.kernels.backend import cuda_or_default
from wdjax.kernels.normalization import Parameters, Sizes
from wdjax.overrides import overridden

Layer = nnx.Linear | nnx.Conv


def why_plain(
    layers: Sequence[Layer], norms: Sequence[nnx.Module], activation: Callable, rows: int
) -> str | None:
    """Return the reason why plain XLA computes normalized layers, or None.

    Args:
        layers: linear or convolutional layers.
        norms: the normalization after each of them.
        activation: function after each normalization.
        rows: number of rows of the inputs, of pixels for convolutions.
    """
    names = [name for name, function in ACTIVATIONS.items() if function is activation]
    if not names:
        return "its activation is custom"
    for layer, norm in zip(layers, norms, strict=True):
        is_stock = type(layer) in (nnx.Linear, nnx.Conv)
        if not is_stock or overridden(layer, type(layer), ("__call__",)):
            return "its layers are custom"
        if type(norm) is not nnx.LayerNorm or overridden(norm, nnx.LayerNorm, ("__call__",)):
            return "its normalization is custom"
        why = _why_settings(layer, norm)
        why = why or normalization.why_not(layer.out_features, rows, names[0])
        if why is not None:
            return why
    return None


def _why_settings(layer: Layer, norm: nnx.LayerNorm) -> str | None:
    """Return why the settings of a layer and its normalization have no kernel, or None."""
    parameters = (layer.kernel, layer.bias, norm.scale, norm.bias)
    dtypes = [part[...].dtype for part in parameters if part is not None]
    dtypes += [jnp.dtype(own.dtype or jnp.float32) for own in (layer, norm)]
    if other := [dtype for dtype in dtypes if dtype != jnp.float32]:
        return f"its layers are {other[0]}: kernels support float32"
    settings = norm.use_fast_variance, norm.reduction_axes, norm.feature_axes, norm.axis_name
    is_supported = settings == (True, -1, -1, None) and norm.epsilon > 0 and len(dtypes) == 6
    return None if is_supported else "its normalization has custom settings"


def run_normalized(
    layers: Sequence[Layer],
    norms: Sequence[nnx.LayerNorm],
    activation: Callable,
    inputs: jax.Array,
) -> jax.Array:
    """Return the features [..., width] of inputs [..., features] after normalized layers.

    Kernels on NVIDIA GPUs compute all except the products. `why_plain` must return None.
    """
    name = next(name for name, function in ACTIVATIONS.items() if function is activation)
    features = inputs
    for layer, norm in zip(layers, norms, strict=True):
        product = nnx.clone(layer)
        product.bias, product.use_bias = nnx.data(None), False
        outputs = product(features)
        parts = (layer.bias, norm.scale, norm.bias)
        parameters = tuple(cast(nnx.Param, part)[...][None] for part in parts)
        rows = outputs.reshape(-1, outputs.shape[-1])
        features = normalize(name, norm.epsilon, parameters, rows).reshape(outputs.shape)
    return features


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def normalize(
    activation: str, epsilon: float, parameters: Parameters, inputs: jax.Array
) -> jax.Array:
    """Return activation(normalized (inputs + bias) * scale + shift), by a kernel on NVIDIA GPUs.

    Args:
        activation: name of an activation.
        epsilon: added to the variance.
        parameters: bias, scale and shift, [1, width] float32 each.
        inputs: [R, width] float32.
    """
    fused = functools.partial(normalization.forward, _sizes(activation, epsilon, inputs))
    plain = functools.partial(_plain, activation, epsilon)
    return cuda_or_default(fused, plain, parameters, inputs)


def _sizes(activation: str, epsilon: float, inputs: jax.Array) -> Sizes:
    num_rows, width = inputs.shape
    return Sizes(num_rows, width, activation, epsilon)


def _plain(activation: str, epsilon: float, parameters: Parameters, inputs: jax.Array) -> jax.Array:
    """Compute `normalize` in the order of nnx.LayerNorm."""
    bias, scale, shift = jnp.split(jnp.concatenate(parameters), 3)
    inputs = inputs + bias
    mean = jnp.mean(inputs, axis=-1, keepdims=True)
    squares = jnp.mean(jnp.square(inputs), axis=-1, keepdims=True)
    variance = jnp.maximum(0.0, squares - jnp.square(mean))
    factor = jax.lax.rsqrt(variance + epsilon) * scale
    return ACTIVATIONS[activation]((inputs - mean) * factor + shift)


def _forward(
    activation: str, epsilon: float, parameters: Parameters, inputs: jax.Array
) -> tuple[jax.Array, tuple]:
    # parameters that change in each step are views of one vector: copy them at once
    parameters = (jnp.concatenate(parameters),)
    return normalize(activation, epsilon, parameters, inputs), (parameters, inputs)


def _backward(activation: str, epsilon: float, saved: tuple, gradient: jax.Array) -> tuple:
    """Return the gradients with respect to (parameters, inputs)."""
    parameters, inputs = saved

    def plain(parameters: Parameters, inputs: jax.Array, gradient: jax.Array) -> tuple:
        own = functools.partial(_plain, activation, epsilon)
        (d_parameters,), d_inputs = jax.vjp(own, parameters, inputs)[1](gradient)
        return d_parameters, d_inputs

    fused = functools.partial(normalization.backward, _sizes(activation, epsilon, inputs))
    d_parameters, d_inputs = cuda_or_default(fused, plain, parameters, inputs, gradient)
    return tuple(jnp.split(d_parameters, 3)), d_inputs


normalize.defvjp(_forward, _backward)
