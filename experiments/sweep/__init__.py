"""Many runs as one: grids over seeds and hyperparameters, search, and population-based training.

    table = sweep("cartpole_ppo", {"policies.agent.learning_rate": [1e-3, 3e-3]}, seeds=8)

Runs that differ only in what is traced (seeds, hyperparameters marked so in `wdjax.train.config`, params of the
environment) are members of one program, vmapped; what fixes shapes makes a group, a program, for each value.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdjax.experiments.sweep.grid import sweep
    from wdjax.experiments.sweep.halving import Halving
    from wdjax.experiments.sweep.pbt import Selection, evolve
    from wdjax.experiments.sweep.rounds import load_member
    from wdjax.experiments.sweep.searching import search
    from wdjax.experiments.sweep.table import read_table

# Public name -> the module that holds it, imported when the name is first used.
_HOME = {
    "Halving": "halving",
    "Selection": "pbt",
    "evolve": "pbt",
    "load_member": "rounds",
    "read_table": "table",
    "search": "searching",
    "sweep": "grid",
}

__all__ = ["Halving", "Selection", "evolve", "load_member", "read_table", "search", "sweep"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"wdjax.experiments.sweep.{_HOME[name]}"), name)
    raise AttributeError(f"module 'wdjax.experiments.sweep' has no attribute {name!r}")
