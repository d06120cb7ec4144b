"""Everything that a run is, as one pytree, and the parts of a learner that stay fixed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from wdjax.checks import require_known
from wdjax.env import Env
from wdjax.train.config import PolicyConfig, Schedule, TrainConfig
from wdjax.train.distributions import Categorical, Distribution
from wdjax.train.networks import encode, split_mask
from wdjax.train.policies import Assignment
from wdjax.vector import VectorEnv, VectorState


@struct.dataclass
class ScheduleArrays:
    """A schedule as arrays: linear between its points, flat outside."""

    env_steps: jax.Array  # [points] float32, ascending
    values: jax.Array  # [points] float32

    def __call__(self, env_steps: jax.Array) -> jax.Array:
        """Returns the value after so many env steps of the run, a scalar."""
        return jnp.interp(env_steps, self.env_steps, self.values)


@struct.dataclass
class Hypers:
    """The traced hyperparameters of one policy; the fields of PolicyConfig that are marked so."""

    learning_rate: Any  # ScheduleArrays; after `at`, () float32, like the next two
    entropy_coefficient: Any
    value_coefficient: Any
    gamma: jax.Array
    gae_lambda: jax.Array
    clip: jax.Array
    value_clip: jax.Array
    max_grad_norm: jax.Array

    def at(self, env_steps: jax.Array) -> "Hypers":
        """Returns the hyperparameters with every schedule read off after so many env steps."""
        is_schedule = lambda leaf: isinstance(leaf, ScheduleArrays)  # noqa: E731
        return jax.tree.map(lambda leaf: leaf(env_steps) if is_schedule(leaf) else leaf, self, is_leaf=is_schedule)


@struct.dataclass
class PolicyState:
    """What one policy has learned."""

    params: Any  # of its network
    opt_state: Any  # of its optimizer; None where it is not trainable


@struct.dataclass
class TrainState:
    """Everything that a run is: going on from a restored copy equals never having stopped."""

    policies: dict[str, PolicyState]
    hypers: dict[str, Hypers]
    env_params: Any
    replicas: VectorState
    obs: dict[str, Any]  # by group, [N, n_group, ...]: the last observations
    live: dict[str, jax.Array]  # by group, [N, n_group] bool: has not terminated in this episode
    key: jax.Array
    num_updates: jax.Array  # () int32, updates done


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """The fixed part of a policy: who plays it, and how its parameters are read."""

    name: str
    config: PolicyConfig
    assignment: Assignment
    distribution: Distribution
    graphdef: nnx.GraphDef

    def apply(self, params: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
        """Returns (outputs [..., num_outputs], value [...]) for observations with any leading axes."""
        seen, mask = split_mask(obs)
        outputs, value = nnx.merge(self.graphdef, params)(encode(self.assignment.observation_space, seen))
        return outputs if mask is None else self.distribution.mask(outputs, mask), value

    def sample_uniform(self, key: jax.Array, outputs: jax.Array, obs: Any) -> jax.Array:
        """Draws every action that is allowed with equal probability, as many as there are rows of `outputs`."""
        if not isinstance(self.distribution, Categorical):
            space = self.assignment.action_space
            for size in reversed(outputs.shape[:-1]):
                space = space.batch(size)
            return space.sample(key)
        mask = split_mask(obs)[1]
        equal = jnp.zeros_like(outputs)
        return self.distribution.sample(key, equal if mask is None else self.distribution.mask(equal, mask))


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """The fixed part of a run: what its compiled program is made from."""

    config: TrainConfig
    env: Env
    env_params: Any
    replicas: VectorEnv
    policies: dict[str, Policy]

    @property
    def assignments(self) -> dict[str, Assignment]:
        return {name: policy.assignment for name, policy in self.policies.items()}


def make_hypers(config: PolicyConfig) -> Hypers:
    """Returns the traced hyperparameters of a policy as float32 arrays."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(Hypers)}
    schedules = ("learning_rate", "entropy_coefficient", "value_coefficient")
    return Hypers(**{
        name: _schedule_arrays(value) if name in schedules else jnp.float32(value) for name, value in fields.items()
    })  # fmt: skip


def with_hypers(state: TrainState, **changes: Any) -> TrainState:
    """Returns a state with other hyperparameters, also for a population.

        states = jax.vmap(learner.init)(jax.random.split(key, 8))
        states = with_hypers(states, **{"runner.learning_rate": jnp.logspace(-4, -2, 8)})

    Args:
        state: one state, or a population of them with a leading axis.
        **changes: "policy.hyperparameter" -> a number, or one for each member of the population ([members]).

    Raises:
        ValueError: for an unknown name, with the nearest right one, and for another number of members.
    """
    hypers = dict(state.hypers)
    known = {f"{policy}.{field.name}" for policy in hypers for field in dataclasses.fields(Hypers)}
    for name, value in changes.items():
        require_known("hyperparameter", name, known)
        policy, field = name.split(".")
        hypers[policy] = hypers[policy].replace(**{field: _like(name, getattr(hypers[policy], field), value)})
    return state.replace(hypers=hypers)


def _like(name: str, old: Any, value: Any) -> Any:
    value = jnp.asarray(value, jnp.float32)
    members = old.values.shape[:-1] if isinstance(old, ScheduleArrays) else old.shape
    if value.shape not in ((), members):
        allowed = f"one number, or one for each member, {members}" if members else "one number (this is one state)"
        raise ValueError(f"{name} has the shape {value.shape}: must be {allowed}")
    if not isinstance(old, ScheduleArrays):
        return jnp.broadcast_to(value, old.shape)
    return old.replace(values=jnp.broadcast_to(value[..., None], old.values.shape))


def _schedule_arrays(schedule: Schedule) -> ScheduleArrays:
    points = ((0.0, schedule),) if isinstance(schedule, (int, float)) else schedule
    return ScheduleArrays(*(jnp.array(column, jnp.float32) for column in zip(*points, strict=True)))


