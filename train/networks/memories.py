"""Memories of recurrent policies, between hidden layers and heads; custom memories plug in here.

A preset names a memory in MEMORIES or "package.module:Class", and its width:

    network: {recurrent_size: 128, memory: lstm}
    network: {recurrent_size: 128, memory: "mypackage.networks:MyMemory"}
    network: {recurrent_size: 256, memory: mingru, recurrent_layers: 3}

`RecurrentMemory` documents the interface.
"""

from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels import recurrence
from wdjax.kernels.backend import on_cpu
from wdjax.overrides import overridden
from wdjax.train.config.reading import register
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.encoders import module_class, require_module
from wdjax.train.networks.linear import is_stock, orthogonal, product
from wdjax.train.networks.recurrences import Layer, unroll


class RecurrentMemory(nnx.Module):
    """Interface of memories: an nnx.Module, named in a preset or with `register_memory`.

    For example::

        class MyMemory(RecurrentMemory):
            # `size` is network.recurrent_size
            def __init__(self, in_features, size, *, kernel_init, rngs):
                self.size = size
                self.layer = nnx.Linear(in_features, size, kernel_init=kernel_init, rngs=rngs)

            def empty(self, shape):             # carry at the start of an episode
                return jnp.zeros((*shape, self.size))

            def __call__(self, carry, x):       # one step
                carry = 0.9 * carry + 0.1 * self.layer(x)
                return carry, carry             # next carry, features [..., size]

    `kernel_init` is the initializer of matrices that `network.initializer` selects. A carry is an
    array or a pytree of arrays, leaves [..., *part]. All arrays must be nnx.Param, and features
    float32. `make_learner` checks these rules (`check_memory`). A class that does not inherit from
    this one must also implement `unroll`.
    """

    def empty(self, shape: tuple[int, ...]) -> chex.ArrayTree:
        """Return the carry at the start of an episode, leaves [*shape, ...], without parameters."""
        raise NotImplementedError

    def __call__(self, carry: chex.ArrayTree, x: jax.Array) -> tuple[chex.ArrayTree, jax.Array]:
        """Advance one step: x [..., in_features] -> (next carry, features [..., size] float32)."""
        raise NotImplementedError

    def unroll(
        self,
        carry: chex.ArrayTree,
        xs: jax.Array,
        restarts: jax.Array,
        start: chex.ArrayTree | None = None,
    ) -> jax.Array:
        """Advance T steps, by default one after the other.

        Args:
            carry: before the first step, leaves [M, ...].
            xs: [T, M, in_features] float32.
            restarts: [T, M] bool, an episode starts with this step, from the carry `start`.
            start: leaves [M, ...]; None: `empty`. Only algorithms with a custom `init_carry` pass
                it.

        Returns:
            Features [T, M, size], as by repeated calls.
        """
        start = self.empty(restarts.shape[1:]) if start is None else start
        return _scan(self, carry, xs, restarts, start)


def _scan(
    memory: Callable[..., tuple[chex.ArrayTree, jax.Array]],
    carry: chex.ArrayTree,
    xs: jax.Array,
    restarts: jax.Array,
    start: chex.ArrayTree,
) -> jax.Array:
    """Call a memory step by step, see `RecurrentMemory.unroll`."""

    def step(
        carry: chex.ArrayTree, row: tuple[jax.Array, jax.Array]
    ) -> tuple[chex.ArrayTree, jax.Array]:
        x, restart = row

        def begin(first: jax.Array, leaf: jax.Array) -> jax.Array:
            return jnp.where(jnp.expand_dims(restart, range(1, leaf.ndim)), first, leaf)

        return memory(jax.tree.map(begin, start, carry), x)

    return jax.lax.scan(step, carry, (xs, restarts))[1]


def _unroll_gated(
    memories: Sequence[Any],
    carries: tuple[chex.ArrayTree, ...],
    xs: jax.Array,
    restarts: jax.Array,
    starts: tuple[chex.ArrayTree, ...] | None,
) -> jax.Array | None:
    """Advance layers of GRU, LSTM or MinGRU T steps, with fewer operations than step by step.

    Returns:
        Features [T, M, size]; None if the memories differ, have other equations or other widths, or
        if this is not faster.
    """
    cell = type(memories[0])
    if any(type(memory) is not cell or not _is_built_in(memory) for memory in memories):
        return None
    has_products = cell is not MinGRU
    if has_products and on_cpu():  # the arrays of all steps do not fit into a CPU's caches
        return None
    layers = tuple(memory.layer() for memory in memories)
    if len({layer.bias.size for layer in layers}) > 1:
        return None
    hidden = jax.tree.leaves(carries[-1])[-1]
    shape = (*restarts.shape, layers[0].bias.size)
    by_kernel = recurrence.is_chosen(
        hidden.shape[-1], shape, starts is None, has_products=has_products
    )
    if not by_kernel and not has_products:
        return None  # MinGRU has a parallel scan
    # XLA fuses scalar zeros, not arrays of them
    starts = jax.tree.map(lambda _: 0.0, carries) if starts is None else starts
    return unroll(cell.advance, by_kernel, layers, carries, xs, restarts, starts)


def _is_built_in(memory: Any) -> bool:
    """Return whether a memory is one of this module, without replaced layers or functions."""
    if type(memory) is MinGRU:
        stock = is_stock(memory.gate) and is_stock(memory.candidate)
        return stock and overridden(memory, MinGRU) is None
    if type(memory) not in (GRU, LSTM):
        return False
    return all(type(layer) is nnx.Linear for layer in (memory.dense_i, memory.dense_h))


def _layer_of_cell(self: "GRU | LSTM") -> Layer:
    """Return the parameters for `_unroll_gated`."""
    layers = self.dense_i, self.dense_h
    input_kernel, kernel = (layer.kernel[...] for layer in layers)
    zeros = jnp.zeros(kernel.shape[-1], jnp.float32)
    bias = sum((layer.bias[...] for layer in layers if layer.bias is not None), zeros)
    return Layer(input_kernel, kernel, bias)


def _unroll_cell(
    self: "GRU | LSTM",
    carry: chex.ArrayTree,
    xs: jax.Array,
    restarts: jax.Array,
    start: chex.ArrayTree | None = None,
) -> jax.Array:
    """Advance T steps, see `RecurrentMemory.unroll`."""
    starts = None if start is None else (start,)
    features = _unroll_gated([self], (carry,), xs, restarts, starts)
    if features is not None:
        return features
    start = self.empty(restarts.shape[1:]) if start is None else start
    return _scan(self, carry, xs, restarts, start)


class GRU(nnx.GRUCell):
    """Gated recurrent unit, the cell of flax. The carry is h [..., size].

    Source: Cho et al., "Learning phrase representations using RNN encoder-decoder" (2014).
    """

    def __init__(
        self, in_features: int, size: int, *, kernel_init: nnx.Initializer, rngs: nnx.Rngs
    ):
        super().__init__(
            in_features,
            size,
            kernel_init=kernel_init,
            recurrent_kernel_init=orthogonal(1.0),
            rngs=rngs,
        )

    def empty(self, shape: tuple[int, ...]) -> jax.Array:
        return jnp.zeros((*shape, self.hidden_features), jnp.float32)

    @staticmethod
    def advance(
        h: jax.Array, inputs: Sequence[jax.Array], products: Sequence[jax.Array]
    ) -> jax.Array:
        """Return the next carry from the gates of the input and of h."""
        x_r, x_z, x_n = inputs
        h_r, h_z, h_n = products
        reset, keep = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
        return (1.0 - keep) * jnp.tanh(x_n + reset * h_n) + keep * h

    layer, unroll = _layer_of_cell, _unroll_cell


class LSTM(nnx.OptimizedLSTMCell):
    """Long short-term memory, the cell of flax. The carry is (c, h), [..., size] each.

    Source: Hochreiter, Schmidhuber, "Long short-term memory" (1997).
    """

    def __init__(
        self, in_features: int, size: int, *, kernel_init: nnx.Initializer, rngs: nnx.Rngs
    ):
        super().__init__(
            in_features,
            size,
            kernel_init=kernel_init,
            recurrent_kernel_init=orthogonal(1.0),
            rngs=rngs,
        )

    def empty(self, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        zeros = jnp.zeros((*shape, self.hidden_features), jnp.float32)
        return zeros, zeros

    @staticmethod
    def advance(
        carry: tuple[jax.Array, jax.Array],
        inputs: Sequence[jax.Array],
        products: Sequence[jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """Return the next carry from the gates of the input and of h."""
        into, forget, candidate, out = map(jnp.add, inputs, products)
        c = jax.nn.sigmoid(forget) * carry[0] + jax.nn.sigmoid(into) * jnp.tanh(candidate)
        return c, jax.nn.sigmoid(out) * jnp.tanh(c)

    layer, unroll = _layer_of_cell, _unroll_cell


class MinGRU(nnx.Module):
    """Minimal gated recurrent unit: gate and candidate do not depend on the carry h [..., size].

        h_t = (1 - z_t) h_{t-1} + z_t candidate(x_t),  z_t = sigmoid(gate(x_t)),

    with linear layers `gate` and `candidate`. The recurrence is linear in h, so that `unroll`
    computes all steps by a parallel scan, or by a kernel on NVIDIA GPUs.

    Source: Feng et al., "Were RNNs all we needed?" (2024), section 3.1.
    """

    def __init__(
        self, in_features: int, size: int, *, kernel_init: nnx.Initializer, rngs: nnx.Rngs
    ):
        self.size = size
        self.gate, self.candidate = (
            nnx.Linear(in_features, size, kernel_init=kernel_init, dot_general=product, rngs=rngs)
            for _ in range(2)
        )

    def empty(self, shape: tuple[int, ...]) -> jax.Array:
        return jnp.zeros((*shape, self.size), jnp.float32)

    def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        keep, add = self._terms(x)
        carry = keep * carry + add
        return carry, carry

    def unroll(
        self, carry: jax.Array, xs: jax.Array, restarts: jax.Array, start: jax.Array | None = None
    ) -> jax.Array:
        starts = None if start is None else (start,)
        features = _unroll_gated([self], (carry,), xs, restarts, starts)
        if features is not None:
            return features
        keep, add = self._terms(xs)
        restart = restarts[..., None]
        first = self.empty(restarts.shape[1:]) if start is None else start
        before = jnp.where(restart, first[None], 0.0).at[0].set(jnp.where(restart[0], first, carry))
        add, keep = add + keep * before, jnp.where(restart, 0.0, keep)

        def compose(
            earlier: tuple[jax.Array, jax.Array], later: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            return later[0] * earlier[0], later[0] * earlier[1] + later[1]

        return jax.lax.associative_scan(compose, (keep, add))[1]

    def layer(self) -> Layer:
        """Return the parameters for `_unroll_gated`: gate and candidate side by side."""
        layers = self.gate, self.candidate
        kernel, bias = (
            jnp.concatenate([getattr(layer, name)[...] for layer in layers], axis=-1)
            for name in ("kernel", "bias")
        )
        return Layer(kernel, None, bias)

    @staticmethod
    def advance(
        h: jax.Array, inputs: Sequence[jax.Array], products: Sequence[jax.Array]
    ) -> jax.Array:
        """Return the next carry from the gate and the candidate; there are no products with h."""
        gate, candidate = inputs
        gate = jax.nn.sigmoid(gate)
        return (1.0 - gate) * h + gate * candidate

    def _terms(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the factor of the carry and the summand of the recurrence, [..., size] each."""
        gate = jax.nn.sigmoid(self.gate(x))
        return 1.0 - gate, gate * self.candidate(x)


class MemoryStack(RecurrentMemory):
    """Memories one after the other; the carry is a tuple with the carry of each.

    Args:
        memories: the features of each are the inputs of the next one.
    """

    def __init__(self, memories: Sequence[RecurrentMemory]):
        self.memories = nnx.List(memories)

    def empty(self, shape: tuple[int, ...]) -> tuple[chex.ArrayTree, ...]:
        return tuple(memory.empty(shape) for memory in self.memories)

    def __call__(
        self, carry: tuple[chex.ArrayTree, ...], x: jax.Array
    ) -> tuple[tuple[chex.ArrayTree, ...], jax.Array]:
        after = []
        for memory, before in zip(self.memories, carry, strict=True):
            following, x = memory(before, x)
            after.append(following)
        return tuple(after), x

    def unroll(
        self,
        carry: tuple[chex.ArrayTree, ...],
        xs: jax.Array,
        restarts: jax.Array,
        start: tuple[chex.ArrayTree, ...] | None = None,
    ) -> jax.Array:
        features = _unroll_gated(self.memories, tuple(carry), xs, restarts, start)
        if features is not None:
            return features
        for i, memory in enumerate(self.memories):
            # a custom `unroll` need not accept `start`
            starts = () if start is None else (start[i],)
            xs = memory.unroll(carry[i], xs, restarts, *starts)
        return xs


# Name in a preset -> class; any other memory is named by its import path.
MEMORIES: dict[str, type] = {"gru": GRU, "lstm": LSTM, "mingru": MinGRU}


def register_memory(name: str, memory: type) -> None:
    """Register a memory in this process, so that `network.memory` can name it.

    To resume or load a run, register the name again. "package.module:Class" needs no
    registration.

    Args:
        name: name of the memory.
        memory: its class, see `RecurrentMemory`.

    Raises:
        TypeError: if the class is not a subclass of flax.nnx.Module.
        ValueError: if the name contains ":" or belongs to another class.
    """
    require_module(f"memory {name!r}", memory)
    register("memory", MEMORIES, name, memory)


def memory_class(name: str, field: str = "network.memory") -> type:
    """Return the class of a memory: a name of MEMORIES, or "package.module:Class".

    Raises:
        ValueError: for an unknown name, or one that cannot be imported.
        TypeError: for a class that is not a subclass of flax.nnx.Module.
    """
    return module_class("memory", field, name, MEMORIES)


def make_memory(
    in_features: int, config: NetworkConfig, kernel_init: nnx.Initializer, rngs: nnx.Rngs
) -> RecurrentMemory:
    """Return a new memory of `recurrent_size` units and `recurrent_layers` layers."""
    cls, size = memory_class(config.memory), config.recurrent_size
    widths = (in_features, *[size] * (config.recurrent_layers - 1))
    memories = [cls(width, size, kernel_init=kernel_init, rngs=rngs) for width in widths]
    return memories[0] if len(memories) == 1 else MemoryStack(memories)
