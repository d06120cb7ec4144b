"""Encoders map one agent's observation to a feature vector; custom networks plug in here.

A preset names an encoder in ENCODERS or "package.module:Class", and its options in
`network.encoder_options`:

    network: {encoder: deep_sets, encoder_options: {pool: mean}, hidden_sizes: [64]}
    network: {encoder: "mypackage.networks:MyEncoder", encoder_options: {width: 32}}

`Encoder` documents the interface; experiments/examples/own_network.py trains a custom encoder.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.checks import require, require_integer, require_known
from wdjax.kernels import pooling
from wdjax.kernels.support import uses_kernel
from wdjax.named import find_named, import_named
from wdjax.overrides import overridden
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space, sample_shapes
from wdjax.train.config.reading import register
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.linear import is_stock, orthogonal
from wdjax.train.networks.pooling import POOLS, pool_sets

MASK = "action_mask"
AGENT_TYPE = "agent_type"
"""key next to "obs": index of the agent's selector in its policy (agent_type_feature)"""


Split = Callable[[chex.ArrayTree], tuple[jax.Array, jax.Array, jax.Array]]
"""split(obs) -> (others [..., k, features], present [..., k] bool, own features [..., m])"""


class Encoder(Protocol):
    """Interface of encoders: an nnx.Module, named in a preset or with `register_encoder`.

        class MyEncoder(nnx.Module):
            # `width` comes from network.encoder_options
            def __init__(self, observation_space, width=64, *, rngs):
                self.layer = nnx.Linear(observation_space.shape[-1], width, rngs=rngs)
                self.num_features = width

            def __call__(self, obs):                  # leaves [..., *part of the space]
                return jax.nn.relu(self.layer(obs))   # [..., num_features] float32

    Inputs: `observation_space` is the space of one agent without its action mask; with
    `agent_type_feature` it is Dict({"obs": ..., "agent_type": Discrete}). Options from
    `network.encoder_options` and random streams `rngs` are passed by keyword. A parameter `split`
    without a default receives the environment's `split_observation`, unless the options set it.
    `obs` has any leading axes (replicas and agents, minibatch, time), which must be independent of
    each other. With `normalize_observation` it is shifted and scaled; an encoder with the class
    attribute `needs_raw = True` does not accept that option.

    Outputs: float32 features [..., num_features]; `num_features` is an int set in `__init__`.

    In every algorithm, hidden layers (`hidden_sizes`, possibly empty), an optional memory
    (`recurrent_size`) and the heads follow. Separate trunks and the networks of DDPG and SAC each
    have their own encoder. All arrays must be nnx.Param: running statistics and random streams are
    not supported. `make_learner` checks these rules (`check_encoder`).
    """

    num_features: int

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        """Return the features of observations."""


class FlatEncoder(nnx.Module):
    """Flatten and concatenate observations; discrete parts become one-hot (see `encode`)."""

    def __init__(self, observation_space: Space, *, rngs: nnx.Rngs):
        self.space = observation_space
        self.num_features = encoded_size(observation_space)

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        return encode(self.space, obs)


class Fourier(nnx.Module):
    """Fourier features of periodic coordinates x.

        [x, sin(2 pi k x), cos(2 pi k x)],  k = 1 .. frequencies

    Args:
        observation_space: space of one agent; values have period 1, for example x / nx in a
            grid.
        frequencies: highest frequency k; half the number of grid cells per axis distinguishes all
            cells.
        rngs: random streams of flax; unused.

    Source: Tancik et al., "Fourier features let networks learn high frequency functions in low
    dimensional domains" (2020), section 3.
    """

    needs_raw = True  # normalization would change the period

    def __init__(self, observation_space: Space, frequencies: int = 8, *, rngs: nnx.Rngs):
        require_integer("frequencies", frequencies, 1)
        self.space, self.frequencies = observation_space, frequencies
        self.num_features = encoded_size(observation_space) * (2 * frequencies + 1)

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        row = encode(self.space, obs)
        angle = (
            2
            * math.pi
            * (
                row[..., None]
                * jnp.arange(1.0, self.frequencies + 1).reshape((1,) * row.ndim + (-1,))
            )
        )
        waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
        return jnp.concatenate([row, waves.reshape(*row.shape[:-1], -1)], axis=-1)


class DeepSets(nnx.Module):
    """Deep sets: features that are invariant to the order of the other agents.

        [pool_i phi(x_i), own]

    with a network phi of `depth` layers, pooled over the present agents x_i.

    Args:
        observation_space: space of one agent.
        width: units in each layer of phi.
        depth: layers of phi.
        pool: "max", "mean" or "sum"; the result is 0 if no agent is present.
        split: obs -> (others [..., k, features], present [..., k] bool, own [..., m]), a function
            or "package.module:function"; in a run by default the environment's `split_observation`.
        rngs: random streams of flax.

    Source: Zaheer et al., "Deep Sets" (2017), theorem 2. The hidden layers (`hidden_sizes`) are
    its rho.
    """

    needs_raw = True  # zeros mark absent agents

    def __init__(
        self,
        observation_space: Space,
        width: int = 64,
        depth: int = 2,
        pool: str = "max",
        *,
        split: str | Split,
        rngs: nnx.Rngs,
    ):
        require_known("pool", pool, POOLS)
        self.parts = SetParts(observation_space, split)
        self.phi = SetLayers(self.parts.num_other, width, depth, rngs=rngs)
        self.pool = pool
        self.num_features = width + self.parts.num_own

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        others, present, own = self.parts(obs)
        return jnp.concatenate([self.pooled(others, present), own], axis=-1)

    def pooled(self, others: jax.Array, present: jax.Array) -> jax.Array:
        """Return pool_i phi(x_i), [..., width]."""
        if uses_kernel("set encoder", self._why_plain(others.shape)):
            layers, sets = self.phi.parameters(), others.reshape(-1, *others.shape[-2:])
            rows = pool_sets(self.pool, "relu", layers, sets, present.reshape(sets.shape[:2]))
            return rows.reshape(*others.shape[:-2], -1)
        return POOLS[self.pool](self.phi(others), present[..., None])

    def _why_plain(self, shape: tuple[int, ...]) -> str | None:
        """Return the reason why plain XLA pools sets of a shape [..., k, features], or None."""
        phi = self.phi
        if (type(self), type(phi)) != (DeepSets, SetLayers) or overridden(phi, SetLayers):
            return "it is custom"
        layers = [getattr(phi, f"layer_{i}") for i in range(phi.depth)]
        if not all(map(is_stock, layers)):
            return "its layers are custom"
        *leading, elements, features = shape
        sizes = math.prod(leading), elements, features, layers[0].out_features, phi.depth
        return pooling.why_not(pooling.Sizes(*sizes, self.pool))


class Attention(nnx.Module):
    """Multi-head attention over the other agents, with the agent's own features as query.

        [sum_i softmax_i(q(own) . k(x_i) / sqrt(width / num_heads)) v(x_i), own]  for each head,

    over the present agents x_i, after `depth` layers; 0 if no agent is present.

    Args:
        observation_space: space of one agent.
        width: units in each layer, and of all heads together.
        depth: layers before keys and values.
        num_heads: number of heads, must divide `width`.
        split: as for `DeepSets`.
        rngs: random streams of flax.

    Source: Lee et al., "Set Transformer" (2019), pooling by multihead attention (equation 11).
    """

    needs_raw = True

    def __init__(
        self,
        observation_space: Space,
        width: int = 64,
        depth: int = 1,
        num_heads: int = 4,
        *,
        split: str | Split,
        rngs: nnx.Rngs,
    ):
        require_integer("num_heads", num_heads, 1)
        require(width % num_heads == 0, "num_heads", num_heads, f"a divisor of width = {width}")
        self.parts = SetParts(observation_space, split)
        self.phi = SetLayers(self.parts.num_other, width, depth, rngs=rngs)
        self.query = nnx.Linear(self.parts.num_own, width, rngs=rngs)
        self.key, self.value = (nnx.Linear(width, width, rngs=rngs) for _ in range(2))
        self.num_heads = num_heads
        self.num_features = width + self.parts.num_own

    def __call__(self, obs: chex.ArrayTree) -> jax.Array:
        others, present, own = self.parts(obs)
        features = self.phi(others)
        # query [..., heads, width / heads]; key and value [..., k, heads, width / heads]
        query, key, value = (
            rows.reshape(*rows.shape[:-1], self.num_heads, -1)
            for rows in (self.query(own), self.key(features), self.value(features))
        )
        score = jnp.einsum("...hd,...khd->...kh", query, key) / math.sqrt(query.shape[-1])
        weight = jnp.where(
            present[..., None], jax.nn.softmax(score, axis=-2, where=present[..., None]), 0.0
        )
        pooled = jnp.einsum("...kh,...khd->...hd", weight, value)
        return jnp.concatenate([pooled.reshape(*own.shape[:-1], -1), own], axis=-1)


class SetLayers(nnx.Module):
    """Linear layers of one width, each followed by a relu, applied to every element of a set."""

    def __init__(self, in_features: int, width: int, depth: int, *, rngs: nnx.Rngs):
        require_integer("width", width, 1)
        require_integer("depth", depth, 1)
        sizes = (in_features, *[width] * depth)
        self.depth = depth
        for i in range(depth):
            init = orthogonal(math.sqrt(2))
            setattr(
                self, f"layer_{i}", nnx.Linear(sizes[i], sizes[i + 1], kernel_init=init, rngs=rngs)
            )

    def parameters(self) -> list[tuple[jax.Array, jax.Array]]:
        """Return the kernel and the bias of each layer."""
        layers = [getattr(self, f"layer_{i}") for i in range(self.depth)]
        return [(layer.kernel[...], layer.bias[...]) for layer in layers]

    def __call__(self, rows: jax.Array) -> jax.Array:
        for i in range(self.depth):
            rows = jax.nn.relu(getattr(self, f"layer_{i}")(rows))
        return rows


class SetParts:
    """Split an observation into the other agents, whether they are present, and own features."""

    def __init__(self, observation_space: Space, split: str | Split):
        self.space = observation_space
        self.split = split if callable(split) else import_named("encoder_options.split", split)
        others, _, own = jax.eval_shape(self, sample_shapes(observation_space))
        self.num_other, self.num_own = others.shape[-1], own.shape[-1]

    def __call__(self, obs: chex.ArrayTree) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return (others [..., k, num_other], present [..., k] bool, own [..., num_own]).

        Features of absent agents are zeros. Own features end with the agent type, if there is one.
        """
        if not (isinstance(self.space, Dict) and isinstance(obs, Mapping) and AGENT_TYPE in obs):
            others, present, own = self.split(obs)
        else:
            others, present, own = self.split(obs["obs"])
            own = jnp.concatenate([own, encode(self.space[AGENT_TYPE], obs[AGENT_TYPE])], axis=-1)
        return jnp.where(present[..., None], others, 0.0), present, own


# Name in a preset -> class or import path; any other encoder is named by its import path.
ENCODERS: dict[str, type | str] = {
    "flat": FlatEncoder,
    "fourier": Fourier,
    "deep_sets": DeepSets,
    "attention": Attention,
    "cnn": "wdjax.train.networks.convolutions:CNN",
}


def register_encoder(name: str, encoder: type) -> None:
    """Register an encoder in this process, so that `network.encoder` can name it.

    To resume or load a run, register the name again. "package.module:Class" needs no
    registration.

    Args:
        name: name of the encoder.
        encoder: its class, see `Encoder`.

    Raises:
        TypeError: if `encoder` is not a subclass of flax.nnx.Module.
        ValueError: if the name contains ":" or belongs to another class.
    """
    require_module(f"encoder {name!r}", encoder)
    register("encoder", ENCODERS, name, encoder)


def encoder_class(name: str, field: str = "network.encoder") -> type:
    """Return the class of an encoder: a name of ENCODERS, or "package.module:Class".

    Raises:
        ValueError: for an unknown name, or one that cannot be imported.
        TypeError: for a class that is not a subclass of flax.nnx.Module.
    """
    return module_class("encoder", field, name, ENCODERS)


def module_class(kind: str, field: str, name: str, known: Mapping[str, type | str]) -> type:
    """Return the nnx.Module class with a known name or import path. Raise as `encoder_class`."""
    custom = (
        f'a custom {kind} is "package.module:Class", or registered in this process by '
        f"register_{kind}"
    )
    found = find_named(field, name, known, custom)
    require_module(f"{field} {name!r}", found)
    return found


def require_module(what: str, found: object) -> None:
    """Raise TypeError unless `found` is a subclass of flax.nnx.Module."""
    if not (isinstance(found, type) and issubclass(found, nnx.Module)):
        raise TypeError(f"{what}: must be a subclass of flax.nnx.Module, not {found!r}")


def make_encoder(observation_space: Space, config: NetworkConfig, rngs: nnx.Rngs) -> Encoder:
    """Return a new encoder, a module from observations to features.

    Args:
        observation_space: of one agent, without the action mask.
        config: configuration of the network; `encoder` and `encoder_options` are read.
        rngs: random numbers for the parameters.
    """
    return encoder_class(config.encoder)(observation_space, **config.encoder_options, rngs=rngs)


def encode(space: Space, obs: chex.ArrayTree) -> jax.Array:
    """Flatten observations to vectors for the network.

    Args:
        space: space of one agent's observation. Box parts are flattened, discrete ones become
            one-hot. Parts of a Dict are concatenated in the order of the space, without its
            `action_mask`.
        obs: leaves [..., *part of the space].

    Returns:
        [..., encoded_size(space)] float32.

    Raises:
        TypeError: for another kind of space.
    """
    match space:
        case Box():
            return obs.reshape((*obs.shape[: obs.ndim - len(space.shape)], -1)).astype(jnp.float32)
        case Discrete():
            return jax.nn.one_hot(obs, space.n)
        case MultiDiscrete():
            return jnp.concatenate(
                [jax.nn.one_hot(obs[..., i], n) for i, n in enumerate(space.nvec)], axis=-1
            )
        case Dict():
            parts = [encode(part, obs[name]) for name, part in space.spaces.items() if name != MASK]
            return jnp.concatenate(parts, axis=-1)
    raise TypeError(
        f"observation space {space}: must be Box, Discrete, MultiDiscrete or a Dict of these"
    )


def encoded_size(space: Space) -> int:
    """Return the number of features that `encode` gives for one observation of a space."""
    zeros = jax.eval_shape(functools.partial(encode, space), sample_shapes(space))
    return zeros.shape[-1]
