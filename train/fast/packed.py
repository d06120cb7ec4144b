"""What the engines of CPUs and GPUs share: loops with few, large operations."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.state.engine import Engine
from wdjax.train.state.rows import OBSERVATIONS

UNROLL = 16
"""most steps in one turn of `PackedEngine.scan`: on a GPU a turn costs as much as thousands of additions"""


@dataclasses.dataclass(frozen=True)
class PackedEngine(Engine):
    """Small arrays that a loop reads or writes are one array: each would cost a kernel launch."""

    def pack(self, tree: Any, leading: int = 0) -> Packed:
        return pack(tree, leading, OBSERVATIONS)

    def unpack(self, packed: Packed) -> Any:
        return unpack(packed)

    def scan(self, step: Callable, init: Any, rows: Any, reverse: bool = False) -> tuple[Any, Any]:
        """`Engine.scan`, unrolled.

        At least two turns, all alike: XLA would fuse a single turn, and single steps beside whole turns, into every
        reader, which takes it seconds.
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
