"""Sweeps of a probe: members equal their runs, and interruptions change no number."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from probes import tiny_config, tiny_policy
from refusals import refusal
from stopping import EndsAfter, Killed

from wdjax.experiments.sweep import Selection, evolve, load_member, read_table, sweep
from wdjax.experiments.sweep.pbt import choose_parents, current_scores, explore
from wdjax.train import load_run, read_curves, read_metrics
from wdjax.train.population import programs
from wdjax.train.storage.folder import SWEEP, hold_folder
from wdjax.train.storage.metrics_log import summarize

pytestmark = pytest.mark.usefixtures("quick_compile", "registered_probes", "compiled_once")

GAME = {"constant": 1.0, "by_match": 0.5, "episode_length": 4, "time_limit": True}
CONFIG = tiny_config(
    "probe_signal", {"agent": tiny_policy("A2C")}, env_params=GAME,
    total_env_steps=4 * 48, updates_per_chunk=1, checkpoint_every=2,
)  # fmt: skip
RATE = "policies.agent.learning_rate"
VALUES = {RATE: [1e-2, 3e-2], "env_params.by_match": [0.5, 1.0]}
PLAIN = {RATE: [3e-3, 1e-2, 3e-2], "policies.agent.gamma": [0.5, 0.9]}


def plain(tree):
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree
    )


def assert_close(a, b, rtol):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol), plain(a), plain(b)
    )


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


def assert_rows_agree(row, other):
    """Assert that numbers agree to rounding, and everything else exactly."""
    assert row.keys() == other.keys()
    for name, value in row.items():
        number = isinstance(value, (int, float))
        assert other[name] == (pytest.approx(value, rel=1e-3, abs=1e-3) if number else value), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return (folder, table) of a sweep of 16 members in two batches."""
    folder = tmp_path_factory.mktemp("sweeps") / "whole"
    return folder, sweep(CONFIG, VALUES, seeds=4, workdir=folder, members_at_once=8)


# --- curves ---


@pytest.mark.slow
def test_curves_of_a_sweep_have_its_values_and_seeds(whole):
    folder, table = whole
    rows = read_curves(folder)
    assert [row["run"] for row in rows] == [f"{i:03d}" for i in range(16) for _ in range(4)]
    for own in table:
        curve = [row for row in rows if row["member"] == own["member"]]
        assert [row["updates"] for row in curve] == [1, 2, 3, 4]
        assert curve[-1].items() <= {**own, "run": curve[-1]["run"]}.items()
        assert all(row["seed"] == own["seed"] and row[RATE] == own[RATE] for row in curve)
    above = read_curves(folder.parent)
    assert {row["run"] for row in above} == {f"whole/{i:03d}" for i in range(16)}
    (best,) = {row["member"] for row in read_curves(folder / "best")}
    assert best == max(table, key=lambda row: row["score"])["member"]


# --- members ---


@pytest.mark.slow
def test_a_member_equals_its_run(whole):
    """Members differ in seeds, hyperparameters and physics, and use the same random numbers."""
    (folder, table), number = whole, 13  # of the second batch
    learner, mine = load_member(folder, number)
    assert learner.config.seed == number % 4
    assert learner.config.policies["agent"].learning_rate == VALUES[RATE][number // 8]
    assert learner.config.env_params["by_match"] == VALUES["env_params.by_match"][number // 4 % 2]
    alone, metrics = learner.run(learner.init(jax.random.key(learner.config.seed)), num_updates=4)
    assert_same(
        (mine.key, mine.replicas, mine.obs, mine.live),
        (alone.key, alone.replicas, alone.obs, alone.live),
    )
    assert_same(
        (mine.hypers, mine.env_params, mine.num_updates),
        (alone.hypers, alone.env_params, alone.num_updates),
    )
    assert_close(mine.policies, alone.policies, rtol=1e-5)
    last = summarize(
        {name: values[-1:] for name, values in metrics.items() if name != "bad_numbers"}
    )
    assert_rows_agree({name: table[number][name] for name in last}, last)


@pytest.mark.slow
def test_the_table_contains_values_and_scores(whole):
    folder, table = whole
    assert [row["member"] for row in table] == list(range(16))
    assert [(row[RATE], row["env_params.by_match"], row["seed"]) for row in table] == [
        (rate, match, seed) for rate in VALUES[RATE] for match in (0.5, 1.0) for seed in range(4)
    ]
    assert all(
        row["score"] == row["agent/episode_return"] and row["env_steps"] == 192 for row in table
    )
    assert len({row["agent/loss"] for row in table}) == 16
    assert read_table(folder) == table
    assert (folder / "curves.png").stat().st_size > 10_000
    rows = [
        row
        for file in sorted(folder.glob("groups/*/*/metrics.jsonl"))
        for row in read_metrics(file)
    ]
    assert [(row["member"], row["updates"]) for row in rows] == [
        (turn * 8 + i, k) for turn in range(2) for k in (1, 2, 3, 4) for i in range(8)
    ]


@pytest.mark.slow
def test_the_best_member_is_a_run(whole):
    folder, table = whole
    best = max(table, key=lambda row: row["score"])["member"]
    (learner, state), (own, mine) = load_run(folder / "best"), load_member(folder, best)
    assert learner.config == own.config
    assert_same(state, mine)
    assert [row["member"] for row in read_metrics(folder / "best" / "metrics.jsonl")] == [best] * 4


@pytest.mark.slow
def test_each_value_of_a_static_field_has_a_program(tmp_path):
    values = {"policies.agent.network.hidden_sizes": [[8], [4]], "total_env_steps": [48]}
    table = sweep(CONFIG, values, workdir=tmp_path)
    assert [row["policies.agent.network.hidden_sizes"] for row in table] == [[8], [4]]
    kernels = [
        load_member(tmp_path, i)[1].policies["agent"].params["value_head"]["kernel"]
        for i in range(2)
    ]
    assert [kernel.shape for kernel in kernels] == [(8, 1), (4, 1)]


# --- turns, devices, memory ---


@pytest.mark.slow
def test_eight_devices_without_a_folder_give_the_same_scores(whole):
    spread = sweep(CONFIG, VALUES, seeds=2, devices=8)
    alone = [row for row in whole[1] if row["seed"] < 2]
    for i, (row, other) in enumerate(zip(alone, spread, strict=True)):
        assert_rows_agree({**row, "member": i}, other)


# --- bad numbers ---


@pytest.mark.slow
def test_a_member_with_bad_numbers_ends_alone(whole, tmp_path, capsys):
    """Its learning rate overflows; the other members of the program are unchanged."""
    values = {**VALUES, RATE: [1e-2, 1e38]}
    table = sweep(CONFIG, values, seeds=4, workdir=tmp_path, members_at_once=8, quiet=False)
    for row, other in zip(table[:8], whole[1], strict=False):
        assert row["bad_numbers"] is None
        assert row["score"] == other["score"]
    for row in table[8:]:
        assert row["bad_numbers"].startswith(
            "non-finite losses of policy 'agent': try a lower learning_rate"
        )
        assert row["score"] is None
    assert (
        "Warning: 8 of 16 members ended with bad numbers, member 8 with non-finite losses"
        in capsys.readouterr().out
    )
    assert all(
        np.isfinite(leaf).all() for leaf in jax.tree.leaves(load_member(tmp_path, 9)[1].policies)
    )


# --- interrupted ---


@pytest.mark.parametrize(
    ("looks", "kills", "devices"),
    # four looks a turn, one before each chunk; checkpoints after chunks 2 and 4
    [
        (3, True, 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            (0, False, 1), (2, True, 2), (6, False, 1), (8, True, 1),
        )),
    ],
)  # fmt: skip
def test_an_interrupted_sweep_ends_with_the_same_table(whole, tmp_path, looks, kills, devices):
    folder = tmp_path / "sweep"
    again = functools.partial(sweep, CONFIG, VALUES, seeds=4, workdir=folder, members_at_once=8)
    try:
        again(stop=EndsAfter(looks, kills), devices=1)
    except Killed:
        assert kills
    finished = {
        file.parent: file.parent.stat().st_mtime_ns for file in folder.glob("groups/*/*/finished")
    }
    assert len(finished) == looks // 4
    again(resume=True, devices=devices)
    compared = (
        "table.csv",
        "table.jsonl",
        *(f"groups/000/{turn:03d}/metrics.jsonl" for turn in range(2)),
    )
    for name in compared if devices == 1 else ():
        assert (folder / name).read_bytes() == (whole[0] / name).read_bytes(), name
    for row, other in zip(read_table(folder), whole[1], strict=True):
        assert row["score"] == pytest.approx(other["score"], rel=1e-5)
    for turn, written in finished.items():
        assert turn.stat().st_mtime_ns == written  # it was not begun again


@pytest.mark.slow
def test_finished_batches_are_not_trained_again(whole, monkeypatch):
    folder, table = whole
    monkeypatch.setattr(programs, "compile_members", None)
    again = functools.partial(sweep, seeds=4, workdir=folder, members_at_once=8, resume=True)
    assert again(CONFIG, VALUES) == table
    assert again(dataclasses.replace(CONFIG, rollout_unroll=2), VALUES) == table


@pytest.mark.slow
def test_another_sweep_in_the_folder_is_refused(whole):
    folder = whole[0]
    again = functools.partial(sweep, CONFIG, workdir=folder)
    assert "already contains a sweep. Resume it (--resume, in Python resume=True)" in refusal(
        again, VALUES, 2
    )
    assert "members = " in refusal(again, VALUES, 5, resume=True)
    assert "config.num_envs = 16: the sweep in" in refusal(
        sweep,
        CONFIG.__class__(**{**vars(CONFIG), "num_envs": 16}),
        VALUES,
        4,
        workdir=folder,
        resume=True,
    )
    with hold_folder(folder, SWEEP):
        words = refusal(again, VALUES, 4, members_at_once=8, resume=True)
    assert "another sweep is running there. Wait" in words
    assert "contains a run of wdjax train" in refusal(again, VALUES, 2, workdir=folder / "best")
    assert "is not a sweep" in refusal(load_member, folder / "best", 0)
    assert "no checkpoint of member 16" in refusal(load_member, folder, 16)


# --- population-based training ---


@pytest.mark.slow
def test_the_worst_members_copy_the_best():
    scores = jnp.array([3.0, 9.0, 1.0, 7.0, -jnp.inf, 8.0, 5.0, 4.0])
    copies = set()
    for seed in range(20):
        parents = choose_parents(jax.random.key(seed), scores, 0.25)
        others = [i for i in range(8) if i not in (2, 4)]
        assert [int(parents[i]) for i in others] == others
        copies |= {(i, int(parents[i])) for i in (2, 4)}
    assert copies == {(i, best) for i in (2, 4) for best in (1, 5)}


def test_no_member_copies_one_that_is_not_better():
    key = jax.random.key
    parents = choose_parents(key(0), jnp.full(8, -jnp.inf), 0.5)
    assert parents.tolist() == list(range(8))
    equal = choose_parents(key(0), jnp.full(8, 500.0), 0.5)
    assert equal.tolist() == list(range(8))
    one = jnp.full(8, -jnp.inf).at[3].set(1.0)
    for seed in range(8):
        assert set(choose_parents(key(seed), one, 0.5).tolist()) <= set(range(8))
        assert choose_parents(key(seed), one, 0.125).tolist() == [3, *range(1, 8)]


def test_copies_change_their_values_within_bounds():
    copied = jnp.arange(8) % 2 == 1
    bounds = {RATE: (0.015, 0.07), "policies.agent.gamma": (0.0, 1.0)}
    old_rate = jnp.arange(1, 9) / 100
    hypers = {"agent.learning_rate": old_rate, "agent.gamma": jnp.full(8, 0.5)}
    factors = set()
    for seed in range(10):
        new = explore(jax.random.key(seed), hypers, copied, bounds, (0.5, 1.2))
        rate, gamma = new["agent.learning_rate"], new["agent.gamma"] / 0.5
        np.testing.assert_array_equal(rate[::2], old_rate[::2])
        allowed = [np.clip(np.array([0.5, 1.2]) * old, 0.015, 0.07) for old in old_rate]
        assert all(np.isclose(rate[i], allowed[i]).any() for i in (1, 3, 5, 7))
        factors |= {tuple(np.round([float(rate[3] / old_rate[3]), float(gamma[3])], 3))}
    assert factors == {(a, b) for a in (0.5, 1.2) for b in (0.5, 1.2)}  # drawn separately


def test_the_last_score_is_kept_and_copied_without_an_episode():
    before = [{"member": 0, "score": 1.0, "parent": 2}, {"member": 1, "score": 5.0, "parent": None},
              {"member": 2, "score": 7.0, "parent": None},
              {"member": 3, "score": None, "parent": None}]  # fmt: skip
    rows = [{"x": None}, {"x": None}, {"x": 3.0}, {"x": None}]
    assert current_scores(rows, before, "x") == [7.0, 5.0, 3.0, None]
    assert current_scores(rows, [], "x") == [None, None, 3.0, None]
    bad = [{**row, "bad_numbers": "losses"} for row in rows]
    assert current_scores(bad, before, "x") == [None] * 4


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps") / "pbt"
    return folder, evolve(CONFIG, PLAIN, 8, workdir=folder)


@pytest.mark.slow
def test_the_history_contains_parents(population):
    folder, table = population
    assert [(row["updates"], row["member"]) for row in table] == [
        (k, i) for k in (1, 2, 3, 4) for i in range(8)
    ]
    at = {(row["updates"], row["member"]): row for row in table}
    bounds = {RATE: (3e-3, 3e-2), "policies.agent.gamma": (0.5, 0.9)}
    copies = 0
    for (k, i), row in at.items():
        if k == 4:
            assert row["parent"] is None  # no update follows
            continue
        ranked = sorted(range(8), key=lambda j: at[k, j]["score"])
        assert (row["parent"] is not None) == (i in ranked[:2])
        assert row["parent"] in (None, *ranked[6:])
        parent, copies = (
            at[k, i if row["parent"] is None else row["parent"]],
            copies + (row["parent"] is not None),
        )
        for name, (low, high) in bounds.items():
            factors = (1.0,) if row["parent"] is None else (0.8, 1.25)
            allowed = [np.clip(factor * parent[name], low, high) for factor in factors]
            assert np.isclose(at[k + 1, i][name], allowed, rtol=1e-6).any()
        assert (
            at[k + 1, i]["agent/learning_rate"] == at[k + 1, i][RATE]
        )  # the value used in training
    assert copies == 3 * 2
    assert read_table(folder) == table
    best = max(table[-8:], key=lambda row: row["score"])
    assert load_run(folder / "best")[0].config.policies["agent"].learning_rate == best[RATE]
    assert (folder / "curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_killed_population_ends_with_the_same_table(population, tmp_path):
    folder = tmp_path / "pbt"
    with pytest.raises(Killed):
        evolve(CONFIG, PLAIN, 8, workdir=folder, stop=EndsAfter(3, True))
    evolve(CONFIG, PLAIN, 8, workdir=folder, resume=True)
    assert (folder / "table.csv").read_bytes() == (population[0] / "table.csv").read_bytes()


@pytest.mark.slow
def test_members_are_copied_across_devices(population, tmp_path):
    table = evolve(CONFIG, PLAIN, 8, workdir=tmp_path / "pbt", devices=8)
    for row, other in zip(table, population[1], strict=True):
        assert row["parent"] == other["parent"]
        assert row["score"] == pytest.approx(other["score"], rel=1e-3)
    assert "members = 6: must be divisible by 4 (devices)" in refusal(
        evolve, CONFIG, PLAIN, 6, devices=4
    )
    assert "selection.every = 2" in refusal(
        evolve, CONFIG, PLAIN, 8, Selection(every=2), workdir=population[0], resume=True
    )


def test_members_json_lists_the_members_of_a_batch(whole):
    content = json.loads((whole[0] / "groups/000/001/members.json").read_text())
    assert content["size"] == 8
    assert [member["member"] for member in content["members"]] == list(range(8, 16))


# --- ends ---


@pytest.mark.slow
def test_callbacks_see_every_member_and_end_the_sweep(tmp_path):
    seen = []

    def callback(run, row):
        seen.append((row["member"], row["updates"], run.workdir.name, run.config.seed))
        if row["updates"] == 2:
            run.stop()

    table = sweep(CONFIG, {}, seeds=8, workdir=tmp_path, callbacks=[callback])
    assert [row["updates"] for row in table] == [3] * 8  # the device was one chunk ahead
    assert seen == [(i, n, f"{i:03d}", i) for n in (1, 2, 3) for i in range(8)]
    assert [
        row["updates"] for row in sweep(CONFIG, {}, seeds=8, workdir=tmp_path, resume=True)
    ] == [4] * 8


@pytest.mark.slow
def test_a_batch_ends_once_all_members_reach_the_goal(tmp_path):
    goal = dataclasses.replace(CONFIG, stop_at={"episode_length": 1})
    table = sweep(goal, {}, seeds=8, workdir=tmp_path)
    assert [row["updates"] for row in table] == [2] * 8
    assert sweep(goal, {}, seeds=8, workdir=tmp_path, resume=True) == table
    unknown = dataclasses.replace(
        CONFIG, stop_at={"eval/agent/episode_return": 1}
    )  # members are not evaluated
    assert "metric in stop_at" in refusal(sweep, unknown, {})


@pytest.mark.slow
def test_a_sweep_of_a_version_with_fewer_fields_resumes(tmp_path):
    stop = EndsAfter(2)
    sweep(CONFIG, {}, seeds=8, workdir=tmp_path, stop=stop)
    file = tmp_path / "sweep.yaml"
    asked = yaml.safe_load(file.read_text())
    del asked["config"]["stop_at"], asked["config"]["policies"]["agent"]["past_selves"]
    file.write_text(yaml.safe_dump(asked))
    assert [
        row["updates"] for row in sweep(CONFIG, {}, seeds=8, workdir=tmp_path, resume=True)
    ] == [4] * 8
    other = dataclasses.replace(CONFIG, stop_at={"episode_length": 1})
    assert "stop_at" in refusal(sweep, other, {}, seeds=8, workdir=tmp_path, resume=True)
