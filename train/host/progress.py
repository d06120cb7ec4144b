"""Messages of a run: its size and device at the start, its progress, and a summary."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from wdjax.console import Console
from wdjax.metric_names import summed_over
from wdjax.progress import announce
from wdjax.train.config.facts import Fraction, is_scheduled, leaves, points_of
from wdjax.train.config.schema import TrainConfig
from wdjax.train.host.loop import Row

GO_ON = " Continue with the same command and --resume."


def announce_run(
    console: Console, given: TrainConfig, config: TrainConfig, workdir: Path, num_devices: int
) -> None:  # fmt: skip
    """Print the length of a run, and warnings about its schedules (`schedule_warnings`)."""
    steps = config.num_updates * config.env_steps_per_update
    more = f" ({config.total_env_steps:,} rounded up)" if steps > config.total_env_steps else ""
    announce(
        console,
        config.env,
        num_devices,
        f"{config.num_updates:,} updates of {config.env_steps_per_update:,} env steps, "
        f"{steps:,} in total{more}",
        workdir,
    )
    for warning in schedule_warnings(given, config):
        console.print(warning, soft_wrap=True)


def schedule_warnings(given: TrainConfig, config: TrainConfig) -> Iterator[str]:
    """Yield a warning for each schedule that does not end with the run.

    Only schedules in env steps of trainable policies are checked, and schedules of environment
    parameters that end after the run.

    Args:
        given: configuration of the run as written; schedules in fractions of the run always fit.
        config: the same with all schedules in env steps.
    """
    total = config.total_env_steps
    for name, policy in config.policies.items():
        written = {field: value for field, _, value in leaves(given.policies[name])}
        for field, (*_, last), points in leaves(policy) if policy.trainable else ():
            source = written.get(field)
            fits = isinstance(source, Fraction) and source.in_env_steps(total) == points
            constant = not is_scheduled(last) or isinstance(points, float | int) or len(points) == 1
            if not (fits or constant or points[-1][0] == total):
                yield _schedule_warning(f"policies.{name}.{field}", points, total)
    for name, schedule in config.env_schedules.items():
        if (points := points_of(schedule))[-1][0] > total:
            yield _schedule_warning(f"env_schedules.{name}", points, total)


def _schedule_warning(field: str, points: Sequence[tuple[float, float]], total: int) -> str:
    steps, values = zip(*points, strict=True)
    return (
        f"Warning: {field} ends at env step {steps[-1]:,.0f}, but the run ends at {total:,}, where "
        f"its value is {np.interp(total, steps, values):g}. Use fractions of the run to fit any "
        "length."
    )


def nothing_to_do(config: TrainConfig, done: int) -> str:
    """Return the message of a run that is complete after `done` updates."""
    steps, total = (updates * config.env_steps_per_update for updates in (done, config.num_updates))
    return (
        f"The run already has {steps:,} of {total:,} env steps: nothing to do. "
        "To train longer, raise total_env_steps and use --resume (in Python resume=True)."
    )


def last_words(
    env_steps: int, chunks: float, waits: Mapping[str, float], total: float, kernels: str
) -> str:
    """Return the summary of a run: speed, seconds without training, and fused kernels.

    Args:
        env_steps: steps of this call.
        chunks: seconds in which the device trained.
        waits: name -> seconds; the rest up to `total` is evaluation and checkpoints.
        total: seconds of this call.
        kernels: `words_of_kernels`.
    """
    rest = {**waits, "evaluation and checkpoints": max(total - chunks - sum(waits.values()), 0.0)}
    longest = sorted(rest.items(), key=lambda wait: -wait[1])
    waited = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in longest)
    speed = f"{env_steps / chunks:,.0f}/s while training" if chunks else "no update was left"
    end = f" {kernels}." if kernels else ""
    return f"{env_steps:,} env steps in {total:.1f} s ({speed}): {waited}.{end}"


def early_end(config: TrainConfig, done: int, by_signal: bool, ended_by: str) -> str:
    """Return the message of a run that ended early, and was saved.

    Args:
        config: configuration of the run.
        done: number of updates.
        by_signal: whether a signal ended the run.
        ended_by: otherwise, the reason; "": another process ended the run.
    """
    how = "Stopped" if by_signal else f"Ended by {ended_by or 'another process'}"
    return (
        f"{how} and saved after {done * config.env_steps_per_update:,} of "
        f"{config.total_env_steps:,} env steps.{GO_ON if by_signal else ''}"
    )


def words_of_run(config: TrainConfig, row: Row) -> str:
    """Return the text of the bar after a chunk: env steps, env steps/s and mean returns."""
    means = {name: row[f"{name}/episode_return"] for name in config.policies}
    words = [f"{name} {'-' if mean is None else f'{mean:.2f}'}" for name, mean in means.items()]
    unit = summed_over(row)
    return (
        f"{row['env_steps']:,} env steps ({row['env_steps_per_second']:,.0f}/s), "
        f"return {unit and f'({unit}) '}{', '.join(words)}"
    )
