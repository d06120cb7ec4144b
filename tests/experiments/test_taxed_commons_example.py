"""The example of taxed_commons reaches the documented numbers and draws them."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from wdjax.envs.commons.exact import best_policy, without_tax
from wdjax.experiments.examples import taxed_commons
from wdjax.train import load_config

DOCS = Path(__file__).parents[2] / "docs" / "environments"


@pytest.fixture(scope="module")
def trained():
    return taxed_commons.train()


@pytest.mark.slow
def test_two_levels_learn_together(trained):
    """90 % of the planner's optimum; the same without a tax stays at the equilibrium."""
    learner, states = trained
    params = learner.env_params
    none, best = (
        solve(learner.env, params).welfare(params) for solve in (without_tax, best_policy)
    )
    untaxed, taxed = (taxed_commons.welfare(learner, state) for state in states)
    assert taxed > 0.9 * best
    assert untaxed == pytest.approx(none, rel=0.05)
    algorithms = {name: policy.config.algorithm for name, policy in learner.setup.policies.items()}
    assert algorithms == {"harvester": "PPO", "planner": "A2C"}


@pytest.mark.slow
def test_without_a_tax_the_planner_learns_nothing(trained):
    learner, (untaxed, taxed) = trained
    start = learner.init(jax.random.key(0)).policies["planner"].params
    # but for its very first row, seen before the rule was known to the state
    moved = [max(np.abs(a - b).max() for a,
        b in zip(*map(jax.tree.leaves, (start, state.policies["planner"].params)),
                                                     strict=True)) for state in (untaxed,
                                                     taxed)]  # fmt: skip
    assert moved[0] < 0.02 < moved[1]


@pytest.mark.slow
def test_the_picture(trained, tmp_path):
    taxed_commons.draw(tmp_path / "commons.png", *trained)
    with Image.open(tmp_path / "commons.png") as drawn, Image.open(DOCS / "commons.png") as shown:
        assert drawn.size == shown.size
    assert (DOCS / "commons.png").stat().st_size < 150_000


def test_the_page_has_the_numbers_of_the_game():
    config, words = load_config("taxed_commons"), (DOCS / "commons.md").read_text(encoding="utf8")
    assert all(policy.options.decisions_only for policy in config.policies.values())
    assert config.policies["harvester"].options.gamma == 0
    assert re.search(r"optimum \| 246.4 \|", words)
    assert re.search(r"equilibrium \| 73.0 \|", words)
