"""Ablations of the preset tag_continuous_ppo: train it without one part, in a smaller game, over three seeds.

    python -m wdjax.experiments.reference.ablations                       # every variant, one table
    python -m wdjax.experiments.reference.ablations "no past selves" fresh_runners

Two taggers hunt twenty runners at the agent density of the preset, for half of its env steps. Each variant plays
against the policies of the preset with the next seed. `fresh_taggers` and `fresh_runners` use the full game: one side
learns from scratch against the frozen policies of `reference:tag_continuous`, one seed. Numbers are means over seeds,
with the smallest and largest seed in parentheses. Training and compile times include other runs on the same machine.
"""

import concurrent.futures
import time
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from wdjax.experiments.benchmarks.timing import Parser, machine
from wdjax.experiments.reference.rerun import EVALUATION, Trained, train, words
from wdjax.train import Player, cross_play, load_config

PRESET, REFERENCE = "tag_continuous_ppo", "reference:tag_continuous"
SEEDS, EPISODES, AT_ONCE = 3, 64, 6
SIDES = ("tagger", "runner")
WHOLE = "the preset"  # the other variants play against its policies
SMALL = {"env_params.num_taggers": 2, "env_params.num_runners": 20, "env_params.grid_length": 9.0}
NO_PAST = {f"policies.{side}.past_selves": 0 for side in SIDES}
NO_SCRIPT = {"policies.runner.opponents": {}}
TANH = {"activation": "tanh"}
VARIANTS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "places not along one's own heading": {"env_params.egocentric": False},
    "own motion not seen": {"env_params.observe_own_motion": False},
    "neither: as WarpDrive shows it": {
        "env_params.egocentric": False,
        "env_params.observe_own_motion": False,
    },
    "runners: MLP (128, 128)": {"policies.runner.network": {"hidden_sizes": [128, 128], **TANH}},
    "taggers: deep_sets (64)": {
        "policies.tagger.network": {"encoder": "deep_sets", "hidden_sizes": [64], **TANH}
    },
    "runners: attention (64)": {
        "policies.runner.network": {"encoder": "attention", "hidden_sizes": [64], **TANH}
    },
    "both: a GRU (64)": {
        "policies.runner.minibatches": 32,  # minibatches of complete sequences
        **{f"policies.{side}.network.recurrent_size": 64 for side in SIDES},
    },
    "no flee_nearest": NO_SCRIPT,
    "no past selves": NO_PAST,
    "neither of them": NO_PAST | NO_SCRIPT,
    "ten past selves, the hardest preferred": {
        f"policies.{side}.{name}": value
        for side in SIDES
        for name, value in {
            "past_selves": 10,
            "past_selves_every": 25,
            "opponents_priority": 2.0,
        }.items()
    },
}


def fresh(side: str) -> dict[str, Any]:
    """Return the changes for one side to learn from scratch against the frozen reference."""
    [other] = set(SIDES) - {side}
    return (
        {f"policies.{other}.checkpoint": REFERENCE, f"policies.{other}.trainable": False}
        | NO_PAST
        | NO_SCRIPT
    )


FRESH = {f"fresh_{side}s": fresh(side) for side in SIDES}


def sooner(changes: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return changes that shorten a run of the preset to a fraction of its env steps."""
    return {"total_env_steps": int(load_config(PRESET).total_env_steps * factor), **changes}


def mean_and_ends(values: Iterable[float]) -> str:
    """Return the mean with the smallest and largest value as text."""
    numbers = list(values)
    ends = f" ({words(min(numbers))} .. {words(max(numbers))})" if len(numbers) > 1 else ""
    return words(sum(numbers) / len(numbers)) + ends


def compare(trained: Trained, whole: Trained) -> list[str]:
    """Return the cells of a variant's line.

    Steps until no random runner is left; runners left by chase_nearest; runners of the preset's next seed left by the
    variant's taggers; runners of the variant left by that seed's taggers; seconds of training and compiling.
    """
    numbers: list[list[float]] = [[], [], [], []]
    env = trained.learner.env
    for seed, state in enumerate(trained.states):
        other = Player("other", whole.learner, whole.states[(seed + 1) % len(whole.states)])
        key = jax.random.fold_in(jax.random.key(seed), EVALUATION)
        who = {"tagger": ["chase_nearest", other], "runner": ["random", other]}
        cells = cross_play(trained.learner, state, key, EPISODES, opponents=who)
        left = {
            cell: float((env.num_runners - games.episode_info["tags"]).mean())
            for cell, games in cells.items()
        }
        found = (
            float(cells["trained", "random"].episode_length.mean()), left["chase_nearest", "trained"],
            left["trained", "other"], left["other", "trained"],
        )  # fmt: skip
        for own, number in zip(numbers, found, strict=True):
            own.append(number)
    return [*map(mean_and_ends, numbers), f"{trained.seconds:.0f} + {trained.compile_seconds:.0f}"]


def meet(trained: Trained) -> list[str]:
    """Return the cells of a line of fresh opponents: runners left against the reference, and seconds."""
    left = []
    for seed, state in enumerate(trained.states):
        games = cross_play(trained.learner, state, jax.random.key(seed), EPISODES, opponents=())[
            "trained", "trained"
        ]
        left.append(float((trained.learner.env.num_runners - games.episode_info["tags"]).mean()))
    return [mean_and_ends(left), f"{trained.seconds:.0f} + {trained.compile_seconds:.0f}"]


def main(arguments: list[str] | None = None) -> None:
    """Train the named variants, or all, several at once, and print a line for each."""
    parser = Parser(
        __doc__,
        {**VARIANTS, **FRESH},
        repeats=0,
        prog="python -m wdjax.experiments.reference.ablations",
    )
    names = parser.parse(arguments).rows
    small = [name for name in names if name in VARIANTS]
    changes = {
        name: SMALL | sooner(VARIANTS[name], 0.5)
        for name in dict.fromkeys([WHOLE, *small] if small else [])
    }
    changes |= {name: FRESH[name] for name in names if name in FRESH}
    configs = {name: load_config(PRESET, **own) for name, own in changes.items()}
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(
        AT_ONCE
    ) as pool:  # variants train while others compile
        runs: dict[str, concurrent.futures.Future[Trained]] = {}

        def line(name: str) -> list[str]:
            trained = (
                runs[name].result()
                if name in runs
                else train(configs[name], 1 if name in FRESH else SEEDS)
            )
            return meet(trained) if name in FRESH else compare(trained, runs[WHOLE].result())

        runs |= {
            name: pool.submit(train, configs[name], SEEDS) for name in configs if name == WHOLE
        }
        lines = {pool.submit(line, name): name for name in configs}
        for done in concurrent.futures.as_completed(lines):
            print("|", " | ".join([lines[done], *done.result()]), "|", flush=True)
    print(f"{time.perf_counter() - start:.0f} s in total, on {machine()}")


if __name__ == "__main__":
    main()
