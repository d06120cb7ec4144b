"""The kernels of A2C's and PPO's networks against plain XLA, step by step in XLA (`interpret`): no GPU is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train import load_config, make_learner
from wdjax.train.algorithms.on_policy.acting import ByKernel, draw_actions, draw_by_kernel
from wdjax.train.algorithms.on_policy.losses import Objective, a2c_loss, kernel_gradient, loss
from wdjax.train.algorithms.on_policy.minibatches import Batch
from wdjax.train.kernels.act import choose, pieces
from wdjax.train.kernels.gradient import PROGRAMS, ROWS, gradient_kernel
from wdjax.train.kernels.layers import Shape, reaches, towers_of, transposed
from wdjax.train.networks.distributions import Categorical
from wdjax.train.state.state import current_hypers

pytestmark = pytest.mark.usefixtures("quick_compile")

WIDE = {
    "env_params.num_taggers": 2,
    "env_params.num_runners": 3,
    "env_params.num_other_agents_observed": 2,
}
WIDE |= {
    f"policies.{name}.network.hidden_sizes": [64, 64 * factor]
    for name, factor in (("tagger", 1), ("runner", 2))
}
HALF = {f"policies.{name}.network.compute_dtype": "bfloat16" for name in ("tagger", "runner")}
GELU = {"policies.shared.network.hidden_sizes": [16], "policies.shared.network.activation": "gelu"}
# Of tanh networks, whose products take float16: each of several roundings is 2^-12 = 2.4e-4 at most. The gradient of
# the whole, over many rows, is nearer; metrics, too, see the rounded outputs.
FLOAT16 = 3e-3
CASES = {  # preset, changes, policy, relative error of a gradient
    "one_tower": ("tag_gridworld", {}, "shared", 1e-5),
    "two_towers": ("cartpole_ppo", {"policies.agent.value_clip": 0.2}, "agent", FLOAT16),
    "deep": (
        "cartpole_ppo",
        {"policies.agent.network.hidden_sizes": [32, 16, 32]},
        "agent",
        FLOAT16,
    ),
    "one_layer": ("tag_gridworld", GELU, "shared", 1e-5),
    "wide": ("tag_continuous", WIDE, "runner", 1e-5),
    "wide_bfloat16": ("tag_continuous", {**WIDE, **HALF}, "runner", 5e-2),
}


@functools.cache
def make_case(name):
    """Returns (policy, state with parameters far from the start, hypers, tolerance)."""
    preset, changes, policy, tolerance = CASES[name]
    if name.startswith("wide"):  # 100 + 100 outputs are too many to be narrow
        levels = {"env_params.num_acceleration_levels": 40, "env_params.num_turn_levels": 40}
        changes = {**changes, **levels}
    learner = make_learner(load_config(preset, num_envs=8, **changes))

    @jax.jit
    def begin():
        state = learner.init(jax.random.key(0))
        own = state.policies[policy]
        leaves, tree = jax.tree.flatten(own.params)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        moved = [
            leaf + 0.2 * jax.random.normal(key, leaf.shape)
            for leaf, key in zip(leaves, keys, strict=True)
        ]
        own = own.replace(params=jax.tree.unflatten(tree, moved))
        return own, current_hypers(learner.config, state)[policy]

    return learner.setup.policies[policy], *begin(), tolerance


@functools.partial(jax.jit, static_argnums=(0, 1))
def rows_to_learn_from(policy, num_rows):
    keys = iter(jax.random.split(jax.random.key(2), 8))
    obs = jax.random.normal(next(keys), (num_rows, policy.kernels.num_inputs))
    space = policy.assignment.action_space
    action = jax.vmap(space.sample)(jax.random.split(next(keys), num_rows))
    names = ("value", "advantage", "target", "log_prob")
    numbers = {name: jax.random.normal(next(keys), (num_rows,)) for name in names}
    likely = -sum(np.log(policy.kernels.sizes))
    log_prob = (
        likely + 0.1 * numbers.pop("log_prob")
        if policy.config.algorithm == "PPO"
        else numbers.pop("log_prob")
    )
    live = jax.random.bernoulli(next(keys), 0.8, (num_rows,))
    return Batch(
        obs, action, log_prob if policy.config.algorithm == "PPO" else None, live=live, **numbers
    )


QUICK = {"one_tower", "two_towers"}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_the_kernels_gradient_is_that_of_the_loss(name):
    policy, state, hypers, tolerance = make_case(name)
    assert policy.kernels.is_narrow == (not name.startswith("wide"))
    batch = rows_to_learn_from(policy, 333)  # no multiple of a block
    grads, metrics = jax.jit(
        lambda batch: kernel_gradient(policy, state, hypers, batch, interpret=True)
    )(batch)
    loss_of = lambda params, batch: loss(policy, state.replace(params=params), hypers, batch)  # noqa: E731
    expected, expected_metrics = jax.jit(jax.grad(loss_of, has_aux=True))(state.params, batch)
    assert set(metrics) == set(expected_metrics)
    for metric, value in expected_metrics.items():
        np.testing.assert_allclose(
            metrics[metric], value, rtol=max(tolerance, 1e-4), err_msg=metric
        )
    for path, value in jax.tree_util.tree_leaves_with_path(expected):
        found = grads
        for entry in path:
            found = found[entry.key]
        assert float(np.max(np.abs(value))) > 0
        np.testing.assert_allclose(
            found, value, atol=tolerance * float(np.max(np.abs(value))), err_msg=str(path)
        )


SMALL = Shape(
    16, (16,), (2, 3), scalar=False, shared=True, activation="tanh", dtype="float32"
)  # 16 inputs: no padding
HYPERS = {name: jnp.float32(value) for name, value in (
    ("value_coefficient", 0.5), ("entropy_coefficient", 0.01), ("value_clip", jnp.inf)
)}  # fmt: skip
OBJECTIVE = Objective(a2c_loss, normalized=False)


@functools.partial(jax.jit, static_argnums=0)
def small_case(num_rows, seed=0):
    """Returns (params, inputs, action, row) of a network with one hidden layer, by hand."""
    keys = iter(jax.random.split(jax.random.key(seed), 16))
    layer = lambda rows, columns: {  # noqa: E731
        "kernel": jax.random.normal(next(keys), (rows, columns)) / 4, "bias": jax.random.normal(next(keys), (columns,))
    }  # fmt: skip
    params = {
        "trunk": {"mlp": {"layer_0": layer(16, 16)}},
        "policy_head": layer(16, 5),
        "value_head": layer(16, 1),
    }
    inputs = jax.random.normal(next(keys), (num_rows, 16))
    action = jnp.stack(
        [jax.random.randint(next(keys), (num_rows,), 0, size) for size in SMALL.sizes], axis=1
    )
    row = {
        name: jax.random.normal(next(keys), (num_rows,))
        for name in ("value", "advantage", "target")
    }
    return params, inputs, action, {**row, "live": jnp.arange(num_rows) % 5 != 1}


@jax.jit
def by_kernel(params, inputs, action, row):
    return gradient_kernel(SMALL, params, inputs, action, row, OBJECTIVE, HYPERS, interpret=True)


@jax.jit
def by_xla(params, inputs, action, row):
    def loss_of(params):
        hidden = params["trunk"]["mlp"]["layer_0"]
        hidden = jnp.tanh(inputs @ hidden["kernel"] + hidden["bias"][None, :])
        head = lambda name: hidden @ params[name]["kernel"] + params[name]["bias"][None, :]  # noqa: E731
        logs = [
            jax.nn.log_softmax(logits) for logits in jnp.split(head("policy_head"), [2], axis=1)
        ]
        log_prob = sum(
            jnp.take_along_axis(log, action[:, i : i + 1], axis=1)[:, 0]
            for i, log in enumerate(logs)
        )
        entropy = -sum(jnp.sum(jnp.exp(log) * log, axis=1) for log in logs)
        terms = OBJECTIVE.terms(log_prob, entropy, head("value_head")[:, 0], row, HYPERS)
        sums = {
            name: jnp.sum(jnp.where(row["live"], values, 0.0)) for name, values in terms.items()
        }
        return sums["policy_loss"] + 0.5 * sums["value_loss"] - 0.01 * sums["entropy"], sums

    return jax.grad(loss_of, has_aux=True)(params)


def check_near(found, expected):
    for got, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, value, rtol=0, atol=FLOAT16 * float(np.max(np.abs(value))))


@pytest.mark.parametrize(
    "num_rows",
    [
        1,
        65,
        PROGRAMS * ROWS + 1,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (63, 64)),
    ],
)
def test_every_row_counts_once_whatever_their_number(num_rows):
    case = small_case(num_rows)
    check_near(by_kernel(*case), by_xla(*case))


def test_float16_holds_gradients_of_any_size():
    params, inputs, action, row = small_case(PROGRAMS * ROWS + 1)  # two blocks for each program
    for exponents in (
        jnp.linspace(-2.0, 7.0, len(inputs)),
        jnp.linspace(7.0, -2.0, len(inputs)),
        jnp.float32(-7.0),
    ):
        scaled = {
            **row,
            "target": 10.0**exponents * row["target"],
            "advantage": 10.0**exponents * row["advantage"],
        }
        case = (params, inputs, action, scaled)
        check_near(by_kernel(*case)[0], by_xla(*case)[0])


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(
    "place", [2, PROGRAMS * ROWS - 1]
)  # in the first and in the second block of a program
def test_a_loss_that_is_not_finite_gives_gradients_that_are_not(number, place):
    params, inputs, action, row = small_case(PROGRAMS * ROWS + 1)
    assert row["live"][place]
    row["advantage"] = row["advantage"].at[place].set(number)
    for leaf in jax.tree.leaves(by_kernel(params, inputs, action, row)[0]["policy_head"]):
        assert not np.isfinite(leaf).any()


def test_dead_rows_have_no_gradient():
    params, inputs, action, row = small_case(65)
    grads, sums = by_kernel(params, inputs, action, {**row, "live": jnp.zeros(65, bool)})
    for leaf in jax.tree.leaves((grads, sums)):
        np.testing.assert_array_equal(leaf, 0.0)


def test_the_gradient_of_many_seeds_is_that_of_each():
    cases = [small_case(65, seed) for seed in range(3)]
    found = jax.device_get(
        jax.vmap(by_kernel)(*jax.tree.map(lambda *leaves: np.stack(leaves), *cases))
    )
    for i, case in enumerate(cases):
        check_near(jax.tree.map(lambda leaf, i=i: leaf[i], found), by_xla(*case))


@pytest.mark.parametrize("name", [*sorted(QUICK), pytest.param("wide", marks=pytest.mark.slow)])
def test_the_kernel_draws_what_plain_xla_draws(name):
    policy, state, _, tolerance = make_case(name)
    keys = jax.random.split(jax.random.key(3), 4)
    obs = jax.random.normal(jax.random.key(4), (8, 21, policy.kernels.num_inputs))

    @jax.jit
    def draw(obs):
        player = ByKernel(
            state, transposed(towers_of(state.params, policy.kernels), policy.kernels)
        )
        return draw_by_kernel(policy, player, obs, keys, interpret=True)

    action, notes = draw(obs)
    expected, expected_notes, _ = jax.jit(functools.partial(draw_actions, policy))(
        state, None, obs, keys
    )
    assert action.shape == expected.shape
    assert set(notes) == set(expected_notes)
    assert ("log_prob" in notes) == (policy.config.algorithm == "PPO")
    if tolerance < 1e-3:
        np.testing.assert_array_equal(action, expected)
        assert len(np.unique(action)) > 1
    else:  # rounded logits: a draw near the edge of two choices may fall on the other side
        assert np.mean(action == expected) > 0.9
    for note, values in notes.items():
        np.testing.assert_allclose(
            values, expected_notes[note], rtol=2 * tolerance, atol=2 * tolerance, err_msg=note
        )


def test_kernels_are_used_on_a_gpu_but_not_for_exact_products(monkeypatch):
    policy, state, _, _ = make_case("one_tower")
    assert not isinstance(policy.algorithm.before_rollout(policy, state), ByKernel)  # this is a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert isinstance(policy.algorithm.before_rollout(policy, state), ByKernel)
    with jax.default_matmul_precision("highest"):
        assert not isinstance(policy.algorithm.before_rollout(policy, state), ByKernel)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("pendulum_ppo", {}),  # actions of real numbers
        ("cartpole_ppo", {"policies.agent.network.recurrent_size": 16, "num_envs": 32}),
        ("cartpole_ppo", {"policies.agent.network.hidden_sizes": [512]}),
        ("cartpole_ppo", {"policies.agent.network.hidden_sizes": []}),
        (
            "tag_small",
            {f"policies.{name}.network.encoder": "deep_sets" for name in ("tagger", "runner")},
        ),
    ],
)
def test_what_has_no_kernel_says_so(preset, changes):
    learner = make_learner(load_config(preset, **changes))
    assert all(policy.kernels is None for policy in learner.setup.policies.values())


def test_pieces_cover_a_size_by_powers_of_two():
    assert pieces(71) == [(0, 64), (64, 16)]
    assert pieces(4) == [(0, 16)]
    assert pieces(128) == [(0, 128)]


def test_kernels_are_on_unless_they_are_not_wanted():
    for wanted in ({}, {"kernels": True}, {"kernels": False}):
        learner = make_learner(load_config("tag_gridworld", **wanted))
        assert (learner.setup.policies["shared"].kernels is None) == (wanted == {"kernels": False})


def test_kernels_leave_what_they_cannot_count_to_plain_xla():
    policy, *_ = make_case("one_tower")
    most = (2**31 - 1) // policy.kernels.num_inputs
    assert reaches(policy.kernels, most)
    assert not reaches(policy.kernels, most + 1)


def test_the_kernel_chooses_nothing_without_a_weight():
    """As `Categorical.choose`: also by the numbers at which the sums change, which fall where they are added in parts.
    (A card adds in other parts than a CPU, which takes more columns than a kernel has.)"""
    size, rng = 441, np.random.default_rng(0)
    allowed = rng.random(size) < 0.3
    logits = jnp.asarray(np.where(allowed, rng.normal(size=size), -200.0), jnp.float32)
    row = jnp.pad(logits, (3, 5))  # other components beside it
    sums = np.asarray(jnp.cumsum(jnp.pad(jnp.exp(logits - logits.max()), (3, 5))))
    edges = sums[sums < sums.max()] / sums.max()
    numbers = np.concatenate([rng.random(2_000, np.float32), edges])
    chosen = np.asarray(
        jax.jit(choose, static_argnums=(2, 3))(jnp.tile(row, (len(numbers), 1)), numbers, 3, size)
    )
    assert allowed[chosen].all()
    simple = Categorical((size,), scalar=True).choose(
        numbers[:2_000, None], jnp.tile(logits, (2_000, 1))
    )
    np.testing.assert_array_equal(chosen[:2_000], simple)
