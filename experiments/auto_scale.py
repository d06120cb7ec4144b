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
    sizes = config.num_envs, config.rollout_length
    try:
        learner = make_learner(change_config(config))  # validated
        run = compile_run(learner)
        shared = learner.setup.num_devices if on_cpu() else 1  # a CPU's devices share its memory
        memory = shared * run.bytes_needed
        if memory > budget:
            words = f"not run: needs {in_words(memory)}, {in_words(budget)} available"
            return Trial(*sizes, memory, words=words)
        size = min(config.num_updates, FEW)
        seconds = time_of(run, learner.init(jax.random.key(config.seed)), size) / size
    except ValueError as error:  # for example minibatches that do not divide it
        return Trial(*sizes, words=one_line(error))
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Trial(*sizes, words="out of memory")
    return Trial(*sizes, memory, config.env_steps_per_update / seconds)


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

    A size is doubled while it fits and is faster (by WORTH); a larger one leaves fewer updates.

    Args:
        config: configuration with the first size.
        rollout: also scale rollout_length.
        budget: bytes on a device; None: `bytes_free`.
        attempt: (config, budget) -> Trial.

    Returns:
        (configuration with the chosen size, trials in their order).

    Raises:
        ValueError: if the first size does not fit, or in a run of several processes.
    """
    words = "omitted in multi-process runs. Set --num-envs instead"
    require(jax.process_count() == 1, "--auto-scale", True, words)
    budget = bytes_free() if budget is None else budget
    trials = [attempt(config, budget)]
    speed = trials[0].env_steps_per_second or 0.0
    require(speed, "num_envs", config.num_envs, f"another size ({trials[0].words})")
    for field in ("num_envs", "rollout_length")[: 1 + rollout]:
        while True:
            larger = dataclasses.replace(config, **{field: 2 * getattr(config, field)})
            if larger.num_updates < FEWEST_UPDATES:
                words = f"not run: leaves only {larger.num_updates} updates in the run"
                trials.append(Trial(larger.num_envs, larger.rollout_length, words=words))
                break
            trials.append(attempt(larger, budget))
            faster = trials[-1].env_steps_per_second or 0.0
            if faster < WORTH * speed:
                break
            config, speed = larger, faster
    return config, trials


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
