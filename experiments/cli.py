"""The command line of wdjax."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path.pop(0)  # the current folder, added by `python -m`: its files must not shadow libraries

import contextlib
import gc
import importlib
import itertools
import os
import re
import shlex
import shutil
import signal
import textwrap
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

try:
    FOLDER: str | None = os.getcwd()
except FileNotFoundError:
    FOLDER = None  # deleted; jaxlib 0.12 cannot be imported in such a folder
    os.chdir(os.sep)

import jax

from wdjax.checks import did_you_mean, one_line, require
from wdjax.console import Console, keep_output, table_console
from wdjax.lazy import no_garbage_collection
from wdjax.named import find_modules_here
from wdjax.signals import STOPPED
from wdjax.train import BadNumbersError, FailedCheckError
from wdjax.train.devices.processes import is_one_of_several, leaving
from wdjax.train.devices.startup import wake_device
from wdjax.version import __version__

USAGE = """\
usage: wdjax COMMAND ...

  wdjax train PRESET [--workdir DIR] [--resume] [--FIELD VALUE ...]
      train a preset (a name or a YAML file)
  wdjax sweep PRESET [--FIELD VALUE,VALUE ...] [--seeds N]
      train many runs in one program; --search, --pbt
  wdjax eval RUN [RUN ...] [--opponents NAME ...] [--output FILE]
      print a cross-play matrix: runs, random, scripts
  wdjax render RUN [--output FILE] [--npz FILE]
      save one episode: GIF, player (.html), SVG, arrays
  wdjax play RUN [--open] [--port PORT]
      control one agent in a browser, against trained policies, scripts or random play
  wdjax report RUN [RUN ...] [--output FILE]
      write one page about runs or a sweep: curves, cross-play, a player
  wdjax export RUN [--policies NAME ...] [--output DIR]
      export policies for use without wdjax
  wdjax bench [ROW ...] [--tier TIER ...] [--small] [--json FILE]
      measure env steps/s of the benchmark suite
  wdjax new NAME          write a project: environment, preset, test, notebook
  wdjax diff RUN RUN      compare two runs or presets
  wdjax list              list environments, presets and bundled runs
  wdjax completion        print a completion script for bash and zsh

First run:
  wdjax train tag_small                 train both sides of Tag, 2 minutes on 2 CPU cores
  wdjax eval runs/tag_small             evaluate them against random play

wdjax --version prints the version. wdjax COMMAND --help lists flags; wdjax train PRESET --help
lists topics of fields. Set WDJAX_TRACEBACK=1 to see the traceback of an error."""

# module:function; imported on use, because imports take seconds
COMMANDS = {
    "train": "wdjax.experiments.commands.train:train",
    "sweep": "wdjax.experiments.commands.sweep:sweep",
    "eval": "wdjax.experiments.commands.players:evaluate",
    "export": "wdjax.experiments.commands.players:export",
    "render": "wdjax.experiments.commands.players:render",
    "play": "wdjax.experiments.commands.play:play",
    "report": "wdjax.experiments.commands.report:report",
    "bench": "wdjax.experiments.benchmarks.suite:bench",
    "new": "wdjax.experiments.commands.new:new",
    "diff": "wdjax.experiments.commands.diff:diff",
    "completion": "wdjax.experiments.commands.completion:completion",
    "list": "wdjax.experiments.cli:list_all",
}

# Frequent guesses of commands -> hint.
HINTS = {
    "resume": "use wdjax train PRESET --resume", "evaluate": "did you mean 'eval'?",
    "search": "use wdjax sweep PRESET --search N",
    "version": "use wdjax --version", "init": "use wdjax new NAME",
}  # fmt: skip


FAILURES = (BadNumbersError, FailedCheckError)  # end with exit status 1


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command. Bad input ends with one sentence and status 2, bad numbers with status 1."""
    if argv is None:  # from a shell
        find_modules_here()
        keep_output()
        sys.unraisablehook = interrupt_again
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        raise SystemExit(0 if arguments else 2)
    if arguments == ["--version"]:
        print(f"wdjax {__version__}")
        return
    try:
        with leaving():
            call(*arguments)
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None
    finally:
        if argv is None:
            gc.freeze()  # skips garbage collection at exit, half a second


def interrupt_again(lost: Any) -> None:
    """Send SIGINT again if Python dropped a KeyboardInterrupt; a hook for `sys.unraisablehook`.

    During garbage collection it is raised inside a callback of jax, and Python ignores exceptions
    there, as in the hook itself.
    """
    try:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(lost)
            return
    except KeyboardInterrupt:
        pass
    # from a thread, as the hook cannot raise
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()


def call(command: str, *rest: str) -> None:
    """Run a command with its arguments; bad input ends with one sentence and exit status 2."""
    try:
        if command not in COMMANDS:
            raise ValueError(f"unknown command {command!r}: {HINTS.get(command) or meant(command)}")
        if command in ("completion", "diff", "list", "new") and rest in (("-h",), ("--help",)):
            print(USAGE)
            return
        if FOLDER is None:
            words = "the current folder was deleted. Change to another folder (cd) and try again"
            raise FileNotFoundError(words)
        cache_compilations()
        if wakes_at_once(command, rest):
            _AWAKE[:] = [wake_device()]
        module, function = COMMANDS[command].split(":")
        with no_garbage_collection():
            run = getattr(importlib.import_module(module), function)
        try:
            run(list(rest))
        except (RuntimeError, AssertionError):
            wake_device().result()  # raises if jax has no device, which is then the cause
            raise
        sys.stdout.flush()
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError, *FAILURES) as error:
        if os.environ.get("WDJAX_TRACEBACK"):
            raise
        sentence = f"wdjax: {one_line(error)}{notes_of(error, command, *rest)}"
        Console(stderr=True).print(sentence, style="red", highlight=False, soft_wrap=True)
        raise SystemExit(1 if isinstance(error, FAILURES) else 2) from error


def notes_of(error: BaseException, command: str, *rest: str) -> str:
    """Return the notes of an error, and the command line that trusts the modules that it names."""
    notes = [note for note in getattr(error, "__notes__", ()) if "JAX has removed" not in note]
    text = "".join(f" ({note})" for note in notes)
    modules = getattr(error, "modules", ()) or getattr(error.__cause__, "modules", ())
    if not modules:
        return text
    trusting = [word for module in modules for word in ("--trust", module)]
    line = shlex.join([program(), command, *rest, *trusting])
    return f"{text} Full command: {one_line(line)}"


def program() -> str:
    """Return the command of this program: wdjax, or its path if PATH has another one or none."""
    started, found = Path(sys.argv[0]), shutil.which("wdjax")
    same = found is not None and started.is_file() and started.samefile(found)
    return "wdjax" if same or started.name != "wdjax" else sys.argv[0]


def meant(command: str) -> str:
    """Return a hint for an unknown command: training of a preset, or the closest command."""
    from wdjax.train import preset_path

    with contextlib.suppress(ValueError, OSError):
        preset_path(command)
        return f"did you mean wdjax train {command}?"
    return did_you_mean(command, COMMANDS)


IN_A_MINUTE = "quick version:"


def list_all(arguments: list[str]) -> None:
    """wdjax list: print environments, presets and bundled runs."""
    from wdjax.envs import list_envs
    from wdjax.train import list_presets, list_references, preset_path
    from wdjax.train.load import ALIASES

    if arguments:
        raise ValueError(f"wdjax list takes no arguments, not {' '.join(arguments)}")
    console = table_console(highlight=False)
    console.print("environments:", *list_envs(), sep="\n  ")
    console.print("  gymnax:NAME, jaxmarl:NAME, jumanji:NAME (if the library is installed)")
    console.print("presets:")
    for name in list_presets():
        path = preset_path(name)
        purpose = path.read_text(encoding="utf8").splitlines()[0].removeprefix("# ")
        also = "".join(f"; alias {alias}" for alias, preset in ALIASES.items() if preset == name)
        first, *rest = in_columns(name, [purpose, f"{cost_of(path)}{also}"], console.width)
        console.print(first, soft_wrap=True)
        for line in rest:
            console.print(line, soft_wrap=True, style="dim")
    console.print("bundled runs, usable wherever a command takes RUN:")
    console.print(" ", ", ".join(f"reference:{row}" for row in list_references()), soft_wrap=True)


def in_columns(name: str, paragraphs: Sequence[str], width: int) -> list[str]:
    """Return lines with a name and wrapped paragraphs, to the right of it or, if narrow, below."""
    column = 38 if width >= 110 else 6
    lines = [
        " " * column + line
        for text in paragraphs
        for line in textwrap.wrap(text, max(width - column - 1, 20), break_on_hyphens=False)
    ]
    if column == 6:
        return [f"  {name}", *lines]
    return [f"  {name:{column - 2}}{lines[0].strip()}", *lines[1:]]


def cost_of(path: Path) -> str:
    """Return the cost of a preset: env steps, and "Costs:" and "Quick version:" of its header."""
    from wdjax.train import TrainConfig
    from wdjax.yaml_reader import read_yaml

    steps = int(read_yaml(path).get("total_env_steps", TrainConfig.total_env_steps))
    lines = path.read_text(encoding="utf8").splitlines()
    header = itertools.takewhile(lambda line: line.startswith("#"), lines)
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", "\n".join(line[1:].strip() for line in header))
    costs = re.search(r"\bCosts: (.*?\.)(?: [A-Z]|$)", text, re.MULTILINE)
    small = re.search(r"\bQuick version: (\w+)", text)
    parts = (costs and costs[1].rstrip("."), small and f"{IN_A_MINUTE} {small[1]}")
    return "; ".join([f"{steps:,} env steps", *filter(None, parts)])


# Flags of `train` that configure jax before it searches devices, or that do not train.
_FIRST = (
    "--env=",
    "--help",
    "-h",
    "--dry-run",
    "--deterministic",
    "--trust",
    "--coordinator",
    "--num-processes",
    "--process-id",
)

_AWAKE: list[Future] = []  # result of `wake_device`: jax reports an unusable device only once


def wakes_at_once(command: str, arguments: Sequence[str]) -> bool:
    """Return whether a device may be initialised while wdjax is imported, which takes as long.

    This is done for a bundled preset in one process, without custom code, which may have to run
    first. After an invalid flag, the process ends once the device is initialised.
    """
    named = any(
        (Path(__file__).parent / "configs" / f"{name}.yaml").is_file() for name in arguments[:1]
    )
    early = lambda text: text == "--env" or ":" in text or text.replace("_", "-").startswith(_FIRST)  # noqa: E731
    if command != "train" or not named or is_one_of_several():
        return False
    return not any(map(early, arguments))


def import_trainer() -> type:
    """Import the Trainer while the device is initialised.

    Raises:
        OSError: if a device cannot be used, as `find_devices`.
    """
    with no_garbage_collection():
        devices = _AWAKE.pop() if _AWAKE else wake_device()
        from wdjax.train import Trainer
    devices.result()
    return Trainer


def cache_compilations() -> None:
    """Cache compiled programs in ~/.cache/wdjax, unless JAX_COMPILATION_CACHE_DIR is set.

    They are machine code: a folder that other users can write is not used, with a warning.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        cache = base / "wdjax"
        require(base.is_absolute(), "XDG_CACHE_HOME", str(base), "an absolute path")
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = cache.stat()
        if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            words = "belongs to another user, or other users can write it. Delete it, or set"
            raise PermissionError(f"{cache} {words} JAX_COMPILATION_CACHE_DIR to a folder of yours")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no home
        words = f"Warning: the compilation cache is disabled: {one_line(error)}"
        Console(stderr=True).print(words, highlight=False, soft_wrap=True)
        return
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", 0.0
    )  # a run starts with dozens of small programs


if __name__ == "__main__":
    main()
