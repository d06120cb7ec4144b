"""Multi-process training, with real processes on the CPU that communicate over loopback."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_runs import logged, numbers

from wdjax.train import Trainer, load_run, read_metrics
from wdjax.train.devices import processes
from wdjax.train.devices.processes import (
    OthersRefusedError,
    any_process,
    as_first,
    connect,
    ending_with_others,
    is_launched,
    kept_handler,
    leaving,
    on_all,
    on_first,
)
from wdjax.train.storage.checkpoint import open_checkpoints
from wdjax.train.storage.folder import load_run_config

SECONDS = 120  # timeout of a process; then it is killed and the test fails

# The command line of `wdjax`, with a shorter heartbeat.
PROGRAM = (
    "from wdjax.train.devices import processes as p; p.HEARTBEAT_SECONDS = 5; "
    "from wdjax.experiments.cli import main; main()"
)
ARGUMENTS = (
    "--num-envs",
    "8",
    "--rollout-length",
    "16",
    "--updates-per-chunk",
    "1",
    "--checkpoint-every",
    "2",
    "--eval-episodes",
    "4",
    "--policies.agent.network.hidden-sizes",
    "8",
)
ENV_STEPS = 8 * 16  # per update


def by_flags(port, i):
    return [
        "--coordinator",
        f"127.0.0.1:{port}",
        "--num-processes",
        "2",
        "--process-id",
        str(i),
    ], {}


def by_variables(port, i):
    return [], {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": str(i),
    }


def by_slurm(port, i):
    """Return the variables of srun. jax derives the port from the job number unless it is set."""
    return [], {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(i),
        "SLURM_LOCALID": str(i),
        "JAX_COORDINATOR_PORT": str(port),
    }


@contextlib.contextmanager
def two_processes(folder, settings, *arguments):
    """Start two processes and yield them. Their output is in `said`. Kill them at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    try:
        for i in range(2):
            flags, variables = settings(port, i)
            command = [
                sys.executable,
                "-c",
                PROGRAM,
                "train",
                "cartpole_ppo",
                "--workdir",
                str(folder),
                "--no-pictures",
                *flags,
            ]
            # the flags of the tests, since others round differently; of equal ones the last counts
            flags_of_xla = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
            one_device = {"XLA_FLAGS": flags_of_xla, "JAX_PLATFORMS": "cpu"}
            cache = {
                "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
            with open(said_file(folder, i), "wb") as out:
                started.append(
                    subprocess.Popen(
                        [*command, *ARGUMENTS, *arguments],
                        env=os.environ | one_device | cache | variables,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        cwd=Path(__file__).parents[3],
                    )
                )
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def said_file(folder, i):
    return folder.with_name(f"{folder.name}-said-{i}")


def said(folder, i):
    return " ".join(said_file(folder, i).read_text().split())


def ends(started, folder):
    """Return the exit statuses of both processes after they ended."""
    try:
        return [process.wait(SECONDS) for process in started]
    except subprocess.TimeoutExpired:
        pytest.fail(f"still running: {said(folder, 0)} | {said(folder, 1)}")


def wait_for_lines(started, folder, number):
    """Wait until metrics.jsonl has `number` lines."""
    file, give_up = folder / "metrics.jsonl", time.monotonic() + SECONDS
    while not file.exists() or len(file.read_bytes().splitlines()) < number:
        if any(process.poll() is not None for process in started) or time.monotonic() > give_up:
            pytest.fail(f"no chunks: {said(folder, 0)} | {said(folder, 1)}")
        time.sleep(0.1)


def trained_on(source, folder, num_devices, num_updates):
    """Train in this process with the configuration of the run in `source`, or resume.

    Programs are compiled again, since `quick_compile` of other tests rounds differently.
    """
    jax.clear_caches()
    steps = num_updates * ENV_STEPS
    config = dataclasses.replace(
        load_run_config(source), devices=num_devices, total_env_steps=steps
    )
    Trainer(config, folder, resume=folder.exists(), quiet=True, pictures=False).train()
    return folder


def learned(folder):
    """Return all leaves of the newest checkpoint as NumPy arrays, with keys as their words."""
    return numbers(load_run(folder)[1])


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    """Return (folder, updates, observations) of a run of two processes.

    Process 1 received SIGTERM, then both were resumed.
    """
    folder = tmp_path_factory.mktemp("processes") / "run"
    with two_processes(folder, by_flags, "--total-env-steps", "1000000") as started:
        wait_for_lines(started, folder, 3)
        started[1].terminate()
        observed = {
            "stopped": ends(started, folder),
            "words": said(folder, 0),
            "others": said(folder, 1),
        }
    done = int(load_run(folder)[1].num_updates)
    observed["lines"] = len(read_metrics(folder / "metrics.jsonl"))
    steps = str((done + 3) * ENV_STEPS)
    with two_processes(folder, by_slurm, "--resume", "--total-env-steps", steps) as started:
        observed["went_on"] = ends(started, folder)
    return folder, done + 3, observed


@pytest.mark.slow
def test_stop_signal_to_one_process_stops_and_saves_all(run_of_two):
    _, updates, observed = run_of_two
    assert observed["stopped"] == [130, 130]
    assert re.search(r"cartpole on 2 x .* Stopped and saved after .* --resume", observed["words"])
    assert "saved" not in observed["others"]
    assert observed["lines"] == updates - 3


@pytest.mark.slow
def test_two_processes_agree_bit_for_bit_with_one_process_and_two_devices(run_of_two, tmp_path):
    """A sum of two numbers does not depend on their order, unlike larger sums."""
    folder, updates, observed = run_of_two
    assert observed["went_on"] == [0, 0]
    alone = trained_on(folder, tmp_path / "alone", 2, updates)
    for a, b in zip(learned(folder), learned(alone), strict=True):
        np.testing.assert_array_equal(a, b)
    for row, other in zip(logged(folder), logged(alone), strict=True):
        assert {
            name: (value, other[name]) for name, value in row.items() if value != other[name]
        } == {}
    assert {path.name for path in folder.iterdir()} == {path.name for path in alone.iterdir()}


@pytest.mark.slow
def test_run_of_two_processes_resumes_in_one_process_and_on_one_device(run_of_two, tmp_path):
    folder, updates, _ = run_of_two
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    trained_on(folder, moved, 2, updates + 1)
    trained_on(folder, moved, 1, updates + 2)
    never = trained_on(folder, tmp_path / "never", 1, updates + 2)
    for a, b in zip(learned(moved), learned(never), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_process_exits_if_the_other_dies_or_hangs(run_of_two, tmp_path, number):
    """A dead process is noticed at the next collective, a silent one after HEARTBEAT_SECONDS.

    In the second case jax ends the waiting process. In the first case too, if it waits at a barrier
    of orbax, which only the missing heartbeat ends.
    """
    folder = Path(shutil.copytree(run_of_two[0], tmp_path / "run"))
    begun = len(read_metrics(folder / "metrics.jsonl"))
    with two_processes(folder, by_variables, "--resume", "--total-env-steps", "1000000") as started:
        wait_for_lines(started, folder, begun + 2)
        started[1].send_signal(number)
        before = time.monotonic()
        assert started[0].wait(60) != 0
        assert time.monotonic() - before < 60
    ended_by_jax = "another task died" in said(folder, 0)
    ended_by_us = "another process of the run died" in said(folder, 0)
    assert ended_by_jax or (ended_by_us and number == signal.SIGKILL), said(folder, 0)
    assert int(load_run(folder)[1].num_updates) >= begun  # and the saved checkpoint is intact


@pytest.mark.slow
def test_all_processes_reject_a_folder_with_a_run(run_of_two):
    folder = run_of_two[0]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with two_processes(folder, by_flags) as started:
        codes = ends(started, folder)
    assert codes[0] == 2
    assert codes[1] != 0
    assert "already contains a run" in said(folder, 0)
    assert "process 0 failed" in said(folder, 1)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


# --- identity of a process ---


@pytest.fixture
def joined(monkeypatch):
    """Record calls of `jax.distributed.initialize` instead of connecting."""
    for name in list(os.environ):
        if name.startswith(
            ("SLURM_", "OMPI_", "JAX_COORDINATOR", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        ):
            monkeypatch.delenv(name)
    calls = []
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda *args, **options: calls.append((args, options))
    )
    return calls


def test_single_process_does_not_connect(joined, monkeypatch):
    connect()
    connect("host:1", 1, 0)
    for name, value in by_slurm(1, 0)[1].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    connect()
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.delenv("SLURM_STEP_NODELIST")  # as in a batch script, outside of srun
    connect()
    assert joined == []


def test_flags_take_precedence_over_variables(joined, monkeypatch):
    for name, value in by_variables(7, 1)[1].items():
        monkeypatch.setenv(name, value)
    connect()
    connect("host:9", num_processes=4)
    assert [args for args, _ in joined] == [("127.0.0.1:7", 2, 1), ("host:9", 4, 1)]
    options = joined[0][1]
    assert options["heartbeat_timeout_seconds"] == options["shutdown_timeout_seconds"] == 30
    assert options["cluster_detection_method"] == "deactivate"  # all settings are given


@pytest.mark.parametrize("launcher", ["slurm", "open_mpi"])
def test_srun_and_mpirun_are_detected_by_jax(joined, monkeypatch, launcher):
    slurm = by_slurm(1, 1)[1]
    open_mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:2"}
    for name, value in (slurm if launcher == "slurm" else open_mpi).items():
        monkeypatch.setenv(name, value)
    assert is_launched()
    connect()
    assert joined[0][0] == (None, None, None)
    assert joined[0][1]["cluster_detection_method"] is None


REFUSED = [
    (("host:1", None, 0), r"--num-processes \(or JAX_NUM_PROCESSES\): required when several"),
    (
        (None, 2, None),
        r"--coordinator \(or JAX_COORDINATOR_ADDRESS\), --process-id .* required when several",
    ),
    (("host", 2, 0), r"--coordinator = 'host': must be HOST:PORT"),
    (("host:70000", 2, 0), r"--coordinator = 'host:70000': must be HOST:PORT"),
    (("host:1", 0, 0), r"--num-processes = 0: must be at least 1"),
    (("host:1", 2, 2), r"--process-id = 2: must be at least 0 and below num_processes = 2"),
    (("host:1", 2, -1), r"--process-id = -1: must be at least 0"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_invalid_settings_raise(joined, arguments, message):
    with pytest.raises(ValueError, match=message):
        connect(*arguments)
    assert joined == []


def test_non_numeric_variables_raise(joined, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(ValueError, match="JAX_NUM_PROCESSES = 'two': must be a whole number"):
        connect("host:1", process_id=0)


def test_kept_handler_restores_custom_handlers():
    def own(*_):
        return None

    before = signal.signal(signal.SIGTERM, own)
    try:
        with kept_handler(signal.SIGTERM):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


# --- agreement and exit, with mocked processes ---


def as_process(monkeypatch, index, flags=()):
    """Mock two processes. `flags` are the answers of the other one to `any_process`."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: index)
    answers = iter(flags)

    def gather(flags):
        return np.array([flags, [next(answers)]])

    monkeypatch.setattr(processes.multihost_utils, "process_allgather", gather)


def test_single_process_agrees_with_itself():
    assert [any_process(flag) for flag in (False, True)] == [False, True]
    assert [as_first(flag) for flag in (False, True)] == [False, True]


def test_as_first_returns_the_value_of_process_0(monkeypatch):
    as_process(monkeypatch, 0, [False, False])
    assert [as_first(flag) for flag in (False, True)] == [False, True]
    as_process(monkeypatch, 1, [False, True])
    assert [as_first(flag) for flag in (True, False)] == [False, True]


def test_failure_in_process_0_raises_in_all(monkeypatch):
    def fail():
        raise FileExistsError("there")

    called = []
    on_first(called.append, "alone")
    as_process(monkeypatch, 1, [False, True])
    on_first(called.append, "never")
    with pytest.raises(RuntimeError, match="process 0 failed"):
        on_first(called.append, "never")
    assert called == ["alone"]
    as_process(monkeypatch, 0, [False])
    with pytest.raises(FileExistsError, match="there"):
        on_first(fail)


@pytest.fixture
def exits(monkeypatch):
    """Record exit statuses instead of exiting."""
    codes = []
    monkeypatch.setattr(processes.os, "_exit", codes.append)
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: None)
    return codes


def test_only_errors_of_lost_processes_exit(monkeypatch, exits, capsys):
    # the error in a single process
    with pytest.raises(ValueError, match="Gloo"), ending_with_others():
        raise ValueError("Gloo AllGather failed")
    as_process(monkeypatch, 1)
    with pytest.raises(ValueError, match="learning_rate"), ending_with_others():
        raise ValueError("learning_rate = -1: must be at least 0")
    assert exits == []
    with ending_with_others():
        raise ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer")
    assert exits == [1]
    assert "process 1 of 2 stops: another process of the run died" in capsys.readouterr().err


def test_errors_exit_immediately_with_several_processes(monkeypatch, exits, capsys):
    with pytest.raises(SystemExit), leaving():
        raise SystemExit(2)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(SystemExit), leaving():  # agreed by all
        raise SystemExit(130)
    with leaving():
        pass
    assert exits == []
    with leaving():
        raise SystemExit(2)
    with leaving():
        raise RuntimeError("a custom callback")
    assert exits == [2, 1]
    assert "a custom callback" in capsys.readouterr().err
    with leaving():  # a second Ctrl-C, to this process only, without agreement
        raise KeyboardInterrupt
    assert exits == [2, 1, 130]
    assert capsys.readouterr().err == ""


def test_rejecting_process_raises_its_error_and_others_report_a_failure(monkeypatch, exits, capsys):
    def fail():
        raise ValueError("seed = 5: the run was started with 0")

    as_process(monkeypatch, 0, [False, True, False])
    on_all(list)
    with pytest.raises(OthersRefusedError, match="another process failed"):
        on_all(list)
    with pytest.raises(ValueError, match="seed = 5"):
        on_all(fail)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    for message in (
        "another process failed",
        "UNKNOWN: Gloo AllGather failed: Connection closed by peer",
    ):
        with leaving():
            raise OthersRefusedError(message) if "another" in message else RuntimeError(message)
    errors = capsys.readouterr().err
    assert exits == [1, 1]
    assert "Traceback" not in errors
    assert "wdjax: another process failed" in errors
    assert "process 0 of 2 stops: another process of the run died" in errors


def test_failed_process_does_not_close_checkpoints_with_others(monkeypatch, tmp_path):
    """The others may be saving, without the failed one."""
    closed = []
    for processes_there in (2, 1):
        with pytest.raises(ValueError, match="mine"), open_checkpoints(tmp_path, 1) as manager:  # noqa: PT012
            monkeypatch.setattr(manager, "close", lambda n=processes_there: closed.append(n))
            monkeypatch.setattr(jax, "process_count", lambda n=processes_there: n)
            raise ValueError("mine")
        monkeypatch.undo()
    assert closed == [1]


@pytest.mark.slow
def test_deleted_folder_ends_all_processes(tmp_path):
    folder = tmp_path / "run"
    arguments = ("--total-env-steps", "1000000", "--best-metric", "none")
    with two_processes(folder, by_flags, *arguments) as started:
        wait_for_lines(started, folder, 3)
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        codes = ends(started, folder)
    assert 0 not in codes
    assert "could not" in said(folder, 0) or "must be a writable folder" in said(folder, 0)


@pytest.mark.slow
def test_different_configurations_of_processes_raise(tmp_path):
    def different(port, i):
        return (by_flags(port, i)[0] + ["--seed", str(i)], {})

    with two_processes(tmp_path / "run", different) as started:
        assert ends(started, tmp_path / "run") == [1, 2]
    assert "another process failed" in said(tmp_path / "run", 0)
    assert "Traceback" not in said(tmp_path / "run", 0)
    assert "seed = 1: the run in" in said(tmp_path / "run", 1)
