"""Length and ends of chunks, and the work of the host in parallel with the device."""

import dataclasses
import re
import threading
import time

import jax
import numpy as np
import pytest
from tiny_runs import assert_same_run, numbers, small_config

from wdjax.train import Trainer, load_config, load_run, make_learner, read_metrics
from wdjax.train.host import chunks, loop
from wdjax.train.host.chunks import most_updates, next_look, play_first, with_lines
from wdjax.train.host.programs import compile_chunk
from wdjax.train.learner.init import abstract_state
from wdjax.train.state.metric import values_of
from wdjax.train.storage.metrics_log import MetricsLog

pytestmark = pytest.mark.usefixtures("quick_compile")

ALL_SAVED = {"checkpoint_every": 1, "keep_checkpoints": 6, "best_metric": "none"}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(Trainer, "draw", lambda self: None)


class Device:
    """A program with a fixed time per update, and an additional time for the first call."""

    def __init__(self, seconds, first, monkeypatch):
        self.seconds, self.first, self.now, self.calls = seconds, first, 0.0, []
        monkeypatch.setattr(chunks, "play", self.play)

    def play(self, program, state, size):
        seconds = size * self.seconds + (0.0 if self.calls else self.first)
        self.calls.append(size)
        return chunks.Played(state + size, {"loss": np.arange(state, state + size)}, size, seconds)


@pytest.mark.parametrize(
    ("seconds", "first", "most", "size", "calls"),
    [
        # 256 ms are long enough for an estimate
        (1e-3, 0.0, 4096, 2000, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1488]),
        # the time of the first call is excluded
        (1e-3, 1.5, 4096, 2000, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1488]),
        (0.3, 0.0, 4096, 7, [1, 1, 5]),
        (1.5, 0.0, 4096, 2, [1, 1]),
        (6.0, 0.0, 4096, 1, [1]),
        # a short run: at most a twentieth of it
        (1e-5, 0.0, 100, 100, [1, 1, 2, 4, 8, 16, 32, 36]),
        (1.0, 0.0, 1, 1, [1]),
    ],
)
def test_first_chunk_takes_about_two_seconds(seconds, first, most, size, calls, monkeypatch):
    device = Device(seconds, first, monkeypatch)
    played = play_first(None, 0, most)
    assert (played.size, device.calls) == (size, calls)
    assert played.state == size
    # metrics of all calls in order
    np.testing.assert_array_equal(played.metrics["loss"], np.arange(size))
    assert played.seconds == pytest.approx(size * seconds + first)


def test_chunks_end_at_checkpoints_and_evaluations():
    changes = {"checkpoint_every_updates": 25, "best_metric": "none", "total_env_steps": 128_000}
    config = small_config(updates_per_chunk=10, **changes)
    looks, done = [], 0
    while done < 60:
        done = next_look(config, done, 60)
        looks.append(done)
    assert looks == [10, 20, 25, 30, 40, 50, 60]
    assert next_look(config, 20, 1000, also=7) == 21
    assert next_look(dataclasses.replace(config, evaluate_every_updates=3), 10, 1000) == 12
    assert (
        next_look(
            dataclasses.replace(config, evaluate_every=2, checkpoint_every_updates=0), 10, 1000
        )
        == 20
    )


def test_chunks_are_limited_and_those_of_sweeps_do_not_depend_on_time():
    config = small_config(updates_per_chunk=0, total_env_steps=128 * 1001)
    assert most_updates(config) == 51
    assert most_updates(dataclasses.replace(config, total_env_steps=128 * 10**9)) == chunks.MOST
    assert most_updates(dataclasses.replace(config, updates_per_chunk=7)) == 7
    assert with_lines(config).updates_per_chunk == 101
    long = dataclasses.replace(config, total_env_steps=128 * 10**9)
    assert with_lines(long).updates_per_chunk == chunks.MOST_OF_SWEEP
    assert with_lines(dataclasses.replace(config, updates_per_chunk=7)).updates_per_chunk == 7


@pytest.mark.slow
def test_compiled_chunk_agrees_with_learner_run():
    """Bit for bit, for fewer updates than the program supports."""
    learner = make_learner(small_config())
    program, _ = compile_chunk(learner, abstract_state(learner.setup), 6)
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=4)
    played = chunks.play(program, learner.init(jax.random.key(0)), 4)
    for a, b in zip(numbers(state), numbers(played.state), strict=True):
        np.testing.assert_array_equal(a, b)
    assert played.metrics.keys() == metrics.keys()
    for name, values in metrics.items():
        np.testing.assert_array_equal(values, values_of(played.metrics)[name], err_msg=name)


def test_chunks_have_at_least_one_update():
    config = small_config(updates_per_chunk=10, best_metric="none")
    for done, last in ((0, 0), (20, 20), (40, 20)):
        with pytest.raises(ValueError, match=f"updates = {done}: must be below {last}"):
            next_look(config, done, last)
    for size in (0, -20):
        with pytest.raises(ValueError, match=r"updates per chunk = .*: must be at least 1"):
            chunks.play(None, None, size)


@pytest.mark.slow
def test_measured_chunk_size_is_kept_when_resuming(tmp_path, monkeypatch):
    changes = {
        "updates_per_chunk": 0,
        "total_env_steps": 23 * 128,
        "checkpoint_every": 1,
        "best_metric": "none",
    }
    whole, part = tmp_path / "whole", tmp_path / "part"
    Trainer(small_config(**changes), whole, quiet=True).train()
    measured = load_config(whole / "config.yaml").updates_per_chunk
    assert measured == 2  # 23 / 20, rounded up
    # as if updates of the other run were faster
    monkeypatch.setattr(chunks, "LINES", 5)
    half = Trainer(small_config(**changes | {"total_env_steps": 8 * 128}), part, quiet=True)
    half.train()
    assert load_config(part / "config.yaml").updates_per_chunk == half.config.updates_per_chunk == 2
    monkeypatch.undo()
    monkeypatch.setattr(Trainer, "draw", lambda self: None)
    monkeypatch.setattr(loop, "play_first", None)  # the size is not measured again
    Trainer(small_config(**changes), part, resume=True, quiet=True).train()
    rows = [[row["updates"] for row in read_metrics(folder)] for folder in (whole, part)]
    assert rows[0] == rows[1] == [*range(2, 23, 2), 23]
    assert_same_run(whole, part)


@pytest.mark.slow
def test_given_chunk_size_is_kept_when_resuming_without_one(tmp_path):
    """The number of steps in an iteration may change: its default was 1 up to 0.3.0."""
    changes = {"total_env_steps": 2 * 128, "updates_per_chunk": 2, "rollout_unroll": 1}
    Trainer(small_config(**changes, best_metric="none"), tmp_path, quiet=True).train()
    longer = small_config(updates_per_chunk=0, best_metric="none")
    resumed = Trainer(longer, tmp_path, resume=True, quiet=True)
    assert int(resumed.train().num_updates) == 6
    assert load_config(tmp_path / "config.yaml").rollout_unroll == 0
    assert (
        resumed.config.updates_per_chunk
        == load_config(tmp_path / "config.yaml").updates_per_chunk
        == 2
    )
    with pytest.raises(
        ValueError, match=r"updates_per_chunk = 3: the run in .* was started with 2"
    ):
        Trainer(dataclasses.replace(longer, updates_per_chunk=3), tmp_path, resume=True, quiet=True)


@pytest.mark.slow
def test_checkpoints_and_evaluations_happen_at_their_updates(tmp_path):
    changes = {"updates_per_chunk": 4, "checkpoint_every_updates": 5, "evaluate_every_updates": 3}
    Trainer(
        small_config(total_env_steps=11 * 128, keep_checkpoints=9, **changes), tmp_path, quiet=True
    ).train()
    rows = {
        row["updates"]: row["eval/agent/episode_return"] is not None
        for row in read_metrics(tmp_path)
    }
    assert rows == {3: True, 4: False, 5: False, 6: True, 8: False, 9: True, 10: False, 11: True}
    assert {int(path.name) for path in (tmp_path / "checkpoints").iterdir()} == {5, 10, 11}


@pytest.mark.slow
def test_callbacks_receive_the_state_of_their_row(tmp_path):
    updates = []

    def callback(trainer, row):
        return updates.append((row["updates"], int(trainer.state.num_updates)))

    Trainer(small_config(**ALL_SAVED), tmp_path, callbacks=[callback], quiet=True).train()
    assert updates == [(i, i) for i in range(1, 7)]


@pytest.mark.slow
def test_device_continues_while_the_host_writes(tmp_path, monkeypatch):
    """The second chunk starts and ends while the first is being written."""
    ended = threading.Event()
    real_play, real_write = loop.play_chunk, MetricsLog.write

    def play(job, state, done):
        played = real_play(job, state, done)
        if done == 1:
            ended.set()
        return played

    def write(log, row):
        if row["updates"] == 1:
            assert ended.wait(60)
        real_write(log, row)

    monkeypatch.setattr(loop, "play_chunk", play)
    monkeypatch.setattr(MetricsLog, "write", write)
    Trainer(small_config(), tmp_path, quiet=True).train()
    assert [row["updates"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_saved_state_is_that_of_its_chunk(tmp_path):
    """The next chunk donates the state, so a copy must be saved."""
    config, run = small_config(**ALL_SAVED), tmp_path / "run"
    Trainer(config, run, quiet=True).train()
    for updates in (2, 4):

        def end_before(trainer, row, updates=updates):
            return row["updates"] == updates - 1  # the device is one chunk ahead

        Trainer(config, tmp_path / str(updates), callbacks=[end_before], quiet=True).train()
        last = load_run(tmp_path / str(updates))[1]  # no chunk followed
        assert int(last.num_updates) == updates
        saved = load_run(run, num_updates=updates)[1]
        for a, b in zip(numbers(saved), numbers(last), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_last_line_reports_speed_and_waiting_times(tmp_path, capsys):
    start = time.perf_counter()
    Trainer(small_config(), tmp_path).train()
    seconds = time.perf_counter() - start
    output = " ".join(capsys.readouterr().out.split())
    parts = output[output.rindex("768 env steps in ") :].split()
    assert 0 < float(parts[4]) <= round(seconds, 1)
    assert "/s while training): " in output
    for what in ("setup", "compiling", "evaluation and checkpoints"):
        assert re.search(rf"\b{what} \d+\.\d s\b", output)
