"""COVID-19 and the economy: US states and a federal planner."""

from wdjax.envs.covid.calibration import Calibration, load_calibration, load_policy
from wdjax.envs.covid.economy import CovidEconomy
from wdjax.envs.covid.synthetic import synthetic_calibration

__all__ = [
    "Calibration",
    "CovidEconomy",
    "load_calibration",
    "load_policy",
    "synthetic_calibration",
]
