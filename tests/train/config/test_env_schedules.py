"""Environment parameters that follow a schedule (`env_schedules`)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from refusals import refusal
from tiny_runs import assert_same_run, small_config

import wdjax
from wdjax import Box, Discrete
from wdjax.train import Population, Trainer, make_learner
from wdjax.train.host.progress import schedule_warnings

pytestmark = pytest.mark.usefixtures("quick_compile")

GRAVITY = {"fraction": [[0, 9.8], [0.5, -2], [1, -2]]}
VALUES = [9.8, 9.8 - 11.8 / 3, 9.8 - 11.8 * 2 / 3, -2, -2, -2]  # of 6 updates


@struct.dataclass
class PayParams:
    pay: float = 1.0


@struct.dataclass
class PayState:
    time: jax.Array


@dataclasses.dataclass(frozen=True)
class Pay(wdjax.Env):
    """Episodes of 4 steps, each paid `pay`."""

    @property
    def default_params(self):
        return PayParams()

    def reset(self, key, params):
        return jnp.zeros(1), PayState(jnp.int32(0))

    def step(self, key, state, action, params):
        state = PayState(state.time + 1)
        end = jnp.bool_(False), state.time >= 4
        return jnp.zeros(1), state, jnp.float32(params.pay), *end, {}

    def observation_space(self, params):
        return Box(shape=(1,))

    def action_space(self, params):
        return Discrete(2)


@pytest.mark.slow
def test_rewards_follow_the_schedule():
    wdjax.register("pay", Pay())
    schedule = [[0, 1.0], [256, 0.0]]  # two updates
    learner = make_learner(small_config(env="pay", env_schedules={"pay": schedule}))
    state = learner.init(jax.random.key(0))
    assert state.env_params.pay == 1.0
    for updates, pay in enumerate((1.0, 0.5, 0.0, 0.0)):
        after, played = learner.rollout(state.replace(num_updates=jnp.int32(updates)))
        assert (played.rows["agent"].reward == pay).all()
        assert (after.env_params.pay, after.env_params.pay.dtype) == (pay, np.float32)


@pytest.mark.parametrize(
    ("schedules", "words"),
    [
        ({"grvity": 1.0}, "float parameter in env_schedules 'grvity': did you mean 'gravity'?"),
        ({"max_steps": 1.0}, "unknown float parameter in env_schedules 'max_steps'"),
        ({"gravity": []}, "env_schedules.gravity = (): must be a number or at least one"),
        ({"gravity": [[0, float("inf")]]}, "must be finite, with env steps of at least 0"),
        ({"gravity": [[-1, 2]]}, "must be finite, with env steps of at least 0"),
        ({"gravity": [[2, 1], [1, 1]]}, "sorted by env_step"),
        ({"length": [[0, 1], [9, 0]]}, "length = 0.0: must be above 0"),
        ({"gravity": "low"}, "env_schedules.gravity = 'low': must be a number or a list"),
        ([1], "env_schedules = [1]: must be a mapping"),
    ],
)
def test_invalid_schedules_are_refused(schedules, words):
    changed = lambda: make_learner(small_config(env_schedules=schedules))  # noqa: E731
    assert words in refusal(changed)


def test_fractions_of_a_run_become_env_steps():
    learner = make_learner(small_config(env_schedules={"gravity": GRAVITY}))
    assert learner.config.env_schedules == {"gravity": ((0.0, 9.8), (384.0, -2.0), (768.0, -2.0))}
    shapes = jax.eval_shape(learner.init, jax.random.key(0))
    assert shapes.env_params.gravity.shape == ()


def test_a_schedule_that_outlasts_the_run_is_reported():
    for end, warned in ((768, False), (384, False), (1536, True)):
        config = small_config(env_schedules={"gravity": [[0, 9.8], [end, 5.0]]})
        warnings = [text for text in schedule_warnings(config, config) if "gravity" in text]
        assert len(warnings) == warned
    assert warnings[0].startswith(
        "Warning: env_schedules.gravity ends at env step 1,536, but the run ends at 768, where its "
        "value is 7.4."
    )


@pytest.mark.slow
def test_resumed_runs_continue_the_schedule(tmp_path):
    # evaluations and pictures compile other programs
    same, quiet = {"best_metric": "none"}, {"quiet": True, "pictures": False}
    config = small_config(env_schedules={"gravity": GRAVITY}, **same)
    Trainer(config, tmp_path / "whole", **quiet).train()
    half = small_config(env_schedules={"gravity": GRAVITY}, total_env_steps=4 * 128, **same)
    half = dataclasses.replace(half, env_schedules=make_learner(config).config.env_schedules)
    Trainer(half, tmp_path / "parts", **quiet).train()
    again = dataclasses.replace(half, total_env_steps=config.total_env_steps)
    Trainer(again, tmp_path / "parts", resume=True, **quiet).train()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_members_of_a_population_share_the_schedule():
    config = small_config(env_schedules={"gravity": GRAVITY})
    members = [dataclasses.replace(config, seed=seed) for seed in (3, 4)]
    members = [dataclasses.replace(own, env_params={"length": 0.5 + own.seed}) for own in members]
    population = Population(members)
    states = population.init()
    for value in VALUES:
        states, _ = population.run(states, num_updates=1)
        np.testing.assert_allclose(states.env_params.gravity, [value, value], rtol=1e-5)
    np.testing.assert_allclose(states.env_params.length, [3.5, 4.5])
