"""The encoder `cnn`: convolutions over an image in the observation."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.checks import require, require_integer, require_known
from wdjax.kernels.support import uses_kernel
from wdjax.spaces import Box, Dict, Space
from wdjax.train.networks.encoders import MASK, encode, encoded_size
from wdjax.train.networks.linear import orthogonal
from wdjax.train.networks.normalization import run_normalized, why_plain

INITIALIZERS: dict[str, nnx.Initializer] = {
    "orthogonal": orthogonal(math.sqrt(2)),
    "he": nnx.initializers.he_normal(),
    "lecun": nnx.initializers.lecun_normal(),
}


class CNN(nnx.Module):
    """Convolutions over an image [height, width, channels], each followed by a relu, flattened.

    The features end with all other parts of a dict observation, such as an agent type.

    Args:
        observation_space: a Box with three axes, or a Dict with exactly one, also in an inner Dict.
        channels: output channels of each convolution.
        kernel_size: width of the square kernels, one for all or one for each convolution.
        stride: as `kernel_size`.
        padding: "valid" or "same".
        layer_norm: normalize the inputs of each relu over the channels.
        scale: factor of the image, as float32; 1 / 255 for pixels of 0 to 255.
        initializer: initial kernels, "orthogonal" (gain sqrt(2)), "he" or "lecun" (normal).
        rngs: random streams of flax.
    """

    needs_raw = True  # statistics of every pixel would erase constant parts

    def __init__(
        self,
        observation_space: Space,
        channels: Sequence[int] = (16,),
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        padding: Literal["valid", "same"] = "valid",
        layer_norm: bool = False,
        scale: float = 1.0,
        initializer: Literal["orthogonal", "he", "lecun"] = "orthogonal",
        *,
        rngs: nnx.Rngs,
    ):
        self.path, image, self.others = _split(observation_space)
        height, width, size = image.shape
        require_known("padding", padding, ("valid", "same"))
        require_known("initializer", initializer, INITIALIZERS)
        require(math.isfinite(scale) and scale != 0, "scale", scale, "finite and not 0")
        self.scale = scale
        kernels, strides = (
            _for_each(name, value, channels)
            for name, value in (("kernel_size", kernel_size), ("stride", stride))
        )
        self.depth, self.layer_norm = len(channels), layer_norm
        for i, (out, kernel, step) in enumerate(zip(channels, kernels, strides, strict=True)):
            require_integer("channels", out, 1)
            layer = nnx.Conv(
                size,
                out,
                (kernel, kernel),
                (step, step),
                padding=padding.upper(),
                kernel_init=INITIALIZERS[initializer],
                conv_general_dilated=convolve,
                rngs=rngs,
            )
            setattr(self, f"layer_{i}", layer)
            if layer_norm:
                setattr(self, f"norm_{i}", nnx.LayerNorm(out, rngs=rngs))
            height, width = (_length(side, kernel, step, padding) for side in (height, width))
            fits = min(height, width) >= 1
            allowed = f"kernels that fit into an image of {image.shape[0]} x {image.shape[1]}"
            require(fits, "kernel_size", kernel_size, allowed)
            size = out
        self.num_features = height * width * size + (
            encoded_size(self.others) if self.others else 0
        )

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        image = functools.reduce(lambda part, name: cast(dict, part)[name], self.path, obs)
        x = self._convolved(self.scale * jnp.asarray(image, jnp.float32))
        features = x.reshape(*x.shape[:-3], -1)
        if self.others is None:
            return features
        return jnp.concatenate([features, encode(self.others, obs)], axis=-1)

    def _convolved(self, x: jax.Array) -> jax.Array:
        """Return images [..., rows', columns', out] for images [..., rows, columns, in]."""
        if self.layer_norm and self.depth:
            layers, norms = (
                [getattr(self, f"{name}_{i}") for i in range(self.depth)]
                for name in ("layer", "norm")
            )
            why = why_plain(layers, norms, jax.nn.relu, math.prod(x.shape[:-1]))
            if uses_kernel("layer normalization of images", why):
                return run_normalized(layers, norms, jax.nn.relu, x)
        for i in range(self.depth):
            x = getattr(self, f"layer_{i}")(x)
            if self.layer_norm:
                x = getattr(self, f"norm_{i}")(x)
            x = jax.nn.relu(x)
        return x


def convolve(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: str, **other: Any
) -> jax.Array:
    """Convolve images with a kernel: `jax.lax.conv_general_dilated` as a matrix product.

        y[b, i, j, :] = sum_uv x[b, i strides[0] + u, j strides[1] + v, :] kernel[u, v]

    The inputs of each output are copied into one row, and all rows are multiplied by the kernel.
    Seeds that train in one program have a kernel each. XLA's convolutions with several kernels take
    2 to 4 times as long, and `conv_general_dilated_patches` is itself a convolution (RESULTS.md).
    The rows take height * width times the memory of the images.

    Args:
        images: [B, rows, columns, in] float32.
        kernel: [height, width, in, out].
        strides: (rows, columns).
        padding: "VALID" or "SAME".
        other: `precision` of the product; all else has the default of nnx.Conv.

    Returns:
        [B, rows', columns', out].
    """
    height, width, _, out = kernel.shape
    pads = jax.lax.padtype_to_pads(images.shape[1:3], (height, width), strides, padding)
    images = jnp.pad(images, ((0, 0), *pads, (0, 0)))
    down, right = strides
    rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1  # with stride 1
    parts = [
        images[:, i : i + rows : down, j : j + columns : right]
        for i in range(height)
        for j in range(width)
    ]
    patches = jnp.concatenate(parts, axis=-1)
    return jnp.matmul(patches, kernel.reshape(-1, out), precision=other.get("precision"))


def _split(space: Space) -> tuple[tuple[str, ...], Box, Dict | None]:
    """Return (names that lead to the image, its space, the other parts or None)."""
    paths = list(_images(space))
    allowed = "a Box [height, width, channels], or a Dict with exactly one"
    require(len(paths) == 1, "observation space of encoder 'cnn'", space, allowed, TypeError)
    image = functools.reduce(lambda part, name: cast(Dict, part)[name], paths[0], space)
    return paths[0], cast(Box, image), _without(space, paths[0])


def _images(space: Space) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead to each image."""
    if isinstance(space, Box) and len(space.shape) == 3:
        yield ()
    for name, part in space.spaces.items() if isinstance(space, Dict) else ():
        yield from ((name, *path) for path in _images(part))


def _without(space: Space, path: tuple[str, ...]) -> Dict | None:
    """Return the parts of a Dict except the one at the end of `path`; None if there are none."""
    if not path:
        return None
    parts: dict[str, Space | None] = dict(cast(Dict, space).spaces)
    parts[path[0]] = _without(cast(Dict, space)[path[0]], path[1:])
    rest = {name: part for name, part in parts.items() if part is not None and name != MASK}
    return Dict(rest) if rest else None


def _for_each(name: str, value: int | Sequence[int], channels: Sequence[int]) -> list[int]:
    """Return one value for each convolution."""
    values = [value] * len(channels) if isinstance(value, int) else list(value)
    allowed = f"a number, or {len(channels)} numbers, one for each entry of channels"
    require(len(values) == len(channels), name, value, allowed)
    for one in values:
        require_integer(name, one, 1)
    return values


def _length(side: int, kernel: int, stride: int, padding: str) -> int:
    """Return the height or width of an image after a convolution."""
    return -(-side // stride) if padding == "same" else (side - kernel) // stride + 1
