"""Compare the kernels of A2C and PPO, interpreted in XLA, with plain XLA. No GPU is needed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wdjax.train import A2C, load_config, make_learner
from wdjax.train.algorithms.fit import Batch
from wdjax.train.fast.choose import policy_engine
from wdjax.train.fast.cuda import ByKernel, draw_by_kernel, kernel_gradient, note_by_kernel
from wdjax.train.kernels import gradient
from wdjax.train.kernels.act import choose, pieces
from wdjax.train.kernels.gradient import gradient_kernel, launch_of, prepare
from wdjax.train.kernels.layers import STREAMED, Shape, reaches, shape_of
from wdjax.train.kernels.towers import towers_of, transposed
from wdjax.train.networks.distributions import Categorical
from wdjax.train.state.engine import BatchRows, Engine
from wdjax.train.state.flat import Flat
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
NETWORK = "policies.agent.network"
LIMIT = "kernels support up to 256"
RUNNER = "policies.runner.network"
ENCODER = {f"{RUNNER}.encoder": "deep_sets", f"{RUNNER}.hidden_sizes": [64]}
SEPARATE = {"shared_trunk": False, "activation": "relu", "hidden_sizes": [32]}
ENCODERS = ENCODER | {f"{RUNNER}.{field}": value for field, value in SEPARATE.items()}
MANY_INPUTS = {
    "env_params.num_taggers": 2,
    "env_params.num_runners": 8,
    "env_params.num_other_agents_observed": 9,
    "env_params.num_acceleration_levels": 4,
    "env_params.num_turn_levels": 4,
}
DEEP = MANY_INPUTS | {f"{RUNNER}.hidden_sizes": 4 * [64], f"{RUNNER}.activation": "tanh"}
TRUNKS = MANY_INPUTS | {
    "env_params.num_runners": 9,
    "env_params.num_other_agents_observed": 10,  # 71 inputs
    f"{RUNNER}.hidden_sizes": [64, 48],
    f"{RUNNER}.shared_trunk": False,
}
TRUNKS_ENCODERS = ENCODERS | {f"{RUNNER}.hidden_sizes": [48, 64]}
GELU = {"policies.shared.network.hidden_sizes": [16], "policies.shared.network.activation": "gelu"}
# Products use float16: each of several roundings is at most 2^-12 = 2.4e-4. Metrics are computed
# from the rounded outputs.
FLOAT16 = 3e-3
RELU = 2e-2  # rounding changes the sign of a few inputs of relu
NUM_ROWS = 333  # not a multiple of a block
CASES = {  # preset, changes, policy, relative error of a gradient
    "one_tower": ("tag_gridworld", {}, "shared", RELU),
    "two_towers": ("cartpole_ppo", {"policies.agent.value_clip": 0.2}, "agent", FLOAT16),
    "one_layer": ("tag_gridworld", GELU, "shared", FLOAT16),
    "encoder": ("tag_small", ENCODER, "runner", 2 * FLOAT16),  # features are larger
    # a loop reads the inputs and the first matrix
    "streamed": ("tag_continuous", TRUNKS, "runner", RELU),
    "streamed_one_tower": ("tag_continuous", DEEP, "runner", 2 * FLOAT16),
    "streamed_encoders": ("tag_small", TRUNKS_ENCODERS, "runner", RELU),
    "wide": ("tag_continuous", WIDE | {f"{RUNNER}.activation": "tanh"}, "runner", FLOAT16),
    "wide_relu": ("tag_continuous", WIDE, "runner", 5e-2),
    "wide_bfloat16": ("tag_continuous", {**WIDE, **HALF}, "runner", 5e-2),
}


@functools.cache
def make_case(name):
    """Return (policy, state with parameters far from the initial ones, hypers, tolerance)."""
    preset, changes, policy, tolerance = CASES[name]
    if name.startswith("wide"):  # too many outputs for a narrow network
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
def random_batch(policy, num_rows):
    keys = iter(jax.random.split(jax.random.key(2), 8))
    obs = jax.random.normal(next(keys), (num_rows, *policy.assignment.observation_space.shape))
    space = policy.assignment.action_space
    action = jax.vmap(space.sample)(jax.random.split(next(keys), num_rows))
    names = ("value", "advantage", "target", "log_prob")
    numbers = {name: jax.random.normal(next(keys), (num_rows,)) for name in names}
    uniform = -sum(np.log(policy.engine.shape.sizes))
    log_prob = uniform + 0.1 * numbers.pop("log_prob")
    valid = jax.random.bernoulli(next(keys), 0.8, (num_rows,))
    kept = log_prob if policy.algorithm.keeps_log_prob else None
    return Batch(obs, action, kept, valid=valid, **numbers)


@functools.cache
def gradients_of(name):
    """Return compiled functions of a batch: the gradient by the kernel, and by plain XLA."""
    policy, state, hypers, _ = make_case(name)
    inputs = (policy.algorithm.loss, policy, state, hypers)
    return (
        jax.jit(functools.partial(kernel_gradient, *inputs, interpret=True)),
        jax.jit(functools.partial(Engine().sum_gradient, *inputs)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_kernel_gradient_equals_gradient_of_the_loss(name):
    policy, _, _, tolerance = make_case(name)
    assert policy.engine.shape.is_narrow == (not name.startswith("wide"))
    assert (policy.engine.shape.inputs == STREAMED) == name.startswith("streamed")
    batch = random_batch(policy, NUM_ROWS)
    (grads, metrics), (expected, expected_metrics) = (run(batch) for run in gradients_of(name))
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


@pytest.mark.slow
@pytest.mark.parametrize("counts", [True, False])
def test_hidden_units_beyond_float16_give_a_bad_gradient_if_their_row_counts(counts):
    batch = random_batch(make_case("wide_relu")[0], NUM_ROWS)
    batch = dataclasses.replace(
        batch, obs=batch.obs.at[3].mul(1e6), valid=batch.valid.at[3].set(counts)
    )

    def is_finite(grads):
        return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(grads))

    by_kernel, by_xla = gradients_of("wide_relu")
    assert is_finite(by_xla(batch)[0])
    assert is_finite(by_kernel(batch)[0]) == (not counts)


@pytest.mark.slow
def test_small_gradients_of_the_policy_are_exact_next_to_large_ones_of_the_value():
    policy, _, _, tolerance = make_case("wide")
    batch = random_batch(policy, NUM_ROWS)
    batch = dataclasses.replace(batch, target=1e7 * batch.target)
    found, expected = (run(batch)[0]["policy_head"]["kernel"] for run in gradients_of("wide"))
    np.testing.assert_allclose(found, expected, atol=tolerance * float(jnp.max(jnp.abs(expected))))


# 16 inputs need no padding
SMALL = Shape(16, (16,), (2, 3), shared=True, activation="tanh", dtype="float32")
ONE_BLOCK_EACH = launch_of(SMALL).rows * launch_of(SMALL).programs  # rows of one block per program
OPTIONS = A2C.Options(value_coefficient=0.5, entropy_coefficient=0.01)


@functools.partial(jax.jit, static_argnums=0)
def small_case(num_rows, seed=0):
    """Return (params, inputs, action, row) of a network with one hidden layer."""
    keys = iter(jax.random.split(jax.random.key(seed), 16))

    def layer(rows, columns):
        kernel = jax.random.normal(next(keys), (rows, columns)) / 4
        return {"kernel": kernel, "bias": jax.random.normal(next(keys), (columns,))}

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
    return params, inputs, action, {**row, "valid": jnp.arange(num_rows) % 5 != 1}


@jax.jit
def by_kernel(params, inputs, action, row):
    rows = BatchRows(None, **row)
    task, data = prepare(SMALL, [inputs], action, rows, A2C().loss, OPTIONS, interpret=True)
    grads, sums, _ = gradient_kernel(task, data, Flat.of(params, 4))
    return grads.split(), sums


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
        terms = {
            "policy_loss": -log_prob * row["advantage"],
            "value_loss": (head("value_head")[:, 0] - row["target"]) ** 2,
            "entropy": entropy,
        }
        sums = {name: jnp.sum(jnp.where(row["valid"], term, 0.0)) for name, term in terms.items()}
        return sums["policy_loss"] + 0.5 * sums["value_loss"] - 0.01 * sums["entropy"], sums

    return jax.grad(loss_of, has_aux=True)(params)


def check_near(found, expected, error=FLOAT16):
    for got, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, value, rtol=0, atol=error * float(np.max(np.abs(value))))


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [64, 65, ONE_BLOCK_EACH + 1])
def test_every_transition_counts_once(num_rows):
    case = small_case(num_rows)
    check_near(by_kernel(*case), by_xla(*case))


@pytest.mark.slow
def test_gradients_of_any_magnitude_fit_float16():
    params, inputs, action, row = small_case(ONE_BLOCK_EACH + 1)  # two blocks for each program
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_tower", "one_layer", "streamed"])
def test_hidden_units_of_any_magnitude_fit_float16(name):
    """Large observations in some rows do not change the results of the others."""
    policy, state, _, tolerance = make_case(name)
    batch = random_batch(policy, NUM_ROWS)
    size = jnp.where(jnp.arange(NUM_ROWS) % 7 == 3, 1e6, 1.0)
    batch = batch.replace(obs=batch.obs * size.reshape(-1, *[1] * (batch.obs.ndim - 1)))
    if not policy.engine.shape.shared:  # else gradients of the policy vanish next to the value's
        (grads, _), (expected, _) = (run(batch) for run in gradients_of(name))
        check_near(grads, expected, tolerance)
    by_kernel = jax.jit(functools.partial(note_by_kernel, policy, (NUM_ROWS,), interpret=True))
    by_xla = jax.jit(functools.partial(Engine().note, policy))
    value, expected = (note(state, batch.obs, None)["value"] for note in (by_kernel, by_xla))
    assert np.max(np.abs(expected)) > 1e5
    allowed = 2 * FLOAT16 * np.where(size > 1.0, np.max(np.abs(expected)), 1.0)
    assert np.all(np.abs(value - expected) <= allowed * (1.0 + np.abs(expected) * (size == 1.0)))


@pytest.mark.slow
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(
    "place", [2, ONE_BLOCK_EACH - 1]
)  # in the first and in the second block of a program
def test_non_finite_loss_gives_non_finite_gradients(number, place):
    params, inputs, action, row = small_case(ONE_BLOCK_EACH + 1)
    assert row["valid"][place]
    row["advantage"] = row["advantage"].at[place].set(number)
    for leaf in jax.tree.leaves(by_kernel(params, inputs, action, row)[0]["policy_head"]):
        assert not np.isfinite(leaf).any()


def test_invalid_transitions_have_no_gradient():
    params, inputs, action, row = small_case(65)
    grads, sums = by_kernel(params, inputs, action, {**row, "valid": jnp.zeros(65, bool)})
    for leaf in jax.tree.leaves((grads, sums)):
        np.testing.assert_array_equal(leaf, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("programs", [launch_of(SMALL).programs, 4])
def test_vmapped_gradient_equals_gradients_of_members(programs, monkeypatch):
    """Each of three members has one program if there are four: its blocks run one by one."""
    launch = launch_of(SMALL)._replace(programs=programs)
    monkeypatch.setattr(gradient, "launch_of", lambda _: launch)
    run = jax.jit(lambda *case: by_kernel.__wrapped__(*case))  # traced with this launch
    cases = [small_case(65, seed) for seed in range(3)]
    found = jax.device_get(jax.vmap(run)(*jax.tree.map(lambda *leaves: np.stack(leaves), *cases)))
    for i, case in enumerate(cases):
        check_near(jax.tree.map(lambda leaf, i=i: leaf[i], found), by_xla(*case))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["one_tower", "two_towers", "encoder"]
    + [name for name in CASES if name.startswith(("wide", "streamed"))],
)
def test_kernel_samples_actions_of_plain_xla(name):
    policy, state, _, tolerance = make_case(name)
    keys = jax.random.split(jax.random.key(3), 4)
    size = policy.assignment.observation_space.shape
    obs = jax.random.normal(jax.random.key(4), (8, 21, *size))

    @jax.jit
    def draw(obs):
        shape = policy.engine.shape
        acting = ByKernel(state, transposed(towers_of(state.params, shape), shape))
        return draw_by_kernel(policy, acting, obs, keys, interpret=True)

    action, notes = draw(obs)
    act = jax.jit(functools.partial(Engine().act, policy))
    expected, expected_notes, _ = act(state, None, obs, keys)
    assert action.shape == expected.shape
    assert set(notes) == set(expected_notes)
    assert ("log_prob" in notes) == (policy.config.algorithm == "PPO")
    if tolerance < 1e-3:
        np.testing.assert_array_equal(action, expected)
        assert len(np.unique(action)) > 1
    else:  # a draw close to the boundary of two actions may select the other one
        assert np.mean(action == expected) > 0.9
    for note, values in notes.items():
        np.testing.assert_allclose(
            values, expected_notes[note], rtol=2 * tolerance, atol=2 * tolerance, err_msg=note
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_towers", "streamed"])
def test_many_rows_and_few_rows_give_the_same_actions(name, monkeypatch):
    policy, state, _, _ = make_case(name)
    size = policy.assignment.observation_space.shape
    obs = jax.random.normal(jax.random.key(4), (8, 21, *size))
    keys = jax.random.split(jax.random.key(3), 4)
    shape = policy.engine.shape
    acting = ByKernel(state, transposed(towers_of(state.params, shape), shape))
    few = draw_by_kernel(policy, acting, obs, keys, interpret=True)
    # larger blocks, and both towers in each program
    monkeypatch.setattr("wdjax.train.kernels.act.FEW", 0)
    many = draw_by_kernel(policy, acting, obs, keys, interpret=True)
    np.testing.assert_array_equal(few[0], many[0])
    for note, values in few[1].items():
        np.testing.assert_allclose(values, many[1][note], rtol=1e-5, atol=1e-6, err_msg=note)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_tower", "streamed"])
def test_a_gpu_acts_by_kernel_except_at_highest_precision(name, monkeypatch):
    policy, state, _, _ = make_case(name)
    assert not isinstance(policy.algorithm.before_rollout(policy, state), ByKernel)  # on the CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    policy = dataclasses.replace(policy, engine=policy_engine(policy, kernels=True))
    acting = policy.algorithm.before_rollout(policy, state)
    assert isinstance(acting, ByKernel)
    with jax.default_matmul_precision("highest"):
        assert not isinstance(policy.algorithm.before_rollout(policy, state), ByKernel)


def test_policies_with_very_many_inputs_have_no_kernels(monkeypatch):
    monkeypatch.setattr("wdjax.train.kernels.layers.MAX_STREAMED", 50)
    why = shape_of(make_case("streamed")[0])
    assert "71 inputs, hidden_sizes [64, 48]: kernels support small networks with up to 50" in why


@pytest.mark.parametrize(
    ("preset", "changes", "reason"),
    [
        ("pendulum_ppo", {}, "its actions are continuous"),
        ("cartpole_ppo", {f"{NETWORK}.recurrent_size": 16, "num_envs": 32}, "it is recurrent"),
        ("cartpole_ppo", {f"{NETWORK}.hidden_sizes": [512]}, f"hidden_sizes [512]: {LIMIT}"),
        ("cartpole_ppo", {f"{NETWORK}.hidden_sizes": []}, f"hidden_sizes []: {LIMIT}"),
    ],
)
def test_policy_without_kernels_records_the_reason(preset, changes, reason):
    learner = make_learner(load_config(preset, **changes))
    for policy in learner.setup.policies.values():
        assert policy.engine.shape is None
        assert policy.engine.reason == reason


def test_pieces_cover_a_size_by_powers_of_two():
    assert pieces(71) == [(0, 64), (64, 16)]
    assert pieces(4) == [(0, 16)]
    assert pieces(128) == [(0, 128)]


@pytest.mark.parametrize("kernels", [None, True, False])
def test_kernels_are_enabled_by_default(kernels):
    changes = {} if kernels is None else {"kernels": kernels}
    engine = make_learner(load_config("tag_gridworld", **changes)).setup.policies["shared"].engine
    assert (engine.shape is None) == (kernels is False)
    assert engine.reason == ("kernels: false" if kernels is False else "")


def test_kernels_index_at_most_2_31_numbers():
    policy, *_ = make_case("one_tower")
    most = (2**31 - 1) // policy.engine.shape.num_inputs
    assert reaches(policy.engine.shape, most)
    assert not reaches(policy.engine.shape, most + 1)


@pytest.mark.slow
def test_kernel_never_chooses_an_action_of_probability_0():
    """Also for uniform numbers equal to a cumulative sum, which depend on the order of addition."""
    size, rng = 441, np.random.default_rng(0)
    allowed = rng.random(size) < 0.3
    logits = jnp.asarray(np.where(allowed, rng.normal(size=size), -200.0), jnp.float32)
    row = jnp.pad(logits, (3, 5))  # other components on both sides
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
