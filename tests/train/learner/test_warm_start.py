"""Policies initialized from checkpoints of other runs, frozen or trained further, and refusals."""

import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import tiny_ddpg
from flax import nnx
from probes import NETWORK, change_policy, tiny_config, tiny_policy

from wdjax.train import (
    PPO,
    PolicyConfig,
    PolicyState,
    Trainer,
    load_config,
    load_run,
    make_learner,
    record_episode,
)
from wdjax.train.learner.init import with_counts
from wdjax.train.learner.saved import parse_checkpoint, split_checkpoint
from wdjax.train.learning import FlatEncoder, RunningStatistics
from wdjax.train.networks.encoders import ENCODERS
from wdjax.train.state.normalization import Normalizer
from wdjax.train.storage.checkpoint import open_checkpoints, save
from wdjax.train.storage.folder import prepare_folder

pytestmark = pytest.mark.usefixtures("quick_compile")

RECURRENT = dataclasses.replace(NETWORK, hidden_sizes=(4,), recurrent_size=3)
NORMALIZED = {
    "network": RECURRENT,
    "normalize_observation": True,
    "normalize_reward": True,
}
NORMALIZED_PPO = {**NORMALIZED, "minibatches": 1}


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def differ(a, b):
    return any(jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.any(np.not_equal(x, y))), a, b)))


def save_run(folder, config, *states, best=None):
    """Write a run with checkpoints of these states, after 1, 2, ... updates, and a best one."""
    prepare_folder(folder, config, resume=False)
    for name, kept in (("checkpoints", states), ("best", () if best is None else (best,))):
        with open_checkpoints(folder / name, keep=9) as manager:
            for i, state in enumerate(kept):
                state = state.replace(num_updates=jnp.int32(i + 1))
                save(manager, i + 1, state, {"metrics_size": 0, "best_score": None})
    return folder


def like_learned(state, seed):
    """Return a state with random numbers in all leaves of its policies."""
    leaves, tree = jax.tree.flatten(state.policies)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [
        jax.random.uniform(key, leaf.shape, leaf.dtype, 0.5, 1.5)
        if leaf.dtype == jnp.float32
        else leaf + 40
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    policies = tree.unflatten(drawn)
    around_0 = {
        name: jax.tree.map(lambda leaf: 4 * (leaf - 1), policies[name].params) for name in policies
    }
    return state.replace(
        policies={name: policies[name].replace(params=around_0[name]) for name in policies}
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return (folder, newest state, best state) of a run of one policy for both players."""
    policies = {"both": tiny_policy("PPO", agents=("player",), **NORMALIZED_PPO)}
    config = tiny_config("probe_leaver", policies)
    first = make_learner(config).init(jax.random.key(0))
    older, newest, best = (like_learned(first, seed) for seed in (1, 2, 3))
    return (
        save_run(tmp_path_factory.mktemp("runs") / "source", config, older, newest, best=best),
        newest,
        best,
    )


@pytest.fixture(scope="module")
def off_policy(tmp_path_factory):
    """Return (folder, state) of a run of a DDPG policy."""
    config = tiny_config(
        "probe_box_signal", {"agent": dataclasses.replace(tiny_ddpg(), normalize_observation=True)}
    )
    state = like_learned(make_learner(config).init(jax.random.key(0)), 1)
    return save_run(tmp_path_factory.mktemp("runs") / "ddpg", config, state), state


def two_halves(checkpoint, theirs=None, **changes):
    """Train one player further from a checkpoint. The other one is frozen."""
    theirs = theirs or checkpoint
    policies = {
        "mine": tiny_policy(
            "A2C", agents=("player[0]",), checkpoint=checkpoint, **{**NORMALIZED, **changes}
        ),
        "theirs": tiny_policy(
            "PPO", agents=("player[1]",), checkpoint=theirs, trainable=False, **NORMALIZED_PPO
        ),
    }
    return tiny_config("probe_leaver", policies)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("runs/a", ("runs/a", "")),
        ("runs/a:runner", ("runs/a", "runner")),
        ("runs/a@best", ("runs/a@best", "")),
        ("runs/a@120:old runner", ("runs/a@120", "old runner")),
        ("C:/runs/a", ("C:/runs/a", "")),
        (r"C:\runs\a", (r"C:\runs\a", "")),
        ("C:/runs/a:tagger", ("C:/runs/a", "tagger")),
        ("runs/12:30/a", ("runs/12:30/a", "")),
        ("reference:tag_continuous", ("reference:tag_continuous", "")),
        ("reference:tag_continuous:tagger", ("reference:tag_continuous", "tagger")),
    ],
)
def test_parts_of_a_checkpoint(text, expected):
    assert parse_checkpoint(text) == expected


def test_names_of_a_checkpoint(tmp_path):
    assert split_checkpoint("runs/a") == (Path("runs/a"), "newest")
    assert split_checkpoint("runs/a", "best") == (Path("runs/a"), "best")
    assert split_checkpoint("runs/a@12", "best") == (Path("runs/a"), "12")
    (tmp_path / "me@home").mkdir()
    assert split_checkpoint(f"{tmp_path}/me@home") == (tmp_path / "me@home", "newest")
    assert split_checkpoint(f"{tmp_path}/me@home@best") == (tmp_path / "me@home", "best")
    with pytest.raises(
        ValueError, match="checkpoint 'bets': must be newest, best, or a number of updates"
    ):
        split_checkpoint("runs/a@bets")


@pytest.fixture(scope="module")
def further(source):
    """Return (learner, first state): from the newest checkpoint, and frozen from the best."""
    folder = source[0]
    learner = make_learner(two_halves(f"{folder}:both", theirs=f"{folder}@best:both"))
    return learner, learner.init(jax.random.key(9))


@pytest.mark.slow
def test_newest_and_best_checkpoints_with_a_new_optimizer(source, further):
    _, newest, best = source
    _, state = further
    for name, run in (("mine", newest), ("theirs", best)):
        assert_equal(state.policies[name].params, run.policies["both"].params)
        assert_equal(state.policies[name].normalizer, run.policies["both"].normalizer)
    assert state.policies["theirs"].opt_state is None
    counts = [
        leaf
        for leaf in jax.tree.leaves(state.policies["mine"].opt_state)
        if leaf.dtype == jnp.int32
    ]
    assert counts == [0]  # a new optimizer
    assert state.num_updates == 0
    without = make_learner(two_halves(""))
    fresh = without.init(jax.random.key(9))
    assert_equal(
        (state.replicas, state.obs, state.memory), (fresh.replicas, fresh.obs, fresh.memory)
    )
    assert_equal(jax.random.key_data(state.key), jax.random.key_data(fresh.key))


@pytest.mark.slow
def test_half_of_a_group_is_trained_further(source, further):
    learner, first = further
    state, metrics = learner.update(first)
    assert_equal(state.policies["theirs"], first.policies["theirs"])
    old = source[2].policies["both"]
    assert_equal(
        (state.policies["theirs"].params, state.policies["theirs"].normalizer),
        (old.params, old.normalizer),
    )
    for part in ("params", "normalizer", "opt_state"):
        assert differ(getattr(state.policies["mine"], part), getattr(first.policies["mine"], part))
    assert "mine/policy_loss" in metrics
    assert "theirs/policy_loss" not in metrics


@pytest.mark.slow
def test_frozen_policy_acts_as_in_its_run(source, further):
    """Bit for bit, memory and normalisation included."""
    folder, _, best = source
    theirs = load_run(folder)[0].setup.policies["both"]
    learner, first = further
    mine, state = learner.setup.policies["theirs"], first.policies["theirs"]
    actions = []
    for policy, learned in ((theirs, best.policies["both"]), (mine, state)):
        play = jax.jit(
            lambda learned, carry, obs, policy=policy: policy.algorithm.play(
                policy, learned, carry, obs, jax.random.split(jax.random.key(0), 1), greedy=True
            )
        )
        carry, rows = policy.algorithm.init_carry(policy, 64), []
        carry = jax.tree.map(lambda leaf: leaf[:, :1], carry)  # of one agent
        for t in range(4):
            action, carry = play(learned, carry, jax.random.normal(jax.random.key(t), (64, 1, 8)))
            rows.append((action, carry))
        actions.append(rows)
    assert_equal(*actions)
    assert set(np.ravel([row[0] for row in actions[0]])) == {0, 1}


@pytest.mark.slow
def test_ddpg_policy_continues_from_its_checkpoint(off_policy):
    folder, old = off_policy
    begun = dataclasses.replace(tiny_ddpg(), checkpoint=str(folder), normalize_observation=True)
    for trainable in (True, False):
        policy = dataclasses.replace(begun, trainable=trainable)
        state = make_learner(tiny_config("probe_box_signal", {"agent": policy})).init(
            jax.random.key(9)
        )
        agent = state.policies["agent"]
        assert_equal(
            (agent.params, agent.normalizer),
            (old.policies["agent"].params, old.policies["agent"].normalizer),
        )
        if trainable:
            assert agent.gradient_steps == 40  # no longer random in its warm-up
            assert_equal(agent.target_params, agent.params)
            np.testing.assert_array_equal(state.memory["agent"].replay.ring.size, 0)
        else:
            assert agent.gradient_steps is None


def statistics(number):
    return RunningStatistics(*(jnp.float32(number) for _ in range(3)))


@pytest.mark.parametrize(
    ("own", "loaded", "expected"), [(1, 2, 2), (1, None, 1), (None, 2, None), (None, None, None)]
)
def test_reward_statistics_are_taken_where_both_have_them(own, loaded, expected):
    own, loaded, expected = (
        None if number is None else statistics(number) for number in (own, loaded, expected)
    )
    obs = statistics(5)
    state = with_counts(PolicyState({}, None, Normalizer(statistics(3), own)),
                        PolicyState({}, None, Normalizer(obs, loaded)))  # fmt: skip
    assert state.normalizer == Normalizer(obs, expected)
    assert (
        with_counts(
            PolicyState({}, None), PolicyState({}, None, Normalizer(obs, loaded))
        ).normalizer
        is None
    )
    only_own = with_counts(PolicyState({}, None, Normalizer(None, own)), PolicyState({}, None))
    assert only_own.normalizer == Normalizer(None, own)


@pytest.mark.slow
def test_population_starts_from_a_checkpoint(source):
    """Also where the checkpoint is first read while vmap or jit traces."""
    folder, newest, _ = source
    for wrap in (jax.vmap, lambda init: jax.jit(jax.vmap(init))):
        learner = make_learner(two_halves(f"{folder}:both"))
        states = wrap(learner.init)(jax.random.split(jax.random.key(0), 2))
        for i in range(2):
            mine = jax.tree.map(lambda leaf, i=i: leaf[i], states.policies["mine"].params)
            assert_equal(mine, newest.policies["both"].params)
        assert differ(*(jax.random.key_data(states.key[i]) for i in range(2)))


# --- refusals ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "nowhere",
            r"policies\.mine\.checkpoint = '.*/nowhere': .*nowhere contains no run: .* is missing",
        ),
        ("source/checkpoints", r"source/checkpoints contains no run"),
        ("empty", r"policies\.mine\.checkpoint = '.*/empty': no checkpoint in .*empty/checkpoints"),
        (
            "empty@best",
            r"policies\.mine\.checkpoint = '.*/empty@best': no checkpoint in .*empty/best",
        ),
        (
            "source:boht",
            r"policy in policies\.mine\.checkpoint = '.*source:boht': 'boht': did you mean "
            r"'both'\?",
        ),
        ("source", r"policy in policies\.mine\.checkpoint = '.*source': 'mine': known names: both"),
    ],
)  # fmt: skip
def test_missing_runs_and_policies_are_refused(source, tmp_path, change, words):
    (tmp_path / "source").symlink_to(source[0], target_is_directory=True)
    prepare_folder(tmp_path / "empty", two_halves(""), resume=False)
    config = two_halves(str(tmp_path / change), theirs=f"{source[0]}:both")
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        make_learner(config).init(jax.random.key(0))
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        Trainer(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def network(**changes):
    return {"network": dataclasses.replace(RECURRENT, **changes)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            network(hidden_sizes=(5,)),
            r"policies\.mine\.network\.hidden_sizes = \(5,\): must be \(4,\), as in",
        ),
        (network(activation="relu"), r"network\.activation = 'relu': must be 'tanh'"),
        (network(recurrent_size=0), r"network\.recurrent_size = 0: must be 3"),
        (network(shared_trunk=True), r"network\.shared_trunk = True: must be False"),
        (
            {"normalize_observation": False},
            r"policies\.mine\.normalize_observation = False: must be True, as in",
        ),
        (
            {"action_distribution": "squashed_gaussian"},
            r"action_distribution = 'squashed_gaussian': must be gaussian",
        ),
    ],
)
def test_another_network_is_refused(source, changes, words):
    with pytest.raises(ValueError, match=words):
        make_learner(two_halves(f"{source[0]}:both", **changes)).init(jax.random.key(0))


@pytest.mark.slow
def test_another_initializer_is_accepted(source):
    make_learner(two_halves(f"{source[0]}:both", **network(initializer="xavier"))).init(
        jax.random.key(0)
    )


@pytest.mark.slow
def test_another_algorithm_is_refused(source, off_policy):
    policy = tiny_policy("PPO", checkpoint=f"{off_policy[0]}:agent")
    with pytest.raises(
        ValueError, match=r"policies\.agent\.algorithm = 'PPO': must be 'DDPG', as in policies\.a"
    ):
        make_learner(tiny_config("probe_box_signal", {"agent": policy})).init(jax.random.key(0))
    twins = dataclasses.replace(
        tiny_ddpg(twin_critics=True), checkpoint=str(off_policy[0]), normalize_observation=True
    )
    with pytest.raises(ValueError, match=r"policies\.agent\.twin_critics = True: must be False"):
        make_learner(tiny_config("probe_box_signal", {"agent": twins})).init(jax.random.key(0))


@dataclasses.dataclass(frozen=True)
class ModeOptions(PPO.Options):
    """One more option that affects how parameters are used."""

    mode: str = dataclasses.field(default="a", metadata={"read": True})


class Modal(PPO):
    Options = ModeOptions


def test_another_option_of_the_network_is_refused(source):
    policy = PolicyConfig(
        algorithm=f"{__name__}:Modal",
        agents=("player",),
        checkpoint=f"{source[0]}:both",
        network=RECURRENT,
        normalize_observation=True,
        options={"normalize_reward": True},
    )
    learner = make_learner(tiny_config("probe_leaver", {"both": policy}))
    with pytest.raises(ValueError, match=r"policies\.both\.mode = 'a': must be None, as in"):
        learner.init(jax.random.key(0))


def test_other_spaces_are_refused(source):
    agent = tiny_policy("PPO", checkpoint=f"{source[0]}:both", **NORMALIZED_PPO)
    with pytest.raises(
        ValueError, match=r"source:both': its observation space Box.*8.* must match"
    ):
        make_learner(tiny_config("probe_signal", {"agent": agent})).init(jax.random.key(0))
    players = tiny_policy(
        "PPO", agents=("player",), checkpoint=f"{source[0]}:both", **NORMALIZED_PPO
    )
    with pytest.raises(
        ValueError, match=r"its action space Discrete.*2.* must match Box.*of policies\.players"
    ):
        make_learner(tiny_config("probe_box_leaver", {"players": players})).init(jax.random.key(0))


@pytest.mark.slow
def test_changed_encoder_class_is_refused(tmp_path, monkeypatch):
    class Wider(FlatEncoder):
        def __init__(self, observation_space, *, rngs):
            super().__init__(observation_space, rngs=rngs)
            self.layer = nnx.Linear(self.num_features, self.width, rngs=rngs)
            self.num_features = self.width

        def __call__(self, obs):
            return self.layer(super().__call__(obs))

    monkeypatch.setitem(ENCODERS, "wider", Wider)
    monkeypatch.setattr(Wider, "width", 4, raising=False)
    policy = tiny_policy("A2C", network=dataclasses.replace(NETWORK, encoder="wider"))
    config = tiny_config("probe_signal", {"agent": policy})
    save_run(tmp_path / "run", config, make_learner(config).init(jax.random.key(0)))
    policy = dataclasses.replace(policy, checkpoint=str(tmp_path / "run"))
    again = dataclasses.replace(config, policies={"agent": policy})
    assert make_learner(again).loaded()
    learner, state = load_run(tmp_path / "run")
    monkeypatch.setattr(Wider, "width", 5)
    monkeypatch.setattr(
        "wdjax.train.learner.saved.read_run", lambda *_, **__: (learner.setup, state)
    )
    with pytest.raises(
        ValueError, match=r"its parameter shapes differ from those in policies\.agent"
    ):
        make_learner(again).init(jax.random.key(0))


# --- trainer ---


@pytest.mark.slow
def test_run_resumes_without_the_runs_that_it_started_from(source, tmp_path):
    """Bit for bit, with opponents and snapshots, after the other run is deleted."""
    shutil.copytree(source[0], tmp_path / "source")
    other = f"{tmp_path}/source:both"
    own = {
        "opponents": {other: 0.2, "random": 0.1},
        "opponents_every": 2,
        "opponents_priority": 1.0,
    }
    config = two_halves(other, past_selves=2, past_selves_every=1, learning_rate=0.01, **own)
    changes = {"updates_per_chunk": 1, "checkpoint_every": 1, "best_metric": "none"}
    whole = dataclasses.replace(config, total_env_steps=4 * 48, **changes)
    half = dataclasses.replace(config, total_env_steps=2 * 48, **changes)
    quiet = {"quiet": True, "pictures": False}
    Trainer(whole, tmp_path / "whole", **quiet).train()
    Trainer(half, tmp_path / "parts", **quiet).train()
    shutil.rmtree(tmp_path / "source")
    Trainer(whole, tmp_path / "parts", resume=True, **quiet).train()
    states = [load_run(tmp_path / name)[1] for name in ("whole", "parts")]
    mine, pool = states[0].policies["mine"], states[0].opponents.pools["mine"]
    biases = pool.networks.params["value_head"]["bias"][:, 0].tolist()
    assert len(set(biases)) == 3  # the pool is one of different selves, and of the run, which stays
    assert biases[2] == load_run(source[0])[1].policies["both"].params["value_head"]["bias"][0]
    assert pool.standings.games.sum() > 0
    assert biases[1] == mine.params["value_head"]["bias"][0]  # the newest is the present one
    assert_equal(*(state.replace(key=jax.random.key_data(state.key)) for state in states))
    with pytest.raises(FileNotFoundError, match=r"policies\.mine\.checkpoint = .* contains no run"):
        Trainer(whole, tmp_path / "new", quiet=True)


@pytest.mark.slow
def test_half_of_the_taggers_trains_against_a_frozen_runner(tmp_path):
    small = {"num_envs": 8, "rollout_length": 16, "env_params.episode_length": 30}
    config = load_config("tag_gridworld_ppo", **small)
    old = like_learned(make_learner(config).init(jax.random.key(0)), 1)
    folder = save_run(tmp_path / "old", config, old)
    tagger = change_policy(config.policies["tagger"], checkpoint=f"{folder}:tagger")
    policies = {
        "runner": dataclasses.replace(
            config.policies["runner"], checkpoint=str(folder), trainable=False
        ),
        "mine": dataclasses.replace(tagger, agents=("tagger[0:2]",)),
        "theirs": dataclasses.replace(tagger, agents=("tagger[2:4]",), trainable=False),
    }
    learner = make_learner(dataclasses.replace(config, policies=policies, best_metric="none"))
    start = learner.init(jax.random.key(3))
    episodes = [
        record_episode(learner, state, jax.random.key(1), greedy=True)
        for learner, state in (load_run(folder), (learner, start))
    ]
    assert_equal(episodes[0].states, episodes[1].states)
    state, _ = learner.update(start)
    for name in ("runner", "theirs"):
        assert_equal(
            state.policies[name].params, old.policies[name.replace("theirs", "tagger")].params
        )
    assert differ(state.policies["mine"].params, old.policies["tagger"].params)
