"""Programs of several updates, compiled from the shapes of a state."""

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import jax
import numpy as np

from wdjax.checks import one_line, require
from wdjax.kernels.backend import CUDA, OTHER, on_cpu, on_gpu, platform
from wdjax.kernels.support import giving_up_kernels, listening, why_no_kernels
from wdjax.lazy import no_garbage_collection
from wdjax.train.devices.memory import bytes_free, bytes_needed
from wdjax.train.devices.packing import Packed
from wdjax.train.kernels.layers import OBSERVATIONS, why_unused
from wdjax.train.kernels.rollout import STEPS, WHOLE
from wdjax.train.learner.learner import Learner, run_up_to
from wdjax.train.state.policy import Setup
from wdjax.train.state.sharding import device_of_new_arrays
from wdjax.train.state.state import TrainState

# order of independent kernels in a command buffer (a CUDA graph)
SIDE_BY_SIDE = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
ONE_BY_ONE = {"xla_gpu_command_buffer_scheduling_mode": "LHS"}

# do not compile each fusion with and without Triton to time both: that takes up to a third of the
# compile time, and made no preset faster (RESULTS.md)
ONE_WAY = {"xla_gpu_experimental_enable_fusion_autotuner": False}
# backends for matrix products, without Triton; disabling Triton alone left some without a backend
LIBRARIES = {
    "xla_gpu_experimental_autotune_backends":
        "CUBLASLT,CUSTOM_KERNEL,NATIVE_EMITTER,CUBLASLT_FISSION,CUSTOM_KERNEL_FISSION"
}  # fmt: skip

UNKNOWN_OPTION = "No such compile option"  # in an error of XLA
MOST_CHARACTERS = 200  # limit for the error of a compiler

# (state, updates) -> (state, metrics)
Program = Callable[[TrainState, np.int32], tuple[TrainState, Packed]]
Listeners = list[Callable[[str], None]]

_LISTENERS: contextvars.ContextVar[Listeners] = contextvars.ContextVar("listeners")


@contextlib.contextmanager
def telling(say: Callable[[str], None]) -> Iterator[None]:
    """Call `say` once, when the first program in the block is traced, with `words_of_kernels`."""
    token = _LISTENERS.set([say])
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def words_of_kernels(heard: Mapping[str, str | None]) -> str:
    """Return which work of a program fused kernels do, and why plain XLA does the rest.

    Args:
        heard: work -> reason why no kernel does it, None if one does (kernels/support.py).

    Returns:
        One line; "" on a CPU.
    """
    if on_cpu() or not heard:
        return ""
    if heard.get(WHOLE, "") is None:  # it includes acting and steps
        parts = ("acting", STEPS)
        heard = {what: why for what, why in heard.items() if not what.startswith(parts)}
    reasons: dict[str, list[str]] = {}
    for what, why in heard.items():
        reasons.setdefault(why or "", []).append(what)
    by_kernels = ", ".join(reasons.pop("", ["none"]))
    plain = "; ".join(f"{', '.join(whats)} ({why})" for why, whats in reasons.items())
    return f"Fused kernels: {by_kernels}" + (f". Plain XLA: {plain}" if plain else "")


P = ParamSpec("P")
T = TypeVar("T")


def plain_where_kernels_fail(make: Callable[P, T]) -> Callable[P, T]:
    """Make a function that compiles programs retry without kernels if it raises.

    The process then compiles all programs without kernels: an error of a GPU or a compiler costs
    speed, but does not end a run. If the second attempt raises, the first error is raised.
    """

    @functools.wraps(make)
    def made(*arguments: P.args, **named: P.kwargs) -> T:
        listeners = _LISTENERS.get([])
        before = list(listeners)
        try:
            return make(*arguments, **named)
        except Exception as error:
            if why_unused() is not None:
                raise
            listeners[:] = before  # they may have been called with a message that is now wrong
            reason = f"kernels failed: {one_line(error)[:MOST_CHARACTERS]}"
            with contextlib.suppress(Exception), giving_up_kernels(reason):
                return make(*arguments, **named)
            raise

    return made


@plain_where_kernels_fail
def compile_chunk(learner: Learner, state: TrainState, most: int) -> tuple[Program, float]:
    """Compile chunks of up to `most` updates into one program, which donates its state.

    Returns:
        (program, seconds).
    """
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
    """Initialize a run and compile its chunks; on a GPU both at once, since each takes seconds.

    Args:
        learner: learner of the run.
        like: `abstract_state` of the learner's setup.
        seed: random seed of the run.
        most: maximum number of updates of a chunk.
        meanwhile: called while a program for a GPU is compiled.

    Returns:
        (state, program, seconds): learner.init(jax.random.key(seed)), and as `compile_chunk`.

    Raises:
        ValueError: if the state alone exceeds the memory: XLA would hang or end the process.
    """
    devices = learner.setup.num_devices
    free = bytes_free(devices)
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like)) // devices
    require(
        needed <= free,
        "state size in bytes",
        needed,
        f"at most {free}, the free memory of a device. Lower num_envs, past_selves or buffer_size.",
    )
    lowered = lower_chunk(learner, like, most)  # in this thread, which may have own settings of jax
    key = jax.random.key(seed)  # not earlier: it waits for the device, which reserves its memory
    # all processes must compile in the same order; and XLA compiles for a CPU on all of its cores
    if jax.process_count() > 1 or on_cpu():
        return learner.init(key), *finish_chunk(*lowered)
    with ThreadPoolExecutor(1) as thread:  # errors wait for it: a compilation cannot be stopped
        compiled = thread.submit(finish_chunk, *lowered)
        state = learner.init(key)
        meanwhile()
        return state, *compiled.result()


def compiler_options(setup: Setup, alone: bool = True) -> dict[str, bool | str]:
    """Return XLA's options for a run on a GPU.

    They shorten autotuning: if kernels compute the products, XLA does not try Triton for the few
    others. Independent kernels are launched side by side, which takes memory.

    Args:
        setup: setup of the run.
        alone: one run; False: a population, whose kernels are large.
    """
    if not on_gpu():
        return {}
    shapes = [policy.engine.shape for policy in setup.policies.values()]
    have_kernels = all(shape and shape.inputs == OBSERVATIONS for shape in shapes)
    if alone and have_kernels and why_unused() is None:
        return {"xla_gpu_enable_triton_gemm": False, **ONE_WAY, **SIDE_BY_SIDE}
    return {**ONE_WAY, **SIDE_BY_SIDE, **({} if setup.config.search_products else LIBRARIES)}


def compile_for(
    lowered: jax.stages.Lowered, setup: Setup, alone: bool = True
) -> jax.stages.Compiled:
    """Compile a traced program of a run, or if not `alone` of a population, with XLA's options."""
    return compile_lowered(lowered, compiler_options(setup, alone))


def compile_lowered(
    lowered: jax.stages.Lowered, options: Mapping[str, bool | str], free: int | None = None
) -> jax.stages.Compiled:
    """Compile with `compiler_options`.

    SIDE_BY_SIDE is dropped if it exceeds the memory. All options are dropped if XLA does not know
    one of them, since names change between versions; then compiling takes seconds longer.

    Args:
        lowered: traced program.
        options: from `compiler_options`.
        free: free bytes of a device; None: `bytes_free`.
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
    """Trace a chunk of up to `most` updates.

    Returns:
        (traced program, options, seconds).
    """
    chunk = functools.partial(run_up_to, learner.setup, most)
    return lower_updates(chunk, state, compiler_options(learner.setup))


def known_platform() -> str | None:
    """Return the value of `platform` for programs that run where new arrays are.

    None if `jax.default_device` chooses a backend that is not the default one, and for GPUs without
    kernels, which may be NVIDIA GPUs or others.
    """
    if device_of_new_arrays().platform != jax.default_backend():
        return None
    if on_gpu():
        return CUDA if why_no_kernels() is None else None
    return OTHER


def lower_updates(
    chunk: Callable, states: TrainState, options: Mapping[str, bool | str]
) -> tuple[jax.stages.Lowered, Mapping[str, bool | str], float]:
    """Trace a chunk of a run or a population, which donates its states. Return as `lower_chunk`."""
    start, listeners = time.perf_counter(), _LISTENERS.get([])
    with no_garbage_collection(), platform(known_platform()), listening() as heard:
        lowered = jax.jit(chunk, donate_argnums=0).lower(states, jax.ShapeDtypeStruct((), np.int32))
    words = words_of_kernels(heard)
    while listeners and words:
        listeners.pop()(words)
    return lowered, options, time.perf_counter() - start


def finish_chunk(
    lowered: jax.stages.Lowered, options: Mapping[str, bool | str], seconds: float
) -> tuple[Program, float]:
    """Compile the results of `lower_chunk`. Return (program, seconds of both)."""
    start = time.perf_counter()
    return compile_lowered(lowered, options), seconds + time.perf_counter() - start
