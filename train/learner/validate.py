"""What a TrainConfig may hold: checked before anything is traced."""

from typing import Any

from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.spaces import LARGEST, Dict
from wdjax.train.config.env_params import make_env
from wdjax.train.config.facts import require_allowed, require_taken
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.networks.distributions import Categorical, make_distribution
from wdjax.train.networks.encoders import MASK, check_options, encoder_class, require_layout
from wdjax.train.state.agents import Assignment, assign_agents, group_sizes
from wdjax.train.state.registry import find_algorithm


def validate(config: TrainConfig) -> tuple[Env, Any, dict[str, Assignment]]:
    """Checks a configuration whole. Returns (env, env_params, assignments), which the checks have built anyway.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed.
    """
    require_allowed("", config)
    steps = config.total_env_steps
    most = LARGEST * config.env_steps_per_update
    require(steps <= most, "total_env_steps", steps, f"at most {most}, 2**31 - 1 updates: they are counted in int32")
    divides = config.num_envs % config.blocks == 0
    require(divides, "num_blocks", config.blocks, f"a divisor of num_envs = {config.num_envs}")
    fits = config.devices >= 0 and config.blocks % (config.devices or 1) == 0
    require(fits, "devices", config.devices, f"a divisor of num_blocks = {config.blocks} (0: the largest there is)")
    if not isinstance(config.reset, str):
        allowed = "'fresh', 'fixed' or at least 1 start, below 2**31"
        require(1 <= config.reset <= LARGEST, "reset", config.reset, allowed)
    require(len(config.policies) > 0, "policies", config.policies, "at least one policy")
    env, params = make_env(config)
    agents = sum(group_sizes(env).values())
    factors = f"num_envs {config.num_envs} x rollout_length {config.rollout_length} x agents {agents}"
    rows = config.env_steps_per_update * agents
    require(rows <= LARGEST, "rows of a rollout", rows, f"below 2**31: {factors}")
    for name, policy in config.policies.items():
        require(name and "/" not in name and "." not in name, "policies", name, "a name without '/' and '.'")
        _validate_policy(name, policy)
    assignments = assign_agents(env, params, config.policies)
    for name, assignment in assignments.items():
        policy = config.policies[name]
        algorithm = find_algorithm(policy.algorithm)
        alone = policy.past_selves > 0 and len(config.policies) == 1
        require(not alone, f"policies.{name}.past_selves", policy.past_selves, "0 where there is no other policy")
        words = f"at least 2, as policies.{name} has past_selves: in a block either these play or itself"
        require(not policy.past_selves or config.blocks >= 2, "num_blocks", config.blocks, words)
        require_layout(f"policies.{name}.network", policy.network, env)
        algorithm.check(name, config, assignment)
        require_taken(f"policies.{name}", policy, algorithm.takes, policy.algorithm)
        _validate_mask(name, policy, assignment)
        _validate_batch(config, name, assignment)
    best = config.best_by
    if best is not None:
        require_known("best_metric", best, [f"{name}/episode_return" for name in config.policies])
    return env, params, assignments


def _validate_policy(name: str, policy: PolicyConfig) -> None:
    path = f"policies.{name}"
    frozen = policy.past_selves and not policy.trainable
    require_allowed(f"{path}.", policy, find_algorithm(policy.algorithm).takes)
    require(not frozen, f"{path}.past_selves", policy.past_selves, "0 where trainable is false: it is always the same")
    check_options(f"{path}.network", policy.network)
    raw = getattr(encoder_class(policy.network.encoder), "needs_raw", False)
    shifted = policy.normalize_observation and raw
    require(not shifted, f"{path}.normalize_observation", True, f"false with the encoder {policy.network.encoder!r}")


def _validate_mask(name: str, policy: PolicyConfig, assignment: Assignment) -> None:
    """Refuses an action mask that does not fit the action space, or that stands inside a part of the observation."""
    space, observation = assignment.action_space, assignment.observation_space
    for part, inner in observation.spaces.items() if isinstance(observation, Dict) else ():
        if _has_mask(inner):
            raise ValueError(f"policies.{name}: {MASK} inside observation[{part!r}]: must stand at the top, beside it")
    has_mask = isinstance(observation, Dict) and MASK in observation.spaces
    if policy.decisions_only and not has_mask:
        group = assignment.segments[0].group
        words = f"the observations of group {group!r} have no {MASK}: every row decides"
        raise ValueError(f"policies.{name}.decisions_only = True: {words}")
    if has_mask:
        distribution = make_distribution(space, policy.action_distribution)
        if not isinstance(distribution, Categorical):
            raise TypeError(f"policies.{name}: its observation has an {MASK}, but actions in {space} cannot be masked")
        shape, size = observation[MASK].shape, distribution.num_outputs
        require(shape == (size,), f"policies.{name}: shape of {MASK}", shape, f"({size},), an entry for each choice")


def _has_mask(space: Any) -> bool:
    return isinstance(space, Dict) and (MASK in space.spaces or any(map(_has_mask, space.spaces.values())))


def _validate_batch(config: TrainConfig, name: str, assignment: Assignment) -> None:
    policy = config.policies[name]
    replicas, agents = config.num_envs // config.blocks, assignment.num_agents
    factors = f"num_envs / num_blocks {replicas} x agents {agents}"
    rows, what = replicas * agents, f"the sequences of a block ({factors})"
    if not policy.network.recurrent_size:
        rows *= config.rollout_length
        what = f"the rows of a block (rollout_length {config.rollout_length} x {factors})"
    divides = rows % policy.minibatches == 0
    require(divides, f"policies.{name}.minibatches", policy.minibatches, f"a divisor of {rows}, {what}")
