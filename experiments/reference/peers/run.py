"""Compare wdjax with programs of other authors on their tasks.

    python -m wdjax.experiments.reference.peers mpe_spread_mappo --peers PEERS --results FOLDER
    python -m wdjax.experiments.reference.peers --redraw      # only rewrite PEERS.md

PEERS contains checkouts of the other libraries: JaxMARL, purejaxql and purejaxrl. Each program
trains all seeds in a process of its own, one program after the other. Its result is appended to
FOLDER/TASK.yaml at once, so that runs of several seeds are kept side by side.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from wdjax.checks import require, require_known
from wdjax.experiments.benchmarks.timing import Parser, in_new_process, machine
from wdjax.experiments.reference.peers.page import write_page
from wdjax.experiments.reference.peers.parts import COMMITS
from wdjax.experiments.reference.peers.programs import Published, Theirs
from wdjax.experiments.reference.peers.tasks import TASKS
from wdjax.version import __version__

FOLDER = Path(__file__).parent
PROGRAM = "python -m wdjax.experiments.reference.peers"
VERSIONS = ("flax", "optax", "numpy", "gymnax")


def main(arguments: list[str] | None = None) -> None:
    """Run the programs of one task, store their results and rewrite PEERS.md if asked."""
    parsed = parse(arguments)
    failed = []
    for label in parsed.programs:
        options = {
            "seeds": list(range(parsed.first_seed, parsed.first_seed + parsed.seeds)),
            "env_steps": parsed.env_steps,
            "peers": str(parsed.peers.resolve()),
            "changes": parsed.change,
        }
        try:
            result = in_new_process(measure, parsed.task, label, options)
        except subprocess.CalledProcessError as error:
            failed.append(label)
            print(f"{label}: failed with status {error.returncode}", flush=True)
            continue
        append(parsed.results / f"{parsed.task}.yaml", result)
        print(as_text(result), flush=True)
    if parsed.redraw:
        write_page(parsed.results, FOLDER.parent / "PEERS.md")
    if failed:
        raise SystemExit(1)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse and check the command line; exit with one sentence and status 2 if it is invalid."""
    parser = Parser(__doc__, timed=False, prog=PROGRAM)
    parser.add_argument("task", nargs="?", metavar="TASK", help=", ".join(TASKS))
    help = "programs to run, by label (default: all of the task)"
    parser.add_argument("--programs", nargs="+", metavar="LABEL", help=help)
    parser.add_argument("--seeds", type=int, help="number of seeds (default: as in the task)")
    parser.add_argument("--first-seed", type=int, default=30, help="first seed (default: 30)")
    parser.add_argument("--env-steps", type=float, help="env steps (default: as in the task)")
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of checkouts")
    folder = FOLDER / "results"
    parser.add_argument("--results", type=Path, default=folder, help="folder of the results")
    help = "changed field of the configuration, for small runs, such as NUM_ENVS=4"
    parser.add_argument("--change", nargs="+", default=[], metavar="FIELD=VALUE", help=help)
    parser.add_argument("--redraw", action="store_true", help="rewrite PEERS.md")
    parsed = parser.parse(arguments)
    try:
        complete(parsed)
    except ValueError as error:
        parser.error(str(error))
    return parsed


def complete(parsed: argparse.Namespace) -> None:
    """Check the task and labels, and fill in the defaults of the task. Raise ValueError."""
    if parsed.task is None:
        require(parsed.redraw, "TASK", None, f"one of {', '.join(TASKS)}, or --redraw")
        parsed.programs = []
        return
    require_known("task", parsed.task, TASKS)
    task = TASKS[parsed.task]
    known = [name for name, one in task.programs.items() if not isinstance(one, Published)]
    parsed.programs = parsed.programs or known
    for label in parsed.programs:
        require_known("program", label, known)
    parsed.seeds = parsed.seeds or task.seeds
    parsed.env_steps = int(parsed.env_steps or task.env_steps)
    require(parsed.env_steps >= 1, "--env-steps", parsed.env_steps, "at least 1")
    programs = [task.programs[label] for label in parsed.programs]
    needed = {program.library for program in programs if isinstance(program, Theirs)}
    for library in sorted(needed):
        path = parsed.peers / library
        require(path.is_dir(), "--peers", str(parsed.peers), f"a folder with a checkout {library}")
    pairs = [item.partition("=") for item in parsed.change]
    parsed.change = {name: yaml.safe_load(value) for name, _, value in pairs}


def measure(task: str, label: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run one program in this process and return the entry to store.

    Args:
        task: name of the task.
        label: label of the program.
        options: "seeds", "env_steps", "peers" and "changes".
    """
    # imported here: the parent process must not hold the card
    from wdjax.experiments.reference.peers.ours import run_ours
    from wdjax.experiments.reference.peers.theirs import run_theirs

    program, peers, seeds = TASKS[task].programs[label], Path(options["peers"]), options["seeds"]
    assert not isinstance(program, Published)  # `complete` excludes them
    for name in ("stubs", "JaxMARL"):  # both programs play the same version of the games
        sys.path.insert(0, str(peers / name))
    rest = seeds, options["env_steps"], options["changes"]
    origin = {}
    if isinstance(program, Theirs):
        result = run_theirs(program, peers, *rest)
        origin["commit"] = COMMITS[program.library]
    else:
        result = run_ours(program, *rest)
    return rounded(
        {
            "label": label,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "command": command(task, label, options),
            "seeds": seeds,
            "env_steps": options["env_steps"],
            "changes": options["changes"],
            **result,
            **origin,
            "machine": f"{machine()}, {os.cpu_count()} CPU cores",
            "versions": versions(),
        }
    )


def command(task: str, label: str, options: dict[str, Any]) -> str:
    """Return the command that measures one program with the same seeds."""
    seeds = options["seeds"]
    words = [PROGRAM, task, "--programs", f"'{label}'", f"--seeds {len(seeds)}"]
    words += [f"--first-seed {seeds[0]}", f"--env-steps {options['env_steps']}"]
    if options["changes"]:
        words.append("--change")
        words += [f"{name}={value}" for name, value in options["changes"].items()]
    return " ".join(words)


def versions() -> dict[str, str]:
    """Return the versions of wdjax and of installed packages."""
    found = {"wdjax": __version__}
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def append(path: Path, result: dict[str, Any]) -> None:
    """Append one entry to the list `runs` of a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", encoding="utf8") as file:
        file.write("runs:\n" if is_new else "")
        file.write(as_text(result))


def as_text(result: dict[str, Any]) -> str:
    """Return an entry as an item of a YAML list."""
    plain = json.loads(json.dumps(result))  # no object twice, which YAML would write as an alias
    return yaml.safe_dump([plain], sort_keys=False, default_flow_style=None, width=100)


def rounded(value: Any) -> Any:
    """Round all floats in a nested structure to six significant digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
