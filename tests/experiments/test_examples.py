"""The examples run with the documented results."""

import dataclasses
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from quick import quick_environment

import wdjax
from wdjax.experiments.cli import main
from wdjax.experiments.examples import (
    covid_economy,
    own_algorithm,
    own_environment,
    own_game,
    own_network,
    single_file_ppo,
    traced_physics,
)
from wdjax.train import Trainer, load_config, make_learner


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vary", "outcome", "ends"),
    [
        (
            traced_physics.vary_cartpole,
            traced_physics.standing_steps,
            {"length": (22.5, 45.3), "gravity": (38.7, 27.5)},
        ),
        (traced_physics.vary_tag, traced_physics.tags, {"skill_level_tagger": (1.8, 4.4)}),
    ],
    ids=["cartpole", "tag_continuous"],
)
def test_a_thousand_variants_are_one_program(vary, outcome, ends):
    """Results depend on physics, compared by quarters of the variants, and equal single runs."""
    key, traces = jax.random.key(0), []
    many, results = vary(key)
    assert results.shape == (1_000,)
    for field, expected in ends.items():
        order = np.argsort(getattr(many, field))
        fourths = np.asarray(results)[order].reshape(4, 250).mean(axis=1)
        np.testing.assert_allclose(fourths[[0, 3]], expected, rtol=0.1)

    @jax.jit
    def alone(params, key):
        traces.append(1)
        return outcome(params, key)

    keys = (
        jax.random.split(key, 1_000)
        if vary is traced_physics.vary_tag
        else [jax.random.split(key)[1]] * 1_000
    )
    for i in (0, 1, 499, 999):
        params = jax.tree.map(lambda leaf, i=i: leaf[i], many)
        assert alone(params, keys[i]) == results[i]
    assert len(traces) == 1


def printed_by(example, capsys):
    """Run an example in this process and return its output."""
    capsys.readouterr()
    runpy.run_path(example.__file__, run_name="__main__")
    return capsys.readouterr().out


def test_own_algorithm_is_short_of_public_names_and_shown():
    source = Path(own_algorithm.__file__).read_text(encoding="utf8")
    assert len(source.splitlines()) < 145
    assert set(re.findall(r"^(?:from|import) (wdjax\S*)", source, re.MULTILINE)) == {"wdjax.train"}


@pytest.mark.slow
def test_own_algorithm_learns_at_every_temperature(quick_compile):
    temperatures, returns = own_algorithm.sweep_temperatures()
    assert temperatures.shape == returns.shape == (4,)
    assert (returns > 100).all()  # of 500; at first 20
    tags = own_algorithm.beside_ppo()["tagger/episode_return"]
    assert np.nanmean(tags[-5:]) > np.nanmean(tags[:5])


def test_single_file_ppo_is_short_and_uses_the_environments_only():
    source = Path(single_file_ppo.__file__).read_text(encoding="utf8")
    assert len(source.splitlines()) <= 150
    assert re.findall(r"^(?:from|import) (wdjax.*)", source, re.MULTILINE) == ["wdjax"]


def test_single_file_ppo_bootstraps_at_truncation_and_not_at_termination():
    """Advantages by hand: three steps of two replicas, cut by a truncation and by a termination."""
    args = single_file_ppo.Args(num_envs=2, gamma=0.5, gae_lambda=0.5)
    over = jnp.array([[False, False], [True, True], [False, False]])
    terminated = over & jnp.array([[False, True]])
    value, next_value, reward = jnp.full((3, 2), 2.0), jnp.full((3, 2), 4.0), jnp.ones((3, 2))
    rollout = single_file_ppo.Transition(
        value, value, value, value, next_value, reward, terminated, over, value
    )
    advantage = single_file_ppo.gae(rollout, args)
    np.testing.assert_allclose(advantage, [[1.25, 0.75], [1.0, -1.0], [1.0, 1.0]])


@pytest.mark.slow
@jax.numpy_rank_promotion("allow")  # biases of its networks
def test_single_file_ppo_solves_cartpole(quick_compile):
    args = single_file_ppo.Args()
    train = jax.jit(jax.vmap(single_file_ppo.train, (0, None)), static_argnums=1)
    _, returns = train(jax.random.split(jax.random.key(0), 4), args)
    assert np.nanmean(returns[:, :5]) < 100
    assert np.median(np.nanmean(returns[:, -20:], axis=1)) > 475  # of 500; counts as solved


def test_own_environment_by_hand():
    env, params = own_environment.Lander(), own_environment.Params()
    step = jax.jit(env.step)
    state = own_environment.State(jnp.float32(0.05), jnp.float32(-0.5), jnp.int32(3))
    for action, velocity, soft in ((1, -0.36, True), (0, -0.66, True)):
        _, after, reward, terminated, truncated, info = step(
            jax.random.key(0), state, action, params
        )
        np.testing.assert_allclose(
            [after.velocity, after.height], [velocity, 0.05 + 0.1 * velocity], atol=1e-6
        )
        assert terminated == (after.height <= 0) == (action == 0)
        assert reward == pytest.approx(1 + velocity / 5 if terminated else -0.005)
        assert info["soft"] == (soft and terminated)
        assert not truncated
    *_, reward, terminated, truncated, info = step(
        jax.random.key(0), after.replace(time=jnp.int32(199)), 1, params
    )
    assert (float(reward), bool(terminated), bool(truncated), bool(info["soft"])) == (
        0.0,
        True,
        False,
        False,
    )


@pytest.mark.slow
def test_own_environment_is_sound_short_and_learns_to_land(registry, capsys, quick_compile):
    source = Path(own_environment.__file__).read_text(encoding="utf8")
    assert len(source.splitlines()) < 95
    printed = printed_by(own_environment, capsys)  # calls check_env, too
    first, last = (int(word.rstrip("%")) for word in printed.split() if word.endswith("%"))
    assert first < 20
    assert last > 70


@pytest.mark.slow
def test_own_game_is_sound_short_of_public_names_and_learned(registry, capsys, quick_compile):
    printed = printed_by(own_game, capsys)  # calls check_env, too
    caught = {
        tuple(words[1:4:2]): float(words[4]) for words in map(str.split, printed.splitlines())
    }
    assert len(caught) == 9
    assert caught["trained", "flee_nearest"] > caught["random", "flee_nearest"] + 1.5
    assert caught["trained", "random"] > caught["random", "random"] + 1.0
    source = Path(own_game.__file__).read_text(encoding="utf8")
    assert len(source.splitlines()) < 175
    assert set(re.findall(r"^(?:from|import) (wdjax\S*)", source, re.MULTILINE)) == {
        "wdjax",
        "wdjax.train",
    }


def ring_state(*place, active=(True,) * 6, time=3):
    return own_game.State(jnp.array(place), jnp.array(active), jnp.int32(time))


@pytest.mark.slow
def test_own_game_by_hand(quick_compile):
    env, params = own_game.Ring(), own_game.Params()
    state = ring_state(0.0, 0.5, 0.95, 0.49, 0.2, 0.7)
    for name, actions in (
        ("hunt_nearest", [0, 0]),
        ("flee_nearest", [0, 0, 2, 2]),
    ):  # 0.95 is behind 0.0
        script = jax.jit(env.scripts[name][1], static_argnums=0)
        np.testing.assert_array_equal(script(env, state, params, None), actions)
    caught = ring_state(
        0.0, 0.5, 0.95, 0.49, 0.2, 0.7, active=(True, True, False, False, True, True)
    )
    hunt = jax.jit(lambda state: own_game.hunt_nearest(env, state, params, None))
    np.testing.assert_array_equal(hunt(caught), [2, 2])  # to 0.2 and 0.7
    action = {"hunter": jnp.array([0, 1]), "prey": jnp.array([0, 2, 1, 1])}
    obs, after, reward, terminated, _, info = jax.jit(env.step)(
        jax.random.key(0), state, action, params
    )
    np.testing.assert_allclose(after.place, [0.97, 0.5, 0.93, 0.51, 0.2, 0.7], atol=1e-6)
    np.testing.assert_array_equal(
        reward["hunter"], [0, 1]
    )  # 0.04 apart is too far, 0.01 is near enough
    np.testing.assert_array_equal(reward["prey"], [0, -1, 0, 0])
    np.testing.assert_array_equal(terminated["prey"], [False, True, False, False])
    assert info["caught"] == 1
    others, present, own = env.split_observation(obs["hunter"])
    np.testing.assert_allclose(
        others[0, :, 0], 2 * np.array([-0.47, -0.04, -0.46, 0.23, -0.27]), atol=1e-6
    )
    np.testing.assert_array_equal(others[0, :, 1], [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(present[0], [True, True, False, True, True])
    np.testing.assert_allclose(own, 0.1)


@pytest.mark.slow
def test_own_game_is_evaluated_by_name_against_its_scripts(
    registry, tmp_path, capsys, monkeypatch, quick_compile
):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Trainer, "draw", lambda self: None)  # pictures take long
    config = dataclasses.replace(own_game.game(), num_envs=4, rollout_length=5, total_env_steps=20)
    Trainer(config, workdir=tmp_path / "run").train()
    assert "split:" not in (tmp_path / "run" / "config.yaml").read_text()
    capsys.readouterr()
    run = ["eval", str(tmp_path / "run"), "--episodes", "8", "--opponents"]
    main([*run, "hunt_nearest", "flee_nearest", "--output", str(tmp_path / "cells.json")])
    cells = {
        tuple(cell["policies"].values()): cell
        for cell in json.loads((tmp_path / "cells.json").read_text())
    }
    assert set(cells) == {
        (a, b) for a in ("trained", "hunt_nearest") for b in ("trained", "flee_nearest")
    }
    assert cells["hunt_nearest", "flee_nearest"]["caught"]["mean"] > 2.5
    with pytest.raises(SystemExit):
        main([*run, "xx"])
    said = capsys.readouterr().err
    assert "unknown player 'xx': known names: flee_nearest, hunt_nearest, random" in said


@pytest.mark.slow
def test_own_network_compiles_and_one_update_runs():
    source = Path(own_network.__file__).read_text(encoding="utf8")
    assert len(source.splitlines()) < 90
    config = own_network.game("nearby")
    learner = make_learner(dataclasses.replace(config, num_envs=8, rollout_length=10))
    first = learner.init(jax.random.key(0))
    state, _ = learner.update(first)
    before, after = (s.policies["tagger"].params["trunk"]["encoder"] for s in (first, state))
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), before, after)
    assert all(jax.tree.leaves(moved))


@pytest.mark.slow
def test_own_network_sees_a_set():
    space = wdjax.Box(-np.inf, np.inf, (7 * 4 + 1,))
    encoder = own_network.Nearby(space, width=5, rngs=nnx.Rngs(0))
    others = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    others[:, 6] = [1, 0, 1, 1]

    def features(rows):
        return encoder(jnp.concatenate([rows.T.ravel(), jnp.array([0.5])]))

    assert features(others).shape == (encoder.num_features,) == (6,)
    np.testing.assert_allclose(features(others[[2, 1, 3, 0]]), features(others), rtol=1e-5)
    others[1, :6] = 9.0
    np.testing.assert_allclose(features(others[[0, 2, 3, 1]]), features(others), rtol=1e-5)
    absent = others.copy()
    absent[1, :6] = 0.0
    np.testing.assert_array_equal(features(others), features(absent))


@pytest.mark.slow
def test_taggers_learn_with_a_custom_encoder():
    """Without the two other encoders of the example, which take three minutes."""
    run = [sys.executable, "-m", "wdjax.experiments.examples.own_network", "nearby"]
    printed = subprocess.run(
        run, capture_output=True, text=True, check=True, timeout=900, env=quick_environment()
    ).stdout
    lines = [line.split() for line in printed.splitlines()]
    first, last = ({words[0]: float(words[i]) for words in lines} for i in (3, 7))
    assert set(last) == {"nearby"}
    assert last["nearby"] > first["nearby"] + 0.4


@pytest.mark.slow
def test_states_and_planner_try_constant_choices(tmp_path, capsys, monkeypatch, quick_compile):
    """A run of two states prints numbers and draws a picture."""
    changes = {
        "env_params.num_states": 2,
        "num_envs": 2,
        "total_env_steps": 1_080,
        "updates_per_chunk": 1,
    }
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "draw", lambda self: None)  # pictures take long
        Trainer(load_config("covid_small", **changes), workdir=tmp_path).train()
    covid_economy.main(str(tmp_path))
    number, share = r"-?[\d.]+", r"[+-][\d.]+%"
    lines = [
        rf"states: {number} each; always level \d+: {number} \({share}\)",
        rf"planner: {number}; always subsidy \d+: {number} \({share}\)",
    ]
    assert re.search("\n".join(lines), capsys.readouterr().out)
    assert (tmp_path / "covid_curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_lowest_path_is_learned(tmp_path):
    picture = tmp_path / "path.png"
    run = [
        sys.executable,
        "-m",
        "wdjax.experiments.examples.reaction_path",
        "--output",
        str(picture),
    ]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    printed = subprocess.run(
        run, capture_output=True, text=True, check=True, timeout=900, env=environment
    ).stdout
    assert "mueller_brown: best return 27.851, lowest pass -40.2695" in printed
    value, top = re.search(r"return +(\S+) in .* highest energy (\S+)", printed).groups()
    assert 0.99 * 27.851 < float(value) < 27.852
    assert -40.27 < float(top) < -40
    assert picture.stat().st_size > 10_000
