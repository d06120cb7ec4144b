"""Programs that the suite times, and the numbers of one program.

A timed program is one jittable function of arrays. XLA deletes computations without a reader, so a
stepping program returns the sum of every observation, reward and end flag, an inference program the
sum of everything that a rollout stores for learning, and a training program the state and metrics.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.env import Env
from wdjax.envs import make
from wdjax.experiments.benchmarks.rows import INFERENCE, STEPPING, WORKLOADS, Workload
from wdjax.experiments.benchmarks.timing import machine, median_and_spread
from wdjax.playing import PlayState, Transition, play, start_play, uniform_action
from wdjax.train import Learner, TrainConfig, TrainState, make_learner
from wdjax.train.host.programs import compile_for
from wdjax.vector import VectorEnv, VectorState, vectorize


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and the work of one call."""

    function: Callable[..., Any]
    """the program, not yet jitted"""
    start: Callable[[], tuple]
    """start() -> its arguments; not yet jitted"""
    words: str
    """description of the workload"""
    agents: int
    """agents per replica"""
    env_steps: int
    """env steps of one call, of all members"""
    passes: int
    """updates, rollouts or steps of all replicas in one call"""
    setup: Any = None
    """setup of a single run, for XLA's options; None without options"""


def measure_row(name: str, tier: str, small: bool, repeats: int) -> dict[str, Any]:
    """Measure one row of the suite; called in a new process, so that peak memory is the row's."""
    # measure the compile time of a first run
    jax.config.update("jax_enable_compilation_cache", False)
    return measure(WORKLOADS[name], tier, small, repeats)


def measure(row: Workload, tier: str, small: bool, repeats: int) -> dict[str, Any]:
    """Measure one row at full or small size; see `measure_program`. Targets are for full size."""
    numbers = {"small": small, **measure_program(make_program(row, tier, small), repeats)}
    target = None if small else row.targets.get(tier)
    if target:
        numbers |= dataclasses.asdict(target)
        if "env_steps_per_second" in numbers:
            numbers["of_must"] = numbers["env_steps_per_second"] / target.must
    return numbers


def measure_program(program: Program, repeats: int) -> dict[str, Any]:
    """Compile a program and time it.

    Args:
        program: the program.
        repeats: number of timed calls; 0: compile only.

    Returns:
        numbers by name: the median of the repeats after a warm-up call, compile time including
        tracing, and peak memory in bytes, measured by the device or estimated by the compiler;
        `error` in place of the times if memory was insufficient.
    """
    start = time.perf_counter()
    compiled = compile_program(program)
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    parts = {
        name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "temp")
    }
    parts["all"] = sum(parts.values())
    numbers: dict[str, Any] = {
        "machine": machine(),
        "workload": program.words,
        "agents": program.agents,
        "compile_seconds": seconds,
        "compiled_bytes": parts,
    }
    try:
        if repeats:
            numbers |= rates(program, compiled, repeats)
    except jax.errors.JaxRuntimeError as error:
        numbers["error"] = str(error).splitlines()[0]
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")  # since process start
    numbers["peak_bytes_from"] = "compiler" if peak is None else "device"
    numbers["peak_bytes"] = parts["all"] if peak is None else peak
    return numbers


def rates(program: Program, compiled: jax.stages.Compiled, repeats: int) -> dict[str, Any]:
    """Time calls of a program after a warm-up call, each until its results are ready."""
    arguments = jax.block_until_ready(jax.jit(program.start)())
    jax.block_until_ready(compiled(*arguments))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - start)
    median, spread = median_and_spread(seconds)
    return {
        "env_steps_per_second": program.env_steps / median,
        "ms_per_pass": 1e3 * median / program.passes,
        "spread": spread,
        "seconds": seconds,
        "agent_steps_per_second": program.env_steps / median * program.agents,
        "env_steps": program.env_steps,
    }


def compile_program(program: Program) -> jax.stages.Compiled:
    """Compile a program for its arguments, with the XLA options of a run."""
    lowered = jax.jit(program.function).lower(*jax.eval_shape(program.start))
    return lowered.compile() if program.setup is None else compile_for(lowered, program.setup)


def make_program(row: Workload, tier: str, small: bool = False) -> Program:
    """Return the program of a row in one of its tiers."""
    config = row.config(small)
    if tier == STEPPING:
        return stepping_program(config, row.stepping_length or config.rollout_length, row.plays)
    return learner_program(tier, config, row.num_updates, row.num_members(small))


def stepping_program(config: TrainConfig, num_steps: int, plays: bool = False) -> Program:
    """Step the environment with random actions and fresh resets.

    Args:
        config: environment and number of replicas.
        num_steps: steps of one call.
        plays: use `wdjax.play`, on a GPU one kernel with constant env_params, in place of a scan of
            `VectorEnv.step`.
    """
    env, params = make(config.env, **config.env_params)
    replicas, agents = vectorize(env, config.num_envs), sum(env.groups.values()) or 1

    def start() -> tuple:
        if plays:
            return (start_play(env, params, jax.random.key(0), config.num_envs),)
        arrays = jax.tree.map(jnp.asarray, params)  # traced arguments, as in a run
        return jax.random.key(1), replicas.reset(jax.random.key(0), arrays)[1], arrays

    how = f"{num_steps} steps{' by wdjax.play' * plays}, random actions, fresh resets"
    words = f"{config.env}, {agents} agents, {config.num_envs} envs, {how}"
    function = functools.partial(step_at_random, replicas, num_steps)
    if plays:
        function = functools.partial(play_at_random, env, params, num_steps)
    return Program(function, start, words, agents, config.num_envs * num_steps, num_steps)


def learner_program(tier: str, config: TrainConfig, passes: int, members: int = 0) -> Program:
    """Run rollouts without learning (inference), or whole updates (training).

    Args:
        tier: INFERENCE or TRAINING.
        config: configuration of the run.
        passes: rollouts or updates of one call.
        members: seeds that run together under vmap; 0: one run without vmap.
    """
    learner = make_learner(config)
    function: Callable[..., Any] = functools.partial(learner.run, num_updates=passes)
    if tier == INFERENCE:
        function = functools.partial(act, learner, passes)
    agents = sum(learner.env.groups.values()) or 1
    policies = ", ".join(
        f"{name} {config.policy(name).algorithm} {'-'.join(map(str, policy.network.hidden_sizes))}"
        for name, policy in config.policies.items()
    )
    sizes = f"{agents} agents, {config.num_envs} envs, {config.rollout_length}-step rollouts"
    words, env_steps = f"{config.env}, {sizes}; {policies}", passes * config.env_steps_per_update
    if members:
        words, env_steps = f"{members} seeds of {words}", members * env_steps

    def start() -> tuple:
        key = jax.random.key(0)
        if members:
            return (jax.vmap(learner.init)(jax.random.split(key, members)),)
        return (learner.init(key),)

    function = jax.vmap(function) if members else function
    setup = None if members else learner.setup
    return Program(function, start, words, agents, env_steps, passes, setup)


def random_policy(env: Env, params: Any) -> Callable[[jax.Array, Any], Any]:
    """Return policy(key, obs), which draws actions uniformly."""
    return lambda key, obs: uniform_action(env.action_space(params), key)


def step_at_random(
    replicas: VectorEnv, num_steps: int, key: jax.Array, state: VectorState, params: Any
) -> jax.Array:
    """Step all replicas with uniform actions and return the sum of all results, () float32."""
    space = replicas.env.action_space(params).batch(replicas.num_envs)

    def step(action_key: jax.Array, step_key: jax.Array, state: VectorState) -> tuple:
        return replicas.step(step_key, state, uniform_action(space, action_key), params)

    return sum_of_steps(step, replicas.num_envs, num_steps, key, state)


def sum_of_steps(
    step: Callable, num_envs: int, num_steps: int, key: jax.Array, state: Any
) -> jax.Array:
    """Step replicas and return the sum of all results but info, () float32.

    Args:
        step: step(action_key, step_key, state) -> (obs, state, reward, terminated, truncated,
            info).
        num_envs: number of replicas.
        num_steps: number of steps.
        key: split into the keys of all steps.
        state: first state.
    """

    def one(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        state, seen, earned = carry
        obs, state, *flags, _ = step(*jax.random.split(key), state)
        return (state, seen + row_sums(obs), earned + row_sums(flags)), None

    # separate sums per replica and of obs: no old state is kept for them
    zeros = jnp.zeros(num_envs)
    start = (state, zeros, zeros)
    return sum_of(jax.lax.scan(one, start, jax.random.split(key, num_steps))[0][1:])


def play_at_random(env: Env, params: Any, num_steps: int, state: PlayState) -> jax.Array:
    """Play all replicas with uniform actions and return the sum of all results, () float32."""

    def add(total: jax.Array, step: Transition) -> tuple[jax.Array, None]:
        results = (step.next_obs, step.reward, step.terminated, step.truncated)
        return total + sum_of(results), None

    policy, zeros = random_policy(env, params), jnp.zeros(state.time.shape)
    return jnp.sum(play(env, params, policy, state, num_steps, add, zeros)[1])


def act(learner: Learner, num_rollouts: int, state: TrainState) -> tuple[TrainState, jax.Array]:
    """Run rollouts, each stored whole. Return (state, the sum of all stored values, () float32)."""

    def one(carry: tuple[TrainState, jax.Array], _: None) -> tuple[tuple, None]:
        state, rollout = learner.rollout(carry[0])
        return (state, carry[1] + sum_of(rollout)), None

    return jax.lax.scan(one, (state, jnp.float32(0)), length=num_rollouts)[0]


def sum_of(tree: Any) -> jax.Array:
    """Return the sum of all numbers and flags of a pytree, () float32."""
    sums = (jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(tree))
    return sum(sums, start=jnp.float32(0))


def row_sums(tree: Any) -> jax.Array:
    """Return the sums of all numbers and flags of each replica, [N] float32, of leaves [N, ...]."""
    leaves = (leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree))
    return functools.reduce(jnp.add, (jnp.sum(x, axis=1, dtype=jnp.float32) for x in leaves))
