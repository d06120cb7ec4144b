"""Compiled programs that are kept whole between processes: a start that finds its own traces nothing.

jax keeps what XLA made of a program under a name for which it must be traced, 1 to 3 s of Python in every start. Here a
program's name is made of all that it is traced and compiled from: wdjax's own files, versions, the configuration, the
device, and the settings of jax and XLA. It is for runs of wdjax's own code alone, on one device, in a process that has
asked for it (`keep_programs`): code of somebody else's may change without that anybody here knows. Whatever goes wrong
with a kept program, it is traced as if there were none.
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
from wdjax.train.config.trust import code_named
from wdjax.train.devices.startup import keeps_programs
from wdjax.train.kernels.layers import are_used
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
_SETTINGS = ("XLA_", "JAX_", "TF_", "CUDA_", "NVIDIA_", "TRITON_")  # how environment variables begin that change one


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
        with _is_new() as new:
            program = self._trace()[0].compile(compiler_options=dict(compiler_options or {}))
        # XLA forgets the code of a CPU's program that was itself read from jax's cache
        if file is not None and (new or jax.default_backend() == "gpu"):
            _write(file, self._arguments, program, self.words)
        return program

    def _file(self, options: Mapping[str, bool | str] | None) -> Path | None:
        shapes = [(np.shape(leaf), str(getattr(leaf, "dtype", ""))) for leaf in jax.tree.leaves(self._arguments)]
        own = [self._name, sorted((options or {}).items()), shapes]
        return None if self._name is None else _folder() / f"{_digest(own)}.bin"


def name_of(setup: Setup, what: str, *facts: Any) -> str | None:
    """Returns the name of a program, in which all stands that may change it; None where it must not be kept.

    Args:
        setup: of the run.
        what: it does: "chunk".
        facts: what else it depends on, plain numbers.
    """
    config, device = setup.config, jax.devices()[0]
    alone = jax.process_count() == setup.num_devices == 1 and device_of_new_arrays() == device
    if not keeps_programs() or _folder() is None or not alone or _is_of_others(setup):
        return None
    params = [np.asarray(leaf) for leaf in jax.tree.leaves(setup.env_params)]
    return _digest([
        what, facts, _sources(), made_with(), device.client.platform_version, _processor(), are_used(),
        {name: value for name, value in plain_config(config).items() if name not in OF_THE_HOST},
        [(leaf.shape, str(leaf.dtype), leaf.tobytes().hex()) for leaf in params],
        sorted((name, value) for name, value in os.environ.items() if name.startswith(_SETTINGS)),
        sorted((name, repr(getattr(jax.config, name, value))) for name, value in jax.config.values.items()),
    ])  # fmt: skip


def _is_of_others(setup: Setup) -> bool:
    """Returns whether a run is made of code or of runs that are not in `_sources`."""
    parts = [part for own in setup.policies.values() for part in (own.algorithm, own.encoder, own.distribution)]
    modules = {(part if isinstance(part, type) else type(part)).__module__ for part in parts}
    ours = setup.config.env in OWN and all(module.partition(".")[0] == "wdjax" for module in modules)
    return not ours or any(True for _ in code_named(setup.config)) or begin_elsewhere(setup)


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """Returns the digest of all files from which a program can be traced: of wdjax but for what lies above training."""
    found, root = hashlib.sha256(), Path(__file__).parents[2]
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in ("experiments", "__pycache__"))
        for file in (Path(folder) / name for name in sorted(files)):
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
        if hasattr(os, "getuid") and file.stat().st_uid != os.getuid():
            return None  # what is unpickled runs: it must be one's own
        content = file.read_bytes()
        os.utime(file)  # it was asked for
        digest, held = content[:32], content[32:]
        return pickle.loads(held) if hashlib.sha256(held).digest() == digest else None
    except Exception:  # pickle raises anything
        return None


def _load(file: Path | None, arguments: tuple) -> jax.stages.Compiled | None:
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
        kept = sorted(file.parent.iterdir(), key=lambda path: path.stat().st_mtime)
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
