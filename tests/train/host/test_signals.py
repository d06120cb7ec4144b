"""Ctrl-C and SIGTERM at awkward moments: the run is saved, and goes on as if nothing had been."""

import os
import signal

import orbax.checkpoint as ocp
import pytest
from rich.console import Console
from tiny_runs import assert_same_run, small_config

from wdjax.train import Trainer, load_run, read_metrics
from wdjax.train import trainer as trainer_module
from wdjax.train.host import programs as chunks
from wdjax.train.host.signals import stop_signals

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile", "no_pictures")]


def signal_before(function, number, call=1):
    """Returns a function that does the same, but in its n-th call the process gets a signal
    first."""
    calls = []

    def wrapped(*arguments, **named):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return function(*arguments, **named)

    return wrapped


def goes_on_to(whole, folder):
    Trainer(small_config(), folder, resume=True, quiet=True).train()
    assert_same_run(whole, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_it_compiles_nothing_more_is_run(number, whole_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "lower_chunk", signal_before(chunks.lower_chunk, number))
        trainer = Trainer(small_config(), tmp_path / "run", quiet=True)
        trainer.train()
    assert trainer.stopped
    assert int(load_run(tmp_path / "run")[1].num_updates) == 0
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == []
    goes_on_to(whole_run, tmp_path / "run")


def test_while_it_evaluates_the_evaluation_counts(whole_run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        begin = signal_before(trainer_module.begin_evaluation, signal.SIGTERM, call=3)
        patch.setattr(trainer_module, "begin_evaluation", begin)
        trainer = Trainer(small_config(), tmp_path / "run", quiet=True)
        trainer.train()
    assert trainer.stopped
    assert int(load_run(tmp_path / "run")[1].num_updates) == 4
    assert (
        read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["eval/agent/episode_return"]
        is not None
    )
    goes_on_to(whole_run, tmp_path / "run")


def test_a_second_ctrl_c_ends_it_at_once_and_the_last_checkpoint_is_whole(whole_run, tmp_path):
    survived = []

    def interrupt_twice(trainer, row):
        if row["updates"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may say it twice: that is no Ctrl-C
            survived.append(row)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Trainer(small_config(), tmp_path / "run", callbacks=[interrupt_twice], quiet=True).train()
    assert len(survived) == 1
    assert signal.getsignal(signal.SIGINT) is before
    assert int(load_run(tmp_path / "run")[1].num_updates) == 2
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 3
    goes_on_to(whole_run, tmp_path / "run")


def test_while_the_last_checkpoint_is_saved_it_is_waited_for(whole_run, tmp_path, monkeypatch):
    close = signal_before(ocp.CheckpointManager.close, signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "close", close)
        Trainer(small_config(), tmp_path / "run", quiet=True).train()
    assert_same_run(whole_run, tmp_path / "run")


def test_a_console_that_cannot_print_now_stops_nothing():
    class Busy:
        def print(self, words):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with stop_signals(Busy()) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()


def test_a_hangup_that_is_ignored_stays_ignored(monkeypatch):
    """As nohup starts a command."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(Console(quiet=True)) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
