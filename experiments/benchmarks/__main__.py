"""`python -m wdjax.experiments.benchmarks` is `wdjax bench`, also where tyro is not installed."""

import sys

from wdjax.experiments.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
