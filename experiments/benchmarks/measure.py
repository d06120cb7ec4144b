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

from wdjax.experiments.benchmarks.programs import make_program
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
    memory = compiled.memory_analysis()
    parts = {name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "temp")}
    numbers: dict[str, Any] = {
        "tier": tier, "workload": program.words, "agents": program.agents, "small": small, "machine": machine(),
        "trace_seconds": traced - start, "compile_seconds": ended - start,  # both: what a person waits for
        "compiled_bytes": {**parts, "all": sum(parts.values())},
    }  # fmt: skip
    try:
        if repeats:
            arguments = jax.block_until_ready(jax.jit(program.start)())
            numbers |= rates(lambda: compiled(*arguments), repeats, program.env_steps, program.passes)
            numbers["agent_steps_per_second"] = numbers["env_steps_per_second"] * program.agents
            numbers["env_steps"] = program.env_steps
            numbers["argument_bytes"] = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments))
    except jax.errors.JaxRuntimeError as error:
        numbers["error"] = str(error).splitlines()[0]
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")  # of this process so far
    numbers["peak_bytes_from"] = "compiler" if peak is None else "device"
    numbers["peak_bytes"] = sum(parts.values()) if peak is None else peak
    target = None if small else row.targets.get(tier)  # of the full size
    return numbers | (dataclasses.asdict(target) if target else {})


if __name__ == "__main__":
    main()
