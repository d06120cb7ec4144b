"""RICE-N: golden trajectories, published extremes, agreement with NumPy in 64 and 32 bits."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from reference_rice import ReferenceRice
from shared_data import shared

import wdjax
from wdjax.envs.climate.calibration import PUBLISHED, published

N = 27
ROW, COLUMN = np.arange(N)[:, None], np.arange(N)[None]

pytestmark = pytest.mark.usefixtures("quick_compile")


@functools.cache
def player(negotiation, bits):
    """Return (env, params, run), where run(heads [T, n, H], raised) returns all steps [T, ...]."""
    env, params = wdjax.make("rice", negotiation=negotiation)

    def step(carry, heads):
        obs, state, raised = carry
        # the lowest level that the mask allows
        lowest = jnp.argmax(obs["region"]["action_mask"][:, 10:20], axis=1)
        heads = heads.at[:, 1].max(jnp.where(raised, lowest, 0).astype(heads.dtype))
        obs, state, *rest = env.step(None, state, {"region": heads}, params)
        return (obs, state, raised), (heads, obs["region"], state, *rest)

    @jax.jit
    def run(heads, raised):
        obs, state = env.reset(None, params)
        return jax.lax.scan(step, (obs, state, raised), heads)[1]

    return env, params, run


def play(heads, negotiation, bits, raised=False):
    """Return (heads, obs, state, reward, terminated, truncated, info) of an episode, in NumPy."""
    with jax.enable_x64(True) if bits == 64 else contextlib.nullcontext():
        run = player(negotiation, bits)[2]
        return jax.device_get(run(np.asarray(heads, np.int32), np.bool_(raised)))


def regions_head(k, *, heads):
    """Return the heads of golden trajectory B in step k, [n, heads] with 57 nonzero columns."""
    h, i = np.zeros((N, heads), int), np.arange(N)
    h[:, 0], h[:, 1], h[:, 2] = 2 + (i + k) % 3, (i + 2 * k) % 10, 3 + i % 2
    h[:, 3:30], h[:, 30:57] = (ROW + 2 * COLUMN + k) % 4, (ROW + COLUMN + k) % 9 == 0
    return h


def with_treaty(k):
    h = regions_head(k, heads=138)
    h[:, 57:111:2], h[:, 58:111:2] = (ROW + COLUMN + k) % 6, (2 * ROW + COLUMN + k) % 7
    h[:, 111:] = (ROW + 2 * COLUMN + k) % 5 == 0
    return h


NVEC = np.array([10] * 111 + [2] * 27)
# name: (negotiation, heads of step k, raised to the mask, sum of returns, returns of regions 0 and
# 20, last T_AT, last M_AT, last sum of Q, sum of returns of the authors' class in float32)
GOLDEN = {
    "A": (False, lambda k: np.zeros((N, 57), int), False,
          65.0868356, 1.28154795, 9.64111754, 3.016669664, 1095.768456, 5.76916878, 65.0868340),
    "B": (False, functools.partial(regions_head, heads=57), False,
          152.5488517, 4.73792510, 16.07011986, 5.095952410, 2465.346724, 353.0803911, 152.5488473),
    "C": (True, lambda k: (3 * ROW + 5 * np.arange(138)[None] + 7 * k) % NVEC[None], False,
          104.5592366, 2.96678994, 13.43886951, 5.403873814, 2755.374744, 416.1891624, 104.5609200),
    "D": (True, with_treaty, True,
          151.5263296, 4.69934386, 16.12025683, 4.332340505, 1898.515888, 359.9648135, 151.5261883),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("bits", [64, 32])
def test_golden_trajectories(name, bits):
    negotiation, head, raised, total, first, other, warm, carbon, output, as_shipped = GOLDEN[name]
    heads = [head(k) for k in range(60 if negotiation else 20)]
    _, _, state, reward, terminated, _, _ = play(heads, negotiation, bits, raised)
    assert state.capital.dtype == {64: np.float64, 32: np.float32}[bits]
    assert reward["region"].dtype == np.float32
    returns = state.reward.astype(np.float64).sum(axis=0)
    world = (state.temperature[-1, 0], state.carbon[-1, 0], state.output[-1].sum())
    numbers = (returns.sum(), returns[0], returns[20], *world)
    rtol = 1e-6 if bits == 64 else 1e-5
    np.testing.assert_allclose(numbers, (total, first, other, warm, carbon, output), rtol=rtol)
    # rewards are returned in 32 bits
    np.testing.assert_allclose(reward["region"], state.reward, rtol=1e-7)
    # the rounding noise of the authors' class is 1.6e-5
    np.testing.assert_allclose(returns.sum(), as_shipped, rtol=2e-5)
    np.testing.assert_array_equal(
        np.flatnonzero(terminated["region"].all(axis=1)), [len(heads) - 1]
    )
    if name == "B":
        check_first_step_of_b(jax.tree.map(lambda leaf: leaf[0], state))
    if name == "D":
        lowest = [int(digit) for digit in "656565656565656566666665666"]
        np.testing.assert_array_equal(np.round(10 * state.treaty.floor[1]), lowest)


def check_first_step_of_b(state):
    stocks = (state.carbon[0], state.capital[0], state.capital[20], state.balance[0])
    rewards = (state.reward[0], state.reward[20], state.reward.sum())
    numbers = (*state.temperature, *stocks, *rewards)
    expected = (
        0.988661088,
        0.02788,
        871.462532,
        0.866313944,
        47.28080668,
        0.36246953,
        0.08468737,
        0.63851261,
        3.9234223,
    )
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("head", "climate", "economic"), [(0, 0, 1), (1, 1, 0)], ids=["save", "mitigate"]
)
def test_indices_of_published_extremes(head, climate, economic):
    """Level 10 is not in the action space, but the steps accept it."""
    heads = np.zeros((20, N, 57), int)
    heads[:, :, head] = 10
    info = play(heads, False, 64)[-1]
    np.testing.assert_allclose(info["climate_index"].sum(), climate, atol=1e-7)
    np.testing.assert_allclose(info["economic_index"].sum(), economic, atol=1e-7)


def some_heads(kind, negotiation):
    """Return heads [T, n, H]: random, or each 0 or its highest level."""
    nvec = NVEC if negotiation else NVEC[:57]
    rng = np.random.default_rng(3)
    heads = rng.integers(0, nvec, (60 if negotiation else 20, N, len(nvec)))
    return heads if kind != "extreme" else (nvec - 1) * (heads > nvec // 2)


@pytest.mark.parametrize("negotiation", [False, True])
@pytest.mark.parametrize(
    ("bits", "kind"),
    [(64, "random"), (64, "extreme"), (64, "obeying"), (32, "random"), (32, "extreme")],
)
def test_steps_agree_with_the_reference(bits, kind, negotiation):
    """Rewards and features agree with NumPy in 64 bits.

    Masks, ends and rounded indices agree exactly.
    """
    heads = some_heads(kind, negotiation)
    heads, obs, state, reward, terminated, _, info = play(
        heads, negotiation, bits, kind == "obeying"
    )
    reference = ReferenceRice(published(), N, negotiation)
    # obs always has 32 bits
    near = {"rtol": 2e-6, "atol": 2e-7} if bits == 64 else {"rtol": 1e-4, "atol": 1e-4}
    for t, played in enumerate(heads):
        gain, done = reference.step(played)
        # p Q of the reference may differ from Q - I by a bit
        exact = {"rtol": 1e-9, "atol": 1e-8} if bits == 64 else near
        np.testing.assert_allclose(state.reward[t], gain, **exact)
        np.testing.assert_allclose(reward["region"][t], gain, **near)
        np.testing.assert_allclose(obs["features"][t], reference.features(), **near)
        np.testing.assert_array_equal(obs["action_mask"][t], reference.mask())
        assert (terminated["region"][t] == done).all()
    if kind == "obeying" and negotiation:
        assert obs["action_mask"].min() == 0
    indices = (round(float(info[name].sum()), 2) for name in ("climate_index", "economic_index"))
    assert tuple(indices) == reference.indices()


def test_params_and_state_have_the_default_precision_of_jax():
    with jax.enable_x64(True):
        env, params = wdjax.make("rice", a_2=0.003)
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {
            np.dtype(np.float64),
            np.dtype(np.int32),
        }
        assert params.a_2 == 0.003  # exactly
        obs, state = jax.eval_shape(env.reset, jax.random.key(0), params)
    assert obs["region"]["features"].dtype == np.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {
        np.dtype(np.float64),
        np.dtype(np.int32),
    }
    assert wdjax.make("rice", a_2=0.003)[1].a_2 == np.float32(0.003)


def test_calibration_equals_the_published_file():
    theirs = yaml.safe_load(shared("climate", "rice_regions.yaml").read_text(encoding="utf8"))
    ours = published()
    for column, name in enumerate(theirs["regions_columns"][2:], start=2):
        assert ours[name] == [row[column] for row in theirs["regions"]]
    world = theirs["world"] | theirs["common_to_all_regions"] | theirs["code_level_constants"]
    assert [world.pop(name) for name in ("T_AT_0", "T_LO_0")] == ours["T_0"]
    assert [world.pop(name) for name in ("M_AT_0", "M_UP_0", "M_LO_0")] == ours["M_0"]
    np.testing.assert_allclose(world.pop("for_pref_each"), ours["for_pref"] / 26)
    assert (world.pop("utility_offset"), world.pop("num_steps"), world.pop("start_year")) == (
        1,
        20,
        2015,
    )
    world.pop("unused_by_the_dynamics")
    assert world == {name: ours[name] for name in world}
    # num_regions, columns, T_0 and M_0, world, for_pref
    assert len(ours) == 1 + 8 + 2 + len(world) + 1
    assert "BSD-3-Clause" in PUBLISHED.read_text(encoding="utf8")


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
def test_negotiation_passes_check_env(bits):
    """tests/test_check_env.py checks the environment without negotiation."""
    with jax.enable_x64(bits == 64):
        arguments = {"num_regions": 4, "episode_length": 9}
        wdjax.check_env(*wdjax.make("rice", negotiation=True, **arguments), num_steps=400)
