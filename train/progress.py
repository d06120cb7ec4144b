"""The progress bar of a run."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from wdjax.train.config import TrainConfig


@contextlib.contextmanager
def progress_bar(console: Console, config: TrainConfig, done: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows env steps, env steps/s and mean episode returns; gives a function to call with every chunk's row."""
    columns = (BarColumn(bar_width=16), TextColumn("{task.description}"), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("compiling", total=config.num_updates, completed=done)

        def advance(row: dict[str, Any]) -> None:
            returns = {name: row[f"{name}/episode_return"] for name in config.policies}
            words = [f"{name} {'-' if mean is None else f'{mean:.2f}'}" for name, mean in returns.items()]
            steps = f"{row['env_steps']:,} env steps ({row['env_steps_per_second']:,.0f}/s)"
            progress.update(task, completed=row["updates"], description=f"{steps}, return {', '.join(words)}")

        yield advance
