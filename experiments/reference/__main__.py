"""Run python -m wdjax.experiments.reference."""

from wdjax.experiments.reference.rerun import main

if __name__ == "__main__":
    main()
