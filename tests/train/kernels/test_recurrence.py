"""Kernels of recurrent memories, interpreted in XLA, against plain XLA. No GPU is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import CARDS, lowered
from flax import nnx

from wdjax.kernels import recurrence
from wdjax.kernels.support import kernels_for, listening
from wdjax.train import load_config, make_learner
from wdjax.train.networks import memories, recurrences
from wdjax.train.networks.memories import GRU, LSTM, MemoryStack, MinGRU

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compile")]

STEPS, ROWS = 5, 2 * recurrence.ROWS + 3  # three programs, the last one not full
CELLS = {"gru": (GRU, 3), "lstm": (LSTM, 4), "mingru": (MinGRU, 2)}


@pytest.fixture
def interpreted(monkeypatch):
    for name in ("forward", "backward"):
        function = functools.partial(getattr(recurrence, name), interpret=True)
        monkeypatch.setattr(recurrence, name, function)
    call_cuda = lambda cuda, default, *operands: cuda(*operands)  # noqa: E731
    monkeypatch.setattr(recurrences, "cuda_or_default", call_cuda)


def assert_equal_up_to_float16(found, expected):
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert np.isfinite(ours).all()
        error = np.linalg.norm(np.subtract(ours, theirs, dtype=np.float64))
        assert error <= 2e-3 * np.linalg.norm(np.asarray(theirs, np.float64))


def results(name, by_kernel, size=16, scale=1.0):
    """Return hidden states, and gradients of a function of them times `scale`."""
    cell, gates = CELLS[name]
    keys = jax.random.split(jax.random.key(0), 7)
    bias = jax.random.normal(keys[5], (gates * size,))
    kernel = 0.3 * jax.random.normal(keys[0], (size, gates * size))
    kernel = None if name == "mingru" else kernel
    hidden = jax.random.normal(keys[1], (ROWS, size))
    carry = (0.5 * hidden, hidden) if name == "lstm" else hidden
    xs = jax.random.normal(keys[2], (STEPS, ROWS, 3))
    input_kernel = jax.random.normal(keys[6], (3, gates * size))
    restarts = jax.random.bernoulli(keys[3], 0.3, (STEPS, ROWS))
    weights = scale * jax.random.normal(keys[4], (STEPS, ROWS, size))
    start = jax.tree.map(lambda _: 0.0, carry)

    def total(input_kernel, kernel, bias, carry, xs):
        layers = (recurrences.Layer(input_kernel, kernel, bias),)
        rows = layers, (carry,), xs, restarts, (start,)
        hidden = recurrences.unroll(cell.advance, by_kernel, *rows)
        return jnp.sum(weights * hidden**2), hidden

    gradient = jax.jit(jax.grad(total, (0, 1, 2, 3, 4), has_aux=True))
    return gradient(input_kernel, kernel, bias, carry, xs)


@pytest.mark.parametrize(("name", "size"), [*((name, 16) for name in CELLS), ("mingru", 256)])
def test_kernels_agree_with_plain_xla(name, size, interpreted):
    assert_equal_up_to_float16(*(results(name, by_kernel, size) for by_kernel in (True, False)))


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_gradients_of_any_size_are_in_the_range_of_float16(scale, interpreted):
    found, expected = (results("gru", by_kernel, scale=scale) for by_kernel in (True, False))
    assert_equal_up_to_float16(found, expected)


def test_iterations_of_two_steps_and_of_one_agree(interpreted, monkeypatch):
    monkeypatch.setattr("test_recurrence.STEPS", 6)
    twice = results("mingru", by_kernel=True)
    monkeypatch.setattr(recurrence, "SHORT", 0)
    once = results("mingru", by_kernel=True)
    for ours, theirs in zip(*map(jax.tree.leaves, (twice, once)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("resident", [0, 3, 5])
def test_matrices_that_do_not_fit_stay_in_memory(resident, interpreted, monkeypatch):
    expected = results("lstm", by_kernel=False)
    monkeypatch.setattr(recurrence, "max_resident", lambda: resident * 16**2)
    assert_equal_up_to_float16(results("lstm", by_kernel=True), expected)


def memory_of(cell, num_layers):
    init = nnx.initializers.orthogonal()
    layers = [cell(n, 16, kernel_init=init, rngs=nnx.Rngs(n)) for n in (3, 16, 16)[:num_layers]]
    return layers[0] if num_layers == 1 else MemoryStack(layers)


@pytest.mark.parametrize(
    ("name", "num_layers"),
    [*((name, 1) for name in CELLS), ("mingru", 3), ("gru", 2), ("lstm", 2)],
)
def test_memories_agree_with_their_kernels(name, num_layers, interpreted, monkeypatch):
    monkeypatch.setattr(memories, "on_cpu", lambda: False)
    cell = CELLS[name][0]
    memory = memory_of(cell, num_layers)
    graphdef, params = nnx.split(memory)
    params = jax.tree.map(lambda leaf: leaf + 0.1 if leaf.ndim == 1 else leaf, params)  # biases
    xs = jax.random.normal(jax.random.key(1), (STEPS, ROWS, 3))
    restarts = jax.random.bernoulli(jax.random.key(2), 0.3, (STEPS, ROWS))
    carry = jax.tree.map(lambda leaf: leaf + 0.5, memory.empty((ROWS,)))

    def gradient(*start):
        def total(params, xs):
            features = nnx.merge(graphdef, params).unroll(carry, xs, restarts, *start)
            return jnp.sum(features**2), features

        with kernels_for(policy), listening() as decisions:
            found = jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, xs)
        return found, decisions

    policy = None
    expected, decisions = gradient()
    assert not decisions
    policy = "agent"
    depths = []
    unroll = memories.unroll
    counted = lambda *rows: depths.append(len(rows[2])) or unroll(*rows)  # noqa: E731
    monkeypatch.setattr(memories, "unroll", counted)
    found, decisions = gradient()
    assert decisions == {"memory of agent": None}
    assert depths == [num_layers]  # all layers together
    assert_equal_up_to_float16(found, expected)
    assert gradient(carry)[1] == {"memory of agent": "its init_carry is custom"}
    graphdef = nnx.split(memory_of(type("Own", (cell,), {}), num_layers))[0]
    assert not gradient()[1]  # a subclass may have other equations


@pytest.mark.parametrize("name", CELLS)
def test_memories_with_replaced_layers_use_plain_xla(name, interpreted, monkeypatch):
    monkeypatch.setattr(memories, "on_cpu", lambda: False)
    memory = CELLS[name][0](3, 16, kernel_init=nnx.initializers.orthogonal(), rngs=nnx.Rngs(0))
    layer = "gate" if name == "mingru" else "dense_i"
    size = getattr(memory, layer).out_features
    setattr(memory, layer, nnx.LoRALinear(3, size, lora_rank=2, rngs=nnx.Rngs(1)))
    xs = jax.random.normal(jax.random.key(1), (STEPS, ROWS, 3))
    carry = memory.empty((ROWS,))
    with kernels_for("agent"), listening() as decisions:
        features = memory.unroll(carry, xs, jnp.zeros((STEPS, ROWS), bool))
    assert not decisions
    for x, expected in zip(xs, features, strict=True):
        carry, found = memory(carry, x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory", CELLS)
@pytest.mark.parametrize("card", CARDS)
def test_updates_of_recurrent_policies_use_kernels_on_gpus(card, memory, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "unroll_memory_back" in update_text(card, memory=memory, recurrent_size=16)


def test_other_widths_and_configurations_use_plain_xla(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with listening() as decisions:
        assert "unroll_memory" not in update_text(CARDS[0], recurrent_size=24)
    assert "recurrent_size 24: kernels support 16, 32, 64, 128" in decisions["memory of agent"]
    assert "unroll_memory" not in update_text(CARDS[0], memory="gru", recurrent_size=256)
    assert "unroll_memory" in update_text(CARDS[0], memory="mingru", recurrent_size=256)
    assert "unroll_memory" not in update_text(CARDS[0], kernels=False, recurrent_size=16)


def update_text(card, kernels=True, **network):
    """Return the text of an update of a recurrent policy, lowered for a GPU."""
    changes = {f"policies.agent.network.{name}": value for name, value in network.items()}
    small = {"num_envs": 8, "rollout_length": 4, "devices": 1, "num_blocks": 1}
    changes |= {"policies.agent.minibatches": 1, "kernels": kernels}
    learner = make_learner(load_config("cartpole_ppo", **small, **changes))
    state = jax.eval_shape(learner.init, jax.random.key(0))
    return lowered(lambda state: learner.update(state), state, card=card)
