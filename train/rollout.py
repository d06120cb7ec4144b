"""A rollout: every policy acts in every replica for `rollout_length` steps, as one scan."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.spaces import Box
from wdjax.train import self_play
from wdjax.train.blocks import block_keys
from wdjax.train.collectives import num_shards
from wdjax.train.distributions import Categorical, Distribution
from wdjax.train.packing import Packed, pack, unpack
from wdjax.train.policies import from_groups, gather, gather_observation, scatter, to_groups
from wdjax.train.state import Hypers, Policy, PolicyState, Setup, TrainState, current_hypers
from wdjax.vector import select, when_any

FEW_REPLICAS = 256
"""up to so many on a CPU all that is drawn is drawn ahead: of cartpole 64 are faster for it, 1,000 slower"""


@struct.dataclass
class Rows:
    """What one policy's agents did: leaves [T, N, n, ...], T steps of N replicas with n agents of this policy."""

    obs: Any  # what the action was chosen on
    action: jax.Array
    reward: jax.Array  # float32, for the action
    terminated: jax.Array  # bool, the agent's game ended in this step or before
    live: jax.Array  # bool, the agent had not terminated before this step (and was not played by an earlier self)
    # on-policy algorithms:
    log_prob: jax.Array | None = None  # float32, of the action when it was drawn; PPO only
    value: jax.Array | None = None  # float32, V(obs)
    final_value: jax.Array | None = None  # float32, V(final obs) where truncated, else 0; None: nothing truncates
    # off-policy algorithms, and feed-forward ones where something truncates:
    next_obs: Any = None  # what the agent saw after the step, before any reset


@struct.dataclass
class Rollout:
    """The rows of the policies that learn, and the episodes that ended."""

    rows: dict[str, Rows]
    first_carry: dict[str, Any]  # [N, n, ...], what each policy carried into the first row
    last_carry: dict[str, Any]  # and out of the last
    last_obs: dict[str, Any]  # [N, n, ...], the observations after the last row
    over: jax.Array  # [T, N] bool, an episode ended in this step; what follows is valid where it is true
    episode_return: dict[str, jax.Array]  # by policy, [T, N] float32, summed over its agents
    episode_length: jax.Array  # [T, N] int32
    episode_info: dict[str, jax.Array]  # [T, N], the environment's own statistics


def rollout(setup: Setup, state: TrainState, key: jax.Array) -> tuple[TrainState, Rollout]:
    """Plays `rollout_length` steps in every replica. Returns the state after them and what happened."""
    from wdjax.train.kernels.rollout import may_be_a_kernel, play_by_kernel  # it imports this module

    config = setup.config
    hypers = current_hypers(config, state)
    keys = step_keys(key, config.rollout_length, 1 + len(setup.policies), config.blocks // num_shards())
    state, selves = choose_selves(setup, state, hypers, key)
    first_carry = {name: memory.carry for name, memory in state.memory.items()}
    carry = (state.replicas, state.obs, state.live, first_carry)
    play = functools.partial(play_by_scan, setup, state.policies, hypers, state.env_params, selves)
    if may_be_a_kernel(setup):
        play = functools.partial(play_by_kernel, setup, state.policies, hypers, state.env_params, play)
    (replicas, obs, live, carries), (rows, episodes) = play(carry, keys)
    last_obs = {name: gather_observation(policy.assignment, obs) for name, policy in setup.policies.items()}
    memory = {name: old.replace(carry=carries[name]) for name, old in state.memory.items()}
    state = state.replace(replicas=replicas, obs=obs, live=live, memory=memory)
    return state, Rollout(rows, first_carry, carries, last_obs, *episodes)


def play_by_scan(
    setup: Setup,
    policies: Mapping[str, PolicyState],
    hypers: Mapping[str, Hypers],
    env_params: Any,
    selves: Mapping[str, self_play.Selves],
    carry: tuple,
    keys: jax.Array,
) -> tuple[tuple, tuple]:
    """All steps of a rollout, keys [T, 1 + policies, num_blocks]; see play_step. Returns leaves [T, N, ...]."""
    players = {name: own.algorithm.before_rollout(own, policies[name]) for name, own in setup.policies.items()}

    def step(carry: tuple, drawn: tuple) -> tuple[tuple, Packed]:
        carry, notes = play_step(setup, players, hypers, env_params, carry, *drawn, selves)
        return carry, pack(notes)

    drawn = draw_ahead(setup, players, selves, keys)
    carry, packed = jax.lax.scan(step, carry, drawn, unroll=setup.config.rollout_unroll)
    return carry, unpack(packed)


def draw_ahead(
    setup: Setup, players: Mapping[str, PolicyState], selves: Mapping[str, self_play.Selves], keys: jax.Array
) -> tuple[Any, dict[str, jax.Array]]:
    """Draws what can be drawn before the scan: on GPUs numbers that kernels take, and where all policies have them the
    keys of the replicas, which cost launches in every step; on a CPU with few replicas the numbers of all categorical
    actions, and the keys. There XLA wakes a thread in every turn of a loop in which more than eight operations are
    ready at once; of a few replicas that can cost more than the step does.

    Args:
        keys: [T, 1 + policies, num_blocks].

    Returns:
        (`env_key`, `draws`) of play_step, each with a leading [T].
    """
    all_ahead = jax.default_backend() == "cpu" and setup.replicas.num_envs <= FEW_REPLICAS
    have_towers = all(player.towers is not None for player in players.values())
    env_key = jax.vmap(setup.replicas.draw_keys)(keys[:, 0]) if all_ahead or have_towers else keys[:, 0]
    draws = {name: keys[:, 1 + i] for i, name in enumerate(setup.policies)}
    for name, policy in setup.policies.items():
        takes = players[name].towers is not None or (all_ahead and isinstance(policy.distribution, Categorical))
        if takes and name not in selves:
            draws[name] = draw_uniforms(policy, draws[name], setup.replicas.num_envs)
    return env_key, draws


def choose_selves(
    setup: Setup, state: TrainState, hypers: Mapping[str, Hypers], key: jax.Array
) -> tuple[TrainState, dict[str, self_play.Selves]]:
    """Draws who plays the policies that keep earlier selves. Returns (state, selves of these policies)."""
    memory, selves = dict(state.memory), {}
    for i, (name, policy) in enumerate(setup.policies.items()):
        if policy.config.past_selves:
            own_key = jax.random.fold_in(key, 2**31 + i)  # far from the blocks' own
            fraction = hypers[name].past_selves_fraction
            num_blocks = setup.config.blocks // num_shards()
            selves[name] = self_play.draw_selves(state.policies[name], fraction, own_key, num_blocks)
            memory[name] = self_play.take_over(memory[name], selves[name])
    return state.replace(memory=memory), selves


def play_step(
    setup: Setup,
    policies: Mapping[str, PolicyState],
    hypers: Mapping[str, Hypers],
    env_params: Any,
    carry: tuple,
    env_key: Any,
    draws: Mapping[str, jax.Array],
    selves: Mapping[str, self_play.Selves] = MappingProxyType({}),
) -> tuple:
    """One step of all replicas, the body of the scan.

    Args:
        policies, hypers: of each policy; schedules read off.
        carry: (replicas, obs, live) as in TrainState, and what each policy carries from step to step.
        env_key: [num_blocks], the environment's, or what `VectorEnv.draw_keys` drew from it.
        draws: by policy, [num_blocks] keys, or what else its actions are drawn by (`sample_blocks`).
        selves: who plays those policies that keep earlier selves.

    Returns:
        (carry, (rows by policy, episodes)), see Rollout.
    """
    replicas, obs, live, carries = carry
    drafts, carries = choose_actions(setup, policies, hypers, obs, carries, draws, selves)
    carry = (replicas, obs, live, carries)
    return advance(setup, policies, env_params, carry, drafts, env_key, selves)


def choose_actions(
    setup: Setup,
    policies: Mapping[str, PolicyState],
    hypers: Mapping[str, Hypers],
    obs: Mapping[str, Any],
    carries: Mapping[str, Any],
    draws: Mapping[str, jax.Array],
    selves: Mapping[str, self_play.Selves] = MappingProxyType({}),
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What every policy does now. Returns (by policy, fields of Rows: obs, action and what is noted of it; carries).

    Args:
        draws: by policy, what its actions are drawn by (`sample_blocks`).
    """
    drafts, carries_after = {}, {}
    for name, policy in setup.policies.items():
        seen = gather_observation(policy.assignment, obs)
        act, player = policy.algorithm.act, policies[name]
        if name in selves:
            act, player = self_play.act, selves[name]
        action, notes, carries_after[name] = act(policy, player, carries[name], seen, draws[name], hypers[name])
        drafts[name] = {"obs": seen, "action": action, **notes}
    return drafts, carries_after


def advance(
    setup: Setup,
    policies: Mapping[str, PolicyState],
    env_params: Any,
    carry: tuple,
    drafts: Mapping[str, dict[str, Any]],
    key: Any,
    selves: Mapping[str, self_play.Selves] = MappingProxyType({}),
) -> tuple:
    """What follows from the actions of all policies, `drafts` of `choose_actions`; see play_step.

    Args:
        carry: as play_step has it, but for what the policies carry: that of `choose_actions`.
        key: of the environment, [num_blocks], or what `VectorEnv.draw_keys` drew from it.
    """
    replicas, _, live, carries = carry
    actions = {name: draft["action"] for name, draft in drafts.items()}
    played = step_replicas(setup, key, replicas, actions, env_params)
    next_obs, replicas, reward, terminated, truncated, info = played
    over = info["over"]
    rows = {}
    for name, policy in setup.policies.items():
        if not policy.config.trainable:
            continue
        cut = gather(policy.assignment, truncated) if setup.env.can_truncate else None
        final_obs = gather_observation(policy.assignment, info["final_obs"])
        rows[name] = Rows(
            **drafts[name],
            reward=gather(policy.assignment, reward),
            terminated=gather(policy.assignment, terminated),
            live=learning_rows(policy, live, selves),
            **policy.algorithm.end_of_step(policy, policies[name], carries[name], final_obs, cut),
        )
    returns = {
        name: gather(policy.assignment, info["episode_return"]).sum(axis=1) for name, policy in setup.policies.items()
    }
    live = jax.tree.map(lambda flag: ~flag | over[:, None], terminated)
    carries = select(over, jax.tree.map(jnp.zeros_like, carries), carries)
    carry = (replicas, next_obs, live, carries)
    return carry, (rows, (over, returns, info["episode_length"], info["episode_info"]))


def learning_rows(policy: Policy, live: Mapping[str, jax.Array], selves: Mapping[str, self_play.Selves]) -> jax.Array:
    """Returns which rows a policy learns from, [N, n] bool: of live agents, in replicas that it plays itself."""
    own = gather(policy.assignment, live)
    return self_play.learned_from(own, selves[policy.name]) if policy.name in selves else own


def step_replicas(
    setup: Setup, keys: Any, replicas: Any, actions: Mapping[str, jax.Array], env_params: Any
) -> tuple:
    """`VectorEnv.step` with actions by policy ([N, n, ...]), and everything it returns by group ([N, n_group, ...])."""
    inside = {name: clip_action(policy, actions[name]) for name, policy in setup.policies.items()}
    action = from_groups(setup.env, scatter(setup.assignments, inside))
    step = setup.replicas.step_with_keys if isinstance(keys, tuple) else setup.replicas.step
    obs, replicas, *flags, info = step(keys, replicas, action, env_params)
    by_group = {name: to_groups(setup.env, info[name]) for name in ("final_obs", "episode_return")}
    reward, terminated, truncated = (to_groups(setup.env, flag) for flag in flags)
    return to_groups(setup.env, obs), replicas, reward, terminated, truncated, {**info, **by_group}


def clip_action(policy: Policy, action: jax.Array) -> jax.Array:
    """Returns the nearest action inside a Box; discrete actions are inside their space anyway."""
    space = policy.assignment.action_space
    return space.clip(action) if isinstance(space, Box) else action


def final_value(
    policy: Policy, state: PolicyState, carry: Any, final_obs: Any, truncated: jax.Array
) -> jax.Array:
    """Returns V(final obs) of the agents that a time limit cut off, 0 elsewhere; free where there are none.

    Args:
        carry: what a recurrent policy carried out of the step, before the reset.
        final_obs: [N, n, ...] of one step, or [T, N, n, ...] of all; so is the value.
        truncated: bool, likewise.
    """

    def evaluate(current: jax.Array, state: PolicyState, obs: Any, carry: Any, truncated: jax.Array) -> jax.Array:
        return jnp.where(truncated, policy.apply(state, obs, carry)[1], current)

    nothing = jnp.zeros(truncated.shape)
    return when_any(truncated, evaluate, nothing, state, final_obs, carry, truncated)


def with_final_value(policy: Policy, state: PolicyState, rows: Rows, over: jax.Array) -> Rows:
    """Returns rows [T, N, n] with V(next_obs) of those that a time limit cut off, where no step has found it yet."""
    if rows.next_obs is None or rows.final_value is not None:
        return rows
    truncated = over[..., None] & ~rows.terminated
    return rows.replace(final_value=final_value(policy, state, None, rows.next_obs, truncated), next_obs=None)


def next_values(rows: Rows, last_value: jax.Array, over: jax.Array) -> jax.Array:
    """Returns [T, N, n] V of the observation after each row: of the final one where the episode is over.

    Args:
        last_value: [N, n] V of the observations after the last row.
        over: [T, N] bool.
    """
    value_tp1 = jnp.concatenate([rows.value[1:], last_value[None]])
    if rows.final_value is None:  # every end is a termination: what follows is worth nothing
        return value_tp1
    return jnp.where(over[..., None], rows.final_value, value_tp1)


def step_keys(key: jax.Array, num_steps: int, num_draws: int, num_blocks: int) -> jax.Array:
    """Returns [num_steps, num_draws, num_blocks] keys, those of a block from fold_in(key, block) alone.

    They are drawn at once, before the scan: a split inside it costs kernels in every step.
    """
    keys_of_blocks = block_keys(key, num_blocks)
    keys = jax.vmap(lambda key: jax.random.split(key, (num_steps, num_draws)))(keys_of_blocks)
    # the axes of the data are moved: jax.debug_key_reuse takes a transposition of typed keys for their use
    data = jnp.moveaxis(jax.random.key_data(keys), 0, 2)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def sample_blocks(distribution: Distribution, keys: jax.Array, outputs: jax.Array) -> jax.Array:
    """Draws actions [N, n, ...] for outputs [N, n, K], each block of replicas with its own of the [B] keys.

    In the place of keys there may be what `draw_uniform` drew from them.
    """
    if keys.dtype == jnp.float32:
        return distribution.choose(keys, outputs)
    blocks = outputs.reshape(keys.shape[0], -1, *outputs.shape[1:])
    actions = jax.vmap(distribution.sample)(keys, blocks)
    return actions.reshape(outputs.shape[0], *actions.shape[2:])


def draw_uniforms(policy: Policy, keys: jax.Array, num_envs: int) -> jax.Array:
    """Returns what `draw_uniform` draws for a policy in all steps, [T, N, n, components], from keys [T, B]."""
    draw = functools.partial(
        draw_uniform, policy.distribution, num_envs=num_envs, num_agents=policy.assignment.num_agents
    )
    return jax.vmap(draw)(keys)


def draw_uniform(distribution: Categorical, keys: jax.Array, num_envs: int, num_agents: int) -> jax.Array:
    """Returns the numbers in [0, 1) by which `sample_blocks` chooses actions, [N, n, components], from [B] keys."""
    shape = (num_envs // keys.shape[0], num_agents, len(distribution.sizes))
    return jax.vmap(lambda key: jax.random.uniform(key, shape))(keys).reshape(num_envs, *shape[1:])
