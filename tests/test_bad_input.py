"""Malformed fields of a configuration raise one line with field, value and the allowed values.

Fields that do not exist or do not fit each other are in tests/test_bad_input_changes.py; files,
environments, spaces and actions in tests/test_bad_input_values.py; command lines in
tests/test_bad_input_commands.py. Each row of a table is (name, value, message after the name).
"""

import math

import pytest
from refusals import refusal

from wdjax.train import load_config

NAN, INF = math.nan, math.inf

RUN = [
    ("num_envs", "64", "= '64': must be a whole number"),
    ("num_envs", NAN, "= nan: must be a whole number"),
    ("num_envs", INF, "= inf: must be a whole number"),
    ("num_envs", 1.5, "= 1.5: must be a whole number"),
    ("num_envs", None, "= None: must be a whole number"),
    ("num_envs", True, "= True: must be a whole number"),
    ("num_envs", [4], "= [4]: must be a whole number"),
    ("num_envs", {}, "= {}: must be a whole number"),
    ("num_envs", 10**30, "= 1000000000000000000000000000000: must be at least 1 and below 2**31"),
    ("num_envs", 2**31, "= 2147483648: must be at least 1 and below 2**31"),
    ("num_envs", 1e300, "= 10000000000000000525047602552044202487044"),
    ("rollout_length", 10**12, "= 1000000000000: must be at least 1 and below 2**31"),
    ("rollout_length", "8 steps", "= '8 steps': must be a whole number"),
    ("total_env_steps", 10**400, "= 1000000000000000000000000000000"),
    ("total_env_steps", "1e6", "= '1e6': must be a whole number"),
    ("total_env_steps", -1, "= -1: must be at least 1"),
    ("total_env_steps", 2**63,
     "= 9223372036854775808: must be at most 214748364700000 (2**31 - 1 updates"),
    ("total_env_steps", INF, "= inf: must be a whole number"),
    ("seed", NAN, "= nan: must be a whole number"),
    ("seed", "zero", "= 'zero': must be a whole number"),
    ("seed", -0.5, "= -0.5: must be a whole number"),
    ("seed", [1, 2], "= [1, 2]: must be a whole number"),
    ("seed", True, "= True: must be a whole number"),
    ("reset", "frsh", "= 'frsh': must be 'fresh' or 'fixed' or a whole number"),
    ("reset", True, "= True: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", -3, "= -3: must be 'fresh', 'fixed' or a number of starts, at least 1"),
    ("reset", 2.5, "= 2.5: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", None, "= None: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", ["fresh"], "= ['fresh']: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", 10**12,
     "= 1000000000000: must be 'fresh', 'fixed' or a number of starts, at least 1"),
    ("reset", "10", "= '10': must be 'fresh' or 'fixed' or a whole number"),
    ("reset", {"n": 3}, "= {'n': 3}: must be 'fresh' or 'fixed' or a whole number"),
    ("env", None, "= None: must be text"),
    ("env", 5, "= 5: must be text"),
    ("env", ["cartpole"], "= ['cartpole']: must be text"),
    ("env_params", ["gravity"], "= ['gravity']: must be a mapping"),
    ("env_params", None, "= None: must be a mapping"),
    ("best_metric", None, "= None: must be text"),
    ("best_metric", 5, "= 5: must be text"),
    ("eval_greedy", "yes", "= 'yes': must be true or false"),
    ("eval_greedy", 0, "= 0: must be true or false"),
    ("evaluate_every", -1, "= -1: must be at least 0 (0: only if best_metric needs evaluations)"),
    ("evaluate_every", 1.5, "= 1.5: must be a whole number"),
    ("keep_checkpoints", 0, "= 0: must be at least 1 and below 2**31"),
    ("keep_checkpoints", INF, "= inf: must be a whole number"),
    ("checkpoint_every", "never", "= 'never': must be a whole number"),
    ("policies", None, "= None: must be a mapping"),
    ("policies", [], "= []: must be a mapping"),
    ("policies", "agent", "= 'agent': must be a mapping"),
    ("num_blocks", 3, "= 3: must be a divisor of num_envs = 1000"),
    ("num_blocks", -1, "= -1: must be at least 0 (0: gcd(num_envs, 8))"),
    ("num_blocks", "all", "= 'all': must be a whole number"),
    ("num_blocks", 0.5, "= 0.5: must be a whole number"),
    ("updates_per_chunk", -1, "= -1: must be at least 0 (0: about 2 s of updates), below 2**31"),
    ("updates_per_chunk", 2**31,
     "= 2147483648: must be at least 0 (0: about 2 s of updates), below 2**31"),
    ("updates_per_chunk", 10**30,
     f"= {10**30}: must be at least 0 (0: about 2 s of updates), below 2**31"),
    ("checkpoint_every_updates", -1,
     "= -1: must be at least 0 (0: use checkpoint_every), below 2**31"),
    ("evaluate_every_updates", 0.5, "= 0.5: must be a whole number"),
    ("eval_episodes", 0, "= 0: must be at least 1 and below 2**31"),
    ("eval_episodes", 2**40, "= 1099511627776: must be at least 1 and below 2**31"),
]  # fmt: skip
POLICY = [
    ("algorithm", "ppo", "= 'ppo': did you mean 'PPO'?"),
    ("algorithm", "A2CC", "= 'A2CC': did you mean 'A2C'?"),
    ("algorithm", None, "= None: must be text"),
    ("algorithm", ["PPO"], "= ['PPO']: must be text"),
    ("algorithm", {}, "= {}: must be text"),
    ("algorithm", 1, "= 1: must be text"),
    ("agents", "agent", "= 'agent': must be a list"),
    ("agents", None, "= None: must be a list"),
    ("agents", ["agent[0:2]"], "= 'agent[0:2]': must be a nonempty range inside agent[0:1]"),
    ("agents", ["agent[1:0]"], "= 'agent[1:0]': must be a nonempty range inside agent[0:1]"),
    ("gamma", 99, "= 99.0: must be between 0 and 1"),
    ("gamma", "0,99", "= '0,99': must be a number"),
    ("gamma", "nan", "= nan: must be between 0 and 1"),
    ("gamma", "1.5", "= 1.5: must be between 0 and 1"),
    ("gamma", -INF, "= -inf: must be between 0 and 1"),
    ("learning_rate", -0.001,
     "= -0.001: must be finite and at least 0, within the range of float32"),
    ("learning_rate", "1e-3x", "= '1e-3x': must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", None, "= None: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[0, 0.001], [0, 0.0001]],
     "= ((0.0, 0.001), (0.0, 0.0001)): must be sorted by env_step,"),
    ("learning_rate", [[10, 0.001], [5, 0.0001]],
     "= ((10.0, 0.001), (5.0, 0.0001)): must be sorted by env_step,"),
    ("learning_rate", [[0]], "= [[0]]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [["a", 1]],
     "= [['a', 1]]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[0, None]],
     "= [[0, None]]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", 1e+300,
     "= 1e+300: must be finite and at least 0, within the range of float32"),
    ("learning_rate", [[0, 1], [NAN, 1]],
     "= ((0.0, 1.0), (nan, 1.0)): must be finite and at least 0, within the"),
    ("learning_rate", [0, 1], "= [0, 1]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", "[[0, 1]]",
     "= '[[0, 1]]': must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[0, 1], [INF, 2]],
     "= ((0.0, 1.0), (inf, 2.0)): must be finite and at least 0, within the"),
    ("learning_rate", 1e+39, "= 1e+39: must be finite and at least 0, within the range of float32"),
    ("learning_rate", (0.1,), "= (0.1,): must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[True, 1]],
     "= [[True, 1]]: must be a number or a list of [env_step, value] pairs"),
    ("network.hidden_sizes", [0], "= (0,): must be widths of at least 1, below 2**31"),
    ("network.hidden_sizes", [64, -1], "= (64, -1): must be widths of at least 1, below 2**31"),
    ("network.head_hidden_sizes", [0], "= (0,): must be widths of at least 1, below 2**31"),
    ("network.hidden_sizes", "64,64", "= '64,64': must be a list"),
    ("network.hidden_sizes", 64, "= 64: must be a list"),
    ("network.hidden_sizes", None, "= None: must be a list"),
    ("network.hidden_sizes", [10**12],
     "= (1000000000000,): must be widths of at least 1, below 2**31"),
    ("network.activation", "Relu", "= 'Relu': did you mean 'relu'?"),
    ("network.activation", "sigmoid", "= 'sigmoid': known names: gelu, relu, silu, tanh"),
    ("network.activation", None, "= None: known names: gelu, relu, silu, tanh"),
    ("network.initializer", "orthogonl", "= 'orthogonl': did you mean 'orthogonal'?"),
    ("network.recurrent_size", "lstm", "= 'lstm': must be a whole number"),
    ("network.recurrent_size", 10**12,
     "= 1000000000000: must be at least 0 (0: feed-forward), below 2**31"),
    ("network.recurrent_layers", 0, "= 0: must be at least 1, below 2**31"),
    ("network.recurrent_layers", 2, "= 2: must be 1 (the default) if recurrent_size is 0."),
    ("network.encoder_options", [], "= []: must be a mapping"),
    ("optimizer", "adm", "= 'adm': did you mean 'adam'?"),
    ("optimizer", "Adam", "= 'Adam': did you mean 'adam'?"),
    ("optimizer_epsilon", 0, "= 0.0: must be finite and above 0"),
    ("max_grad_norm", 0, "= 0.0: must be above 0"),
    ("max_grad_norm", -INF, "= -inf: must be above 0"),
    ("gamma", "0.2.1", "= '0.2.1': must be a number"),
    ("clip", INF, "= inf: A2C has no such option (PPO has it). Remove it."),
    ("entropy_coefficient", -0.01,
     "= -0.01: must be finite and at least 0, within the range of float32"),
    ("value_coefficient", "half",
     "= 'half': must be a number or a list of [env_step, value] pairs"),
    ("gae_lambda", 2, "= 2.0: must be between 0 and 1"),
    ("algorithm", "DDPG", "= 'DDPG': requires a Box of floats as action space, not Discrete(n=2, "),
    ("action_distribution", "normal", "= 'normal': known names: gaussian, squashed_gaussian"),
    ("past_selves", 1, "= 1: must be 0 in a run with a single policy"),
    ("opponents", {"random": 0.5},
     "= {'random': 0.5}: must be left out in a run with a single policy"),
    ("past_selves", -1, "= -1: must be at least 0"),
    ("past_selves_every", 0, "= 0: must be at least 1"),
    ("past_selves_fraction", 2, "= 2.0: must be at least 0 and below 1"),
    ("past_selves_fraction", 1, "= 1.0: must be at least 0 and below 1"),
    ("past_selves", 1.5, "= 1.5: must be a whole number"),
    ("checkpoint", 5, "= 5: must be text"),
    ("trainable", "false", "= 'false': must be true or false"),
    ("agent_type_feature", True,
     "= True: must be false if `agents` is the single selector 'agent', which"),
    ("normalize_observation", "on", "= 'on': must be true or false"),
    ("neg_pos_env_ratio", INF, "= inf: must be finite (below 0: use all replicas)"),
]  # fmt: skip
ENV_PARAMS = [
    ("gravity", "9,8", "= '9,8': must be a number"),
    ("gravity", "9.8", "= '9.8': must be a number"),
    ("gravity", 1e+300, "= 1e+300: must be a number within the range of float32, not NaN"),
    ("episode_length", 2.5, "= 2.5: must be a whole number"),
    ("episode_length", -1, "= -1: must be above 0"),
    ("episode_length", 2**40,
     "= 1099511627776: must be a whole number within the range of int32, not NaN"),
    ("episode_length", True, "= True: must be a whole number"),
    ("gravity", True, "= True: must be a number"),
    ("gravity", {"x": 1}, "= {'x': 1}: must be a number"),
]  # fmt: skip
DDPG = [
    ("tau", 0, "= 0.0: must be above 0 and at most 1"),
    ("tau", 1.5, "= 1.5: must be above 0 and at most 1"),
    ("tau", NAN, "= nan: must be above 0 and at most 1"),
    ("n_step", 0, "= 0: must be at least 1 and below 2**31"),
    ("buffer_size", 100, "= 100: must be a multiple of num_blocks = 8"),
    ("buffer_size", 10**15, "= 1000000000000000: must be at least 1 and below 2**31"),
    ("batch_size", 0, "= 0: must be at least 1 and below 2**31"),
    ("batch_size", 3, "= 3: must be a multiple of num_blocks = 8"),
    ("warmup", 1, "= 1: must be between batch_size = 128 and buffer_size = 100000"),
    ("warmup", 10**9, "= 1000000000: must be between batch_size = 128 and buffer_size = 100000"),
    ("noise", "ou", "= 'ou': known names: gaussian, none, ornstein_uhlenbeck"),
    ("noise_stddev", -1, "= -1.0: must be finite and at least 0"),
    ("noise_damping", 2, "= 2.0: must be between 0 and 1"),
    ("target_noise", INF, "= inf: must be finite and at least 0"),
    ("critic_learning_rate", "x", "= 'x': must be a number or a list of [env_step, value] pairs"),
    ("noise_scale", [[1, 1], [0, 1]],
     "= ((1.0, 1.0), (0.0, 1.0)): must be sorted by env_step, without"),
    ("policy_delay", 0, "= 0: must be at least 1 and below 2**31"),
    ("updates_per_rollout", 0, "= 0: must be at least 1 and below 2**31"),
    ("twin_critics", "two", "= 'two': must be true or false"),
    ("uniform_warmup", 1, "= 1: must be true or false"),
    ("ddpg", "TD3", "= 'TD3': must be a mapping of fields"),
    ("ddpg", None, "= None: must be a mapping of fields"),
    ("network.recurrent_size", 8, "= 8: must be 0: DDPG has no recurrent networks"),
    ("network.head_hidden_sizes", [8], "= [8]: must be []: DDPG has no such layers"),
    ("epochs", 4, "= 4: DDPG has no such option (PPO and PQN have it). Remove it."),
    ("clip", 0.3, "= 0.3: DDPG has no such option (PPO has it). Remove it."),
    ("gae_lambda", 0.9, "= 0.9: DDPG has no such option (A2C and PPO have it). Remove it."),
    ("minibatches", 2, "= 2: DDPG has no such option (PPO and PQN have it). Remove it."),
    ("normalize_reward", True, "= True: DDPG has no such option (A2C and PPO have it). Remove it."),
    ("target_kl", 0.1, "= 0.1: DDPG has no such option (PPO has it). Remove it."),
    ("past_selves", 2, "= 2: must be 0 in a run with a single policy"),
    ("neg_pos_env_ratio", 1, "= 1: DDPG has no such option (A2C and PPO have it). Remove it."),
    ("normalize_advantage", True,
     "= True: DDPG has no such option (A2C and PPO have it). Remove it."),
    ("entropy_coefficient", 0.1,
     "= 0.1: DDPG has no such option (A2C and PPO have it). Remove it."),
    ("value_coefficient", 0.1, "= 0.1: DDPG has no such option (A2C and PPO have it). Remove it."),
    ("action_distribution", "squashed_gaussian",
     "= 'squashed_gaussian': DDPG has no such option (A2C and PPO have it"),
]  # fmt: skip
TAG_PARAMS = [
    ("num_taggers", 0, "= 0: must be at least 1"),
    ("num_taggers", 2.5, "= 2.5: must be a whole number, not float"),
    ("num_runners", "8", "= '8': must be a whole number, not str"),
    ("grid_length", 0, "= 0.0: must be above 0"),
    ("max_speed", -1, "= -1.0: must be above 0"),
    ("tagging_distance", NAN, "= nan: must be a number within the range of float32, not NaN"),
    ("use_full_observation", "yes", "= 'yes': must be True or False, not str"),
    ("num_other_agents_observed", -1, "= -1: must be at least 1"),
    ("num_other_agents_observed", 50, "= 50: must be at most 10, the number of agents"),
]  # fmt: skip
GRID_PARAMS = [
    ("grid_length", 0, "= 0: must be at least 1"),
    ("grid_length", 2.5, "= 2.5: must be a whole number"),
    ("num_taggers", -1, "= -1: must be at least 1"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def check_that_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value", "words"), RUN)
def test_malformed_run_fields_raise(name, value, words):
    assert refusal(load_config, "cartpole", **{name: value}).startswith(f"{name} {words}")


@pytest.mark.parametrize(("name", "value", "words"), POLICY)
def test_malformed_policy_fields_raise(name, value, words):
    path = f"policies.agent.{name}"
    assert refusal(load_config, "cartpole", **{path: value}).startswith(f"{path} {words}")


@pytest.mark.parametrize(("name", "value", "words"), DDPG)
def test_malformed_ddpg_fields_raise(name, value, words):
    path = f"policies.agent.{name}"
    assert refusal(load_config, "continuous_mountain_car_ddpg", **{path: value}).startswith(
        f"{path} {words}"
    )


PARAMS = [
    *(("cartpole", *row) for row in ENV_PARAMS),
    *(("tag_small", *row) for row in TAG_PARAMS),
    *(("tag_gridworld", *row) for row in GRID_PARAMS),
]


@pytest.mark.parametrize(("preset", "name", "value", "words"), PARAMS)
def test_malformed_env_params_raise(preset, name, value, words):
    assert f"env_params: {name} {words}" in refusal(
        load_config, preset, **{f"env_params.{name}": value}
    )
