"""The reference engine: acting, learning and rollouts in plain XLA, on any device."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from wdjax.stepping import StepResult
from wdjax.train.devices.collectives import total
from wdjax.train.networks.distributions import (
    Categorical,
    draw_uniform,
    draws_by_uniform,
    sample_blocks,
)
from wdjax.train.state.aliases import (
    ActingState,
    Carry,
    EnvParams,
    Fields,
    Observation,
    Params,
    PyTree,
)
from wdjax.train.state.decayed import decayed_sums
from wdjax.train.state.flat import flatten, named
from wdjax.train.state.hypers import Hypers
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.rows import Evaluation
from wdjax.train.state.state import PolicyState
from wdjax.vector import VectorState

Means: TypeAlias = dict[str, jax.Array]
"""sums or means of the terms of a loss, by name"""
Loss: TypeAlias = Callable[..., tuple[jax.Array, Means]]
"""loss(new, batch, options, mean) -> (loss (), metrics), as `PPO.loss`"""
Evaluate: TypeAlias = Callable[[Policy, PolicyState, Any], Any]
"""evaluate(policy, state, batch) -> what `loss` receives as `new`"""


class BatchRows(struct.PyTreeNode):
    """The fields of a batch that a loss may read, [B] each: one number per transition."""

    log_prob: jax.Array | None
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    valid: jax.Array
    extra: dict[str, jax.Array] = struct.field(default_factory=dict)  # not in kernels


ROW_FIELDS = tuple(name for name in BatchRows.__dataclass_fields__ if name != "extra")


class ExtraProbe(dict[str, jax.Array]):
    """Any number of one transition by name, [1], in place of `extra`; `names` are those read."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __missing__(self, name: str) -> jax.Array:
        self.names.append(name)
        return jnp.zeros(1)


@dataclasses.dataclass(frozen=True)
class Engine:
    """Operations with faster variants on some devices, in subclasses (train/fast).

    `make_setup` chooses the engine of a run and of each policy from the objects that were built.
    """

    shape: Any = None
    """`Shape` of the policy's kernels (train/kernels/layers.py); None without kernels"""
    reason: str = ""
    """reason for having no kernels"""
    steps_per_iteration: ClassVar[int] = 1
    """gradient steps in one iteration of the loop over minibatches"""

    @property
    def multiple(self) -> int:
        """The `multiple` of vectors of parameters, see `Layout` in flat.py."""
        return 1

    # Acting

    def acts_by_kernel(self, policy: Policy) -> bool:
        """Return whether `act` takes uniform numbers drawn before the rollout, not keys."""
        return False

    def prepare(self, policy: Policy, state: PolicyState) -> ActingState:
        """Return the state that `act` receives in all steps of a rollout."""
        return state

    def act(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
    ) -> tuple[jax.Array, Fields, Carry]:
        """Sample actions.

        Args:
            policy: static part of the policy.
            state: result of `prepare`.
            carry: from the previous step, leaves [N, n, ...].
            obs: leaves [N, n, ...].
            keys: [num_blocks], or uniform numbers [N, n, c].

        Returns:
            (action [N, n, ...], {"value", and "log_prob" if kept: [N, n]}, carry).
        """
        outputs, value, carry = policy.apply(state, obs, carry)
        action = sample_blocks(policy.distribution, keys, outputs)
        notes: Fields = {"value": value}
        if policy.algorithm.keeps_log_prob:
            notes["log_prob"] = policy.distribution.log_prob(outputs, action)
        return action, notes, carry

    def note(
        self,
        policy: Policy,
        state: PolicyState,
        obs: Observation,
        action: jax.Array | None = None,
        carry: Carry = None,
    ) -> Fields:
        """Return the notes of `act` for actions already sampled.

        Args:
            policy: static part of the policy.
            state: its state.
            obs: leaves [..., *part].
            action: as `act` returned it, [...] or [..., c]; None for the value alone.
            carry: from the previous step, leaves [..., *part].

        Returns:
            {"value", and "log_prob" if kept and with an action: [...]}.
        """
        outputs, value, _ = policy.apply(state, obs, carry)
        if action is None or not policy.algorithm.keeps_log_prob:
            return {"value": value}
        return {"value": value, "log_prob": policy.distribution.log_prob(outputs, action)}

    def notes_after(self, policy: Policy) -> bool:
        """Return whether a kernel for whole rollouts computes no notes, so that `note` must."""
        return False

    # Learning

    def kernels_of_parts(self, policy: Policy) -> AbstractContextManager[None]:
        """Return a context in which kernels, if any, compute parts of the policy's network."""
        return contextlib.nullcontext()

    def gradient(
        self,
        loss: Loss,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: Any,
        evaluate: Evaluate | None = None,
    ) -> tuple[Params, Means]:
        """Return the gradient of a loss, not clipped, and its metrics.

        Args:
            loss: as `PPO.loss`.
            policy: static part of the policy.
            state: its state.
            hypers: hyperparameters at this point of the run.
            batch: `Batch` with the transitions of this device.
            evaluate: as for `fit`.

        Returns:
            (gradient of the mean loss over the valid transitions of all devices, metrics): the
            loss, the means of its terms, and the norm of the gradient.
        """
        sums = self.sum_gradient(loss, policy, state, hypers, batch, evaluate)
        sums, count = total((sums, jnp.sum(batch.valid, dtype=jnp.float32)))
        grads, metrics = jax.tree.map(lambda values: values / jnp.maximum(count, 1.0), sums)
        metrics["loss"] = combine(loss, policy.options(hypers), metrics)
        norm = optax.tree.norm(grads)
        is_clipped = (norm > hypers["max_grad_norm"]).astype(jnp.float32)
        return grads, metrics | {"grad_norm": norm, "grad_clip_fraction": is_clipped}

    def sum_gradient(
        self,
        loss: Loss,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: Any,
        evaluate: Evaluate | None = None,
    ) -> tuple[Params, Means]:
        """Return (gradient of the summed loss, sums of its terms) over valid transitions.

        The arguments are the same as for `gradient`; the sums are over this device.
        """

        def loss_of(params: Params) -> tuple[jax.Array, Means]:
            new = (evaluate or evaluate_actions)(policy, named(state.replace(params=params)), batch)

            # `where`, not a product: an invalid transition may hold infinities
            def sums(terms: dict) -> dict:
                return {n: jnp.sum(jnp.where(batch.valid, rows, 0.0)) for n, rows in terms.items()}

            try:
                return loss(new, batch, policy.options(hypers), sums)
            except KeyError as error:
                computed, stored = (sorted(getattr(of, "extra", None) or {}) for of in (new, batch))
                found = f"new.extra has {computed}, and batch.extra has {stored}"
                field = f"policies.{policy.name}.algorithm: its loss reads {error.args[0]!r}"
                raise ValueError(f"{field}, but {found}") from error

        return jax.grad(loss_of, has_aux=True)(state.params)

    def apply_if(
        self, take: jax.Array, step: Callable[[PolicyState], PolicyState], state: PolicyState
    ) -> PolicyState:
        """Return step(state) if `take`, () bool, else the state."""
        return jax.lax.cond(take, step, lambda state: state, state)

    def scan_minibatches(
        self,
        step: Callable[..., tuple[PolicyState, jax.Array, PyTree]],
        state: PolicyState,
        batch: Any,
        index: jax.Array,
        advantage: jax.Array | None,
    ) -> tuple[PolicyState, PyTree]:
        """Scan step(state, stopped, minibatch) -> (state, stopped, output) over minibatches.

        Args:
            step: one gradient step; parameters and optimizer state are one vector each (`flatten`).
            state: before the first step.
            batch: `Batch` with leaves [R, ...]; [T, M, ...] for a recurrent policy.
            index: [steps, r], transitions of each minibatch; sequences for a recurrent policy.
            advantage: [steps, r], replaces `batch.advantage`; or None.

        Returns:
            (state, outputs with a leading [steps]).
        """
        axis, carries = batch.valid.ndim - 1, {"carry": batch.carry, "start": batch.start}
        rows = self.pack(batch.replace(carry=None, start=None), batch.valid.ndim)

        def turn(carry: tuple, taken: tuple) -> tuple[tuple, PyTree]:
            index, advantage = taken
            minibatch = self.unpack(
                jax.tree.map(lambda leaf: jnp.take(leaf, index, axis, mode="clip"), rows)
            )
            minibatch = minibatch.replace(**jax.tree.map(lambda leaf: leaf[index], carries))
            if advantage is not None:
                minibatch = minibatch.replace(advantage=advantage)
            state, stopped, output = step(*carry, minibatch)
            return (state, stopped), self.pack(output)

        carry = flatten(state, self.multiple), jnp.bool_(False)
        unroll = min(self.steps_per_iteration, len(index))
        (state, _), outputs = jax.lax.scan(turn, carry, (index, advantage), unroll=unroll)
        return named(state), self.unpack(outputs)

    def decayed_sums(self, term_t: jax.Array, decay_t: jax.Array) -> jax.Array:
        """Return x_t = term_t + decay_t x_{t+1}, [T, ...] each; x is 0 after the last step."""
        return decayed_sums(term_t, decay_t)

    # Rollouts, of all policies

    def draw(
        self, setup: Setup, opponents: Collection[str], keys: jax.Array, every: bool = False
    ) -> tuple[chex.ArrayTree, dict[str, jax.Array]]:
        """Return the random inputs of each step: (env_key, draws) of `play_step`, leading [T].

        Args:
            setup: static part of the run.
            opponents: names of policies with opponents, which receive keys.
            keys: [T, 1 + policies, num_blocks].
            every: draw all random numbers before the loop, for a kernel for whole rollouts.
        """
        ahead = Ahead(True, uniform_policies(setup, every)) if every else self.drawn_ahead(setup)
        env_key = jax.vmap(setup.replicas.draw_keys)(keys[:, 0]) if ahead.env else keys[:, 0]
        draws = {name: keys[:, 1 + i] for i, name in enumerate(setup.policies)}
        for name in (name for name in ahead.policies if name not in opponents):
            policy = setup.policies[name]
            draw = functools.partial(
                draw_uniform,
                cast(Categorical, policy.distribution),
                num_envs=setup.replicas.num_envs,
                num_agents=policy.assignment.num_agents,
            )
            draws[name] = jax.vmap(draw)(draws[name])
        return env_key, draws

    def drawn_ahead(self, setup: Setup) -> "Ahead":
        """Return which random numbers to draw before the loop of a rollout."""
        return Ahead(False, ())

    def scan_steps(
        self, step: Callable, carry: PyTree, drawn: PyTree, unroll: int
    ) -> tuple[PyTree, PyTree]:
        """Call `jax.lax.scan` over the steps of a rollout. 0 in `unroll`: the engine chooses it."""

        def packed(carry: PyTree, drawn: PyTree) -> tuple[PyTree, PyTree]:
            carry, outcome = step(carry, drawn)
            return carry, self.pack(outcome)

        carry, outcomes = jax.lax.scan(packed, carry, drawn, unroll=unroll or 1)
        return carry, self.unpack(outcomes)

    def step(
        self, setup: Setup, keys: PyTree, replicas: VectorState, action: PyTree, params: EnvParams
    ) -> StepResult:
        """Advance all replicas by one step.

        Args:
            setup: static part of the run.
            keys: [num_blocks], or the result of `VectorEnv.draw_keys`.
            replicas: as for `VectorEnv.step`.
            action: as for `VectorEnv.step`.
            params: as for `VectorEnv.step`.
        """
        step = setup.replicas.step_with_keys if isinstance(keys, tuple) else setup.replicas.step
        return step(keys, replicas, action, params)

    def rollout(
        self, by_scan: Callable, given: Any, carry: tuple, keys: jax.Array
    ) -> tuple[tuple, tuple]:
        """Return `by_scan(given, carry, keys)`, the reference rollout, or the same from a kernel.

        Args:
            by_scan: `play_steps` (rollout/scan.py).
            given: `StepInputs`.
            carry: as for `play_step`.
            keys: [T, 1 + policies, num_blocks].
        """
        return by_scan(given, carry, keys)

    # Layout of data that scans read and write

    def pack(self, tree: PyTree, leading: int = 0) -> PyTree:
        """Return a tree in the layout for scans.

        Args:
            tree: leaves with `leading` axes in common.
            leading: number of leading axes.
        """
        return tree

    def unpack(self, packed: PyTree) -> PyTree:
        """Invert `pack`."""
        return packed


class Ahead(NamedTuple):
    """Random numbers to draw before the loop of a rollout."""

    env: bool  # keys of the environment
    policies: tuple[str, ...]  # uniform numbers for actions of these policies


def uniform_policies(setup: Setup, every: bool = False) -> tuple[str, ...]:
    """Return the policies that can draw uniform numbers for their actions before the loop.

    Args:
        setup: static part of the run.
        every: include policies with a custom `act`, for a kernel for whole rollouts.
    """

    def uniform(own: Policy) -> bool:
        return (every or own.algorithm.takes_uniform) and draws_by_uniform(own.distribution)

    return tuple(name for name, policy in setup.policies.items() if uniform(policy))


def evaluate_actions(policy: Policy, state: PolicyState, batch: Any) -> Evaluation:
    """Return log-probabilities, entropies and values of a batch under the parameters of a state."""
    outputs, value = batch.outputs(policy, state)
    log_prob = policy.distribution.log_prob(outputs, batch.action)
    return Evaluation(log_prob, policy.distribution.entropy(outputs), value)


def combine(loss: Loss, options: Any, means: Mapping[str, jax.Array]) -> jax.Array:
    """Return the loss () from the means of its terms."""
    one = jnp.zeros(1)
    rows = BatchRows(one, one, one, one, one > 0, ExtraProbe())
    new = Evaluation(one, one, one, ExtraProbe())
    return loss(new, rows, options, lambda terms: dict(means))[0]
