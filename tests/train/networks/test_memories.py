"""Memories: against NumPy by their equations, in a run from training to export, and custom ones."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from probes import NETWORK, tiny_config, tiny_policy
from tiny_runs import small_config

from wdjax.train import (
    NetworkConfig,
    Trainer,
    evaluate,
    export_policy,
    load_config,
    load_policy,
    load_run,
    make_learner,
    register_memory,
)
from wdjax.train.config.trust import UntrustedModuleError, require_trusted
from wdjax.train.learning import RecurrentMemory
from wdjax.train.networks import memories
from wdjax.train.networks.checks import check_memory
from wdjax.train.networks.memories import MEMORIES, make_memory, memory_class

pytestmark = pytest.mark.usefixtures("quick_compile")

STEPS, SEQUENCES, WIDTH, SIZE = 9, 3, 4, 5
RESTARTS = np.zeros((STEPS, SEQUENCES), bool)
RESTARTS[[2, 3, 5], 1] = True
RESTARTS[[0, 8], 2] = True


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def weights(layer):
    """Return (matrix, bias) of a linear layer as float64."""
    bias = 0.0 if layer.bias is None else np.asarray(layer.bias[...], np.float64)
    return np.asarray(layer.kernel[...], np.float64), bias


def gru(cell, h, x):
    (w_x, b), (w_h, _) = weights(cell.dense_i), weights(cell.dense_h)
    r_x, z_x, n_x = np.split(x @ w_x + b, 3, axis=-1)
    r_h, z_h, n_h = np.split(h @ w_h, 3, axis=-1)
    r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
    h = (1 - z) * np.tanh(n_x + r * n_h) + z * h
    return h, h


def lstm(cell, carry, x):
    c, h = carry
    (w_x, _), (w_h, b) = weights(cell.dense_i), weights(cell.dense_h)
    i, f, g, o = np.split(x @ w_x + h @ w_h + b, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (c, h), h


def mingru(cell, h, x):
    (w_z, b_z), (w_h, b_h) = weights(cell.gate), weights(cell.candidate)
    z = sigmoid(x @ w_z + b_z)
    h = (1 - z) * h + z * (x @ w_h + b_h)
    return h, h


def two_lstms(stack, carry, x):
    first, x = lstm(stack.memories[0], carry[0], x)
    second, x = lstm(stack.memories[1], carry[1], x)
    return (first, second), x


REFERENCES = {"gru": gru, "lstm": lstm, "mingru": mingru, "two lstms": two_lstms}
CONFIGS = {name: {"memory": name} for name in MEMORIES} | {
    "two lstms": {"memory": "lstm", "recurrent_layers": 2}
}


@functools.cache
def drawn(name):
    """Return (memory with random parameters including biases, carry, inputs)."""
    config = NetworkConfig(**CONFIGS[name], recurrent_size=SIZE)
    memory = make_memory(WIDTH, config, nnx.initializers.lecun_normal(), nnx.Rngs(0))
    graphdef, params = nnx.split(memory)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves) + 2)
    leaves = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=False)]
    carry = jax.tree.map(
        lambda leaf: jax.random.normal(keys[-1], leaf.shape), memory.empty((SEQUENCES,))
    )
    xs = jax.random.normal(keys[-2], (STEPS, SEQUENCES, WIDTH))
    return nnx.merge(graphdef, tree.unflatten(leaves)), carry, xs


def by_equations(name, memory, carry, xs, restarts, start=0.0):
    """Return the features of all steps [T, M, size] in float64, and the last carry."""
    carry = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), carry)
    features = []
    for x, restart in zip(np.asarray(xs, np.float64), restarts, strict=True):
        carry = jax.tree.map(lambda leaf, r=restart: np.where(r[:, None], start, leaf), carry)
        carry, row = REFERENCES[name](memory, carry, x)
        features.append(row)
    return np.stack(features), carry


unroll = nnx.jit(lambda memory, *inputs: memory.unroll(*inputs))
step = nnx.jit(lambda memory, carry, x: memory(carry, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_equals_its_equations(name):
    memory, carry, xs = drawn(name)
    expected, carry_after = by_equations(name, memory, carry, xs[:1], RESTARTS[1:2])
    after, features = step(memory, carry, xs[0])
    np.testing.assert_allclose(features, expected[0], rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(carry_after), strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_unroll_equals_the_equations_with_restarts(name):
    memory, carry, xs = drawn(name)
    features = unroll(memory, carry, xs, RESTARTS)
    assert features.dtype == jnp.float32
    expected, _ = by_equations(name, memory, carry, xs, RESTARTS)
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_unroll_equals_repeated_steps(name):
    memory, carry, xs = drawn(name)
    together, empty = unroll(memory, carry, xs, RESTARTS), memory.empty((SEQUENCES,))
    for t in range(STEPS):
        begin = lambda first, leaf, t=t: jnp.where(RESTARTS[t][:, None], first, leaf)  # noqa: E731
        carry, features = step(memory, jax.tree.map(begin, empty, carry), xs[t])
        np.testing.assert_allclose(together[t], features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_episodes_start_at_a_custom_carry(name):
    memory, carry, xs = drawn(name)
    start = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.7), carry)
    features = unroll(memory, carry, xs, RESTARTS, start)
    expected, _ = by_equations(name, memory, carry, xs, RESTARTS, 0.7)
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "two lstms"])
def test_gpus_unroll_with_the_same_results_and_gradients(name, monkeypatch):
    memory, carry, xs = drawn(name)
    graphdef, params = nnx.split(memory)
    leaves, structure = jax.tree.flatten(carry)
    other = [jnp.full_like(leaf, 0.7 - 0.4 * i) for i, leaf in enumerate(leaves)]
    start = jax.tree.unflatten(structure, other)
    weights = jax.random.normal(jax.random.key(2), (STEPS, SEQUENCES, 1))

    def results(*start):
        def total(params, carry, xs):
            features = nnx.merge(graphdef, params).unroll(carry, xs, RESTARTS, *start)
            return jnp.sum(weights * features**2), features

        return jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(params, carry, xs)

    simple = results(), results(start)
    monkeypatch.setattr(memories, "on_cpu", lambda: False)
    fast = results(), results(start)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (simple, fast)), strict=True))
    for ours, expected in zip(*map(jax.tree.leaves, (fast, simple)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_subclass_of_gru_keeps_its_equations_on_gpus(monkeypatch):
    class Decaying(memories.GRU):
        def __call__(self, carry, x):
            return 0.5 * carry, carry

    monkeypatch.setattr(memories, "on_cpu", lambda: False)
    memory = Decaying(3, 2, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    features = memory.unroll(jnp.ones((1, 2)), jnp.zeros((3, 1, 3)), jnp.zeros((3, 1), bool))
    np.testing.assert_allclose(features[:, 0, 0], [1.0, 0.5, 0.25])


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_finite_and_stop_at_restarts(name):
    memory, carry, xs = drawn(name)
    graphdef, params = nnx.split(memory)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def gradients(params, carry, xs):
        features = nnx.merge(graphdef, params).unroll(carry, xs, RESTARTS)
        return jnp.sum(features[-1] ** 2)

    for scale in (1.0, 100.0):
        grads = gradients(params, carry, scale * xs)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))
    _, by_carry, by_input = gradients(params, carry, xs)
    for leaf in jax.tree.leaves(by_carry):
        assert np.any(leaf[0] != 0)
        assert np.all(np.asarray(leaf)[1:] == 0)
    reached = np.any(np.asarray(by_input) != 0, axis=-1)
    assert reached[:, 0].all()
    np.testing.assert_array_equal(reached[:, 1], np.arange(STEPS) >= 5)
    np.testing.assert_array_equal(reached[:, 2], np.arange(STEPS) == 8)


@pytest.mark.parametrize("name", CONFIGS)
def test_empty_carries_are_zeros(name):
    memory, carry, _ = drawn(name)
    leaves = jax.tree.leaves(memory.empty((2, 3)))
    assert len(leaves) == len(jax.tree.leaves(carry))
    for leaf in leaves:
        np.testing.assert_array_equal(leaf, np.zeros((2, 3, SIZE), np.float32))


# --- in a run ---


def memory_config(name, **changes):
    network = {"recurrent_size": 4, **CONFIGS.get(name, {"memory": name})}
    memory = {f"policies.agent.network.{field}": value for field, value in network.items()}
    return small_config(**memory, **{"policies.agent.minibatches": 1}, **changes)


def assert_same(one, other):
    one, other = (
        state.replace(key=jax.random.key_data(state.key), replicas=None) for state in (one, other)
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
def test_a_run_is_saved_resumed_evaluated_and_exported(tmp_path):
    name = "two lstms"  # its carry has the most parts
    whole = Trainer(memory_config(name), tmp_path / "whole", quiet=True, pictures=False).train()
    half = memory_config(name, total_env_steps=3 * 128)
    Trainer(half, tmp_path / "run", quiet=True, pictures=False).train()
    network = load_config(tmp_path / "run" / "config.yaml").policies["agent"].network
    assert {field: getattr(network, field) for field in CONFIGS[name]} == CONFIGS[name]
    resumed = Trainer(
        memory_config(name), tmp_path / "run", resume=True, quiet=True, pictures=False
    ).train()
    assert_same(resumed, whole)
    learner, state = load_run(tmp_path / "run")
    assert_same(state, whole)
    episodes = evaluate(learner, state, jax.random.key(1), 8)
    assert np.all(np.isfinite(episodes.episode_return["agent"]))

    policy = load_policy(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    action, memory = policy.act(obs)
    again, memory_after = policy.act(-obs, memory)
    pytest.importorskip("flatbuffers")

    function, arrays = export_policy(policy, tmp_path)
    from jax.export import deserialize

    call = deserialize(bytearray(function.read_bytes())).call
    key, outside = np.zeros((6, 2), np.uint32), policy.init_memory(6)
    for seen, expected in ((obs, action), (-obs, again)):
        got, outside = call(seen, outside, key, np.True_)
        np.testing.assert_array_equal(got, expected)
    for ours, theirs in zip(jax.tree.leaves(outside), jax.tree.leaves(memory_after), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert any(name.startswith("params/trunk/cell/") for name in np.load(arrays))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "mingru", "two lstms"])
def test_unrolling_in_the_loss_equals_acting(name):
    network = dataclasses.replace(NETWORK, **CONFIGS[name], recurrent_size=3)
    policy = tiny_policy("PPO", network=network, epochs=1, minibatches=1)
    learner = make_learner(tiny_config("probe_leaver", {"player": policy}, rollout_length=10))
    state = learner.init(jax.random.key(0))
    for _ in range(2):
        state, metrics = learner.update(state)
        assert metrics["player/approx_kl"] < 1e-9
    assert learner.setup.policies["player"].engine.reason == "it is recurrent"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mingru", "two lstms"])  # a carry of one leaf and of several
def test_snapshots_and_random_opponents_play_with_memories(name):
    """Four blocks of two replicas; another opponent in a block starts at the empty carry."""
    network = dataclasses.replace(NETWORK, **CONFIGS[name], recurrent_size=3)
    pool = {"past_selves": 2, "past_selves_every": 1, "opponents": {"random": 0.3}}
    first = tiny_policy("PPO", network=network, epochs=1, minibatches=1, **pool)
    policies = {
        "first": dataclasses.replace(first, agents=("player[0]",)),
        "second": dataclasses.replace(tiny_policy("A2C"), agents=("player[1]",)),
    }
    learner = make_learner(tiny_config("probe_leaver", policies, num_blocks=4))
    state, metrics = learner.run(learner.init(jax.random.key(0)), num_updates=4)
    assert np.isfinite(metrics["first/loss"][0])  # NaN if opponents play in all blocks
    leaves = jax.tree.leaves(state.policies["first"].params)
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
    empty = learner.setup.policies["first"].memory.empty((8, 1))
    carry = state.memory["first"].carry[0]
    assert jax.tree.structure(carry) == jax.tree.structure(empty)
    episodes = evaluate(learner, state, jax.random.key(1), 4)
    assert np.all(np.isfinite(episodes.episode_return["first"]))


# --- custom memories ---


class Sum(RecurrentMemory):
    """A correct custom memory, which starts at ones: h = h + layer(x)."""

    def __init__(self, in_features, size, *, kernel_init, rngs):
        self.size = size
        self.layer = nnx.Linear(in_features, size, kernel_init=kernel_init, rngs=rngs)

    def empty(self, shape):
        return {"sum": jnp.ones((*shape, self.size))}

    def __call__(self, carry, x):
        total = carry["sum"] + self.layer(x)
        return {"sum": total}, total


def test_the_code_of_a_saved_memory_must_be_trusted():
    policies = {"agent": {"network": {"memory": "theirs:Memory"}}}
    with pytest.raises(UntrustedModuleError, match=r"network\.memory = 'theirs:Memory'"):
        require_trusted("runs/theirs", {"policies": policies}, ())


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setattr(memories, "MEMORIES", MEMORIES.copy())


def test_custom_memories_are_found_by_name_and_path(names):
    register_memory("sum", Sum)
    assert memory_class("sum") is memory_class(f"{__name__}:Sum") is Sum
    with pytest.raises(
        ValueError, match=r"name = 'gru': must be a name that is not used by another memory"
    ):
        register_memory("gru", Sum)
    with pytest.raises(TypeError, match=r"memory 'plain': must be a subclass of flax.nnx.Module"):
        register_memory("plain", dict)


@pytest.mark.slow
def test_a_custom_memory_starts_at_its_empty_carry_and_learns():
    network = dataclasses.replace(NETWORK, memory=f"{__name__}:Sum", recurrent_size=3)
    policy = tiny_policy("PPO", network=network, epochs=1, minibatches=1)
    # two episodes of 4 steps
    learner = make_learner(tiny_config("probe_leaver", {"player": policy}, rollout_length=8))
    first = learner.init(jax.random.key(0))
    state, metrics = learner.update(first)
    for carry in (first.memory["player"].carry[0], state.memory["player"].carry[0]):
        np.testing.assert_array_equal(carry["sum"], np.ones((8, 2, 3)))
    assert metrics["player/approx_kl"] < 1e-9
    kernels = [
        s.policies["player"].params["trunk"]["cell"]["layer"]["kernel"] for s in (first, state)
    ]
    assert np.any(kernels[0] != kernels[1])


@pytest.mark.slow
def test_a_memory_that_is_registered_again_compiles_another_program(names):
    """As in a notebook cell that runs again."""

    def constant(sign):
        class Constant(Sum):
            def __call__(self, carry, x):
                return carry, jnp.full((*x.shape[:-1], self.size), sign)

        Constant.__qualname__ = "Constant"
        return Constant

    network = dataclasses.replace(NETWORK, memory="constant", recurrent_size=1)
    policy = tiny_policy("A2C", network=network)
    config = tiny_config("probe_signal", {"agent": policy}, env_params={"by_action": 1.0})
    for sign in (1.0, -1.0):
        register_memory("constant", constant(sign))
        learner = make_learner(config)
        state = learner.init(jax.random.key(0))
        own = state.policies["agent"]
        head = {"bias": jnp.zeros(2), "kernel": jnp.array([[-1.0, 1.0]])}
        own = own.replace(params={**own.params, "policy_head": head})
        state = state.replace(policies={"agent": own})
        returns = evaluate(learner, state, jax.random.key(1), 4, True).episode_return["agent"]
        np.testing.assert_array_equal(returns, sign)


@pytest.mark.parametrize(
    ("memory", "size", "message"),
    [
        ("grru", 4, r"policies\.agent\.network\.memory = 'grru': did you mean 'gru'\?"),
        ("nowhere:Class", 4, r"network\.memory 'nowhere:Class': No module named 'nowhere'"),
        ("math:floor", 4, r"network\.memory 'math:floor': must be a subclass of flax\.nnx\.Module"),
        ("lstm", 0, r"memory = 'lstm': must be 'gru' \(the default\) if recurrent_size is 0"),
    ],
)
def test_unknown_and_unused_memories_raise(memory, size, message):
    network = dataclasses.replace(NETWORK, memory=memory, recurrent_size=size)
    with pytest.raises((ValueError, TypeError), match=message):
        make_learner(tiny_config("probe_signal", {"agent": tiny_policy("A2C", network=network)}))


def broken(name):
    """Return a memory that breaks one rule."""

    class Broken(Sum):
        def __init__(self, in_features, size, *, kernel_init, rngs):
            super().__init__(in_features, size, kernel_init=kernel_init, rngs=rngs)
            self.first = nnx.Param(jnp.zeros(size))
            if name == "statistics":
                self.norm = nnx.BatchNorm(3, rngs=rngs)
            elif name == "fails":
                raise KeyError("no such thing")

        def empty(self, shape):
            if name == "no axes":
                return {"sum": jnp.ones(self.size)}
            if name == "learned start":
                return {"sum": jnp.ones((*shape, self.size)) * self.first}
            return super().empty(shape)

        def __call__(self, carry, x):
            carry, features = super().__call__(carry, x)
            if name == "other carry":
                return features, features
            return carry, features[..., :2] if name == "other width" else features

        def unroll(self, carry, xs, restarts):
            features = super().unroll(carry, xs, restarts)
            return features[0] if name == "one step" else features

    return Broken


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("statistics", r"norm\.mean is of type BatchStat; only nnx\.Param"),
        ("fails", r"'no such thing'"),
        ("no axes", r"empty\(\(4,\)\) returns \{'sum': 'float32\[3\]'\}; must return "),
        ("learned start", r"empty\(\(4,\)\), which may not use parameters: "),
        ("other carry", r"a step with leading axes \(4,\) returns .*must return \(\{'sum': "),
        (
            "other width",
            r"a step with leading axes \(4,\) returns .*'float32\[4, 2\]'\); must return",
        ),
        ("one step", r"unroll of 5 .* returns float32\[3, 3\]; must return float32\[5, 3, 3\]"),
    ],
)
def test_broken_memories_raise(names, name, message):
    register_memory("broken", broken(name))
    network = dataclasses.replace(NETWORK, memory="broken", recurrent_size=3)
    with pytest.raises(TypeError, match=r"net\.memory 'broken': " + message):
        check_memory("net", network, 8)
    with pytest.raises(TypeError, match=r"policies\.agent\.network\.memory 'broken'"):
        make_learner(tiny_config("probe_signal", {"agent": tiny_policy("A2C", network=network)}))


def test_feed_forward_networks_have_no_memory():
    assert check_memory("net", NetworkConfig(), 8) is None
