"""Callbacks and goals end runs, and loggers write the rows of metrics.jsonl."""

import csv
import dataclasses
import functools
import json
import struct
import time
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refusal
from tiny_runs import small_config

from wdjax.train import TrainConfig, Trainer, read_metrics
from wdjax.train.host.callbacks import call_callbacks, goals_in_words, goals_reached, make_callbacks
from wdjax.train.host.loggers import Logger

ROWS = [
    {"updates": 1, "env_steps": 64, "a/return": None, "a/loss": 0.5},
    {"updates": 2, "env_steps": 128, "a/return": 3.5, "a/loss": 0.25},
    {"updates": 3, "env_steps": 192, "a/return": 4.0, "a/loss": -1.0},
]


def a_run(folder):
    return types.SimpleNamespace(
        workdir=Path(folder), config=TrainConfig(env="cartpole", policies={})
    )


def log(logger, folder, rows):
    for row in rows:
        assert logger(a_run(folder), row) is None
    logger.close()


@pytest.mark.parametrize(
    ("stop_at", "row", "reached"),
    [
        ({}, ROWS[1], False),
        ({"a/return": 3.5}, ROWS[1], True),
        ({"a/return": 3.5}, ROWS[0], False),  # unknown
        ({"a/return": 3.6}, ROWS[1], False),
        ({"a/return": 3.5, "a/loss": 0.3}, ROWS[1], False),  # all are required
        ({"a/return": 3.5, "eval/a/return": 0.0}, ROWS[1], False),
    ],
)
def test_goals_require_all_metrics(stop_at, row, reached):
    assert goals_reached(stop_at, row) is reached


def test_goals_are_described():
    assert goals_in_words({"a/return": 475.0, "b/loss": 0.5}) == "stop_at a/return 475, b/loss 0.5"


def test_only_true_ends_a_run_and_all_callbacks_are_called():
    called = []
    true = (True, np.True_, np.array(True), jnp.bool_(True))
    others = (
        False,
        np.False_,
        np.array([True]),
        jnp.bool_(False),
        jnp.array([True]),
        None,
        0.7,
        1,
        np.int32(1),
        "y",
    )
    for answer, ends in [
        *((answer, True) for answer in true),
        *((answer, False) for answer in others),
    ]:
        assert (
            call_callbacks(
                [lambda run, row, a=answer: a, lambda run, row: called.append(row)], None, {}
            )
            is ends
        )
    assert len(called) == len(true) + len(others)


async def delayed(run, row):
    return True


def generator(run, row):
    yield True


class Delayed:
    async def __call__(self, run, row):
        return True


@pytest.mark.parametrize(
    "callback", [delayed, generator, Delayed, Delayed(), functools.partial(delayed, row={})]
)
def test_coroutine_and_generator_callbacks_raise(callback):
    assert "must be a plain function, without `async` or `yield`" in refusal(
        make_callbacks, [callback]
    )


def test_callback_that_returns_a_coroutine_raises():
    with pytest.raises(TypeError, match="the callback returned a coroutine"):
        call_callbacks([lambda run, row: delayed(run, row)], None, {})


class Failing(Logger):
    def __init__(self, fails):
        super().__init__()
        self.fails, self.calls = fails, []

    def begin(self, run, row):
        return self._call("begin")

    def write(self, log, row):
        self._call("write")

    def end(self, log):
        self._call("end")

    def _call(self, name):
        self.calls.append(name)
        if name == self.fails:
            raise RuntimeError("no server")


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("begin", ["begin"]),
        ("write", ["begin", "write", "end"]),
        ("end", ["begin", "write", "write", "write", "end"]),
    ],
)
def test_failing_logger_warns_once_and_is_disabled(fails, calls, tmp_path, capsys):
    logger, [csv_logger] = Failing(fails), make_callbacks(["csv"])
    for row in ROWS:
        assert not call_callbacks([logger, csv_logger], a_run(tmp_path), row)
    logger.close()
    assert logger.calls == calls
    messages = " ".join(capsys.readouterr().err.split())
    assert messages == "Warning: Failing failed and is disabled (no server); training continues"
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 4


@pytest.mark.parametrize("text", ["time,loss\n1,2\n", "updates,loss\n,2\n", "updates\nmany\n"])
def test_foreign_metrics_csv_is_not_overwritten(text, tmp_path, capsys):
    [logger] = make_callbacks(["csv"])
    (tmp_path / "metrics.csv").write_text(text)
    log(logger, tmp_path, ROWS)
    assert (tmp_path / "metrics.csv").read_text() == text
    assert "must be a table with a column updates" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (["tensorbord"], "did you mean 'tensorboard'"),
        (["tests.nowhere:f"], "No module named"),
        (["wdjax.version:__version__"], "must be a function of (trainer, row)"),
        (["csv.:f"], 'must be "package.module:Name"'),
        ("csv", "must be a list of functions, logger names and import paths"),
        (print, "must be a list of functions, logger names and import paths"),
        (None, "callbacks = None: must be a list of functions, logger names and import paths"),
        (["csv", "csv"], "callbacks = ['csv', 'csv']: must be unique"),
    ],
)
def test_invalid_callbacks_raise(callbacks, message):
    assert message in refusal(make_callbacks, callbacks)


def test_errors_of_callbacks_name_the_callback():
    def mine(run, row):
        raise KeyError("mine")

    with pytest.raises(KeyError) as raised:
        call_callbacks([mine], None, {})
    assert "raised by the callback test_errors_of_callbacks" in raised.value.__notes__[0]


def test_logger_without_its_library_raises(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r'pip install "wdjax\[tensorboard\]"'):
        make_callbacks(["tensorboard"])


def test_csv_contains_the_rows_and_drops_repeated_ones(tmp_path):
    [logger] = make_callbacks(["csv"])
    log(logger, tmp_path / "run", ROWS)
    repeated = [{**ROWS[1], "a/loss": 7.0}]  # killed after row 1 and resumed
    log(logger, tmp_path / "run", repeated)
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    cells = [(line["updates"], line["a/return"], line["a/loss"]) for line in lines]
    assert cells == [("1", "", "0.5"), ("2", "3.5", "7.0")]


def read_events(folder):
    """Return (tag, step, value) of all scalars in the event file of a run."""
    from tensorboardX.proto import event_pb2

    [file] = (folder / "tensorboard").iterdir()
    data, scalars, at = file.read_bytes(), [], 0
    while at < len(data):  # records: length, its checksum, an event, its checksum
        (size,) = struct.unpack_from("<Q", data, at)
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
        scalars += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        at += size + 16
    return scalars


def test_tensorboard_tags_are_unique(tmp_path):
    """tensorboardX writes both as episode_a_b."""
    pytest.importorskip("tensorboardX")
    [logger] = make_callbacks(["tensorboard"])
    log(logger, tmp_path / "run", [ROWS[0] | {"episode_a b": 1.0, "episode_a_b": 2.0}])
    tags = {tag: value for tag, _, value in read_events(tmp_path / "run")}
    assert {value for tag, value in tags.items() if "a_b" in tag} == {1.0, 2.0}


def test_tensorboard_contains_the_rows(tmp_path):
    pytest.importorskip("tensorboardX")
    [logger] = make_callbacks(["tensorboard"])
    log(logger, tmp_path / "run", ROWS)
    scalars = read_events(tmp_path / "run")
    expected = [(k, row["env_steps"], v) for row in ROWS for k, v in row.items() if v is not None]
    assert sorted(scalars) == sorted(expected)


def leveldb_log(data):
    """Yield the records in a file of wandb.

    Blocks have 32 KiB, and parts have a checksum, a length and a kind.
    """
    at, whole = 7, b""  # the header of the file is part of the first block
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # complete, or the last part
            yield whole
            whole = b""


@pytest.mark.slow
def test_wandb_offline_contains_the_rows(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    [logger] = make_callbacks(["wandb"])
    log(logger, tmp_path / "run", ROWS)
    [file] = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    assert (tmp_path / "run" / "wandb_id").read_text() in file.name
    # the process of wandb may write the last records after it was ended
    deadline = time.monotonic() + 60
    while True:
        rows, ids = [], set()
        for record in map(Record.FromString, leveldb_log(file.read_bytes())):
            ids |= {record.run.run_id, record.run.project} if record.HasField("run") else set()
            if record.HasField("history"):
                items = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                rows.append({k: v for k, v in items.items() if not k.startswith("_")})
        if len(rows) >= len(ROWS) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert rows == [{k: v for k, v in row.items() if v is not None} for row in ROWS]
    assert "wdjax" in ids


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile", "no_pictures")
def test_callback_ends_a_run(tmp_path, capsys):
    """The device is one chunk ahead: a stop after the second chunk ends the run after the third."""

    class Early:
        closed = 0

        def __call__(self, trainer, row):
            return row["updates"] == 2

        def close(self):
            self.closed += 1

    early, config = Early(), small_config(best_metric="none")
    trainer = Trainer(config, tmp_path, callbacks=[early, "csv"])
    state = trainer.train()
    assert (int(state.num_updates), trainer.stopped, trainer.ended_by, early.closed) == (
        3,
        False,
        "a callback",
        1,
    )
    assert "Ended by a callback and saved after 384 of 768 env steps." in " ".join(
        capsys.readouterr().out.split()
    )
    assert trainer.history == read_metrics(tmp_path)
    with open(tmp_path / "metrics.csv", newline="") as file:
        assert [int(line["updates"]) for line in csv.DictReader(file)] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compile", "no_pictures")
def test_goal_ends_a_run(tmp_path):
    config = small_config(stop_at={"episode_length": 1, "eval/agent/episode_return": 1})
    trainer = Trainer(config, tmp_path, quiet=True)
    assert int(trainer.train().num_updates) == 3  # evaluated after the second
    assert trainer.ended_by == "stop_at episode_length 1, eval/agent/episode_return 1"
    resumed = Trainer(config, tmp_path, resume=True, quiet=True)
    assert int(resumed.train().num_updates) == 3
    higher = dataclasses.replace(config, stop_at={"episode_length": 1_000})
    assert int(Trainer(higher, tmp_path, resume=True, quiet=True).train().num_updates) == 6


def test_goal_with_an_unknown_metric_raises(tmp_path):
    config = small_config(stop_at={"agent/episode_retrun": 1}, best_metric="none")
    assert "did you mean 'agent/episode_return'" in refusal(Trainer, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
