"""Presets of WarpDrive have the values of its run configurations, and all presets run."""

import math

import jax
import numpy as np
import pytest

from wdjax.train import NetworkConfig, PolicyConfig, list_presets, load_config, make_learner

ON_POLICY = {
    "algorithm": "A2C",
    "optimizer": "adam",
    "optimizer_epsilon": 1e-8,
    "gae_lambda": 1.0,
    "normalize_advantage": False,
    "value_coefficient": 1.0,
    "entropy_coefficient": 0.05,
    "trainable": True,
}
GRIDWORLD_RULES = {
    "num_taggers": 4,
    "grid_length": 100,
    "episode_length": 100,
    "wall_hit_penalty": 0.1,
    "tag_reward_for_tagger": 10.0,
    "tag_penalty_for_runner": 5.0,
    "step_cost_for_tagger": 0.01,
    "use_full_observation": True,
}
GRIDWORLD = {
    "env": "tag_gridworld",
    "num_envs": 2_000,
    "rollout_length": 100,
    "num_updates": 10,
    "total_env_steps": 2_000_000,
    "env_params": GRIDWORLD_RULES,
    "reset": "fresh",
    "policies": {
        "shared": {
            "agents": ("tagger", "runner"),
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "max_grad_norm": 3.0,
            "hidden_sizes": (32, 32),
        }
    },
}
PRESETS = {
    "tag_gridworld": GRIDWORLD,
    "tag_gridworld_with_reset_pool": {
        **GRIDWORLD,
        "reset": 5,
        "env_params": {**GRIDWORLD_RULES, "random_start": True},
    },
    "tag_continuous": {
        "env": "tag_continuous",
        "num_envs": 100,
        "rollout_length": 250,
        "num_updates": 10,
        "total_env_steps": 250_000,
        "env_params": {
            "num_taggers": 10,
            "num_runners": 100,
            "grid_length": 20.0,
            "episode_length": 500,
            "max_acceleration": 0.1,
            "min_acceleration": -0.1,
            "max_turn": 2.356,
            "min_turn": -2.356,
            "num_acceleration_levels": 20,
            "num_turn_levels": 20,
            "edge_hit_penalty": 0.0,
            "use_full_observation": False,
            "num_other_agents_observed": 10,
            "tagging_distance": 0.02,
            "tag_reward_for_tagger": 10.0,
            "tag_penalty_for_runner": -10.0,
            "end_of_game_reward_for_runner": 1.0,
            "runner_exits_game_after_tagged": True,
            "max_speed": 1.0,
            "skill_level_runner": 1.0,
            "skill_level_tagger": 1.0,
            "step_penalty_for_tagger": 0.0,
            "step_reward_for_runner": 0.0,
        },
        "policies": {
            "tagger": {
                "learning_rate": 1e-3,
                "gamma": 0.98,
                "max_grad_norm": 0.5,
                "hidden_sizes": (256, 256),
            },
            "runner": {
                "learning_rate": 5e-3,
                "gamma": 0.98,
                "max_grad_norm": 0.5,
                "hidden_sizes": (256, 256),
            },
        },
    },
    "cartpole": {
        "env": "cartpole",
        "num_envs": 1_000,
        "rollout_length": 100,
        "num_updates": 1_000,  # a GPU's
        "total_env_steps": 100_000_000,
        "env_params": {"episode_length": 500},
        "reset": 1000,
        "policies": {
            "agent": {
                "learning_rate": 3e-3,
                "gamma": 0.99,
                "max_grad_norm": 3.0,
                "hidden_sizes": (32, 32),
            }
        },
    },
    "acrobot": {
        "env": "acrobot",
        "num_envs": 1_000,
        "rollout_length": 100,
        "num_updates": 1_000,
        "total_env_steps": 100_000_000,
        "env_params": {"episode_length": 500},
        "reset": 1000,
        "policies": {
            "agent": {
                "learning_rate": 3e-3,
                "gamma": 0.99,
                "max_grad_norm": 3.0,
                "hidden_sizes": (32, 32),
                "value_coefficient": 0.1,
                "entropy_coefficient": 0.1,
            }
        },
    },
    "mountain_car_warpdrive": {
        "env": "mountain_car",
        "num_envs": 1_000,
        "rollout_length": 500,
        "num_updates": 2_000,
        "total_env_steps": 1_000_000_000,
        "env_params": {"episode_length": 500},
        "reset": 10_000,
        "policies": {
            "agent": {
                "learning_rate": 1e-3,
                "gamma": 0.99,
                "max_grad_norm": 3.0,
                "hidden_sizes": (32, 32),
            }
        },
    },
}


@pytest.mark.parametrize("preset", PRESETS)
def test_run_has_the_reference_values(preset):
    config, expected = load_config(preset), PRESETS[preset]
    for name in ("env", "num_envs", "rollout_length", "num_updates", "total_env_steps"):
        assert getattr(config, name) == expected[name], name
    if "reset" in expected:
        assert config.reset == expected["reset"]


@pytest.mark.parametrize("preset", PRESETS)
def test_environment_has_the_reference_values(preset):
    learner = make_learner(load_config(preset))
    for name, value in PRESETS[preset]["env_params"].items():
        holder = learner.env if hasattr(learner.env, name) else learner.env_params
        np.testing.assert_allclose(getattr(holder, name), value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("preset", PRESETS)
def test_policies_have_the_reference_values(preset):
    policies, expected = load_config(preset).policies, PRESETS[preset]["policies"]
    assert policies.keys() == expected.keys()
    for name, policy in policies.items():
        wanted = {"agents": (), **ON_POLICY, **expected[name]}
        assert policy.network == NetworkConfig(
            wanted.pop("hidden_sizes"), "relu", shared_trunk=True
        )
        for field, value in wanted.items():
            assert value_of(policy, field) == value, f"{name}.{field}"


def value_of(policy, field):
    """Return a field of a policy or of its algorithm's options."""
    return getattr(policy if hasattr(policy, field) else policy.options, field)


DDPG_PRESETS = {
    "pendulum_warpdrive": {
        "total_env_steps": 5_000_000_000,
        "num_updates": 100_000,
        "episode_length": 500,
        "gravity": 9.81,
        "learning_rate": ((2.5e9, 1e-3), (3.75e9, 5e-4)),
        "critic_learning_rate": ((2.5e9, 1e-4), (3.75e9, 5e-5)),
        "noise_stddev": 0.2 / 2,  # half widths of a box of 2 N m
    },
    "continuous_mountain_car_warpdrive": {
        "total_env_steps": 1_000_000_000,
        "num_updates": 20_000,
        "episode_length": 1_000,
        "learning_rate": 1e-3,
        "critic_learning_rate": 1e-4,
        "noise_stddev": 0.5,
    },
}
DDPG_REFERENCE = {
    "num_envs": 10_000,
    "rollout_length": 5,
    "reset": 10_000,
    "algorithm": "DDPG",
    "optimizer": "adam",
    "gamma": 0.99,
    "optimizer_epsilon": 1e-8,
    "network": NetworkConfig((64, 64), "relu"),
    "tau": 0.05,
    "n_step": 5,
    "batch_size": 50_000,
    "updates_per_rollout": 1,
    "noise": "ornstein_uhlenbeck",
    "noise_damping": 0.15,
    "noise_scale": 1.0,
    "twin_critics": False,
}


@pytest.mark.parametrize("preset", DDPG_PRESETS)
def test_ddpg_has_the_reference_values(preset):
    learner = make_learner(load_config(preset))
    config, params = learner.config, learner.env_params
    agent = config.policies["agent"]
    for name, value in (DDPG_REFERENCE | DDPG_PRESETS[preset]).items():
        holder = next(
            holder for holder in (config, agent, agent.options, params) if hasattr(holder, name)
        )
        if holder is params:
            np.testing.assert_allclose(getattr(params, name), value, rtol=1e-6)
        else:
            assert getattr(holder, name) == value, name


def test_cartpole_ppo_has_the_usual_values():
    config = load_config("cartpole_ppo")
    agent = config.policies["agent"]
    assert (config.num_envs, config.rollout_length, config.total_env_steps) == (4, 128, 150_000)
    options = agent.options
    assert agent.algorithm == "PPO"
    assert (options.epochs, options.minibatches, options.clip) == (4, 4, 0.2)


@pytest.mark.parametrize("preset", list_presets())
def test_preset_loads(preset):
    config = load_config(preset)
    assert all(isinstance(policy, PolicyConfig) for policy in config.policies.values())
    assert config.num_updates * config.env_steps_per_update >= config.total_env_steps


@pytest.mark.slow
@pytest.mark.parametrize("preset", list_presets())
def test_one_update_of_a_small_copy(preset, quick_compile):
    # as many rows of a replica as any preset has minibatches
    changes = {"num_envs": 4, "num_blocks": 0, "rollout_length": 16}
    if preset == "tag_crowd":  # 100 agents instead of 10,000 save time
        changes |= {"env_params.num_taggers": 10, "env_params.num_runners": 90}
    for name, policy in load_config(preset).policies.items():
        # orthogonal matrices of 256 columns take seconds
        changes[f"policies.{name}.network.hidden_sizes"] = [8] * len(policy.network.hidden_sizes)
        if policy.algorithm == "PPO":
            changes[f"policies.{name}.epochs"] = 2
            changes[f"policies.{name}.minibatches"] = math.gcd(policy.options.minibatches, 16)
        if policy.past_selves:  # the policy itself plays
            changes[f"policies.{name}.past_selves_fraction"] = 0.0
        if policy.opponents:
            changes[f"policies.{name}.opponents"] = {}
        if hasattr(policy.options, "warmup"):  # 4 x (16 - 4) rows are enough to learn from
            changes |= {
                f"policies.{name}.{field}": 8
                for field in ("batch_size", "warmup", "updates_per_rollout")
            }
    learner = make_learner(load_config(preset, **changes))
    first = learner.init(jax.random.key(0))
    last, metrics = learner.update(first)
    of_episodes = [
        *learner.env.info_ratios,
        *(name for name in metrics if "episode" in name),
    ]  # none may have ended
    assert all(np.isfinite(value) for name, value in metrics.items() if name not in of_episodes)
    for name in learner.config.policies:
        before, after = (
            jax.tree.leaves(first.policies[name].params),
            jax.tree.leaves(last.policies[name].params),
        )
        moved = [
            np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in zip(before, after, strict=True)
        ]
        assert 0 < max(moved) < 0.3
        assert metrics[f"{name}/live_fraction"] > 0
    assert jax.tree.map(np.shape, first.policies) == jax.tree.map(np.shape, last.policies)
