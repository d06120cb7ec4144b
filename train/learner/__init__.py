"""The learner: rollouts and updates as one program."""
