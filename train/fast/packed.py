"""Base of the engines for CPUs and GPUs: loops with few, large operations."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.state.aliases import PyTree
from wdjax.train.state.engine import Engine
from wdjax.train.state.rows import OBSERVATIONS

UNROLL = 16
"""most steps in one iteration of `PackedEngine.scan`, which costs a GPU thousands of additions"""


@dataclasses.dataclass(frozen=True)
class PackedEngine(Engine):
    """Packs small arrays that a loop reads or writes, as each array would cost a kernel launch."""

    def pack(self, tree: PyTree, leading: int = 0) -> Packed:
        return pack(tree, leading, OBSERVATIONS)

    def unpack(self, packed: Packed) -> PyTree:
        return unpack(packed)

    def scan(
        self, step: Callable, init: PyTree, rows: PyTree, reverse: bool = False
    ) -> tuple[PyTree, PyTree]:
        """Unroll `Engine.scan` into at least two equal iterations.

        XLA would fuse a single iteration, or remaining single steps, into every consumer of the
        results, which takes seconds to compile.
        """
        num_steps = len(jax.tree.leaves(rows)[0])
        num_turns = max(2, -(-num_steps // UNROLL))
        unroll = -(-num_steps // num_turns)
        extra = num_turns * unroll - num_steps
        pad = lambda leaf: jnp.pad(leaf, [(0, extra)] + [(0, 0)] * (leaf.ndim - 1))  # noqa: E731
        last, outputs = jax.lax.scan(
            step, init, jax.tree.map(pad, rows), reverse=reverse, unroll=unroll
        )
        return last, jax.tree.map(lambda leaf: leaf[:num_steps], outputs)
