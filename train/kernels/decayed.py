"""Sums along time as one kernel: x_t = term_t + decay_t x_{t+1}, for advantages and returns.

A lane computes the sums of an agent. Unlike in `scan_replicas`, it loads several steps at once,
because loads do not depend on the sums.
"""

import functools
import math

import jax
import jax.numpy as jnp

from wdjax.kernels import pallas
from wdjax.train.kernels.layers import Ref

LANES, WARPS = 32, 1
STEPS = 16  # loaded at once


def decayed_kernel(term_t: jax.Array, decay_t: jax.Array, interpret: bool = False) -> jax.Array:
    """Return `Engine.decayed_sums`.

    Args:
        term_t: [T, ...] float32.
        decay_t: [T, ...] float32.
        interpret: run step by step in XLA on any device, for tests.
    """
    length, size = len(term_t), math.prod(term_t.shape[1:])
    kernel = functools.partial(_kernel, length=length, size=size)
    out_shape = jax.ShapeDtypeStruct((length * size,), jnp.float32)
    grid = (pallas.cdiv(size, LANES),)
    call = pallas.call(kernel, "decayed", out_shape, grid, WARPS, 1, interpret=interpret)
    return call(term_t.reshape(-1), decay_t.reshape(-1)).reshape(term_t.shape)


def _kernel(term_ref: Ref, decay_ref: Ref, sum_ref: Ref, *, length: int, size: int) -> None:
    lane = pallas.program_id() * LANES + jax.lax.broadcasted_iota(jnp.int32, (LANES,), 0)
    lane = jnp.minimum(lane, size - 1)  # surplus lanes repeat the last one and its writes

    def add(i: jax.Array, after: jax.Array) -> jax.Array:
        steps = [length - 1 - i * STEPS - j for j in range(STEPS)]
        # before the first step, repeat it: its sum is written once more, with the same value
        places = [jnp.maximum(step, 0) * size + lane for step in steps]
        terms = [pallas.load(term_ref.at[place]) for place in places]
        decays = [pallas.load(decay_ref.at[place]) for place in places]
        for step, place, term, decay in zip(steps, places, terms, decays, strict=True):
            after = jnp.where(step < 0, after, term + decay * after)
            pallas.store(sum_ref.at[place], after)
        return after

    jax.lax.fori_loop(0, pallas.cdiv(length, STEPS), add, jnp.zeros(LANES))
