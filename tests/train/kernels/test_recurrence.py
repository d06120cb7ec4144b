"""Kernels of recurrent memories, interpreted in XLA, against plain XLA. No GPU is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cards import CARDS, kernels_in, lowered
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


def results(name, by_kernel, size=16, scale=1.0, steps=STEPS, settings=None):
    """Return hidden states, and gradients of a function of them times `scale`."""
    cell, gates = CELLS[name]
    keys = jax.random.split(jax.random.key(0), 7)
    bias = jax.random.normal(keys[5], (gates * size,))
    kernel = 0.3 * jax.random.normal(keys[0], (size, gates * size))
    kernel = None if name == "mingru" else kernel
    hidden = jax.random.normal(keys[1], (ROWS, size))
    carry = (0.5 * hidden, hidden) if name == "lstm" else hidden
    xs = jax.random.normal(keys[2], (steps, ROWS, 3))
    input_kernel = jax.random.normal(keys[6], (3, gates * size))
    restarts = jax.random.bernoulli(keys[3], 0.3, (steps, ROWS))
    weights = scale * jax.random.normal(keys[4], (steps, ROWS, size))
    gradient = gradient_of(cell, by_kernel, settings)
    return gradient(input_kernel, kernel, bias, carry, xs, restarts, weights)


@functools.cache
def gradient_of(cell, by_kernel, settings):
    """Return a compiled function. `settings` name the constants of the kernels it is traced by."""

    def total(input_kernel, kernel, bias, carry, xs, restarts, weights):
        layers = (recurrences.Layer(input_kernel, kernel, bias),)
        start = jax.tree.map(lambda _: 0.0, carry)
        rows = layers, (carry,), xs, restarts, (start,)
        hidden = recurrences.unroll(cell.advance, by_kernel, *rows)
        return jnp.sum(weights * hidden**2), hidden

    return jax.jit(jax.grad(total, (0, 1, 2, 3, 4), has_aux=True))


@pytest.mark.parametrize(("name", "size"), [*((name, 16) for name in CELLS), ("mingru", 256)])
def test_kernels_agree_with_plain_xla(name, size, interpreted):
    assert_equal_up_to_float16(*(results(name, by_kernel, size) for by_kernel in (True, False)))


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_gradients_of_any_size_are_in_the_range_of_float16(scale, interpreted):
    found, expected = (results("gru", by_kernel, scale=scale) for by_kernel in (True, False))
    assert_equal_up_to_float16(found, expected)


def test_iterations_of_two_steps_and_of_one_agree(interpreted, monkeypatch):
    twice = results("mingru", by_kernel=True, steps=6)
    monkeypatch.setattr(recurrence, "SHORT", 0)
    once = results("mingru", by_kernel=True, steps=6, settings="short")
    for ours, theirs in zip(*map(jax.tree.leaves, (twice, once)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("resident", [0, 3, 5])
def test_matrices_that_do_not_fit_stay_in_memory(resident, interpreted, monkeypatch):
    expected = results("lstm", by_kernel=False)
    monkeypatch.setattr(recurrence, "max_resident", lambda: resident * 16**2)
    found = results("lstm", by_kernel=True, settings=f"{resident} resident")
    assert_equal_up_to_float16(found, expected)


def memory_of(cell, num_layers):
    init = nnx.initializers.orthogonal()
    layers = [cell(n, 16, kernel_init=init, rngs=nnx.Rngs(n)) for n in (3, 16, 16)[:num_layers]]
    return layers[0] if num_layers == 1 else MemoryStack(layers)


@pytest.mark.parametrize(("name", "num_layers"), [("gru", 1), ("lstm", 2), ("mingru", 3)])
def test_memories_agree_with_their_kernels(name, num_layers, interpreted, monkeypatch):
    monkeypatch.setattr(memories, "on_cpu", lambda: False)
    cell = CELLS[name][0]
    memory = memory_of(cell, num_layers)
    graphdef, params = nnx.split(memory)
    params = jax.tree.map(lambda leaf: leaf + 0.1 if leaf.ndim == 1 else leaf, params)  # biases
    xs = jax.random.normal(jax.random.key(1), (STEPS, ROWS, 3))
    restarts = jax.random.bernoulli(jax.random.key(2), 0.3, (STEPS, ROWS))
    carry = jax.tree.map(lambda leaf: leaf + 0.5, memory.empty((ROWS,)))

    def gradient(*start, run=jax.jit):
        def total(params, xs):
            features = nnx.merge(graphdef, params).unroll(carry, xs, restarts, *start)
            return jnp.sum(features**2), features

        with kernels_for(policy), listening() as decisions:
            found = run(jax.grad(total, (0, 1), has_aux=True))(params, xs)
        return found, decisions

    def decisions_of(*start):
        return gradient(*start, run=lambda function: functools.partial(jax.eval_shape, function))[1]

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
    assert decisions_of(carry) == {"memory of agent": "its init_carry is custom"}
    graphdef = nnx.split(memory_of(type("Own", (cell,), {}), num_layers))[0]
    assert not decisions_of()  # a subclass may have other equations


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


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@pytest.mark.parametrize(
    ("card", "name"), [*zip(CARDS, ("gru", "lstm", "mingru", "gru"), strict=True)]
)
def test_kernels_lower_for_every_gpu(card, name):
    text = lowered(functools.partial(results, name, True, settings=card), card=card)
    assert {"unroll_memory", "unroll_memory_back"} <= kernels_in(text)


@pytest.mark.parametrize("memory", CELLS)
def test_updates_of_recurrent_policies_use_kernels_on_gpus(memory, as_on_a_gpu):
    learner, state = learner_of(memory=memory, recurrent_size=16)
    assert "unroll_memory_back" in kernels_in(lowered(lambda state: learner.update(state), state))


@pytest.mark.parametrize(
    ("cell", "size", "why"),
    [
        (GRU, 16, None),
        (GRU, 24, "recurrent_size 24: kernels support 16, 32, 64, 128"),
        (GRU, 256, "recurrent_size 256: kernels support 16, 32, 64, 128"),
        (MinGRU, 256, None),
    ],
)
def test_other_widths_use_plain_xla(cell, size, why, as_on_a_gpu):
    init = nnx.initializers.orthogonal()
    memory = cell(3, size, kernel_init=init, rngs=nnx.Rngs(0))
    rows = memory.empty((4,)), jnp.ones((STEPS, 4, 3)), jnp.zeros((STEPS, 4), bool)
    with kernels_for("agent"), listening() as decisions:
        text = str(jax.make_jaxpr(memory.unroll)(*rows))
    (found,) = decisions.values()
    assert why is found or found.startswith(why)
    assert ("unroll_memory" in text) == (why is None)


def test_configurations_without_kernels_use_plain_xla(as_on_a_gpu):
    learner, state = learner_of(kernels=False, recurrent_size=16)
    assert "unroll_memory" not in str(jax.make_jaxpr(lambda state: learner.update(state))(state))


def learner_of(kernels=True, **network):
    """Return the learner of a recurrent policy, and the shapes of its state."""
    changes = {f"policies.agent.network.{name}": value for name, value in network.items()}
    small = {"num_envs": 8, "rollout_length": 4, "devices": 1, "num_blocks": 1}
    changes |= {"policies.agent.minibatches": 1, "kernels": kernels}
    learner = make_learner(load_config("cartpole_ppo", **small, **changes))
    return learner, jax.eval_shape(learner.init, jax.random.key(0))
