"""The example that draws the front of climate against economy."""

import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.experiments.examples import rice_pareto

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_constant_worlds_hold_the_published_extremes():
    levels = jnp.array([*rice_pareto.EXTREMES.values(), (0, 0)]).T
    climate, economy = rice_pareto.constant_worlds(*levels)
    np.testing.assert_allclose(climate, [0, 1, 0.84086], atol=1e-5)
    np.testing.assert_allclose(economy, [1, 0, 0.00646], atol=1e-5)


def test_the_front():
    points = np.array([[0.0, 1.0, 0.5, 0.5, 0.4], [1.0, 0.0, 0.5, 0.4, 0.4]])
    np.testing.assert_array_equal(rice_pareto.pareto(points), [True, True, True, False, False])


@pytest.mark.slow
def test_a_price_of_carbon_cools_the_world(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rice_pareto, "PRICES", (0.0, 0.3))
    monkeypatch.setattr(rice_pareto, "BONUSES", (0.0,))
    rows = rice_pareto.trained_worlds(num_updates=16)
    (free, priced), _ = rice_pareto.indices(rows)
    assert priced > free + 0.1
    monkeypatch.setattr(rice_pareto, "trained_worlds", lambda: rows)
    rice_pareto.main(str(tmp_path / "front.png"))
    assert "on the front" in capsys.readouterr().out
    assert (tmp_path / "front.png").stat().st_size > 10_000
