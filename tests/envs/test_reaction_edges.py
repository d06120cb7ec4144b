"""Custom tables of reaction paths, invalid arguments, runs and pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import wdjax
from wdjax.envs.reaction import drawing, exact
from wdjax.envs.reaction.game import State
from wdjax.playing import play, start_play, uniform_action
from wdjax.train import complete_env_params, load_config

ENERGIES = np.random.default_rng(0).normal(size=(4, 5, 3))
OWN = {
    "surface": "table",
    "energies": ENERGIES,
    "ienergy": 0,
    "max_denergy": 1,
    "nz": 9,
    "z_lower": 2,
    "initial_state": [0, 0, 2],
    "final_state": [3, 3, 4],
}
REFUSED = [
    (
        {"energies": ENERGIES[0]},
        ValueError,
        r"shape of energies = \(5, 3\): must be \[nx, ny, layers\]",
    ),
    ({"energies": "abc"}, TypeError, "energies = 'abc': must be numbers"),
    ({"energies": None}, TypeError, "energies = None: must be numbers"),
    ({"energies": [[[0.0, 1.0], [2.0]]]}, TypeError, "energies = .*: must be numbers"),
    ({"energies": ENERGIES * np.nan}, ValueError, "energies = .*not NaN"),
    ({"energies": ENERGIES + np.inf}, ValueError, "energies = .*: must be finite"),
    (
        {"surface": "mueler_brown"},
        ValueError,
        "surface = 'mueler_brown': .*did you mean 'mueller_brown'",
    ),
    (
        {"surface": "mueller_brown"},
        ValueError,
        r"\(4, 5, 3\): must be \(28, 24, 2\), the shape of .*surface='table'",
    ),
    (
        {"surface": "two_atom_exchange"},
        ValueError,
        r"'two_atom_exchange' = .*: must be \[nx, ny, layers\]",
    ),
    (
        {"surface": "nowhere.npy"},
        ValueError,
        "surface = 'nowhere.npy': must be a .npy file of numbers: .*No such",
    ),
    ({"surface": ENERGIES}, TypeError, r"(?s)surface = .*Pass a table as energies"),
    ({"settings": "treshold"}, ValueError, "unknown settings 'treshold': did you mean 'threshold'"),
    ({"rule": "4d"}, ValueError, "unknown rule '4d'"),
    ({"ienergy": None}, ValueError, "ienergy = None: must be set"),
    ({"max_denergy": 0}, ValueError, "max_denergy = 0.0: must be above 0"),
    ({"min_reward": 0.5}, ValueError, "min_reward = 0.5: must be at most 0"),
    ({"nz": 4}, ValueError, r"nz = 4: must be at least z_lower \+ 3"),
    ({"z_lower": -1}, ValueError, "z_lower = -1: must be at least 0"),
    (
        {"initial_state": [0, 0, 1]},
        ValueError,
        r"initial_state = \[0, 0, 1\]: .*2 <= z < 5 \(the slab\)",
    ),
    ({"final_state": [0, 5, 2]}, ValueError, r"final_state = \[0, 5, 2\]: .*0 <= y < 5"),
    ({"final_state": [0, 0.5, 2]}, TypeError, "final_state = .*: must be whole numbers"),
    (
        {"final_state": [0, 0]},
        ValueError,
        r"final_state = \[0, 0\]: must be numbers in the shape \(3,\)",
    ),
    (
        {"final_state": [0, 0, 2]},
        ValueError,
        r"final_state = \[0, 0, 2\]: must be different from initial_state",
    ),
    ({"episode_length": 0}, ValueError, "episode_length = 0: must be above 0"),
]


@pytest.mark.parametrize(
    ("changes", "error", "message"), REFUSED, ids=[str(row[2])[:40] for row in REFUSED]
)
def test_invalid_arguments_raise(changes, error, message):
    with pytest.raises(error, match=message):
        wdjax.make("reaction_one_atom", **OWN | changes)


@pytest.mark.parametrize(
    "missing", ["energies", "ienergy", "max_denergy", "nz", "initial_state", "final_state"]
)
def test_custom_tables_require_all_settings(missing):
    with pytest.raises(ValueError, match=missing):
        wdjax.make(
            "reaction_one_atom", **{name: value for name, value in OWN.items() if name != missing}
        )


def test_two_atoms_require_equal_layers():
    places = {"initial_state": [0, 0, 2] * 2, "final_state": [1, 1, 2] * 2}
    with pytest.raises(ValueError, match=r"shape of energies = \(2, 2, 2, 2, 2, 3\)"):
        wdjax.make(
            "reaction_two_atoms", **OWN | places | {"energies": np.zeros((2, 2, 2, 2, 2, 3))}
        )


def test_tables_may_be_arrays_lists_or_files(tmp_path):
    np.save(tmp_path / "own.npy", ENERGIES)
    rest = {name: value for name, value in OWN.items() if name not in ("surface", "energies")}
    tables = [OWN, OWN | {"energies": ENERGIES.tolist()}, OWN | {"energies": jnp.asarray(ENERGIES)}]
    made = [wdjax.make("reaction_one_atom", **arguments) for arguments in tables]
    made.append(wdjax.make("reaction_one_atom", surface=str(tmp_path / "own.npy"), **rest))
    for _, params in made:
        np.testing.assert_array_equal(params.energies, ENERGIES.astype(np.float32))
        assert params.energies.dtype == np.float32
    np.save(tmp_path / "words.npy", np.array(["a"]))
    with pytest.raises(ValueError, match="one array of real numbers"):
        wdjax.make("reaction_one_atom", surface=str(tmp_path / "words.npy"), **rest)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"must be a \.npy file of numbers"):
        wdjax.make("reaction_one_atom", surface=str(tmp_path / "objects.npy"), **rest)


def test_tables_of_equal_shape_share_a_program():
    """The table is traced: another table does not trace again."""
    env, params = wdjax.make("reaction_one_atom")
    traces = []

    @jax.jit
    def paid(params):
        traces.append(1)
        _, state = env.reset(jax.random.key(0), params)
        return env.step(jax.random.key(0), state, 0, params)[2]

    assert paid(params) == 0
    _, other = wdjax.make(
        "reaction_one_atom", energies=np.full((28, 24, 2), -45.55588 + 2 * 5.286429)
    )
    assert paid(other) == pytest.approx(-2, abs=1e-5)
    assert len(traces) == 1


def test_distance_is_in_cells_for_an_atom_that_starts_at_its_goal():
    places = {"initial_state": [2, 2, 3, 6, 2, 3], "final_state": [2, 6, 3, 6, 2, 3]}
    env, params = wdjax.make("reaction_two_atoms", **places)
    state = State(jnp.array([2, 2, 3, 6, 0, 3]), jnp.int32(0))
    np.testing.assert_allclose(env.observe(state, params)[-2:], [1.0, 2.0])


@pytest.mark.slow
def test_play_agrees_with_single_steps():
    """9 steps are two episodes of 4 and a step. The table is small enough for a kernel."""
    env, params = wdjax.make("reaction_one_atom", **OWN | {"episode_length": 4})

    def random(key, obs):
        return uniform_action(env.action_space(params), key)

    def record(memory, steps):
        return (memory, steps)

    def played(key):
        return play(env, params, random, start_play(env, params, key, 3), 9, record)[2]

    step, key = jax.jit(env.step), jax.random.key(0)
    steps, first = jax.device_get(jax.jit(played)(key)), jax.jit(env.reset)(key, params)[1]
    for replica in range(3):
        for t in range(9):
            state = first if t % 4 == 0 else state  # noqa: F821
            obs, state, reward, terminated, truncated, _ = step(
                key, state, steps.action[t, replica], params
            )
            np.testing.assert_allclose(steps.final_obs[t, replica], obs, rtol=1e-6)
            np.testing.assert_allclose(steps.reward[t, replica], reward, rtol=1e-6)
            assert (steps.over[t, replica], truncated) == (t % 4 == 3, t % 4 == 3)
            assert not terminated


def test_config_omits_the_table_of_a_named_surface():
    config = load_config("reaction_mueller_brown")
    assert "energies" not in complete_env_params(config).env_params
    other = load_config("reaction_mueller_brown", **{"env_params.energies": np.zeros((28, 24, 2))})
    written = complete_env_params(other).env_params
    assert np.shape(written["energies"]) == (28, 24, 2)
    assert written["initial_state"] == [9, 17, 2]
    with pytest.raises(ValueError, match=r"env_params\.energies = .*shared by all replicas"):
        load_config("reaction_mueller_brown", **{"env_params.energies": np.zeros((3, 28, 24, 2))})


def test_surface_flag_sets_the_settings_of_the_surface(monkeypatch, tmp_path):
    from wdjax.experiments.commands import train

    configs = []
    monkeypatch.setattr(
        train, "import_trainer", lambda: lambda config, *_, **__: configs.append(config) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        train.train(
            [
                "reaction_mueller_brown",
                "--env-params.surface",
                "quartic",
                "--workdir",
                str(tmp_path),
            ]
        )
    params = configs[0].env_params
    assert (params["surface"], params["initial_state"], params["min_reward"]) == (
        "quartic",
        [6, 10, 2],
        -5.0,
    )
    assert params["ienergy"] == pytest.approx(0.95)


@pytest.mark.parametrize("surface", ["mueller_brown", "two_atom_exchange"])
def test_drawing_shows_the_path_up_to_each_frame(surface):
    env, params = wdjax.make(
        "reaction_two_atoms" if "two" in surface else "reaction_one_atom", surface=surface
    )
    start = np.asarray(params.initial_state)
    positions = start + np.eye(len(start), dtype=int)[0] * np.arange(3)[:, None]
    # an earlier episode first
    states = State(np.concatenate([positions[::-1], positions]), np.array([7, 8, 9, 0, 1, 2]))
    scene = env.scene(states, jax.device_get(params))
    energy = env.table.energies[tuple(positions[2] - env.table.offset)]
    places = drawing.places(env.table, positions[:, :2])
    assert scene.captions[-1].startswith(f"step 2 of 500, energy {energy:.4g}, highest")
    assert "highest" not in scene.captions[0]  # the start of that episode is unknown
    (path,) = (mark for mark in scene.marks if getattr(mark, "label", "") in ("path", "atom 1"))
    first, last = path.window[-1]
    np.testing.assert_allclose(path.points[0, 0, first:last], places)
    crosses = [
        (x, y)
        for mark in scene.marks
        if getattr(mark, "label", "") == "saddle"
        for x, y in zip(mark.x[0], mark.y[0], strict=True)
    ]
    assert crosses == list(env.table.saddles)


def test_lines_break_at_periodic_boundaries():
    broken = drawing.with_breaks(np.array([[1, 0], [0, 0], [19, 0]]))
    np.testing.assert_array_equal(broken, [[1, 0], [0, 0], [np.nan, np.nan], [19, 0]])


def test_training_settings_keep_the_best_path():
    """The preset uses min_reward -5 and gamma 0.995. Its best path crosses the lowest pass."""
    env, params = wdjax.make("reaction_one_atom")
    params = exact.exact_params(env)
    best, lowest = exact.best_return(params), exact.lowest_pass(params)
    trained = exact.best_return(params.replace(min_reward=-5.0), gamma=0.995)
    cells = tuple((trained.path[1:] - env.table.offset).T)
    costs = np.clip(
        (params.ienergy - params.energies[cells]) / params.max_denergy, params.min_reward, 0
    )
    assert costs.sum() + params.terminate_reward > 0.99 * best.value
    assert trained.top == lowest.value
