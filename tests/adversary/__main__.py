"""Run random sequences of commands and check rules. Print sequences that break one as commands.

    PYTHONPATH=. python tests/adversary --seeds 0:1000 --workers 14 --minutes 8 --json found.jsonl
    PYTHONPATH=. python tests/adversary --seeds 17:18 --shrink   # one, with output
    PYTHONPATH=. python tests/adversary --replay lines.txt       # commands from a file, one a line

Seeds in found.jsonl are not run again. Exits with status 1 if a rule is broken.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from folders import look
from model import PRESETS, Model
from processes import import_wdjax, run_command
from sequences import Command, draw_sequence

LIMIT = 40.0  # seconds of CPU time of a command
HEAD = f"cd $(mktemp -d); cp {PRESETS}/*.yaml ."
WARM = [  # commands that compile: run them once before the workers start
    *(
        f"wdjax train {preset}.yaml --workdir a --total-env-steps 128"
        for preset in ("ppo", "a2c", "ddpg", "tag")
    ),
    "wdjax sweep ppo.yaml --workdir a --seeds 2 --set total_env_steps=128",
    "wdjax sweep ppo.yaml --workdir a --pbt 2 --pbt-every-updates 2 --set total_env_steps=128 "
    "--set policies.agent.learning_rate=log:1e-3:1e-1",
    "wdjax train ppo.yaml --workdir a --total-env-steps 128 --devices 2",
]


def run_sequence(
    commands: Sequence[Command], seen: dict, limit: float, talk: bool = False
) -> tuple[list[str], int]:
    """Run commands in a new folder until one breaks a rule.

    Returns (violations, number of commands).
    """
    with tempfile.TemporaryDirectory(prefix="adversary-") as name:
        folder, model = Path(name).resolve(), Model(seen)
        for preset in PRESETS.glob("*.yaml"):
            shutil.copy(preset, folder)
        before = look(folder)
        for number, command in enumerate(commands, 1):
            command = resolved(command, before)
            result = run_command(command, folder, limit)
            after = look(folder)
            violations = model.check(command, result, before, after)
            if talk:
                print(
                    f"$ {command}\n  status {result.status}, "
                    f"{result.seconds:.1f} s; {states(after)}",
                    flush=True,
                )
            if violations:
                if talk:
                    print(result.output[-3000:])
                return violations, number
            before = after
    return [], len(commands)


def resolved(command: Command, disk: Any) -> Command:
    """Return a command with NEWEST replaced by the number of the newest checkpoint."""
    if "NEWEST" not in str(command):
        return command
    newest = disk.run(command.words[-1].split("/")[0]).newest
    return Command(tuple(word.replace("NEWEST", str(newest or 0)) for word in command.words))


def states(disk: Any) -> str:
    return "; ".join(
        f"{name}: row {run.last_row}, "
        f"checkpoints {[checkpoint.updates for checkpoint in run.checkpoints]}"
        for name, run in sorted(disk.runs.items())
        if run.kind
    )


def shrink(commands: list[Command], seen: dict, limit: float) -> list[Command]:
    """Remove commands, flags and kills while a rule is still broken."""
    _, length = run_sequence(commands, dict(seen), limit)
    commands = commands[:length]
    position = len(commands) - 2
    while position >= 0:
        shorter = commands[:position] + commands[position + 1 :]
        violations, length = run_sequence(shorter, dict(seen), limit)
        if violations:
            commands = shorter[:length]
        position = min(position, len(commands) - 1) - 1
    return commands


def work(seeds: Sequence[int], file: Path, limit: float, until: float) -> None:
    """Run seeds and append a line of JSON for each."""
    seen: dict = {}
    for seed in seeds:
        if time.monotonic() > until:
            return
        commands, begun = draw_sequence(seed), time.monotonic()
        try:
            wrong, length = run_sequence(commands, seen, limit)
        except Exception as error:  # a failure of the harness counts too
            wrong, length = [f"the harness failed: {type(error).__name__}: {error}"], len(commands)
        record = {
            "seed": seed,
            "wrong": wrong,
            "commands": [str(command) for command in commands[:length]],
            "seconds": round(time.monotonic() - begun, 1),
        }
        with open(file, "ab", buffering=0) as stream:
            stream.write((json.dumps(record) + "\n").encode())


def in_processes(tasks: Sequence[tuple], cores: bool = False) -> None:
    """Run functions in forked processes in parallel, and wait for all of them."""
    pids, usable = [], sorted(os.sched_getaffinity(0))
    for number, (function, *arguments) in enumerate(tasks):
        if (pid := os.fork()) == 0:
            try:
                if cores:
                    os.sched_setaffinity(0, {usable[number % len(usable)]})
                function(*arguments)
            finally:
                sys.stdout.flush()
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:10", help="FIRST:LAST, without the last, or a,b,c")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="start no sequence later")
    parser.add_argument(
        "--json", type=Path, help="a line per sequence; an existing file is continued"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="maximum seconds of CPU time of a command"
    )
    parser.add_argument(
        "--shrink", action="store_true", help="one seed: show it, then leave out commands"
    )
    parser.add_argument("--replay", type=Path, help="a file with commands")
    parser.add_argument(
        "--cold", action="store_true", help="for few seeds: compile a program when it is needed"
    )
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    cache = (
        tempfile.mkdtemp(prefix="adversary-cache-")
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ
        else None
    )
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache or "")
    import_wdjax()
    chosen = seeds_of(arguments.seeds)
    try:
        if arguments.replay or arguments.shrink:
            lines = (
                arguments.replay.read_text().splitlines()
                if arguments.replay
                else map(str, draw_sequence(chosen[0]))
            )
            raise SystemExit(show([Command.parse(line) for line in lines if line], arguments))
        file = arguments.json or Path(tempfile.mkstemp(suffix=".jsonl")[1])
        done = (
            {json.loads(line)["seed"] for line in file.read_text().splitlines()}
            if file.exists()
            else set()
        )
        seeds = [seed for seed in chosen if seed not in done]
        # otherwise each worker has several cores
        pin = 1 < arguments.workers > len(os.sched_getaffinity(0)) // 2
        for i in range(0, 0 if arguments.cold else len(WARM), arguments.workers):
            in_processes(
                [
                    (run_sequence, [Command.parse(line)], {}, 300.0)
                    for line in WARM[i : i + arguments.workers]
                ]
            )
        tasks = [
            (work, seeds[i :: arguments.workers], file, arguments.limit, until)
            for i in range(arguments.workers)
        ]
        in_processes(tasks, pin)
        raise SystemExit(summary(file, chosen))
    finally:
        if cache:
            shutil.rmtree(cache, ignore_errors=True)


def seeds_of(text: str) -> Sequence[int]:
    """Return the seeds of FIRST:LAST or of a list with commas."""
    if ":" not in text:
        return [int(seed) for seed in text.split(",")]
    first, last = map(int, text.split(":"))
    return range(first, last)


def show(commands: list[Command], arguments: argparse.Namespace) -> int:
    """Run and print one sequence, and a shorter one if it breaks a rule."""
    seen: dict = {}
    wrong, length = run_sequence(commands, seen, arguments.limit, talk=True)
    print("\n".join(wrong) or "all rules hold")
    if wrong and arguments.shrink:
        shorter = shrink(commands[:length], seen, arguments.limit)
        print("\n".join(["", HEAD, *map(str, shorter)]))
    return int(bool(wrong))


def summary(file: Path, seeds: Sequence[int]) -> int:
    """Print the failed sequences of a file. Return the exit status."""
    rows = [row for row in map(json.loads, file.read_text().splitlines()) if row["seed"] in seeds]
    failed = sorted((row for row in rows if row["wrong"]), key=lambda row: row["seed"])
    for row in failed:
        lines = [
            f"\nseed {row['seed']}: {'; '.join(row['wrong'])}",
            f"  {HEAD}",
            *(f"  {c}" for c in row["commands"]),
        ]
        print("\n".join(lines))
    commands = sum(len(row["commands"]) for row in rows)
    print(
        f"\n{len(rows)} of {len(seeds)} sequences, {commands} commands, "
        f"{sum(r['seconds'] for r in rows):.0f} s; "
        f"{len(failed)} break a rule ({file})"
    )
    return int(bool(failed) or not rows)


if __name__ == "__main__":
    main()
