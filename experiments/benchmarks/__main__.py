"""`python -m wdjax.experiments.benchmarks` is `wdjax bench`, also where tyro is not installed."""

import sys

from wdjax.experiments.benchmarks.suite import bench

if __name__ == "__main__":
    try:
        bench(sys.argv[1:])
    except (ValueError, OSError) as error:
        raise SystemExit(f"wdjax bench: {error}") from None
