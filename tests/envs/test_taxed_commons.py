"""taxed_commons: by hand, against its reference, and its exact solution by brute force."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import lowered
from reference_taxed_commons import Game, Rules

import wdjax
from wdjax import playing
from wdjax.envs.commons import exact
from wdjax.replicas import scan_replicas_kernel

pytestmark = pytest.mark.usefixtures("quick_compile")


@functools.cache
def made(**changes):
    env, params = wdjax.make("taxed_commons", **changes)
    return env, params, jax.jit(env.step)


def act(catch, level):
    return {"harvester": jnp.array(catch), "planner": jnp.array([level])}


def play(env, params, step, choices):
    """Yield the outputs of `step` for (catches, level) choices in order."""
    _, state = env.reset(jax.random.key(0), params)
    for catch, level in choices:
        result = step(jax.random.key(0), state, act(catch, level), params)
        state = result[1]
        yield result


# --- rules ---


GOLDEN = [  # (catches, council's level) -> stock, level, catches, rewards
    (([3, 3, 3, 3], 2), 30, 2, [0, 0, 0, 0], [0, 0, 0, 0]),  # a council day, without fishing
    # 24 left, growth 0.4 x 24 x 36 / 60 = 5.76. The tax is 0.9, refund 0.9 x 6 / 4 = 1.35.
    (
        ([3, 2, 1, 0], 0),
        31,
        2,
        [3, 2, 1, 0],
        [3 - 1.35 - 2.7 + 1.35, 2 - 0.6 - 1.8 + 1.35, 1 - 0.15 - 0.9 + 1.35, 1.35],
    ),
    (([0, 0, 0, 0], 3), 38, 2, [0, 0, 0, 0], [0, 0, 0, 0]),  # growth 0.4 x 31 x 29 / 60 = 5.99
]


def test_golden_steps():
    played = play(*made(), [choices for choices, *_ in GOLDEN])
    for (_, stock, level, catch, earned), (_, state, reward, *_, info) in zip(
        GOLDEN, played, strict=True
    ):
        assert (state.stock, state.level) == (stock, level)
        np.testing.assert_array_equal(state.catch, catch)
        np.testing.assert_allclose(reward["harvester"], earned, rtol=1e-6)
        np.testing.assert_allclose(reward["planner"], [sum(earned)], rtol=1e-6)
        assert info["catch"] == sum(catch)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"start": 3, "capacity": 12, "inflow": 0, "highest_level": 1, "fishing_days": 2},
        {
            "num_harvesters": 3,
            "max_catch": 5,
            "num_levels": 6,
            "highest_level": 5,
            "growth_percent": 170,
            "cost": 0.05,
        },
    ],
)
def test_steps_agree_with_the_reference(changes):
    changes = {"episode_length": 23, **changes}
    env, params, step = made(**changes)
    rules, rng = Rules(**changes), np.random.default_rng(0)
    game = Game(rules)
    choices = [
        (
            rng.integers(0, rules.max_catch + 1, rules.num_harvesters),
            rng.integers(0, rules.num_levels),
        )
        for _ in range(25)
    ]
    for (catch, level), (obs, state, reward, terminated, _, _) in zip(
        choices, play(env, params, step, choices), strict=True
    ):
        earned, welfare = game.step(catch.tolist(), int(level))
        assert (state.stock, state.level, state.time) == (game.stock, game.level, game.time)
        np.testing.assert_allclose(reward["harvester"], earned, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reward["planner"], [welfare], rtol=1e-5, atol=1e-6)
        for group, mask in zip(env.groups, game.masks(), strict=True):
            np.testing.assert_array_equal(obs[group]["action_mask"], [mask] * env.groups[group])
            np.testing.assert_allclose(
                obs[group]["seen"], [game.seen()] * env.groups[group], rtol=1e-6
            )
            assert np.all(terminated[group] == (game.time >= 23))
    assert state.time == 23


def test_taxes_do_not_change_welfare():
    """Welfare depends on the tax only through the catches."""
    env, params, _ = made()
    _, state = env.reset(jax.random.key(0), params)
    state = state.replace(catch=jnp.array([3, 1, 0, 2]))
    sums = [
        jnp.sum(env.rewards(state.replace(level=jnp.int32(level)), params)) for level in range(4)
    ]
    np.testing.assert_allclose(sums, [6 - 0.15 * 14] * 4, rtol=1e-5)


def test_highest_level_0_masks_all_other_levels():
    env, params, step = made(highest_level=0)
    for obs, state, *_ in play(env, params, step, [([1] * 4, 3)] * 7):
        np.testing.assert_array_equal(obs["planner"]["action_mask"], [[1, 0, 0, 0]])
        assert state.level == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"highest_level": 4}, "highest_level = 4: must be from 0 to 3"),
        ({"start": 61}, "start = 61: must be from 0 to"),
        ({"capacity": 1001}, "capacity = 1001: must be from 1 to 1000"),
        ({"cost": -1.0}, "cost = -1.0: must be at"),
        ({"fishing_days": 0}, "fishing_days = 0: must be from 1"),
        ({"num_harvesters": 0}, "num_harvesters = 0: must be"),
    ],
)
def test_invalid_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        wdjax.make("taxed_commons", **changes)


# --- the exact solution ---


def test_best_catch_is_dominant():
    """For all stocks, taxes and catches of the three others."""
    env, params, _ = made()
    best, checked = exact.best_catch(env, params), 0
    for stock, level, others in itertools.product(
        range(0, 61, 3), range(4), itertools.product(range(4), repeat=3)
    ):
        most = min(3, stock // 4)
        if max(others) > most:
            continue
        tax, rewards = 0.45 * level, []
        for caught in range(most + 1):
            catch = (caught, *others)
            rewards.append(caught - 0.15 * caught**2 - tax * caught + tax * sum(catch) / 4)
        assert rewards[best[stock, level]] >= max(rewards) - 1e-6, (stock, level, others)
        checked += 1
    assert checked > 4_000
    # each tax level has a different best catch
    np.testing.assert_array_equal(best[60], [3, 2, 1, 0])


def earned_alone(level, patience, deviates):
    """Return the discounted return of one harvester among three myopic ones.

    It follows the same rule, or deviates with the best of all strategies. Later rewards are
    discounted by `patience`.
    """
    env, params, _ = made()
    best, grown = exact.best_catch(env, params), exact.next_stock(params, np.arange(61))
    value = np.zeros((61, 4))
    for t in reversed(range(60)):
        if t % 5 == 0:
            value = np.tile(value[np.arange(61), level[t]][:, None], (1, 4))
            continue
        now = np.zeros((61, 4))
        for stock, tax in itertools.product(range(61), range(4)):
            others = best[stock, tax]
            choices = np.arange(min(3, stock // 4) + 1) if deviates else np.array([others])
            caught = choices + 3 * others
            now[stock, tax] = np.max(
                choices
                - 0.15 * choices**2
                - 0.45 * tax * (choices - caught / 4)
                + patience * value[grown[stock - caught], tax]
            )
        value = now
    return value[30, 0]


@pytest.mark.slow
@pytest.mark.parametrize("patience", [0.0, 0.9])
def test_foresight_of_one_harvester_gains_little(patience):
    env, params, _ = made()
    for solve, most in ((exact.without_tax, 1.0), (exact.best_policy, 1.01)):
        level = solve(env, params).level
        same, free = (earned_alone(level, patience, deviates) for deviates in (False, True))
        assert same * (1 - 1e-9) <= free <= same * most + 1e-9


def test_welfare_of_solutions_agrees_with_steps():
    """For the best policy, no tax, and a random policy."""
    env, params, step = made()
    drawn = exact.evaluate(env, params, np.random.default_rng(0).integers(0, 4, (60, 61)))
    for solution in (exact.best_policy(env, params), exact.without_tax(env, params), drawn):
        best, (_, state), welfare = (
            exact.best_catch(env, params),
            env.reset(jax.random.key(0), params),
            0.0,
        )
        for t in range(60):
            action = act([best[state.stock, state.level]] * 4, solution.level[t, state.stock])
            _, state, reward, *_ = step(jax.random.key(0), state, action, params)
            welfare += float(reward["planner"][0])
        assert welfare == pytest.approx(solution.welfare(params), rel=1e-5)


def test_best_policy_agrees_with_brute_force():
    """With 3 councils and no randomness, every policy is one of 3^3 sequences of taxes."""
    changes = {
        "num_harvesters": 2,
        "max_catch": 2,
        "num_levels": 3,
        "highest_level": 2,
        "capacity": 8,
        "start": 6,
        "growth_percent": 90,
        "inflow": 0,
        "tax_step": 0.9,
        "cost": 0.2,
        "fishing_days": 3,
        "episode_length": 12,
    }
    env, params = wdjax.make("taxed_commons", **changes)
    rules = Rules(**changes)

    def welfare(levels):
        game, total = Game(rules), 0.0
        for t in range(12):
            tax = rules.tax_step * game.level
            most = min(2, game.stock // 2)
            own = max(
                range(most + 1),
                key=lambda fish: (round(fish * (1 - tax / 2) - 0.2 * fish**2, 9), -fish),
            )
            total += game.step([own] * 2, levels[t // 4])[1]
        return total

    welfare_of = {levels: welfare(levels) for levels in itertools.product(range(3), repeat=3)}
    best = exact.best_policy(env, params)
    assert best.welfare(params) == pytest.approx(max(welfare_of.values()))
    assert exact.without_tax(env, params).welfare(params) == pytest.approx(welfare_of[0, 0, 0])
    assert max(welfare_of.values()) > 1.5 * welfare_of[0, 0, 0]
    # no constant tax is as good
    assert max(welfare_of.values()) > max(welfare_of[level, level, level] for level in range(3))


def test_golden_welfare_of_best_and_constant_taxes():
    env, params, _ = made()
    best, none = (
        solve(env, params).welfare(params) for solve in (exact.best_policy, exact.without_tax)
    )
    np.testing.assert_allclose([best, none], [246.4, 73.0], rtol=1e-6)
    constant = [
        exact.evaluate(env, params, np.full((60, 61), level)).welfare(params) for level in range(4)
    ]
    np.testing.assert_allclose(constant, [73.0, 94.6, 163.2, 0.0], rtol=1e-6)


# --- drawing ---


def test_drawing_shows_stock_and_catches():
    env, params, step = made()
    states = [
        result[1] for result in play(env, params, step, [([3] * 4, 2), ([3] * 4, 0), ([2] * 4, 0)])
    ]
    scene = env.scene(
        jax.tree.map(lambda *leaves: np.stack(leaves), *states), jax.device_get(params)
    )
    assert scene.captions[-1] == f"step 3 of 60: {states[-1].stock} fish, tax 0.90, 8 caught"
    (bars,) = (mark for mark in scene.marks if getattr(mark, "label", "") == "catch of the day")
    np.testing.assert_array_equal(bars.size[..., 1], [[0, 12, 8]])
    np.testing.assert_array_equal(bars.opacity, np.tri(3))  # each frame shows the days up to it
    (stock,) = (mark for mark in scene.marks if getattr(mark, "label", "") == "stock")
    np.testing.assert_array_equal(
        stock.points[0, 0], [(i + 1, state.stock) for i, state in enumerate(states)]
    )
    np.testing.assert_array_equal(stock.window, [(0, 1), (0, 2), (0, 3)])


# --- kernels ---


@pytest.mark.slow
def test_kernel_agrees_with_scan(monkeypatch):
    env, params, _ = made(episode_length=11)
    state = playing.start_play(env, params, jax.random.key(5), 35)
    keep, zeros = lambda total, step: (total + step.reward["planner"][0], step), jnp.zeros(35)

    def run(state):
        def policy(key, obs):
            return playing.uniform_action(env.action_space(params), key)

        return playing.play(env, params, policy, state, 24, keep, zeros)[1:]

    assert "triton" in lowered(run, state)
    expected = jax.jit(run)(state)
    monkeypatch.setattr(
        playing, "scan_replicas", functools.partial(scan_replicas_kernel, interpret=True)
    )
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, jax.jit(lambda state: run(state))(state), expected)
