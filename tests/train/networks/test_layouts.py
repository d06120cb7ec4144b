"""The layout of observations for set encoders, from the environment or from an option."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_probes import BoxSignal, tiny_ddpg
from flax import nnx
from probes import NETWORK, Signal, tiny_config, tiny_policy

import wdjax
from wdjax.train import Player, cross_play, make_learner, register_encoder
from wdjax.train.networks.checks import with_layout

pytestmark = pytest.mark.usefixtures("quick_compile", "registry")

KEY = jax.random.key(0)
TIME_IS_OTHER = f"{__name__}:time_is_other"


class Told(Signal):
    """Defines the signal as another agent, present if it is 1, and the time as own feature."""

    def split_observation(self, obs):
        return obs[..., :1, None], obs[..., :1] > 0, obs[..., 1:]


class ToldBox(BoxSignal):
    split_observation = Told.split_observation


def signal_is_other(obs):
    return obs[..., :1, None], obs[..., :1] > 0, obs[..., 1:]


def time_is_other(obs):
    return obs[..., 1:, None], obs[..., 1:] >= 0, obs[..., :1]


def learner_of(game, encoder="deep_sets", policy=None, **options):
    wdjax.register("told", game, replace=True)
    network = dataclasses.replace(
        NETWORK, hidden_sizes=(), encoder=encoder, encoder_options=options
    )
    policy = dataclasses.replace(policy or tiny_policy("A2C"), network=network)
    return make_learner(tiny_config("told", {"agent": policy}, env_params={"by_match": 1.0}))


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


@pytest.mark.parametrize(
    "encoder", [pytest.param(name, marks=pytest.mark.slow) for name in ("deep_sets", "attention")]
)
def test_layout_of_the_environment_is_the_default_option(encoder):
    from_env = learner_of(Told, encoder, width=16)
    named = learner_of(Signal, encoder, width=16, split=f"{__name__}:signal_is_other")
    first, same = (learner.init(KEY).policies["agent"].params for learner in (from_env, named))
    assert_equal(first, same)
    after, alike = (
        learner.update(learner.init(KEY))[0].policies["agent"].params
        for learner in (from_env, named)
    )
    assert_equal(after, alike)
    kernels = [params["trunk"]["encoder"]["phi"]["layer_0"]["kernel"] for params in (first, after)]
    assert np.any(kernels[0] != kernels[1])


@pytest.mark.slow
def test_policies_use_the_layout_of_the_environment():
    learner = learner_of(Told, width=16)
    state, policy = learner.init(KEY).policies["agent"], learner.setup.policies["agent"]
    values = policy.apply(state, jnp.array([[-1.0, 0.5], [-7.0, 0.5], [1.0, 0.5]]))[1]
    assert values[0] == values[1] != values[2]  # absent agents have no influence


def test_configurations_contain_no_function():
    learner = learner_of(Told)
    for policy in (learner.config.policies["agent"], learner.setup.policies["agent"].config):
        assert policy.network.encoder_options == {}


@pytest.mark.slow
def test_option_takes_precedence_over_the_environment():
    learner = learner_of(Told, split=TIME_IS_OTHER)
    state, policy = learner.init(KEY).policies["agent"], learner.setup.policies["agent"]
    values = policy.apply(state, jnp.array([[-1.0, 0.5], [-1.0, -0.5], [-1.0, -1.5]]))[1]
    assert values[0] != values[1] == values[2]


def test_ddpg_uses_the_layout_of_the_environment():
    params = (
        jax.eval_shape(learner_of(ToldBox, policy=tiny_ddpg(), width=4).init, KEY)
        .policies["agent"]
        .params
    )
    assert params["actor"]["trunk"]["encoder"]["phi"]["layer_0"]["kernel"].shape == (1, 4)


def test_set_encoders_require_a_layout():
    message = (
        "Signal does not define how to split observations into agents. "
        "Add a method split_observation, or name a"
    )
    for encoder in ("deep_sets", "attention"):
        with pytest.raises(
            ValueError, match=rf"^policies\.agent\.network\.encoder = '{encoder}': {message}"
        ):
            learner_of(Signal, encoder)


def taking(**split):
    """Return an encoder with the parameter `split`, required or with a default."""

    class Own(nnx.Module):
        if split:

            def __init__(self, observation_space, *, split=split["split"], rngs):
                self.num_features, self.told = 1, split
        else:

            def __init__(self, observation_space, *, split, rngs):
                self.num_features, self.told = 1, split

        def __call__(self, obs):
            return obs[..., :1]

    return Own


@pytest.mark.parametrize(
    ("encoder", "receives_layout", "without"),
    [(taking(), True, None), (taking(split=None), True, {}), (taking(split=0.5), False, {})],
    ids=["required", "None", "another meaning"],
)
def test_custom_encoders_receive_the_layout_if_split_has_no_own_default(
    encoder, receives_layout, without, monkeypatch
):
    """A parameter `split` with another default may have another meaning."""
    monkeypatch.setattr("wdjax.train.networks.encoders.ENCODERS", {})
    register_encoder("own", encoder)
    config = dataclasses.replace(NETWORK, encoder="own")
    assert with_layout(config, time_is_other).encoder_options == (
        {"split": time_is_other} if receives_layout else {}
    )
    assert with_layout(config, None) is config
    if without is None:
        with pytest.raises(ValueError, match="does not define how to split observations"):
            learner_of(Signal, "own")
    else:
        learner_of(Signal, "own")


@pytest.mark.slow
def test_redefined_environment_with_another_layout_uses_another_program():
    """As if a notebook cell runs again with a changed layout."""

    class Other(Told):
        def split_observation(self, obs):
            return time_is_other(obs)

    first, other = (learner_of(cls, width=1, depth=1) for cls in (Told, Other))
    state = first.init(KEY)
    params = jax.tree.map(jnp.zeros_like, state.policies["agent"].params)
    # the pooled feature is 1 if an agent is present
    params["trunk"]["encoder"]["phi"]["layer_0"]["bias"] = jnp.ones(1)
    # then the second action, otherwise the first
    params["policy_head"]["kernel"] = jnp.array([[0.0, 20.0], [0.0, 0.0]])
    params["policy_head"]["bias"] = jnp.array([10.0, 0.0])
    state = state.replace(policies={"agent": state.policies["agent"].replace(params=params)})
    cells = cross_play(
        first, state, KEY, 16, greedy=True, opponents=[Player("other", other, state)]
    )
    np.testing.assert_array_equal(cells["trained",].episode_return["agent"], 1.0)
    # time is always present: the second action
    assert set(cells["other",].episode_return["agent"]) == {-1.0, 1.0}
