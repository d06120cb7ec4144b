"""Rules that must hold after every command, given the files before and after it."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from folders import Disk, Run, changes, close
from processes import TRACEBACK, Result
from sequences import PRESETS as POLICIES
from sequences import STEPS, Command

PRESETS = Path(__file__).parent / "presets"
STOPPED = 130
TIMING = (
    "seconds",
    "seconds_per_update",
    "compile_seconds",
    "env_steps_per_second",
    "agent_steps_per_second",
)
PICTURES = ("curves.png", "opponents.png", "episode.gif")
# Fields that a resume may change; all others must stay.
RESUMABLE = {
    "total_env_steps": None,
    "stop_at": {},
    "checkpoint_every_updates": 0,
    "checkpoint_every": None,
    "keep_checkpoints": 2,
    "devices": 0,
    "on_bad_numbers": "stop",
}
NO_FIELDS = ("workdir", "resume", "no_pictures", "callbacks", "dry_run", "deterministic", "debug")
WRITES = {"report": "report.html", "export": "export", "render": "x.html"}
NOISE = re.compile(r"\x1b\[[\d;]*m")


@dataclasses.dataclass
class Folder:
    """Knowledge about a folder from the previous commands."""

    identity: tuple[Any, ...] = ()  # settings of the run or sweep in the folder
    most: int = 0  # the most updates that an accepted command requested
    damaged: bool = False  # files of the run were deleted or truncated
    lost_rows: bool = False  # metrics.jsonl was deleted or truncated: its rows are lost
    interrupted: bool = False  # the last writing command was killed
    clean: bool = True  # no command was killed
    comparable: bool = True  # all rows were computed on one device, without debug
    csv: bool = True  # all commands wrote metrics.csv


class Model:
    """The rules. `seen` contains numbers of earlier sequences, which equal runs must reproduce."""

    def __init__(self, seen: dict[Any, Any]):
        self.seen = seen
        self.folders: dict[str, Folder] = {}

    def check(self, command: Command, result: Result, before: Disk, after: Disk) -> list[str]:
        """Return the violations after a command, as sentences."""
        if command.words[0] != "wdjax":
            self.after_shell(command, result)
            return []
        violations = list(of_process(command, result))
        changed = changes(before.files, after.files)
        outside = [
            path for path in changed if not f"{path}/".startswith(f"{command.folder or '?'}/")
        ]
        if outside:
            violations.append(f"changed outside of its folder: {outside[:4]}")
        if violations:
            return violations
        state = self.folders.setdefault(command.folder, Folder()) if command.folder else Folder()
        rules = {"train": self.after_train, "sweep": self.after_sweep}.get(
            command.name, self.after_read
        )
        return list(rules(command, result, before, after, state))

    # --- commands that train

    def after_train(
        self, command: Command, result: Result, before: Disk, after: Disk, own: Folder
    ) -> Iterator[str]:
        old, new, resumes = (
            before.run(command.folder),
            after.run(command.folder),
            "resume" in command.flags,
        )
        changed = changes(before.below(command.folder), after.below(command.folder))
        identity, target = identity_of(command), target_of(command)
        if "dry_run" in command.flags:
            yield from unchanged(changed, "--dry-run")
            return
        refused = (
            target is None
            or old.kind == "sweep"
            or (old.kind == "run" and not resumes)
            or (
                old.config != {}
                and own.identity != ()
                and (
                    own.identity != identity
                    or chunk_of(command) not in (0, old.config.get("updates_per_chunk", 0))
                )
            )
        )
        if refused:
            yield from unchanged(changed, "a command that must be refused")
            yield from status_is(result, {2}, "it must be refused")
            return
        if result.status == 2:
            yield from unchanged(changed, "a refused command")
            if not own.damaged and not may_refuse(command):
                yield f"refused: {last_line(result)}"
            return
        begun_before = old.config != {}
        own.identity, own.most = identity, max(own.most, target)
        own.comparable = (own.comparable or not old.rows) and not {
            "devices",
            "debug",
        } & command.flags.keys()
        own.csv = (own.csv or not old.rows) and "callbacks" in command.flags
        own.clean = own.clean and not result.killed
        finished = begun_before and old.newest is not None and old.newest >= target
        # If files are damaged, the newest readable checkpoint decides, which only the command
        # knows.
        if ("nothing to do" in result.output or not changed) if own.damaged else finished:
            yield from nothing_to_do(result, old, new, target, changed, own)
        else:
            yield from self.trained(command, result, old, new, target, own)
        yield from rows_fit(new, own, hard=result.killed)
        yield from self.numbers(new, own)
        own.interrupted = result.killed or (own.interrupted and result.status != 0)

    def trained(
        self, command: Command, result: Result, old: Run, new: Run, target: int, own: Folder
    ) -> Iterator[str]:
        """Yield violations after a command that had updates to do, however it ended."""
        known = old.checkpoints[-1].metrics_size if old.checkpoints and not own.damaged else 0
        if known and new.raw[:known] != old.raw[:known]:
            yield f"rows before checkpoint {old.newest} are lost or changed"
        if not own.damaged and (old.newest or 0) > (new.newest or 0):
            yield f"the newest checkpoint was {old.newest} and is {new.newest}"
        if new.newest is not None and new.newest > own.most:
            yield f"checkpoint {new.newest} is beyond the {own.most} updates that were asked for"
        added = new.raw != old.raw[: len(new.raw)] or len(new.raw) > len(old.raw)
        soft = result.killed and "KILL" not in command.kill and "," not in command.kill
        ended = not result.killed or (
            result.status in (0, STOPPED) and "saved after" in result.output
        )
        # its rows are deleted, and it made no progress
        idle = own.lost_rows and new.newest == old.newest
        if new.rows and (ended or (soft and added)) and new.newest != new.last_row and not idle:
            ended_at = f"ended with status {result.status} at row {new.last_row}"
            yield f"{ended_at}, the newest checkpoint is {new.newest}"
        if result.status == 0:
            early = "stop_at" in command.flags
            reached = (new.newest or 0) == (target if own.damaged else max(target, old.newest or 0))
            if not reached and not (early and 0 < (new.newest or 0) < target):
                yield f"ended at {new.newest} of {target} updates with status 0"
            yield from describes(command, new)
            if len(new.checkpoints) > new.config.get("keep_checkpoints", 2):
                yield f"{len(new.checkpoints)} checkpoints are kept"
            if own.clean and not own.damaged:
                yield from best_is_best(new)
            own.damaged = own.damaged and idle
        if result.status == 1 and "--on-bad-numbers skip" in str(command):
            yield f"ended by {last_line(result)}, though bad updates are left out"

    def numbers(self, new: Run, own: Folder) -> Iterator[str]:
        """Yield differences from rows of equal runs, however these were trained."""
        if not own.comparable or own.lost_rows:
            return
        chunk = new.config.get("updates_per_chunk")
        for before, row in itertools.pairwise([{"updates": 0}, *new.rows]):
            # A row covers the updates since the previous row.
            key = (own.identity, chunk, before["updates"], row["updates"])
            content = {name: value for name, value in row.items() if name not in TIMING}
            known = self.seen.setdefault(key, content)
            for name in known.keys() | content.keys():
                a, b = known.get(name, "missing"), content.get(name, "missing")
                free = name.startswith("eval/") and (
                    None in (a, b) or name.startswith("eval/best/")
                )
                free = free or name == "skipped_updates"
                if a != b and not free and not (isinstance(a, float) and math.isnan(a)):
                    other = f"{a} in another run of this configuration"
                    yield f"row {row['updates']}: {name} = {b}, and {other}"
                    return

    def after_sweep(
        self, command: Command, result: Result, before: Disk, after: Disk, own: Folder
    ) -> Iterator[str]:
        old, changed = (
            before.run(command.folder),
            changes(before.below(command.folder), after.below(command.folder)),
        )
        identity = tuple(
            word
            for word in str(command).replace(" --members-at-once 1", "").split()
            if "@" not in word
        )
        identity = tuple(word for word in identity if word != "--resume")
        other = old.kind and ("resume" not in command.flags or own.identity != identity)
        if old.kind == "run" or other or "nothing=1,2" in command.words:
            yield from unchanged(changed, "a sweep that must be refused")
            yield from status_is(result, {2}, "it must be refused")
            return
        if result.status == 2:
            yield from unchanged(changed, "a refused sweep")
            if not own.damaged:
                yield f"refused: {last_line(result)}"
            return
        own.identity = identity
        table = f"{command.folder}/table.jsonl"
        whole = f"{command.folder}/best" in before.files and not own.interrupted and not own.damaged
        if whole:
            lost = [path for path in changed if "/groups/" in path or path == table]
            if lost:
                yield f"a finished sweep changed {lost[:4]}"
        own.interrupted = result.killed or (own.interrupted and result.status != 0)
        if result.status == 0 and not result.killed:
            rows = after.run(command.folder).table
            if not rows:
                yield "a finished sweep has no table.jsonl"
            # Members trained one by one and in parallel use different programs, which round
            # differently.
            elif "--pbt" not in identity and not close(self.seen.setdefault(identity, rows), rows):
                yield "table.jsonl differs from another sweep of this configuration"

    # --- commands that read

    def after_read(
        self, command: Command, result: Result, before: Disk, after: Disk, own: Folder
    ) -> Iterator[str]:
        changed = changes(before.files, after.files)
        allowed = f"{command.folder}/{WRITES.get(command.name, '?')}"
        if result.status == 2:
            yield from unchanged(changed, "a refused command")
        yield from unchanged(
            [p for p in changed if not f"{p}/".startswith(f"{allowed}/")], f"wdjax {command.name}"
        )
        runs = [place for place in command.places if command.name != "resume"]
        sound = all(self.can_be_read(place, command, before) for place in runs)
        if command.name == "eval" and result.status == 0 and len(runs) == 1:
            yield from self.same_episodes(command, result, before)
        refused = {"0", "a/x.txt", "unknown"} & set(command.words) or (
            command.name == "diff" and len(runs) < 2
        )
        refused = refused or (command.name == "eval" and len(set(runs)) < len(runs))
        env_names = {str(before.run(place.partition("@")[0]).config.get("env")) for place in runs}
        # runs of different environments cannot be compared
        refused = refused or (command.name in ("eval", "report") and len(env_names) > 1)
        if sound and not refused and command.name != "resume":
            yield from status_is(result, {0}, "its runs are readable")

    def can_be_read(self, place: str, command: Command, disk: Disk) -> bool:
        """Return whether a command must accept a run."""
        folder, _, which = place.partition("@")
        if f"{folder}/config.yaml" not in disk.files or self.folders.get(folder, Folder()).damaged:
            return False
        if "/" in folder:  # a run of a sweep without kills
            return not self.folders.get(folder.split("/")[0], Folder()).interrupted
        run = disk.run(folder)
        if command.name == "diff":  # compares configurations and rows, not checkpoints
            return bool(run.rows) and not which
        return bool(run.rows) and bool(run.best if which == "best" else run.checkpoints)

    def same_episodes(self, command: Command, result: Result, disk: Disk) -> Iterator[str]:
        """Yield a violation if a checkpoint plays other episodes than in an equal run."""
        name, run = command.places[0], disk.run(command.places[0])
        own = self.folders.get(name)
        if own is None or not own.comparable or own.damaged or run.newest is None:
            return
        table = [
            line
            for line in NOISE.sub("", result.output).splitlines()
            if line.startswith(("│", "┃"))
        ]
        key = (
            "eval",
            own.identity,
            run.config.get("updates_per_chunk"),
            run.newest,
            command.words[3:],
        )
        if self.seen.setdefault(key, table) != table:
            tables = f"{table} and {self.seen[key]}"
            yield f"checkpoint {run.newest} plays other episodes than in another run: {tables}"

    def after_shell(self, command: Command, result: Result) -> None:
        if result.status != 0:
            return
        name, places = (
            command.name,
            [word for word in command.words[1:] if not word.startswith("-")],
        )
        folder = places[-1].split("/")[0]
        if name in ("mv", "cp"):
            self.folders[places[1]] = dataclasses.replace(self.folders.get(places[0], Folder()))
        if name == "mv" or (name == "rm" and "/" not in places[0]):
            self.folders.pop(places[0], None)
        elif name in ("rm", "truncate"):
            own = self.folders.setdefault(folder, Folder())
            own.damaged, own.clean, own.csv = True, False, False
            own.lost_rows |= places[-1].endswith("/metrics.jsonl")


def of_process(command: Command, result: Result) -> Iterator[str]:
    """Yield violations of process rules: ends, documented status, one line if rejected."""
    if result.hung:
        yield f"still ran after {result.seconds:.0f} s"
        return
    if result.status == TRACEBACK or "Traceback (most recent call last)" in result.output:
        yield f"a traceback: {last_line(result)}"
    allowed = {0, 1, 2} | ({STOPPED, *range(-64, 0)} if result.killed else set())
    if result.status not in allowed:
        yield f"exit status {result.status}: {last_line(result)}"
    messages = [line for line in result.output.splitlines() if line.startswith("wdjax: ")]
    if result.status == 2 and len(messages) != 1:
        yield f"refused with {len(messages)} sentences: {result.output[-300:]!r}"


def nothing_to_do(
    result: Result, old: Run, new: Run, target: int, changed: list[str], own: Folder
) -> Iterator[str]:
    """Yield changes of a run that already had the requested updates."""
    if not result.killed:
        yield from status_is(result, {0}, "the run is finished")
    allowed = {"sizes.json", "tmp", "best"} if own.interrupted or own.damaged else set()
    # unreadable files are renamed, and a lock creates an empty metrics.jsonl if it is missing
    if own.damaged:
        allowed |= {
            "damaged-",
            *(
                f"checkpoints/{checkpoint.updates}"
                for checkpoint in old.checkpoints
                if checkpoint.updates > (new.newest or 0)
            ),
        }
        allowed |= {"metrics.jsonl"} if new.raw == old.raw else set()
        if not result.killed and (new.newest or 0) < target:
            yield f"no update was done at {new.newest} of {target} updates"
    if target in (old.newest, new.newest):
        allowed |= {*PICTURES, "config.yaml"}
        if old.last_row > target:  # rows after the last checkpoint of a killed run are removed
            allowed |= {"metrics.jsonl", "metrics.csv"}
    elif own.interrupted:
        allowed |= {"metrics.jsonl.tmp", "config.yaml.tmp"}
    yield from unchanged(
        [p for p in changed if not any(name in p for name in allowed)], "a finished run"
    )
    if new.newest != old.newest and not own.damaged:
        yield f"the newest checkpoint was {old.newest} and is {new.newest}"


def rows_fit(new: Run, own: Folder, hard: bool) -> Iterator[str]:
    """Yield violations if rows are incomplete, out of order, missing, or beyond the request."""
    # a finished run does not repair a truncated line
    half = hard or (own.damaged and own.lost_rows)
    if new.broken and not (half and len(new.broken) == 1):
        yield f"metrics.jsonl holds {new.broken[:2]}"
    done, size = [row["updates"] for row in new.rows], new.config.get("updates_per_chunk", 0)
    if any(a >= b for a, b in itertools.pairwise(done)):
        yield f"rows are not in order: {done}"
    if done and done[-1] > own.most:
        yield f"a row of update {done[-1]}, and {own.most} were asked for"
    for row in new.rows:
        if row["env_steps"] != row["updates"] * STEPS:
            yield f"row {row['updates']} has {row['env_steps']} env steps"
    missing = set(range(size, new.last_row + 1, size)) - set(done) if size else set()
    if missing and not own.damaged and not own.lost_rows and "bad" not in str(new.rows[-1:]):
        yield f"rows are missing: {sorted(missing)[:5]} of {done[:20]}"
    last = new.checkpoints[-1] if new.checkpoints and not own.damaged else None
    if last is not None and last.metrics_size is not None:
        known = new.raw[: last.metrics_size]
        lines = known.count(b"\n")
        at = new.rows[lines - 1]["updates"] if 0 < lines <= len(new.rows) else 0
        if (
            len(known) < last.metrics_size
            or (known and not known.endswith(b"\n"))
            or at != last.updates
        ):
            metrics = f"{last.metrics_size} bytes of metrics, up to row {at}"
            yield f"checkpoint {last.updates} goes with {metrics}"


def best_is_best(new: Run) -> Iterator[str]:
    """Yield a violation if the best checkpoint is not the first with the highest evaluation."""
    name = next((key for row in new.rows for key in row if key.startswith("eval/best/")), None)
    if name is None:
        return
    scores = ((row.get(name.replace("/best", "", 1)), row["updates"]) for row in new.rows)
    known = [(score, done) for score, done in scores if score is not None]
    if known and new.best != [next(done for score, done in known if score == max(known)[0])]:
        yield f"best holds {new.best}, evaluations were {known}"


def describes(command: Command, new: Run) -> Iterator[str]:
    """Yield fields of config.yaml that differ from the command."""
    preset = yaml.safe_load((PRESETS / command.places[0]).read_text())
    expected = {name: preset.get(name, default) for name, default in RESUMABLE.items()} | {
        "env": preset["env"]
    }
    expected |= {
        name: values_of(name, values)
        for name, values in command.flags.items()
        if name not in NO_FIELDS
    }
    if "debug" in command.flags:
        del expected["devices"]
    if expected.get("updates_per_chunk") == 0:
        del expected["updates_per_chunk"]
    for name, value in expected.items():
        value_in_config: Any = new.config
        for part in name.split("."):
            value_in_config = (
                value_in_config.get(part) if isinstance(value_in_config, dict) else None
            )
        if value is not None and value_in_config != value:
            found = f"config.yaml holds {name} = {value_in_config!r}"
            yield f"{found}, and the command asked for {value!r}"


def identity_of(command: Command) -> tuple[Any, ...]:
    """Return the settings that may not change between the commands of a run."""
    fields = command.flags.keys() - set(NO_FIELDS) - set(RESUMABLE) - {"updates_per_chunk"}
    settings = {name: command.flags[name] for name in fields}
    settings.setdefault("seed", ("0",))
    return (
        command.places[0] if command.places else "",
        *sorted(settings.items()),
        *command.settings,
    )


def chunk_of(command: Command) -> int:
    """Return the chunk size that a command requests, 0 for the run's size or automatic."""
    preset = command.places[0]
    default = (
        (yaml.safe_load((PRESETS / preset).read_text()) or {}).get("updates_per_chunk", 0)
        if _known(preset)
        else 0
    )
    return int(command.flags.get("updates_per_chunk", (default,))[0])


def _known(preset: str) -> bool:
    return bool(preset) and (PRESETS / preset).is_file()


def target_of(command: Command) -> int | None:
    """Return the updates that a command requests, or None if it must be rejected."""
    flags = command.flags
    wrong = {("num_envs", "0"), ("devices", "3"), ("callbacks", "nothing")}
    if not _known(command.places[0]) or any(
        (name, *flags.get(name, ())) == (name, bad) for name, bad in wrong
    ):
        return None
    policies = {name.split(".")[1] for name in flags if name.startswith("policies.")}
    unknown = policies - set(POLICIES[command.places[0].removesuffix(".yaml")])
    if unknown or flags.get("stop_at", ("",))[0] == "agent/nothing":
        return None
    try:
        steps = int(flags.get("total_env_steps", ("128",))[0])
    except ValueError:
        return None
    return -(-steps // STEPS) if steps > 0 else None


def may_refuse(command: Command) -> bool:
    """Return whether a valid command may be rejected because a size does not fit its preset."""
    return "updates_per_chunk" in command.flags or bool(command.settings)


def values_of(name: str, texts: tuple[str, ...]) -> Any:
    if name == "stop_at":
        return {texts[0]: float(texts[1])}
    value = yaml.safe_load(texts[0])
    return float(value) if name.endswith("learning_rate") else value


def unchanged(changed: list[str], what: str) -> Iterator[str]:
    if changed:
        yield f"{what} changed {changed[:5]}"


def status_is(result: Result, allowed: set[int], why: str) -> Iterator[str]:
    if result.status not in allowed and not result.killed:
        yield f"exit status {result.status}, but {why}: {last_line(result)}"


def last_line(result: Result) -> str:
    lines = [line for line in result.output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
