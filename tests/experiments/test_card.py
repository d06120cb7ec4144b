"""The self-test of a device, without a device: its learners are valid, failures are reported."""

import pytest

from wdjax.experiments.benchmarks import card
from wdjax.train import make_learner


@pytest.mark.parametrize("name", card.LEARNERS)
def test_small_learners_are_valid(name):
    config = card.small_copy(*card.LEARNERS[name])
    assert config.num_envs == 16
    make_learner(config)


@pytest.mark.slow
def test_a_learner_is_compared_with_the_cpu(quick_compile):
    _, passed, words = card.make_check("learner all devices")
    assert passed, words
    assert "within 0.05 of the CPU" in words


def test_failed_checks_are_reported(monkeypatch):
    def fail(folder):
        raise RuntimeError("different")

    monkeypatch.setattr(card, "checks", lambda: {"broken": fail})
    name, passed, words = card.make_check("broken")
    assert (name, passed) == ("broken", False)
    assert "RuntimeError: different" in words


@pytest.mark.slow
def test_runs_resume_with_the_same_bits(quick_compile):
    _, passed, words = card.make_check("run cartpole_ppo")
    assert passed, words
