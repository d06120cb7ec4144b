"""Run python -m wdjax.experiments.reference.peers."""

from wdjax.experiments.reference.peers.run import main

if __name__ == "__main__":
    main()
