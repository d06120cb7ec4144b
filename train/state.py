"""Everything that a run is, as one pytree, and the parts of a learner that stay fixed."""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from wdjax.checks import require_known
from wdjax.env import Env
from wdjax.train.config import PolicyConfig, Schedule, TrainConfig
from wdjax.train.distributions import Distribution
from wdjax.train.networks import batch_shape, split_mask
from wdjax.train.normalization import Normalizer, normalize_observation
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
class DDPGHypers:
    """The traced hyperparameters that only DDPG has; the fields of DDPGConfig that are marked so."""

    critic_learning_rate: Any  # ScheduleArrays; after `at`, () float32, like the next
    noise_scale: Any
    tau: jax.Array
    target_noise: jax.Array
    target_noise_clip: jax.Array
    noise_stddev: jax.Array
    noise_damping: jax.Array


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
    target_kl: jax.Array
    max_grad_norm: jax.Array
    past_selves_fraction: Any  # ScheduleArrays; after `at`, () float32; None where there are no earlier selves
    ddpg: DDPGHypers | None  # None for other algorithms

    def at(self, env_steps: jax.Array) -> "Hypers":
        """Returns the hyperparameters with every schedule read off after so many env steps."""
        is_schedule = lambda leaf: isinstance(leaf, ScheduleArrays)  # noqa: E731
        return jax.tree.map(lambda leaf: leaf(env_steps) if is_schedule(leaf) else leaf, self, is_leaf=is_schedule)


@struct.dataclass
class PolicyState:
    """What one policy has learned: the same on every device."""

    params: Any  # of its network
    opt_state: Any  # of its optimizer; None where it is not trainable
    normalizer: Normalizer | None = None  # of its inputs; None where it normalises nothing
    target_params: Any = None  # of its target networks; DDPG only, like the next
    gradient_steps: jax.Array | None = None  # () int32, done so far
    towers: Any = None  # params as its kernels read them (train/kernels/towers.py); within a rollout only
    past: Any = None  # PolicyState of earlier selves, leaves [past_selves, ...]; None where it keeps none


@struct.dataclass
class Memory:
    """What one policy keeps for every replica, split over devices with them; None where there is nothing to keep."""

    carry: Any  # [N, n, ...]: what acting hands from step to step (a recurrent state), emptied at an episode's end
    discounted_return: jax.Array | None  # [N, n] float32: gamma times the running sum, to normalise rewards
    replay: Any = None  # rows to learn from again (train/replay.py), leaves [N, ...] and [num_blocks, ...]
    member: jax.Array | None = None  # [num_blocks] int32: which self plays (train/self_play.py); None: always this one


@struct.dataclass
class TrainState:
    """Everything that a run is: going on from a restored copy equals never having stopped."""

    policies: dict[str, PolicyState]
    memory: dict[str, Memory]
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
    algorithm: Any  # an Algorithm (train/algorithms)
    distribution: Distribution  # of its actions, where the algorithm draws them
    graphdef: nnx.GraphDef
    encoder: type  # of its network: a name may stand for another class later (train/encoders.py)
    kernels: Any = None  # what fixes its kernels on a GPU (train/kernels/towers.py); None: it has none, or they are off

    def apply(self, state: PolicyState, obs: Any, carry: Any = None) -> tuple[jax.Array, jax.Array, Any]:
        """Returns (outputs [..., num_outputs], value [...], carry) for observations with any leading axes."""
        seen, mask = self.inputs(state, obs)
        outputs, value, carry = nnx.merge(self.graphdef, state.params)(seen, carry)
        return outputs if mask is None else self.distribution.mask(outputs, mask), value, carry

    def unroll(self, state: PolicyState, obs: Any, carry: Any, restart: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns (outputs [T, M, num_outputs], value [T, M]) of T steps in a row of a recurrent policy.

        Args:
            obs: leaves [T, M, ...].
            carry: leaves [M, ...], before the first step.
            restart: [T, M] bool, an episode begins with this step.
        """
        seen, mask = self.inputs(state, obs)
        outputs, value = nnx.merge(self.graphdef, state.params).unroll(seen, carry, restart)
        return outputs if mask is None else self.distribution.mask(outputs, mask), value

    def inputs(self, state: PolicyState, obs: Any) -> tuple[Any, jax.Array | None]:
        """Returns (what the network sees of observations, their action mask or None)."""
        seen, mask = split_mask(obs)
        if state.normalizer is not None:
            seen = normalize_observation(state.normalizer.obs, seen)
        return seen, mask

    def sample_uniform(self, key: jax.Array, obs: Any) -> jax.Array:
        """Draws every action that is allowed with equal probability, [N, n, ...], for observations [N, n, ...]."""
        mask, shape = split_mask(obs)[1], batch_shape(self.assignment.observation_space, obs)
        if mask is not None:
            return self.distribution.sample(key, self.distribution.mask(jnp.zeros(mask.shape), mask))
        space = self.assignment.action_space
        for size in reversed(shape):
            space = space.batch(size)
        return space.sample(key)


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """The fixed part of a run: what its compiled program is made from."""

    config: TrainConfig
    env: Env
    env_params: Any
    replicas: VectorEnv
    policies: dict[str, Policy]
    num_devices: int = 1  # that share the replicas (train/devices.py)

    @functools.cached_property
    def loaded(self) -> dict[str, PolicyState]:
        """What policies with a checkpoint begin with, by name, as NumPy arrays; read when first asked for."""
        from wdjax.train.warm_start import load_policies  # it imports this module

        with jax.ensure_compile_time_eval():  # also where somebody's jit or vmap is being traced
            return load_policies(self)

    @property
    def assignments(self) -> dict[str, Assignment]:
        return {name: policy.assignment for name, policy in self.policies.items()}


SCHEDULED = (
    "learning_rate", "entropy_coefficient", "value_coefficient", "past_selves_fraction", "critic_learning_rate",
    "noise_scale",
)  # fmt: skip


def make_hypers(config: PolicyConfig) -> Hypers:
    """Returns the traced hyperparameters of a policy as float32 arrays."""
    ddpg = DDPGHypers(**_hyper_arrays(DDPGHypers, config.ddpg)) if config.algorithm == "DDPG" else None
    hypers = Hypers(**_hyper_arrays(Hypers, config), ddpg=ddpg)
    return hypers if config.past_selves else hypers.replace(past_selves_fraction=None)


def _hyper_arrays(cls: type, config: Any) -> dict[str, Any]:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(cls) if field.name != "ddpg"}
    return {name: _schedule_arrays(v) if name in SCHEDULED else jnp.float32(v) for name, v in values.items()}


def current_hypers(config: TrainConfig, state: TrainState) -> dict[str, Hypers]:
    """Returns the hyperparameters of every policy with schedules read off at this point of the run."""
    env_steps = state.num_updates.astype(jnp.float32) * config.env_steps_per_update
    return {name: hypers.at(env_steps) for name, hypers in state.hypers.items()}


def with_hypers(state: TrainState, **changes: Any) -> TrainState:
    """Returns a state with other hyperparameters, also for a population.

        states = jax.vmap(learner.init)(jax.random.split(key, 8))
        states = with_hypers(states, **{"runner.learning_rate": jnp.logspace(-4, -2, 8)})

    Args:
        state: one state, or a population of them with a leading axis.
        **changes: "policy.hyperparameter" -> a number, or one for each member of the population ([members]); DDPG's own
            are "policy.ddpg.tau" and so on.

    Raises:
        ValueError: for an unknown name, with the nearest right one, and for another number of members.
    """
    hypers = dict(state.hypers)
    known = {f"{policy}.{name}" for policy, own in hypers.items() for name in hyper_names(own)}
    for name, value in changes.items():
        require_known("hyperparameter", name, known)
        policy, field = name.split(".", 1)
        new = _like(name, operator.attrgetter(field)(hypers[policy]), value)
        hypers[policy] = _replace_dotted(hypers[policy], field, new)
    return state.replace(hypers=hypers)


def hyper_names(hypers: Any) -> list[str]:
    """Returns the names of the traced hyperparameters of a policy; those of a nested struct are dotted, "ddpg.tau"."""
    names = []
    for field in dataclasses.fields(hypers):
        value = getattr(hypers, field.name)
        if isinstance(value, DDPGHypers):
            names += [f"{field.name}.{inner}" for inner in hyper_names(value)]
        elif value is not None:
            names.append(field.name)
    return names


def _replace_dotted(hypers: Any, name: str, value: Any) -> Any:
    field, _, inner = name.partition(".")
    return hypers.replace(**{field: _replace_dotted(getattr(hypers, field), inner, value) if inner else value})


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
