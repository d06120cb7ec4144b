"""Programs of several updates, compiled from the shapes of a state."""

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import jax
import numpy as np

from wdjax.checks import one_line, require
from wdjax.kernels.backend import on_cpu, on_gpu
from wdjax.kernels.support import giving_up_kernels, listening
from wdjax.lazy import no_garbage_collection
from wdjax.train.devices.memory import bytes_free, bytes_needed
from wdjax.train.devices.packing import Packed
from wdjax.train.kernels.layers import are_used
from wdjax.train.kernels.rollout import WHOLE
from wdjax.train.learner.learner import Learner, run_up_to
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState

# how XLA orders the launches of a command buffer (a CUDA graph) that do not need each other
SIDE_BY_SIDE = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
ONE_BY_ONE = {"xla_gpu_command_buffer_scheduling_mode": "LHS"}

# XLA would write each fusion in two ways, by Triton and without, and time both: up to a third of all compiling, and no
# preset was faster by it (RESULTS.md)
ONE_WAY = {"xla_gpu_experimental_enable_fusion_autotuner": False}
# what is tried for a matrix product but Triton's; without Triton alone some products found nobody who takes them
LIBRARIES = {
    "xla_gpu_experimental_autotune_backends":
        "CUBLASLT,CUSTOM_KERNEL,NATIVE_EMITTER,CUBLASLT_FISSION,CUSTOM_KERNEL_FISSION"
}  # fmt: skip

UNKNOWN_OPTION = "No such compile option"  # of what XLA says

MOST_WORDS = 200  # characters of what a compiler says

Program = Callable[
    [TrainState, np.int32], tuple[TrainState, Packed]
]  # (state, updates) -> (state, metrics)

_LISTENERS: contextvars.ContextVar[list[Callable[[str], None]]] = contextvars.ContextVar(
    "listeners"
)


@contextlib.contextmanager
def telling(say: Callable[[str], None]) -> Iterator[None]:
    """Says once, when the first program in here is traced, what kernels do and what they do not, and why."""
    token = _LISTENERS.set([say])
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def words_of_kernels(heard: Mapping[str, str | None]) -> str:
    """Returns what of a program kernels do and what plain XLA does for a reason, in a line; of a CPU's nothing.

    Args:
        heard: what there is to do -> why no kernel does it, None where one does (kernels/support.py).
    """
    if on_cpu() or not heard:
        return ""
    if heard.get(WHOLE, "") is None:  # then nobody acts beside it
        heard = {what: why for what, why in heard.items() if not what.startswith("acting")}
    reasons: dict[str, list[str]] = {}
    for what, why in heard.items():
        reasons.setdefault(why or "", []).append(what)
    by_kernels = ", ".join(reasons.pop("", ["none"]))
    plain = "; ".join(f"{', '.join(whats)} ({why})" for why, whats in reasons.items())
    return f"Fused kernels: {by_kernels}" + (f". Plain XLA: {plain}" if plain else "")


Makes = TypeVar("Makes", bound=Callable)


def plain_where_kernels_fail(make: Makes) -> Makes:
    """Has a function that compiles programs, where it raises, compile them without any kernel, as this process does
    from then on: what a card or a compiler refuses in them costs speed and no run. Where that raises too, what it
    raised at first is the error."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> Any:
        listeners = _LISTENERS.get([])
        told = list(listeners)
        try:
            return make(*arguments, **named)
        except Exception as error:
            if not are_used():
                raise
            listeners[:] = told  # they may have heard what is true no more
            with (
                contextlib.suppress(Exception),
                giving_up_kernels(f"kernels failed: {one_line(error)[:MOST_WORDS]}"),
            ):
                return make(*arguments, **named)
            raise

    return cast(Makes, made)


@plain_where_kernels_fail
def compile_chunk(learner: Learner, state: TrainState, most: int) -> tuple[Program, float]:
    """Compiles chunks of up to `most` updates into one program that donates its state. Returns (program, seconds)."""
    return finish_chunk(*lower_chunk(learner, state, most))


@plain_where_kernels_fail
@no_garbage_collection()
def compile_and_init(
    learner: Learner,
    like: TrainState,
    seed: int,
    most: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[TrainState, Program, float]:
    """Draws a run's first state and compiles its chunks, on a GPU at the same time: each takes seconds.

    Args:
        like: `abstract_state` of the learner's setup.
        meanwhile: what else there is to do while a GPU's program is compiled.

    Returns:
        (state, program, seconds): learner.init(jax.random.key(seed)), and what `compile_chunk` returns.

    Raises:
        ValueError: where the state alone is larger than the memory: XLA would wait for ever, or end the process.
    """
    devices = learner.setup.num_devices
    free = bytes_free(devices)
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like)) // devices
    allowed = (
        f"at most {free}, the free memory of a device. Lower num_envs, past_selves or buffer_size."
    )
    require(needed <= free, "state size in bytes", needed, allowed)
    lowered = lower_chunk(learner, like, most)  # here: JAX's settings may be this thread's own
    key = jax.random.key(
        seed
    )  # not before: it needs the device, which may still be reserving memory
    # all processes compile in the same order; and for a CPU, XLA compiles on all of its cores anyway
    if jax.process_count() > 1 or on_cpu():
        return learner.init(key), *finish_chunk(*lowered)
    with ThreadPoolExecutor(
        1
    ) as thread:  # what ends init early waits for it: a compilation cannot be stopped
        compiled = thread.submit(finish_chunk, *lowered)
        state = learner.init(key)
        meanwhile()
        return state, *compiled.result()


def compiler_options(setup: Setup, alone: bool = True) -> dict[str, bool | str]:
    """Returns XLA's options for a run on a GPU: what it need not try, which takes it seconds. Where kernels do the
    products, it need not try Triton's for the few others, and may launch side by side what does not need each other,
    which takes memory.

    Args:
        alone: of one run; else of several side by side, whose launches are large.
    """
    if not on_gpu():
        return {}
    if alone and are_used() and all(policy.engine.shape for policy in setup.policies.values()):
        order = SIDE_BY_SIDE if setup.num_devices == 1 else {}  # not tried among collectives
        return {"xla_gpu_enable_triton_gemm": False, **ONE_WAY, **order}
    return ONE_WAY if setup.config.search_products else ONE_WAY | LIBRARIES


def compile_lowered(
    lowered: jax.stages.Lowered, options: Mapping[str, bool | str], free: int | None = None
) -> jax.stages.Compiled:
    """Compiles with `compiler_options`; without SIDE_BY_SIDE where there is no memory for that, and without any for an
    XLA that does not know one of them, as names come and go: that costs seconds, and no run.

    Args:
        free: bytes that a device has; None: `bytes_free`.
    """
    try:
        program = lowered.compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError as error:
        if UNKNOWN_OPTION not in str(error):
            raise
        return lowered.compile()
    if SIDE_BY_SIDE.items() <= options.items() and bytes_needed(program) > (
        bytes_free() if free is None else free
    ):
        return lowered.compile(compiler_options={**options, **ONE_BY_ONE})
    return program


def lower_chunk(
    learner: Learner, state: TrainState, most: int
) -> tuple[jax.stages.Lowered, Mapping[str, bool | str], float]:
    """Traces up to `most` updates of states like this one. Returns (what is to be compiled, options, seconds)."""
    chunk = functools.partial(run_up_to, learner.setup, most)
    return lower_updates(chunk, state, compiler_options(learner.setup))


def lower_updates(
    chunk: Callable, states: TrainState, options: Mapping[str, bool | str]
) -> tuple[jax.stages.Lowered, Mapping[str, bool | str], float]:
    """Traces a chunk of a run, or of several side by side, which donates its states. Returns as `lower_chunk`."""
    start, listeners = time.perf_counter(), _LISTENERS.get([])
    with no_garbage_collection(), listening() as heard:
        lowered = jax.jit(chunk, donate_argnums=0).lower(states, jax.ShapeDtypeStruct((), np.int32))
    words = words_of_kernels(heard)
    while listeners and words:
        listeners.pop()(words)
    return lowered, options, time.perf_counter() - start


def finish_chunk(
    lowered: jax.stages.Lowered, options: Mapping[str, bool | str], seconds: float
) -> tuple[Program, float]:
    """Compiles what `lower_chunk` returned. Returns (program, seconds of both)."""
    start = time.perf_counter()
    return compile_lowered(lowered, options), seconds + time.perf_counter() - start
