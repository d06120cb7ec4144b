"""Changes of a preset that do not fit raise one line that names the field and the allowed values.

They name unknown fields, or values that do not fit the preset. Each row of a table is (changes,
start of the message).
"""

import re
from importlib.resources import files

import pytest
import yaml
from refusals import refusal

from wdjax.train import change_config, load_config

OTHER = [
    ({"num_env": 3}, "unknown field num_env: did you mean 'num_envs'?"),
    ({"numenvs": 3}, "unknown field numenvs: did you mean 'num_envs'?"),
    ({"polices": {}}, "unknown field polices: did you mean 'policies'?"),
    ({"Env": "x"}, "unknown field Env: did you mean 'env'?"),
    ({"env": "cartpol"},
     "env 'cartpol', env_params: unknown environment 'cartpol': did you mean 'cartpole'?"),
    ({"env": ""}, "env '', env_params: unknown environment '': known names: acrobot, cartpole,"),
    ({"env": "gymnx:CartPole-v1"},
     "env 'gymnx:CartPole-v1', env_params: unknown library 'gymnx': did you mean 'gymnax'?"),
    ({"env": ":"},
     "env ':', env_params: unknown library '': known names: gymnax, jaxmarl, jumanji"),
    ({"env": "CartPole-v1"},
     "env 'CartPole-v1', env_params: unknown environment 'CartPole-v1': did you mean 'cartpole'?"),
    ({"env": "cartpole\n"},
     "env 'cartpole\\n', env_params: unknown environment 'cartpole\\n': did you mean 'cartpole'?"),
    ({"env_params.gravty": 1},
     "env 'cartpole', env_params: unknown parameter of CartPole 'gravty': did you mean 'gravity'?"),
    ({"env_params.gravity.x": 1},
     "env 'cartpole', env_params: gravity = {'x': 1}: must be a number"),
    ({"env_params.": 1},
     "env 'cartpole', env_params: unknown parameter of CartPole '': known names:"),
    ({"env_params": {1: 2}},
     "env 'cartpole', env_params: unknown parameter of CartPole '1': known names:"),
    ({"best_metric": "agent/return"},
     "unknown best_metric 'agent/return': did you mean 'agent/episode_return'?"),
    ({"best_metric": "agnt/episode_return"},
     "unknown best_metric 'agnt/episode_return': did you mean 'agent/episode_return'?"),
    ({"best_metric": ""}, "unknown best_metric '': known names: agent/episode_return"),
    ({"policies": {"agent": None}}, "policies.agent = None: must be a mapping of fields"),
    ({"policies": {"agent": []}}, "policies.agent = []: must be a mapping of fields"),
    ({"policies": {"agent": "PPO"}}, "policies.agent = 'PPO': must be a mapping of fields"),
    ({"policies": {None: {}}}, "unknown group in policies.None.agents 'None': known names: agent"),
    ({"policies": {"agent ": {}}},
     "policies.agent .agents = 'agent ': must be a group, a slice such as 'runner"),
    ({"policies.agent.agents": [0]}, "policies.agent.agents[0] = 0: must be text"),
    ({"policies.agent.agents": ["Agent"]},
     "unknown group in policies.agent.agents 'Agent': did you mean 'agent'?"),
    ({"policies.agent.agents": ["agent", ["agent"]]},
     "policies.agent.agents[1] = ['agent']: must be text"),
    ({"policies.agent.lr": 1}, "unknown field policies.agent.lr: did you mean 'learning_rate'?"),
    ({"policies.all.lr": 1}, "unknown field policies.all.lr: did you mean 'learning_rate'?"),
    ({"policies.all.zzz": 1}, "unknown field policies.all.zzz: known names: action_distribution,"),
    ({"policies.all.gamma": 2}, "policies.all.gamma = 2.0: must be between 0 and 1"),
    ({"policies.all.gamma": 0.9, "policies.agent.gamma": 2}, "policies.agent.gamma = 2.0: must"),
    ({"policies.all.opponents": {"random": 1.0}, "policies.agent.opponents_every": -1},
     "policies.agent.opponents_every = -1: must"),
    ({"policies.agent.hidden_sizes": [8]},
     "unknown field policies.agent.hidden_sizes: did you mean 'network.hidden_sizes'?"),
    ({"policies.agent.learningrate": 1},
     "unknown field policies.agent.learningrate: did you mean 'learning_rate'?"),
    ({"policies.agent.Gamma": 1}, "unknown field policies.agent.Gamma: did you mean 'gamma'?"),
    ({"policies.agent.lambda": 1},
     "unknown field policies.agent.lambda: did you mean 'gae_lambda'?"),
    ({"policies.agent.ent_coef": 1},
     "unknown field policies.agent.ent_coef: did you mean 'entropy_coefficient'?"),
    ({"policies.agent.network.depth": 1},
     "unknown field policies.agent.network.depth: known names: activation,"),
    ({"policies.agent.network.hidden_size": 1},
     "unknown field policies.agent.network.hidden_size: did you mean 'hidden_sizes'?"),
    ({"policies.agent.network.hidden_sizes": [64.5]},
     "policies.agent.network.hidden_sizes[0] = 64.5: must be a"),
    ({"policies.agent.network.hidden_sizes": [[64]]},
     "policies.agent.network.hidden_sizes[0] = [64]: must be a"),
    ({"policies.agent.network.hidden_sizes": [True]},
     "policies.agent.network.hidden_sizes[0] = True: must be a"),
    ({"policies.agent.action_distribution": "squashed_gaussian"},
     "policies.agent: action_distribution = 'squashed_gaussian': must be gaussian (the default), "
     "as Discrete(n=2"),
    ({"policies.agent.network.encoder": "deep_sets"},
     "policies.agent.network.encoder = 'deep_sets': CartPole does not define how to split "
     "observations into"),
    ({"policies.agent.network.encoder": "flt"},
     "policies.agent.network.encoder = 'flt': did you mean 'flat'?"),
    ({"policies.agent.network.encoder": ""},
     "policies.agent.network.encoder = '': known names: attention,"),
    ({"policies.agent.network.encoder": "nopackage:X"},
     "policies.agent.network.encoder 'nopackage:X': No module named 'nopackage'"),
    ({"policies.agent.network.encoder": "math:pi"},
     "policies.agent.network.encoder 'math:pi': must be a subclass"),
    ({"policies.agent.network.encoder": "math:"},
     "policies.agent.network.encoder = 'math:': must be"),
    ({"policies.agent.network.encoder": ":X"}, "policies.agent.network.encoder = ':X': must be"),
    ({"policies.agent.network.encoder": "a:b:c"},
     "policies.agent.network.encoder = 'a:b:c': must be"),
    ({"policies.agent.network.encoder": "wdjax:Nope"},
     "policies.agent.network.encoder 'wdjax:Nope': module 'wdjax' has no attribute 'Nope'"),
    ({"policies.agent.network.encoder_options": {"width": 3}},
     "unknown option in policies.agent.network.encoder_options of 'flat' 'width': known names: "
     "none"),
    ({"policies.agent.network.encoder": "deep_sets", "policies.agent.network.encoder_options": {
     "widht": 3}},
     "unknown option in policies.agent.network.encoder_options of 'deep_sets' 'widht': did you "
     "mean 'width'?"),
    ({"policies.agent.epochs": -1, "policies.agent.algorithm": "PPO"},
     "policies.agent.epochs = -1: must be at least 1"),
    ({"policies.agent.epochs": 4, "policies.agent.algorithm": "A2C"},
     "policies.agent.epochs = 4: A2C has no such option (PPO and PQN have it). Remove it."),
    ({"policies.agent.minibatches": 2, "policies.agent.algorithm": "A2C"},
     "policies.agent.minibatches = 2: A2C has no such option (PPO and PQN have it). Remove it."),
    ({"policies.agent.minibatches": 3, "policies.agent.algorithm": "PPO"},
     "policies.agent.minibatches = 3: must be a divisor of 12500, the number of transitions per "
     "block"),
    ({"policies.agent.algorithm": "PPO", "policies.agent.minibatches": 10**9},
     "policies.agent.minibatches = 1000000000: must be a divisor of 12500, the number of "
     "transitions"),
    ({"policies.agent.clip": 0.3, "policies.agent.algorithm": "A2C"},
     "policies.agent.clip = 0.3: A2C has no such option (PPO has it). Remove it."),
    ({"policies.agent.value_clip": 0.3, "policies.agent.algorithm": "A2C"},
     "policies.agent.value_clip = 0.3: A2C has no such option (PPO has it). Remove it."),
    ({"policies.agent.target_kl": 0.01, "policies.agent.algorithm": "A2C"},
     "policies.agent.target_kl = 0.01: A2C has no such option (PPO has it). Remove it."),
    ({"policies.agent.ddpg": {"noise_stddev": 0.1}, "policies.agent.algorithm": "A2C"},
     "policies.agent.noise_stddev = 0.1: A2C has no such option (DDPG has it). Remove it."),
    ({"policies.agent.clip": 0.3, "policies.agent.noise_stddev": 0.1},
     "policies.agent.clip = 0.3, policies.agent.noise_stddev = 0.1: A2C has no such options (PPO "
     "and DDPG have them)."),
    ({"policies.agent.clip": "0.2.1", "policies.agent.algorithm": "PPO"},
     "policies.agent.clip = '0.2.1': must be a number"),
    ({"policies.agent.value_clip": 0, "policies.agent.algorithm": "PPO"},
     "policies.agent.value_clip = 0.0: must be above 0"),
    ({"policies.agent.options": {"gamma": 2}},
     "policies.agent.gamma = 2.0: must be between 0 and 1"),
    ({"policies.agent": {"gamma": 0.5, "options": {"gamma": 0.5}}},
     "policies.agent.gamma = 0.5: also given as policies.agent.options.gamma. Remove one."),
    ({"policies.agent.options": 3}, "policies.agent.options = 3: must be a mapping of fields"),
    ({"policies.agent.agents": ["agent"], "policies.other.agents": ["agent"]},
     "policies.other.agents: agent[0] already belongs to policy 'agent'"),
    ({"rollout_length": 10**9},
     "transitions per rollout = 1000000000000: must be below 2**31: num_envs 1000 x"),
    ({"policies.other": {}}, "unknown group in policies.other.agents 'other': known names: agent"),
    ({"policies.other.agents": []},
     "unknown group in policies.other.agents 'other': known names: agent"),
    ({"": 1},
     "unknown field '': known names: best_metric, checkpoint_every, checkpoint_every_updates, "
     "devices, env,"),
    ({".": 1},
     "unknown field '': known names: best_metric, checkpoint_every, checkpoint_every_updates, "
     "devices, env,"),
    ({"policies.": {}}, "policies = '': must be a name without '/' and '.'"),
    ({"policies..gamma": 1}, "policies = '': must be a name without '/' and '.'"),
    ({"policies.agent..gamma": 1},
     "unknown field policies.agent.: known names: action_distribution,"),
    ({"seed.x.y": 1}, "seed = {'x': {'y': 1}}: must be a whole number"),
]  # fmt: skip
DDPG_NAMES = [
    ({"policies.agent.twin_critic": True},
     "unknown field policies.agent.twin_critic: did you mean 'twin_critics'?"),
    ({"policies.agent.ddpg.twin_critic": True},
     "unknown field policies.agent.twin_critic: did you mean 'twin_critics'?"),
    ({"policies.agent.ddpg.tau": 0}, "policies.agent.tau = 0.0: must be above 0 and at most 1"),
]  # fmt: skip
TAG = [
    ({"env_params.num_runners": 40_000, "num_envs": 6400},
     "transitions per rollout = 12800640000: must be below 2**31: num_envs 6400 x"),
    ({"policies.runner": None}, "policies.runner = None: must be a mapping of fields"),
    ({"policies": {"tagger": {}}},
     "policies: no policy controls runner[0], runner[1], runner[2] ..."),
    ({"policies.runner.agents": ["runner[0:9]"]},
     "policies.runner.agents = 'runner[0:9]': must be a nonempty"),
    ({"policies.runner.agents": ["runner[0:4]"]},
     "policies: no policy controls runner[4], runner[5], runner[6] ..."),
    ({"policies.runner.agents": ["runner[8]"]},
     "policies.runner.agents = 'runner[8]': must be a nonempty range"),
    ({"policies.runner.agents": ["runner[0:5]", "runner[4:8]"]},
     "policies.runner.agents: runner[4] already belongs to policy 'runner'"),
    ({"policies.runner.agents": ["runner", "tagger"]},
     "policies.runner.agents: tagger[0] already belongs to policy 'tagger'"),
    ({"policies.runner.agents": ["runer"]},
     "unknown group in policies.runner.agents 'runer': did you mean 'runner'?"),
    ({"policies.runer": {}},
     "unknown group in policies.runer.agents 'runer': did you mean 'runner'?"),
    ({"policies.runner.agents": ["runner[-1]"]},
     "policies.runner.agents = 'runner[-1]': must be a group, a slice"),
    ({"policies.runner.agents": ["runner [0:8]"]},
     "policies.runner.agents = 'runner [0:8]': must be a group, a"),
    ({"policies.runner.agents": ["runner[0:8]", "runner[8:8]"]},
     "policies.runner.agents = 'runner[8:8]': must be a nonempty range inside runner[0:8]"),
    ({"policies.runner.agents": ["runner[99999999999999999999]"]},
     "policies.runner.agents = 'runner[99999999999999999999]': must be a nonempty range inside "
     "runner[0:8]"),
    ({"policies.runner.past_selves": 2, "policies.runner.trainable": False},
     "policies.runner.past_selves = 2: must be 0 if trainable is false: the policy never changes"),
    ({"policies.runner.opponents": {"flee_nearst": 0.5}},
     "unknown script in policies.runner.opponents (a run is a path that contains '/'): "
     "'flee_nearst': did you mean '"),
    ({"policies.runner.opponents": {"chase_nearest": 0.5}},
     "policies.runner.opponents: script = 'chase_nearest': must be a script that also acts for"),
    ({"policies.runner.opponents": {"random": 0.7, "flee_nearest": [[0, 0.1], [100, 0.4]]}},
     "sum of opponent shares at env step 100 = 1.1: must be at most 1 in total "
     "(policies.runner.opponents.random"),
    ({"policies.runner.opponents": {"random": 0.7}, "policies.runner.past_selves": 1},
     "sum of opponent shares at env step 0 = 1.2: must be at most 1 in total "
     "(policies.runner.past_selves_fraction"),
    ({"policies.runner.opponents": {"random": -0.1}},
     "policies.runner.opponents.random = -0.1: must be finite and at"),
    ({"policies.runner.opponents": {"random": "often"}},
     "policies.runner.opponents.random = 'often': must be a"),
    ({"policies.runner.opponents": ["random"]},
     "policies.runner.opponents = ['random']: must be a mapping"),
    ({"policies.runner.opponents_every": 2},
     "policies.runner.opponents_every = 2: must be 1 (the default) without opponents"),
    ({"policies.runner.opponents_priority": -1},
     "policies.runner.opponents_priority = -1.0: must be finite and at"),
    ({"policies.runner.minibatches": 7},
     "policies.runner.minibatches = 7: must be a divisor of 3200, the number"),
    ({"env_params.max_sped": 1},
     "env 'tag_continuous', env_params: unknown parameter of TagContinuous 'max_sped': did you "
     "mean 'max_speed'?"),
    ({"best_metric": "runer/episode_return"},
     "unknown best_metric 'runer/episode_return': did you mean 'runner/episode_return'?"),
    ({"best_metric": "runner"},
     "unknown best_metric 'runner': known names: episode_tags, runner/episode_return,"),
    ({"policies.runner.network.encoder": "deep_set"},
     "policies.runner.network.encoder = 'deep_set': did you mean 'deep_sets'?"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def check_that_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


CHANGES = [
    *(("cartpole", *row) for row in OTHER),
    *(("continuous_mountain_car_ddpg", *row) for row in DDPG_NAMES),
    *(("tag_small", *row) for row in TAG),
]


@pytest.mark.parametrize(("preset", "changes", "words"), CHANGES)
def test_malformed_changes_of_a_preset_raise(preset, changes, words):
    assert refusal(load_config, preset, **changes).startswith(words)


@pytest.mark.parametrize(
    ("preset", "algorithm", "names", "owners"),
    [
        ("cartpole_ppo", "A2C", ["epochs", "minibatches"], "PPO and PQN have them"),
        ("pendulum_ppo", "DDPG", ["action_distribution", "epochs"], "A2C, PPO and PQN have them"),
    ],
)
def test_all_options_that_an_algorithm_lacks_are_refused_at_once(preset, algorithm, names, owners):
    raw = yaml.safe_load((files("wdjax.experiments") / "configs" / f"{preset}.yaml").read_text())
    agent = raw["policies"]["agent"]
    agent["algorithm"] = algorithm
    message = refusal(load_config, raw)
    assert f": {algorithm} has no such options ({owners}). Remove them." in message
    refused = re.findall(r"policies\.agent\.(\w+) = ", message)
    assert {*names} <= {*refused}
    for name in refused:
        del agent[name]
    assert load_config(raw).policies["agent"].algorithm == algorithm


@pytest.mark.parametrize(
    ("preset", "algorithm"), [("cartpole_ppo", "A2C"), ("pendulum_ppo", "DDPG")]
)
def test_changing_the_algorithm_drops_options_of_the_preset(preset, algorithm):
    change = {"policies.agent.algorithm": algorithm}
    before = load_config(preset).policies["agent"]
    after = load_config(preset, **change).policies["agent"]
    assert after.learning_rate == before.learning_rate
    assert after.options.gamma == before.options.gamma
    assert not hasattr(after.options, "epochs")
    message = refusal(load_config, preset, **change, **{"policies.agent.epochs": 4})
    assert message == (
        f"policies.agent.epochs = 4: {algorithm} has no such option (PPO and PQN have it). "
        "Remove it."
    )


@pytest.mark.parametrize("name", ["clip", "options.clip"])
def test_options_are_set_flat_or_in_a_block(name):
    config = load_config("cartpole_ppo", **{f"policies.agent.{name}": 0.1})
    block = load_config("cartpole_ppo", **{"policies.agent.options": {"clip": 0.1}})
    assert config == block
    assert config.policies["agent"].options.clip == 0.1
    assert config.policies["agent"].options.epochs == 4  # as in the preset


def test_options_of_a_team_are_set_flat_or_in_a_block():
    teams = {"all": {"policies": ["tagger", "runner"], "clip": 0.1}}
    policies = {"tagger": {}, "runner": {}}
    config = load_config({"env": "tag_continuous", "policies": policies, "teams": teams})
    assert config.teams["all"].options.clip == 0.1
    flat, dotted, block = (
        change_config(config, **change)
        for change in (
            {"teams.all.clip": 0.3},
            {"teams.all.options.clip": 0.3},
            {"teams.all.options": {"clip": 0.3}},
        )
    )
    assert flat == dotted == block
    assert flat.teams["all"].options.clip == 0.3
