"""The GPUs' engine: NVIDIA's fused kernels for what they support, plain XLA for the rest. Every decision is told to
whoever listens (`wdjax.kernels.support.listening`), with its reason."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.kernels.support import decide, why_not_lowered
from wdjax.train.fast.packed import PackedEngine
from wdjax.train.kernels.act import act_kernel
from wdjax.train.kernels.gradient import gradient_kernel
from wdjax.train.kernels.gradient_wide import wide_gradient
from wdjax.train.kernels.layers import inputs_of, reaches, towers_of, transposed, why_plain
from wdjax.train.kernels.loss import is_custom, rows_of, study
from wdjax.train.kernels.rollout import WHOLE, play_replicas, why_by_scan
from wdjax.train.networks.draws import draw_uniform
from wdjax.train.state.engine import Ahead
from wdjax.train.state.flat import named
from wdjax.train.state.state import PolicyState


@struct.dataclass
class ByKernel:
    """The acting state of a policy whose actions are sampled by a kernel."""

    state: PolicyState
    towers: Any  # the parameters as the kernel reads them


@dataclasses.dataclass(frozen=True)
class Cuda(PackedEngine):
    """A policy without `shape` has no kernel; on other GPUs than NVIDIA's `platform_dependent` leaves them out."""

    def acts_by_kernel(self, policy: Any) -> bool:
        # A custom function would get a ByKernel as `state`.
        custom = self.shape and policy.algorithm.overridden("act", "end_of_step")
        return decide(
            f"acting of {policy.name}", why_plain(policy) or (custom and f"its {custom} is custom")
        )

    def prepare(self, policy: Any, state: PolicyState) -> PolicyState | ByKernel:
        if not self.acts_by_kernel(policy):
            return state
        return ByKernel(state, transposed(towers_of(state.params, self.shape), self.shape))

    def act(
        self, policy: Any, state: PolicyState | ByKernel, carry: Any, obs: Any, keys: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        plain = super().act
        if not isinstance(state, ByKernel):
            return plain(policy, state, carry, obs, keys)
        by_kernel = functools.partial(draw_by_kernel, policy)
        simple = lambda state, obs, keys: plain(policy, state.state, carry, obs, keys)[:2]  # noqa: E731
        action, notes = jax.lax.platform_dependent(state, obs, keys, cuda=by_kernel, default=simple)
        return action, notes, carry

    def sum_gradient(
        self,
        loss: Callable,
        policy: Any,
        state: PolicyState,
        hypers: Any,
        batch: Any,
        evaluate: Callable | None = None,
    ) -> tuple[Any, dict[str, jax.Array]]:
        if evaluate is not None:  # kernels compute the built-in actor-critic
            return super().sum_gradient(loss, policy, state, hypers, batch, evaluate)
        simple = functools.partial(super().sum_gradient, loss, policy)
        by_kernel = functools.partial(kernel_gradient, loss, policy)
        why = why_plain(policy)
        if why is None and not reaches(self.shape, batch.valid.size):
            why = f"{batch.valid.size:,} transitions: more than a kernel can index"
        elif why is None and is_custom(loss):  # may hold anything
            why = self.why_not_apart(loss, policy, batch) or why_not_lowered(
                by_kernel, state, hypers, batch
            )
        if not decide(f"learning of {policy.name}", why):
            return simple(state, hypers, batch)
        return jax.lax.platform_dependent(state, hypers, batch, cuda=by_kernel, default=simple)

    def apply_if(
        self, take: jax.Array, step: Callable[[PolicyState], PolicyState], state: PolicyState
    ) -> PolicyState:
        """As `Engine`, but both branches are computed: a `cond` on a GPU costs more than a gradient step."""
        return jax.tree.map(lambda new, old: jnp.where(take, new, old), step(state), state)

    def why_not_apart(self, loss: Callable, policy: Any, batch: Any) -> str | None:
        """Return why a network with two trunks cannot be differentiated trunk by trunk, or None."""
        mixed = (
            None if self.shape.shared else study(loss, policy.config.options, rows_of(batch)).mixed
        )
        return mixed and f"{mixed} depends on policy and value, which have a trunk each"

    def drawn_ahead(self, setup: Any) -> Ahead:
        by_kernel = {
            name: policy.engine.acts_by_kernel(policy) for name, policy in setup.policies.items()
        }
        return Ahead(
            all(by_kernel.values()), tuple(name for name, kernel in by_kernel.items() if kernel)
        )

    def rollout(
        self, by_scan: Callable, given: Any, carry: tuple, keys: jax.Array
    ) -> tuple[tuple, tuple]:
        """All steps in one kernel where the rules have a place in it."""
        by_scan = functools.partial(by_scan, given)
        if not decide(WHOLE, why_by_scan(given.setup)):
            return by_scan(carry, keys)

        def by_kernel(carry: tuple, keys: jax.Array) -> tuple[tuple, tuple]:
            try:
                return play_replicas(given, carry, keys)
            except (
                Exception
            ) as error:  # a custom `act` may take keys only; other errors occur again in the scan
                decide(WHOLE, (str(error).strip() or type(error).__name__).splitlines()[0])
                return by_scan(carry, keys)

        return jax.lax.platform_dependent(carry, keys, cuda=by_kernel, default=by_scan)


def draw_by_kernel(
    policy: Any, state: ByKernel, obs: Any, keys: jax.Array, interpret: bool = False
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`act` by the kernel, from the same random numbers. `interpret`: in XLA, on any device, for tests."""
    inputs, shape = inputs_of(policy, state.state, obs), policy.engine.shape
    replicas = jax.tree.leaves(obs)[0].shape[0]
    rows = (replicas, inputs.shape[0] // replicas)
    uniform = keys if keys.dtype == jnp.float32 else draw_uniform(policy.distribution, keys, *rows)
    uniform = uniform.reshape(inputs.shape[0], -1)
    with_log_prob = policy.algorithm.keeps_log_prob
    action, value, log_prob = act_kernel(
        shape, state.towers, inputs, uniform, with_log_prob, interpret
    )
    notes = {"value": value.reshape(rows)}
    if with_log_prob:
        notes["log_prob"] = log_prob.reshape(rows)
    return action.reshape(rows if shape.scalar else (*rows, -1)), notes


def kernel_gradient(
    loss: Callable,
    policy: Any,
    state: PolicyState,
    hypers: Any,
    batch: Any,
    interpret: bool = False,
) -> tuple[Any, dict[str, jax.Array]]:
    """`Engine.sum_gradient` by a kernel. `interpret`: step by step in XLA, on any device, for tests."""
    params, back = jax.vjp(lambda params: named(state.replace(params=params)).params, state.params)
    state = named(state).replace(params=params)
    kernel = gradient_kernel if policy.engine.shape.is_narrow else wide_gradient
    action = batch.action.reshape(batch.valid.shape[0], -1)
    grads, sums = kernel(
        policy.engine.shape, state.params, inputs_of(policy, state, batch.obs), action, rows_of(batch), loss,
        policy.options(hypers), interpret,
    )  # fmt: skip
    return back(grads)[0], sums
