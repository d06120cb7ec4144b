"""covid_economy: golden numbers, agreement with the reference, limits of the rules.

Golden numbers are float64. Numbers of the published calibration need its file, which is not part of
the project.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_covid import Economy, Rules
from shared_data import shared

import wdjax
from wdjax.env_checker.case import quick_jit
from wdjax.envs.covid import load_policy
from wdjax.envs.covid.economy import derive, until_vaccines
from wdjax.envs.covid.measures import find_deviations, play_levels
from wdjax.replicas import scan_replicas_kernel

T = 540
CASES = ("no-op", "P", "L10", "random")
PERSONS = ("susceptible", "infected", "recovered", "dead", "vaccinated", "unemployed")
KEYS = (
    "health",
    "productivity",
    "lagged_level",
    "level",
    "time",
    "until_subsidy",
    "subsidy",
    "until_vaccines",
)
# (case, t): sums of S, I, D, U, productivity; rewards of state 0 (calibrated: California), of all
# states, of the planner
ROWS_5 = {
    ("no-op", 1): (28523270, 14202.288, 152.53, 2091491, 4779359192, 0.735782206, 4.07336455,
        0.8692728113),
    ("no-op", 540): (1751504, 54.969, 196712.30, 1297118, 4994661727, 0.973118393, 4.90780970,
        0.9914166449),
    ("P", 91): (28014365, 110256.152, 8409.56, 2865046, 5312104044, 1.085755226, 5.82799568,
        0.6547751552),
    ("P", 540): (3683941, 33.776, 112438.23, 1396937, 6308502408, 1.552442126, 8.01647004,
        0.9626944116),
}  # fmt: skip
ROWS_51 = {
    ("no-op", 1): (328141882, 398928.319, 3942.12, 26294532, 54832805403, 0.876852051,
        44.54254905, 0.8725303523),
    ("no-op", 540): (43820365, 824.287, 1025544.41, 18933915, 57005157858, 0.918286819,
        49.42401064, 0.9724332074),
    ("P", 91): (310722835, 3647494.581, 287351.73, 31957699, 61905463188, 0.839754524,
        54.55543478, 0.6086966960),
    ("P", 540): (39370009, 782.677, 1447561.84, 20571196, 71709758363, 1.312992082, 77.85562724,
        0.9339832704),
    ("L10", 284): (324141721, 8962.531, 91744.65, 36126340, 69682342888, 1.276113860, 75.68881609,
        0.7400483398),
}  # fmt: skip
RETURNS_5 = {
    "no-op": (2128.382502, 441.3110370, 420.4416539),
    "P": (3215.800353, 621.3942202, 420.1083900),
    "L10": (4062.197594, 751.9145304, 368.6035964),
}
RETURNS_51 = {
    "no-op": (22011.06742, 415.5851588, 437.9822946),
    "P": (32133.87907, 526.9219543, 418.2343181),
    "L10": (40032.41378, 682.4688483, 371.0894231),
}
# sums of |obs| of states (one-hot index) and planner without masks, D, wage, sum of pmax
RESET_5 = (23.996057, 10.996057, 133.46, 317.890152, 5.083373880e9)
RESET_51 = (240.492347, 89.492347, 3410.013346, 320.806169, 5.88125643868e10)


def tables(n):
    """Return the actions in all cases, {"state": [cases, T, n], "planner": [cases, T]}."""
    t, draw = np.arange(T)[:, None], np.random.default_rng(0)
    once = np.where(t == 0, 10, 0) + np.zeros((1, n), int)
    chosen = draw.integers(0, 11, (T, n)) * (draw.random((T, n)) < 0.3)
    states = [np.zeros((T, n), int), (3 * np.arange(n) + t) % 10 + 1, once, chosen]
    planner = [
        np.zeros(T, int),
        (7 * (t[:, 0] // 90) + 3) % 21,
        np.full(T, 20),
        draw.integers(0, 21, T),
    ]
    return {"state": np.array(states, np.int32), "planner": np.array(planner, np.int32)}


@functools.cache
def play(n, x64, path=""):
    """Return (env, params, first, steps [cases, T, ...]) of all cases, as NumPy arrays.

    Actions of case "P" are masked.
    """
    with jax.enable_x64(x64):
        env, params = wdjax.make("covid_economy", num_states=n, calibration_file=str(path))

        def step(carry, row):
            obs, state = carry
            actions, masked = row
            masks = {group: group_obs["action_mask"][:, 1] for group, group_obs in obs.items()}
            action = jax.tree.map(
                lambda a, mask: jnp.where((mask == 1) | ~masked, a, 0), actions, masks
            )
            obs, state, reward, *_, info = env.step(jax.random.key(0), state, action, params)
            return (obs, state), (obs, state, reward, info)

        def episode(actions, masked):
            actions = {"state": actions["state"], "planner": actions["planner"][:, None]}
            first = env.reset(jax.random.key(0), params)
            return first, jax.lax.scan(step, first, (actions, jnp.broadcast_to(masked, T)))[1]

        masked = np.array([case == "P" for case in CASES])
        first, steps = jax.tree.map(np.asarray, quick_jit(jax.vmap(episode))(tables(n), masked))
        return env, params, jax.tree.map(lambda leaf: leaf[0], first), steps


def size_of(obs):
    """Return the sums of |obs| of states and planner, without masks."""

    def flat(group):
        return sum(
            np.abs(leaf).sum(dtype=float)
            for name, leaf in obs[group].items()
            if name not in ("action_mask", "index")
        )

    return flat("state") + obs["state"]["index"].size, flat("planner")


def check_reset(played, expected):
    _, params, (obs, state), _ = played
    derived = derive(params)
    numbers = (*size_of(obs), state.dead.sum(), derived.wage, derived.max_productivity.sum())
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)


def check_rows(played, rows, returns, which, reward_tolerance, rtol, atol):
    """Compare rows and returns with golden numbers. `which` is the state with a golden reward."""
    _, _, _, (_, states, rewards, _) = played
    for (case, t), expected in rows.items():
        at = (CASES.index(case), t - 1)
        names = ("susceptible", "infected", "dead", "unemployed", "productivity")
        sums = [getattr(states, name)[at].sum(dtype=float) for name in names]
        np.testing.assert_allclose(sums, expected[:5], rtol=rtol, atol=atol, err_msg=f"{case} {t}")
        state_rewards, planner = rewards["state"][at].astype(float), rewards["planner"][at][0]
        n = len(state_rewards)
        np.testing.assert_allclose(
            (state_rewards[which], state_rewards.sum() / n, planner),
            np.array(expected[5:]) / (1, n, 1),
            rtol=0,
            atol=reward_tolerance,
            err_msg=f"{case} {t}",
        )
    for case, expected in returns.items():
        state_rewards, planner = (
            rewards[group][CASES.index(case)].astype(float) for group in ("state", "planner")
        )
        np.testing.assert_allclose(
            (state_rewards.sum(), state_rewards[:, which].sum(), planner.sum()), expected, rtol=rtol
        )


def test_golden_numbers_of_five_states():
    """Golden sums are whole persons, so those near 0 are compared absolutely."""
    check_reset(play(5, True), RESET_5)
    check_rows(play(5, True), ROWS_5, RETURNS_5, 0, reward_tolerance=1e-6, rtol=1e-6, atol=0.5)


def test_golden_numbers_in_float32():
    check_rows(play(5, False), ROWS_5, RETURNS_5, 0, reward_tolerance=1e-5, rtol=1e-4, atol=0.5)
    assert play(5, False)[3][1].dead.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("x64", "reward_tolerance", "rtol"), [(True, 1e-6, 1e-6), (False, 1e-5, 1e-4)]
)
def test_golden_numbers_of_the_published_calibration(x64, reward_tolerance, rtol):
    played = play(51, x64, shared("covid", "covid_constants.json"))
    if x64:
        check_reset(played, RESET_51)
    check_rows(
        played, ROWS_51, RETURNS_51, 4, reward_tolerance=reward_tolerance, rtol=rtol, atol=0.5
    )


@pytest.mark.slow
def test_golden_number_of_the_real_policy():
    path = shared("covid", "covid_constants.json")
    with jax.enable_x64(True):
        env, params = wdjax.make("covid_economy", calibration_file=str(path), episode_length=436)
        reward = play_levels(env, params, load_policy(path))[1]
        state_rewards, planner = np.asarray(reward["state"]), np.asarray(reward["planner"])
    assert state_rewards.shape == (436, 51)
    returns = state_rewards.sum(), state_rewards[:, 4].sum(), planner.sum()
    np.testing.assert_allclose(returns, (18193.60199, 338.9238858, 360.9200257), rtol=1e-6)


def test_all_golden_rows_of_five_states():
    """The whole table: more days, observations and masks."""
    golden = json.loads(shared("covid", "synthetic_5_golden.json").read_text())
    names = dict(zip(("S", "I", "R", "D", "V", "U"), PERSONS, strict=True)) | {
        "post": "productivity"
    }
    _, _, _, (obs, states, rewards, _) = play(5, True)
    for case, name in (("no-op", "no-op"), ("P", "P"), ("L10", "level 10, subsidy 20")):
        for t, row in golden[name]["rows"].items():
            at = (CASES.index(case), int(t) - 1)
            for short, field in names.items():
                numbers = getattr(states, field)[at].sum()
                np.testing.assert_allclose(
                    numbers, row[short], rtol=1e-6, atol=1e-6, err_msg=f"{name} {t} {short}"
                )
            step_obs = jax.tree.map(lambda leaf, at=at: leaf[at], obs)
            state_rewards, planner = rewards["state"][at], rewards["planner"][at][0]
            numbers = (
                state_rewards[0],
                state_rewards.sum(),
                planner,
                *size_of(step_obs),
                states.level[at].sum(),
                states.subsidy_level[at],
            )
            keys = (
                "reward_0",
                "reward_states_sum",
                "reward_planner",
                "obs_states",
                "obs_planner",
                "level_sum",
                "subsidy_level",
            )
            np.testing.assert_allclose(
                numbers, [row[key] for key in keys], rtol=1e-6, err_msg=f"{name} {t}"
            )
            masks = step_obs["state"]["action_mask"].sum(), step_obs["planner"]["action_mask"].sum()
            assert masks == (row["mask_states"], row["mask_planner"])


def check_against_reference(played, reward_tolerance, rtol):
    """Compare random steps with the reference. The masks forbid most of the actions.

    Settings are always float32. Nearly empty groups are compared relative to the population.
    """
    env, params, _, steps = played
    n, case = env.num_states, CASES.index("random")
    of = {
        field.name: getattr(params.calibration, field.name)
        for field in dataclasses.fields(params.calibration)
    }
    settings = {
        field.name: getattr(params, field.name).item() for field in dataclasses.fields(params)[1:]
    }
    economy = Economy(of, Rules(**settings))
    obs, states, rewards, info = jax.tree.map(lambda leaf: leaf[case], steps)
    actions = jax.tree.map(lambda leaf: leaf[case], tables(n))
    for t in range(T):
        died = economy.dead.sum()
        expected_rewards, planner = economy.step(
            actions["state"][t].tolist(), int(actions["planner"][t])
        )
        for name in PERSONS:
            values, expected = getattr(states, name)[t], getattr(economy, name)
            np.testing.assert_allclose(
                values, expected, rtol, atol=1e-6 * of["population"].max(), err_msg=f"{name} {t}"
            )
        np.testing.assert_array_equal(states.level[t], economy.level)
        np.testing.assert_allclose(
            rewards["state"][t], expected_rewards, rtol=0, atol=reward_tolerance
        )
        np.testing.assert_allclose(rewards["planner"][t], [planner], rtol=0, atol=reward_tolerance)
        np.testing.assert_allclose(
            info["deaths"][t], economy.dead.sum() - died, rtol=1e-3, atol=1e-3
        )
        rows, row = economy.observe()
        step_obs = jax.tree.map(lambda leaf, t=t: leaf[t], obs)
        values = [step_obs["state"][name].reshape(n, -1) for name in KEYS]
        np.testing.assert_allclose(np.concatenate(values, axis=1), rows[:, n:], rtol, 1e-6)
        values = [step_obs["planner"][name].ravel() for name in KEYS]
        np.testing.assert_allclose(np.concatenate(values), row, rtol, 1e-6)
        may_set, may_pay = economy.masks()
        np.testing.assert_array_equal(
            step_obs["state"]["action_mask"], [[1] + [int(may)] * 10 for may in may_set]
        )
        np.testing.assert_array_equal(
            step_obs["planner"]["action_mask"], [[1] + [int(may_pay)] * 20]
        )


@pytest.mark.parametrize(
    ("x64", "reward_tolerance", "rtol"), [(True, 1e-7, 1e-6), (False, 1e-5, 1e-4)]
)
def test_steps_agree_with_the_reference(x64, reward_tolerance, rtol):
    check_against_reference(play(5, x64), reward_tolerance, rtol)


@pytest.mark.slow
def test_steps_agree_with_the_reference_for_one_state():
    check_against_reference(play(1, True), 1e-7, 1e-6)


def test_levels_may_change_after_the_cooldown():
    """ "L10" sets a level in step 1, at time 0. Levels 1 to 10 are legal again from time 28."""
    _, _, (first, _), (obs, *_) = play(5, True)
    free = obs["state"]["action_mask"][CASES.index("L10"), :, 0, 1]
    assert first["state"]["action_mask"].all()
    assert not free[:27].any()
    assert free[27:].all()


def test_planner_decides_every_90_days():
    _, _, (first, _), (obs, states, *_) = play(5, True)
    assert first["planner"]["action_mask"].all()
    free = obs["planner"]["action_mask"][0, :, 0, 1]
    np.testing.assert_array_equal(np.flatnonzero(free) + 1, [90, 180, 270, 360, 450, 540])
    levels = states.subsidy_level[CASES.index("random")]
    np.testing.assert_array_equal(levels, np.repeat(tables(5)["planner"][-1, ::90], 90))


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 300))
def test_days_until_vaccines(interval, start, time):
    """As in the original, the first interval is divided twice. Then it is a share of the rest."""
    _, params = made()
    params = params.replace(delivery_interval=interval, vaccine_start=start)
    deliveries = [day for day in range(1, 700) if day % interval == 0 and day >= start]
    days = next(day for day in deliveries if day >= time + 1) - (time + 1)
    left = min(1, days / interval) if time + 1 <= deliveries[0] else days or interval
    assert until_vaccines(time, params) == pytest.approx(left / interval)


@functools.cache
def made():
    return wdjax.make("covid_economy", num_states=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episode_length": 601}, "episode_length = 601: must be at most filter_len .600 days.,"),
        ({"risk_aversion": 1.0}, "risk_aversion = 1.0: must be different from 1"),
        (
            {"working_share": 0.01},
            "working_share = 0.0.*: must be above the minimum unemployment 0.043",
        ),
        ({"subsidy_interval": 0}, "subsidy_interval = 0: must be above 0"),
        ({"interest": -0.1}, "interest = -0.1.*: must be at least 0"),
        ({"interest": float("inf")}, "interest = inf: must be finite"),
        ({"state_health_priority": 0.0}, "state_health_priority = 0.0: must be above 0"),
        ({"num_states": 0}, "num_states = 0: must be at least 1"),
        (
            {"calibration_file": "nowhere.json"},
            "calibration_file = 'nowhere.json': must be an existing file",
        ),
    ],
)
def test_invalid_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        wdjax.make("covid_economy", **{"num_states": 2, **changes})


@pytest.mark.slow
def test_deviations_from_no_op():
    """Golden returns (per state, planner) of constant policies with 5 synthetic states."""
    env, params = wdjax.make("covid_economy", num_states=5)
    deviations = find_deviations(
        env, params, lambda obs: jnp.zeros(5, jnp.int32), lambda obs: jnp.zeros(1, jnp.int32)
    )
    assert deviations.states_by_level.shape == (11,)
    assert deviations.planner_by_subsidy.shape == (21,)
    np.testing.assert_allclose(
        deviations.states_by_level[np.array([0, 1, 5, 10])] / 5, [426, 402, 428, 346], atol=0.5
    )
    np.testing.assert_allclose((deviations.states / 5, deviations.planner), (426, 420), atol=0.5)
    np.testing.assert_allclose(
        deviations.planner_by_subsidy[np.array([0, 20])], [420, 407], atol=0.5
    )
    np.testing.assert_allclose(
        deviations.states_gain, deviations.states_by_level.max() / deviations.states - 1, rtol=1e-3
    )
    assert (
        abs(deviations.planner_gain) < 1e-6
    )  # without a reaction of the states, no subsidy is best


@pytest.mark.slow
def test_kernel_agrees_with_scan():
    env, params = made()
    action = {"state": jnp.array([3, 0], jnp.int32), "planner": jnp.array([7], jnp.int32)}

    def step(state, _):
        obs, state, reward, *_ = env.step(None, state, action, params)
        return state, (obs, reward)

    start = jax.vmap(lambda key: env.reset(key, params)[1])(jax.random.split(jax.random.key(0), 3))
    by_kernel = scan_replicas_kernel(step, start, None, 40, interpret=True)
    simple = jax.lax.scan(jax.vmap(step), start, None, 40)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), by_kernel, simple
    )
