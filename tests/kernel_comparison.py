"""Agreement of replica kernels with plain XLA for every primitive, on this device.

    PYTHONPATH=. python tests/kernel_comparison.py      # compiled on a GPU, else interpreted
    PYTHONPATH=. python tests/kernel_comparison.py 8    # every eighth case

Cases that a kernel refuses run in plain XLA and are not errors.
"""

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kernel_cases import Case, all_cases, random_case

from wdjax.kernels.backend import on_gpu
from wdjax.replicas import scan_replicas_kernel

AT_ONCE = 48  # cases per kernel
DRAWN = 200  # random cases
# relative tolerances: kernels use fused multiply-add, and divide with an error of 2 ulp
ERRORS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
# without this code generator, which later versions always use, jaxlib 0.10 cannot clamp bools
OPTIONS = {"xla_cpu_use_fusion_emitters": True} if jax.__version__.startswith("0.10.") else None


def main(every: int = 1) -> None:
    """Compare every n-th of all cases and of DRAWN random ones.

    Raises:
        RuntimeError: if some differ.
    """
    interpret = not on_gpu()
    drawn = (random_case(np.random.default_rng(seed)) for seed in range(DRAWN))
    cases = [*all_cases(), *drawn][::every]
    faults, refused = compare(cases, interpret)
    faults += [f"shared: {line}" for line in compare(cases, interpret, shared=True)[0]]
    print(*refused, *faults, sep="\n", flush=True)
    print(
        f"replica kernels: {len(cases)} cases, {len(refused)} refused, "
        f"{len(faults)} differ from plain XLA"
    )
    if faults:
        raise RuntimeError("\n".join(faults))


def compare(
    cases: Sequence[Case], interpret: bool, shared: bool = False
) -> tuple[list[str], list[str]]:
    """Run cases by kernels and by plain XLA.

    Args:
        cases: the cases.
        interpret: interpret the kernels.
        shared: use the operands of the first replica in all replicas, as constants of the step.

    Returns:
        (differences and failures, refusals), one line per case.
    """
    faults: list[str] = []
    refused: list[str] = []
    todo = [cases[i : i + AT_ONCE] for i in range(0, len(cases), AT_ONCE)]
    while todo:
        part = todo.pop(0)
        operands = [case.operands for case in part]
        if shared:
            operands = jax.tree.map(lambda x: np.broadcast_to(x[:1], x.shape), operands)
        run = jax.jit(
            lambda operands, part=part: run_kernel(part, operands, interpret, shared),
            compiler_options=OPTIONS,
        )
        try:
            found = jax.device_get(run(operands))
        except Exception as error:  # the other cases continue
            if len(part) > 1:
                todo[:0] = part[: len(part) // 2], part[len(part) // 2 :]
            elif isinstance(error, NotImplementedError):
                refused.append(f"refused: {part[0].name}: {error}")
            else:
                first_line = str(error).splitlines()[0]
                faults.append(f"{part[0].name}: {type(error).__name__}: {first_line}")
            continue
        plain = jax.jit(
            lambda operands, part=part: [
                jax.vmap(case.function)(*arrays)
                for case, arrays in zip(part, operands, strict=True)
            ],
            compiler_options=OPTIONS,
        )
        faults += filter(
            None, map(difference, part, operands, found, jax.device_get(plain(operands)))
        )
    return faults, refused


def run_kernel(
    cases: Sequence[Case], operands: Sequence[tuple], interpret: bool, shared: bool = False
) -> list[Any]:
    """Run cases in one kernel of a single step. Return the result of each, leaves [N, ...]."""
    first = jax.tree.map(lambda x: jnp.asarray(x)[0], [*operands])

    def step(carry: Any, _: None) -> tuple[Any, list[Any]]:
        inputs = zip(cases, first if shared else carry, strict=True)
        return carry, [case.function(*arrays) for case, arrays in inputs]

    _, outputs = scan_replicas_kernel(step, [*operands], length=1, interpret=interpret)
    return jax.tree.map(lambda leaf: leaf[0], outputs)


def difference(case: Case, operands: tuple, found: Any, expected: Any) -> str | None:
    """Return the first difference between the results of a kernel and of XLA, or None."""
    for value, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            types = f"{value.dtype}{value.shape}, expected {other.dtype}{other.shape}"
            return f"{case.name}: {types}"
        error = 0.0 if case.exact else ERRORS.get(str(other.dtype), 0.0)
        is_float = value.dtype.name in ERRORS
        a, b = (np.asarray(x, np.float64 if is_float else None) for x in (value, other))
        same = (a == b) | ((a != a) & (b != b))
        if error:
            same = np.isclose(a, b, error, error / 10, equal_nan=True)
        if not same.all():
            place = tuple(np.argwhere(~same)[0])
            inputs = [np.asarray(operand[place[0]]).tolist() for operand in operands]
            return f"{case.name}: {a[place]}, expected {b[place]}, for {inputs}"
    return None


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
