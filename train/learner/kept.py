"""Compiled programs that are kept whole between processes: a start that finds its own traces nothing.

jax keeps what XLA made of a program under a name for which it must be traced, 1 to 3 s of Python in every start. Here a
program's name is made of all that it is traced and compiled from: wdjax's own files, versions, the configuration, the
device, and the settings of jax and XLA. It is for runs of wdjax's own code alone, on one device, in a process that has
asked for it (`keep_programs`): code of somebody else's may change without that anybody here knows. A program that
cannot be kept, read or loaded is traced as if there were none.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from wdjax.envs import OWN
from wdjax.named import has_code_of_others
from wdjax.train.devices.startup import keeps_since
from wdjax.train.kernels.layers import why_unused
from wdjax.train.learner.warm_start import begin_elsewhere
from wdjax.train.state.hypers import HyperBlock, hypers_class
from wdjax.train.state.policy import Setup
from wdjax.train.state.sharding import device_of_new_arrays
from wdjax.train.storage.folder import made_with, partial_file, plain_config

MOST = 256  # programs, each 0.1 to 5 MB; who was not asked for for longest goes

# Fields that say how long a run is and how it is looked after, of which a program holds nothing (a test compares them).
OF_THE_HOST = (
    "seed", "total_env_steps", "stop_at", "updates_per_chunk", "checkpoint_every_updates", "checkpoint_every",
    "keep_checkpoints",
)  # fmt: skip
# How environment variables begin that may change one.
_SETTINGS = ("XLA_", "JAX_", "FLAX_", "TF_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "TRITON_")


class Kept:
    """A program that is kept, or will be: `compile` as that of `jax.stages.Lowered`.

    Args:
        name: of `name_of`; None: it is neither looked for nor kept.
        arguments: the shapes of what it is called with.
        trace: returns (what is to be compiled, what kernels do in it, in words); called at once where none is there.
        options: of XLA, with which it will be compiled.
    """

    def __init__(
        self, name: str | None, arguments: tuple, trace: Callable[[], tuple[jax.stages.Lowered, str]],
        options: Mapping[str, bool | str] | None = None,
    ):  # fmt: skip
        self._name, self._arguments, self._trace = name, arguments, functools.cache(trace)
        found = _read(self._file(options))
        self.words = self._trace()[1] if found is None else found[0]

    def compile(self, compiler_options: Mapping[str, bool | str] | None = None) -> jax.stages.Compiled:
        """Returns the program: the one that is kept, with these options, or one that is then kept."""
        file = self._file(compiler_options)
        program = _load(file, self._arguments)
        if program is not None:
            return program
        lowered, _ = self._trace()
        with _is_new() as new:
            program = lowered.compile(compiler_options=dict(compiler_options or {}))
        # XLA forgets the code of a CPU's program that was itself read from jax's cache
        if file is not None and (new or jax.default_backend() == "gpu"):
            _write(file, self._arguments, program, self.words)
        return program

    def _file(self, options: Mapping[str, bool | str] | None) -> Path | None:
        """Returns where it is kept, compiled with these options."""
        shapes = [(np.shape(leaf), str(getattr(leaf, "dtype", ""))) for leaf in jax.tree.leaves(self._arguments)]
        own = [self._name, sorted((options or {}).items()), shapes]
        return None if self._name is None else _folder() / f"{_digest(own)}.bin"


def name_of(setup: Setup, what: str, *facts: Any) -> str | None:
    """Returns the name of a program, in which all stands that may change it; None where it must not be kept, or what
    it is made of cannot be read.

    Args:
        setup: of the run.
        what: it does: "chunk".
        facts: what else it depends on, plain numbers.
    """
    device = jax.devices()[0]
    alone = jax.process_count() == setup.num_devices == 1 and device_of_new_arrays() == device
    if keeps_since() is None or _folder() is None or not alone or _is_of_others(setup):
        return None
    params = [np.asarray(leaf) for leaf in jax.tree.leaves(setup.env_params)]
    with contextlib.suppress(OSError, TypeError):  # a file that goes meanwhile; an option that is no plain value
        return _digest([
            what, facts, _sources(keeps_since()), made_with(), device.client.platform_version, _processor(),
            why_unused(), {name: own for name, own in plain_config(setup.config).items() if name not in OF_THE_HOST},
            [(leaf.shape, str(leaf.dtype), leaf.tobytes().hex()) for leaf in params],
            sorted((name, value) for name, value in os.environ.items() if name.startswith(_SETTINGS)),
            sorted((name, repr(getattr(jax.config, name, value))) for name, value in jax.config.values.items()),
        ])  # fmt: skip
    return None


def _is_of_others(setup: Setup) -> bool:
    """Returns whether a run is made of code or of runs that are not in `_sources`."""
    policies = setup.policies.values()
    parts = [setup.env, *(part for own in policies for part in (own.algorithm, own.encoder, own.distribution))]
    modules = {(part if isinstance(part, type) else type(part)).__module__ for part in parts}
    ours = setup.config.env in OWN and all(module.partition(".")[0] == "wdjax" for module in modules)
    return not ours or has_code_of_others() or begin_elsewhere(setup)


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _sources(begun: float) -> str:
    """Returns the digest of all files of wdjax from which a program can be traced: code, and data of environments.

    Args:
        begun: seconds of `time.time` before they were imported.

    Raises:
        OSError: where one cannot be read, or has been changed since: who knows what of it was imported.
    """
    found, root = hashlib.sha256(), Path(__file__).parents[2]
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        data = "envs" in Path(folder).relative_to(root).parts
        for name in sorted(files):
            if name.startswith(".") or not (data or name.endswith(".py")):
                continue
            file = Path(folder) / name
            if file.stat().st_mtime > begun:
                raise OSError(f"{file} was changed meanwhile")
            found.update(f"{file.relative_to(root)} {file.stat().st_size} ".encode() + file.read_bytes())
    return found.hexdigest()


@functools.cache
def _processor() -> str:
    """Returns what instructions this machine's CPU has, where Linux says so: a program is compiled for them."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
        return next(line for line in lines if line.lower().startswith(("flags", "features")))
    return ""


def _folder() -> Path | None:
    """Returns where programs are kept, in jax's own cache; None where it has none, or none on this machine."""
    cache = jax.config.jax_compilation_cache_dir
    if not cache or "://" in cache or not jax.config.jax_enable_compilation_cache:
        return None
    return Path(cache) / "programs"


def _read(file: Path | None) -> tuple[str, bytes, Any] | None:
    """Returns (words of kernels, program, the tree of its results); None where a file is not there, or damaged."""
    if file is None:
        return None
    try:
        with open(file, "rb") as stream:
            if hasattr(os, "getuid") and os.fstat(stream.fileno()).st_uid != os.getuid():
                return None  # what is unpickled runs: it must be one's own
            content = stream.read()
        os.utime(file)  # it was asked for
        digest, held = content[:32], content[32:]
        return pickle.loads(held) if hashlib.sha256(held).digest() == digest else None
    except Exception:  # pickle raises anything
        return None


def _load(file: Path | None, arguments: tuple) -> jax.stages.Compiled | None:
    """Returns a program that is kept, None where it cannot be had."""
    found = _read(file)
    if found is None:
        return None
    try:
        _ready()
        taken = jax.tree.structure((arguments, {}))
        return deserialize_and_load(found[1], taken, found[2], execution_devices=jax.devices()[:1])
    except Exception:  # of another driver than it was made with, say
        return None


@functools.cache
def _ready() -> None:
    """Has jax find LAPACK, as it does where something of it is lowered: a program that calls it would end the process
    otherwise. Networks begin orthogonal, by QR."""
    if jax.default_backend() == "cpu":
        jax.jit(jnp.linalg.qr).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))


def _write(file: Path, arguments: tuple, program: jax.stages.Compiled, words: str) -> None:
    """Keeps a program, whole or not at all; one that cannot be written is none that has failed."""
    try:
        content, taken, given = serialize(program)
        if taken != jax.tree.structure((arguments, {})):
            return
        stream = io.BytesIO()
        _Pickler(stream).dump((words, content, given))
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = partial_file(file.with_name(f"{file.name}.{os.getpid()}"))
        partial.write_bytes(hashlib.sha256(stream.getvalue()).digest() + stream.getvalue())
        partial.replace(file)
        kept = sorted(file.parent.glob("*.bin*"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST]:
            old.unlink(missing_ok=True)
    except Exception:  # a full disk; a tree of results with what no other process can find by its name
        return


class _Pickler(pickle.Pickler):
    """Knows how classes of hyperparameters are made again: they are made of a configuration's while wdjax runs."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type) and issubclass(thing, HyperBlock) and thing is not HyperBlock:
            return hypers_class, (thing.config,)
        return NotImplemented


@contextlib.contextmanager
def _is_new() -> Iterator[list[str]]:
    """Gives a list that is empty unless what is compiled in here, by this thread, is no program of jax's cache."""
    new, thread = [], threading.get_ident()

    def listen(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_misses" and threading.get_ident() == thread:
            new.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        yield new
    finally:
        jax.monitoring.unregister_event_listener(listen)
