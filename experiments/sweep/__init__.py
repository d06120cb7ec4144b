"""Many runs in one program: grids, search, and population-based training.

    table = sweep("cartpole_ppo", {"policies.agent.learning_rate": [1e-3, 3e-3]}, seeds=8)

Runs that differ only in traced values (seeds, env_params, and hyperparameters declared `traced`)
are members of one `wdjax.train.Population`. Every value of a static field needs another program.
"""

from typing import TYPE_CHECKING

from wdjax.lazy import import_when_used

if TYPE_CHECKING:
    from wdjax.experiments.sweep.driver import load_member
    from wdjax.experiments.sweep.grid import sweep
    from wdjax.experiments.sweep.pbt import Selection, evolve
    from wdjax.experiments.sweep.searching import Halving, search
    from wdjax.experiments.sweep.table import read_table

__all__ = ["Halving", "Selection", "evolve", "load_member", "read_table", "search", "sweep"]

if not TYPE_CHECKING:
    __getattr__, __dir__, _HOME = import_when_used(__name__)
