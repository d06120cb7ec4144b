"""Populations: members equal their runs; saving, selecting and stopping change no number."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import tiny_config, tiny_policy
from refusals import refusal
from stopping import EndsAfter, Killed
from tiny_runs import small_config

import wdjax.train.population.programs as programs_module
from wdjax.train import (
    Population,
    Trainer,
    evaluate,
    load_config,
    make_learner,
    read_metrics,
    with_hypers,
)
from wdjax.train.devices.memory import bytes_free, bytes_needed

pytestmark = pytest.mark.usefixtures("quick_compile")

CONFIG = tiny_config(
    "probe_signal",
    {"agent": tiny_policy("A2C")},
    env_params={"constant": 1.0, "by_match": 0.5, "episode_length": 4, "time_limit": True},
    total_env_steps=6 * 48,
    updates_per_chunk=2,
    checkpoint_every=1,
)
RATES = (1e-2, 3e-2, 1e-1, 3e-3)


def with_rate(config, rate, **changes):
    policy = dataclasses.replace(config.policies["agent"], learning_rate=rate)
    return dataclasses.replace(config, policies={"agent": policy}, **changes)


CONFIGS = [with_rate(CONFIG, rate, seed=seed) for seed, rate in enumerate(RATES)]


@pytest.fixture(scope="module")
def population():
    return Population(CONFIGS)


def with_programs_of(population, configs):
    """Return another population that uses the compiled programs of a first one."""
    (other,) = Population.group(configs, known=[population])
    return other


@pytest.fixture(scope="module")
def states(population):
    return population.init()


@pytest.fixture(scope="module")
def trained(population, states):
    """Return (states, metrics) after three updates."""
    return population.run(states, 3)


def plain(tree):
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree
    )


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


def assert_close(a, b):
    compare = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)  # noqa: E731
    jax.tree.map(compare, plain(a), plain(b))


# --- in memory ---


@pytest.mark.slow
def test_a_member_equals_its_run(population, states, trained):
    place = 2
    learner, first = population.member(states, place)
    assert learner.config == dataclasses.replace(CONFIGS[place], devices=1)
    own = make_learner(CONFIGS[place])
    start = own.init(jax.random.key(place))
    assert_same(first, start)
    alone, metrics = own.run(start, num_updates=3)
    _, member = population.member(trained[0], place)
    assert_same((member.key, member.replicas, member.obs), (alone.key, alone.replicas, alone.obs))
    assert_same((member.hypers, member.num_updates), (alone.hypers, alone.num_updates))
    assert_close(member.policies, alone.policies)
    assert trained[1].keys() == metrics.keys()
    assert_close({name: values[place] for name, values in trained[1].items()}, metrics)


@pytest.mark.slow
def test_two_short_runs_equal_one_long_run(population, states, trained):
    middle, first = population.run(states, 1)
    end, rest = population.run(middle, 2)
    assert_same(end, trained[0])
    joined = {name: np.concatenate([first[name], rest[name]], axis=1) for name in first}
    assert_same(joined, trained[1])
    assert all(values.shape == (4, 3) for values in joined.values())
    assert not states.num_updates.is_deleted()


@pytest.mark.slow
def test_select_copies_everything_but_the_key(population, trained):
    before, _ = trained
    copies = population.select(before, [2, 1, 2, 0])
    assert_same(copies.key, before.key)
    for name in ("policies", "hypers", "replicas", "obs", "memory", "env_params"):
        chosen = jax.tree.map(lambda leaf: leaf[jnp.array([2, 1, 2, 0])], getattr(before, name))
        assert_same(getattr(copies, name), chosen)
    after, _ = population.run(copies, 1)
    rewards = plain(after.replicas)
    equal = [np.array_equal(leaf[0], leaf[2]) for leaf in jax.tree.leaves(rewards)]
    assert not all(equal)  # copies use other random numbers


@pytest.mark.slow
def test_hyperparameters_of_copies_can_change(population, trained):
    copies = population.select(trained[0], np.array([1, 1, 1, 1]))
    np.testing.assert_allclose(population.hypers(copies)["agent.learning_rate"], 3e-2)
    rates = jnp.array([1e-3, 1e-2, 1e-1, 1.0])
    changed = with_hypers(copies, **{"agent.learning_rate": rates})
    after, _ = population.run(changed, 1)
    np.testing.assert_array_equal(population.hypers(after)["agent.learning_rate"], rates)
    kernels = np.asarray(after.policies["agent"].params["value_head"]["kernel"])
    assert len({kernel.tobytes() for kernel in kernels}) == 4


@pytest.mark.slow
def test_evaluate_plays_each_member_as_its_run(population, trained):
    episodes = population.evaluate(trained[0], jax.random.key(5), num_episodes=16, max_steps=10)
    assert len(episodes) == 4
    for place in (0, 3):
        learner, state = population.member(trained[0], place)
        own = evaluate(learner, state, jax.random.key(5), num_episodes=16)
        assert_same(episodes[place].episode_return, own.episode_return)


def test_group_makes_a_population_for_each_program():
    longer = dataclasses.replace(CONFIGS[1], rollout_length=4)
    groups = Population.group([CONFIGS[0], longer, CONFIGS[2]])
    assert [[own["member"] for own in group.members] for group in groups] == [[0, 2], [1]]
    again = Population.group([CONFIGS[3], longer], known=groups)
    assert [group.programs for group in again] == [group.programs for group in groups]
    batches = groups[0].batches(1)
    assert [[own["member"] for own in batch.members] for batch in batches] == [[0], [2]]
    assert [config.seed for config in batches[1].configs] == [2]


@pytest.mark.slow
def test_the_last_member_fills_a_batch(states):
    *_, last = Population.group(CONFIGS[:3])[0].batches(2)
    assert (len(last.configs), last.size) == (1, 2)
    own = last.init()
    assert_same(own, jax.tree.map(lambda leaf: leaf[jnp.array([2, 2])], states))


def test_split_creates_its_folder(population, tmp_path):
    folder = tmp_path / "new" / "folder"
    assert [place for place, _ in population.split(folder, len(CONFIGS))] == [folder / "000"]
    content = json.loads((folder / "size.json").read_text())
    assert content == {"members_at_once": len(CONFIGS)}


@pytest.mark.parametrize("preset", ["cartpole_ppo", "pendulum_ddpg"])
def test_grouping_puts_nothing_on_the_device(preset):
    """A GPU that fails would raise here, in the words of jax."""
    base = load_config(preset)
    configs = [
        dataclasses.replace(base, **own) for own in ({"seed": 1}, {"seed": 2}, {"num_envs": 16})
    ]
    with jax.transfer_guard("disallow_explicit"):
        configs = programs_module.group_by_program(list(map(in_env_steps_of, configs)))
    assert [places for _, places in configs] == [[0, 1], [2]]


def in_env_steps_of(config):
    from wdjax.train.config.facts import in_env_steps

    return in_env_steps(config, config.total_env_steps)


# --- errors ---


@pytest.mark.parametrize(
    ("configs", "options", "words"),
    [
        ([], {}, "configs = []: must be at least one configuration"),
        (CONFIG, {}, "configs = "),
        (["cartpole_ppo"], {}, "config = 'cartpole_ppo': must be a TrainConfig"),
        (
            [CONFIG, dataclasses.replace(CONFIG, rollout_length=4)],
            {},
            "configs[1]: rollout_length = 4: must be equal in all members",
        ),
        (CONFIGS[:3], {"devices": 2}, "members = 3: must be divisible by 2 (devices)"),
        (CONFIGS, {"devices": 9}, "devices = 9: must be at most 8"),
        (CONFIGS, {"members": [{"member": 0}]}, "members = 1: must be 4, as configs"),
        ([with_rate(CONFIG, -1.0)], {}, "policies.agent.learning_rate = -1.0: must be"),
        (
            [dataclasses.replace(CONFIG, stop_at={"agent/episode_retrun": 1.0})],
            {},
            "did you mean 'agent/episode_return'",
        ),
        ([CONFIG], {"trust": "mine"}, "trust = 'mine': must be a list of module names"),
    ],
)
def test_invalid_members_are_refused(configs, options, words):
    assert words in refusal(Population, configs, **options)


@pytest.mark.slow
def test_invalid_arguments_are_refused(population, states, tmp_path):
    one = population.member(states, 0)[1]
    few = jax.tree.map(lambda leaf: leaf[:3], states)
    allowed = "must be (4,), one state for each member"
    assert f"shape of states.num_updates = (): {allowed}" in refusal(population.run, one, 1)
    assert f"shape of states.num_updates = (3,): {allowed}" in refusal(population.run, few, 1)
    assert "states = 3: must be a TrainState" in refusal(population.run, 3, 1)
    assert "num_updates = 0: must be at least 1" in refusal(population.run, states, 0)
    assert "num_updates = 1.0: must be a whole number" in refusal(population.run, states, 1.0)
    for indices in ([0, 1, 2], [0, 1, 2, 4], [0, 1, 2, -1], [0.0, 1.0, 2.0, 3.0]):
        words = refusal(population.select, states, indices)
        assert words == f"indices = {indices}: must be 4 numbers from 0 to 3"
    assert "place = 4: must be at least 0 and at most 3" in refusal(population.member, states, 4)
    assert "contains no checkpoint of a population" in refusal(population.resume, tmp_path)
    assert "every = 0: must be at least 1 with `after`" in refusal(
        population.train, tmp_path, after=lambda *own: own[:2]
    )
    assert list(tmp_path.iterdir()) == []


# --- in a folder ---


def test_saved_states_continue_exactly(population, states, trained, tmp_path):
    middle, _ = population.run(states, 1)
    population.save(tmp_path, middle)
    again = Population(CONFIGS)
    assert_same(again.resume(tmp_path), middle)
    assert_same(again.run(again.resume(tmp_path), 2)[0], trained[0])
    copies = population.select(middle, [3, 3, 3, 3])
    population.save(tmp_path, copies)  # after the same number of updates
    assert_same(again.resume(tmp_path), copies)
    other = Population([*CONFIGS[:3], with_rate(CONFIG, 0.5, seed=3)])
    for refused in (other.resume, lambda folder: other.save(folder, middle), other.train):
        words = refusal(refused, tmp_path)
        assert f"{tmp_path}/members.json lists different members than this population" in words


@pytest.fixture(scope="module")
def whole(population, tmp_path_factory):
    """Return the folder of a population that was trained without interruption."""
    folder = tmp_path_factory.mktemp("populations") / "whole"
    assert population.train(folder)
    return folder


def test_train_writes_a_row_for_each_member_and_chunk(population, states, whole):
    rows = read_metrics(whole)
    assert [(row["updates"], row["member"]) for row in rows] == [
        (updates, member) for updates in (2, 4, 6) for member in range(4)
    ]
    end, _ = population.run(states, 6)
    assert_same(population.resume(whole), end)
    assert sorted(path.name for path in whole.iterdir()) == [
        "checkpoints", "finished", "members.json", "metrics.jsonl",
    ]  # fmt: skip
    content = json.loads((whole / "members.json").read_text())
    assert content["size"] == 4
    assert content["members"][2]["config"]["seed"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("looks", "kills"), [(1, False), (2, True)])
def test_interrupted_training_ends_with_the_same_numbers(population, whole, tmp_path, looks, kills):
    try:
        assert not population.train(tmp_path / "run", stop=EndsAfter(looks, kills))
    except Killed:
        assert kills
    again = with_programs_of(population, CONFIGS)
    assert again.train(tmp_path / "run")
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert_same(again.resume(tmp_path / "run"), population.resume(whole))
    written = (tmp_path / "run/finished").stat().st_mtime_ns
    assert again.train(tmp_path / "run")  # complete: nothing is done
    assert (tmp_path / "run/finished").stat().st_mtime_ns == written


@pytest.mark.slow
def test_training_can_be_extended(population, states, whole, tmp_path):
    assert population.train(tmp_path, num_updates=2)
    assert population.train(tmp_path, num_updates=6)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_after_selects_members_between_chunks(population, states, tmp_path):
    calls = []

    def after(states, rows, before):
        calls.append([row["updates"] for row in before])
        best = max(range(4), key=lambda i: rows[i]["agent/episode_return"])
        return population.select(states, [best] * 4), [{**row, "parent": best} for row in rows]

    population.train(tmp_path, after=after, every=3)
    assert calls == [[], [2] * 4, [3] * 4, [4] * 4]
    rows = read_metrics(tmp_path)
    assert [row["updates"] for row in rows[::4]] == [2, 3, 4, 6]
    rates = population.hypers(population.resume(tmp_path))["agent.learning_rate"]
    assert len(set(np.asarray(rates).tolist())) == 1


def test_callbacks_see_every_member_and_end_training(population, tmp_path):
    rows = []

    def callback(run, row):
        rows.append((run.workdir.name, run.config.seed, row["updates"]))
        return row["updates"] == 2 and row["member"] == 3

    said = []
    assert not population.train(tmp_path, callbacks=[callback, "csv"], say=said.append)
    assert rows[:4] == [(f"00{i}", i, 2) for i in range(4)]
    assert [line.split(":")[0] for line in said] == ["A callback stopped training"]
    assert len((tmp_path / "members/001/metrics.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_members_that_reach_the_goal_end_training(tmp_path):
    goal = {"agent/episode_return": -100.0}
    population = Population([dataclasses.replace(own, stop_at=goal) for own in CONFIGS])
    assert population.train(tmp_path)
    assert {row["updates"] for row in read_metrics(tmp_path)} < {2, 4, 6}
    assert population.train(tmp_path)


@pytest.mark.slow
def test_a_member_with_bad_numbers_ends_alone(population, whole, tmp_path):
    population = with_programs_of(population, [with_rate(CONFIG, 1e38, seed=0), *CONFIGS[1:]])
    said = []
    population.train(tmp_path, say=said.append)
    assert said == [f"Member 0 ended: {read_metrics(tmp_path)[0]['bad_numbers']}"]
    rows = [row for row in read_metrics(tmp_path) if row["member"]]
    assert rows == [row for row in read_metrics(whole) if row["member"]]
    assert all(row["bad_numbers"] for row in read_metrics(tmp_path) if not row["member"])


def test_the_folder_of_a_run_is_refused(population, tmp_path):
    Trainer(small_config(), tmp_path)
    assert "contains a run of wdjax train" in refusal(population.train, tmp_path)


# --- devices and memory ---


@pytest.mark.slow
def test_devices_do_not_communicate(trained):
    population = Population(CONFIGS, devices=4)
    states = population.init()
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(states)} == {4}
    end, metrics = population.run(states, 3)
    assert_close(end, trained[0])
    assert_close(metrics, trained[1])
    (program,) = population.programs.compiled.values()
    for word in ("all-reduce", "all-gather", "collective-permute", "all-to-all"):
        assert word not in program.as_text()
    copies = population.select(end, [3, 2, 1, 0])
    assert_same(copies.policies, jax.tree.map(lambda leaf: leaf[::-1], end.policies))
    assert population.run(copies, 1)[1]["episodes"].shape == (4, 1)


@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_batches_are_even_and_few(num_devices):
    for members in range(1, 40):
        for most in range(1, 45):
            size = programs_module.even_size(members, most, num_devices)
            limit = max(most // num_devices, 1) * num_devices
            batches = -(-members // limit)
            assert size % num_devices == 0
            assert size <= limit
            assert -(-members // size) <= batches
            assert size - num_devices < -(-members // batches)


def test_devices_and_memory():
    assert Population(CONFIGS).num_devices == 1  # the devices of a CPU share its cores
    assert programs_module.choose_num_devices(8) == 8
    assert programs_module.most_devices(7) == 1
    assert 0 < 8 * bytes_free(8) <= 2 * bytes_free(1)  # free memory changes between two calls
    assert jax.device_count() == 8


@pytest.mark.slow
def test_fit_finds_the_members_that_memory_allows(monkeypatch):
    configs = [dataclasses.replace(CONFIG, seed=seed) for seed in range(16)]
    (group,) = Population.group(configs)
    group.fit(4)
    (program,) = group.programs.compiled.values()
    shapes = jax.eval_shape(lambda states: states.replace(key=0), group.batches(4)[0].shapes)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    assert bytes_needed(program) > 2 * size  # a copy is saved

    @dataclasses.dataclass
    class Program:
        size: int

        def memory_analysis(self):
            return types.SimpleNamespace(
                argument_size_in_bytes=5 * self.size,
                output_size_in_bytes=0,
                temp_size_in_bytes=100,
                generated_code_size_in_bytes=0,
                alias_size_in_bytes=0,
            )

    tried = []

    def compile_members(setup, states, most, num_devices):
        tried.append(states.num_updates.shape[0])
        return Program(tried[-1]), 0.0

    def fit(free, devices=1, most=0):
        monkeypatch.setattr(programs_module, "bytes_free", lambda devices: free)
        (population,) = Population.group(configs, devices)
        size = population.fit(most)
        assert population.programs.compiled == {size: Program(size)}
        return size

    monkeypatch.setattr(programs_module, "compile_members", compile_members)
    for free, devices, size in (
        (260, 1, 16), (259, 1, 8), (150, 1, 4), (115, 1, 1), (260, 8, 16), (180, 8, 8),
    ):  # fmt: skip
        assert fit(free, devices) == size
        assert fit(free, devices, most=8) == 8
    assert "Not even one member fits" in refusal(fit, 109)
    assert tried[:3] == [16, 8, 16]
