"""Base of the engines for CPUs and GPUs: loops with few, large operations."""

import dataclasses

import jax
import jax.numpy as jnp

from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.state.aliases import PyTree
from wdjax.train.state.decayed import decayed_sums
from wdjax.train.state.engine import Engine
from wdjax.train.state.rows import OBSERVATIONS

UNROLL = 16
"""most steps in one iteration of `decayed_sums`, which costs a GPU thousands of additions"""


@dataclasses.dataclass(frozen=True)
class PackedEngine(Engine):
    """Packs small arrays that a loop reads or writes, as each array would cost a kernel launch."""

    def pack(self, tree: PyTree, leading: int = 0) -> Packed:
        return pack(tree, leading, OBSERVATIONS)

    def unpack(self, packed: Packed) -> PyTree:
        return unpack(packed)

    def decayed_sums(self, term_t: jax.Array, decay_t: jax.Array) -> jax.Array:
        """Unroll the loop into at least two equal iterations.

        XLA would fuse a single iteration, or remaining single steps, into every consumer of the
        results, which takes seconds to compile.
        """
        num_steps = len(term_t)
        num_turns = max(2, -(-num_steps // UNROLL))
        unroll = -(-num_steps // num_turns)
        extra = num_turns * unroll - num_steps
        pad = lambda rows: jnp.pad(rows, [(0, extra)] + [(0, 0)] * (rows.ndim - 1))  # noqa: E731
        return decayed_sums(pad(term_t), pad(decay_t), unroll)[:num_steps]
