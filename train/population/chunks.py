"""The folder of a population, and the host's work after each chunk."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from wdjax.files import make_folder_inside, read_json, read_text, write_text
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.callbacks import goals_reached
from wdjax.train.host.loop import Part, Row
from wdjax.train.learner.bad_numbers import (
    describe_bad_numbers,
    skipped_updates,
    what_was_skipped,
)
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState
from wdjax.train.storage.checkpoint import DamagedCheckpointError, open_checkpoints, read_host
from wdjax.train.storage.folder import SWEEP, make_folder
from wdjax.train.storage.metrics_log import open_log, summarize

Member: TypeAlias = Mapping[str, object]
"""content of members.json for a member"""
After: TypeAlias = Callable[[TrainState, list[Row], list[Row]], tuple[TrainState, list[Row]]]
"""after(states, rows, rows of the chunk before) -> (states, rows), see `Population.train`"""


def write_members(workdir: Path, text: str) -> None:
    """Write members.json, or raise ValueError if the folder contains other members."""
    make_folder_inside(workdir)
    make_folder(workdir, SWEEP, resume=True)  # refuses the folder of a run
    if not require_members(workdir, text):
        write_text(workdir / "members.json", text, sync=True)


def require_members(workdir: Path, text: str) -> bool:
    """Return whether members.json exists. Raise ValueError if it contains another text."""
    file = workdir / "members.json"
    if file.exists() and read_text(file) != text:
        read_json(file)  # raises its own error if the file is no JSON
        words = "lists different members than this population. Move"
        raise ValueError(f"{file} {words} {workdir} away to train these members")
    return file.exists()


def is_done(
    workdir: Path, last: int, goals: Mapping[str, float], say: Callable[[str], None]
) -> bool:
    """Return whether a folder is finished and its newest checkpoint complete.

    With a damaged checkpoint, or with fewer updates than `last` and no goals (`stop_at`), training
    continues.
    """
    finished, folder = workdir / "finished", workdir / "checkpoints"
    if not finished.exists() or not folder.is_dir():
        return finished.exists()
    with open_checkpoints(folder, keep=None) as checkpoints:
        step = checkpoints.latest_step() or last
        try:
            size = read_host(checkpoints, step)["metrics_size"]
        except DamagedCheckpointError:
            step = 0
    if step < last and not goals:
        finished.unlink()
        return False
    with open_log(workdir / "metrics.jsonl", size, say):  # warns if lines are missing
        return True


def member_rows(
    setup: Setup, members: Sequence[Member], done: int, parts: Sequence[Part]
) -> list[Row]:
    """Return a row for every member: the metrics of a run, without times, of its finite updates.

    A member with bad numbers keeps its last state; `bad_numbers` contains the reason.
    """
    counts = {"updates": done, "env_steps": done * setup.config.env_steps_per_update}
    rows = []
    for member, part in zip(members, parts, strict=False):  # the rest repeats the last member
        why = {"bad_numbers": describe_bad_numbers(setup, max(part.codes)) or None}
        bad = skipped_updates(setup.config, part.codes) or why
        rows.append({"member": member["member"], **counts, **bad, **summarize(part.metrics)})
    return rows


def bad_members(setup: Setup, members: Sequence[Member], parts: Sequence[Part]) -> str:
    """Return a warning about members with bad updates; one that ends is named only once."""
    skips = setup.config.on_bad_numbers == "skip"
    bad = [
        (member["member"], part)
        for member, part in zip(members, parts, strict=False)
        if part.codes.any() and (skips or part.streak <= len(part.codes))
    ]
    if not bad:
        return ""
    number, part = bad[0]
    more = f" (and {len(bad) - 1} other members)" if len(bad) > 1 else ""
    if skips:
        return what_was_skipped(setup, part.codes, f" of member {number}{more}")
    return f"Member {number} ended{more}: {describe_bad_numbers(setup, max(part.codes))}"


def ended_members(config: TrainConfig, rows: Sequence[Row], copying: bool) -> set[int]:
    """Return the members that have reached `stop_at`, or ended with bad numbers before.

    If members are `copying`, one with bad numbers may copy another.
    """
    goals = config.stop_at
    bad = lambda row: not copying and row.get("bad_numbers")  # noqa: E731
    return {row["member"] for row in rows if goals and (bad(row) or goals_reached(goals, row))}
