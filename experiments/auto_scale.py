"""Auto-scale: find the number of replicas, and the rollout length, at which a run is fastest.

    wdjax train cartpole_ppo --auto-scale

num_envs is doubled while the compiled program fits into memory and a short measurement is faster.
`wdjax.train.compile_run` provides the memory before a program runs.
"""

import dataclasses
from collections.abc import Callable

import jax
from rich.table import Column, Table

from wdjax.checks import one_line, require
from wdjax.kernels.backend import on_cpu
from wdjax.train import (
    CompiledRun,
    TrainConfig,
    TrainState,
    bytes_free,
    change_config,
    compile_run,
    make_learner,
)

WORTH = 1.05  # smallest increase in speed for which a size is doubled
FEWEST_UPDATES = 20  # a run must keep this many to learn
SECONDS = 1.0  # duration of a measurement
FEW = 10  # updates per call


@dataclasses.dataclass(frozen=True)
class Trial:
    """Result of one size."""

    num_envs: int
    rollout_length: int
    memory: int | None = None
    """Bytes that the run needs on a device; None if it was not compiled."""
    env_steps_per_second: float | None = None
    """None if it was not run."""
    words: str = ""
    """Reason why it was not run, or failed."""


def measure(config: TrainConfig, budget: int) -> Trial:
    """Compile the program of a run, and run it for a second if it fits."""
    trial = Trial(config.num_envs, config.rollout_length)
    try:
        change_config(config)  # validates it
    except ValueError as error:  # for example minibatches that do not divide it
        return dataclasses.replace(trial, words=one_line(error))
    try:
        learner = make_learner(config)
        run = compile_run(learner)
        shared = learner.setup.num_devices if on_cpu() else 1  # a CPU's devices share its memory
        memory = shared * run.bytes_needed
        trial = dataclasses.replace(trial, memory=memory)
        if memory > budget:
            words = f"not run: needs {in_words(memory)}, {in_words(budget)} available"
            return dataclasses.replace(trial, words=words)
        size = min(config.num_updates, FEW)
        seconds = time_of(run, learner.init(jax.random.key(config.seed)), size) / size
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return dataclasses.replace(trial, words="out of memory")
    return dataclasses.replace(trial, env_steps_per_second=config.env_steps_per_update / seconds)


def time_of(run: CompiledRun, state: TrainState, size: int) -> float:
    """Return the seconds of `size` updates: the shortest of all calls within SECONDS."""
    state, _ = run.time(state, 1)
    times: list[float] = []
    while sum(times) < SECONDS:
        state, seconds = run.time(state, size)
        times.append(seconds)
    return min(times)


def auto_scale(
    config: TrainConfig, rollout: bool = False, budget: int | None = None,
    attempt: Callable[[TrainConfig, int], Trial] = measure,
) -> tuple[TrainConfig, list[Trial]]:  # fmt: skip
    """Find the fastest num_envs, and optionally rollout_length.

    num_envs is doubled until it does not fit or two doublings in a row are not faster. If the first
    size does not fit, it is halved until one fits. The smallest size that is nearly as fast as the
    fastest (by WORTH) is chosen, since a larger one leaves fewer updates.

    Args:
        config: configuration with the first size.
        rollout: also scale rollout_length.
        budget: bytes on a device; None: `bytes_free`.
        attempt: (config, budget) -> Trial.

    Returns:
        (configuration with the chosen size, trials in their order).

    Raises:
        ValueError: if no size fits, or in a run of several processes.
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
    """Try a field of a configuration, and double it, or halve it until it fits."""
    size, tried = getattr(config, field), [attempt(config, budget)]
    while tried[-1].env_steps_per_second is None and size % 2 == 0:
        size //= 2
        tried.append(attempt(dataclasses.replace(config, **{field: size}), budget))
    fastest, idle = tried[0].env_steps_per_second, 0  # None: a larger size did not fit
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
    """Return a number of bytes as text: 1.2 MB or 3.40 GB."""
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.2f} GB"


def trial_table(trials: list[Trial], found: TrainConfig) -> Table:
    """Return the trials as a table that marks the chosen size."""
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
    """Return the effect of another size on learning, as text."""
    old, new = before.env_steps_per_update, after.env_steps_per_update
    if old == new:
        return "The number of env steps per update is unchanged."
    return (
        f"An update learns from {new:,} env steps instead of {old:,}, and the run has "
        f"{after.num_updates:,} updates instead of {before.num_updates:,}. Learning rates, "
        "minibatches and epochs are unchanged and may need tuning."
    )
