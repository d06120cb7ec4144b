"""Commands as real processes, forked from one that has imported wdjax, timed and killed."""

import contextlib
import dataclasses
import faulthandler
import importlib
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from sequences import Command

TRACEBACK = 99  # the exit status of a command with an unhandled exception
WALL = 5.0  # limit of wall time, as a multiple of the limit of CPU time
OUTPUT = ".output"  # output of the last command, next to the folders
CHANGES = (
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "shutil.rmtree",
    "os.link",
    "os.symlink",
)
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "MPLBACKEND": "agg",
    "COLUMNS": "200",
}


@dataclasses.dataclass(frozen=True)
class Result:
    """The end of a command."""

    status: int  # negative: the signal that ended the process
    output: str
    seconds: float
    hung: bool = False
    killed: bool = False  # whether the signals were sent


def import_wdjax() -> None:
    """Import the modules that commands need, before forks, without arrays or threads."""
    os.environ.update(ENVIRONMENT)
    flags = "--xla_force_host_platform_device_count=2"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    from wdjax.experiments import cli

    for place in cli.COMMANDS.values():
        importlib.import_module(place.partition(":")[0])
    for name in (
        "wdjax.train.trainer",
        "wdjax.train.evaluation.trained",
        "matplotlib.pyplot",
        "matplotlib.animation",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run_command(command: Command, folder: Path, limit: float) -> Result:
    """Run a line in a folder. It hangs if it takes more than `limit` seconds of CPU time."""
    if command.words[0] != "wdjax":
        return run_shell(command, folder)
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become(command, folder, limit)
    with contextlib.closing(Watched(pid)) as process:
        killed = send_kill(command, process, folder, begun, limit)
        hung = not process.wait(WALL * limit - (time.monotonic() - begun))
        if hung:
            process.send(signal.SIGABRT)  # faulthandler prints the stack of every thread
            process.wait(5) or process.send(signal.SIGKILL)
            process.wait(60)
        hung |= process.status == -signal.SIGXCPU
    output = (folder / OUTPUT).read_text(encoding="utf8", errors="replace")
    return Result(process.status, output, time.monotonic() - begun, hung, killed)


def run_shell(command: Command, folder: Path) -> Result:
    """Apply `rm`, `mv`, `cp`, `truncate` or `mkdir` without a process."""
    name, *rest = command.words
    places = [folder / word for word in rest if not word.startswith("-")]
    try:
        if name == "rm":
            shutil.rmtree(places[0]) if places[0].is_dir() else places[0].unlink()
        elif name in ("mv", "cp") and not places[1].exists():
            (shutil.move if name == "mv" else shutil.copytree)(places[0], places[1])
        elif name == "mkdir":
            places[0].mkdir()
        elif name == "truncate":
            size, file = int(rest[1]), folder / rest[2]
            os.truncate(file, size if size >= 0 else max(0, file.stat().st_size + size))
        else:
            raise FileExistsError(places[-1])
    except OSError as error:
        return Result(1, str(error), 0.0)
    return Result(0, "", 0.0)


class Watched:
    """A child process and its status."""

    def __init__(self, pid: int):
        self.pid, self.status, self.ended, self._handle = pid, 0, False, os.pidfd_open(pid)

    def wait(self, seconds: float) -> bool:
        """Return whether the process ends within `seconds`."""
        if not self.ended and select.select([self._handle], [], [], max(seconds, 0))[0]:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.ended = True
        return self.ended

    def send(self, number: int) -> None:
        if not self.ended:
            os.kill(self.pid, number)

    def close(self) -> None:
        os.close(self._handle)


def send_kill(command: Command, process: Watched, folder: Path, begun: float, limit: float) -> bool:
    """Wait for the moment of a kill and send its signals, unless the process sends them."""
    if not command.kill:
        return False
    names, when, number = parts_of_kill(command.kill)
    if when == "disk":
        return True
    before = count_lines(folder / command.folder)
    while time.monotonic() - begun < limit:
        if process.wait(0.002):
            return False
        done = (
            time.monotonic() - begun
            if when == "time"
            else count_lines(folder / command.folder) - before
        )
        if done >= number:
            break
    for name in names:
        process.send(name)
        process.wait(random.uniform(0, 0.1))
    return True


def count_lines(folder: Path) -> int:
    """Return the number of lines of all metrics.jsonl below a folder."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError):  # the command moved a folder in the meantime
            return sum(log.read_bytes().count(b"\n") for log in folder.rglob("metrics.jsonl"))
    raise FileNotFoundError(folder)


def parts_of_kill(kill: str) -> tuple[list[signal.Signals], str, float]:
    """Return (signals, "disk", "rows" or "time", number) of "INT,INT@time:0.7"."""
    names, when, number = kill.replace(":", "@").split("@")
    return [signal.Signals[f"SIG{name}"] for name in names.split(",")], when, float(number)


def become(command: Command, folder: Path, limit: float) -> None:
    """Turn a forked process into the command. Never returns."""
    status = TRACEBACK
    try:
        os.chdir(folder)
        os.environ["HOME"] = str(folder)
        file = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGXCPU, file=2, chain=True)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
        set_jax(command)
        if command.kill and "@disk:" in command.kill:
            kill_at_change(command.kill, str(folder))
        from wdjax.experiments.cli import interrupt_again, main

        sys.unraisablehook = interrupt_again  # as on the command line
        main(list(command.words[1:]))
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def set_jax(command: Command) -> None:
    """Set options that jax reads from the environment when it is imported."""
    import jax

    for setting in command.settings:
        name, _, text = setting.partition("=")
        os.environ[name] = text
        jax.config.update(name.lower(), text if name == "JAX_DEFAULT_PRNG_IMPL" else text == "1")


def kill_at_change(kill: str, folder: str) -> None:
    """Send signals to this process at the nth file operation inside a folder."""
    names, _, number = parts_of_kill(kill)
    left = int(number)

    def hook(event: str, arguments: tuple) -> None:
        nonlocal left
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            changes, path = event in CHANGES, arguments[0] if arguments else None
        if not changes or not isinstance(path, str | bytes | os.PathLike):
            return
        if os.path.abspath(os.fsdecode(path)).startswith(folder):
            left -= 1
            if left == 0:
                for name in names:
                    os.kill(os.getpid(), name)

    sys.addaudithook(hook)
