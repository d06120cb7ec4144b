"""Networks of feed-forward policies as towers of layers, in memory and inside a kernel.

A tower consists of hidden layers and a linear layer. An actor-critic with a shared trunk is one
tower, whose last layer has the columns of the policy, then the column of the value; one with two
trunks is two towers. Matrices are padded with zeros to powers of two, which Triton requires.
Padded units are act(0) = 0 and have no effect.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels import pallas
from wdjax.kernels.activations import ACTIVATIONS
from wdjax.kernels.backend import on_cpu
from wdjax.kernels.half import HALF, in_half, in_range
from wdjax.kernels.support import why_no_kernels
from wdjax.overrides import overridden
from wdjax.spaces import Dict
from wdjax.train.config.schema import NetworkConfig
from wdjax.train.networks.actor_critic import MLP, ActorCritic, Trunk, without_mask
from wdjax.train.networks.checks import with_layout
from wdjax.train.networks.distributions import Categorical
from wdjax.train.networks.encoders import MASK, Encoder, FlatEncoder, make_encoder
from wdjax.train.state.policy import Policy

MIN_SIZE = 16  # smallest matrix of tensor cores
MAX_OUTPUTS = 128  # columns of the last layer of a tower
MAX_WIDTH = 256  # units of a hidden layer
NARROW = 2**14  # numbers in all padded matrices up to which gradients stay in registers
# units of a hidden layer that are in registers at once, by the dtype of a product
CHUNK = {"float32": 32, "bfloat16": 64, "float16": 64}

NO_KERNELS = "kernels: false"  # the reason for having no kernels by configuration

# Inputs of kernels: observations; features, from one encoder for each tower; or either of them,
# streamed: a loop reads them and the first matrix, if it is too large to be held in registers. XLA
# then computes the gradient of this matrix.
OBSERVATIONS, FEATURES, STREAMED = "observations", "features", "streamed"
MAX_STREAMED = 2**10  # streamed inputs; with more, a loop is slower than matrix products of XLA
STREAMED_STAGES = 3  # pipeline stages of their loads
MAX_AT_ONCE = 64  # streamed inputs in an iteration, fewer if the matrix is wide

TRUNKS = ("trunk", "value_trunk")  # parameters of the hidden layers of each tower

Tower = tuple[tuple[Any, jax.Array], ...]
"""(kernel [inputs, outputs], bias [outputs]) of each layer, padded"""
Ref: TypeAlias = Any
"""reference to an array in the memory of a kernel; Pallas has no public type for it"""
TowerRefs: TypeAlias = tuple[tuple[Ref, Ref], ...]
"""a `Tower` in the memory of a kernel"""
Span: TypeAlias = Any
"""range of indices in a kernel, see `pallas.span`"""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Static sizes of a policy, which determine its kernels."""

    num_inputs: int
    hidden: tuple[int, ...]  # widths of the hidden layers, as configured
    sizes: tuple[int, ...]  # number of choices of each categorical component of an action
    shared: bool  # whether policy and value share a trunk
    activation: str
    dtype: str  # `compute_dtype`: float32 or bfloat16; see `dtype_of`
    inputs: str = OBSERVATIONS  # OBSERVATIONS, FEATURES or STREAMED

    @property
    def num_outputs(self) -> int:
        return sum(self.sizes)

    @property
    def num_towers(self) -> int:
        return 1 if self.shared else 2

    @property
    def num_held(self) -> int:
        """Number of inputs that a kernel holds in registers."""
        return 0 if self.inputs == STREAMED else self.num_inputs

    @property
    def at_once(self) -> int:
        """Number of streamed inputs in an iteration: a power of two, at least MIN_SIZE."""
        return max(MIN_SIZE, min(MAX_AT_ONCE, 2**12 // self.widths[1]))

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the layers in a kernel, from the inputs to the outputs."""
        outputs = self.num_outputs + 1 if self.shared else self.num_outputs
        return tuple(padded(size) for size in (self.num_held, *self.hidden, outputs))

    @property
    def is_narrow(self) -> bool:
        """Whether a program can hold the gradients of all matrices."""
        numbers = sum(math.prod(pair) for pair in zip(self.widths, self.widths[1:], strict=False))
        return self.num_towers * numbers <= NARROW

    @property
    def rescales(self) -> bool:
        """Whether hidden units may exceed the range of float16 and are then divided."""
        return self.is_narrow and self.activation != "tanh"

    @property
    def components(self) -> list[tuple[int, int]]:
        """(first column, number of columns) of each component of an action."""
        return [(sum(self.sizes[:i]), size) for i, size in enumerate(self.sizes)]


def padded(size: int) -> int:
    """Return the smallest power of two that is at least `size` and MIN_SIZE."""
    return max(MIN_SIZE, 1 << (size - 1).bit_length())


def pieces(size: int) -> list[tuple[int, int]]:
    """Return (first, width) of pieces that cover a size; widths are powers of two, at least 16."""
    found, first = [], 0
    while first < size:
        width = max(16, 1 << ((size - first).bit_length() - 1))
        found.append((first, width))
        first += width
    return found


def shape_of(policy: Policy) -> Shape | str:
    """Return the static sizes of a policy's kernels, or the reason for having none."""
    network, space = policy.config.network, policy.assignment.observation_space
    widths, distribution = network.hidden_sizes, policy.distribution
    refusals = {
        "it has an action mask": isinstance(space, Dict) and MASK in space.spaces,
        "it is recurrent": policy.is_recurrent,
        "it has layer normalization": network.layer_norm,
        f"head_hidden_sizes {list(network.head_hidden_sizes)}": bool(network.head_hidden_sizes),
        "its actions are continuous": not isinstance(distribution, Categorical),
        f"hidden_sizes {list(widths)}: kernels support up to {MAX_WIDTH}": not widths
        or max(widths) > MAX_WIDTH,
    }
    if why := first_refusal(refusals):
        return why
    assert isinstance(distribution, Categorical)
    shape = Shape(
        encoder_of(policy).num_features,
        tuple(widths),
        distribution.sizes,
        network.shared_trunk,
        network.activation,
        network.compute_dtype,
        OBSERVATIONS if policy.encoder is FlatEncoder else FEATURES,
    )
    takes_wide = (
        shape.shared
        and shape.inputs == OBSERVATIONS
        and len(widths) == 2
        and min(widths) >= 64
        and shape.activation in ("relu", "tanh")
        and shape.num_inputs <= MAX_WIDTH
    )
    streamed = dataclasses.replace(shape, inputs=STREAMED)
    can_stream = streamed.is_narrow and shape.num_inputs <= MAX_STREAMED
    if not shape.is_narrow and not takes_wide and can_stream:
        shape = streamed
    refusals = {
        f"{shape.num_outputs} action logits: kernels support fewer than {MAX_OUTPUTS}": (
            shape.num_outputs >= MAX_OUTPUTS
        ),
        f"compute_dtype {shape.dtype} of a small network": (
            shape.is_narrow and shape.dtype != "float32"
        ),
        f"{shape.num_inputs} inputs, hidden_sizes {list(widths)}: kernels support small networks "
        f"with up to {MAX_STREAMED} inputs; wide ones need a shared trunk, two layers of at least "
        f"64 units, relu or tanh, at most {MAX_WIDTH} inputs, and no encoder": (
            not shape.is_narrow and not takes_wide
        ),
    }
    return first_refusal(refusals) or shape


def network_config(policy: Policy) -> NetworkConfig:
    """Return the configuration of a network, with the environment's layout for its encoder."""
    return with_layout(policy.config.network, policy.assignment.layout)


@functools.lru_cache(maxsize=64)
def encoder_of(policy: Policy) -> Encoder:
    """Return the encoder of a policy, with shapes and dtypes as parameters."""
    space, config = without_mask(policy.assignment.observation_space), network_config(policy)
    return nnx.eval_shape(lambda: make_encoder(space, config, nnx.Rngs(jax.random.key(0))))


def first_refusal(refusals: Mapping[str, bool]) -> str | None:
    """Return the first reason that applies, or None."""
    return next((why for why, applies in refusals.items() if applies), None)


def why_plain(policy: Policy) -> str | None:
    """Return the reason why a policy has no kernels, or None if it has."""
    return why_unused() or policy.engine.reason or why_custom(policy)


def why_custom(policy: Policy) -> str | None:
    """Return the name of a function of a policy that kernels do not implement, or None.

    The built objects are compared, not the configuration: the modules of the network with their
    static attributes, and the current functions of the built-in classes with their source files.
    """
    if not _has_stock_network(policy):
        return f"its network is not the built-in {ActorCritic.__name__}"
    if type(policy.distribution) is not Categorical:
        return f"its distribution is {type(policy.distribution).__name__}"
    stock = [ActorCritic, Trunk, MLP] + [FlatEncoder] * (policy.encoder is FlatEncoder)
    classes = [(cls, cls, ()) for cls in stock]
    for owner, cls, names in (
        *classes,
        (policy.distribution, Categorical, ()),
        (policy, Policy, ("apply", "inputs")),
    ):
        if name := overridden(owner, cls, names):
            return f"its {cls.__name__}.{name} is custom"
    return None


@functools.lru_cache(maxsize=64)
def _has_stock_network(policy: Policy) -> bool:
    """Return whether a network has the modules and attributes that the kernels implement.

    Encoders other than the flat one may be custom: the kernels compute the layers after them.
    """
    space, config = without_mask(policy.assignment.observation_space), network_config(policy)

    def build() -> ActorCritic:
        network = ActorCritic(space, policy.distribution, config, rngs=nnx.Rngs(jax.random.key(0)))
        for trunk in (network.trunk, network.value_trunk):
            if trunk is not None:
                trunk.mlp.activation = ACTIVATIONS[config.activation]
        return network

    stock = nnx.eval_shape(build)
    try:
        own = nnx.merge(policy.graphdef, nnx.state(stock))
    except Exception:  # another structure
        return False
    if policy.encoder is not FlatEncoder:
        for network in (own, stock):
            for trunk in (network.trunk, network.value_trunk):
                if trunk is not None:
                    del trunk.encoder
    return nnx.graphdef(own) == nnx.graphdef(stock)


def why_unused() -> str | None:
    """Return the reason why this process uses no kernels, or None if it does.

    Kernels require a GPU that supports them, products that may round to tf32 (the default), and no
    search for reused keys, as by `--debug`. The check runs before tracing, which takes time.
    """
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]  # set by jax
    if on_cpu():
        return "there is no GPU"
    if precision not in (None, "default", "tensorfloat32"):
        return f"kernels round products to tf32, but jax_default_matmul_precision is {precision}"
    is_checked = jax.config.jax_debug_key_reuse  # type: ignore[attr-defined]  # set by jax
    return "jax_debug_key_reuse is on" if is_checked else why_no_kernels()


def reaches(shape: Shape, num_rows: int) -> bool:
    """Return whether kernels can index the inputs of `num_rows` rows."""
    return num_rows * max(shape.num_inputs, len(shape.sizes)) <= pallas.MAX_NUMBERS


def dtype_of(shape: Shape) -> str:
    """Return the dtype of the inputs of all products but the first.

    Products of float32 round to tf32 with 11 significant bits. float16 has as many, and tensor
    cores multiply it twice as fast. Narrow networks divide hidden units above 65504 (`in_half`). In
    wide ones they are infinite in gradients, so that the update is reported as bad, and 65504 for
    acting.
    """
    return HALF if shape.dtype == "float32" else shape.dtype


# Inside a kernel


def activation_of(shape: Shape) -> Callable[[jax.Array], jax.Array]:
    """Return the activation of hidden layers; tanh has the error of rounding to float16, 2^-11."""
    return pallas.approx_tanh if shape.activation == "tanh" else ACTIVATIONS[shape.activation]


def chunk_of(dtype: str, width: int) -> int:
    """Return the number of units of a hidden layer that are computed at once."""
    return min(CHUNK[dtype], width)


def load_rows(ref: Ref, rows: jax.Array, first: Any, width: int, shape: Shape) -> jax.Array:
    """Load a block of inputs, [B, width]; 0 after the last column.

    Args:
        ref: flat inputs of all rows.
        rows: [B] int32, rows of the block.
        first: first column of the block.
        width: number of its columns.
        shape: static sizes of the policy.
    """
    columns = first + jax.lax.broadcasted_iota(jnp.int32, (rows.shape[0], width), 1)
    index = rows[:, None] * shape.num_inputs + columns
    return pallas.load(ref.at[index], mask=columns < shape.num_inputs, other=0.0)


def streamed(ref: Ref, rows: jax.Array, matrix: Ref, shape: Shape) -> jax.Array:
    """Return the products of a block of inputs and the first matrix, [B, width], by a loop.

    Args:
        ref: flat inputs of all rows.
        rows: [B] int32, rows of the block.
        matrix: the first matrix, `transposed`: tensor cores sum over its last axis.
        shape: static sizes of the policy.
    """
    size = shape.at_once

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        inputs = load_rows(ref, rows, i * size, size, shape)
        return sums + product(inputs, matrix[:, pallas.span(i * size, size)].T, shape.dtype)

    zeros = jnp.zeros((rows.shape[0], shape.widths[1]), jnp.float32)
    return jax.lax.fori_loop(0, pallas.cdiv(shape.num_inputs, size), add, zeros)


def product(left: jax.Array, right: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Return left @ right, [B, n] float32, of numbers rounded to `dtype`."""
    return jnp.dot(left.astype(dtype), right.astype(dtype), preferred_element_type=jnp.float32)


def hidden_product(hidden: jax.Array, matrix: jax.Array, shape: Shape) -> jax.Array:
    """Return the products of hidden units and a matrix, [B, n] float32."""
    dtype = dtype_of(shape)
    if not shape.rescales:
        return product(in_range(hidden, dtype), matrix, dtype)
    halves, scale = in_half(hidden)
    return scale * product(halves, matrix, dtype)


def column(outputs: jax.Array, place: int) -> jax.Array:
    """Return one column of a block, [B]."""
    columns = jax.lax.broadcasted_iota(jnp.int32, outputs.shape, 1)
    return jnp.sum(jnp.where(columns == place, outputs, 0.0), axis=1)
