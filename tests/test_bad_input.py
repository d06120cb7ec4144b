"""Malformed configurations: each is refused in one sentence that names the field, the value and what is allowed.

Files, environments, spaces and actions are in tests/test_bad_input_values.py, command lines in
tests/test_bad_input_commands.py. A row of a table: (name, value, what the sentence says after the name), or (changes of
a preset, how the sentence begins).
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
    ("total_env_steps", 2**63, "= 9223372036854775808: must be at most 107374182350000, 2**31 - 1 updates: they"),
    ("total_env_steps", INF, "= inf: must be a whole number"),
    ("seed", NAN, "= nan: must be a whole number"),
    ("seed", "zero", "= 'zero': must be a whole number"),
    ("seed", -0.5, "= -0.5: must be a whole number"),
    ("seed", [1, 2], "= [1, 2]: must be a whole number"),
    ("seed", True, "= True: must be a whole number"),
    ("reset", "frsh", "= 'frsh': must be 'fresh' or 'fixed' or a whole number"),
    ("reset", True, "= True: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", -3, "= -3: must be 'fresh', 'fixed' or at least 1 start, below 2**31"),
    ("reset", 2.5, "= 2.5: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", None, "= None: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", ["fresh"], "= ['fresh']: must be 'fresh' or 'fixed' or a whole number"),
    ("reset", 10**12, "= 1000000000000: must be 'fresh', 'fixed' or at least 1 start, below 2**31"),
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
    ("evaluate_every", -1, "= -1: must be at least 0 (0: only where best_metric asks for evaluations)"),
    ("evaluate_every", 1.5, "= 1.5: must be a whole number"),
    ("keep_checkpoints", 0, "= 0: must be at least 1 and below 2**31"),
    ("keep_checkpoints", INF, "= inf: must be a whole number"),
    ("checkpoint_every", "never", "= 'never': must be a whole number"),
    ("policies", None, "= None: must be a mapping"),
    ("policies", [], "= []: must be a mapping"),
    ("policies", "agent", "= 'agent': must be a mapping"),
    ("num_blocks", 3, "= 3: must be a divisor of num_envs = 100"),
    ("num_blocks", -1, "= -1: must be at least 0 (0: gcd(num_envs, 8))"),
    ("num_blocks", "all", "= 'all': must be a whole number"),
    ("num_blocks", 0.5, "= 0.5: must be a whole number"),
    ("updates_per_chunk", 0, "= 0: must be at least 1 and below 2**31"),
    ("updates_per_chunk", 2**31, "= 2147483648: must be at least 1 and below 2**31"),
    ("updates_per_chunk", 10**30, "= 1000000000000000000000000000000: must be at least 1 and below 2**31"),
    ("eval_episodes", 0, "= 0: must be at least 1 and below 2**31"),
    ("eval_episodes", 2**40, "= 1099511627776: must be at least 1 and below 2**31"),
]  # fmt: skip
POLICY = [
    ("algorithm", "ppo", "= 'ppo': did you mean 'PPO'?"),
    ("algorithm", "A3C", "= 'A3C': did you mean 'A2C'?"),
    ("algorithm", None, "= None: must be text"),
    ("algorithm", ["PPO"], "= ['PPO']: must be text"),
    ("algorithm", {}, "= {}: must be text"),
    ("algorithm", 1, "= 1: must be text"),
    ("agents", "agent", "= 'agent': must be a list"),
    ("agents", None, "= None: must be a list"),
    ("agents", ["agent[0:2]"], "= 'agent[0:2]': must lie inside agent[0:1] and hold an agent"),
    ("agents", ["agent[1:0]"], "= 'agent[1:0]': must lie inside agent[0:1] and hold an agent"),
    ("gamma", 99, "= 99.0: must be between 0 and 1"),
    ("gamma", "0,99", "= '0,99': must be a number"),
    ("gamma", "nan", "= nan: must be between 0 and 1"),
    ("gamma", "1.5", "= 1.5: must be between 0 and 1"),
    ("gamma", -INF, "= -inf: must be between 0 and 1"),
    ("learning_rate", -0.001, "= -0.001: must be finite and at least 0, within the range of float32"),
    ("learning_rate", "1e-3x", "= '1e-3x': must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", None, "= None: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[0, 0.001], [0, 0.0001]], "= ((0.0, 0.001), (0.0, 0.0001)): must be sorted by env_step,"),
    ("learning_rate", [[10, 0.001], [5, 0.0001]], "= ((10.0, 0.001), (5.0, 0.0001)): must be sorted by env_step,"),
    ("learning_rate", [[0]], "= [[0]]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [["a", 1]], "= [['a', 1]]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[0, None]], "= [[0, None]]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", 1e+300, "= 1e+300: must be finite and at least 0, within the range of float32"),
    ("learning_rate", [[0, 1], [NAN, 1]], "= ((0.0, 1.0), (nan, 1.0)): must be finite and at least 0, within the"),
    ("learning_rate", [0, 1], "= [0, 1]: must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", "[[0, 1]]", "= '[[0, 1]]': must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[0, 1], [INF, 2]], "= ((0.0, 1.0), (inf, 2.0)): must be finite and at least 0, within the"),
    ("learning_rate", 1e+39, "= 1e+39: must be finite and at least 0, within the range of float32"),
    ("learning_rate", (0.1,), "= (0.1,): must be a number or a list of [env_step, value] pairs"),
    ("learning_rate", [[True, 1]], "= [[True, 1]]: must be a number or a list of [env_step, value] pairs"),
    ("network.hidden_sizes", [0], "= (0,): must be widths of at least 1, below 2**31"),
    ("network.hidden_sizes", [64, -1], "= (64, -1): must be widths of at least 1, below 2**31"),
    ("network.hidden_sizes", "64,64", "= '64,64': must be a list"),
    ("network.hidden_sizes", 64, "= 64: must be a list"),
    ("network.hidden_sizes", None, "= None: must be a list"),
    ("network.hidden_sizes", [10**12], "= (1000000000000,): must be widths of at least 1, below 2**31"),
    ("network.activation", "Relu", "= 'Relu': did you mean 'relu'?"),
    ("network.activation", "sigmoid", "= 'sigmoid': known names: gelu, relu, silu, tanh"),
    ("network.activation", None, "= None: known names: gelu, relu, silu, tanh"),
    ("network.initializer", "orthogonl", "= 'orthogonl': did you mean 'orthogonal'?"),
    ("network.recurrent_size", "lstm", "= 'lstm': must be a whole number"),
    ("network.recurrent_size", 10**12, "= 1000000000000: must be at least 0 (0: not recurrent), below 2**31"),
    ("network.encoder_options", [], "= []: must be a mapping"),
    ("optimizer", "adm", "= 'adm': did you mean 'adam'?"),
    ("optimizer", "Adam", "= 'Adam': did you mean 'adam'?"),
    ("optimizer_epsilon", 0, "= 0.0: must be finite and above 0"),
    ("max_grad_norm", 0, "= 0.0: must be above 0"),
    ("max_grad_norm", -INF, "= -inf: must be above 0"),
    ("clip", "0.2.1", "= '0.2.1': must be a number"),
    ("clip", INF, "= inf: must be 0.2 (left out) for A2C"),
    ("value_clip", 0, "= 0.0: must be above 0"),
    ("entropy_coefficient", -0.01, "= -0.01: must be finite and at least 0, within the range of float32"),
    ("value_coefficient", "half", "= 'half': must be a number or a list of [env_step, value] pairs"),
    ("gae_lambda", 2, "= 2.0: must be between 0 and 1"),
    ("algorithm", "DDPG", "= 'DDPG': acts in a Box of real numbers only, not in Discrete(n=2, batch_shape=())"),
    ("action_distribution", "normal", "= 'normal': known names: gaussian, squashed_gaussian"),
    ("past_selves", 1, "= 1: must be 0 where there is no other policy"),
    ("past_selves", -1, "= -1: must be at least 0"),
    ("past_selves_every", 0, "= 0: must be at least 1"),
    ("past_selves_fraction", 2, "= 2.0: must be at least 0 and below 1"),
    ("past_selves_fraction", 1, "= 1.0: must be at least 0 and below 1"),
    ("past_selves", 1.5, "= 1.5: must be a whole number"),
    ("checkpoint", 5, "= 5: must be text"),
    ("trainable", "false", "= 'false': must be true or false"),
    ("agent_type_feature", True, "= True: must be false where `agents` is a single selector, 'agent': there is"),
    ("normalize_observation", "on", "= 'on': must be true or false"),
    ("neg_pos_env_ratio", INF, "= inf: must be finite (below 0: learn from all replicas)"),
]  # fmt: skip
ENV_PARAMS = [
    ("gravity", "9,8", "= '9,8': must be a number"),
    ("gravity", "9.8", "= '9.8': must be a number"),
    ("gravity", 1e+300, "= 1e+300: must be a number within the range of float32, not NaN"),
    ("episode_length", 2.5, "= 2.5: must be a whole number"),
    ("episode_length", -1, "= -1: must be above 0"),
    ("episode_length", 2**40, "= 1099511627776: must be a whole number within the range of int32, not NaN"),
    ("episode_length", True, "= True: must be a whole number"),
    ("gravity", True, "= True: must be a number"),
    ("gravity", {"x": 1}, "= {'x': 1}: must be a number"),
]  # fmt: skip
OTHER = [
    ({"num_env": 3}, "unknown field num_env: did you mean 'num_envs'?"),
    ({"numenvs": 3}, "unknown field numenvs: did you mean 'num_envs'?"),
    ({"polices": {}}, "unknown field polices: did you mean 'policies'?"),
    ({"Env": "x"}, "unknown field Env: did you mean 'env'?"),
    ({"env": "cartpol"}, "env 'cartpol', env_params: unknown environment 'cartpol': did you mean 'cartpole'?"),
    ({"env": ""}, "env '', env_params: unknown environment '': known names: acrobot, cartpole,"),
    ({"env": "gymnx:CartPole-v1"},
     "env 'gymnx:CartPole-v1', env_params: unknown library 'gymnx': did you mean 'gymnax'?"),
    ({"env": ":"}, "env ':', env_params: unknown library '': known names: gymnax, jaxmarl"),
    ({"env": "CartPole-v1"},
     "env 'CartPole-v1', env_params: unknown environment 'CartPole-v1': did you mean 'cartpole'?"),
    ({"env": "cartpole\n"},
     "env 'cartpole\\n', env_params: unknown environment 'cartpole\\n': did you mean 'cartpole'?"),
    ({"env_params.gravty": 1},
     "env 'cartpole', env_params: unknown parameter of CartPole 'gravty': did you mean 'gravity'?"),
    ({"env_params.gravity.x": 1}, "env 'cartpole', env_params: gravity = {'x': 1}: must be a number"),
    ({"env_params.": 1}, "env 'cartpole', env_params: unknown parameter of CartPole '': known names:"),
    ({"env_params": {1: 2}}, "env 'cartpole', env_params: unknown parameter of CartPole '1': known names:"),
    ({"best_metric": "agent/return"}, "unknown best_metric 'agent/return': did you mean 'agent/episode_return'?"),
    ({"best_metric": "agnt/episode_return"},
     "unknown best_metric 'agnt/episode_return': did you mean 'agent/episode_return'?"),
    ({"best_metric": ""}, "unknown best_metric '': known names: agent/episode_return"),
    ({"policies": {"agent": None}}, "policies.agent = None: must be a mapping of fields"),
    ({"policies": {"agent": []}}, "policies.agent = []: must be a mapping of fields"),
    ({"policies": {"agent": "PPO"}}, "policies.agent = 'PPO': must be a mapping of fields"),
    ({"policies": {None: {}}}, "unknown group in policies.None.agents 'None': known names: agent"),
    ({"policies": {"agent ": {}}}, "policies.agent .agents = 'agent ': must be a group, a slice as 'runner[0:50]',"),
    ({"policies.agent.agents": [0]}, "policies.agent.agents[0] = 0: must be text"),
    ({"policies.agent.agents": ["Agent"]}, "unknown group in policies.agent.agents 'Agent': did you mean 'agent'?"),
    ({"policies.agent.agents": ["agent", ["agent"]]}, "policies.agent.agents[1] = ['agent']: must be text"),
    ({"policies.agent.lr": 1}, "unknown field policies.agent.lr: known names: action_distribution,"),
    ({"policies.agent.learningrate": 1}, "unknown field policies.agent.learningrate: did you mean 'learning_rate'?"),
    ({"policies.agent.Gamma": 1}, "unknown field policies.agent.Gamma: did you mean 'gamma'?"),
    ({"policies.agent.lambda": 1}, "unknown field policies.agent.lambda: did you mean 'gae_lambda'?"),
    ({"policies.agent.ent_coef": 1}, "unknown field policies.agent.ent_coef: did you mean 'entropy_coefficient'?"),
    ({"policies.agent.network.layers": 1}, "unknown field policies.agent.network.layers: known names: activation,"),
    ({"policies.agent.network.hidden_size": 1},
     "unknown field policies.agent.network.hidden_size: did you mean 'hidden_sizes'?"),
    ({"policies.agent.network.hidden_sizes": [64.5]}, "policies.agent.network.hidden_sizes[0] = 64.5: must be a"),
    ({"policies.agent.network.hidden_sizes": [[64]]}, "policies.agent.network.hidden_sizes[0] = [64]: must be a"),
    ({"policies.agent.network.hidden_sizes": [True]}, "policies.agent.network.hidden_sizes[0] = True: must be a"),
    ({"policies.agent.action_distribution": "squashed_gaussian"},
     "policies.agent: action_distribution = 'squashed_gaussian': must be gaussian (left out), as Discrete(n=2"),
    ({"policies.agent.network.encoder": "deep_sets"},
     "policies.agent.network.encoder = 'deep_sets': CartPole does not say who is whom in its observations: give it a"),
    ({"policies.agent.network.encoder": "flt"}, "unknown policies.agent.network.encoder 'flt': did you mean 'flat'?"),
    ({"policies.agent.network.encoder": ""}, "unknown policies.agent.network.encoder '': known names: attention,"),
    ({"policies.agent.network.encoder": "nopackage:X"},
     "policies.agent.network.encoder 'nopackage:X': No module named 'nopackage'"),
    ({"policies.agent.network.encoder": "math:pi"}, "policies.agent.network.encoder 'math:pi': must be a subclass"),
    ({"policies.agent.network.encoder": "math:"}, "policies.agent.network.encoder = 'math:': must be"),
    ({"policies.agent.network.encoder": ":X"}, "policies.agent.network.encoder = ':X': must be"),
    ({"policies.agent.network.encoder": "a:b:c"}, "policies.agent.network.encoder = 'a:b:c': must be"),
    ({"policies.agent.network.encoder": "wdjax:Nope"},
     "policies.agent.network.encoder 'wdjax:Nope': module 'wdjax' has no attribute 'Nope'"),
    ({"policies.agent.network.encoder_options": {"width": 3}},
     "unknown option in policies.agent.network.encoder_options of 'flat' 'width': known names: none"),
    ({"policies.agent.network.encoder": "deep_sets", "policies.agent.network.encoder_options": {"widht": 3}},
     "unknown option in policies.agent.network.encoder_options of 'deep_sets' 'widht': did you mean 'width'?"),
    ({"policies.agent.epochs": -1, "policies.agent.algorithm": "PPO"},
     "policies.agent.epochs = -1: must be at least 1"),
    ({"policies.agent.epochs": 4, "policies.agent.algorithm": "A2C"},
     "policies.agent.epochs = 4: must be 1 (left out) for A2C"),
    ({"policies.agent.minibatches": 2, "policies.agent.algorithm": "A2C"},
     "policies.agent.minibatches = 2: must be 1 (left out) for A2C"),
    ({"policies.agent.minibatches": 3, "policies.agent.algorithm": "PPO"},
     "policies.agent.minibatches = 3: must be a divisor of 12500, the rows of a block (rollout_length 500 x"),
    ({"policies.agent.algorithm": "PPO", "policies.agent.minibatches": 10**9},
     "policies.agent.minibatches = 1000000000: must be a divisor of 12500, the rows of a block (rollout_length"),
    ({"policies.agent.clip": 0.3, "policies.agent.algorithm": "A2C"},
     "policies.agent.clip = 0.3: must be 0.2 (left out) for A2C"),
    ({"policies.agent.value_clip": 0.3, "policies.agent.algorithm": "A2C"},
     "policies.agent.value_clip = 0.3: must be inf (left out) for A2C"),
    ({"policies.agent.target_kl": 0.01, "policies.agent.algorithm": "A2C"},
     "policies.agent.target_kl = 0.01: must be inf (left out) for A2C"),
    ({"policies.agent.ddpg": {"tau": 0.1}, "policies.agent.algorithm": "A2C"},
     "policies.agent.ddpg.tau = 0.1: must be 0.005 (left out) for A2C"),
    ({"policies.agent.agents": ["agent"], "policies.other.agents": ["agent"]},
     "policies.other.agents: agent[0] already belongs to policy 'agent'"),
    ({"rollout_length": 10**9}, "rows of a rollout = 100000000000: must be below 2**31: num_envs 100 x rollout_length"),
    ({"policies.other": {}}, "unknown group in policies.other.agents 'other': known names: agent"),
    ({"policies.other.agents": []}, "unknown group in policies.other.agents 'other': known names: agent"),
    ({"": 1}, "unknown field '': known names: best_metric, checkpoint_every, devices, env, env_params,"),
    ({".": 1}, "unknown field '': known names: best_metric, checkpoint_every, devices, env, env_params,"),
    ({"policies.": {}}, "policies = '': must be a name without '/' and '.'"),
    ({"policies..gamma": 1}, "policies = '': must be a name without '/' and '.'"),
    ({"policies.agent..gamma": 1}, "unknown field policies.agent.: known names: action_distribution,"),
    ({"seed.x.y": 1}, "seed = {'x': {'y': 1}}: must be a whole number"),
]  # fmt: skip
DDPG = [
    ("ddpg.tau", 0, "= 0.0: must be above 0 and at most 1"),
    ("ddpg.tau", 1.5, "= 1.5: must be above 0 and at most 1"),
    ("ddpg.tau", NAN, "= nan: must be above 0 and at most 1"),
    ("ddpg.n_step", 0, "= 0: must be at least 1 and below 2**31"),
    ("ddpg.buffer_size", 100, "= 100: must be a multiple of num_blocks = 8"),
    ("ddpg.buffer_size", 10**15, "= 1000000000000000: must be at least 1 and below 2**31"),
    ("ddpg.batch_size", 0, "= 0: must be at least 1 and below 2**31"),
    ("ddpg.batch_size", 3, "= 3: must be a multiple of num_blocks = 8"),
    ("ddpg.warmup", 1, "= 1: must be between batch_size = 128 and buffer_size = 100000"),
    ("ddpg.warmup", 10**9, "= 1000000000: must be between batch_size = 128 and buffer_size = 100000"),
    ("ddpg.noise", "ou", "= 'ou': known names: gaussian, none, ornstein_uhlenbeck"),
    ("ddpg.noise_stddev", -1, "= -1.0: must be finite and at least 0"),
    ("ddpg.noise_damping", 2, "= 2.0: must be between 0 and 1"),
    ("ddpg.target_noise", INF, "= inf: must be finite and at least 0"),
    ("ddpg.critic_learning_rate", "x", "= 'x': must be a number or a list of [env_step, value] pairs"),
    ("ddpg.noise_scale", [[1, 1], [0, 1]], "= ((1.0, 1.0), (0.0, 1.0)): must be sorted by env_step, each once"),
    ("ddpg.policy_delay", 0, "= 0: must be at least 1 and below 2**31"),
    ("ddpg.updates_per_rollout", 0, "= 0: must be at least 1 and below 2**31"),
    ("ddpg.twin_critics", "two", "= 'two': must be true or false"),
    ("ddpg.uniform_warmup", 1, "= 1: must be true or false"),
    ("ddpg", "TD3", "= 'TD3': must be a mapping of fields"),
    ("ddpg", None, "= None: must be a mapping of fields"),
    ("network.recurrent_size", 8, "= 8: must be 0: DDPG has no recurrent policy"),
    ("epochs", 4, "= 4: must be 1 (left out) for DDPG"),
    ("clip", 0.3, "= 0.3: must be 0.2 (left out) for DDPG"),
    ("gae_lambda", 0.9, "= 0.9: must be 0.95 (left out) for DDPG"),
    ("minibatches", 2, "= 2: must be 1 (left out) for DDPG"),
    ("normalize_reward", True, "= True: must be False (left out) for DDPG"),
    ("target_kl", 0.1, "= 0.1: must be inf (left out) for DDPG"),
    ("past_selves", 2, "= 2: must be 0 where there is no other policy"),
    ("neg_pos_env_ratio", 1, "= 1.0: must be -1.0 (left out) for DDPG"),
    ("normalize_advantage", True, "= True: must be False (left out) for DDPG"),
    ("entropy_coefficient", 0.1, "= 0.1: must be 0.01 (left out) for DDPG"),
    ("value_coefficient", 0.1, "= 0.1: must be 0.5 (left out) for DDPG"),
    ("action_distribution", "squashed_gaussian", "= 'squashed_gaussian': must be gaussian (left out) for DDPG"),
]  # fmt: skip
DDPG_NAMES = [
    ({"policies.agent.ddpg.twin_critic": True},
     "unknown field policies.agent.ddpg.twin_critic: did you mean 'twin_critics'?"),
]  # fmt: skip
TAG = [
    ({"env_params.num_runners": 40_000, "num_envs": 6400},
     "rows of a rollout = 12800640000: must be below 2**31: num_envs 6400 x"),
    ({"policies.runner": None}, "policies.runner = None: must be a mapping of fields"),
    ({"policies": {"tagger": {}}}, "policies: nobody plays runner[0], runner[1], runner[2] ..."),
    ({"policies.runner.agents": ["runner[0:9]"]}, "policies.runner.agents = 'runner[0:9]': must lie inside"),
    ({"policies.runner.agents": ["runner[0:4]"]}, "policies: nobody plays runner[4], runner[5], runner[6] ..."),
    ({"policies.runner.agents": ["runner[8]"]}, "policies.runner.agents = 'runner[8]': must lie inside runner[0:8]"),
    ({"policies.runner.agents": ["runner[0:5]", "runner[4:8]"]},
     "policies.runner.agents: runner[4] already belongs to policy 'runner'"),
    ({"policies.runner.agents": ["runner", "tagger"]},
     "policies.runner.agents: tagger[0] already belongs to policy 'tagger'"),
    ({"policies.runner.agents": ["runer"]},
     "unknown group in policies.runner.agents 'runer': did you mean 'runner'?"),
    ({"policies.runer": {}}, "unknown group in policies.runer.agents 'runer': did you mean 'runner'?"),
    ({"policies.runner.agents": ["runner[-1]"]}, "policies.runner.agents = 'runner[-1]': must be a group, a slice"),
    ({"policies.runner.agents": ["runner [0:8]"]}, "policies.runner.agents = 'runner [0:8]': must be a group, a"),
    ({"policies.runner.agents": ["runner[0:8]", "runner[8:8]"]},
     "policies.runner.agents = 'runner[8:8]': must lie inside runner[0:8] and hold an agent"),
    ({"policies.runner.agents": ["runner[99999999999999999999]"]},
     "policies.runner.agents = 'runner[99999999999999999999]': must lie inside runner[0:8] and hold an agent"),
    ({"policies.runner.past_selves": 2, "policies.runner.trainable": False},
     "policies.runner.past_selves = 2: must be 0 where trainable is false: it is always the same"),
    ({"policies.runner.minibatches": 7}, "policies.runner.minibatches = 7: must be a divisor of 3200, the rows of"),
    ({"env_params.max_sped": 1},
     "env 'tag_continuous', env_params: unknown parameter of TagContinuous 'max_sped': did you mean 'max_speed'?"),
    ({"best_metric": "runer/episode_return"},
     "unknown best_metric 'runer/episode_return': did you mean 'runner/episode_return'?"),
    ({"best_metric": "runner"}, "unknown best_metric 'runner': known names: runner/episode_return,"),
    ({"policies.runner.network.encoder": "deep_set"},
     "unknown policies.runner.network.encoder 'deep_set': did you mean 'deep_sets'?"),
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
    ("num_other_agents_observed", 50, "= 50: must be at most 10, the agents"),
]  # fmt: skip
GRID_PARAMS = [
    ("grid_length", 0, "= 0: must be at least 1"),
    ("grid_length", 2.5, "= 2.5: must be a whole number"),
    ("num_taggers", -1, "= -1: must be at least 1"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value", "words"), RUN)
def test_fields_of_a_run(name, value, words):
    assert refusal(load_config, "cartpole", **{name: value}).startswith(f"{name} {words}")


@pytest.mark.parametrize(("name", "value", "words"), POLICY)
def test_fields_of_a_policy(name, value, words):
    path = f"policies.agent.{name}"
    assert refusal(load_config, "cartpole", **{path: value}).startswith(f"{path} {words}")


@pytest.mark.parametrize(("name", "value", "words"), DDPG)
def test_fields_of_a_policy_that_learns_by_ddpg(name, value, words):
    path = f"policies.agent.{name}"
    assert refusal(load_config, "continuous_mountain_car_ddpg", **{path: value}).startswith(f"{path} {words}")


PARAMS = [
    *(("cartpole", *row) for row in ENV_PARAMS),
    *(("tag_small", *row) for row in TAG_PARAMS),
    *(("tag_gridworld", *row) for row in GRID_PARAMS),
]


@pytest.mark.parametrize(("preset", "name", "value", "words"), PARAMS)
def test_parameters_of_an_environment(preset, name, value, words):
    assert f"env_params: {name} {words}" in refusal(load_config, preset, **{f"env_params.{name}": value})


CHANGES = [
    *(("cartpole", *row) for row in OTHER),
    *(("continuous_mountain_car_ddpg", *row) for row in DDPG_NAMES),
    *(("tag_small", *row) for row in TAG),
]


@pytest.mark.parametrize(("preset", "changes", "words"), CHANGES)
def test_changes_of_a_preset(preset, changes, words):
    assert refusal(load_config, preset, **changes).startswith(words)
