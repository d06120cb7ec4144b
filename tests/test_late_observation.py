"""Late observation: overrides of a subclass are used, and `check_env` compares it with `step`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_contract import Line, LineState

import wdjax
from wdjax.env import may_observe_late
from wdjax.envs.tag.gridworld import TagGridworld


class Thousandfold(TagGridworld):
    """Overrides `step`, the most common change by users."""

    def step(self, key, state, action, params):
        obs, state, reward, *rest = super().step(key, state, action, params)
        return obs, state, jax.tree.map(lambda values: 1_000 * values, reward), *rest


class OtherStart(TagGridworld):
    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return jax.tree.map(jnp.ones_like, obs), state


class OtherSight(TagGridworld):
    """Overrides `observe`, which `step` and the batch both call."""

    def observe(self, scene, params):
        return jax.tree.map(jnp.zeros_like, super().observe(scene, params))


class Both(OtherStart, Thousandfold):
    pass


class SaysItAgain(Thousandfold):
    observes_late = True


def test_overriding_step_or_reset_disables_late_observation_unless_declared():
    late = {
        env: may_observe_late(env())
        for env in (TagGridworld, OtherSight, Thousandfold, OtherStart, Both)
    }
    assert late == {
        TagGridworld: True,
        OtherSight: True,
        Thousandfold: False,
        OtherStart: False,
        Both: False,
    }
    assert may_observe_late(SaysItAgain())
    assert not may_observe_late(wdjax.make("cartpole")[0])


@pytest.mark.usefixtures("quick_compile")
def test_vector_env_uses_overridden_step_and_reset():
    env = Both(num_taggers=1)
    params = env.default_params.replace(episode_length=1)
    vector, key = wdjax.vectorize(env, 2), jax.random.key(0)
    _, state = jax.jit(vector.reset)(key, params)
    still = {"tagger": jnp.zeros((2, 1), jnp.int32), "runner": jnp.zeros((2, 1), jnp.int32)}
    obs, _, reward, *_ = jax.jit(vector.step)(key, state, still, params)
    # a step without a tag costs 0.01
    np.testing.assert_allclose(reward["tagger"], [[-10.0]] * 2, rtol=1e-6)
    # both episodes ended, and new ones started
    np.testing.assert_array_equal(obs["runner"], 1.0)


# --- check_env ---


class Late(Line):
    """Correct. Its scene is the state."""

    observes_late = True

    def advance(self, key, state, action, params):
        _, after, *rest = super().step(key, state, action, params)
        return after, after, *rest

    def observe(self, scene, params=None):
        return super().observe(scene)


class LateAlone(Line):
    observes_late = True


class Unlike(Late):
    def advance(self, key, state, action, params):
        scene, after, reward, *rest = super().advance(key, state, action, params)
        return scene, after, reward * (1 + (after.time == 5)), *rest


class OtherClock(Late):
    def advance(self, key, state, action, params):
        scene, after, *rest = super().advance(key, state, action, params)
        return scene, LineState(after.place, after.time.astype(jnp.float32)), *rest


class WrongShape(Late):
    def observe(self, scene, params=None):
        obs = super().observe(scene)
        return obs if params is None else {**obs, "place": jnp.stack([scene.place] * 2)}


class FirstOtherwise(Late):
    def observe(self, scene, params=None):
        obs = super().observe(scene)
        return obs if params is None else {**obs, "place": obs["place"] + (scene.time == 0)}


class UnknownRatio(Line):
    info_ratios = {"pace": ("moved", "steps")}  # noqa: RUF012


class RatioOfOne(Line):
    info_ratios = {"pace": "moved"}  # noqa: RUF012


class Endless(Line):
    def step(self, key, state, action, params):
        *played, terminated, truncated, info = super().step(
            key, state, action, params.replace(reach=8.0)
        )
        return *played, terminated & False, truncated & (state.time > jnp.int32(500)), info

    def is_over(self, state, params):
        return jnp.bool_(False)

    def observe(self, state):
        return {**super().observe(state), "place": jnp.clip(state.place, -9, 9)[None]}


@dataclasses.dataclass(frozen=True)
class SmallClock(Endless):
    """Its clock overflows before the end, which no field of params specifies."""

    kind: str = "int8"
    first: int = 0

    def reset(self, key, params):
        obs, state = super().reset(key, params)
        return obs, state.replace(time=jnp.full((), self.first, self.kind))

    def step(self, key, state, action, params):
        obs, after, *rest = super().step(key, state, action, params)
        return obs, after.replace(time=state.time + jnp.ones((), self.kind)), *rest


@pytest.mark.slow
def test_correct_late_environment_passes():
    wdjax.check_env(Late(), num_steps=200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "num_steps", "message"),
    [
        (
            LateAlone,
            1,
            "observes_late = True, but LateAlone has no advance. Implement it, or leave "
            "observes_late False",
        ),
        (
            OtherClock,
            1,
            r"advance returns state\.time as float32 of shape \(\), step as int32 of shape",
        ),
        (
            WrongShape,
            1,
            r"observe returns obs\['place'\] as float32 of shape \(2,\): must be float32",
        ),
        (
            UnknownRatio,
            1,
            r"info_ratios\['pace'\] = \('moved', 'steps'\): must be \(sum, divisor\), two names of",
        ),
        (RatioOfOne, 1, r"info_ratios\['pace'\] = 'moved': must be \(sum, divisor\)"),
        (
            Unlike,
            400,
            r"advance and then observe gives reward = 2\.0 in step 5 of an episode, but step "
            r"gives 1\.0\. ",
        ),
        (
            FirstOtherwise,
            400,
            r"observe of the state gives obs\['place'\]\[0\] = .* at a reset, but reset gives .*",
        ),
        (Endless, 400, r"step 13 of an episode exceeds params\.episode_length = 12\. Terminate or"),
        (SmallClock, 1_500, r"step overflows state\.time, from 127 to -128\. Make it int32"),
        (
            functools.partial(SmallClock, "uint8", 200),
            1_500,
            r"step overflows state\.time, from 255 to 0\. Make it int32",
        ),
    ],
)
def test_check_env_rejects_wrong_late_environments(env, num_steps, message, monkeypatch):
    if num_steps > 1:  # skip the slower checks before random play
        monkeypatch.setattr(wdjax.env_checker, "CONTRACT", ())
    with pytest.raises(wdjax.EnvCheckError, match=message):
        wdjax.check_env(env(), num_steps=num_steps)
