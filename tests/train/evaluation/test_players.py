"""Cross-play matrices between runs, checkpoints, random play and scripts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from probes import NETWORK, tiny_config, tiny_policy

from wdjax.train import (
    NetworkConfig,
    Player,
    PolicyConfig,
    cross_play,
    evaluate,
    make_learner,
    record_episode,
    trained_policy,
)
from wdjax.train.evaluation.evaluate import play_episodes
from wdjax.train.evaluation.players import roles_of
from wdjax.train.networks import encoders

pytestmark = pytest.mark.usefixtures("quick_compile")

GRID = {"num_taggers": 2, "grid_length": 6, "episode_length": 20, "random_start": True}
KEY = jax.random.key(3)


def grid_learner(tagger=None, runner=None, **changes):
    policies = {"tagger": tagger or tiny_policy("A2C"), "runner": runner or tiny_policy("A2C")}
    return make_learner(tiny_config("tag_gridworld", policies, env_params={**GRID, **changes}))


def test_representation_of_players():
    assert repr(Player("nobody")) == "Player('nobody', random play)"
    assert (
        repr(Player("ambush", script=always, group="tagger"))
        == "Player('ambush', always, group='tagger')"
    )


def always(learner, state, **choices):
    """Return a state whose policies always take one action: {policy: index}."""
    policies = dict(state.policies)
    for name, action in choices.items():
        params = jax.tree.map(jnp.zeros_like, policies[name].params)
        params["policy_head"]["bias"] = params["policy_head"]["bias"].at[action].set(50.0)
        policies[name] = policies[name].replace(params=params)
    return state.replace(policies=policies)


def runners(script):
    return Player("mine", script=script, group="runner")


@pytest.fixture(scope="module")
def run():
    learner = grid_learner()
    return learner, always(learner, learner.init(jax.random.key(0)), tagger=0, runner=0)


@pytest.mark.slow
def test_scripts_beat_random_play(run):
    def tags(tagger, runner=None):
        players = {"tagger": tagger} | ({"runner": runner} if runner else {})
        return float(evaluate(*run, KEY, 64, players=players).episode_info["tags"].mean())

    by_chance = tags("random", "random")
    assert 0.1 < by_chance < 0.6
    assert tags("chase_nearest", "random") > 0.95
    assert tags("random", "flee_nearest") < 0.5 * by_chance
    assert tags("chase_nearest") == 1.0  # the runner stands still in its corner


@pytest.mark.slow
def test_players_of_other_runs_act_in_their_roles(run):
    """Networks, algorithms and names of policies may differ.

    Runners stay, or walk along the wall: standing taggers never meet the former.
    """
    wide = dataclasses.replace(NETWORK, hidden_sizes=(5, 3))
    other = make_learner(
        tiny_config(
            "tag_gridworld",
            {
                "all": tiny_policy("PPO", network=wide, agents=("tagger", "runner")),
            },
            env_params=GRID,
        )
    )
    state = other.init(jax.random.key(1))
    walker = always(other, state, all=1)
    still = always(other, state, all=0)
    opponents = {"runner": [Player("walker", other, walker), Player("still", other, still)]}
    before = play_episodes._cache_size()
    cells = cross_play(*run, KEY, 32, greedy=True, opponents=opponents, name="mine")
    assert list(cells) == [("mine", "mine"), ("mine", "walker"), ("mine", "still")]
    assert play_episodes._cache_size() == before + 1  # what differs between the cells are arguments
    returns = {cell[1]: episodes.episode_return["runner"] for cell, episodes in cells.items()}
    np.testing.assert_array_equal(returns["mine"], returns["still"])
    hits = 20 - 6  # it walks six cells and then into the wall, unless it meets a tagger on the way
    free = cells["mine", "walker"].episode_length == 20
    assert free.any()
    np.testing.assert_allclose(
        returns["walker"][free] - returns["still"][free], -0.1 * hits, rtol=1e-4
    )


@pytest.mark.slow
def test_checkpoints_and_equal_runs_share_programs(run):
    learner, state = run
    again = grid_learner(
        runner=tiny_policy("A2C", learning_rate=0.5, gamma=0.1)
    )  # traced values do not matter
    players = [
        Player(f"step {i}", again, always(again, state, tagger=i, runner=i)) for i in (1, 2, 3)
    ]
    cross_play(learner, state, KEY, 16, opponents=["chase_nearest"])
    before = play_episodes._cache_size()
    cells = cross_play(again, state, KEY, 16, opponents=["chase_nearest", *players])
    assert play_episodes._cache_size() == before
    assert len(cells) == 5 * 4  # a script plays its own group only
    assert (
        len(
            {
                float(e.episode_return["runner"].sum())
                for (a, b), e in cells.items()
                if a == "trained"
            }
        )
        > 2
    )


@pytest.mark.slow
def test_policy_of_both_groups_has_a_role_in_each():
    learner = make_learner(
        tiny_config(
            "tag_gridworld",
            {
                "mixed": tiny_policy("A2C", agents=("runner", "tagger[1]")),
                "rest": tiny_policy("A2C", agents=("tagger[0]",)),
            },
            env_params=GRID,
        )
    )
    assert [role.name for role in roles_of(learner.setup)] == [
        "mixed/runner",
        "mixed/tagger",
        "rest",
    ]
    state = learner.init(jax.random.key(0))
    opponents = {name: ["random"] for name in ("mixed/tagger", "rest")}
    cells = cross_play(learner, state, KEY, 8, opponents=opponents)
    assert len(cells) == 4
    episodes = cells["trained", "random", "trained"]
    assert episodes.agent_return["mixed/tagger"].shape == (8, 1)
    both = episodes.episode_return["mixed/tagger"] + episodes.episode_return["rest"]
    np.testing.assert_allclose(both, episodes.group_return["tagger"], rtol=1e-6)
    for name in ("mixed/tagger", "rest"):  # by the name of a role, and of a policy
        replaced = evaluate(learner, state, KEY, 8, greedy=False, players={name: "random"})
        words = (
            "trained",
            *("random" if name == role else "trained" for role in ("mixed/tagger", "rest")),
        )
        np.testing.assert_array_equal(
            replaced.group_return["tagger"], cells[words].group_return["tagger"]
        )
    assert np.any(
        cells["trained", "random", "trained"].group_return["tagger"]
        != replaced.group_return["tagger"]
    )
    whole = evaluate(learner, state, KEY, 8, greedy=False)
    assert whole.agent_return["mixed"].shape == (8, 2)
    assert set(whole.episode_return) == {"mixed", "rest"}


@pytest.mark.slow
def test_parts_of_a_group_are_played_by_their_policies():
    """Another run's policy for the second tagger plays it, whatever its name."""
    names = [("first", "second"), ("b", "a")]
    runs = [
        make_learner(
            tiny_config(
                "tag_gridworld",
                {
                    **{
                        name: tiny_policy("A2C", agents=(f"tagger[{i}]",))
                        for i, name in enumerate(pair)
                    },
                    "runner": tiny_policy("A2C"),
                },
                env_params=GRID,
            )
        )
        for pair in names
    ]
    mine, theirs = (learner.init(KEY) for learner in runs)
    mine = always(runs[0], mine, first=0, second=0, runner=0)
    other = Player("other", runs[1], always(runs[1], theirs, b=1, a=3))
    played = record_episode(runs[0], mine, KEY, greedy=True, players={"second": other})
    np.testing.assert_array_equal(played.action["tagger"], [[0, 3]] * len(played.action["tagger"]))


@pytest.mark.slow
def test_custom_script(run):
    """It gets the state and params of its replica, and a key."""
    seen = []

    def up_or_stay(env, state, params, key):
        seen.append((state.x.shape, params.grid_length.shape))
        return jnp.where(jax.random.bernoulli(key), 3, 0)[None]

    played = evaluate(
        *run, KEY, 32, players={"runner": Player("ups", script=up_or_stay, group="runner")}
    )
    assert set(seen) == {((3,), ())}
    free = played.episode_length == 20
    hits = (
        -(played.episode_return["runner"][free] - 20 * 0.01) / 0.1
    )  # of 20 tries about 10 are moves, 6 are free
    assert 1 < hits.mean() < 7
    assert len(np.unique(np.round(hits))) > 2
    alone = make_learner(
        tiny_config("probe_signal", {"agent": tiny_policy("A2C")}, env_params={"by_action": 1.0})
    )
    state = alone.init(jax.random.key(0))

    def first(env, state, params, key):
        return jnp.int32(0)

    def second(env, state, params, key):
        return jnp.int32(1)

    cells = cross_play(alone, state, KEY, 4, opponents=[first, second])
    assert list(cells) == [("trained",), ("first",), ("second",)]
    np.testing.assert_array_equal(cells["first",].episode_return["agent"], -1.0)
    np.testing.assert_array_equal(cells["second",].episode_return["agent"], 1.0)


@pytest.mark.slow
def test_deterministic_and_gaussian_policies_meet():
    """DDPG against PPO in a box, with a masked policy. Actions are clipped to the box."""
    common = {"clerk": tiny_policy("A2C")}
    pilots = [
        PolicyConfig(algorithm=name, network=NetworkConfig(hidden_sizes=(4,)))
        for name in ("PPO", "DDPG")
    ]
    runs = [make_learner(tiny_config("probe_pair", {"pilot": pilot, **common})) for pilot in pilots]
    (ppo, a), (ddpg, b) = [
        (learner, learner.init(jax.random.key(i))) for i, learner in enumerate(runs)
    ]
    other = Player("ddpg", ddpg, b)
    opponents = {"pilot": [other], "clerk": ["random", other]}
    cells = cross_play(ppo, a, KEY, 16, opponents=opponents)  # drawn: some lie outside
    assert len(cells) == 6
    assert all(episodes.episode_info["outside"].sum() == 0 for episodes in cells.values())
    assert all(episodes.episode_info["forbidden"].sum() == 0 for episodes in cells.values())
    alone, there = evaluate(ddpg, b, KEY, 16), cells["ddpg", "ddpg"]
    np.testing.assert_allclose(
        there.episode_return["pilot"], alone.episode_return["pilot"], rtol=1e-5
    )
    assert np.all(cells["trained", "ddpg"].episode_return["pilot"] != there.episode_return["pilot"])


@pytest.mark.parametrize(
    ("opponents", "words"),
    [
        ([3], "player of type int: must be a Player"),
        (["chase_nearst"], "did you mean 'chase_nearest'"),
        ("random", "must be a list"),
        ({"runer": ["random"]}, "did you mean 'runner'"),
        ({"runner": ["chase_nearest"]}, "'chase_nearest': must be listed for a role of its group"),
        (["random", "random"], "must be unique"),
        ([lambda env, state, params, key: 0], "group must name the group"),
        ([Player("mine", script=abs, group="runers")], "did you mean 'runner'"),
        ([runners(lambda env, state, params, key: jnp.zeros(2, int))], r"\(1,\)"),
        (
            [runners(lambda env, state, params, key: jnp.full(1, 0.9))],
            "have dtype float32: must be int32",
        ),
        (
            [runners(lambda env, state, params, key: {"runner": jnp.zeros(1, int)})],
            "returned a dict: must be an array",
        ),
    ],
)
def test_opponents_are_checked(run, opponents, words):
    with pytest.raises((ValueError, TypeError), match=words):
        cross_play(*run, KEY, 4, opponents=opponents)


def test_player_is_a_run_or_a_script(run):
    learner, state = run
    for wrong in ((learner, None), (state, learner), (None, state)):
        with pytest.raises(
            TypeError,
            match=r"player 'a': learner, state = .*: must be a Learner and its TrainState",
        ):
            Player("a", *wrong)
    with pytest.raises(
        ValueError, match=r"player 'a': script = .*: must be None for a player with a learner"
    ):
        Player("a", learner, state, script=abs)
    with pytest.raises(
        TypeError,
        match="players: must be a mapping from policy or role names to players, not a list",
    ):
        evaluate(*run, KEY, 4, players=["random"])


@pytest.mark.slow
def test_actions_of_scripts_are_kept_inside_their_space(run):
    """Larger actions become the last one, smaller ones the first."""

    def alternating(even, odd):
        def act(env, state, params, key):
            return jnp.where(state.time % 2 == 0, even, odd)[None]

        return {"runner": runners(act)}

    wild, tame = (
        evaluate(*run, KEY, 8, players=alternating(*actions)) for actions in ((99, -9), (4, 0))
    )
    np.testing.assert_array_equal(wild.episode_length, tame.episode_length)
    np.testing.assert_array_equal(wild.episode_return["runner"], tame.episode_return["runner"])


@pytest.mark.slow
def test_registered_again_encoder_compiles_another_program(monkeypatch):
    """A notebook cell that runs again defines a class again; parameters stay with their class."""

    def encoder(sign):
        class Mine(nnx.Module):
            def __init__(self, observation_space, *, rngs):
                self.num_features = 1

            def __call__(self, obs):
                return jnp.full((*obs.shape[:-1], 1), sign)

        Mine.__qualname__ = "Mine"
        return Mine

    monkeypatch.setattr(encoders, "ENCODERS", dict(encoders.ENCODERS))
    network = dataclasses.replace(NETWORK, encoder="mine", hidden_sizes=())
    config = tiny_config(
        "probe_signal",
        {"agent": tiny_policy("A2C", network=network)},
        env_params={"by_action": 1.0},
    )
    for sign, expected in ((1.0, 1.0), (-1.0, -1.0)):
        encoders.register_encoder("mine", encoder(sign))
        learner = make_learner(config)
        state = learner.init(jax.random.key(0))
        params = jax.tree.map(jnp.zeros_like, state.policies["agent"].params)
        params["policy_head"]["kernel"] = jnp.array(
            [[-1.0, 1.0]]
        )  # the second action for observations of the first class
        state = state.replace(policies={"agent": state.policies["agent"].replace(params=params)})
        np.testing.assert_array_equal(
            evaluate(learner, state, KEY, 4, True).episode_return["agent"], expected
        )


def test_other_environments_are_refused(run):
    signal = make_learner(tiny_config("probe_signal", {"agent": tiny_policy("A2C")}))
    more = grid_learner(num_taggers=3)
    split = make_learner(
        tiny_config(
            "tag_gridworld",
            {
                "a": tiny_policy("A2C", agents=("tagger[0]", "runner")),
                "b": tiny_policy("A2C", agents=("tagger[1]",)),
            },
            env_params=GRID,
        )
    )
    shapes = jax.eval_shape(run[0].init, KEY)  # refused before anybody looks at a number
    for other, words in (
        (signal, "env = 'probe_signal': must be 'tag_gridworld'"),
        (more, "num_taggers = 3: must be 2"),
        (split, r"none of its policies \(a, b\) controls all agents of the role \(tagger\[0:2\]\)"),
    ):
        with pytest.raises(ValueError, match=words):
            cross_play(*run, KEY, 4, opponents=[Player("o", other, shapes)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("tag_gridworld", {"use_full_observation": False}),
        ("tag_continuous", {"egocentric": True, "num_other_agents_observed": 3}),
    ],
)
def test_players_get_the_observations_of_their_training(name, shown):
    """A pair of runs has the same results, bit for bit, in the environment of either run."""
    policies = {"tagger": tiny_policy("A2C"), "runner": tiny_policy("A2C")}
    rules = (
        GRID
        if name == "tag_gridworld"
        else {"num_taggers": 2, "num_runners": 3, "use_full_observation": False}
    )
    learners = [
        make_learner(tiny_config(name, policies, env_params={**rules, **own}))
        for own in ({}, shown)
    ]
    plain, other = [
        (learner, learner.init(jax.random.key(i))) for i, learner in enumerate(learners)
    ]
    runner, tagger = Player("other", *other), Player("plain", *plain)
    cells = cross_play(*plain, KEY, 8, opponents={"runner": [runner]}, name="plain")
    there = evaluate(*other, KEY, 8, players={"tagger": tagger})
    assert len({float(episodes.agent_return["runner"].sum()) for episodes in cells.values()}) > 1
    here = cells["plain", "other"]
    jax.tree.map(np.testing.assert_array_equal, vars(here), vars(there))
    episode = record_episode(*plain, KEY, players={"runner": Player("other", *other)})
    assert {role: shown["probs"].shape[1] for role, shown in episode.choice.items()} == plain[
        0
    ].env.groups


# --- custom networks ---


def test_custom_network_gets_the_observations_of_learned_policies(run):
    """It gets the observations of the run's runners, and acts like a learned one."""
    seen = []

    def walks(obs, memory, key):
        seen.append((obs.shape, memory.shape, key is None))
        return jnp.where(memory > 0, 1, 0), memory + 1  # stays in its first step

    learner, state = run
    network = Player("walks", network=walks, group="runner", memory=jnp.int32(0))
    walker = trained_policy(learner, always(learner, state, runner=1), "runner")
    players = [network, Player("walker", network=walker)]
    cells = cross_play(
        learner, state, KEY, 8, greedy=True, opponents={"runner": players}, name="mine"
    )
    assert set(seen) == {((8, 1, *walker.observation_space.shape), (8, 1), True)}
    assert list(cells) == [("mine", "mine"), ("mine", "walks"), ("mine", "walker")]
    paid = {cell[1]: episodes.episode_return["runner"] for cell, episodes in cells.items()}
    walked = (cells["mine", "walks"].episode_length == 20) & (
        cells["mine", "walker"].episode_length == 20
    )
    assert walked.any()
    np.testing.assert_allclose(
        paid["walks"][walked] - paid["walker"][walked], 0.1, rtol=1e-3
    )  # a push less


@pytest.mark.slow
def test_invalid_results_of_networks_are_refused(run):
    floats = lambda obs, memory, key: (jnp.zeros(obs.shape[:2]), memory)  # noqa: E731
    flat = lambda obs, memory, key: (jnp.zeros(obs.shape[0], int), memory)  # noqa: E731
    for network, words in ((floats, "float32: must be int32"), (flat, r"\(8,\): must be \(8, 1\)")):
        with pytest.raises((TypeError, ValueError), match=words):
            cross_play(*run, KEY, 8, opponents=[Player("net", network=network, group="runner")])
    with pytest.raises(TypeError, match="load_policy"):
        Player("net", network=3)
    with pytest.raises(ValueError, match="group must name"):
        cross_play(*run, KEY, 8, opponents=[Player("net", network=floats)])
