"""Climate and economy: regions of the world save, abate, trade and negotiate while the planet warms."""

from wdjax.envs.climate.calibration import read_calibration
from wdjax.envs.climate.rice import Rice

__all__ = ["Rice", "read_calibration"]
