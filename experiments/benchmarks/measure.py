"""Measures one row of the table in this process, and prints its numbers as one line of JSON.

    python -m wdjax.experiments.benchmarks.measure tag_gridworld --tier training --small

`wdjax bench` starts this for every row, so that peak memory is the row's own and no program is compiled already.
"""

import dataclasses
import json
import sys
import time
from typing import Any

import jax

from wdjax.experiments.benchmarks.programs import Program, make_program
from wdjax.experiments.benchmarks.rows import WORKLOADS, Workload
from wdjax.experiments.benchmarks.suite import parse
from wdjax.experiments.benchmarks.timing import machine, rates
from wdjax.train.host.programs import compile_lowered


def main() -> None:
    """Measures the row and the tier that the command line names, as `wdjax bench` takes it."""
    parsed = parse(sys.argv[1:])
    [row], [tier] = parsed.rows, parsed.tier
    jax.config.update("jax_enable_compilation_cache", False)  # compile time is that of a first run
    result = measure(WORKLOADS[row], tier, parsed.small, 0 if parsed.compile_only else parsed.repeats)
    print(json.dumps({"row": row, **result}))


def measure(row: Workload, tier: str, small: bool, repeats: int) -> dict[str, Any]:
    """Compiles and times a row.

    Args:
        row: of the table.
        tier: one of its tiers.
        small: at its size for a CPU.
        repeats: timed calls; 0: compile only.

    Returns:
        its numbers, by name; `error` in place of the times where the device has not the memory.
    """
    program = make_program(row, tier, small)
    compiled, numbers = compile_program(program)
    numbers = {
        "tier": tier, "workload": program.words, "agents": program.agents, "small": small, "machine": machine(),
        **numbers,
    }  # fmt: skip
    try:
        numbers |= time_program(program, compiled, repeats) if repeats else {}
    except jax.errors.JaxRuntimeError as error:
        numbers["error"] = str(error).splitlines()[0]
    target = None if small else row.targets.get(tier)  # of the full size
    return {**numbers, **peak_memory(numbers["compiled_bytes"]), **(dataclasses.asdict(target) if target else {})}


def compile_program(program: Program) -> tuple[Any, dict[str, Any]]:
    """Compiles a program from the shapes of its arguments. Returns it, and what that took."""
    shapes = jax.eval_shape(program.start)
    start = time.perf_counter()
    lowered = jax.jit(program.function).lower(*shapes)
    traced = time.perf_counter()
    compiled = compile_lowered(lowered, program.options)
    memory = compiled.memory_analysis()
    parts = {name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "temp")}
    return compiled, {
        "trace_seconds": traced - start,
        "compile_seconds": time.perf_counter() - start,  # tracing included: what a person waits for
        "compiled_bytes": {**parts, "all": sum(parts.values())},
    }


def time_program(program: Program, compiled: Any, repeats: int) -> dict[str, Any]:
    """Returns the times and rates of a compiled program, the median of `repeats` calls after a warm-up."""
    arguments = jax.block_until_ready(jax.jit(program.start)())
    numbers = rates(lambda: compiled(*arguments), repeats, program.env_steps, program.passes)
    return {
        **numbers,
        "agent_steps_per_second": numbers["env_steps_per_second"] * program.agents,
        "env_steps": program.env_steps,
        "argument_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(arguments)),
    }


def peak_memory(compiled_bytes: dict[str, int]) -> dict[str, Any]:
    """Returns the peak memory in bytes and who says so: the device, of this process so far, or else the compiler."""
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if peak is not None:
        return {"peak_bytes": peak, "peak_bytes_from": "device"}
    return {"peak_bytes": compiled_bytes["all"], "peak_bytes_from": "compiler"}


if __name__ == "__main__":
    main()
