"""Check of custom recurrent networks, before anything is trained."""

import jax
import jax.numpy as jnp

from wdjax.checks import require
from wdjax.spaces import sample_shapes
from wdjax.train.state import Policy, PolicyState
from wdjax.train.state.actors import require_carry
from wdjax.train.state.aliases import Carry, Observation


def require_sequences(policy: Policy, state: PolicyState) -> None:
    """Raise TypeError unless a recurrent network accepts and returns the carry of `init_carry`.

    Only shapes are computed: of a step, and of `unroll` with two steps.

    Args:
        policy: static part of the policy.
        state: shapes of its state.
    """
    carry = jax.eval_shape(lambda: policy.algorithm.init_carry(policy, 3))
    axes = (3, policy.assignment.num_agents)
    obs = sample_shapes(policy.assignment.observation_space, axes)

    def unroll(state: PolicyState, obs: Observation, carry: Carry) -> tuple[jax.Array, jax.Array]:
        steps = jax.tree.map(lambda leaf: jnp.stack([leaf[:, 0], leaf[:, 0]]), obs)
        carry = jax.tree.map(lambda leaf: leaf[:, 0], carry)
        return policy.unroll(state, steps, carry, jnp.zeros((2, 3), bool), carry)

    try:
        *step, after = jax.eval_shape(policy.apply, state, obs, carry)
    except Exception as error:  # of any kind: it is the user's code
        given = jax.tree.map(lambda leaf: jax.typeof(leaf).str_short(), carry)
        text = f"policies.{policy.name}: its network does not accept the carry of init_carry"
        raise TypeError(f"{text}, {given}: {error}") from error
    require_carry(policy, "its network", carry, after)
    unrolled = jax.eval_shape(unroll, state, obs, carry)
    expected = [(2, 3, *leaf.shape[2:]) for leaf in step]
    shapes = [leaf.shape for leaf in unrolled]
    allowed = f"{expected}, outputs and value of 2 steps of 3 sequences"
    require(shapes == expected, f"policies.{policy.name}: shapes of unroll", shapes, allowed)
