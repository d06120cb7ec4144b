"""Ctrl-C and SIGTERM at critical moments: the run is saved and resumes exactly."""

import os
import signal

import orbax.checkpoint as ocp
import pytest
from rich.console import Console
from tiny_runs import assert_same_run, small_config

from wdjax.signals import stop_signals
from wdjax.train import Trainer, load_run, read_metrics
from wdjax.train.evaluation import best
from wdjax.train.host import programs as chunks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("quick_compile", "no_pictures"),
]


def signal_before(function, number, call=1):
    """Return the function, with a signal to this process before its n-th call."""
    calls = []

    def wrapped(*arguments, **named):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return function(*arguments, **named)

    return wrapped


def check_resumed(whole, folder):
    Trainer(small_config(), folder, resume=True, quiet=True).train()
    assert_same_run(whole, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_during_compilation_runs_no_update(number, whole_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "lower_chunk", signal_before(chunks.lower_chunk, number))
        trainer = Trainer(small_config(), tmp_path / "run", quiet=True)
        trainer.train()
    assert trainer.stopped
    assert int(load_run(tmp_path / "run")[1].num_updates) == 0
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == []
    check_resumed(whole_run, tmp_path / "run")


def test_signal_during_evaluation_keeps_the_evaluation(whole_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        begin = signal_before(best.begin_evaluation, signal.SIGTERM, call=3)
        patch.setattr(best, "begin_evaluation", begin)
        trainer = Trainer(small_config(), tmp_path / "run", quiet=True)
        trainer.train()
    assert trainer.stopped
    assert int(load_run(tmp_path / "run")[1].num_updates) == 4
    assert (
        read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["eval/agent/episode_return"]
        is not None
    )
    check_resumed(whole_run, tmp_path / "run")


def test_second_ctrl_c_ends_immediately_and_keeps_the_last_checkpoint(whole_run, tmp_path):
    survived = []

    def interrupt_twice(trainer, row):
        if row["updates"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            # a scheduler may send it twice, which is not a second Ctrl-C
            os.kill(os.getpid(), signal.SIGTERM)
            survived.append(row)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Trainer(small_config(), tmp_path / "run", callbacks=[interrupt_twice], quiet=True).train()
    assert len(survived) == 1
    assert signal.getsignal(signal.SIGINT) is before
    assert int(load_run(tmp_path / "run")[1].num_updates) == 2
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 3
    check_resumed(whole_run, tmp_path / "run")


def test_signal_during_the_last_save_waits_for_it(whole_run, tmp_path, monkeypatch):
    close = signal_before(ocp.CheckpointManager.close, signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "close", close)
        Trainer(small_config(), tmp_path / "run", quiet=True).train()
    assert_same_run(whole_run, tmp_path / "run")


def test_failing_console_does_not_prevent_stopping():
    class Busy:
        def print(self, words):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with stop_signals(Busy()) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()


def test_ignored_hangup_stays_ignored(monkeypatch):
    """nohup starts commands like this."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(Console(quiet=True)) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
