"""RICE-N: a climate economy in which regions save, abate emissions, trade and negotiate."""

from wdjax.envs.climate.calibration import read_calibration
from wdjax.envs.climate.rice import Rice

__all__ = ["Rice", "read_calibration"]
