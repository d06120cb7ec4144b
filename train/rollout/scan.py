"""Rollouts: policies act in all replicas for `rollout_length` steps, in one scan."""

import dataclasses

import jax

from wdjax.train.devices.blocks import step_keys
from wdjax.train.devices.collectives import num_shards
from wdjax.train.rollout.opponents import begin
from wdjax.train.rollout.step import StepInputs, play_step
from wdjax.train.state.agents import gather_observation
from wdjax.train.state.policy import Setup
from wdjax.train.state.rows import Rollout
from wdjax.train.state.state import TrainState, current_hypers


def rollout(setup: Setup, state: TrainState, key: jax.Array) -> tuple[TrainState, Rollout]:
    """Step every replica `rollout_length` times. Return the state after them and the rollout."""
    config = setup.config
    hypers = current_hypers(config, state)
    keys = step_keys(
        key, config.rollout_length, 1 + len(setup.policies), config.blocks // num_shards()
    )
    state, acting = begin(setup, state, hypers, key)
    first_carry = {name: memory.carry for name, memory in state.memory.items()}
    carry = (state.replicas, state.obs, state.live, first_carry)
    given = StepInputs(setup, state.policies, hypers, state.env_params, acting)
    (replicas, obs, live, carries), (rows, episodes) = setup.engine.rollout(
        play_by_scan, given, carry, keys
    )
    last_obs = {
        name: gather_observation(policy.assignment, obs) for name, policy in setup.policies.items()
    }
    memory = {name: old.replace(carry=carries[name]) for name, old in state.memory.items()}
    state = state.replace(replicas=replicas, obs=obs, live=live, memory=memory)
    last_state = None
    if "global_state" in setup.keeps:
        last_state = setup.context.global_state(replicas.env_state, obs, state.env_params)
    played = Rollout(rows, first_carry, carries, last_obs, *episodes)
    played = played.replace(last_global_state=last_state)
    return state, jax.tree.map(lambda leaf: leaf, played)  # sort every dict, as the scan does


def play_by_scan(given: StepInputs, carry: tuple, keys: jax.Array) -> tuple[tuple, tuple]:
    """Scan `play_step` over a rollout.

    Args:
        given: constant inputs.
        carry: as for `play_step`.
        keys: [T, 1 + policies, num_blocks].

    Returns:
        (carry, (rows by policy, episodes)), leaves [T, N, ...].
    """
    setup = given.setup
    players = {
        name: own.algorithm.before_rollout(own, given.players[name])
        for name, own in setup.policies.items()
    }
    given = dataclasses.replace(given, players=players)

    def step(carry: tuple, drawn: tuple) -> tuple[tuple, tuple]:
        return play_step(given, carry, *drawn)

    drawn = setup.engine.draw(setup, given.opponents, keys)
    return setup.engine.scan_steps(step, carry, drawn, setup.config.rollout_unroll)
