"""Team credit of cooperative JaxMARL environments, with a stub instead of JaxMARL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bare_done import Box, Discrete

import wdjax
from wdjax.adapters import from_jaxmarl
from wdjax.train import NetworkConfig, PolicyConfig, TrainConfig, make_learner


class Battle:
    """Two soldiers win in step 4. soldier_1 dies in step 2.

    Both receive 1 per step and 10 in the last. The only legal action of a dead soldier is 2.
    `played` records the actions that the environment received.
    """

    agents = ("soldier_0", "soldier_1")

    def reset(self, key):
        state = {
            "time": jnp.int32(0),
            "dead": jnp.zeros(2, bool),
            "played": jnp.zeros(2, jnp.int32),
        }
        return self.get_obs(state), state

    def step_env(self, key, state, actions):
        played = jnp.stack([actions[agent] for agent in self.agents])
        time = state["time"] + 1
        state = {"time": time, "dead": jnp.stack([jnp.bool_(False), time >= 2]), "played": played}
        dones = {agent: state["dead"][i] for i, agent in enumerate(self.agents)} | {
            "__all__": time == 4
        }
        reward = dict.fromkeys(self.agents, jnp.where(time == 4, 10.0, 1.0))
        return self.get_obs(state), state, reward, dones, {}

    def get_obs(self, state):
        return {
            agent: jnp.stack([state["time"], state["dead"][i]]) * 0.1
            for i, agent in enumerate(self.agents)
        }

    def get_avail_actions(self, state):
        alone, both = jnp.array([0, 0, 1]), jnp.array([1, 1, 0])
        return {
            agent: jnp.where(state["dead"][i], alone, both) for i, agent in enumerate(self.agents)
        }

    def observation_space(self, agent):
        return Box(0.0, 1.0, (2,), jnp.float32)

    def action_space(self, agent):
        return Discrete(3)


class Watched(Battle):
    def get_world_state(self, state):
        return jnp.stack([state["dead"], state["played"] > 0])


class Unmasked(Battle):
    get_avail_actions = property()  # hasattr is false, as in environments without masks


class Undecided(Battle):
    """Its masks leave two legal actions to a dead soldier."""

    def get_avail_actions(self, state):
        return {agent: jnp.array([0, 1, 1]) for agent in self.agents}


def play(game, credit):
    """Return (masks of soldier_1, received actions, rewards, terminated) of 6 steps.

    Both soldiers choose action 1.
    """
    env, params = from_jaxmarl(game(), credit)
    obs, state = env.reset(jax.random.key(0), params)
    rows = []
    step, action = jax.jit(env.step), {"soldier": jnp.ones(2, jnp.int32)}
    for _ in range(6):
        obs, state, reward, terminated, _, _ = step(jax.random.key(0), state, action, params)
        mask = (
            obs["soldier"]["action_mask"][1].tolist() if isinstance(obs["soldier"], dict) else None
        )
        rows.append(
            (
                mask,
                state.inner["played"].tolist(),
                reward["soldier"].tolist(),
                terminated["soldier"].tolist(),
            )
        )
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.slow
def test_team_credit_rewards_dead_agents_until_the_end():
    masks, played, reward, terminated = play(Battle, "team")
    assert masks == [[1, 1, 0]] + [[0, 0, 1]] * 5  # one legal action
    # the dead agent takes it, whatever its policy chooses
    assert played == [[1, 1], [1, 1]] + [[1, 2]] * 4
    assert reward == [[1, 1]] * 3 + [[10, 10]] + [[0, 0]] * 2  # JaxMARL's rewards until the end
    assert terminated == [[False, False]] * 3 + [[True, True]] * 3


@pytest.mark.slow
def test_agent_credit_stops_at_the_death_of_the_agent():
    masks, played, reward, terminated = play(Battle, "agent")
    assert played == [[1, 1], [1, 1]] + [[1, 0]] * 4
    assert reward == [[1, 1], [1, 1], [1, 0], [10, 0], [0, 0], [0, 0]]
    assert terminated == [[False, False], *[[False, True]] * 2, *[[True, True]] * 3]
    assert play(Battle, None) == [masks, played, reward, terminated]  # the default


@pytest.mark.slow
def test_dead_agents_take_action_0_or_their_first_legal_action():
    _, played, reward, _ = play(Unmasked, "team")
    assert played[-1] == [1, 0]
    assert reward[3] == [10, 10]
    masks, played, *_ = play(Undecided, "team")
    assert masks == [[0, 1, 1]] + [[0, 1, 0]] * 5
    assert played[-1] == [1, 1]


@pytest.mark.parametrize(
    ("game", "credit"), [(Battle, "team"), (Battle, "agent"), (Unmasked, "team")]
)
def test_state_has_masks_where_dead_agents_stay_active(game, credit):
    """Their path is that of checkpoints before 0.3.0, which contained all observations."""
    env, params = wdjax.adapters.from_jaxmarl(game(), credit=credit)
    obs, state = env.reset(jax.random.key(0), params)
    if game is Battle and credit == "team":
        (group,) = env.groups
        np.testing.assert_array_equal(state.obs[group]["action_mask"], obs[group]["action_mask"])
    assert (state.obs is not None) == (game is Battle and credit == "team")


def test_unset_credit_warns_if_dead_agents_are_rewarded():
    class TinySMAX(Battle):
        pass

    with pytest.warns(
        UserWarning, match="credit is not set: TinySMAX pays dead agents .* Set credit='team'"
    ):
        from_jaxmarl(TinySMAX())
    for credit in ("agent", "team"):
        assert from_jaxmarl(TinySMAX(), credit)[0].credit == credit
    with pytest.raises(ValueError, match="unknown credit 'both'"):
        from_jaxmarl(TinySMAX(), "both")


@pytest.mark.slow
def test_environment_with_team_credit_passes_check_env():
    wdjax.check_env(*from_jaxmarl(Battle(), "team"), num_steps=100)


@pytest.mark.slow
@pytest.mark.parametrize(("credit", "expected"), [("agent", 13 + 2), ("team", 13 + 13)])
def test_episode_return_includes_rewards_of_dead_agents(credit, expected, registry, quick_compile):
    wdjax.register("battle", from_jaxmarl(Battle(), credit)[0])
    policies = {"soldier": PolicyConfig(network=NetworkConfig((4,), "tanh"), algorithm="A2C")}
    config = TrainConfig(
        env="battle", policies=policies, num_envs=2, rollout_length=8, total_env_steps=16
    )
    learner = make_learner(config)
    state, metrics = learner.update(learner.init(jax.random.key(0)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.policies))
    np.testing.assert_allclose(metrics["soldier/episode_return"], expected)


@pytest.mark.slow
def test_world_state_is_the_global_state():
    env, params = from_jaxmarl(Watched(), credit="team")
    assert env.global_state_space(params).shape == (4,)
    _, state = env.reset(jax.random.key(0), params)
    step = jax.jit(env.step)
    for _ in range(2):
        action = {"soldier": jnp.array([1, 0])}
        state = step(jax.random.key(1), state, action, params)[1]
    np.testing.assert_array_equal(env.global_state(state, params), [0.0, 1.0, 1.0, 0.0])
    assert from_jaxmarl(Battle(), credit="team")[0].global_state_space(params) is None
