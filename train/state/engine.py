"""The reference engine: how policies act and learn, and how rollouts are played, in plain XLA on any device."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from wdjax.train.devices.collectives import total
from wdjax.train.networks.draws import draw_uniform, draws_by_uniform, sample_blocks
from wdjax.train.state.flat import flatten, named
from wdjax.train.state.rows import Evaluation
from wdjax.train.state.state import PolicyState

Metrics = dict[str, jax.Array]


@struct.dataclass
class BatchRows:
    """The fields of a batch with one number per transition, [B] each: what a loss may read, beside `Evaluation`."""

    log_prob: Any = None
    value: Any = None
    advantage: Any = None
    target: Any = None
    valid: Any = None


ROW_FIELDS = tuple(BatchRows.__dataclass_fields__)


@dataclasses.dataclass(frozen=True)
class Engine:
    """What algorithms and rollouts leave to the machine. Subclasses (train/fast) return the same, faster.

    `make_setup` chooses the engine of a run and of each policy from the objects that were built.
    """

    shape: Any = None
    """static shape of the policy's kernels (train/kernels/layers.py); None: it has none"""
    reason: str = ""
    """why it has none"""

    # Acting

    def acts_by_kernel(self, policy: Any) -> bool:
        """Return whether `act` takes uniform numbers drawn before the rollout, not keys."""
        return False

    def prepare(self, policy: Any, state: PolicyState) -> Any:
        """Return the state that `act` receives in all steps of a rollout."""
        return state

    def act(
        self, policy: Any, state: Any, carry: Any, obs: Any, keys: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        """Sample actions. Return (action [N, n, ...], {"value", and "log_prob" if kept: [N, n]}, carry)."""
        outputs, value, carry = policy.apply(state, obs, carry)
        action = sample_blocks(policy.distribution, keys, outputs)
        notes = {"value": value}
        if policy.algorithm.keeps_log_prob:
            notes["log_prob"] = policy.distribution.log_prob(outputs, action)
        return action, notes, carry

    # Learning

    def gradient(
        self, loss: Callable, policy: Any, state: PolicyState, hypers: Any, batch: Any,
        evaluate: Callable | None = None,
    ) -> tuple[Any, Metrics]:  # fmt: skip
        """Return the gradient of a loss, not clipped, and its metrics.

        Args:
            loss: as `PPO.loss`.
            policy: static part of the policy.
            state: its state.
            hypers: hyperparameters at this point of the run.
            batch: the transitions of this device.
            evaluate: as for `fit`.

        Returns:
            (gradient of the mean loss over the valid transitions of all devices, metrics): the loss, the means of its
            terms, and the norm of the gradient.
        """
        sums = self.sum_gradient(loss, policy, state, hypers, batch, evaluate)
        sums, count = total((sums, jnp.sum(batch.valid, dtype=jnp.float32)))
        grads, metrics = jax.tree.map(lambda values: values / jnp.maximum(count, 1.0), sums)
        metrics["loss"], norm = (
            combine(loss, policy.options(hypers), metrics),
            optax.tree.norm(grads),
        )
        is_clipped = (norm > hypers["max_grad_norm"]).astype(jnp.float32)
        return grads, metrics | {"grad_norm": norm, "grad_clip_fraction": is_clipped}

    def sum_gradient(
        self,
        loss: Callable,
        policy: Any,
        state: PolicyState,
        hypers: Any,
        batch: Any,
        evaluate: Callable | None = None,
    ) -> tuple[Any, Metrics]:
        """Return (gradient of the summed loss, sums of its terms) over this device's valid transitions."""

        def loss_of(params: Any) -> tuple[jax.Array, Metrics]:
            new = (evaluate or evaluate_actions)(policy, named(state.replace(params=params)), batch)

            # `where`, not a product: an invalid transition may hold infinities
            def sums(terms: dict) -> dict:
                return {n: jnp.sum(jnp.where(batch.valid, rows, 0.0)) for n, rows in terms.items()}

            return loss(new, batch, policy.options(hypers), sums)

        return jax.grad(loss_of, has_aux=True)(state.params)

    def apply_if(
        self, take: jax.Array, step: Callable[[PolicyState], PolicyState], state: PolicyState
    ) -> PolicyState:
        """Return step(state) if `take`, () bool, else the state."""
        return jax.lax.cond(take, step, lambda state: state, state)

    def scan_minibatches(
        self,
        step: Callable,
        state: PolicyState,
        batch: Any,
        index: jax.Array,
        advantage: jax.Array | None,
    ) -> tuple[PolicyState, Any]:
        """Scan step(state, stopped, minibatch) -> (state, stopped, output) over minibatches.

        Args:
            step: one gradient step; parameters and optimizer state are one vector each (`flatten`).
            state: before the first step.
            batch: leaves [R, ...]; of a recurrent policy [T, M, ...].
            index: [steps, r], the transitions (of a recurrent policy: the sequences) of each minibatch.
            advantage: [steps, r], replaces the batch's; or None.
        """
        rows, axis = self.pack(batch.replace(carry=None), batch.valid.ndim), batch.valid.ndim - 1

        def turn(carry: tuple, taken: tuple) -> tuple[tuple, Any]:
            index, advantage = taken
            minibatch = self.unpack(
                jax.tree.map(lambda leaf: jnp.take(leaf, index, axis, mode="clip"), rows)
            )
            minibatch = minibatch.replace(carry=jax.tree.map(lambda leaf: leaf[index], batch.carry))
            if advantage is not None:
                minibatch = minibatch.replace(advantage=advantage)
            state, stopped, output = step(*carry, minibatch)
            return (state, stopped), self.pack(output)

        (state, _), outputs = jax.lax.scan(
            turn, (flatten(state), jnp.bool_(False)), (index, advantage)
        )
        return named(state), self.unpack(outputs)

    def permutation(self, key: jax.Array, size: int) -> jax.Array:
        """Return 0 .. size - 1 in random order, [size] int32: sorted by one random word each.

        `jax.random.permutation` sorts twice, to break ties: three pairs in 160,000.
        """
        words = jax.random.bits(key, (size,))
        return jax.lax.sort_key_val(words, jnp.arange(size, dtype=jnp.int32))[1]

    def scan(self, step: Callable, init: Any, rows: Any, reverse: bool = False) -> tuple[Any, Any]:
        """`jax.lax.scan` for steps of a few operations, in which rows of zeros after the last change nothing."""
        return jax.lax.scan(step, init, rows, reverse=reverse)

    # Rollouts, of all policies

    def draw(
        self, setup: Any, selves: Mapping[str, Any], keys: jax.Array, every: bool = False
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Return what each step draws by: (env_key, draws) of `play_step`, each with a leading [T].

        Args:
            setup: static part of the run.
            selves: opponents by policy; their policies get keys.
            keys: [T, 1 + policies, num_blocks].
            every: draw all random numbers before the loop, as a kernel for whole rollouts reads them.
        """
        ahead = Ahead(True, uniform_policies(setup, every)) if every else self.drawn_ahead(setup)
        env_key = jax.vmap(setup.replicas.draw_keys)(keys[:, 0]) if ahead.env else keys[:, 0]
        draws = {name: keys[:, 1 + i] for i, name in enumerate(setup.policies)}
        for name in (name for name in ahead.policies if name not in selves):
            distribution, agents = (
                setup.policies[name].distribution,
                setup.policies[name].assignment.num_agents,
            )
            draw = functools.partial(
                draw_uniform, distribution, num_envs=setup.replicas.num_envs, num_agents=agents
            )
            draws[name] = jax.vmap(draw)(draws[name])
        return env_key, draws

    def drawn_ahead(self, setup: Any) -> "Ahead":
        """Return what is drawn before the rollout's loop."""
        return Ahead(False, ())

    def scan_steps(self, step: Callable, carry: Any, drawn: Any, unroll: int) -> tuple[Any, Any]:
        """`jax.lax.scan` over the steps of a rollout."""

        def packed(carry: Any, drawn: Any) -> tuple[Any, Any]:
            carry, outcome = step(carry, drawn)
            return carry, self.pack(outcome)

        carry, outcomes = jax.lax.scan(packed, carry, drawn, unroll=unroll)
        return carry, self.unpack(outcomes)

    def rollout(
        self, by_scan: Callable, given: Any, carry: tuple, keys: jax.Array
    ) -> tuple[tuple, tuple]:
        """Return `by_scan(given, carry, keys)`, the reference rollout, or the same by other means."""
        return by_scan(given, carry, keys)

    # Layout of data that scans read and write

    def pack(self, tree: Any, leading: int = 0) -> Any:
        """Return a tree with leaves [*leading, ...] in the layout in which scans read and write it."""
        return tree

    def unpack(self, packed: Any) -> Any:
        """Return what `pack` was given."""
        return packed


class Ahead(NamedTuple):
    """What is drawn before the rollout's loop: the environment's keys, and the actions' numbers of some policies."""

    env: bool
    policies: tuple[str, ...]


def uniform_policies(setup: Any, every: bool = False) -> tuple[str, ...]:
    """Return the policies whose actions follow from uniform numbers that can be drawn before.

    Args:
        setup: static part of the run.
        every: include policies with a custom `act`, which gets uniform numbers only in a kernel for whole rollouts.
    """

    def uniform(own: Any) -> bool:
        return (every or own.algorithm.takes_uniform) and draws_by_uniform(own.distribution)

    return tuple(name for name, policy in setup.policies.items() if uniform(policy))


def evaluate_actions(policy: Any, state: PolicyState, batch: Any) -> Evaluation:
    """Return log-probabilities, entropies and values of a batch under the parameters of a state."""
    if batch.carry is None:
        outputs, value, _ = policy.apply(state, batch.obs)
    else:
        outputs, value = policy.unroll(
            state, batch.obs, batch.carry[0], batch.restart, batch.carry[1]
        )
    log_prob = policy.distribution.log_prob(outputs, batch.action)
    return Evaluation(log_prob, policy.distribution.entropy(outputs), value)


def combine(loss: Callable, options: Any, means: Mapping[str, jax.Array]) -> jax.Array:
    """Return the loss () that belongs to the means of its terms."""
    one = jnp.zeros(1)
    rows = BatchRows(one, one, one, one, one > 0)
    return loss(Evaluation(one, one, one), rows, options, lambda terms: dict(means))[0]
