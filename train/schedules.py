"""What a schedule may be: a number, or [env_step, value] pairs."""

import itertools
import math
from typing import Any

from wdjax.checks import require


def require_schedule(path: str, schedule: Any) -> None:
    """Raises ValueError, naming the field `path`, for a schedule that is empty, unsorted, negative or not finite."""
    points = [(0.0, schedule)] if isinstance(schedule, (int, float)) else schedule
    require(len(points) > 0, path, schedule, "a number or at least one [env_step, value] pair")
    steps, values = [step for step, _ in points], [value for _, value in points]
    sound = all(math.isfinite(number) and number >= 0 for number in steps + values)
    require(sound, path, schedule, "finite and at least 0")
    require(all(a < b for a, b in itertools.pairwise(steps)), path, schedule, "sorted by env_step, each once")
