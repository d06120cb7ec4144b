"""The kinds of programs of a comparison row, and the row itself."""

import dataclasses
from collections.abc import Mapping
from typing import Any

RETURN, WON = "return", "share of games won"
"""quantities"""
TRAINING, SAMPLED, GREEDY = "training", "sampled", "greedy"
"""times of measurement: the last 2 % of the updates, or fresh episodes after training"""


@dataclasses.dataclass(frozen=True)
class Ours:
    """A configuration of wdjax."""

    preset: Mapping[str, Any]
    """preset without `total_env_steps`; schedules are fractions of the run"""
    policies: tuple[str, ...]
    """policies with returns that are summed over their agents"""
    won_above: float | None = None
    """return of an agent above which a game is won; None: games are not won or lost"""


@dataclasses.dataclass(frozen=True)
class Theirs:
    """A script of another library with its configuration file."""

    library: str
    """name of the library and of its checkout"""
    script: str
    """path in the checkout"""
    config: str | Mapping[str, Any]
    """path in the checkout, or the configuration"""
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """changed fields of the configuration"""
    edits: tuple[tuple[str, str], ...] = ()
    """replacements in the text of the script, each for exactly one occurrence"""
    agents: int | None = None
    """number of agents, the first ones, with returns that are measured; None: all"""
    config_from: str = ""
    """path in the checkout from which a configuration without a file is copied"""
    factor: float = 1.0
    """sum of the agents' returns / mean of the returns that the script reports"""


@dataclasses.dataclass(frozen=True)
class Published:
    """A result that the authors of another library published, which is not run here."""

    score: str
    """as in the table, for the only measure of the task"""
    source: str
    """where it was published, in Markdown"""


@dataclasses.dataclass(frozen=True)
class Task:
    """A comparison row: programs of wdjax and of one other library on one task."""

    title: str
    algorithm: str
    env_steps: int
    programs: Mapping[str, Ours | Theirs | Published]
    """label -> program; one of them is `Theirs` or `Published`"""
    measures: tuple[tuple[str, str, str], ...]
    """(quantity, time for wdjax, time for the other library)"""
    seeds: int = 10
    note: str = ""
    """sentences below the table"""

    def __post_init__(self):
        count = sum(not isinstance(program, Ours) for program in self.programs.values())
        if count != 1:
            message = "must contain one Theirs or one Published."
            raise ValueError(f"programs = {list(self.programs)}: {message}")

    @property
    def theirs(self) -> str:
        """Label of the program of the other library."""
        return next(name for name, one in self.programs.items() if not isinstance(one, Ours))
