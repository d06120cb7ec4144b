"""Random sequences of commands (`python tests/adversary`), and violations of its rules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from folders import Checkpoint, Disk, Run, close, look
from model import RESUMABLE, Folder, Model, identity_of, rows_fit
from processes import Result
from quick import quick_environment
from sequences import PRESETS, SIGNALS, Command, draw_sequence

HERE = Path(__file__).parent
SEEDS = (116, 659)  # with every preset, signal and moment of a signal; many more take minutes
TRAIN = Command.parse(
    "wdjax train ppo.yaml --workdir a --total-env-steps 64 --resume --no-pictures"
)


def a_run(updates, checkpoints, **config):
    """Return folder "a" with a row for each of these updates and these checkpoints."""
    rows = [{"updates": done, "env_steps": 32 * done} for done in updates]
    lines = [(json.dumps(row) + "\n").encode() for row in rows]
    stored = [Checkpoint(done, sum(map(len, lines[:done]))) for done in checkpoints]
    sizes = {"updates_per_chunk": 1, "total_env_steps": 64, "checkpoint_every": 2}
    config = RESUMABLE | {"env": "cartpole"} | sizes | config
    run = Run("run", config, b"".join(lines), rows, [], stored, [], False)
    files = {"a": "/", "a/config.yaml": str(config), "a/metrics.jsonl": str(rows)}
    return Disk(files | {f"a/checkpoints/{done}": "/" for done in checkpoints}, {"a": run})


def checked(command, before, after, status=0, output="", killed=False, **known):
    model = Model({})
    model.folders["a"] = Folder(**known)
    return " ".join(model.check(command, Result(status, output, 1.0, killed=killed), before, after))


def test_commands_round_trip_through_text():
    for seed in range(50):
        for command in draw_sequence(seed):
            assert Command.parse(str(command)) == command
    assert [*map(str, draw_sequence(3))] == [*map(str, draw_sequence(3))]


def test_correct_run_breaks_no_rule():
    new = Disk({}, {})
    assert not checked(TRAIN, new, a_run([1, 2], [2]))
    assert not checked(TRAIN, a_run([1, 2], [2]), a_run([1, 2], [2]), most=2)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (a_run([1, 2, 4101], [2]), "rows are missing"),
        (a_run([1, 2, 3], [2]), "a row of update 3, and 2 were asked for"),
        (a_run([1, 2], [1]), "ended with status 0 at row 2, the newest checkpoint is 1"),
        (a_run([1], [1]), "ended at 1 of 2 updates"),
        (a_run([2], [2]), "rows are missing: [1]"),
        (a_run([1, 2], [2], total_env_steps=96), "config.yaml holds total_env_steps = 96"),
    ],
)
def test_incorrect_runs_are_found(after, message):
    assert message in checked(TRAIN, Disk({}, {}), after)


def test_changes_of_finished_runs_are_found():
    before = a_run([1, 2, 3, 4], [4], total_env_steps=128)
    assert "a finished run changed ['a/config.yaml']" in checked(
        TRAIN, before, a_run([1, 2, 3, 4], [4]), most=4
    )
    assert "the newest checkpoint was 4" in checked(TRAIN, before, a_run([1, 2], [2]), most=4)


def test_finished_run_with_a_damaged_checkpoint_uses_the_previous_one():
    before, after = (
        a_run([1, 2, 3], [2, 3], total_env_steps=96),
        a_run([1, 2, 3], [2], total_env_steps=96),
    )
    output = "The run already has 64 of 64 env steps: nothing to do."
    assert not checked(TRAIN, before, after, output=output, most=3, damaged=True)
    assert "no update was done at 1 of 2" in checked(
        TRAIN, before, a_run([1], [1]), output=output, most=3, damaged=True
    )
    shorter = Command.parse(str(TRAIN).replace("64", "32"))
    assert "a finished run changed" in checked(
        shorter, before, a_run([1, 2], [2]), output=output, most=3, damaged=True
    )


def test_deleted_rows_are_not_required():
    before, after = a_run([], [1]), a_run([2], [2])
    known = {"most": 2, "damaged": True, "lost_rows": True}
    assert not checked(TRAIN, before, after, **known)
    assert "rows are missing" in checked(
        TRAIN, before, after, **known | {"damaged": False, "lost_rows": False}
    )


def test_changed_chunk_sizes_must_be_rejected():
    before, line = a_run([1, 2], [2]), f"{TRAIN} --updates-per-chunk"
    known = {"most": 2, "identity": identity_of(TRAIN)}
    assert "it must be refused" in checked(Command.parse(f"{line} 2"), before, before, **known)
    assert not checked(Command.parse(f"{line} 1"), before, before, **known)


def test_tables_are_compared_up_to_rounding():
    assert close([{"loss": 3.6237502, "n": 4}], [{"loss": 3.6237497, "n": 4}])
    assert not close([{"loss": 3.62}], [{"loss": 3.63}])
    assert not close([{"n": 4}], [{"n": 5}])
    assert not close([{"n": 4}], [])


@pytest.mark.parametrize(
    ("line", "status", "output", "message"),
    [
        ("wdjax eval a", 99, "Traceback (most recent call last):\nKeyError: 3", "a traceback"),
        ("wdjax eval a", 2, "no", "refused with 0 sentences"),
        ("wdjax eval a", 3, "", "exit status 3"),
        ("wdjax eval a", 2, "wdjax: no", "its runs are readable"),
        ("wdjax train ppo.yaml --workdir a", 0, "", "it must be refused"),
        ("wdjax train ppo.yaml --workdir a --resume", 2, "wdjax: no", "refused: wdjax: no"),
    ],
)
def test_wrong_exits_are_found(line, status, output, message):
    before = a_run([1, 2], [2])
    assert message in checked(Command.parse(line), before, before, status, output, most=4)


def test_different_numbers_of_equal_runs_are_found():
    model, after = Model({}), a_run([1, 2], [2])
    assert not model.check(TRAIN, Result(0, "", 1.0), Disk({}, {}), after)
    after.runs["a"].rows[1]["loss"] = 3.0
    assert "row 2: loss = 3.0" in " ".join(model.numbers(after.runs["a"], model.folders["a"]))


def test_look_reads_runs_in_a_folder(tmp_path):
    folder = tmp_path / "a"
    (folder / "checkpoints" / "2" / "host").mkdir(parents=True)
    (folder / "checkpoints" / "2" / "host" / "metadata").write_text('{"metrics_size": 34}')
    (folder / "config.yaml").write_text("updates_per_chunk: 1\n")
    (folder / "metrics.jsonl").write_text('{"updates": 2, "env_steps": 64}\n{"upd')
    run = look(tmp_path).run("a")
    assert (run.kind, run.newest, run.last_row, run.broken) == ("run", 2, 2, ['{"upd'])
    assert "goes with 34 bytes" in " ".join(rows_fit(run, Folder(most=2), hard=True))


def test_the_sequences_that_run_hold_every_kind_of_command():
    commands = [command for seed in SEEDS for command in draw_sequence(seed)]
    kills = [command.kill.replace(":", "@").split("@")[:2] for command in commands if command.kill]
    assert {signals for signals, _ in kills} == set(SIGNALS)
    assert {moment for _, moment in kills} == {"disk", "rows", "time"}
    trained = {command.places[0] for command in commands if command.name in ("train", "sweep")}
    assert trained == {f"{name}.yaml" for name in PRESETS}
    assert {"train", "sweep"} <= {command.name for command in commands if command.kill}
    assert {"eval", "report", "diff", "rm", "truncate"} <= {command.name for command in commands}


@pytest.mark.slow
def test_random_sequences_break_no_rule(tmp_path):
    cache = str(tmp_path / "cache")
    environment = quick_environment(
        PYTHONPATH=str(HERE.parents[1]), JAX_COMPILATION_CACHE_DIR=cache
    )
    command = [sys.executable, str(HERE), "--seeds", ",".join(map(str, SEEDS)), "--cold"]
    command += ["--json", str(tmp_path / "found.jsonl"), "--workers", "2"]
    command += ["--limit", "120"]  # seconds of CPU time, since all programs are compiled here
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
    assert f"{len(SEEDS)} of {len(SEEDS)} sequences" in process.stdout
