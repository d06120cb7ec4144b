"""Compare cooperative algorithms with PPO on own environments, and write WORLDS.md.

    python -m wdjax.experiments.reference.worlds                         # all worlds
    python -m wdjax.experiments.reference.worlds tag_small --seeds 5 --results FOLDER
    python -m wdjax.experiments.reference.worlds tag_small --variants mappo pqn_sum
    python -m wdjax.experiments.reference.worlds --redraw                # only rewrite WORLDS.md

A variant is a preset with changes. FOLDER/WORLD-VARIANT.yaml contains its changes, seeds, numbers
of every seed, times, machine and command. Variants can be measured at the same time in several
processes, one per GPU. Seeds start at 10, because the bundled opponents were trained with seed 0.
"""

import datetime
import shlex
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import yaml

from wdjax.checks import require_known
from wdjax.experiments.benchmarks.timing import Parser, in_new_process
from wdjax.experiments.over_seeds import interval_of_mean, plain_mean
from wdjax.experiments.reference.rerun import EVALUATION, rounded, train_seeds, words
from wdjax.experiments.reference.world_table import WORLDS
from wdjax.train import TrainConfig, load_config, make_learner
from wdjax.yaml_reader import read_yaml

HERE = Path(__file__).parent
FOLDER, PAGE = HERE / "worlds_results", HERE / "WORLDS.md"
PROGRAM = "python -m wdjax.experiments.reference.worlds"
FIRST_SEED = 10


def main(arguments: list[str] | None = None) -> None:
    """Measure the variants of the named worlds, or rewrite WORLDS.md from the stored results."""
    parser = Parser(__doc__, WORLDS, timed=False, prog=PROGRAM)
    parser.add_argument("--variants", nargs="+", default=[], help="variants (default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--env-steps", type=int, help="env steps per seed (default: the preset's)")
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--redraw", action="store_true", help="only rewrite WORLDS.md")
    parsed = parser.parse(arguments)
    if parsed.redraw:
        PAGE.write_text(page(read_results(parsed.results)), encoding="utf8")
        return
    try:
        for variant in parsed.variants:
            known = [own for name in parsed.rows for own in WORLDS[name].variants]
            require_known("variant", variant, known)
    except ValueError as error:
        parser.error(str(error))
    steps = {} if parsed.env_steps is None else {"total_env_steps": parsed.env_steps}
    failed = False
    for name in parsed.rows:
        known = list(WORLDS[name].variants)
        for variant in [own for own in known if own in (parsed.variants or known)]:
            try:
                result = in_new_process(measure, name, variant, parsed.seeds, steps)
            except subprocess.CalledProcessError as error:
                print(f"{name} {variant}: failed with status {error.returncode}", flush=True)
                failed = True
                continue
            store(parsed.results, name, variant, result)
    if failed:
        raise SystemExit(1)


def configuration(name: str, variant: str, changes: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a variant of a world with further changes, on one device."""
    world = WORLDS[name]
    own = {**world.changes, **world.variants[variant].changes, **changes}
    return load_config(world.preset, devices=1, **own)


def measure(name: str, variant: str, seeds: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Train all seeds of a variant in one program, measure them and return the result to store.

    Args:
        name: world.
        variant: one of its variants.
        seeds: number of seeds, from FIRST_SEED on.
        changes: further changes of the preset.
    """
    world = WORLDS[name]
    learner = make_learner(configuration(name, variant, changes))
    numbers = range(FIRST_SEED, FIRST_SEED + seeds)
    keys = jax.vmap(jax.random.key)(jnp.array(numbers))
    runs, times = train_seeds(learner, keys)
    measured = [
        world.measure(learner, *run, jax.random.fold_in(key, EVALUATION))
        for run, key in zip(runs, keys, strict=True)
    ]
    own = {**world.changes, **world.variants[variant].changes, **changes}
    command = [*PROGRAM.split(), name, "--variants", variant, "--seeds", str(seeds)]
    if "total_env_steps" in changes:
        command += ["--env-steps", str(changes["total_env_steps"])]
    return {
        "preset": world.preset,
        "changes": own,
        "command": shlex.join(command),
        "date": str(datetime.date.today()),
        "seeds": list(numbers),
        **times,
        "numbers": {number: [rounded(one[number]) for one in measured] for number in measured[0]},
    }


def store(folder: Path, name: str, variant: str, result: Mapping[str, Any]) -> None:
    """Write the result of a variant to FOLDER/WORLD-VARIANT.yaml and print its means."""
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(dict(result), sort_keys=False, width=120, default_flow_style=None)
    (folder / f"{name}-{variant}.yaml").write_text(text, encoding="utf8")
    means = ", ".join(f"{own} {cell(values)}" for own, values in result["numbers"].items())
    print(f"{name} {variant}: {means}; {result['seconds']} s", flush=True)


# --- page ---


HEAD = f"""<!-- Generated by: {PROGRAM} --redraw -->

# Cooperation in the environments of wdjax

Each section trains several algorithms on one environment: a preset with the changes of
`experiments/reference/world_table.py`, for the same env steps and seeds. No hyperparameters were
tuned: MAPPO uses the options of PPO. PQN uses the options of the preset `cartpole_pqn`, with the
hidden sizes, gamma, epochs and minibatches of PPO. All other policies learn as in the preset. The
critic of MAPPO is a separate network. Where the preset has a shared trunk, compare MAPPO with
`ppo_split`, PPO with separate networks.

* **Numbers**: mean over seeds with its 95 % bootstrap interval, of fresh episodes after training.
* **Sampled, greedy**: actions as in training, or the most likely ones. PQN takes the best action in
  both cases. Numbers without either word are sampled.
* **Seconds**: training of all seeds in one program, without compilation. Other programs ran on the
  CPU at the same time, so its seconds are upper bounds.
"""


def read_results(folder: Path) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the stored results by world and variant, in the order of WORLDS."""
    paths = {
        name: {own: folder / f"{name}-{own}.yaml" for own in world.variants}
        for name, world in WORLDS.items()
    }
    stored: dict[str, dict[str, Mapping[str, Any]]] = {
        name: {own: read_yaml(path) for own, path in files.items() if path.exists()}
        for name, files in paths.items()
    }
    return {name: results for name, results in stored.items() if results}


def page(stored: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the text of WORLDS.md: a table of variants for each world."""
    return HEAD + "".join(section(name, results) for name, results in stored.items())


def section(name: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the section of a world: note, table, seeds, machines and commands."""
    world = WORLDS[name]
    numbers = list(next(iter(results.values()))["numbers"])
    text = f"\n## {name}\n\n{textwrap.fill(world.note, 100)}\n\n"
    text += f"| Variant | {' | '.join(numbers)} | Seconds |\n{'|---' * (len(numbers) + 2)}|\n"
    for variant, result in results.items():
        cells = " | ".join(cell(result["numbers"][number]) for number in numbers)
        label = world.variants[variant].text
        text += f"| `{variant}`: {label} | {cells} | {result['seconds']:,.0f} |\n"
    runs: dict[str, list[str]] = {}
    for variant, result in results.items():
        seeds, steps = len(result["seeds"]), result["env_steps_per_seed"]
        run = f"{seeds} seeds of {steps:,} env steps. Machine: {result['machine']}."
        runs.setdefault(run, []).append(f"`{variant}`")
    for run, variants in runs.items():
        text += "\n" + textwrap.fill(f"{', '.join(variants)}: {run}", 100) + "\n"
    commands = dict.fromkeys(result["command"] for result in results.values())
    return text + "\n```sh\n" + "\n".join(commands) + "\n```\n"


def cell(values: list[float]) -> str:
    """Return the mean of all seeds with its interval, as shown in a table."""
    mean, low, high = map(words, interval_of_mean(values, plain_mean))
    return f"{mean} [{low}, {high}]" if len(values) > 1 else mean


if __name__ == "__main__":
    from wdjax.experiments.reference import worlds  # by name: other processes import `measure`

    worlds.main()
