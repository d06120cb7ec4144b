"""Actor-critic networks: flax.nnx modules from observations to distribution outputs and values.

A network is an encoder (observations -> feature vectors), hidden layers, an optional recurrent
memory, and linear heads. Encoders and memories can be custom: see train/networks/encoders.py and
train/networks/memories.py.
"""

import math
from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels.activations import ACTIVATIONS as SUPPORTED
from wdjax.kernels.pooling import Layers, Sizes, why_not
from wdjax.kernels.support import uses_kernel
from wdjax.overrides import overridden
from wdjax.spaces import Dict, Space
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.distributions import Distribution
from wdjax.train.networks.encoders import MASK, FlatEncoder, make_encoder
from wdjax.train.networks.linear import is_stock, orthogonal, product, sequence_product
from wdjax.train.networks.memories import RecurrentMemory, make_memory
from wdjax.train.networks.normalization import run_normalized, why_plain
from wdjax.train.networks.pooling import run_layers

Carries = tuple[chex.ArrayTree, chex.ArrayTree | None] | None
"""(carry of the trunk, carry of the value's trunk or None); None: not recurrent"""

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


class MLP(nnx.Module):
    """Linear layers, each followed by layer normalization if configured, and an activation.

    Args:
        in_features: width of the inputs.
        config: layer_norm, activation, initializer and data type.
        hidden_sizes: widths of the layers; None: those in `config`.
        rngs: random streams of flax.
    """

    def __init__(
        self,
        in_features: int,
        config: NetworkConfig,
        hidden_sizes: tuple[int, ...] | None = None,
        *,
        rngs: nnx.Rngs,
    ):
        sizes = (in_features, *(config.hidden_sizes if hidden_sizes is None else hidden_sizes))
        self.activation = ACTIVATIONS[config.activation]
        self.layer_norm = config.layer_norm
        self.depth = len(sizes) - 1
        self.num_features = sizes[-1]
        for i in range(self.depth):
            layer = _linear(
                sizes[i], sizes[i + 1], config, math.sqrt(2), rngs, jnp.dtype(config.compute_dtype)
            )
            setattr(self, f"layer_{i}", layer)
            if self.layer_norm:
                setattr(self, f"norm_{i}", nnx.LayerNorm(sizes[i + 1], rngs=rngs))

    def __call__(self, inputs: jax.Array) -> jax.Array:
        if self.layer_norm and self.depth:
            layers, norms = (
                [getattr(self, f"{name}_{i}") for i in range(self.depth)]
                for name in ("layer", "norm")
            )
            why = why_plain(layers, norms, self.activation, math.prod(inputs.shape[:-1]))
            if uses_kernel("layer normalization", why):
                return run_normalized(layers, norms, self.activation, inputs)
        for i in range(self.depth):
            inputs = getattr(self, f"layer_{i}")(inputs)
            if self.layer_norm:
                inputs = getattr(self, f"norm_{i}")(inputs)
            inputs = self.activation(inputs)
        return inputs.astype(jnp.float32)  # memory, heads and losses are float32


class Trunk(nnx.Module):
    """Part of a network before the heads: encoder, hidden layers and an optional memory."""

    def __init__(self, observation_space: Space, config: NetworkConfig, *, rngs: nnx.Rngs):
        self.encoder = make_encoder(observation_space, config, rngs)
        self.mlp = MLP(self.encoder.num_features, config, rngs=rngs)
        width, size = self.mlp.num_features, config.recurrent_size
        self.cell = make_memory(width, config, _initializer(config, 1.0), rngs) if size else None
        self.num_features = size or width

    def __call__(
        self, obs: chex.ArrayTree, carry: chex.ArrayTree | None = None
    ) -> tuple[jax.Array, chex.ArrayTree | None]:
        """Advance one step.

        Args:
            obs: leaves [..., *part].
            carry: carry of the memory, leaves [..., *part]; None without a memory.

        Returns:
            (features [..., num_features], next carry).
        """
        features = self._hidden(obs)
        if self.cell is None:
            return features, None
        carry, features = self.cell(carry, features)
        return features, carry

    def unroll(
        self,
        obs: chex.ArrayTree,
        carry: chex.ArrayTree,
        restart: jax.Array,
        start: chex.ArrayTree | None = None,
    ) -> jax.Array:
        """Advance T steps of M sequences.

        Args:
            obs: leaves [T, M, *part].
            carry: before the first step, leaves [M, ...].
            restart: [T, M] bool, an episode starts with this step.
            start: carry at the start of an episode, leaves [M, ...]; None: `empty` of the memory.

        Returns:
            Features [T, M, num_features].
        """
        features = self._hidden(obs)
        starts = () if start is None else (start,)
        assert self.cell is not None  # only recurrent networks are unrolled
        return self.cell.unroll(carry, features, restart, *starts)

    def _hidden(self, obs: chex.ArrayTree) -> jax.Array:
        """Return the features of the hidden layers, [..., width]."""
        inputs = self.encoder(obs)
        # the kernel computes no gradient of its inputs, which other encoders need
        if self.cell is not None and type(self.encoder) is FlatEncoder:
            parts = _for_kernel(self.mlp, inputs.shape)
            if parts is not None and uses_kernel("hidden layers", None):
                return run_layers(*parts, inputs)
        return self.mlp(inputs)


def _for_kernel(mlp: MLP, shape: tuple[int, ...]) -> tuple[str, Layers] | None:
    """Return (activation, parameters of the layers) if a kernel can compute them.

    Args:
        mlp: the layers.
        shape: of their inputs, [..., in_features].
    """
    if overridden(mlp, MLP) or mlp.layer_norm or not mlp.depth:
        return None
    layers = [getattr(mlp, f"layer_{i}") for i in range(mlp.depth)]
    if not all(map(is_stock, layers)):
        return None
    same = {(layer.out_features, jnp.dtype(layer.dtype or jnp.float32)) for layer in layers}
    names = [name for name, function in SUPPORTED.items() if function is mlp.activation]
    if same != {(mlp.num_features, jnp.dtype(jnp.float32))} or not names:
        return None
    rows = math.prod(shape[:-1])
    width, depth = mlp.num_features, mlp.depth
    sizes = Sizes(rows, 1, shape[-1], width, depth, "sum", names[0], marked=False)
    parts = [(layer.kernel[...], layer.bias[...]) for layer in layers]
    return (names[0], parts) if why_not(sizes) is None else None


class ActorCritic(nnx.Module):
    """Heads for the action distribution and the value, on a shared trunk or a trunk each.

    With `head_hidden_sizes`, each head has hidden layers of its own.

    Args:
        observation_space: space of one agent, without the action mask.
        distribution: distribution that the outputs parametrize. All its components are blocks of
            columns of one matrix.
        config: sizes, activation and initializer.
        rngs: random streams of flax.
    """

    def __init__(
        self,
        observation_space: Space,
        distribution: Distribution,
        config: NetworkConfig,
        *,
        rngs: nnx.Rngs,
    ):
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.value_trunk = (
            None if config.shared_trunk else Trunk(observation_space, config, rngs=rngs)
        )
        size, sizes = self.trunk.num_features, config.head_hidden_sizes
        self.policy_mlp = MLP(size, config, sizes, rngs=rngs) if sizes else None
        self.value_mlp = MLP(size, config, sizes, rngs=rngs) if sizes else None
        size = sizes[-1] if sizes else size
        # at first, all actions are about equally likely (Andrychowicz et al., 2021, section 3.2)
        self.policy_head = _linear(size, distribution.num_outputs, config, 0.01, rngs)
        self.value_head = _linear(size, 1, config, 1.0, rngs)
        self.free = (
            nnx.Param(jnp.zeros(distribution.num_free, jnp.float32))
            if distribution.num_free
            else None
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the network has a recurrent memory."""
        return self.trunk.cell is not None

    def __call__(
        self, obs: chex.ArrayTree, carry: Carries = None
    ) -> tuple[jax.Array, jax.Array, Carries]:
        """Advance one step.

        Args:
            obs: leaves [..., *part].
            carry: of both trunks, leaves [..., *part]; None if the network is not recurrent.

        Returns:
            (outputs [..., num_outputs + num_free], value [...], next carry).
        """
        policy_carry, value_carry = (None, None) if carry is None else carry
        features, policy_carry = self.trunk(obs, policy_carry)
        value_features = features
        if self.value_trunk is not None:
            value_features, value_carry = self.value_trunk(obs, value_carry)
        carry = None if policy_carry is None else (policy_carry, value_carry)
        return *self._heads(features, value_features), carry

    def unroll(
        self,
        obs: chex.ArrayTree,
        carry: tuple[chex.ArrayTree, chex.ArrayTree | None],
        restart: jax.Array,
        start: Carries = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Advance T steps, see `Trunk.unroll`. Return (outputs [T, M, ...], value [T, M])."""
        start = (None, None) if start is None else start
        features = value_features = self.trunk.unroll(obs, carry[0], restart, start[0])
        if self.value_trunk is not None:
            value_features = self.value_trunk.unroll(obs, carry[1], restart, start[1])
        return self._heads(features, value_features)

    def _heads(self, features: jax.Array, value_features: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.policy_mlp is not None and self.value_mlp is not None:
            features, value_features = self.policy_mlp(features), self.value_mlp(value_features)
        outputs = self.policy_head(features)
        if self.free is not None:
            free = jnp.broadcast_to(self.free[...], (*outputs.shape[:-1], self.free[...].shape[-1]))
            outputs = jnp.concatenate([outputs, free], axis=-1)
        return outputs, self.value_head(value_features)[..., 0]


def has_memory(network: nnx.Module) -> bool:
    """Return whether a network is recurrent: it has a method `unroll`.

    An attribute `is_recurrent` of False marks a network whose memory is switched off.
    """
    return hasattr(network, "unroll") and getattr(network, "is_recurrent", True)


def empty_carry(
    memory: RecurrentMemory | None, config: NetworkConfig, shape: tuple[int, ...]
) -> Carries:
    """Return the carry of an `ActorCritic` at the start of an episode, leaves [*shape, ...].

    Args:
        memory: memory of a trunk, as returned by `check_memory`; None: feed-forward.
        config: configuration of the network.
        shape: leading axes.
    """
    if memory is None:
        return None
    carry = memory.empty(shape)
    return carry, None if config.shared_trunk else carry


def _linear(
    in_features: int,
    out_features: int,
    config: NetworkConfig,
    gain: float,
    rngs: nnx.Rngs,
    dtype: jnp.dtype | None = None,
) -> nnx.Linear:
    return nnx.Linear(
        in_features,
        out_features,
        kernel_init=_initializer(config, gain),
        dtype=dtype,
        dot_general=sequence_product if config.recurrent_size else product,
        rngs=rngs,
    )


def _initializer(config: NetworkConfig, gain: float) -> nnx.Initializer:
    return {
        "orthogonal": orthogonal(gain),
        "xavier": nnx.initializers.xavier_uniform(),
        "lecun": nnx.initializers.lecun_normal(),
    }[config.initializer]


def split_mask(obs: chex.ArrayTree) -> tuple[chex.ArrayTree, jax.Array | None]:
    """Return (observations without the key `action_mask`, the action mask or None)."""
    if isinstance(obs, Mapping) and MASK in obs:
        return {name: part for name, part in obs.items() if name != MASK}, obs[MASK]
    return obs, None


def without_mask(space: Space) -> Space:
    """Return an observation space without the action mask."""
    if isinstance(space, Dict) and MASK in space.spaces:
        return Dict({name: part for name, part in space.spaces.items() if name != MASK})
    return space
