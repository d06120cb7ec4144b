"""Measures one row of the table in this process, and prints its numbers as one line of JSON.

    python -m wdjax.experiments.benchmarks.measure tag_gridworld --tier training --small

`wdjax bench` starts this for every row, so that peak memory is the row's own and no program is compiled already. Timed
is one jittable function of arrays, and nothing that is asked for can be left out of it. What nobody reads, XLA deletes:
a program of stepping returns the sum of every observation, reward and end flag, one of inference the sum of everything
that a rollout keeps for learning, one of training the whole state and the metrics.
"""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.env import Env
from wdjax.envs import make
from wdjax.experiments.benchmarks.rows import INFERENCE, STEPPING, WORKLOADS, Workload
from wdjax.experiments.benchmarks.suite import parse
from wdjax.experiments.benchmarks.timing import machine, rates
from wdjax.playing import PlayState, Transition, play, start_play, uniform_action
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.programs import compile_lowered, compiler_options
from wdjax.train.learner.learner import make_learner
from wdjax.train.rollout.scan import rollout
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState
from wdjax.vector import VectorEnv, VectorState, vectorize


def main() -> None:
    """Measures the row and the tier that the command line names, as `wdjax bench` takes it."""
    parsed = parse(sys.argv[1:])
    [row], [tier] = parsed.rows, parsed.tier
    jax.config.update("jax_enable_compilation_cache", False)  # compile time is that of a first run
    result = measure(
        WORKLOADS[row], tier, parsed.small, 0 if parsed.compile_only else parsed.repeats
    )
    print(json.dumps({"row": row, **result}))


def measure(row: Workload, tier: str, small: bool, repeats: int) -> dict[str, Any]:
    """Compiles and times a row.

    Args:
        row: of the table.
        tier: one of its tiers.
        small: at its size for a CPU.
        repeats: timed calls; 0: compile only.

    Returns:
        its numbers, by name: medians of the repeats after a warm-up, the peak memory in bytes and who says so (the
        device or else the compiler), the row's targets; `error` in place of the times where memory was too short.
    """
    program = make_program(row, tier, small)
    shapes = jax.eval_shape(program.start)
    start = time.perf_counter()
    lowered = jax.jit(program.function).lower(*shapes)
    traced = time.perf_counter()
    compiled = compile_lowered(lowered, program.options)
    ended = time.perf_counter()
    parts = compiled_bytes(compiled)
    numbers: dict[str, Any] = {
        "tier": tier, "workload": program.words, "agents": program.agents, "small": small, "machine": machine(),
        "trace_seconds": traced - start, "compile_seconds": ended - start,  # both: what a person waits for
        "compiled_bytes": parts,
    }  # fmt: skip
    try:
        if repeats:
            arguments = jax.block_until_ready(jax.jit(program.start)())
            numbers |= rates(
                lambda: compiled(*arguments), repeats, program.env_steps, program.passes
            )
            numbers["agent_steps_per_second"] = numbers["env_steps_per_second"] * program.agents
            numbers["env_steps"] = program.env_steps
            numbers["argument_bytes"] = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments))
    except jax.errors.JaxRuntimeError as error:
        numbers["error"] = str(error).splitlines()[0]
    peak = (jax.devices()[0].memory_stats() or {}).get(
        "peak_bytes_in_use"
    )  # of this process so far
    numbers["peak_bytes_from"] = "compiler" if peak is None else "device"
    numbers["peak_bytes"] = parts["all"] if peak is None else peak
    target = None if small else row.targets.get(tier)  # of the full size
    return numbers | (dataclasses.asdict(target) if target else {})


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and what one call of it does."""

    function: Callable[..., Any]
    """the program, to be jitted"""
    start: Callable[[], tuple]
    """start() -> its arguments; to be jitted too"""
    words: str
    """the workload"""
    agents: int
    """in one replica"""
    env_steps: int
    """replica steps of a call, of all members"""
    passes: int
    """what a time is reported for: updates, rollouts or steps of all replicas in a call"""
    options: Mapping[str, bool | str] = dataclasses.field(default_factory=dict)
    """what XLA is told, as by a run; by a sweep, nothing"""


def make_program(row: Workload, tier: str, small: bool = False) -> Program:
    """Returns what is timed for a row of the table in one of its tiers."""
    config = row.config(small)
    if tier == STEPPING:
        return stepping_program(config, row.stepping_length or config.rollout_length, row.plays)
    return learner_program(tier, config, row.num_updates, row.num_members(small))


def compiled_bytes(program: jax.stages.Compiled) -> dict[str, int]:
    """Returns the bytes of a compiled program's arguments, results (output), what is between (temp), and all."""
    memory = program.memory_analysis()
    parts = {
        name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "temp")
    }
    return {**parts, "all": sum(parts.values())}


def compiled(
    function: Callable, arguments: tuple, options: Mapping[str, bool | str] | None = None
) -> Callable:
    """Returns a function of nothing that runs the compiled function on these arguments."""
    return functools.partial(
        compile_lowered(jax.jit(function).lower(*arguments), options or {}), *arguments
    )


def stepping_program(config: TrainConfig, num_steps: int, plays: bool = False) -> Program:
    """Random play with fresh resets: the environment alone, in a scan or by `wdjax.play`: on an NVIDIA GPU one kernel,
    which holds the physics as constants."""
    env, params = make(config.env, **config.env_params)
    replicas, agents = vectorize(env, config.num_envs), sum(env.groups.values()) or 1

    def start() -> tuple:
        if plays:
            return (start_play(env, params, jax.random.key(0), config.num_envs),)
        arrays = jax.tree.map(
            jnp.asarray, params
        )  # arguments, not constants: physics is traced wherever it is used
        return jax.random.key(1), replicas.reset(jax.random.key(0), arrays)[1], arrays

    how = f"{num_steps} steps{' by wdjax.play' * plays}, random actions, fresh resets"
    words = f"{config.env}, {agents} agents, {config.num_envs} envs, {how}"
    function = functools.partial(step_at_random, replicas, num_steps)
    if plays:
        function = functools.partial(play_at_random, env, params, num_steps)
    return Program(function, start, words, agents, config.num_envs * num_steps, num_steps)


def learner_program(tier: str, config: TrainConfig, passes: int, members: int = 0) -> Program:
    """Rollouts, in which policies act and keep what they would learn from and nobody learns, or whole updates, rollout
    and learning: of one run, or of so many members under vmap."""
    learner = make_learner(config)
    function = functools.partial(learner.run, num_updates=passes)
    if tier == INFERENCE:
        function = functools.partial(act, learner.setup, passes)
    agents = sum(policy.assignment.num_agents for policy in learner.setup.policies.values())
    policies = ", ".join(
        f"{name} {policy.algorithm} {'-'.join(map(str, policy.network.hidden_sizes))}"
        f" ({policy.options.epochs} x {policy.options.minibatches} gradient steps)"
        for name, policy in config.policies.items()
    )
    sizes = f"{agents} agents, {config.num_envs} envs, {config.rollout_length}-step rollouts"
    words, env_steps = f"{config.env}, {sizes}; {policies}", passes * config.env_steps_per_update
    if not members:
        options = compiler_options(learner.setup)
        return Program(
            function,
            lambda: (learner.init(jax.random.key(0)),),
            words,
            agents,
            env_steps,
            passes,
            options,
        )
    start = lambda: (jax.vmap(learner.init)(jax.random.split(jax.random.key(0), members)),)  # noqa: E731
    return Program(
        jax.vmap(function),
        start,
        f"{members} seeds of {words}",
        agents,
        members * env_steps,
        passes,
    )


def random_policy(env: Env, params: Any) -> Callable[[jax.Array, Any], Any]:
    """Returns policy(key, obs): actions drawn uniformly."""
    return lambda key, obs: uniform_action(env.action_space(params), key)


def step_at_random(
    replicas: VectorEnv, num_steps: int, key: jax.Array, state: VectorState, params: Any
) -> jax.Array:
    """Steps all replicas with actions drawn uniformly. Returns the sum of all that came out, () float32."""
    space = replicas.env.action_space(params).batch(replicas.num_envs)

    def step(action_key: jax.Array, step_key: jax.Array, state: VectorState) -> tuple:
        return replicas.step(step_key, state, uniform_action(space, action_key), params)

    return sum_of_steps(step, replicas.num_envs, num_steps, key, state)


def sum_of_steps(
    step: Callable, num_envs: int, num_steps: int, key: jax.Array, state: Any
) -> jax.Array:
    """Steps replicas by step(action_key, step_key, state) -> (obs, state, reward, terminated, truncated, info). Returns
    the sum of all that came out but info, () float32."""

    def one(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        state, seen, earned = carry
        obs, state, *flags, _ = step(*jax.random.split(key), state)
        return (state, seen + row_sums(obs), earned + row_sums(flags)), None

    nothing = jnp.zeros(
        num_envs
    )  # sums of each replica, of obs apart: no old state is kept for them
    return sum_of(
        jax.lax.scan(one, (state, nothing, nothing), jax.random.split(key, num_steps))[0][1:]
    )


def play_at_random(env: Env, params: Any, num_steps: int, state: PlayState) -> jax.Array:
    """Plays all replicas with actions drawn uniformly. Returns the sum of all that came out, () float32."""

    def add(total: jax.Array, step: Transition) -> tuple[jax.Array, None]:
        return total + sum_of((step.next_obs, step.reward, step.terminated, step.truncated)), None

    policy, nothing = random_policy(env, params), jnp.zeros(state.time.shape)
    return jnp.sum(play(env, params, policy, state, num_steps, add, nothing)[1])


def act(setup: Setup, num_rollouts: int, state: TrainState) -> tuple[TrainState, jax.Array]:
    """Plays rollouts, each kept whole until it is over. Returns (state, the sum of all that they kept, () float32)."""

    def one(
        carry: tuple[TrainState, jax.Array], _: None
    ) -> tuple[tuple[TrainState, jax.Array], None]:
        state, total = carry
        key, next_key = jax.random.split(state.key)
        state, played = rollout(setup, state, key)
        return (state.replace(key=next_key), total + sum_of(played)), None

    return jax.lax.scan(one, (state, jnp.float32(0)), length=num_rollouts)[0]


def sum_of(tree: Any) -> jax.Array:
    """Returns the sum of all numbers and flags of a pytree, () float32."""
    return sum(
        (jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(tree)), start=jnp.float32(0)
    )


def row_sums(tree: Any) -> jax.Array:
    """Returns the sums of all numbers and flags of each replica, [N] float32, of leaves [N, ...]."""
    return sum(
        jnp.sum(leaf.reshape(leaf.shape[0], -1), axis=1, dtype=jnp.float32)
        for leaf in jax.tree.leaves(tree)
    )


if __name__ == "__main__":
    main()
