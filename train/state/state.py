"""Everything that a run is, as one pytree."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.tables import html_table
from wdjax.train.config.schema import TrainConfig
from wdjax.train.state.hypers import Hypers, changed_hypers
from wdjax.train.state.normalization import Normalizer
from wdjax.vector import VectorState


class PolicyState(struct.PyTreeNode):
    """What one policy has learned: the same on every device."""

    params: Any  # of its network
    opt_state: Any  # of its optimizer; None where it is not trainable
    normalizer: Normalizer | None = None  # of its inputs; None where it normalises nothing
    target_params: Any = None  # of its target networks; DDPG only, like the next
    gradient_steps: jax.Array | None = None  # () int32, done so far
    own: Any = None  # whatever else an algorithm of one's own learns
    past: Any = None  # PolicyState of earlier selves, and then of other runs, leaves [members, ...]; None without any
    standings: Any = None  # who of them is beaten how often (rollout/standings.py); None: nobody asks


class Memory(struct.PyTreeNode):
    """What one policy keeps for every replica, split over devices with them; None where there is nothing to keep."""

    carry: Any  # [N, n, ...]: what acting hands from step to step (a recurrent state), emptied at an episode's end
    discounted_return: jax.Array | None  # [N, n] float32: gamma times the running sum, to normalise rewards
    replay: Any = None  # rows to learn from again (algorithms/ddpg/replay.py), leaves [N, ...] and [num_blocks, ...]
    member: jax.Array | None = None  # [num_blocks] int32: who plays (rollout/self_play.py); None: always this one
    since: jax.Array | None = None  # [num_blocks] int32: env steps that it has played; None: nobody asks
    own: Any = None  # whatever else an algorithm of one's own keeps, leaves [N, ...]


class TrainState(struct.PyTreeNode):
    """Everything that a run is: going on from a restored copy equals never having stopped."""

    policies: dict[str, PolicyState]  # by policy: what it has learned
    memory: dict[str, Memory]  # by policy: what it keeps for every replica
    hypers: dict[str, Hypers]  # by policy: what is traced of its configuration
    env_params: Any  # of all replicas
    replicas: VectorState  # of N = num_envs games
    obs: dict[str, Any]  # by group, [N, n_group, ...]: the last observations
    live: dict[str, jax.Array]  # by group, [N, n_group] bool: is not through with this episode
    key: jax.Array  # of all that is still to be drawn
    num_updates: jax.Array  # () int32, updates done

    def _repr_html_(self) -> str:
        size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
        parameters = {f"parameters of {name}": f"{size(own.params):,}" for name, own in self.policies.items()}
        memory = f"{sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self)) / 2**20:,.1f} MiB"
        obs = {f"obs of {group}": own for group, own in self.obs.items()}
        rows = {"updates done": self.num_updates, **parameters, **obs, "in memory": memory}
        return html_table(rows.items(), caption="TrainState")


def current_hypers(config: TrainConfig, state: TrainState) -> dict[str, Hypers]:
    """Returns the hyperparameters of every policy with schedules read off at this point of the run."""
    env_steps = state.num_updates.astype(jnp.float32) * config.env_steps_per_update
    return {name: hypers.at(env_steps) for name, hypers in state.hypers.items()}


def with_hypers(state: TrainState, **changes: Any) -> TrainState:
    """Returns a state with other hyperparameters, also for a population::

        states = jax.vmap(learner.init)(jax.random.split(key, 8))
        states = with_hypers(states, **{"runner.learning_rate": jnp.logspace(-4, -2, 8)})

    Args:
        state: one state, or a population of them with a leading axis.
        **changes: "policy.hyperparameter" -> a number, or one for each member of the population ([members]); DDPG's own
            are "policy.ddpg.tau" and so on.

    Raises:
        ValueError: for an unknown name, with the nearest right one, for a number that the field may not have, and for
            another number of members.
        TypeError: for what is no number.
    """
    return state.replace(hypers=changed_hypers(state.hypers, changes))
