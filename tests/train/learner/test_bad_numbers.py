"""NaN and infinity in each quantity and algorithm: state that is kept, messages, and continuing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_clock
from flax import struct
from probes import (
    NETWORK,
    Pair,
    PairParams,
    change_policy,
    new_policy,
    tiny_config,
    tiny_policy,
)

from wdjax import envs
from wdjax.train import (
    BadNumbersError,
    Trainer,
    describe_bad_numbers,
    load_run,
    make_learner,
    read_metrics,
    with_hypers,
)
from wdjax.train.learner.bad_numbers import (
    QUANTITIES,
    bad_in_a_row,
    ends_run,
    first_bad,
    look_at_steps,
    sound_updates,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

KEY = jax.random.key(0)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
BAD = 4  # the first update with a bad number, of rollouts of 6 steps


@struct.dataclass
class BrittleParams(PairParams):
    """The step is counted over episodes: all replicas reach it together."""

    bad_reward: float = 0.0  # added to the pilots' rewards in that step
    bad_obs: float = 0.0  # added to the clerks' observation after it
    step: int = 6 * (BAD - 1) + 2
    episode_length: int = 30


class Brittle(Pair):
    """`Pair`, but in one step of an episode a number is added to rewards or observations."""

    @property
    def default_params(self):
        return BrittleParams()

    def step(self, key, state, action, params):
        obs, state, reward, *rest = super().step(key, state, action, params)
        now = state.time == params.step
        pilot = reward["pilot"] + jnp.where(now, params.bad_reward, 0.0)
        return obs, state, {**reward, "pilot": pilot}, *rest

    def observe(self, state, params):
        obs = super().observe(state, params)
        signal = obs["clerk"]["signal"] + jnp.where(state.time == params.step, params.bad_obs, 0.0)
        return {**obs, "clerk": {**obs["clerk"], "signal": signal}}


@pytest.fixture(scope="module", autouse=True)
def brittle(registered_probes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(envs._REGISTRY, "probe_brittle", Brittle)
        yield


REPLAY = {
    "buffer_size": 192,
    "batch_size": 16,
    "warmup": 128,
    "updates_per_rollout": 2,
    "n_step": 3,
}
PILOTS = {
    "A2C": tiny_policy("A2C", learning_rate=0.01),
    "DDPG": new_policy("DDPG", network=NETWORK, learning_rate=0.01, **REPLAY),
    "SAC": new_policy("SAC", network=NETWORK, learning_rate=0.01, **REPLAY),
}
CLERK = tiny_policy("PPO", learning_rate=0.01, normalize_observation=True, normalize_reward=True)


def config_of(pilot, params=None, **changes):
    policies = {"pilot": PILOTS[pilot], "clerk": CLERK}
    return tiny_config("probe_brittle", policies, env_params=params or {}, **changes)


@functools.cache
def learner_of(pilot, on_bad_numbers="stop"):
    return make_learner(config_of(pilot, on_bad_numbers=on_bad_numbers, devices=1))


def play(learner, state, num_updates):
    """Return (state, metrics) as `run` does, by a program of one update, which compiles faster."""
    rows = []
    for _ in range(num_updates):
        state, metrics = learner.update(state)
        rows.append(metrics)
    return state, jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def with_params(state, **changes):
    """Return a state with other environment params, which are traced: nothing recompiles."""
    params = {
        name: jnp.asarray(value, getattr(state.env_params, name).dtype)
        for name, value in changes.items()
    }
    return state.replace(env_params=state.env_params.replace(**params))


def plain(tree):
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(
        lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree
    )


def counted(state):
    """Return a state without the rows of replay buffers, where unused ones may differ."""
    memory = dict(state.memory)
    for name, own in memory.items():
        if own.replay is not None:
            ring = own.replay.ring.replace(rows=None)
            memory[name] = own.replace(replay=own.replay.replace(ring=ring))
    return plain(state.replace(memory=memory))


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def words(learner, metrics):
    return [
        describe_bad_numbers(learner.setup, code) for code in np.asarray(metrics["bad_numbers"])
    ]


# --- detection ---

ROWS = [
    ("bad_reward", "non-finite rewards of policy 'pilot'"),
    ("bad_obs", "non-finite observations of policy 'clerk'"),
]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "said"), ROWS)
@pytest.mark.parametrize("pilot", ["A2C", slow("DDPG"), slow("SAC")])
def test_state_before_the_first_bad_row_is_kept(pilot, name, said, value):
    learner = learner_of(pilot)
    first = with_params(learner.init(KEY), **{name: value})
    last, metrics = play(learner, first, 6)
    np.testing.assert_array_equal(metrics["bad_numbers"] > 0, np.arange(6) >= BAD - 1)
    assert all(sentence.startswith(said) for sentence in words(learner, metrics)[BAD - 1 :])
    good, _ = play(learner, first, BAD - 1)
    assert_same(counted(last), counted(good))
    assert int(last.num_updates) == BAD - 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(plain(last.policies)))
    # the replay buffer is restored, too: without the cause both continue alike
    mended, fine = (play(learner, with_params(state, **{name: 0.0}), 3) for state in (last, good))
    assert_same(counted(mended[0]), counted(fine[0]))
    assert not np.any(mended[1]["bad_numbers"])


STEPS = [
    ("A2C", {"pilot.value_coefficient": np.nan}, "non-finite losses of policy 'pilot'"),
    ("A2C", {"clerk.entropy_coefficient": np.inf}, "non-finite losses of policy 'clerk'"),
    # a later gradient step of the same update would already report its loss
    ("A2C", {"pilot.learning_rate": np.inf}, "non-finite parameters of policy 'pilot'"),
    ("A2C", {"pilot.max_grad_norm": np.nan}, "non-finite parameters of policy 'pilot'"),
    slow("DDPG", {"pilot.critic_learning_rate": np.inf}, "non-finite losses of policy 'pilot'"),
    slow("DDPG", {"pilot.gamma": np.nan}, "non-finite losses of policy 'pilot'"),
    slow("SAC", {"pilot.temperature": np.nan}, "non-finite losses of policy 'pilot'"),
    slow("SAC", {"pilot.temperature_learning_rate": np.inf}, "non-finite parameters of policy"),
]


@pytest.mark.parametrize(("pilot", "hypers", "said"), STEPS)
def test_bad_quantity_of_a_gradient_step_is_named(pilot, hypers, said):
    learner = learner_of(pilot)
    good, _ = play(learner, learner.init(KEY), 3)
    # values are not checked inside of jit
    broken = jax.jit(lambda state, values: with_hypers(state, **values))(good, hypers)
    last, metrics = play(learner, broken, 2)
    assert all(sentence.startswith(said) for sentence in words(learner, metrics))
    assert_same(counted(last).policies, counted(good).policies)
    assert int(last.num_updates) == 3


BEYOND = [
    ("A2C", "pilot.learning_rate"),
    ("A2C", "clerk.learning_rate"),
    slow("DDPG", "pilot.critic_learning_rate"),
]


@pytest.mark.parametrize(("pilot", "name"), BEYOND)
def test_huge_learning_rate_leaves_finite_parameters(pilot, name):
    learner = learner_of(pilot)
    first = with_hypers(learner.init(KEY), **{name: 1e30})
    last, metrics = play(learner, first, 6)
    assert np.any(metrics["bad_numbers"])
    assert int(last.num_updates) == np.argmax(metrics["bad_numbers"] > 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(plain(last.policies)))


@pytest.mark.slow
def test_missing_metrics_are_not_bad_numbers():
    learner = learner_of("DDPG")
    _, metrics = learner.update(learner.init(KEY))  # no gradient step yet, and no episode has ended
    assert np.isnan(metrics["pilot/critic_loss"])
    assert np.isnan(metrics["episode_length"])
    assert metrics["bad_numbers"] == 0
    assert describe_bad_numbers(learner.setup, 0) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("dead_obs", "observations"), ("dead_reward", "rewards")]
)
def test_observations_and_rewards_of_inactive_agents_must_be_finite(name, said):
    learner = leavers()
    _, metrics = play(learner, with_params(learner.init(KEY), **{name: 1e6}), 2)
    assert not np.any(metrics["bad_numbers"])
    first = with_params(learner.init(KEY), **{name: np.inf})
    last, metrics = play(learner, first, 1)
    assert words(learner, metrics)[0].startswith(f"non-finite {said} of policy 'player'")
    assert_same(counted(last), counted(first))  # who lives, too


@functools.cache
def leavers(num_devices=1):
    policies = {"player": tiny_policy("A2C")}
    return make_learner(tiny_config("probe_leaver", policies, devices=num_devices))


def test_metrics_and_statistics_are_checked():
    learner = learner_of("A2C")
    policy, state = learner.setup.policies["clerk"], learner.init(KEY).policies["clerk"]
    fine = {"loss": jnp.float32(1), "grad_norm": jnp.float32(2), "gradient_steps": jnp.int32(3)}

    def look(after=state, **changes):
        return look_at_steps(policy, state, after, fine | changes).tolist()

    def with_variance(value):
        normalizer = jax.tree.map(
            lambda leaf: leaf.at[...].set(value) if leaf.ndim else leaf, state.normalizer
        )
        return state.replace(normalizer=normalizer)

    assert look() == [False, False, False, False]
    assert look(grad_norm=jnp.float32(jnp.inf)) == [False, True, False, False]
    assert look(loss=jnp.float32(jnp.nan)) == [True, False, False, False]
    assert look(loss=jnp.float32(jnp.nan), gradient_steps=jnp.int32(0)) == [
        False,
        False,
        False,
        False,
    ]
    assert look(with_variance(jnp.inf)) == [False, False, True, False]


def test_first_cause_of_all_policies_is_named():
    rows, steps = np.zeros((2, 2), bool), np.zeros((2, 4), bool)
    steps[0, 0] = rows[1, 1] = True  # the losses of the first policy, the rewards of the second
    assert (
        first_bad([*jnp.array(rows)], [*jnp.array(steps)])
        == 1 + 2 * QUANTITIES.index("rewards") + 1
    )
    assert first_bad([*jnp.array(rows * False)], [*jnp.array(steps)]) == 1 + 2 * QUANTITIES.index(
        "losses"
    )
    assert first_bad([], []) == 0


def test_every_quantity_has_advice():
    learner = learner_of("A2C")
    sentences = [
        describe_bad_numbers(learner.setup, code) for code in range(1, 2 * len(QUANTITIES) + 1)
    ]
    for i, quantity in enumerate(QUANTITIES):
        assert sentences[2 * i].startswith(f"non-finite {quantity} of policy 'pilot': ")
        assert sentences[2 * i + 1].startswith(f"non-finite {quantity} of policy 'clerk': ")


# --- skipping, populations and devices ---


@pytest.mark.slow
def test_skip_discards_the_update_and_draws_new_numbers():
    learner = learner_of("DDPG", "skip")
    first = with_params(learner.init(KEY), bad_obs=np.nan)
    before, _ = play(learner, first, BAD - 1)
    last, metrics = learner.update(before)
    said = words(learner, {"bad_numbers": metrics["bad_numbers"][None]})[0]
    assert said.startswith("non-finite observations of policy 'clerk'")
    mine, theirs = counted(last), counted(before)
    assert_same(
        (mine.policies, mine.memory, mine.replicas, mine.obs),
        (theirs.policies, theirs.memory, theirs.replicas, theirs.obs),
    )
    assert mine.num_updates == BAD
    assert np.any(mine.key != theirs.key)
    fine, metrics = play(learner, with_params(last, bad_obs=0.0), 2)
    assert not np.any(metrics["bad_numbers"])
    assert int(fine.num_updates) == BAD + 2


@pytest.mark.slow
def test_members_of_a_population_stop_separately():
    learner = leavers()
    members = dataclasses.replace(learner, update=jax.jit(jax.vmap(learner.update)))
    states = jax.vmap(learner.init)(jax.random.split(KEY, 3))
    good, metrics = play(members, states, 2)
    assert not np.any(metrics["bad_numbers"])
    bad = good.env_params.replace(dead_reward=jnp.array([0.0, jnp.inf, 0.0]))
    last, metrics = play(members, good.replace(env_params=bad), 2)
    np.testing.assert_array_equal(last.num_updates, [4, 2, 4])
    np.testing.assert_array_equal(np.sum(metrics["bad_numbers"] > 0, axis=0), [0, 2, 0])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(plain(last.policies)))


@pytest.mark.slow
def test_devices_agree():
    two = leavers(num_devices=2)
    first = with_params(two.init(KEY), dead_reward=0.0)  # placed as below: one program
    bad = with_params(first, dead_reward=np.inf)
    last, metrics = play(two, bad, 1)
    assert words(two, metrics)[0].startswith("non-finite rewards of policy 'player'")
    assert_same(counted(last), counted(bad))
    # what only the last device sees, all know of
    obs = {"player": first.obs["player"].at[-1].set(jnp.nan)}
    bad = first.replace(obs=obs)
    last, metrics = play(two, bad, 1)
    assert words(two, metrics)[0].startswith("non-finite observations of policy 'player'")
    assert_same(counted(last), counted(bad))


# --- the trainer ---


@pytest.fixture(scope="module")
def ended_run(tmp_path_factory):
    """Return (configuration, folder, message) of a run that ended in its fourth update."""
    folder = tmp_path_factory.mktemp("bad") / "run"
    config = toy_clock.run_config()
    with pytest.raises(BadNumbersError) as error:
        Trainer(config, folder, quiet=True).train()
    return config, folder, str(error.value)


@pytest.mark.slow
def test_trainer_saves_the_last_good_state_and_says_what_was_bad(ended_run):
    config, folder, said = ended_run
    assert said.startswith("update 4: non-finite rewards of policy 'agent': ")
    assert "\n" not in said
    assert [row["updates"] for row in read_metrics(folder / "metrics.jsonl")] == [2, 3]
    learner, saved = load_run(folder)
    good, _ = play(learner, learner.init(jax.random.key(config.seed)), 3)
    # another program than the run's: the last bit may differ
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-9),
        counted(saved),
        counted(good),
    )
    assert not (folder / "curves.png").exists()


@pytest.mark.slow
def test_resumed_as_it_was_it_ends_again_and_by_skip_it_goes_on(ended_run):
    config, folder, said = ended_run
    lines = (folder / "metrics.jsonl").read_text()
    with pytest.raises(BadNumbersError) as error:
        Trainer(config, folder, resume=True, quiet=True).train()
    assert str(error.value) == said
    assert (folder / "metrics.jsonl").read_text() == lines
    changed = change_policy(config.policies["agent"], gamma=0.5)
    other = dataclasses.replace(config, policies={"agent": changed})
    with pytest.raises(
        ValueError, match=r"policies\.agent\.gamma = 0\.5: the run in .* was started with 0\.7"
    ):
        Trainer(other, folder, resume=True)
    config = dataclasses.replace(
        config, on_bad_numbers="skip", total_env_steps=4 * toy_clock.STEPS_OF_UPDATE
    )
    state = Trainer(config, folder, resume=True, quiet=True).train()
    assert int(state.num_updates) == 4
    *_, last = read_metrics(folder / "metrics.jsonl")
    assert last["skipped_updates"] == 1
    assert last["agent/reward_mean"] is None


@pytest.mark.slow
def test_skip_ends_where_updates_stay_bad(tmp_path):
    # the clock stops before its bad step for all random numbers: only updates 1 to 3 are good
    config = toy_clock.run_config(
        on_bad_numbers="skip", total_env_steps=30 * toy_clock.STEPS_OF_UPDATE
    )
    with pytest.raises(
        BadNumbersError,
        match=r"^update 14 and the 10 before it: non-finite rewards of policy 'agent'",
    ):
        Trainer(config, tmp_path / "run", quiet=True).train()
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["skipped_updates"] for row in rows] == [0, 1, 2, 2, 2, 2, 2]
    assert int(load_run(tmp_path / "run")[1].num_updates) == 14


CHUNKS = [([0, 0, 0], 5, 0), ([0, 3, 1], 5, 2), ([3, 1, 1], 5, 8), ([3, 1, 0], 9, 0), ([2], 0, 1)]


@pytest.mark.parametrize(("codes", "before", "streak"), CHUNKS)
def test_bad_updates_in_a_row_are_counted_over_chunks(codes, before, streak):
    assert bad_in_a_row(np.array(codes), before) == streak


def test_metrics_of_bad_updates_are_left_out():
    metrics, codes = sound_updates(
        {"loss": np.array([1.0, 2.0, 3.0]), "bad_numbers": np.array([0, 4, 0])}
    )
    assert list(metrics) == ["loss"]
    np.testing.assert_array_equal(metrics["loss"], [1, 3])
    np.testing.assert_array_equal(codes, [0, 4, 0])


def test_when_a_run_ends():
    stop, skip = (toy_clock.run_config(on_bad_numbers=answer) for answer in ("stop", "skip"))
    assert [ends_run(stop, np.array(codes), 0) for codes in ([0, 0], [0, 1], [1, 0])] == [
        False,
        True,
        True,
    ]
    assert [ends_run(skip, np.array([0, 1]), streak) for streak in (1, 9, 10, 11)] == [
        False,
        False,
        True,
        True,
    ]
