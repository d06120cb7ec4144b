"""Several processes, on one or more hosts, that train one run together.

Each process runs the same program, and `jax.distributed` makes their devices one mesh. All
processes call a function of this module at the same place. Only process 0 writes files and
messages; all processes can read the folder of the run. With one process, all of this does nothing.
"""

import contextlib
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from wdjax.checks import one_line, require
from wdjax.signals import STOPPED

HEARTBEAT_SECONDS = 30  # without a heartbeat, after which a process counts as dead
CONNECT_SECONDS = 300  # maximum wait for the other processes at the start
VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
# in errors of XLA when another process is lost
LOST = re.compile(r"gloo|nccl|coordination ?service", re.IGNORECASE)


class OthersRefusedError(RuntimeError):
    """Another process has raised an error, and reports it."""


def connect(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Connect to the other processes of a run (`jax.distributed.initialize`), if there are any.

    Call it before anything else of jax. Missing arguments are read from JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID, otherwise from the variables of SLURM's srun or Open MPI's
    mpirun, as jax reads them. These give each process one GPU.

    Args:
        coordinator: "HOST:PORT" of process 0.
        num_processes: number of processes of the run.
        process_id: number of this process, from 0.

    Raises:
        ValueError: if an argument is missing or invalid; the message contains its flag.
    """
    if coordinator is None:
        coordinator = os.environ.get(VARIABLES["coordinator"]) or None
    num_processes = number_from_environment("num_processes", num_processes)
    process_id = number_from_environment("process_id", process_id)
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing, launched = [name for name, value in given.items() if value is None], is_launched()
    if missing == list(given) and not launched:
        return
    if missing and not launched:
        flags = ", ".join(f"{flag(name)} (or {VARIABLES[name]})" for name in missing)
        raise ValueError(f"{flags}: required when several processes train one run")
    require_fit(coordinator, num_processes, process_id)
    if num_processes == 1:
        return
    where = f" at {coordinator}" if coordinator else ""
    which = "" if missing else f"process {process_id} of {num_processes}: "
    print(
        f"{which}waiting for the other processes{where} (at most {CONNECT_SECONDS} s)",
        file=sys.stderr,
        flush=True,
    )
    with kept_handler(signal.SIGTERM):
        jax.distributed.initialize(
            coordinator, num_processes, process_id,
            cluster_detection_method=None if launched else "deactivate",
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )  # fmt: skip


def flag(name: str) -> str:
    """Return the flag of the command line for an argument of `connect`: --num-processes."""
    return f"--{name.replace('_', '-')}"


def number_from_environment(name: str, given: int | None) -> int | None:
    """Return an argument of `connect`; if it is None, its value in the environment, if any."""
    text = os.environ.get(VARIABLES[name])
    if given is not None or not text:
        return given
    require(re.fullmatch(r"\d+", text), VARIABLES[name], text, "a whole number")
    return int(text)


def is_launched() -> bool:
    """Return whether srun or mpirun started this process as one of several."""
    sizes = {"SLURM_NTASKS": "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE": "OMPI_MCA_orte_hnp_uri"}
    return any(
        step in os.environ and os.environ.get(size, "1") != "1" for size, step in sizes.items()
    )


def is_one_of_several() -> bool:
    """Return whether this process has a launcher, or environment variables for `connect`."""
    return is_launched() or any(name in os.environ for name in VARIABLES.values())


def require_fit(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Raise ValueError for an invalid address, number of processes or process; they may be None."""
    port = re.fullmatch(r".+:(\d{1,5})", coordinator or "any:1")
    require(
        port and 1 <= int(port[1]) <= 65535,
        flag("coordinator"),
        coordinator,
        "HOST:PORT of process 0, with a port from 1 to 65535",
    )
    positive = num_processes is None or num_processes >= 1
    require(positive, flag("num_processes"), num_processes, "at least 1")
    if process_id is not None:
        below = f" and below num_processes = {num_processes}" if num_processes is not None else ""
        fits = 0 <= process_id < (num_processes or process_id + 1)
        require(fits, flag("process_id"), process_id, f"at least 0{below}")


@contextlib.contextmanager
def kept_handler(number: int) -> Iterator[None]:
    """Restore this process's handler of a signal: `jax.distributed` replaces SIGTERM's."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.getsignal(number)
    yield
    signal.signal(number, signal.SIG_DFL if before is None else before)


def is_first() -> bool:
    """Return whether this is process 0, which writes files and messages."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Return, in every process, whether the flag is set in any."""
    return bool(of_processes(np.array([flag])).any())


def of_processes(rows: np.ndarray) -> np.ndarray:
    """Return, in every process, the rows [N, ...] of all processes, with equal shapes."""
    if jax.process_count() == 1:
        return rows
    with ending_with_others():
        return np.concatenate(multihost_utils.process_allgather(rows))


def as_first(flag: bool) -> bool:
    """Return, in every process, the flag of process 0: rounding can differ between processes."""
    return any_process(flag and is_first())


def number_of_first(value: float) -> float:
    """Return, in every process, the number of process 0: clocks differ between processes."""
    return float(of_processes(np.array([value], np.float32))[0])


def on_first(function: Callable[..., object], *arguments: object) -> None:
    """Call a function in process 0, and return in all processes when it is done.

    Raises:
        Exception: as raised by the function, in process 0.
        OthersRefusedError: in the other processes, if the function raises an error.
    """
    _together("process 0", function if is_first() else lambda *_: None, *arguments)


def on_all(function: Callable[..., object], *arguments: object) -> None:
    """Call a function in every process, and return in all processes when all are done.

    Raises:
        Exception: as raised by the function, in the processes where it does.
        OthersRefusedError: in the other processes.
    """
    _together("another process", function, *arguments)


def _together(who: str, function: Callable[..., object], *arguments: object) -> None:
    error = None
    try:
        function(*arguments)
    except Exception as raised:
        error = raised
    failed = any_process(error is not None)
    if error is not None:
        raise error
    if failed:
        raise OthersRefusedError(
            f"{who} failed. The error message is in the output of that process"
        )


def wait_for_all() -> None:
    """Wait for all processes: the exit of one process would end the run."""
    any_process(False)


@contextlib.contextmanager
def ending_with_others() -> Iterator[None]:
    """End this process at once, with a message, if its program fails because another process died.

    An exception would not do, since its handlers wait for the lost process to save. If nothing
    fails, jax ends the process after HEARTBEAT_SECONDS without a heartbeat, with its own message.
    """
    try:
        yield
    except Exception as error:
        if not tells_of_a_lost_one(error):
            raise
        end(error)


def tells_of_a_lost_one(error: BaseException) -> bool:
    """Return whether an error means that another process of the run died."""
    several = jax.process_count() > 1 and isinstance(error, Exception)
    return several and bool(LOST.search(str(error)))


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """End this process at once if an error ends it, and there are other processes.

    Otherwise jax would wait at exit for the others, which may be waiting for this process. They
    detect its end, and end too (`ending_with_others`).
    """
    try:
        yield
    except BaseException as error:
        agreed = isinstance(error, SystemExit) and error.code == STOPPED
        if agreed or not jax.distributed.is_initialized():
            raise
        end(error)


def end(error: BaseException) -> None:
    """Print an error and end the process, without the cleanup of Python."""
    if tells_of_a_lost_one(error):
        print(
            f"wdjax: process {jax.process_index()} of {jax.process_count()} stops: another process "
            f"of the run died or is unreachable ({one_line(error)[:200]}). See its output, then "
            "continue with --resume.",
            file=sys.stderr,
        )
    elif isinstance(error, OthersRefusedError):
        print(f"wdjax: {one_line(error)}", file=sys.stderr)
    elif not isinstance(error, (SystemExit, KeyboardInterrupt)):
        traceback.print_exception(error)
    code = STOPPED if isinstance(error, KeyboardInterrupt) else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    if is_first():  # it is the coordinator: let the others print their messages first
        time.sleep(2)
    os._exit(code)
