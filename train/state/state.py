"""The training state, as one pytree."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
from flax import struct

from wdjax.tables import html_table
from wdjax.train.config.schema import TrainConfig
from wdjax.train.state.aliases import Carry, EnvParams, Extra, Observation, OptState, Params, PyTree
from wdjax.train.state.hypers import Hypers, changed_hypers, schedule_arrays
from wdjax.train.state.normalization import Normalizer
from wdjax.vector import VectorState


class PolicyState(struct.PyTreeNode):
    """The learned part of a policy, equal on all devices.

    Attributes:
        params: network parameters, a nested dict of float32 arrays.
        opt_state: state of the optimizer; None if the policy is not trainable.
        normalizer: running statistics of observations and rewards; None if they are not normalized.
        target_params: parameters of a target network; None unless the algorithm has one, as DDPG.
        gradient_steps: () int32, gradient steps taken; None unless the algorithm counts them, as
            DDPG.
        own: additional state of a custom algorithm, any pytree of arrays.
    """

    params: Params
    opt_state: OptState | None
    normalizer: Normalizer | None = None
    target_params: Params | None = None
    gradient_steps: jax.Array | None = None
    own: Extra = None


class Memory(struct.PyTreeNode):
    """The part of a policy's state that belongs to replicas, sharded over devices with them.

    Attributes:
        carry: carry of `act`, leaves [N, n, ...], reset in every episode; or None.
        discounted_return: [N, n] float32, gamma times the running sum of rewards, to normalize
            rewards; or None.
        replay: replay buffer (`new_replay`), leaves [N, ...] and [num_blocks, ...]; or None.
        own: additional memory of a custom algorithm, leaves [N, ...] or a `Replay`; or None.
    """

    carry: Carry
    discounted_return: jax.Array | None
    replay: PyTree = None
    own: Extra = None


PRESENT = -1  # no opponent: the policy itself acts
REPLACED = -2  # the opponent was a snapshot that has been replaced


class PoolState(struct.PyTreeNode):
    """The opponents of a policy (rollout/opponents.py), equal on all devices."""

    # acting states of snapshots, then of other runs, leaves [networks, ...]
    networks: PolicyState | None
    # win rates against the opponents, `Standings` (rollout/pool.py); None if not recorded
    standings: PyTree = None


class BlockState(struct.PyTreeNode):
    """The opponent in each block of replicas, sharded with them."""

    active: jax.Array  # [num_blocks] int32: number of the opponent, PRESENT or REPLACED
    # [num_blocks] int32: env steps since it changed; None if not recorded
    since: jax.Array | None = None


class Opponents(struct.PyTreeNode):
    """The opponents of every policy that has some."""

    pools: dict[str, PoolState]
    blocks: dict[str, BlockState]


class TrainState(struct.PyTreeNode):
    """The complete state of a run. Training from a restored copy equals uninterrupted training.

    Attributes:
        policies: learned state by policy.
        memory: state per replica by policy.
        opponents: opponents that replace policies in some replicas, with their networks and win
            rates.
        hypers: traced hyperparameters by policy, and by team.
        env_params: parameters of the environment, shared by all replicas.
        replicas: states of the N = num_envs replicas.
        obs: latest observations by group, leaves [N, n_group, ...].
        live: [N, n_group] bool by group, agents that are active in their episode.
        key: () random key for the rest of the run.
        num_updates: () int32, updates done.
        shared: state that a team shares, by team; only teams with one.
    """

    policies: dict[str, PolicyState]
    memory: dict[str, Memory]
    opponents: Opponents
    hypers: dict[str, Hypers]
    env_params: EnvParams
    replicas: VectorState
    obs: dict[str, Observation]
    live: dict[str, jax.Array]
    key: jax.Array
    num_updates: jax.Array
    shared: dict[str, PolicyState] = struct.field(default_factory=dict)

    def _repr_html_(self) -> str:
        size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
        num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))
        rows = {
            "updates done": self.num_updates,
            **{
                f"parameters of {name}": f"{size(own.params):,}"
                for name, own in self.policies.items()
            },
            **{f"obs of {group}": own for group, own in self.obs.items()},
            "in memory": f"{num_bytes / 2**20:,.1f} MiB",
        }
        return html_table(rows.items(), caption="TrainState")


def current_env_params(config: TrainConfig, params: EnvParams, num_updates: jax.Array) -> EnvParams:
    """Return the parameters of the environment after `num_updates` of the run.

    Args:
        config: configuration of the run, with schedules in env steps.
        params: parameters of the environment; those with a schedule are replaced.
        num_updates: () int32.
    """
    env_steps = num_updates.astype(jnp.float32) * config.env_steps_per_update
    values = {name: schedule_arrays(own)(env_steps) for name, own in config.env_schedules.items()}
    changes = {name: value.astype(getattr(params, name).dtype) for name, value in values.items()}
    return dataclasses.replace(params, **changes) if changes else params


def current_hypers(config: TrainConfig, state: TrainState) -> dict[str, Hypers]:
    """Return the hyperparameters of every policy and its team at this point of the run."""
    env_steps = state.num_updates.astype(jnp.float32) * config.env_steps_per_update
    now = {name: hypers.at(env_steps) for name, hypers in state.hypers.items()}
    for name, team in config.teams.items():
        now |= {
            policy: Hypers({**now[name], **now[policy]}, now[name].options)
            for policy in team.policies
        }
    return now


def with_hypers(state: TrainState, **changes: chex.ArrayTree) -> TrainState:
    """Return a state with changed hyperparameters.

    Also for populations:

        states = jax.vmap(learner.init)(jax.random.split(key, 8))
        states = with_hypers(states, **{"runner.learning_rate": jnp.logspace(-4, -2, 8)})

    Args:
        state: a state, or a population of states with a leading axis.
        **changes: "policy.hyperparameter" -> a number, or numbers [members] for a population.

    Raises:
        ValueError: if a name is unknown (the message has the closest name), a number is out of
            range, or the number of values differs from the number of members.
        TypeError: if a value is not numeric.
    """
    return state.replace(hypers=changed_hypers(state.hypers, changes))
