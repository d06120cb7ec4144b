"""Encoders: permutation-invariant sets of neighbors, custom networks, and errors."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from probes import NETWORK, tiny_config, tiny_policy

import wdjax
from wdjax import Box, Dict, Discrete
from wdjax.envs.tag.continuous import split_observation
from wdjax.train import NetworkConfig, PolicyConfig, make_learner, register_encoder
from wdjax.train.networks import encoders
from wdjax.train.networks.checks import check_encoder, check_options
from wdjax.train.networks.convolutions import CNN
from wdjax.train.networks.encoders import (
    ENCODERS,
    POOLS,
    Attention,
    DeepSets,
    Fourier,
    SetParts,
    encoder_class,
)

pytestmark = pytest.mark.usefixtures("quick_compile")

NEIGHBOURS = 5
SPACE = Box(-np.inf, np.inf, (7 * NEIGHBOURS + 1,))
SPLIT = {"split": "wdjax.envs.tag.continuous:split_observation"}
SETS = {
    "deep_sets_max": (DeepSets, {"width": 8}),
    "deep_sets_mean": (DeepSets, {"width": 8, "pool": "mean", "depth": 1}),
    "deep_sets_sum": (DeepSets, {"width": 8, "pool": "sum"}),
    "attention": (Attention, {"width": 8, "num_heads": 2}),
}


def test_fourier_features_by_hand():
    encoder = Fourier(Box(0.0, 1.0, (2,)), frequencies=2, rngs=nnx.Rngs(0))
    features = encoder(jnp.array([[0.25, 0.5], [1.25, 0.5]]))
    assert features.shape == (2, encoder.num_features) == (2, 10)
    waves = [1, 0, 0, -1, 0, 0, -1, 1]  # sin at 1 and 2, cos at 1 and 2, for each number
    np.testing.assert_allclose(features, [[0.25, 0.5, *waves], [1.25, 0.5, *waves]], atol=1e-6)


def tag_observation(others, present, time):
    """Return others [k, 6] and present [k] in the layout of tag_continuous."""
    return np.concatenate([np.asarray(others, np.float32).T.ravel(), present, [time]]).astype(
        np.float32
    )


def drawn(seed=0):
    return np.random.default_rng(seed).normal(size=(NEIGHBOURS, 6)), np.array([1, 1, 0, 1, 1]), 0.25


def test_split_observation_of_tag():
    others, present, own_features = split_observation(jnp.asarray(tag_observation(*drawn())))
    np.testing.assert_allclose(others[:, :6], drawn()[0], rtol=1e-6)
    np.testing.assert_array_equal(present, [True, True, False, True, True])
    np.testing.assert_array_equal(own_features, [0.25])


def test_padding_of_tag_is_absent():
    """Two agents observe at most one other. The rest of the four rows is padding."""
    sizes = {
        "num_taggers": 1,
        "num_runners": 5,
        "use_full_observation": False,
        "num_other_agents_observed": 4,
    }
    env, params = wdjax.make("tag_continuous", **sizes)
    obs, state = env.reset(jax.random.key(0), params)
    assert split_observation(obs["tagger"])[1].all()
    gone = state.replace(active=jnp.array([True, False, True, False, False, False]))
    present = split_observation(env.observe(gone, params)["tagger"])[1]
    assert present.sum() == 1


def test_own_motion_of_tag_is_separate_from_others():
    """Center, heading, speed and time follow the features of two others."""
    options = {"observe_own_motion": True, "egocentric": True}
    env, params = wdjax.make("tag_continuous", num_taggers=1, num_runners=2, **options)
    assert env.observation_space(params)["runner"].shape == (2, 7 * 2 + 6)
    others, present, own_features = env.split_observation(jnp.arange(7 * 2 + 6))
    np.testing.assert_array_equal(others, np.arange(14).reshape(7, 2).T)
    np.testing.assert_array_equal(present, [True, True])
    np.testing.assert_array_equal(own_features, [14, 15, 16, 17, 18, 19])


@pytest.fixture(scope="module", params=SETS)
def encoder(request):
    """Return (encoder with random parameters including biases, its jitted call)."""
    cls, options = SETS[request.param]
    module = cls(SPACE, **options, **SPLIT, rngs=nnx.Rngs(0))
    graphdef, params = nnx.split(module)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    params = tree.unflatten(
        [0.5 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    )
    return module, jax.jit(lambda obs: nnx.merge(graphdef, params)(obs))


def test_features_do_not_depend_on_the_order_of_neighbors(encoder):
    others, present, time = drawn()
    before = encoder[1](tag_observation(others, present, time))
    assert before.shape == (encoder[0].num_features,) == (9,)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(NEIGHBOURS)
        after = encoder[1](tag_observation(others[order], present[order], time))
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    mixed = others.copy()
    mixed[:, 0] = mixed[::-1, 0]  # exchanging features between neighbors changes the set
    assert np.abs(encoder[1](tag_observation(mixed, present, time)) - before).max() > 1e-3


def test_absent_neighbors_have_no_influence(encoder):
    others, present, time = drawn()
    before = encoder[1](tag_observation(others, present, time))
    for garbage in (0.0, 100.0, -7.0):
        others[2] = garbage
        np.testing.assert_array_equal(encoder[1](tag_observation(others, present, time)), before)
    others[1] += 1.0
    assert np.abs(encoder[1](tag_observation(others, present, time)) - before).max() > 1e-3


def test_features_of_absent_neighbors_are_zeros():
    others, present, own_features = SetParts(SPACE, split_observation)(
        jnp.asarray(tag_observation(*drawn()))
    )
    np.testing.assert_array_equal(others[2], 0)
    np.testing.assert_allclose(others[1, :6], drawn()[0][1], rtol=1e-6)
    assert (others.shape, present.shape, own_features.shape) == ((5, 7), (5,), (1,))


def test_features_without_neighbors_are_zeros_and_own_features(encoder):
    others, _, time = drawn()
    features = encoder[1](tag_observation(others, np.zeros(NEIGHBOURS), time))
    np.testing.assert_array_equal(features, [0] * 8 + [0.25])


def test_gradients_without_neighbors_are_finite(encoder):
    obs = jnp.zeros((2, SPACE.shape[0]))
    assert np.isfinite(jax.jit(jax.grad(lambda obs: encoder[1](obs).sum()))(obs)).all()


def test_encoders_accept_leading_axes(encoder):
    obs = np.stack([tag_observation(*drawn(seed)) for seed in range(6)])
    one_by_one = np.stack([encoder[1](row) for row in obs])
    np.testing.assert_allclose(
        encoder[1](obs.reshape(2, 3, -1)), one_by_one.reshape(2, 3, 9), rtol=1e-5, atol=1e-6
    )


def test_pools_by_hand():
    rows = jnp.array([[1.0, 4.0], [9.0, 9.0], [3.0, 0.0]])
    present = jnp.array([[True], [False], [True]])
    np.testing.assert_array_equal(POOLS["max"](rows, present), [3, 4])
    np.testing.assert_array_equal(POOLS["sum"](rows, present), [4, 4])
    np.testing.assert_array_equal(POOLS["mean"](rows, present), [2, 2])
    for pool in POOLS.values():
        np.testing.assert_array_equal(pool(rows, jnp.zeros((3, 1), bool)), [0, 0])


def test_attention_against_numpy():
    module = Attention(SPACE, width=4, num_heads=2, split=split_observation, rngs=nnx.Rngs(3))
    others, present, time = drawn()
    here = present == 1
    own_features = np.array([time])

    def linear(layer, rows):
        return rows @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])

    inputs = np.concatenate([others[here], np.ones((4, 1))], axis=1)
    features = np.maximum(linear(module.phi.layer_0, inputs), 0)
    query, key, value = (
        linear(module.query, own_features),
        linear(module.key, features),
        linear(module.value, features),
    )
    heads = []
    for head in (slice(0, 2), slice(2, 4)):
        score = key[:, head] @ query[head] / np.sqrt(2)
        weight = np.exp(score) / np.exp(score).sum()
        heads.append(weight @ value[:, head])
    expected = np.concatenate([*heads, own_features])
    np.testing.assert_allclose(
        module(jnp.asarray(tag_observation(others, present, time))), expected, rtol=1e-4
    )


def test_agent_type_is_an_own_feature():
    space = Dict({"obs": SPACE, "agent_type": Discrete(3)})
    module = DeepSets(space, width=4, **SPLIT, rngs=nnx.Rngs(0))
    assert module.num_features == 4 + 1 + 3
    obs = {"obs": jnp.asarray(tag_observation(*drawn())), "agent_type": jnp.int32(2)}
    np.testing.assert_array_equal(module(obs)[4:], [0.25, 0, 0, 1])


# --- custom encoders ---


class Doubled(nnx.Module):
    """A correct custom encoder."""

    def __init__(self, observation_space, width=3, *, rngs):
        self.layer = nnx.Linear(observation_space.shape[-1], width, rngs=rngs)
        self.num_features = width

    def __call__(self, obs):
        return 2 * self.layer(obs)


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setattr(encoders, "ENCODERS", ENCODERS.copy())


def test_custom_encoders_are_found_by_name_and_path(names):
    register_encoder("doubled", Doubled)
    assert encoder_class("doubled") is Doubled
    assert encoder_class(f"{__name__}:Doubled") is Doubled
    # as if a notebook cell runs twice
    redefined = type("Doubled", (Doubled,), {"__qualname__": "Doubled"})
    register_encoder("doubled", redefined)
    assert encoder_class("doubled") is redefined
    with pytest.raises(
        ValueError, match=r"name = 'flat': must be a name that is not used by another encoder"
    ):
        register_encoder("flat", Doubled)
    for name in ("", "a:b", 3):
        with pytest.raises(ValueError, match=f"name = {name!r}: must be a name without ':'"):
            register_encoder(name, Doubled)
    with pytest.raises(
        TypeError,
        match=r"encoder 'plain': must be a subclass of flax.nnx.Module, not <class 'dict'>",
    ):
        register_encoder("plain", dict)


@pytest.mark.slow
def test_custom_encoder_acts_and_learns(names):
    register_encoder("doubled", Doubled)
    network = dataclasses.replace(
        NETWORK, hidden_sizes=(), encoder="doubled", encoder_options={"width": 4}
    )
    learner = make_learner(
        tiny_config("probe_signal", {"agent": tiny_policy("A2C", network=network)})
    )
    first = learner.init(jax.random.key(0))
    assert first.policies["agent"].params["trunk"]["encoder"]["layer"]["kernel"].shape == (2, 4)
    state, _ = learner.update(first)
    kernels = [
        s.policies["agent"].params["trunk"]["encoder"]["layer"]["kernel"] for s in (first, state)
    ]
    assert np.any(kernels[0] != kernels[1])


@pytest.mark.parametrize(
    ("encoder", "options", "message"),
    [
        ("flatt", {}, r"net\.encoder = 'flatt': did you mean 'flat'\?"),
        ("nowhere:Class", {}, r"net\.encoder 'nowhere:Class': No module named 'nowhere'"),
        ("math:Class", {}, r"net\.encoder 'math:Class': module 'math' has no attribute 'Class'"),
        (
            ":Class",
            {},
            r"net\.encoder = ':Class': must be \"package\.module:Name\", a full import path",
        ),
        ("math:floor", {}, r"net\.encoder 'math:floor': must be a subclass of flax\.nnx\.Module"),
        (
            "deep_sets",
            {"widht": 8},
            r"option in net\.encoder_options of 'deep_sets' 'widht': did you mean 'width'\?",
        ),
        (
            "flat",
            {"rngs": 8},
            r"option in net\.encoder_options of 'flat' 'rngs': known names: none",
        ),
        ("flat", {"observation_space": 8}, r"'observation_space': known names: none"),
    ],
)
def test_unknown_encoders_and_options_raise(encoder, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check_options("net", NetworkConfig(encoder=encoder, encoder_options=options))


def broken(name):
    """Return an encoder that breaks one rule."""

    class Broken(Doubled):
        def __init__(self, observation_space, *, rngs):
            super().__init__(observation_space, rngs=rngs)
            if name == "no width":
                del self.num_features
            elif name == "float width":
                self.num_features = 3.0
            elif name == "statistics":
                self.norm = nnx.BatchNorm(3, rngs=rngs)
            elif name == "array":
                self.scale = jnp.ones(3)
            elif name == "fails":
                raise KeyError("no such thing")

        def __call__(self, obs):
            if name == "one axis":
                return jnp.einsum("nf,fk->nk", obs, self.layer.kernel[...])
            features = super().__call__(obs)
            return features[..., :2] if name == "other width" else features

    return Broken


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no width",
            r"must set num_features, the width of its output, to a whole number, not None",
        ),
        ("float width", r"must set num_features, .* not 3\.0"),
        ("statistics", r"norm\.mean is of type BatchStat; only nnx\.Param is stored and trained"),
        ("array", r"scale is of type .*Array; only nnx\.Param"),
        ("fails", r"with encoder_options \{\}: 'no such thing'"),
        ("one axis", r"must accept any leading axes, but fails for \(2, 3\)"),
        (
            "other width",
            r"returns \(4, 2\) for observations with leading axes \(4,\); must return \(4, 3\)",
        ),
    ],
)
def test_broken_encoders_raise(names, name, message):
    register_encoder("broken", broken(name))
    with pytest.raises(TypeError, match=r"net\.encoder 'broken'.*" + message):
        check_encoder("net", NetworkConfig(encoder="broken"), Box(shape=(2,)))
    with pytest.raises(TypeError, match=r"policies\.agent\.network\.encoder 'broken'"):
        make_learner(
            tiny_config(
                "probe_signal", {"agent": PolicyConfig(network=NetworkConfig(encoder="broken"))}
            )
        )


@pytest.mark.parametrize(
    ("encoder", "options", "message"),
    [
        ("deep_sets", {"pool": "men"}, r"unknown pool 'men': did you mean 'mean'\?"),
        ("deep_sets", {"depth": 0}, r"depth = 0: must be at least 1"),
        ("deep_sets", {"width": 1.5}, r"width = 1\.5: must be a whole number"),
        (
            "deep_sets",
            {"split": "nowhere:split"},
            r"encoder_options\.split 'nowhere:split': No module named",
        ),
        ("attention", {"num_heads": 3}, r"num_heads = 3: must be a divisor of width = 64"),
        ("attention", {"num_heads": 0}, r"num_heads = 0: must be at least 1"),
    ],
)
def test_wrong_options_of_set_encoders_raise(encoder, options, message):
    with pytest.raises(TypeError, match=re.escape(f"net.encoder {encoder!r}") + ".*" + message):
        check_encoder("net", NetworkConfig(encoder=encoder, encoder_options=SPLIT | options), SPACE)


def test_set_encoders_reject_observations_of_other_sizes():
    with pytest.raises(
        TypeError, match=r"length of an observation = 2: must be 7 per other agent plus 1"
    ):
        check_encoder("net", NetworkConfig(encoder="deep_sets"), Box(shape=(2,)), split_observation)


def test_set_encoders_reject_normalized_observations():
    """Zeros, which mark absent neighbors, would be shifted."""
    policy = PolicyConfig(network=NetworkConfig(encoder="attention"), normalize_observation=True)
    with pytest.raises(
        ValueError,
        match=r"policies\.agent\.normalize_observation = True: must be false with .*attention",
    ):
        make_learner(tiny_config("probe_signal", {"agent": policy}))


IMAGE = Box(0.0, 1.0, (5, 6, 2))


@pytest.mark.parametrize(("padding", "stride"), [("valid", 1), ("valid", 2), ("same", 1)])
def test_cnn_by_hand(padding, stride):
    encoder = CNN(IMAGE, channels=(3,), padding=padding, stride=stride, rngs=nnx.Rngs(0))
    image = np.random.default_rng(0).normal(size=(2, 5, 6, 2)).astype(np.float32)
    kernel = np.asarray(encoder.layer_0.kernel[...])  # [3, 3, 2, 3]
    border = 1 if padding == "same" else 0
    padded = np.pad(image, [(0, 0), (border,) * 2, (border,) * 2, (0, 0)])
    rows, columns = (range(0, side - 2, stride) for side in padded.shape[1:3])
    wanted = np.array(
        [
            [
                [np.einsum("hwc,hwco->o", one[i : i + 3, j : j + 3], kernel) for j in columns]
                for i in rows
            ]
            for one in padded
        ]
    )
    found = encoder(jnp.asarray(image))
    assert found.shape == (2, encoder.num_features)
    np.testing.assert_allclose(found, np.maximum(wanted, 0.0).reshape(2, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_cnn_appends_other_parts_and_takes_several_layers():
    space = Dict({"agent_type": Discrete(3), "obs": IMAGE})
    options = {"channels": (4, 8), "kernel_size": (3, 2), "layer_norm": True}
    encoder = CNN(space, **options, rngs=nnx.Rngs(0))
    obs = {"agent_type": jnp.array([[2], [0]]), "obs": jnp.ones((2, 1, 5, 6, 2), jnp.int32)}
    features = encoder(obs)
    assert features.shape == (2, 1, encoder.num_features) == (2, 1, 2 * 3 * 8 + 3)
    np.testing.assert_array_equal(features[:, 0, -3:], [[0, 0, 1], [1, 0, 0]])


def test_cnn_scales_images_and_draws_kernels():
    image = jnp.full((5, 6, 2), 255, jnp.uint8)
    for initializer, variance in {"orthogonal": 2, "he": 2, "lecun": 1}.items():
        options = {"channels": (64,), "initializer": initializer}
        one, scaled = (
            CNN(IMAGE, **options, scale=scale, rngs=nnx.Rngs(0)) for scale in (1.0, 1 / 255)
        )
        np.testing.assert_allclose(one(image) / 255, scaled(image), rtol=1e-5, atol=1e-6)
        # a kernel [3, 3, 2, 64] has 18 inputs; an orthogonal one of rank 18 has fewer
        wanted = 2 / 64 if initializer == "orthogonal" else variance / 18
        np.testing.assert_allclose(jnp.var(one.layer_0.kernel[...]), wanted, rtol=0.15)


def test_cnn_finds_the_image_of_an_inner_dict():
    """A dict observation with an agent type, as of JaxMARL's storm."""
    inner = Dict({"image": IMAGE, "inventory": Box(shape=(2,), dtype=jnp.int8)})
    encoder = CNN(Dict({"obs": inner, "agent_type": Discrete(2)}), rngs=nnx.Rngs(0))
    inner = {"image": jnp.ones((3, 5, 6, 2)), "inventory": jnp.full((3, 2), 7, jnp.int8)}
    features = encoder({"obs": inner, "agent_type": jnp.array([0, 1, 1])})
    assert features.shape == (3, encoder.num_features) == (3, 3 * 4 * 16 + 4)
    others = {(7.0, 7.0, 1.0, 0.0), (7.0, 7.0, 0.0, 1.0)}
    assert set(map(tuple, features[:, -4:].tolist())) == others
    alone = CNN(Dict({"image": IMAGE}), rngs=nnx.Rngs(0))
    assert alone({"image": jnp.ones((5, 6, 2))}).shape == (3 * 4 * 16,)


@pytest.mark.parametrize(
    ("space", "options", "error", "words"),
    [
        (Dict({"a": IMAGE, "b": Dict({"c": IMAGE})}), {}, TypeError, "a Dict with exactly one"),
        (Box(0.0, 1.0, (5,)), {}, TypeError, "a Box [height, width, channels], or a Dict"),
        (IMAGE, {"kernel_size": 6}, ValueError, "kernel_size = 6: must be kernels that fit into"),
        (IMAGE, {"stride": [1, 2]}, ValueError, "stride = [1, 2]: must be a number, or 1 numbers"),
        (IMAGE, {"padding": "full"}, ValueError, "padding"),
        (IMAGE, {"initializer": "hee"}, ValueError, "unknown initializer 'hee': did you mean 'he'"),
        (IMAGE, {"scale": 0.0}, ValueError, "scale = 0.0: must be finite and not 0"),
    ],
)  # fmt: skip
def test_cnn_refuses(space, options, error, words):
    with pytest.raises(error, match=re.escape(words)):
        CNN(space, **options, rngs=nnx.Rngs(0))
