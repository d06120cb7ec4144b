"""Mistakes in custom algorithms raise errors that name the policy and the allowed values."""

import jax
import jax.numpy as jnp
import pytest
from rnd import RND
from vdn import VDN

from wdjax.train import A2C, PPO, evaluate, load_config, make_learner, register_algorithm

MATCH = {
    "env": "match_env:Match",
    "policies": {"caller": {}, "answerer": {}},
    "num_envs": 4,
    "rollout_length": 6,
    "num_blocks": 2,
}


class FinalObs(VDN):
    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {"final_obs": final_obs}


class NoMetrics(VDN):
    def update_team(self, team, *arguments):
        *results, metrics = super().update_team(team, *arguments)
        return *results, {team.name: metrics[team.name]}


class NoLoss(VDN):
    def update_team(self, team, *arguments):
        *results, metrics = super().update_team(team, *arguments)
        return *results, {**metrics, "answerer": {"q": metrics["answerer"]["loss"]}}


class NoPolicy(VDN):
    def update_team(self, team, *arguments):
        states, *results = super().update_team(team, *arguments)
        return {"caller": states["caller"]}, *results


class Twice(PPO):
    """Stores the value in `act` and in `end_of_step`."""

    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {"value": jnp.zeros(truncated.shape)}


class Noted(PPO):
    def act(self, *arguments):
        action, fields, carry = super().act(*arguments)
        return action, {**fields, "logprob": fields["log_prob"]}, carry


class Carrying(A2C):
    """Returns another carry than it received."""

    def init_carry(self, policy, num_envs):
        return jnp.zeros((num_envs, policy.assignment.num_agents, 7))

    def act(self, policy, state, carry, obs, keys, hypers):
        action, fields, _ = super().act(policy, state, None, obs, keys, hypers)
        return action, fields, (carry[..., 1:], carry)

    def play(self, policy, state, carry, obs, keys, greedy):
        return super().play(policy, state, None, obs, keys, greedy)


class Lossless(PPO):
    def update(self, *arguments):
        state, memory, metrics = super().update(*arguments)
        return state, memory, {"loss": metrics["loss"]}


def learner_of(algorithm):
    place = f"{__name__}:{algorithm.__name__}"
    if issubclass(algorithm, VDN):
        team = {"policies": ["caller", "answerer"], "algorithm": place}
        return make_learner(load_config({**MATCH, "teams": {"pair": team}}))
    changes = {"policies.agent.algorithm": place, "num_envs": 4, "num_blocks": 2}
    return make_learner(load_config("cartpole_ppo", **changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (
            FinalObs,
            r"policies\.\w+: a field from end_of_step = 'final_obs': must be one of final_value, "
            "log_prob, next_obs, own, value; did you mean",
        ),
        (Twice, r"policies\.agent: a field from end_of_step = 'value': must be one of final_value"),
        (
            Noted,
            r"policies\.agent: a field from act = 'logprob': must be one of .*; "
            "did you mean 'log_prob'",
        ),
        (
            NoMetrics,
            r"team pair: metrics of update_team = \['pair'\]: must be a dict by policy, with "
            "caller and answerer",
        ),
        (NoPolicy, r"team pair: states of update_team = \['caller'\]: must be .* with answerer"),
        (
            NoLoss,
            r"metrics of policies\.answerer = \['q'\]: must be a dict with loss and grad_norm",
        ),
        (Lossless, r"metrics of policies\.agent = \['loss'\]: must be a dict with grad_norm\."),
        (
            Carrying,
            r"policies\.agent: act returned a carry \(float32\[4,1,6\], float32\[4,1,7\]\): must "
            r"have the structure of init_carry, float32\[4,1,7\]",
        ),
    ],
)
def test_wrong_results_are_named(algorithm, words):
    learner = learner_of(algorithm)
    state = jax.eval_shape(learner.init, jax.random.key(0))
    with pytest.raises((ValueError, TypeError), match=words):
        jax.eval_shape(learner.update, state)


@pytest.mark.slow
def test_a_wrong_carry_of_play_is_named():
    learner = learner_of(Carrying)
    state = learner.init(jax.random.key(0))
    words = r"policies\.agent: play returned a carry None: must have the structure of init_carry"
    with pytest.raises(TypeError, match=words):
        evaluate(learner, state, jax.random.key(1), num_episodes=2)


class Typo(RND):
    keeps = frozenset({"globl_state"})


def test_an_unknown_entry_of_keeps_is_named():
    words = r"keeps = .*globl_state.*: must be a frozenset with 'global_state', or empty; did you"
    with pytest.raises(ValueError, match=words):
        register_algorithm("mine", Typo)
