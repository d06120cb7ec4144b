"""The engine for GPUs: fused kernels on NVIDIA GPUs where supported, otherwise plain XLA.

`wdjax.kernels.support.listening` records every decision with its reason.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.kernels.backend import cuda_or_default
from wdjax.kernels.launches import trace
from wdjax.kernels.mapped import MAP_REPLICAS
from wdjax.kernels.pallas import MAX_NUMBERS
from wdjax.kernels.support import decide, kernel_or_plain, kernels_for, why_not_lowered
from wdjax.stepping import StepResult
from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.fast.in_place import scan_in_place
from wdjax.train.fast.packed import PackedEngine
from wdjax.train.kernels.act import act_kernel, note_kernel
from wdjax.train.kernels.decayed import decayed_kernel
from wdjax.train.kernels.gradient import gradient_kernel, prepare
from wdjax.train.kernels.gradient_wide import wide_gradient
from wdjax.train.kernels.layers import (
    NO_KERNELS,
    OBSERVATIONS,
    Tower,
    reaches,
    why_plain,
    why_unused,
)
from wdjax.train.kernels.loss import is_custom, rows_of, study
from wdjax.train.kernels.rollout import (
    STEPS,
    WHOLE,
    play_replicas,
    step_by_kernel,
    why_by_scan,
)
from wdjax.train.kernels.towers import inputs_of, towers_of, transposed
from wdjax.train.networks.distributions import Categorical, draw_uniform
from wdjax.train.networks.encoders import FlatEncoder
from wdjax.train.state.aliases import Carry, EnvParams, Fields, Observation, Params, PyTree
from wdjax.train.state.engine import Ahead, Evaluate, Loss, Means
from wdjax.train.state.flat import ALIGNED, Flat
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.state import PolicyState
from wdjax.vector import VectorState

PACKED = 2**15  # arrays in the carry of a rollout with at most this many numbers are packed
# Steps in an iteration of the loop of a rollout, which saves launches and copies of arrays: the
# first number that divides the rollout, because steps that are left are compiled again; else 4.
UNROLL = (4, 5, 3)
MAX_EQUATIONS = 2_500  # equations of a step; with more, unrolled steps take too long to compile


class ByKernel(struct.PyTreeNode):
    """The acting state of a policy whose actions are sampled by a kernel."""

    state: PolicyState
    towers: tuple[Tower, ...]  # parameters in the layout of the kernel


@dataclasses.dataclass(frozen=True)
class Cuda(PackedEngine):
    """Fused kernels for policies with a `shape`; other GPUs than NVIDIA's use plain XLA."""

    steps_per_iteration: ClassVar[int] = 2  # an iteration waits about 10 us for the one before it

    @property
    def multiple(self) -> int:
        # kernels load four numbers at once; plain XLA takes more launches with this order
        return ALIGNED if self.shape and self.shape.is_narrow else 1

    def acts_by_kernel(self, policy: Policy) -> bool:
        # custom functions cannot read a ByKernel as `state`
        custom = self.shape and policy.algorithm.overridden("act", "end_of_step")
        return decide(
            f"acting of {policy.name}", why_plain(policy) or (custom and f"its {custom} is custom")
        )

    def prepare(self, policy: Policy, state: PolicyState) -> PolicyState | ByKernel:
        if not self.acts_by_kernel(policy):
            return state
        return ByKernel(state, transposed(towers_of(state.params, self.shape), self.shape))

    def act(
        self,
        policy: Policy,
        state: PolicyState | ByKernel,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
    ) -> tuple[jax.Array, Fields, Carry]:
        plain = super().act
        if not isinstance(state, ByKernel):
            with self.kernels_of_parts(policy):
                return plain(policy, state, carry, obs, keys)
        by_kernel = functools.partial(self.with_kernels, policy, draw_by_kernel, policy)
        simple = lambda state, obs, keys: plain(policy, state.state, carry, obs, keys)[:2]  # noqa: E731
        action, notes = cuda_or_default(by_kernel, simple, state, obs, keys)
        return action, notes, carry

    def notes_after(self, policy: Policy) -> bool:
        # the value of a shared trunk is one more column of its outputs
        pays = policy.algorithm.keeps_log_prob or not (self.shape and self.shape.shared)
        return pays and self.acts_by_kernel(policy)

    def note(
        self,
        policy: Policy,
        state: PolicyState,
        obs: Observation,
        action: jax.Array | None = None,
        carry: Carry = None,
    ) -> Fields:
        plain = functools.partial(super().note, policy)
        if why_plain(policy) is not None:
            with self.kernels_of_parts(policy):
                return plain(state, obs, action, carry)
        axes = jax.eval_shape(plain, state, obs)["value"].shape
        if not reaches(self.shape, math.prod(axes)):
            return plain(state, obs, action)
        by_kernel = functools.partial(self.with_kernels, policy, note_by_kernel, policy, axes)

        @jax.custom_jvp  # a custom loss may contain values; the kernel has no derivative
        def noted(state: PolicyState, obs: Observation, action: jax.Array | None) -> Fields:
            return cuda_or_default(by_kernel, plain, state, obs, action)

        noted.defjvp(functools.partial(jax.jvp, plain))
        return noted(state, obs, action)

    def sum_gradient(
        self,
        loss: Loss,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: Any,
        evaluate: Evaluate | None = None,
    ) -> tuple[Params, Means]:
        by_xla = functools.partial(super().sum_gradient, loss, policy)
        plain = functools.partial(self.with_kernels, policy, by_xla)
        if not is_built_in(policy, evaluate):  # kernels compute the built-in actor-critic
            decide(f"learning of {policy.name}", why_plain(policy) or "its evaluate is custom")
            return plain(state, hypers, batch, evaluate)
        by_kernel = functools.partial(self.with_kernels, policy, kernel_gradient, loss, policy)
        why = why_plain(policy)
        if why is None and not reaches(self.shape, batch.valid.size):
            why = f"{batch.valid.size:,} transitions: more than a kernel can index"
        elif why is None and is_custom(loss):  # may contain any operation
            why = self.why_not_studied(loss, policy, batch) or why_not_lowered(
                by_kernel, state, hypers, batch
            )
        if not decide(f"learning of {policy.name}", why):
            return plain(state, hypers, batch)
        return cuda_or_default(by_kernel, by_xla, state, hypers, batch)

    def decayed_sums(self, term_t: jax.Array, decay_t: jax.Array) -> jax.Array:
        plain = super().decayed_sums
        is_large = term_t.size > MAX_NUMBERS
        if self.reason == NO_KERNELS or why_unused() or is_large or term_t.dtype != jnp.float32:
            return plain(term_t, decay_t)

        @jax.custom_jvp  # a custom loss may contain advantages; the kernel has no derivative
        def sums(*rows: jax.Array) -> jax.Array:
            return cuda_or_default(decayed_kernel, plain, *rows)

        sums.defjvp(functools.partial(jax.jvp, plain))
        return sums(*jnp.broadcast_arrays(term_t, decay_t))

    def with_kernels(self, policy: Policy, function: Callable, *arguments: Any) -> Any:
        """Call a function in the context of `kernels_of_parts`."""
        with self.kernels_of_parts(policy):
            return function(*arguments)

    def kernels_of_parts(self, policy: Policy) -> AbstractContextManager[None]:
        """Return a context in which kernels compute parts of a network without a whole kernel."""
        is_whole = self.shape is not None and self.shape.inputs == OBSERVATIONS
        has_kernels = self.reason != NO_KERNELS and not is_whole and why_unused() is None
        return kernels_for(policy.name if has_kernels else None)

    def apply_if(
        self, take: jax.Array, step: Callable[[PolicyState], PolicyState], state: PolicyState
    ) -> PolicyState:
        """Compute both branches, as a `cond` on a GPU costs more than a gradient step."""
        return jax.tree.map(lambda new, old: jnp.where(take, new, old), step(state), state)

    def why_not_studied(self, loss: Loss, policy: Policy, batch: Any) -> str | None:
        """Return why a custom loss has no kernel, or None.

        It may read `extra`, or prevent differentiating a network with two trunks trunk by trunk.
        """
        *_, mixed, extra = study(loss, policy.config.options, rows_of(batch))
        if extra:
            return f"its loss reads extra {', '.join(extra)}"
        mixed = None if self.shape.shared else mixed
        return mixed and f"{mixed} depends on policy and value, which have a trunk each"

    def drawn_ahead(self, setup: Setup) -> Ahead:
        by_kernel = {
            name: policy.engine.acts_by_kernel(policy) for name, policy in setup.policies.items()
        }
        return Ahead(
            all(by_kernel.values()), tuple(name for name, kernel in by_kernel.items() if kernel)
        )

    def step(
        self, setup: Setup, keys: PyTree, replicas: VectorState, action: PyTree, params: EnvParams
    ) -> StepResult:
        """Run a step in one kernel if it supports the environment."""
        why = why_unused() if setup.config.kernels else NO_KERNELS
        by_kernel = functools.partial(step_by_kernel, setup)
        plain = functools.partial(super().step, setup)
        return kernel_or_plain(STEPS, why, by_kernel, plain, keys, replicas, action, params)

    def scan_steps(
        self, step: Callable, carry: PyTree, drawn: PyTree, unroll: int
    ) -> tuple[PyTree, PyTree]:
        """Pack the small arrays of the carry, which XLA copies one by one, and unroll the loop.

        XLA copies none of them in iterations of several steps that one kernel each computes. The
        carry then stays unpacked, and each step writes its own observations: writing all at once
        would delay other kernels.
        """
        # shapes instead of arrays: reading a key would count as a use of it
        inputs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), drawn)
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), carry)
        step, num_equations, kernels = trace(step, state, inputs)
        if not unroll:
            num_steps, is_small = len(jax.tree.leaves(drawn)[0]), num_equations <= MAX_EQUATIONS
            fitting = (number for number in UNROLL if num_steps % number == 0)
            unroll = next(fitting, UNROLL[0]) if is_small else 1
        by_one_kernel = MAP_REPLICAS in kernels and unroll > 1
        most, together = (0, 1) if by_one_kernel else (PACKED, unroll)
        packed = functools.partial(pack, most=most)

        def step_packed(before: Packed, drawn: PyTree) -> tuple[Packed, Packed]:
            after, outcome = step(unpack(before), drawn)
            return packed(after), self.pack(outcome)

        try:
            last, outcomes = scan_in_place(step_packed, packed(carry), drawn, unroll, together)
        except TypeError:  # without packing, JAX names an array that the step changed
            return super().scan_steps(step, carry, drawn, unroll)
        return unpack(last), self.unpack(outcomes)

    def rollout(
        self, by_scan: Callable, given: Any, carry: tuple, keys: jax.Array
    ) -> tuple[tuple, tuple]:
        """Run all steps in one kernel if it supports the environment."""
        by_kernel, plain = (functools.partial(f, given) for f in (play_replicas, by_scan))
        return kernel_or_plain(WHOLE, why_by_scan(given.setup), by_kernel, plain, carry, keys)


def is_built_in(policy: Policy, evaluate: Evaluate | None) -> bool:
    """Return whether a function for `fit` evaluates the policy's actor-critic, as kernels do."""
    if evaluate is None:
        return True
    own = getattr(type(policy.algorithm), "evaluate", evaluate)
    is_own = getattr(evaluate, "__func__", None) is own
    return is_own and policy.algorithm.overridden("evaluate") is None


def draw_by_kernel(
    policy: Policy, state: ByKernel, obs: Observation, keys: jax.Array, interpret: bool = False
) -> tuple[jax.Array, Fields]:
    """Sample actions by the kernel, with the random numbers of `Engine.act`.

    Args:
        policy: static part of the policy.
        state: its acting state.
        obs: leaves [N, n, ...].
        keys: [num_blocks], or uniform numbers [N, n, c].
        interpret: run the kernel in XLA, on any device, for tests.

    Returns:
        (action [N, n, ...], {"value", and "log_prob" if kept: [N, n]}).
    """
    shape = policy.engine.shape
    inputs = inputs_of(policy, state.state, obs)
    replicas = jax.tree.leaves(obs)[0].shape[0]
    rows = (replicas, len(inputs[0]) // replicas)
    discrete = cast(Categorical, policy.distribution)
    uniform = keys if keys.dtype == jnp.float32 else draw_uniform(discrete, keys, *rows)
    uniform = uniform.reshape(len(inputs[0]), -1)
    keeps_log_prob = policy.algorithm.keeps_log_prob
    action, value, log_prob = act_kernel(
        shape, state.towers, inputs, uniform, keeps_log_prob, interpret
    )
    notes: Fields = {"value": value.reshape(rows)}
    if log_prob is not None:
        notes["log_prob"] = log_prob.reshape(rows)
    return action.reshape(rows if discrete.scalar else (*rows, -1)), notes


def note_by_kernel(
    policy: Policy,
    axes: tuple[int, ...],
    state: PolicyState,
    obs: Observation,
    action: jax.Array | None,
    interpret: bool = False,
) -> Fields:
    """Compute `Engine.note` by a kernel.

    Args:
        policy: static part of the policy.
        axes: leading axes of the observations.
        state: its state.
        obs: leaves [*axes, *part].
        action: [*axes, ...], or None.
        interpret: run the kernel in XLA, on any device, for tests.
    """
    shape, inputs = policy.engine.shape, inputs_of(policy, state, obs)
    towers = transposed(towers_of(state.params, shape), shape)
    noted = action if policy.algorithm.keeps_log_prob else None
    noted = None if noted is None else noted.reshape(len(inputs[0]), -1)
    value, log_prob = note_kernel(shape, towers, inputs, noted, interpret)
    notes = {"value": value} if log_prob is None else {"value": value, "log_prob": log_prob}
    return {name: note.reshape(axes) for name, note in notes.items()}


def kernel_gradient(
    loss: Loss,
    policy: Policy,
    state: PolicyState,
    hypers: Hypers,
    batch: Any,
    interpret: bool = False,
) -> tuple[Params, Means]:
    """Compute `Engine.sum_gradient` by a kernel.

    Args:
        loss: as `PPO.loss`.
        policy: static part of the policy.
        state: its state.
        hypers: hyperparameters at this point of the run.
        batch: `Batch` with the transitions of this device.
        interpret: run the kernel in XLA, on any device, for tests.
    """
    is_flat = isinstance(state.params, Flat)
    params = state.params if is_flat else Flat.of(state.params, policy.engine.multiple)
    shape, options = policy.engine.shape, policy.options(hypers)

    def encoded(params: Flat) -> list[jax.Array]:
        return inputs_of(policy, state.replace(params=params.split()), batch.obs)

    inputs, back = jax.vjp(encoded, params)
    task, data = prepare(shape, inputs, batch.action, rows_of(batch), loss, options, interpret)
    if shape.is_narrow:
        grads, sums, of_inputs = gradient_kernel(task, data, params)
        if policy.encoder is not FlatEncoder:
            grads = jax.tree.map(jnp.add, grads, back(of_inputs)[0])
    else:
        tree, sums = wide_gradient(task, data, params.split())
        grads = params.replace(vector=params.layout.join(tree))
    return grads if is_flat else grads.split(), sums
