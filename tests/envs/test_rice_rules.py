"""RICE-N by hand: trade, treaties, tariffs, weights, ends, calibrations and errors."""

import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import wdjax
from wdjax.envs.climate import economy, read_calibration
from wdjax.envs.climate.calibration import PUBLISHED, published
from wdjax.envs.climate.economy import climate_index, economic_index
from wdjax.rendering import save_gif

pytestmark = pytest.mark.usefixtures("quick_compile")


# --- the equations ---

TRADE = SimpleNamespace(
    debt_multiplier=10.0,
    K_0=jnp.array([1.0, 2.0, 4.0]),
    armington_lambda=0.5,
    dom_pref=0.5,
    for_pref=0.5,
)


def trade(bids, limit, output, left, balance):
    arrays = (jnp.array(value, jnp.float32) for value in (bids, limit, output, left, balance))
    return jax.tree.map(np.asarray, jitted_trade(*arrays))


@jax.jit
def jitted_trade(bids, limit, output, left, balance):
    return economy.trade(bids, limit, output, left, balance, TRADE)


def test_trade_by_hand():
    """Compute three regions by hand.

    Region 0 bids for 1.5 of its output and is limited to all of it. Region 1 has half the funds
    because of its debt. Region 2 sells to the limit Q - I and has no domestic output left. Bids to
    a region's own output do not count.
    """
    bids = [[0.9, 0.5, 1.0], [0.0, 0.7, 0.2], [0.1, 0.0, 0.9]]
    imports, domestic = trade(
        bids, [1.0, 1.0, 0.9], [6.0, 10.0, 5.0], [3.0, 9.0, 2.5], [0.0, -0.1, 0.3]
    )
    funds = [1, 1 + 10 * -0.1 / 2, 1]
    expected = np.array([[0, 2, 4], [0, 0, 2 * funds[1]], [0.5, 0, 0]])
    expected[:, 2] *= 2.5 / 5.0  # demand 4 + 1, supply min(0.9 5, 2.5)
    np.testing.assert_allclose(imports, expected, rtol=1e-6)
    np.testing.assert_allclose(domestic, [2.5, 7, 0], rtol=1e-6)
    assert domestic[2] == 0


rates = st.integers(0, 10).map(lambda level: level / 10)
money = st.floats(1e-3, 100)


@given(
    st.lists(rates, min_size=9, max_size=9),
    *[st.lists(x, min_size=3, max_size=3) for x in (rates, rates, money)],
    st.lists(st.floats(-3, 3), min_size=3, max_size=3),
)
def test_trade_respects_output_and_funds(bids, limit, saving, output, balance):
    output, limit = np.array(output), np.array(limit)
    left = (1 - np.array(saving)) * output
    imports, domestic = trade(np.reshape(bids, (3, 3)), limit, output, left, balance)
    assert (imports >= 0).all()
    assert (imports.diagonal() == 0).all()
    assert (imports.sum(axis=1) <= 1.00001 * output).all()
    sold = imports.sum(axis=0)
    assert (sold <= 1.00001 * np.minimum(limit * output, left) + 1e-30).all()
    np.testing.assert_allclose(domestic, left - sold, atol=1e-5 * output.max())
    assert (domestic >= 0).all()
    in_debt = np.array(balance) <= -np.array(TRADE.K_0) / 10
    assert (imports[in_debt] == 0).all()


def test_consumption_and_utility_by_hand():
    imports, tariffs = (
        jnp.zeros((3, 3)).at[0, 1].set(4.0).at[0, 2].set(1.0),
        jnp.zeros((3, 3)).at[0, 1].set(0.75),
    )
    consumed = economy.consumption(jnp.array([9.0, 4.0, 0.0]), imports, tariffs, TRADE)
    np.testing.assert_allclose(consumed, [(0.5 * 3 + 0.25 * (1 + 1)) ** 2, 1.0, 0.0], rtol=1e-6)
    labor, params = jnp.array([2000.0, 500.0, 10.0]), SimpleNamespace(alpha=2.0)
    utility = economy.utility(labor, consumed, params)  # l (1 - 1 / (C / l + 1))
    np.testing.assert_allclose(utility, [2 * (1 - 1 / 3), 0.5 * (1 - 1 / 3), 0], rtol=1e-6)
    utility = economy.utility(labor, consumed, SimpleNamespace(alpha=1.0))
    np.testing.assert_allclose(utility, [2 * math.log(3), 0.5 * math.log(3), 0], rtol=1e-6)


def test_indices_of_extremes_are_0_and_1():
    np.testing.assert_allclose(
        [climate_index(7.006738662719727), climate_index(1.2506777048110962)], [0, 1]
    )
    np.testing.assert_allclose(
        [economic_index(606.57275390625), economic_index(9673.5322265625)], [0, 1]
    )


# --- steps ---


@functools.cache
def small(**arguments):
    env, params = wdjax.make("rice", num_regions=3, **arguments)
    return env, params, jax.jit(env.step)


def run(heads, params=None, **arguments):
    """Return the outputs of all steps with heads [T, n, H], as a list."""
    env, defaults, step = small(**arguments)
    params = params or defaults
    state, played = env.reset(None, params)[1], []
    for row in heads:
        played.append(step(None, state, {"region": np.asarray(row, np.int32)}, params))
        state = played[-1][1]
    return played


def idle(steps, heads):
    played = np.zeros((steps, 3, heads), int)
    played[:, :, 0] = 3  # a positive saving rate
    return played


def test_tariffs_reduce_imports_of_the_next_step():
    """Region 0 buys from 1 and sets a tariff, whose cost follows five years later."""
    heads = idle(3, 9)
    # region 1 sells up to 0.9, region 0 bids half of its output
    heads[:, 1, 2], heads[:, 0, 6 + 1] = 9, 5
    heads[1, 0, 3 + 1] = 9
    free = heads.copy()
    free[1, 0, 3 + 1] = 0
    # without this, debts prevent further imports
    params = small()[1].replace(debt_multiplier=np.float32(0))
    with_tariff, without = ([step[1] for step in run(played, params)] for played in (heads, free))
    np.testing.assert_allclose(
        with_tariff[1].tariffs, [[0, 0.9, 0], [0, 0, 0], [0, 0, 0]], rtol=1e-6
    )
    for k, differs in ((0, False), (1, False), (2, True)):
        assert (with_tariff[k].consumption[0] != without[k].consumption[0]) == differs
        np.testing.assert_array_equal(with_tariff[k].consumption[1:], without[k].consumption[1:])
    debt = np.asarray(with_tariff[0].balance)
    assert debt[0] < 0 < debt[1]
    np.testing.assert_allclose(debt.sum(), 0, atol=1e-6)


def test_treaty_changes_the_mask_only():
    """Region 0 promises level 4 to 1 and requests 6. They accept each other.

    Region 2 promises level 8 to 0, which refuses.
    """
    n, at, decide = 3, 9, 9 + 6
    heads = idle(4, 18)
    heads[0, 0, at + 2 * 1], heads[0, 0, at + 2 * 1 + 1] = 4, 6
    heads[0, 2, at + 2 * 0] = 8
    heads[0, 1, at + 2 * 1] = 9  # a proposal to itself
    heads[1, 1, decide + 0] = heads[1, 0, decide + 1] = heads[1, 1, decide + 1] = 1
    proposed, evaluated, acted, second_proposal = run(heads, negotiation=True)
    state = evaluated[1]
    np.testing.assert_allclose(state.treaty.floor, [0.4, 0.6, 0], rtol=1e-6)
    np.testing.assert_array_equal(state.treaty.decisions, [[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    for obs, _, reward, *_, info in (proposed, evaluated):
        assert not reward["region"].any()
        assert info == {"climate_index": 0, "economic_index": 0}
        world = np.asarray(obs["region"]["features"][:, 3 : 3 + 5])
        np.testing.assert_allclose(world, [[0.085, 0.00068, 0.0851, 0.046, 0.174]] * n, rtol=1e-6)
    for played, lowest in (
        (proposed, [0, 0, 0]),
        (evaluated, [4, 6, 0]),
        (acted, [4, 6, 0]),
        (second_proposal, [4, 6, 0]),
    ):
        mask = np.ones((n, sum(small(negotiation=True)[0].nvec)))
        for i, level in enumerate(lowest):
            mask[i, 10 : 10 + level] = 0
        np.testing.assert_array_equal(played[0]["region"]["action_mask"], mask)
    assert (acted[1].mitigation == 0).all()  # illegal levels are used unchanged
    assert (acted[2]["region"] > 0).all()
    # utility is kept, but not rewarded again
    np.testing.assert_array_equal(second_proposal[1].utility, acted[1].utility)
    assert not second_proposal[2]["region"].any()
    columns = np.asarray(second_proposal[0]["region"]["features"])[:, -18:]
    # regions that accepted proposals of region 1
    np.testing.assert_allclose(columns[1, 15:], [1, 0, 0])


def test_finished_states_do_not_change():
    params = small()[1]
    played = run(idle(6, 9), params.replace(episode_length=np.int32(4)))
    assert [bool(step[3]["region"].all()) for step in played] == [False] * 3 + [True] * 3
    for obs, state, reward, *_, info in played[4:]:
        assert not reward["region"].any()
        assert info == {"climate_index": 0, "economic_index": 0}
        jax.tree.map(np.testing.assert_array_equal, (obs, state), played[3][:2])


def test_carbon_price_and_output_bonus_change_rewards_only():
    """Each region pays for its emissions and receives a bonus for its output."""
    heads = idle(3, 9)
    heads[:, 1, 1] = 5
    params = small()[1].replace(carbon_price=np.float32(0.2), output_bonus=np.float32(0.3))
    before = small()[0].reset(None, params)[1]
    for free, priced in zip(run(heads), run(heads, params), strict=True):
        emitted = before.intensity * np.array([1, 0.5, 1]) * priced[1].production
        extra = 0.3 * priced[1].output - 0.2 * emitted
        np.testing.assert_allclose(
            priced[2]["region"] - free[2]["region"], extra, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_array_equal(priced[1].temperature, free[1].temperature)
        before = priced[1]


def test_info_sums_to_the_indices():
    played = run(idle(3, 9))
    sums = np.sum([[float(value) for value in step[-1].values()] for step in played], axis=0)
    warming = float(played[-1][1].temperature[0]) - 0.85
    output = sum(float(step[1].output.sum()) for step in played)
    np.testing.assert_allclose(sums, [climate_index(warming), economic_index(output)], rtol=1e-5)


def test_damages_and_discounts_may_be_vmapped():
    """In five worlds of one program, higher damages reduce output."""
    env, params = wdjax.make("rice", num_regions=3)
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (5, *leaf.shape)), params)
    many = many.replace(a_2=jnp.linspace(0, 0.02, 5), rho=jnp.linspace(0, 0.1, 5))
    heads = {"region": jnp.asarray(idle(1, 9)[0], jnp.int32)}

    def world(params):
        def step(state, _):
            state = env.step(None, state, heads, params)[1]
            return state, (state.output.sum(), state.welfare.sum() / state.utility.sum())

        return jax.lax.scan(step, env.reset(None, params)[1], length=10)[1]

    output, welfare = jax.jit(jax.vmap(world))(many)
    assert (np.diff(output.sum(axis=1)) < 0).all()
    np.testing.assert_allclose(welfare[:, -1], (1 + np.linspace(0, 0.1, 5)) ** -50, rtol=1e-4)


# --- calibrations ---


def test_custom_calibration(tmp_path):
    content = yaml.safe_load(PUBLISHED.read_text(encoding="utf8"))
    calibration = {
        "world": {"a_2": "5e-3"},
        "columns": content["columns"],
        "regions": content["regions"][3:5],
    }
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(calibration))
    env, params = wdjax.make("rice", **read_calibration(file), negotiation=True)
    assert env.groups == {"region": 2}
    np.testing.assert_array_equal(params.K_0, np.float32(published()["K_0"][3:5]))
    assert (params.a_2, params.rho) == (np.float32(0.005), np.float32(0.015))
    assert params.episode_length == 60
    published_params = wdjax.make("rice", **published())[1]
    jax.tree.map(np.testing.assert_array_equal, published_params, wdjax.make("rice")[1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("world: {a_2: 1}", "is missing: 'columns'"),
        ("[", "mine.yaml: invalid YAML"),
        ("{columns: [K_0], regions: [[1], [2]]}", "Add A_0"),
        ("{columns: [K_0], regions: [[1, 2], [2, 3]]}", "rows of 1 numbers"),
        ("{columns: [sigma0], regions: [[1]]}", "unknown name 'sigma0': did you mean 'sigma_0'?"),
        ("{columns: [], regions: [], planet: 3}", "world, columns and regions"),
        ("{columns: [K_0], regions: [[much]]}", "could not convert"),
    ],
)
def test_invalid_calibration_files_raise(content, message, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"mine\.yaml") as refused:
        read_calibration(file)
    assert message in str(refused.value)
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        read_calibration(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_regions": 1}, "num_regions = 1: must be at least 2"),
        ({"num_regions": 28}, "published calibration has 27 regions"),
        ({"K_0": [1.0, 2.0]}, "K_0 = [1.0, 2.0]: must be numbers in the shape (27,)"),
        ({"K_0": np.ones(3)}, "one per region (num_regions = 27)"),
        ({"sigma_0": [-1.0] * 27}, "sigma_0"),
        ({"levels": 1}, "levels = 1: must be at least 2"),
        ({"negotiation": 1}, "negotiation = 1: must be True or False"),
        ({"negotiation": True, "episode_length": 20}, "a multiple of 3 with negotiation"),
        ({"episode_length": 0}, "episode_length = 0: must be above 0"),
        ({"a_2": -0.1}, "a_2"),
        ({"delta_K": 1.5}, "delta_K = 1.5: must be from 0 to 1"),
        ({"p_b": 5500}, "p_b sigma_0 / (1000 theta_2) <= 1"),
        ({"rho": math.inf}, "rho = inf: must be finite"),
        ({"rho": "high"}, "rho"),
        ({"a2": 1.0}, "did you mean 'a_2'?"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises((ValueError, TypeError)) as refused:
        wdjax.make("rice", **arguments)
    assert message in str(refused.value)


# --- pictures ---


def test_gif_and_scene_start_at_the_reset(tmp_path):
    env, params, _ = small()
    states = [step[1] for step in run(idle(12, 9))]
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    save_gif(tmp_path / "a.gif", env, states, params, size=(100, 100))
    scene = env.scene(states, params)
    warm = scene.plots[0].series[0]
    np.testing.assert_array_equal(warm.values, states.temperature[:, 0].astype(float))
    assert scene.captions[-1].startswith(f"{2015 + 5 * 12:.0f}, step 12 of")
