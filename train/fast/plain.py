"""The reference engine: plain XLA on any device."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from wdjax.train.devices.collectives import total
from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.fast.flat import flatten, named
from wdjax.train.kernels.loss import combine, evaluate
from wdjax.train.rollout.draws import draw_uniform, draws_by_uniform, sample_blocks
from wdjax.train.state.rows import OBSERVATIONS
from wdjax.train.state.state import PolicyState

UNROLL = 16
"""steps in one turn of `Plain.scan`, at most: on a GPU a turn costs as much as thousands of additions"""


@dataclasses.dataclass(frozen=True)
class Plain:
    """How a policy acts and learns, and how a run plays its rollouts."""

    shape: Any = None
    """static shape of the policy's kernels (train/kernels/layers.py); None: it has none"""
    reason: str = ""
    """why it has none"""

    # Acting

    def acts_by_kernel(self, policy: Any) -> bool:
        """Whether `act` takes numbers drawn ahead, not keys."""
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
        self, loss: Callable, policy: Any, state: PolicyState, hypers: Any, batch: Any
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Return (gradient of the mean loss over the valid transitions of all devices, not clipped; metrics: the loss,
        its terms and the gradient's norm).

        The devices sum gradients, terms and counts once; only then is there a mean.
        """
        sums, count = total(
            (self.sum_gradient(loss, policy, state, hypers, batch), jnp.sum(batch.valid, dtype=jnp.float32))
        )
        grads, metrics = jax.tree.map(lambda values: values / jnp.maximum(count, 1.0), sums)
        metrics["loss"], norm = combine(loss, policy.options(hypers), metrics), optax.tree.norm(grads)
        metrics |= {"grad_norm": norm, "grad_clip_fraction": (norm > hypers["max_grad_norm"]).astype(jnp.float32)}
        return grads, metrics

    def sum_gradient(
        self, loss: Callable, policy: Any, state: PolicyState, hypers: Any, batch: Any
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Return (gradient of the summed loss, sums of its terms) over this device's valid transitions."""

        def loss_of(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            new = evaluate(policy, named(state.replace(params=params)), batch)
            # `where`, not a product: an invalid transition may hold infinities
            sums = lambda terms: {n: jnp.sum(jnp.where(batch.valid, rows, 0.0)) for n, rows in terms.items()}  # noqa: E731
            return loss(new, batch, policy.options(hypers), sums)

        return jax.grad(loss_of, has_aux=True)(state.params)

    def apply_if(self, take: jax.Array, step: Callable[[PolicyState], PolicyState], state: PolicyState) -> PolicyState:
        """Return step(state) if `take`, () bool, else the state."""
        return jax.tree.map(lambda new, old: jnp.where(take, new, old), step(state), state)

    def scan_minibatches(
        self, step: Callable, state: PolicyState, batch: Any, index: jax.Array, advantage: jax.Array | None
    ) -> tuple[PolicyState, Any]:
        """Scan step(state, stopped, minibatch) -> (state, stopped, output) over minibatches.

        Small arrays travel in one (packing.py), and parameters as one vector: each array would cost a kernel launch.

        Args:
            index: [steps, r], the transitions of each minibatch.
            advantage: [steps, r], replaces the batch's; or None.
        """
        rows = pack(batch.replace(carry=None), batch.valid.ndim, OBSERVATIONS)
        state = flatten(state)

        def turn(carry: tuple, taken: tuple) -> tuple[tuple, Packed]:
            index, advantage = taken
            minibatch = take_rows(rows, batch.carry, index)
            if advantage is not None:
                minibatch = minibatch.replace(advantage=advantage)
            state, stopped, output = step(*carry, minibatch)
            return (state, stopped), pack(output)

        (state, _), outputs = jax.lax.scan(turn, (state, jnp.bool_(False)), (index, advantage))
        return named(state), unpack(outputs)

    def permutation(self, key: jax.Array, size: int) -> jax.Array:
        """Return 0 .. size - 1 in random order, [size] int32: sorted by one random word each.

        `jax.random.permutation` sorts twice, to break ties: three pairs in 160,000.
        """
        words = jax.random.bits(key, (size,))
        return jax.lax.sort_key_val(words, jnp.arange(size, dtype=jnp.int32))[1]

    def scan(self, step: Callable, init: Any, rows: Any, reverse: bool = False) -> tuple[Any, Any]:
        """`jax.lax.scan` for steps of a few operations, in which rows of zeros after the last change nothing.

        At least two turns, all alike: XLA would fuse a single turn, and single steps beside whole turns, into every
        reader, which takes it seconds.
        """
        num_steps = len(jax.tree.leaves(rows)[0])
        num_turns = max(2, -(-num_steps // UNROLL))
        unroll = -(-num_steps // num_turns)
        extra = num_turns * unroll - num_steps
        pad = lambda leaf: jnp.pad(leaf, [(0, extra)] + [(0, 0)] * (leaf.ndim - 1))  # noqa: E731
        last, outputs = jax.lax.scan(step, init, jax.tree.map(pad, rows), reverse=reverse, unroll=unroll)
        return last, jax.tree.map(lambda leaf: leaf[:num_steps], outputs)

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
        ahead = Ahead(True, uniform_policies(setup)) if every else self.drawn_ahead(setup)
        env_key = jax.vmap(setup.replicas.draw_keys)(keys[:, 0]) if ahead.env else keys[:, 0]
        draws = {name: keys[:, 1 + i] for i, name in enumerate(setup.policies)}
        for name in ahead.policies:
            if name not in selves:
                draws[name] = draw_uniformly(setup, name, draws[name])
        return env_key, draws

    def drawn_ahead(self, setup: Any) -> "Ahead":
        """Return what is drawn before the rollout's loop."""
        return Ahead(False, ())

    def scan_steps(self, step: Callable, carry: Any, drawn: Any, unroll: int) -> tuple[Any, Any]:
        """`jax.lax.scan` over the steps of a rollout; what each returns travels in one array."""

        def packed(carry: Any, drawn: Any) -> tuple[Any, Packed]:
            carry, outcome = step(carry, drawn)
            return carry, pack(outcome, apart=OBSERVATIONS)

        carry, outcomes = jax.lax.scan(packed, carry, drawn, unroll=unroll)
        return carry, unpack(outcomes)

    def rollout(self, by_scan: Callable, given: Any, carry: tuple, keys: jax.Array) -> tuple[tuple, tuple]:
        """Return `by_scan(given, carry, keys)`, the reference rollout, or the same by other means."""
        return by_scan(given, carry, keys)


class Ahead(NamedTuple):
    """What is drawn before the rollout's loop: the environment's keys, and the actions' numbers of some policies."""

    env: bool
    policies: tuple[str, ...]


def take_rows(rows: Packed, carry: Any, index: jax.Array) -> Any:
    """Return the transitions (of a recurrent policy: the sequences) with these indices.

    Args:
        rows: a packed Batch without its carry; leaves [R, ...] or [T, M, ...].
        carry: the batch's.
        index: [r] int32.
    """
    axis = rows.words.ndim - 2
    batch = unpack(jax.tree.map(lambda leaf: jnp.take(leaf, index, axis, mode="clip"), rows))
    return batch.replace(carry=jax.tree.map(lambda leaf: leaf[index], carry))


def uniform_policies(setup: Any) -> tuple[str, ...]:
    """Return the policies whose actions follow from uniform numbers that can be drawn before."""
    uniform = lambda policy: policy.algorithm.takes_uniform and draws_by_uniform(policy.distribution)  # noqa: E731
    return tuple(name for name, policy in setup.policies.items() if uniform(policy))


def draw_uniformly(setup: Any, name: str, keys: jax.Array) -> jax.Array:
    """Return the uniform numbers by which a policy's categorical actions are chosen, [T, N, n, components]."""
    policy = setup.policies[name]
    size = {"num_envs": setup.replicas.num_envs, "num_agents": policy.assignment.num_agents}
    return jax.vmap(functools.partial(draw_uniform, policy.distribution, **size))(keys)
