"""Several devices: the same random numbers as on one, and equal results up to rounding."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from probes import NETWORK, new_policy, tiny_config, tiny_policy

from wdjax.train import (
    NetworkConfig,
    Trainer,
    evaluate,
    load_run,
    make_learner,
    read_metrics,
)
from wdjax.train.algorithms.shuffle import shuffle
from wdjax.train.algorithms.transforms import choose_replicas
from wdjax.train.devices.blocks import step_keys
from wdjax.train.devices.collectives import AXIS, side_by_side
from wdjax.train.learner.validate import validate
from wdjax.train.learning import (
    all_rows,
    any_of,
    average,
    block_numbers,
    largest,
    masked_mean,
    masked_variance,
    new_statistics,
    normalize,
    num_shards,
    own_rows,
    smallest,
    total,
    update_statistics,
)
from wdjax.train.state import sharding as devices_module
from wdjax.train.state.metric import values_of
from wdjax.train.state.rollout_metrics import episode_metrics
from wdjax.train.state.rows import Rollout
from wdjax.train.state.sharding import (
    choose_devices,
    lay_out,
    make_mesh,
    require_all_processes,
    require_devices,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(0)
ON_FOUR = functools.partial(jax.shard_map, mesh=make_mesh(4), check_vma=False)
SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()

SIGNAL = {"by_match": 1.0, "constant": 0.5, "episode_length": 4, "time_limit": True}
RECURRENT = NetworkConfig(hidden_sizes=(8,), activation="tanh", recurrent_size=4)
REPLAY = {
    "buffer_size": 96,
    "batch_size": 16,
    "warmup": 96,
    "updates_per_rollout": 4,
    "n_step": 3,
    "twin_critics": True,
    "policy_delay": 2,
    "target_noise": 0.2,
}

QUICK = tiny_config("probe_signal", {"agent": tiny_policy("PPO")}, env_params=SIGNAL)
# Adam divides a gradient by its magnitude: with a saturated network, a gradient of rounding errors
# alone would move a parameter by a whole step.
CALM = {"optimizer": "sgd", "learning_rate": 0.1}
# 16 replicas in 8 blocks: a block is more than one replica, a device holds one block or several
WIDE = {"num_envs": 16, "num_blocks": 8}
# Each option once. Every entry compiles two large programs, so options share entries.
SEVERAL = {
    "early_stop_and_reset_pool": tiny_config(
        "probe_signal",
        {"agent": tiny_policy("PPO", target_kl=1e-3, epochs=4)},
        env_params=SIGNAL,
        reset=5,
        **WIDE,
    ),
    "normalizers_and_chosen_replicas": tiny_config(
        "probe_shop",
        {
            "pilot": tiny_policy(
                "PPO",
                normalize_observation=True,
                normalize_reward=True,
                neg_pos_env_ratio=0.5,
                **CALM,
            ),
            "clerk": tiny_policy("A2C", normalize_observation=True, **CALM),
        },
        rollout_length=2,
        **WIDE,
    ),
    "self_play_and_memories": tiny_config(
        "probe_shop",
        {
            "pilot": tiny_policy(
                "PPO", past_selves=2, past_selves_every=1, network=RECURRENT, **CALM
            ),
            "clerk": tiny_policy(
                "A2C", past_selves=1, past_selves_every=2, network=RECURRENT, **CALM
            ),
        },
        **WIDE,
    ),
    "decisions": tiny_config(
        "probe_shift",
        {
            "worker": tiny_policy(
                "PPO",
                decisions_only=True,
                normalize_observation=True,
                normalize_reward=True,
                **CALM,
            ),
        },
        rollout_length=5,
        env_params={"late": 1.0, "constant": 1.0},
        **WIDE,
    ),
    "replay_and_a_frozen_policy": tiny_config(
        "probe_pair",
        {
            "pilot": new_policy("DDPG", network=NETWORK, normalize_observation=True, **REPLAY),
            "clerk": tiny_policy("PPO", trainable=False),
        },
        reset="fixed",
        **WIDE,
    ),
}


def plain(tree):
    """Return a tree as NumPy arrays, keys as their data."""
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree
    )


@functools.cache
def three_updates(name, num_devices):
    """Return (learner, first state, state after 3 updates, metrics of each)."""
    config = QUICK if name == "quick" else SEVERAL[name]
    learner = make_learner(dataclasses.replace(config, devices=num_devices))
    first = learner.init(KEY)
    return learner, first, *learner.run(first, num_updates=3)


def assert_same_run(name, num_devices):
    _, first, last, metrics = three_updates(name, 1)
    _, *others = three_updates(name, num_devices)
    jax.tree.map(np.testing.assert_array_equal, plain(first), plain(others[0]))
    mine, theirs = plain(last), plain(others[1])

    def whole_numbers(tree):
        return [leaf for leaf in jax.tree.leaves(tree) if leaf.dtype.kind in "iub"]

    jax.tree.map(np.testing.assert_array_equal, whole_numbers(mine), whole_numbers(theirs))
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
    for policy, learned in mine.policies.items():
        jax.tree.map(near, learned.params, theirs.policies[policy].params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), mine, theirs)
    assert metrics.keys() == others[2].keys()
    for key, values in metrics.items():
        np.testing.assert_allclose(others[2][key], values, rtol=1e-4, atol=1e-5, err_msg=key)


# --- learning ---


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [2, 8])
def test_learning_equals_one_device(num_devices):
    assert_same_run("quick", num_devices)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_learning_with_each_option_equals_one_device(name):
    assert_same_run(name, 4)


@pytest.mark.slow
def test_runs_finish_episodes_and_learn():
    _, first, last, metrics = three_updates("quick", 1)
    assert np.all(metrics["episodes"] > 0)
    moved = jax.tree.map(
        lambda a, b: bool(np.any(a != b)), plain(first).policies, plain(last).policies
    )
    assert all(jax.tree.leaves(moved["agent"].params))


@pytest.mark.parametrize(
    ("name", "num_devices"),
    [("quick", 2), pytest.param("self_play_and_memories", 4, marks=pytest.mark.slow)],
)
def test_rollouts_equal_one_device(name, num_devices):
    (one, first, *_), (several, split, *_) = (three_updates(name, n) for n in (1, num_devices))
    (after, rollout), (others_after, other) = one.rollout(first), several.rollout(split)
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(near, plain((after.replicas, rollout)), plain((others_after.replicas, other)))
    assert {shard.data.shape for shard in other.over.addressable_shards} == {
        (one.config.rollout_length, one.config.num_envs // num_devices)
    }


def test_policies_are_equal_on_all_devices_and_replicas_are_split():
    learner, _, last, metrics = three_updates("quick", 2)
    for leaf in jax.tree.leaves((last.policies, metrics)):
        assert len(leaf.addressable_shards) == 2
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, leaf.addressable_shards[0].data)
    for leaf in jax.tree.leaves((last.replicas, last.obs, last.live)):
        assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {
            learner.config.num_envs // 2
        }


@pytest.mark.slow
def test_one_device_runs_the_plain_program():
    learner, first, *_ = three_updates("quick", 1)
    text = learner.update.lower(first).as_text()
    for word in ("all_reduce", "all_gather", "manual", AXIS):
        assert word not in text
    learner, first, *_ = three_updates("quick", 2)
    text = learner.update.lower(first).as_text()
    assert "all_reduce" in text
    assert "all_gather" not in text


def test_layout_has_a_place_for_every_part_of_the_state():
    state = jax.eval_shape(make_learner(QUICK).init, KEY)
    places = jax.tree.map(
        lambda place, part: jax.tree.map(lambda _: place, part), lay_out("split", "whole"), state
    )
    assert {name for name in vars(places) if "split" in jax.tree.leaves(getattr(places, name))} == {
        "replicas", "obs", "live"
    }  # fmt: skip


# --- reductions on 4 devices with 2 rows each ---

VALUES = np.array([1.0, 2.0, 6.0, 0.0, 5.0, 9.0, 9.0, 9.0], np.float32)
# one device has no live row, the others one or two
LIVE = np.array([1, 1, 1, 0, 1, 0, 0, 0], bool)


def on_four(function, *arguments, out=WHOLE):
    """Call a function with rows split over four devices."""
    return jax.jit(ON_FOUR(function, in_specs=SPLIT, out_specs=out))(*arguments)


def test_masked_mean_is_over_all_devices():
    assert on_four(masked_mean, VALUES, LIVE) == 14 / 4
    assert on_four(masked_mean, VALUES, np.zeros(8, bool)) == 0
    expected = normalize(VALUES, LIVE)
    np.testing.assert_allclose(on_four(normalize, VALUES, LIVE, out=SPLIT), expected, rtol=1e-6)


def test_gradient_is_over_all_devices():
    def sums(values, live):
        own = jax.value_and_grad(lambda w: jnp.sum(jnp.where(live, (w * values) ** 2, 0.0)))(3.0)
        return total({"own": own, "count": jnp.sum(live)})

    # the squares are 1, 4, 36 and 25
    assert on_four(sums, VALUES, LIVE) == {"own": pytest.approx((9 * 66, 6 * 66)), "count": 4}


def test_variance_is_over_all_devices():
    """A sum of squares less the square of the mean would lose all of it at a mean of 10,000."""
    values = VALUES + 1e4
    assert on_four(masked_variance, values, LIVE) == pytest.approx(
        np.var(values[LIVE].astype(float)), rel=1e-4
    )
    assert on_four(masked_variance, values, np.zeros(8, bool)) == 0


def test_statistics_merge_all_rows():
    expected = update_statistics(new_statistics(), VALUES, LIVE)
    found = on_four(
        lambda values, live: update_statistics(new_statistics(), values, live), VALUES, LIVE
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


def test_flags_and_sums_of_all_devices():
    def facts(live):
        return (
            any_of(live),
            total(jnp.sum(live)),
            average(jnp.sum(live, dtype=jnp.float32)),
            jnp.int32(num_shards()),
        )

    last = np.arange(8) == 7  # on the last device only
    assert on_four(facts, last) == (True, 1, 0.25, 4)
    assert on_four(facts, np.zeros(8, bool)) == (False, 0, 0, 4)
    assert facts(last) == (True, 1, 1, 1)


def test_side_by_side_values_and_extremes():
    def facts(values):
        own = jnp.sum(values)
        return side_by_side({"sum": own}), smallest(own), largest(own)

    values = np.array([1, 2, -np.inf, 0, 4, 3, 9, np.nan], np.float32)
    sums, *_ = on_four(facts, values)
    np.testing.assert_array_equal([own["sum"] for own in sums], [3, -np.inf, 7, np.nan])
    values[-1] = 0
    assert on_four(facts, values)[1:] == (-np.inf, 9)
    assert facts(VALUES)[1:] == (41, 41)


def test_episodes_are_over_all_devices():
    @jax.jit
    @functools.partial(ON_FOUR, in_specs=PartitionSpec(None, AXIS), out_specs=WHOLE)
    def metrics(over, length):
        return values_of(
            episode_metrics(Rollout({}, {}, {}, {}, over, {}, length, {"tags": 2 * length}), {})
        )

    over, length = np.array([[0, 0, 0, 0, 0, 1, 0, 1]], bool), np.arange(8)[None]
    expected = {
        "episodes": 2,
        "episode_length": 6,
        "episode_length_min": 5,
        "episode_length_max": 7,
        "episode_length_std": 1,
        "episode_tags": 12,
    }
    assert metrics(over, length) == expected
    nothing = metrics(np.zeros_like(over), length)
    assert nothing.pop("episodes") == 0
    assert np.isnan(list(nothing.values())).all()


def test_rows_are_gathered_and_split():
    rows = np.arange(8)
    np.testing.assert_array_equal(on_four(all_rows, rows), rows)
    np.testing.assert_array_equal(on_four(lambda x: own_rows(all_rows(x)), rows, out=SPLIT), rows)


def test_blocks_keep_their_numbers_and_keys():
    np.testing.assert_array_equal(
        jax.jit(ON_FOUR(lambda: block_numbers(2), in_specs=(), out_specs=SPLIT))(), range(8)
    )
    draw = lambda num_blocks: jax.random.key_data(step_keys(KEY, 3, 2, num_blocks))  # noqa: E731
    found = ON_FOUR(
        functools.partial(draw, 2), in_specs=(), out_specs=PartitionSpec(None, None, AXIS)
    )
    np.testing.assert_array_equal(jax.jit(found)(), draw(8))


@pytest.mark.slow
def test_minibatches_equal_those_of_one_device():
    steps, replicas, agents = 3, 8, 2
    shape = (steps, replicas, agents)
    rows = np.arange(48).reshape(shape)  # the number that a row has in the whole rollout

    def take(rows):
        return rows.reshape(-1)[shuffle(KEY, rows.shape, 2, 2)]

    found = jax.jit(
        ON_FOUR(take, in_specs=PartitionSpec(None, AXIS), out_specs=PartitionSpec(None, AXIS))
    )(rows)
    np.testing.assert_array_equal(found, shuffle(KEY, shape, 8, 2))


@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0])
def test_replicas_are_chosen_among_all(ratio):
    positive = np.zeros(16, bool)
    positive[[0, 1, 3, 9]] = True  # the devices have 3, 0, 1 and 0
    usable = ~np.isin(np.arange(16), [2, 14])
    found = on_four(
        lambda *flags: choose_replicas(KEY, *flags, ratio, 2), positive, usable, out=SPLIT
    )
    assert found.sum() == 4 + int(4 * ratio)
    np.testing.assert_array_equal(found, choose_replicas(KEY, positive, usable, ratio, 8))


# --- number of devices ---


def test_a_cpu_counts_as_one_device():
    assert choose_devices(QUICK) == 1


DEVICES_BLOCKS_CHOSEN = [(1, 8, 1), (8, 8, 8), (6, 8, 4), (8, 6, 6), (4, 6, 3), (8, 1, 1)]


@pytest.mark.parametrize(("there", "blocks", "chosen"), DEVICES_BLOCKS_CHOSEN)
def test_takes_the_most_devices_that_divide_the_blocks(monkeypatch, there, blocks, chosen):
    monkeypatch.setattr(devices_module.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(devices_module.jax, "device_count", lambda: there)
    assert (
        choose_devices(dataclasses.replace(QUICK, num_envs=24 * blocks, num_blocks=blocks))
        == chosen
    )


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"devices = 3: must be a divisor of num_blocks = 8"):
        validate(dataclasses.replace(QUICK, devices=3))
    with pytest.raises(ValueError, match=r"devices = -1: must be a divisor"):
        validate(dataclasses.replace(QUICK, devices=-1))
    many = dataclasses.replace(QUICK, num_envs=16, num_blocks=16, devices=16)
    found = r"devices = 16: must be at most 8: jax finds 8 devices \(cpu\)\. Lower devices"
    with pytest.raises(
        ValueError, match=rf"{found}, or set XLA_FLAGS=--xla_force_host_platform_device_count=16$"
    ):
        make_learner(many)


def test_devices_that_a_gpu_host_lacks_are_refused_without_a_cpu_remedy(monkeypatch):
    monkeypatch.setattr(devices_module.jax, "default_backend", lambda: "gpu")
    with pytest.raises(
        ValueError, match=r"must be at most 1: jax finds 1 device \(cpu\)\. Lower devices$"
    ):
        require_devices(2, 1)


# --- runs, evaluations and populations ---


@pytest.fixture(scope="module")
def moved_run(tmp_path_factory):
    """Return the folder of a run on 4 devices, resumed on 2, and its last state."""
    folder = tmp_path_factory.mktemp("moved") / "run"
    config = dataclasses.replace(
        QUICK, updates_per_chunk=1, checkpoint_every=1, best_metric="none", devices=4
    )
    half = dataclasses.replace(config, total_env_steps=2 * 48)
    Trainer(half, folder, quiet=True, pictures=False).train()
    config = dataclasses.replace(config, devices=2, total_env_steps=3 * 48)
    return folder, Trainer(config, folder, resume=True, quiet=True, pictures=False).train()


@pytest.mark.slow
def test_run_resumes_on_another_number_of_devices(moved_run):
    folder, state = moved_run
    assert len(jax.tree.leaves(state.policies)[0].sharding.device_set) == 2
    assert QUICK.seed == 0  # as KEY
    *_, alone, metrics = three_updates("quick", 1)
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
    jax.tree.map(near, plain(alone).policies, plain(state).policies)
    jax.tree.map(np.testing.assert_array_equal, plain((alone.live, alone.obs, alone.key)),
                 plain((state.live, state.obs, state.key)))  # fmt: skip
    losses = [row["agent/loss"] for row in read_metrics(Path(folder) / "metrics.jsonl")]
    np.testing.assert_allclose(losses, metrics["agent/loss"], rtol=1e-4)


@pytest.mark.slow
def test_run_of_several_devices_loads_on_one(moved_run):
    learner, state = load_run(moved_run[0])
    assert learner.setup.num_devices == 1
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state)} == {1}
    several = make_learner(dataclasses.replace(learner.config, devices=2))
    mine, theirs = (
        evaluate(one, its, KEY, 8) for one, its in ((learner, state), (several, moved_run[1]))
    )
    np.testing.assert_array_equal(mine.episode_return["agent"], theirs.episode_return["agent"])


@pytest.mark.slow
def test_a_population_runs_on_several_devices():
    learner = make_learner(dataclasses.replace(QUICK, devices=2))
    keys = jnp.stack([KEY, jax.random.key(1)])
    states, metrics = jax.jit(jax.vmap(functools.partial(learner.run, num_updates=3)))(
        jax.vmap(learner.init)(keys)
    )
    *_, last, alone = three_updates("quick", 2)
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda many, one: near(many[0], one), plain(states).policies, plain(last).policies)
    np.testing.assert_array_equal(metrics["episodes"][0], alone["episodes"])


# --- several processes ---


PROCESSES_DEVICES_BLOCKS_CHOSEN = [
    (2, 8, 8, 8),
    (2, 8, 6, 6),
    (2, 6, 8, 4),
    (3, 12, 6, 6),
    (2, 2, 8, 2),
]


@pytest.mark.parametrize(("count", "there", "blocks", "chosen"), PROCESSES_DEVICES_BLOCKS_CHOSEN)
def test_every_process_has_equally_many_devices(monkeypatch, count, there, blocks, chosen):
    monkeypatch.setattr(devices_module.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(devices_module.jax, "device_count", lambda: there)
    monkeypatch.setattr(devices_module.jax, "process_count", lambda: count)
    config = dataclasses.replace(QUICK, num_envs=24 * blocks, num_blocks=blocks)
    assert choose_devices(config) == chosen
    monkeypatch.setattr(devices_module.jax, "default_backend", lambda: "cpu")
    assert choose_devices(config) == count


def test_refuses_devices_that_processes_cannot_share(monkeypatch):
    monkeypatch.setattr(devices_module.jax, "process_count", lambda: 2)
    with pytest.raises(
        ValueError, match="num_blocks = 3: must be a multiple of 2, the number of processes"
    ):
        choose_devices(dataclasses.replace(QUICK, num_envs=9, num_blocks=3))
    with pytest.raises(
        ValueError, match="devices = 3: must be a multiple of 2, the number of processes"
    ):
        choose_devices(dataclasses.replace(QUICK, num_envs=9, num_blocks=9, devices=3))
    with pytest.raises(
        ValueError, match="devices = 1: must be a multiple of 2, the number of processes"
    ):
        require_all_processes(choose_devices(dataclasses.replace(QUICK, devices=1)))
