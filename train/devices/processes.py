"""Several processes, on one host or many, that train one run together: how they find each other, agree, and end.

Every process runs the same program, `jax.distributed` makes their devices one mesh, and a function here is called by
all of them at the same place. Process 0 alone writes files and words; all of them see the folder of the run. With one
process all of this does nothing.
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
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from wdjax.checks import one_line, require

HEARTBEAT_SECONDS = 30  # a process that is not heard of for so long has died: jax ends the others
CONNECT_SECONDS = 300  # for which a process waits for the others at the start
STOPPED = 130  # the exit status of a run that a signal has stopped: in all its processes, and by agreement
VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS", "num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID",
}  # fmt: skip
LOST = re.compile(
    r"gloo|nccl|coordination ?service", re.IGNORECASE
)  # in what XLA says when a peer is gone


class OthersRefusedError(RuntimeError):
    """Another process has refused what this one has not, and says why."""


def connect(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins the other processes of a run (`jax.distributed.initialize`); does nothing where there is one process.

    What is not given is read from the environment, JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, else
    from what SLURM's srun or Open MPI's mpirun tell each of their processes, as jax itself finds it; these give every
    process one GPU. Call it before anything else of jax.

    Args:
        coordinator: "HOST:PORT", where process 0 listens and the others find it.
        num_processes: of the run.
        process_id: from 0.

    Raises:
        ValueError: naming the flag, where one is missing or does not fit.
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    given = {
        name: from_environment(name) if value is None else value for name, value in given.items()
    }
    missing, launched = [name for name, value in given.items() if value is None], is_launched()
    if missing == list(given) and not launched:
        return
    if missing and not launched:
        flags = ", ".join(f"{flag(name)} (or {VARIABLES[name]})" for name in missing)
        raise ValueError(f"{flags}: required when several processes train one run")
    require_fit(**given)
    if given["num_processes"] == 1:
        return
    where = f" at {given['coordinator']}" if given["coordinator"] else ""
    who = "" if missing else f"process {given['process_id']} of {given['num_processes']}: "
    print(
        f"{who}waiting for the other processes{where} (at most {CONNECT_SECONDS} s)",
        file=sys.stderr,
        flush=True,
    )
    with kept_handler(signal.SIGTERM):
        jax.distributed.initialize(
            given["coordinator"], given["num_processes"], given["process_id"],
            cluster_detection_method=None if launched else "deactivate",
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )  # fmt: skip


def flag(name: str) -> str:
    """Returns the flag of the command line that says what the field does: --num-processes."""
    return f"--{name.replace('_', '-')}"


def from_environment(name: str) -> str | int | None:
    """Returns what the environment says in place of a flag, None where it says nothing."""
    text = os.environ.get(VARIABLES[name])
    if not text or name == "coordinator":
        return text or None
    require(re.fullmatch(r"\d+", text), VARIABLES[name], text, "a whole number")
    return int(text)


def is_launched() -> bool:
    """Whether srun or mpirun has started this process as one of several; jax reads the rest from their variables."""
    sizes = {"SLURM_NTASKS": "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE": "OMPI_MCA_orte_hnp_uri"}
    return any(
        step in os.environ and os.environ.get(size, "1") != "1" for size, step in sizes.items()
    )


def is_one_of_several() -> bool:
    """Return whether srun, mpirun or an environment variable for `connect` makes this process one of several."""
    return is_launched() or any(name in os.environ for name in VARIABLES.values())


def require_fit(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Raises ValueError for an address, a number of processes or a process that cannot be; None fits always."""
    port = re.fullmatch(r".+:(\d{1,5})", coordinator or "any:1")
    allowed = "HOST:PORT of process 0, with a port from 1 to 65535"
    require(port and 1 <= int(port[1]) <= 65535, flag("coordinator"), coordinator, allowed)
    require(
        num_processes is None or num_processes >= 1,
        flag("num_processes"),
        num_processes,
        "at least 1",
    )
    if process_id is not None:
        below = f" and below num_processes = {num_processes}" if num_processes is not None else ""
        fits = 0 <= process_id < (num_processes or process_id + 1)
        require(fits, flag("process_id"), process_id, f"at least 0{below}")


@contextlib.contextmanager
def kept_handler(number: int) -> Iterator[None]:
    """Puts this process's own handler of a signal back: `jax.distributed` takes SIGTERM for itself and swallows it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.getsignal(number)
    yield
    signal.signal(number, signal.SIG_DFL if before is None else before)


def is_first() -> bool:
    """Whether this is process 0: the one that writes."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Returns, in every process, whether the flag is set in any."""
    return bool(of_processes(np.array([flag])).any())


def of_processes(rows: np.ndarray) -> np.ndarray:
    """Return, in every process, the rows [N, ...] of all processes, each of which has equally many."""
    if jax.process_count() == 1:
        return rows
    with ending_with_others():
        return np.concatenate(multihost_utils.process_allgather(rows))


def as_first(flag: bool) -> bool:
    """Returns, in every process, what process 0 says: floats may differ in their last bits, what is done must not."""
    return any_process(flag and is_first())


def number_of_first(value: float) -> float:
    """Returns, in every process, the number of process 0: clocks differ, what is done must not."""
    return float(of_processes(np.array([value], np.float32))[0])


def on_first(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function in process 0, and returns in all of them once it is done.

    Raises:
        Exception: what the function raises, in process 0.
        OthersRefusedError: in the others, where it raises there.
    """
    _together("process 0", function if is_first() else lambda *_: None, *arguments)


def on_all(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function in every process, and returns in all of them once it is done.

    Raises:
        Exception: what the function raises, in the processes where it does.
        OthersRefusedError: in the others.
    """
    _together("another process", function, *arguments)


def _together(who: str, function: Callable[..., Any], *arguments: Any) -> None:
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
    """Returns once every process has come here: one that is early would end the run by leaving."""
    any_process(False)


@contextlib.contextmanager
def ending_with_others() -> Iterator[None]:
    """Ends this process at once, in a sentence, where its program fails because another one is gone.

    Not by an exception: on its way out it would wait for the lost one again, to save. Where nothing fails, only waits,
    jax ends the process once there was no heartbeat for HEARTBEAT_SECONDS, and says so.
    """
    try:
        yield
    except Exception as error:
        if not tells_of_a_lost_one(error):
            raise
        end(error)


def tells_of_a_lost_one(error: BaseException) -> bool:
    """Whether an error says that another process of the run is gone."""
    return (
        jax.process_count() > 1 and isinstance(error, Exception) and bool(LOST.search(str(error)))
    )


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Ends a process of several at once where an error ends it: jax would have it wait at its exit for the others,
    which may be waiting for it. They notice, and end too (`ending_with_others`)."""
    try:
        yield
    except BaseException as error:
        agreed = isinstance(error, SystemExit) and error.code == STOPPED
        if agreed or not jax.distributed.is_initialized():
            raise
        end(error)


def end(error: BaseException) -> None:
    """Says what has happened and ends the process, without any of Python's cleaning up."""
    if tells_of_a_lost_one(error):
        print(
            f"wdjax: process {jax.process_index()} of {jax.process_count()} stops: another process of the run died or "
            f"is unreachable ({one_line(error)[:200]}). See its output, then continue with --resume.", file=sys.stderr
        )  # fmt: skip
    elif isinstance(error, OthersRefusedError):
        print(f"wdjax: {one_line(error)}", file=sys.stderr)
    elif not isinstance(error, (SystemExit, KeyboardInterrupt)):
        traceback.print_exception(error)
    code = (
        error.code
        if isinstance(error, SystemExit)
        else STOPPED
        if isinstance(error, KeyboardInterrupt)
        else 1
    )
    sys.stdout.flush()
    sys.stderr.flush()
    if is_first():
        time.sleep(
            2
        )  # the others talk through process 0: let those that end too say their own sentence first
    os._exit(code if isinstance(code, int) else 1)
