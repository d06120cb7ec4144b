"""Auto-scale: how many replicas, and how long a rollout, make a run fast within the memory that there is.

    wdjax train cartpole_ppo --auto-scale

Doubles num_envs for as long as the compiled program says that it fits and a short measurement says that it pays. What
does not fit is known before it runs (`compiled.memory_analysis()`): nothing too large is ever started.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from rich.table import Column, Table

from wdjax.checks import one_line, require
from wdjax.train import TrainConfig, make_learner
from wdjax.train.devices.memory import bytes_free, bytes_needed
from wdjax.train.host.chunks import most_updates, play, room
from wdjax.train.host.programs import Program, compile_chunk
from wdjax.train.learner.init import abstract_state
from wdjax.train.learner.validate import validate

WORTH = 1.05  # a doubling pays where it is faster by this
FEWEST_UPDATES = 20  # that a run must have left: fewer learn nothing, however fast
SECONDS = 1.0  # of measuring, at least one call
FEW = 10  # updates of a call


@dataclasses.dataclass(frozen=True)
class Trial:
    """What one size of a run came to."""

    num_envs: int
    rollout_length: int
    memory: int | None = None
    """bytes that the run needs on a device; None where it was not compiled"""
    env_steps_per_second: float | None = None
    """None where it was not run"""
    words: str = ""
    """why it was not run, or failed"""


def measure(config: TrainConfig, budget: int) -> Trial:
    """Compiles the program of a run, and where it fits runs it for a second."""
    trial = Trial(config.num_envs, config.rollout_length)
    try:
        validate(config)
    except ValueError as error:  # minibatches that do not divide it, say
        return dataclasses.replace(trial, words=one_line(error))
    try:
        learner = make_learner(config)
        program, _ = compile_chunk(learner, abstract_state(learner.setup), room(config))
        shared = (
            learner.setup.num_devices if jax.default_backend() == "cpu" else 1
        )  # a CPU's devices share its memory
        trial = dataclasses.replace(trial, memory=shared * bytes_needed(program))
        if trial.memory > budget:
            words = f"not run: needs {in_words(trial.memory)}, {in_words(budget)} available"
            return dataclasses.replace(trial, words=words)
        size = min(most_updates(config), FEW)
        seconds = time_of(program, learner.init(jax.random.key(config.seed)), size) / size
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return dataclasses.replace(trial, words="out of memory")
    return dataclasses.replace(trial, env_steps_per_second=config.env_steps_per_update / seconds)


def time_of(program: Program, state: Any, size: int) -> float:
    """Returns the seconds of so many updates: of the fastest within SECONDS, for whatever else the machine does only
    slows it."""
    state, times = play(program, state, 1).state, []
    while sum(times) < SECONDS:
        played = play(program, state, size)
        state = played.state
        times.append(played.seconds)
    return min(times)


def auto_scale(
    config: TrainConfig, rollout: bool = False, budget: int | None = None,
    attempt: Callable[[TrainConfig, int], Trial] = measure,
) -> tuple[TrainConfig, list[Trial]]:  # fmt: skip
    """Returns (the configuration with the num_envs that was found, what was tried in its order).

    From where the configuration stands num_envs is doubled until it does not fit, or two doublings in a row have not
    paid; where already the first does not fit, it is halved until one does. Of what has run, the smallest that is
    nearly as fast as the fastest is taken (by WORTH): a larger one would cost updates, and so learning, for nothing.

    Args:
        rollout: then the same with rollout_length.
        budget: bytes on a device; None: `bytes_free`.
        attempt: (config, budget) -> Trial.

    Raises:
        ValueError: where nothing fits, and for a run of several processes, whose clocks would differ.
    """
    require(
        jax.process_count() == 1,
        "--auto-scale",
        True,
        "omitted in multi-process runs. Set --num-envs instead",
    )
    budget = bytes_free() if budget is None else budget
    trials: list[Trial] = []
    for field in ("num_envs", "rollout_length")[: 1 + rollout]:
        tried = search(config, field, budget, attempt)
        fastest = max(trial.env_steps_per_second or 0.0 for trial in tried)
        near = [trial for trial in tried if WORTH * (trial.env_steps_per_second or 0.0) > fastest]
        require(near, field, getattr(config, field), f"smaller ({tried[-1].words})")
        best = min(near, key=lambda trial: trial.num_envs * trial.rollout_length)
        trials += tried
        config = dataclasses.replace(config, **{field: getattr(best, field)})
    return config, trials


def search(
    config: TrainConfig, field: str, budget: int, attempt: Callable[[TrainConfig, int], Trial]
) -> list[Trial]:
    """Tries a field of a configuration as it is, then doubled, or halved where that does not fit."""
    size, tried = getattr(config, field), [attempt(config, budget)]
    while tried[-1].env_steps_per_second is None and size % 2 == 0:
        size //= 2
        tried.append(attempt(dataclasses.replace(config, **{field: size}), budget))
    fastest, idle = tried[0].env_steps_per_second, 0  # None: what is larger did not fit
    while fastest is not None and idle < 2 and tried[-1].env_steps_per_second is not None:
        config = dataclasses.replace(config, **{field: 2 * getattr(config, field)})
        if config.num_updates < FEWEST_UPDATES:
            words = f"not run: leaves only {config.num_updates} updates in the run"
            return [*tried, Trial(config.num_envs, config.rollout_length, words=words)]
        tried.append(attempt(config, budget))
        speed = tried[-1].env_steps_per_second or 0.0
        idle = 0 if speed >= WORTH * fastest else idle + 1
        fastest = max(fastest, speed)
    return tried


def in_words(size: int) -> str:
    """Returns a number of bytes in words: 1.2 MB or 3.40 GB."""
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.2f} GB"


def trial_table(trials: list[Trial], found: TrainConfig) -> Table:
    """Returns what was tried as a table of rich; what was found is marked."""
    numbers = ("num_envs", "rollout_length", "memory", "env steps/s")
    table = Table(*(Column(name, justify="right") for name in numbers), "", title="--auto-scale")
    for trial in trials:
        taken = (trial.num_envs, trial.rollout_length) == (found.num_envs, found.rollout_length)
        memory = "" if trial.memory is None else in_words(trial.memory)
        speed = "" if trial.env_steps_per_second is None else f"{trial.env_steps_per_second:,.0f}"
        sizes = (f"{trial.num_envs:,}", f"{trial.rollout_length:,}")
        table.add_row(*sizes, memory, speed, trial.words or ("<- chosen" if taken else ""))
    return table


def what_changes(before: TrainConfig, after: TrainConfig) -> str:
    """Returns in words what another size means for learning."""
    old, new = before.env_steps_per_update, after.env_steps_per_update
    if old == new:
        return "The number of env steps per update is unchanged."
    return (
        f"An update learns from {new:,} env steps instead of {old:,}, and the run has {after.num_updates:,} updates "
        f"instead of {before.num_updates:,}. Learning rates, minibatches and epochs are unchanged and may need tuning."
    )
