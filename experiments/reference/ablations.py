"""What each part of the preset tag_continuous_ppo is worth: trained without it, in a smaller game, over three seeds.

    python -m wdjax.experiments.reference.ablations                       # every variant, one table
    python -m wdjax.experiments.reference.ablations "no past selves" fresh_runners

Two taggers hunt twenty runners, in a square of the preset's density, for half of its env steps; who it names meets
what the preset's next seed learned. Fresh opponents are of the whole game and length, one seed: a side learns from
nothing against what `reference:tag_continuous` does on the other, which learns no more. A number is the mean over
seeds, with the smallest and the largest in brackets; times of training and of compiling are those beside others.
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
WHOLE = "the preset"  # whose learned policies the others meet
SMALL = {"env_params.num_taggers": 2, "env_params.num_runners": 20, "env_params.grid_length": 9.0}
NO_PAST = {f"policies.{side}.past_selves": 0 for side in SIDES}
NO_SCRIPT = {"policies.runner.opponents": {}}
TANH = {"activation": "tanh"}
VARIANTS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "places not along one's own heading": {"env_params.egocentric": False},
    "own motion not seen": {"env_params.observe_own_motion": False},
    "neither: as WarpDrive shows it": {"env_params.egocentric": False, "env_params.observe_own_motion": False},
    "runners: MLP (128, 128)": {"policies.runner.network": {"hidden_sizes": [128, 128], **TANH}},
    "taggers: deep_sets (64)": {"policies.tagger.network": {"encoder": "deep_sets", "hidden_sizes": [64], **TANH}},
    "runners: attention (64)": {"policies.runner.network": {"encoder": "attention", "hidden_sizes": [64], **TANH}},
    "both: a GRU (64)": {
        "policies.runner.minibatches": 32,  # of whole sequences
        **{f"policies.{side}.network.recurrent_size": 64 for side in SIDES},
    },
    "no flee_nearest": NO_SCRIPT,
    "no past selves": NO_PAST,
    "neither of them": NO_PAST | NO_SCRIPT,
    "ten past selves, the hardest preferred": {
        f"policies.{side}.{name}": value
        for side in SIDES
        for name, value in {"past_selves": 10, "past_selves_every": 25, "opponents_priority": 2.0}.items()
    },
}


def fresh(side: str) -> dict[str, Any]:
    """Returns the changes by which one side learns from nothing, and the other is that of the reference, frozen."""
    [other] = set(SIDES) - {side}
    return {f"policies.{other}.checkpoint": REFERENCE, f"policies.{other}.trainable": False} | NO_PAST | NO_SCRIPT


FRESH = {f"fresh_{side}s": fresh(side) for side in SIDES}


def sooner(changes: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return changes by which a run of the preset, whose schedules follow, takes a fraction of the env steps."""
    return {"total_env_steps": int(load_config(PRESET).total_env_steps * factor), **changes}


def mean_and_ends(values: Iterable[float]) -> str:
    found = list(values)
    ends = f" ({words(min(found))} .. {words(max(found))})" if len(found) > 1 else ""
    return words(sum(found) / len(found)) + ends


def compare(trained: Trained, whole: Trained) -> list[str]:
    """Returns the cells of a variant's line: steps to the last random runner; its runners left by chase_nearest; of
    the preset's next seed its taggers leave so many runners, and that one's taggers of its runners."""
    numbers: list[list[float]] = [[], [], [], []]
    env = trained.learner.env
    for seed, state in enumerate(trained.states):
        other = Player("other", whole.learner, whole.states[(seed + 1) % len(whole.states)])
        key = jax.random.fold_in(jax.random.key(seed), EVALUATION)
        who = {"tagger": ["chase_nearest", other], "runner": ["random", other]}
        cells = cross_play(trained.learner, state, key, EPISODES, opponents=who)
        left = {cell: float((env.num_runners - games.episode_info["tags"]).mean()) for cell, games in cells.items()}
        found = (
            float(cells["trained", "random"].episode_length.mean()), left["chase_nearest", "trained"],
            left["trained", "other"], left["other", "trained"],
        )  # fmt: skip
        for own, number in zip(numbers, found, strict=True):
            own.append(number)
    return [*map(mean_and_ends, numbers), f"{trained.seconds:.0f} + {trained.compile_seconds:.0f}"]


def meet(trained: Trained) -> list[str]:
    """Returns the cells of a line of fresh opponents: how many runners are left where they meet the reference."""
    left = []
    for seed, state in enumerate(trained.states):
        games = cross_play(trained.learner, state, jax.random.key(seed), EPISODES, opponents=())["trained", "trained"]
        left.append(float((trained.learner.env.num_runners - games.episode_info["tags"]).mean()))
    return [mean_and_ends(left), f"{trained.seconds:.0f} + {trained.compile_seconds:.0f}"]


def main(arguments: list[str] | None = None) -> None:
    """Trains the variants named on the command line, or all, several at once, and prints a line of each."""
    parser = Parser(__doc__, {**VARIANTS, **FRESH}, repeats=0, prog="python -m wdjax.experiments.reference.ablations")
    names = parser.parse(arguments).rows
    small = [name for name in names if name in VARIANTS]
    changes = {name: SMALL | sooner(VARIANTS[name], 0.5) for name in dict.fromkeys([WHOLE, *small] if small else [])}
    changes |= {name: FRESH[name] for name in names if name in FRESH}
    configs = {name: load_config(PRESET, **own) for name, own in changes.items()}
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:  # while one is compiled, others train
        runs: dict[str, concurrent.futures.Future[Trained]] = {}

        def line(name: str) -> list[str]:
            trained = runs[name].result() if name in runs else train(configs[name], 1 if name in FRESH else SEEDS)
            return meet(trained) if name in FRESH else compare(trained, runs[WHOLE].result())

        runs |= {name: pool.submit(train, configs[name], SEEDS) for name in configs if name == WHOLE}
        lines = {pool.submit(line, name): name for name in configs}
        for done in concurrent.futures.as_completed(lines):
            print("|", " | ".join([lines[done], *done.result()]), "|", flush=True)
    print(f"{time.perf_counter() - start:.0f} s in all, on {machine()}")


if __name__ == "__main__":
    main()
