"""The encoder `cnn`: convolutions over an image in the observation."""

import math
from collections.abc import Sequence
from typing import Literal, cast

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.checks import require, require_integer, require_known
from wdjax.spaces import Box, Dict, Space
from wdjax.train.networks.encoders import MASK, encode, encoded_size
from wdjax.train.networks.linear import orthogonal


class CNN(nnx.Module):
    """Convolutions over an image [height, width, channels], each followed by a relu, flattened.

    Other parts of a dict observation, such as an agent type, are appended to the features. Integer
    images, as of MinAtar, become float32 without scaling.

    Args:
        observation_space: a Box with three axes, or a Dict with exactly one.
        channels: output channels of each convolution.
        kernel_size: width of the square kernels, one for all or one for each convolution.
        stride: as `kernel_size`.
        padding: "valid" or "same".
        layer_norm: normalize the inputs of each relu over the channels.
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
        *,
        rngs: nnx.Rngs,
    ):
        self.image, self.others = _split(observation_space)
        parts = observation_space.spaces if isinstance(observation_space, Dict) else {}
        image = cast(Box, parts[self.image] if self.image else observation_space)
        height, width, size = image.shape
        require_known("padding", padding, ("valid", "same"))
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
                kernel_init=orthogonal(math.sqrt(2)),
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
        x = obs if self.image is None else cast(dict, obs)[self.image]
        x = jnp.asarray(x, jnp.float32)
        for i in range(self.depth):
            x = getattr(self, f"layer_{i}")(x)
            if self.layer_norm:
                x = getattr(self, f"norm_{i}")(x)
            x = jax.nn.relu(x)
        features = x.reshape(*x.shape[:-3], -1)
        if self.others is None:
            return features
        return jnp.concatenate([features, encode(self.others, obs)], axis=-1)


def _split(space: Space) -> tuple[str | None, Dict | None]:
    """Return (name of the image in a Dict or None, the other parts or None)."""
    if _is_image(space):
        return None, None
    parts = dict(space.spaces) if isinstance(space, Dict) else {}
    images = [name for name, part in parts.items() if _is_image(part)]
    allowed = "a Box [height, width, channels], or a Dict with exactly one"
    require(len(images) == 1, "observation space of encoder 'cnn'", space, allowed, TypeError)
    others = {name: part for name, part in parts.items() if name not in (images[0], MASK)}
    return images[0], Dict(others) if others else None


def _is_image(space: Space) -> bool:
    return isinstance(space, Box) and len(space.shape) == 3


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
