"""All on-policy options together on the probe `Shop`, against a NumPy reference.

Pilots are recurrent with separate trunks, act by a squashed Gaussian and normalize everything.
Clerks make two masked choices. The novice, one of them, is feed-forward; the others have a shared
recurrent trunk and minibatches. Pilots and the novice take one step of plain gradient descent,
which is compared with numerical derivatives of the reference.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_on_policy as reference
from probes import NETWORK, ShopParams, tiny_config, tiny_policy

from wdjax.train import PPO, make_learner, with_hypers
from wdjax.train.state.registry import ALGORITHMS
from wdjax.train.storage.checkpoint import open_checkpoints, restore, save

pytestmark = pytest.mark.usefixtures("quick_compile")

GAMMA, LAMBDA, UPDATES = 0.7, 0.95, 3
RECURRENT = dataclasses.replace(NETWORK, recurrent_size=4)
SEPARATE = dataclasses.replace(RECURRENT, shared_trunk=False)
NORMALIZED = {"normalize_observation": True, "normalize_advantage": True, "normalize_reward": True}
PLAIN = {
    "epochs": 1,
    "minibatches": 1,
    "optimizer": "sgd",
    "max_grad_norm": math.inf,
    "value_clip": 0.3,
    "entropy_coefficient": 0.1,
}
POLICIES = {
    "pilot": tiny_policy(
        "PPO", network=SEPARATE, action_distribution="squashed_gaussian", **NORMALIZED, **PLAIN
    ),
    "novice": tiny_policy(
        "PPO", agents=("clerk[0:1]",), neg_pos_env_ratio=0.0, **NORMALIZED, **PLAIN
    ),
    "clerk": tiny_policy(
        "PPO", agents=("clerk[1:3]",), network=RECURRENT, normalize_advantage=False
    ),
}
RATES = [f"{name}.learning_rate" for name in POLICIES]


@pytest.fixture(scope="module", autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


class Spied(PPO):
    """PPO that stores all final observations and reports ratios and valid transitions."""

    def loss(self, new, batch, options, mean):
        error = jnp.where(batch.valid, jnp.abs(jnp.exp(new.log_prob - batch.log_prob) - 1), 0.0)
        spied = {"ratio_error": jnp.max(error), "live_rows": jnp.sum(batch.valid)}
        spied = {name: jnp.broadcast_to(value, new.log_prob.shape) for name, value in spied.items()}
        return super().loss(new, batch, options, lambda terms: mean(terms | spied))

    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {
            **super().end_of_step(policy, state, carry, final_obs, truncated),
            "next_obs": final_obs,
        }


@pytest.fixture(scope="module")
def shop():
    """Return (learner, states before and after each of three updates, rollouts, metrics).

    The learning rate is 0 until the last update: the policy that acted computes all minibatches.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ALGORITHMS, "PPO", Spied)
        patch.setattr(
            "wdjax.train.learner.learner.episode_metrics", lambda played, *_: {"played": played}
        )
        learner = make_learner(tiny_config("probe_shop", POLICIES, num_blocks=4))
        state = learner.init(jax.random.key(5))
        params = ShopParams(leave=0.07, dead_obs=1e3, dead_reward=-1e3)
        state = state.replace(
            env_params=jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), state.env_params, params)
        )
        states, played, metrics = [with_hypers(state, **dict.fromkeys(RATES, 0.0))], [], []
        for i in range(UPDATES):
            if i == UPDATES - 1:
                states[i] = with_hypers(states[i], **dict.fromkeys(RATES, 0.01))
            state, row = learner.update(states[i])
            played.append(jax.device_get(row.pop("played")))
            states.append(state)
            metrics.append(row)
        yield learner, states, played, metrics


@dataclasses.dataclass
class Seen:
    """Results of the reference for one policy and one rollout."""

    rows: Any
    outputs: np.ndarray
    value: np.ndarray
    advantage: np.ndarray
    target: np.ndarray
    # name of a part -> (mean, variance), of all valid transitions up to the end of this rollout
    seen_statistics: dict
    # statistics of the discounted sums of all valid transitions until the end of this rollout
    reward_variance: float
    sums: np.ndarray  # discounted sums after the last step, 0 where an episode ended
    losses: Callable  # parameters -> terms of the loss


@pytest.fixture(scope="module")
def expected(shop):
    """Return {policy: [Seen of each rollout]}."""
    _, states, played, _ = shop
    return {
        name: list(of_policy(config, name, states, played)) for name, config in POLICIES.items()
    }


def of_policy(config, name, states, played):
    rows_so_far, sums_so_far, before = {"place": [], "clock": []}, [], 0.0
    # initial statistics do not shift observations, but these are clipped
    statistics, variance = (
        dict.fromkeys(rows_so_far, (0.0, 1.0)) if config.normalize_observation else None,
        1.0,
    )
    for state, part in zip(states, played, strict=False):
        rows, over = part.rows[name], part.over
        params = float64(state.policies[name].params)
        carry = part.first_carry[name] or (None, None)
        play = functools.partial(
            reference.replay,
            obs=rows.obs,
            final_obs=rows.next_obs,
            last_obs=part.last_obs[name],
            carry=carry,
            over=over,
            statistics=statistics,
        )
        outputs, value, following = play(params)
        reward = (
            np.clip(rows.reward / np.sqrt(variance + 1e-8), -10, 10)
            if config.options.normalize_reward
            else rows.reward
        )
        advantage = reference.advantages(
            reward, value, following, rows.terminated, over, GAMMA, LAMBDA
        )
        sums, before = reference.discounted_sums(
            rows.reward.astype(np.float64), over, GAMMA, before
        )
        for part_name, leaf in (
            ("place", rows.obs["inner"]["place"]),
            ("clock", rows.obs["clock"]),
        ):
            rows_so_far[part_name].append(leaf[rows.live].astype(np.float64))
        sums_so_far.append(sums[rows.live])
        all_rows = {key: np.concatenate(value) for key, value in rows_so_far.items()}
        now = {key: (value.mean(0), value.var(0)) for key, value in all_rows.items()}
        seen_variance = np.concatenate(sums_so_far).var()
        losses = functools.partial(losses_of, config, rows, play, advantage, advantage + value)
        yield Seen(
            rows, outputs, value, advantage, advantage + value, now, seen_variance, before, losses
        )
        statistics = now if config.normalize_observation else None
        variance = seen_variance


def losses_of(config, rows, play, advantage, target, params):
    """Return the terms of the loss of a policy with these parameters."""
    outputs, value, _ = play(params)
    if "free" in params:
        log_std = np.broadcast_to(params["free"], outputs.shape)
        log_prob = reference.squashed_log_prob(outputs, log_std, in_the_box(rows.action), -1.0, 3.0)
        entropy = reference.squashed_entropy(outputs, log_std, -1.0, 3.0)
    else:
        log_prob = reference.choice_log_prob(outputs, rows.obs["action_mask"], rows.action)
        entropy = reference.choice_entropy(outputs, rows.obs["action_mask"])
    live = rows.live & positive_replicas(config, rows)[:, None]
    return reference.ppo_loss(
        log_prob,
        entropy,
        value,
        (rows.log_prob, rows.value),
        advantage,
        target,
        live,
        config.options,
    )


def in_the_box(free):
    """Return the pilots' actions, between -1 and 3, from their unbounded samples."""
    return 1 + 2 * np.tanh(free.astype(np.float64))


def positive_replicas(config, rows):
    """Return [N] bool, the replicas to learn from, if `neg_pos_env_ratio` is 0 or disabled."""
    positive = np.any(rows.terminated & rows.live, axis=(0, 2))
    return (
        positive if config.options.neg_pos_env_ratio == 0 and positive.any() else np.ones(8, bool)
    )


def each(shop, expected):
    """Yield (policy, configuration, metrics, reference) for every policy and update."""
    for name, parts in expected.items():
        for i, seen in enumerate(parts):
            metrics = {
                key.removeprefix(f"{name}/"): value
                for key, value in shop[3][i].items()
                if key.startswith(name)
            }
            yield name, POLICIES[name], metrics, seen


@pytest.mark.slow
def test_the_rollouts_contain_every_kind_of_transition(shop, expected):
    for _, _, _, seen in each(shop, expected):
        rows = seen.rows
        assert not rows.live.all()
        assert np.any(rows.terminated & rows.live)
        assert np.any(rows.live[1:] & ~rows.live[:-1])  # another episode starts inside the rollout
    assert len(np.unique(shop[2][0].rows["clerk"].obs["action_mask"].reshape(-1, 5), axis=0)) > 5
    assert shop[2][0].over.any(axis=0).all()
    assert not shop[2][0].over[-1].any()  # carries cross rollouts


# --- acting ---


@pytest.mark.slow
def test_values_equal_the_reference_step_by_step(shop, expected):
    """The recurrent state is reset at the end of an episode, and only there."""
    for _, _, _, seen in each(shop, expected):
        live = seen.rows.live
        np.testing.assert_allclose(seen.rows.value[live], seen.value[live], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_final_values_use_the_carry_before_the_reset(shop, expected):
    for _, _, metrics, seen in each(shop, expected):
        live = seen.rows.live
        np.testing.assert_allclose(
            metrics["advantage_mean"], seen.advantage[live].mean(), rtol=1e-3, atol=1e-3
        )
        np.testing.assert_allclose(metrics["advantage_std"], seen.advantage[live].std(), rtol=1e-3)
        np.testing.assert_allclose(
            metrics["return_mean"], seen.target[live].mean(), rtol=1e-3, atol=1e-3
        )


def test_log_probabilities_use_the_mask_and_the_squashed_density(shop, expected):
    for name, _, _, seen in each(shop, expected):
        rows, live = seen.rows, seen.rows.live
        if name == "pilot":  # the initial standard deviations are 1
            exact = reference.squashed_log_prob(
                seen.outputs, np.zeros(2), in_the_box(rows.action), -1.0, 3.0
            )
        else:
            exact = reference.choice_log_prob(seen.outputs, rows.obs["action_mask"], rows.action)
        np.testing.assert_allclose(rows.log_prob[live], exact[live], rtol=1e-3, atol=1e-3)


def test_unroll_equals_single_steps(shop, expected):
    learner, states, played, _ = shop
    for name, policy in learner.setup.policies.items():
        if not policy.config.network.recurrent_size:
            continue
        part, seen = played[1], expected[name][1]
        flat = lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:])  # noqa: E731
        carry = jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), part.first_carry[name])
        restart = np.concatenate([np.zeros((1, 8), bool), part.over[:-1]])
        restart = np.repeat(restart, policy.assignment.num_agents, axis=1)
        obs = jax.tree.map(flat, part.rows[name].obs)
        _, value = jax.jit(policy.unroll)(states[1].policies[name], obs, carry, restart)
        live = flat(seen.rows.live)
        np.testing.assert_allclose(value[live], flat(seen.value)[live], rtol=1e-3, atol=1e-4)


def test_ratio_is_1_on_valid_transitions_before_the_first_change(shop):
    for metrics in shop[3][:-1]:
        for name in POLICIES:
            assert metrics[f"{name}/ratio_error"] < 1e-4
            assert metrics[f"{name}/approx_kl"] < 1e-6
    assert shop[3][0]["clerk/gradient_steps"] == 4  # 2 epochs of 2 minibatches
    assert shop[3][-1]["clerk/ratio_error"] > 1e-3  # and not 1 afterwards


# --- learning ---


def test_losses_equal_the_reference(shop, expected):
    for name in ("pilot", "novice"):
        for state, seen, metrics in zip(shop[1], expected[name], shop[3], strict=False):
            for part, exact in seen.losses(float64(state.policies[name].params)).items():
                np.testing.assert_allclose(metrics[f"{name}/{part}"], exact, rtol=1e-3, atol=1e-4)


def float64(params):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.mark.parametrize("name", ["pilot", "novice"])
def test_one_step_follows_the_gradient_of_the_whole_loss(shop, expected, name):
    """Compare the change of every parameter array along a random direction."""
    before, after = (float64(state.policies[name].params) for state in shop[1][-2:])
    loss = lambda params: expected[name][-1].losses(params)["loss"]  # noqa: E731
    rng, squares = np.random.default_rng(0), 0.0
    for keys, old in jax.tree_util.tree_leaves_with_path(before):
        path = [key.key for key in keys]
        new = functools.reduce(lambda tree, key: tree[key], path, after)
        gradient, direction = (old - new) / 0.01, rng.choice([-1.0, 1.0], old.shape)
        size = np.linalg.norm(gradient)
        assert size > 1e-4, path
        slope = reference.slope_along(loss, before, path, direction)
        np.testing.assert_allclose(
            np.sum(gradient * direction), slope, rtol=2e-3, atol=2e-3 * size, err_msg=str(path)
        )
        squares += size**2
    np.testing.assert_allclose(shop[3][-1][f"{name}/grad_norm"], np.sqrt(squares), rtol=1e-3)


# --- running statistics ---


def test_observation_statistics_are_of_all_valid_transitions(shop, expected):
    for name, parts in expected.items():
        config = POLICIES[name]
        for state, seen in zip(shop[1][1:], parts, strict=True):
            normalizer = state.policies[name].normalizer
            if not config.normalize_observation:
                assert normalizer is None
                continue
            ours = {"place": normalizer.obs["inner"]["place"], "clock": normalizer.obs["clock"]}
            for part, (mean, variance) in seen.seen_statistics.items():
                np.testing.assert_allclose(ours[part].mean, mean, rtol=1e-5)
                np.testing.assert_allclose(ours[part].variance, variance, rtol=1e-3, atol=1e-5)
            assert normalizer.obs["light"] is normalizer.obs["inner"]["choices"] is None
            assert "action_mask" not in normalizer.obs


def test_reward_statistics_are_of_discounted_sums_of_valid_transitions(shop, expected):
    for name, parts in expected.items():
        if not POLICIES[name].options.normalize_reward:
            continue
        for i, seen in enumerate(parts):
            state, live = shop[1][i + 1], seen.rows.live
            np.testing.assert_allclose(
                state.policies[name].normalizer.reward.variance, seen.reward_variance, rtol=1e-4
            )
            np.testing.assert_allclose(
                state.memory[name].discounted_return, GAMMA * seen.sums, rtol=1e-4
            )
            before = 1.0 if i == 0 else np.sqrt(parts[i - 1].reward_variance)
            np.testing.assert_allclose(shop[3][i][f"{name}/reward_scale"], before, rtol=1e-4)
            assert np.count_nonzero(~live) > 0


# --- metrics ---


def test_rollout_metrics_are_over_valid_transitions(shop, expected):
    for _, _, metrics, seen in each(shop, expected):
        live = seen.rows.live
        reward = seen.rows.reward[live]
        for ending, function in {"mean": np.mean, "min": np.min, "max": np.max}.items():
            np.testing.assert_allclose(metrics[f"reward_{ending}"], function(reward), rtol=1e-4)
        np.testing.assert_allclose(
            metrics["value_mean"], seen.value[live].mean(), rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(metrics["live_fraction"], live.mean(), rtol=1e-6)
        explained = 1 - seen.advantage[live].var() / seen.target[live].var()
        np.testing.assert_allclose(
            metrics["explained_variance"], max(explained, -1), rtol=1e-2, atol=1e-3
        )


def test_normalized_advantages_have_mean_0(shop, expected):
    for _, config, metrics, _ in each(shop, expected):
        assert ("normalized_advantage_mean" in metrics) == config.options.normalize_advantage
        assert abs(metrics.get("normalized_advantage_mean", 0.0)) < 1e-5


# --- neg_pos_env_ratio in a run ---


def test_ratio_0_learns_only_from_positive_replicas(shop, expected):
    some = []
    for _, config, metrics, seen in each(shop, expected):
        live, chosen = seen.rows.live, positive_replicas(config, seen.rows)
        assert ("positive_envs" in metrics) == (config.options.neg_pos_env_ratio == 0)
        if config.options.neg_pos_env_ratio == 0 and not chosen.all():
            assert metrics["positive_envs"] == chosen.sum()
            assert metrics["negative_envs"] == 0
            some.append(8 - chosen.sum())
        np.testing.assert_allclose(
            metrics["live_rows"] * config.options.minibatches, live[:, chosen].sum(), rtol=1e-6
        )
    assert max(some) > 0


# --- the training state ---


def test_invalid_transitions_change_no_bit(shop):
    learner, states, _, _ = shop
    params = dataclasses.replace(
        states[2].env_params, dead_obs=jnp.float32(-7.0), dead_reward=jnp.float32(5.0)
    )
    other, _ = learner.update(states[2].replace(env_params=params))
    for name in POLICIES:
        ours, theirs = other.policies[name], states[3].policies[name]
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_restored_state_equals_the_saved_state(shop, tmp_path):
    learner, states, _, _ = shop
    with open_checkpoints(tmp_path / "checkpoints", 1) as manager:
        save(manager, 3, states[3], {"metrics_size": 0})
        manager.wait_until_finished()
        restored, _ = restore(manager, 3, jax.eval_shape(learner.init, jax.random.key(0)))
    assert jax.tree.structure(restored) == jax.tree.structure(states[3])
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(states[3]), strict=True):
        if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_play_normalizes_observations(shop, expected):
    learner, states, played, _ = shop
    for name, policy in learner.setup.policies.items():
        state, part = states[1].policies[name], played[1]
        obs = jax.tree.map(lambda leaf: leaf[0], part.rows[name].obs)
        key = jax.random.key(0)[None]
        action, _ = jax.jit(functools.partial(policy.algorithm.play, policy, greedy=True))(
            state, part.first_carry[name], obs, key
        )
        outputs, live = expected[name][1].outputs[0], part.rows[name].live[0]
        if name == "pilot":
            given = policy.distribution.to_space(action)
            np.testing.assert_allclose(given[live], (1 + 2 * np.tanh(outputs))[live], atol=1e-3)
        else:
            logits = np.where(obs["action_mask"] == 1, outputs, -np.inf)
            best = np.stack([logits[..., :2].argmax(-1), logits[..., 2:].argmax(-1)], axis=-1)
            np.testing.assert_array_equal(action[live], best[live])


@pytest.mark.slow
def test_a_population_member_equals_its_solo_run(shop):
    learner, states, _, _ = shop
    keys = [states[0].key, jax.random.key(9)]
    starts = [states[2].replace(key=key) for key in keys]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    together, _ = jax.jit(jax.vmap(learner.update))(stacked)
    for i, start in enumerate(starts):
        alone, _ = learner.update(start)
        for name in POLICIES:
            ours = jax.tree.map(
                lambda leaf, i=i: leaf[i], (together.policies[name], together.memory[name])
            )
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
                ours,
                (alone.policies[name], alone.memory[name]),
            )
