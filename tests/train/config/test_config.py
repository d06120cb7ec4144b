"""Errors of invalid configurations: field, value and allowed values, before tracing."""

import dataclasses
import math

import jax
import pytest
from flax import nnx
from probes import Leaver, Signal

from wdjax import Box, Dict, MultiDiscrete, envs, vectorize
from wdjax.train import (
    PPO,
    NetworkConfig,
    PolicyConfig,
    TrainConfig,
    load_config,
    make_learner,
)

AGENT = "policies.agent"
BY_PPO = {f"{AGENT}.algorithm": "PPO"}
NET = f"{AGENT}.network"
RATE = f"{AGENT}.learning_rate"
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def no_tracing(monkeypatch):
    """Fail if jax traces: configurations are refused before."""

    def fail(*args, **kwargs):
        raise AssertionError("something was traced")

    monkeypatch.setattr(jax, "jit", fail)
    monkeypatch.setattr(nnx, "eval_shape", fail)


# (changes to the preset cartpole, A2C, 100 x 500; message of the error)

UNKNOWN = [
    ({"num_env": 4}, r"unknown field num_env: did you mean 'num_envs'\?"),
    ({"polices.agent.gamma": 0.9}, r"unknown field polices: did you mean 'policies'\?"),
    ({f"{AGENT}.gama": 0.9}, r"unknown field policies\.agent\.gama: did you mean 'gamma'\?"),
    ({f"{AGENT}.lr": 0.1}, r"unknown field policies\.agent\.lr"),
    (
        {f"{NET}.hidden_size": [8]},
        r"unknown field .*\.network\.hidden_size: did you mean 'hidden_sizes'\?",
    ),
    (
        {"env_params.gravty": 1},
        r"env_params: unknown parameter of CartPole 'gravty': did you mean 'gravity'\?",
    ),
    ({"env": "cartpol"}, r"unknown environment 'cartpol': did you mean 'cartpole'\?"),
    ({f"{AGENT}.algorithm": "Rainbow"}, r"policies\.agent\.algorithm = 'Rainbow': .*A2C.*PPO"),
    ({f"{AGENT}.optimizer": "adm"}, r"policies\.agent\.optimizer = 'adm': did you mean 'adam'\?"),
    (
        {f"{AGENT}.action_distribution": "squashed"},
        r"policies\.agent\.action_distribution = 'squashed': did you mean",
    ),
    ({f"{NET}.activation": "reul"}, r"network\.activation = 'reul': did you mean 'relu'\?"),
    ({f"{NET}.initializer": "zeros"}, r"network\.initializer = 'zeros': .*orthogonal"),
    ({"best_metric": "loss"}, r"best_metric 'loss': .*agent/episode_return"),
    ({"": 1}, r"unknown field '': known names: .*num_envs"),
]
WRONG_TYPE = [
    ({"env": 5}, r"env = 5: must be text"),
    ({"env": None}, r"env = None: must be text"),
    ({"num_envs": "many"}, r"num_envs = 'many': must be a whole number"),
    ({"num_envs": 2.5}, r"num_envs = 2\.5: must be a whole number"),
    ({"num_envs": True}, r"num_envs = True: must be a whole number"),
    ({"num_envs": None}, r"num_envs = None: must be a whole number"),
    ({"num_envs": [4]}, r"num_envs = \[4\]: must be a whole number"),
    ({"num_envs": INF}, r"num_envs = inf: must be a whole number"),
    ({"rollout_length": NAN}, r"rollout_length = nan: must be a whole number"),
    ({"total_env_steps": 1.5}, r"total_env_steps = 1\.5: must be a whole number"),
    ({"seed": "x"}, r"seed = 'x': must be a whole number"),
    ({"reset": "frsh"}, r"reset = 'frsh': must be 'fresh' or 'fixed' or a whole number"),
    ({"reset": 1.5}, r"reset = 1\.5: must be 'fresh' or 'fixed' or a whole number"),
    ({"reset": True}, r"reset = True: must be"),
    ({"policies": None}, r"policies = None: must be a mapping"),
    ({"policies": ["agent"]}, r"policies = \['agent'\]: must be a mapping"),
    ({AGENT: 3}, r"policies\.agent = 3: must be a mapping of fields"),
    ({f"{AGENT}.agents": "agent"}, r"policies\.agent\.agents = 'agent': must be a list"),
    ({f"{AGENT}.agents": [3]}, r"policies\.agent\.agents\[0\] = 3: must be text"),
    ({f"{AGENT}.gamma": "high"}, r"policies\.agent\.gamma = 'high': must be a number"),
    ({f"{AGENT}.gamma": [0.9]}, r"policies\.agent\.gamma = \[0\.9\]: must be a number"),
    ({f"{AGENT}.gamma": None}, r"policies\.agent\.gamma = None: must be a number"),
    ({f"{AGENT}.trainable": "no"}, r"policies\.agent\.trainable = 'no': must be true or false"),
    ({f"{AGENT}.trainable": 1}, r"policies\.agent\.trainable = 1: must be true or false"),
    (
        {f"{AGENT}.normalize_reward": 1},
        r"policies\.agent\.normalize_reward = 1: must be true or false",
    ),
    (
        {f"{AGENT}.normalize_observation": "yes"},
        r"policies\.agent\.normalize_observation = 'yes': must be true or fal",
    ),
    (
        {**BY_PPO, f"{AGENT}.target_kl": "small"},
        r"policies\.agent\.target_kl = 'small': must be a number",
    ),
    (
        {f"{AGENT}.neg_pos_env_ratio": [1]},
        r"policies\.agent\.neg_pos_env_ratio = \[1\]: must be a number",
    ),
    ({f"{NET}.recurrent_size": 2.5}, r"network\.recurrent_size = 2\.5: must be a whole number"),
    (
        {**BY_PPO, f"{AGENT}.minibatches": 2.5},
        r"policies\.agent\.minibatches = 2\.5: must be a whole number",
    ),
    (
        {RATE: "fast"},
        r"learning_rate = 'fast': must be a number or a list of \[env_step, value\] pairs",
    ),
    ({RATE: True}, r"learning_rate = True: must be a number or a list"),
    (
        {RATE: [1, 2]},
        r"learning_rate = \[1, 2\]: must be a number or a list of \[env_step, value\] pairs",
    ),
    ({RATE: [[0, 1, 2]]}, r"learning_rate = \[\[0, 1, 2\]\]: must be a number or a list"),
    ({NET: "mlp"}, r"policies\.agent\.network = 'mlp': must be a mapping of fields"),
    ({f"{NET}.hidden_sizes": 32}, r"network\.hidden_sizes = 32: must be a list"),
    ({f"{NET}.hidden_sizes": ["x"]}, r"network\.hidden_sizes\[0\] = 'x': must be a whole number"),
    ({f"{NET}.shared_trunk": 3}, r"network\.shared_trunk = 3: must be true or false"),
    (
        {f"{AGENT}.gamma.x": 1},
        r"policies\.agent\.gamma = 0\.99: must be a mapping to have a field x",
    ),
    ({"num_envs.x": 1}, r"num_envs = 1000: must be a mapping to have a field x"),
    ({"env_params": 3}, r"env_params = 3: must be a mapping"),
    (
        {"env_params.episode_length": "x"},
        r"env_params: episode_length = 'x': must be a whole number",
    ),
    ({"env_params.gravity": None}, r"env_params: gravity = None: must be a number"),
    (
        {AGENT: PolicyConfig(options={"gamma": "high"})},
        r"policies\.agent\.gamma = 'high': must be a number",
    ),
    ({f"{AGENT}.options": 3}, r"policies\.agent\.options = 3: must be a mapping of fields"),
    (
        {NET: PolicyConfig()},
        r"policies\.agent\.network = PolicyConfig\(.*: must be a mapping of fields",
    ),
]
OUT_OF_RANGE = [
    *(
        ({name: 0}, rf"{name} = 0: must be at least 1")
        for name in (
            "num_envs",
            "rollout_length",
            "total_env_steps",
            "checkpoint_every",
            "keep_checkpoints",
            "eval_episodes",
        )
    ),
    ({"num_envs": -4}, r"num_envs = -4: must be at least 1"),
    ({"seed": -1}, r"seed = -1: must be at least 0"),
    ({"seed": 2**32}, r"seed = 4294967296: must be at least 0 and below 2\*\*32"),
    ({"reset": 0}, r"reset = 0: must be 'fresh', 'fixed' or a number of starts"),
    ({"policies": {}}, r"policies = \{\}: must be at least one policy"),
    (
        {"policies": {"a/b": {"agents": ["agent"]}}},
        r"policies = 'a/b': must be a name without '/' and '\.'",
    ),
    ({"policies": {"": {"agents": ["agent"]}}}, r"policies = '': must be a name"),
    *(
        ({f"{AGENT}.{name}": value}, rf"policies\.agent\.{name} = .*: must be between 0 and 1")
        for name in ("gamma", "gae_lambda")
        for value in (-0.1, 1.1, NAN)
    ),
    *(
        (
            {**BY_PPO, f"{AGENT}.{name}": value},
            rf"policies\.agent\.{name} = .*: must be (finite and )?above 0",
        )
        for name in ("clip", "value_clip", "target_kl", "max_grad_norm", "optimizer_epsilon")
        for value in (0, -1, NAN)
    ),
    (
        {f"{AGENT}.optimizer_epsilon": INF},
        r"policies\.agent\.optimizer_epsilon = inf: must be finite",
    ),
    *(
        (
            {f"{AGENT}.neg_pos_env_ratio": value},
            r"policies\.agent\.neg_pos_env_ratio = .*: must be finite \(below 0",
        )
        for value in (INF, NAN)
    ),
    ({f"{NET}.recurrent_size": -1}, r"network\.recurrent_size = -1: must be at least 0"),
    *(
        (
            {f"{AGENT}.{name}": value},
            rf"policies\.agent\.{name} = .*: must be finite and at least 0",
        )
        for name in ("learning_rate", "entropy_coefficient", "value_coefficient")
        for value in (-1, INF, NAN)
    ),
    (
        {RATE: []},
        r"learning_rate = \(\): must be a number or at least one \[env_step, value\] pair",
    ),
    ({RATE: [[0, NAN]]}, r"learning_rate = .*nan.*: must be finite"),
    ({RATE: [[-1, 1]]}, r"learning_rate = .*: must be finite and at least 0"),
    (
        {RATE: [[5, 1], [0, 2]]},
        r"learning_rate = .*: must be sorted by env_step, without duplicates",
    ),
    (
        {RATE: [[0, 1], [0, 2]]},
        r"learning_rate = .*: must be sorted by env_step, without duplicates",
    ),
    (
        {f"{NET}.hidden_sizes": [8, 0]},
        r"network\.hidden_sizes = \(8, 0\): must be widths of at least 1",
    ),
    ({"env_params.episode_length": 0}, r"env_params: episode_length = 0: must be above 0"),
    ({"env_params.gravity": NAN}, r"env_params: gravity = nan: must be .*not NaN"),
    ({"env_params.gravity": [1.0, 2.0]}, r"env_params\.gravity = .*: must be one number"),
]
BATCHES = [
    ({"num_blocks": -1}, r"num_blocks = -1: must be at least 0"),
    ({"num_blocks": 3}, r"num_blocks = 3: must be a divisor of num_envs = 1000"),
    ({"num_blocks": 2000}, r"num_blocks = 2000: must be a divisor of num_envs = 1000"),
    ({**BY_PPO, f"{AGENT}.epochs": 0}, r"policies\.agent\.epochs = 0: must be at least 1"),
    (
        {**BY_PPO, f"{AGENT}.minibatches": 0},
        r"policies\.agent\.minibatches = 0: must be at least 1",
    ),
    (
        {**BY_PPO, f"{AGENT}.minibatches": 7},
        r"agent\.minibatches = 7: must be a divisor of 12500",
    ),
    (
        {**BY_PPO, f"{AGENT}.minibatches": 1000, "num_blocks": 200},
        r"minibatches = 1000: must be a divisor of 500",
    ),
]
AGENTS = [
    ({"policies": {"other": {}}}, r"group in policies\.other\.agents 'other': known names: agent"),
    (
        {f"{AGENT}.agents": ["agents"]},
        r"group in policies\.agent\.agents 'agents': did you mean 'agent'\?",
    ),
    (
        {f"{AGENT}.agents": ["agent", "agent"]},
        r"policies\.agent\.agents: agent\[0\] already belongs to policy 'agent'",
    ),
    (
        {f"{AGENT}.agents": ["agent[1]"]},
        r"policies\.agent\.agents = 'agent\[1\]': must be a nonempty range inside",
    ),
    (
        {f"{AGENT}.agents": ["agent[0:0]"]},
        r"policies\.agent\.agents = 'agent\[0:0\]': must be a nonempty range",
    ),
    *(
        ({f"{AGENT}.agents": [selector]}, r"policies\.agent\.agents = .*: must be a group, a slice")
        for selector in (
            "",
            "agent[]",
            "agent[-1]",
            "agent[0:1:1]",
            "agent[a]",
            "agent[0",
            "agent\n",
            "agent[0:1]x",
        )
    ),
]


def refuses(preset, changes, error, words):
    with pytest.raises(error, match=words):
        load_config(preset, **changes)


@pytest.mark.parametrize(("changes", "words"), UNKNOWN)
def test_unknown_names_are_refused(changes, words):
    refuses("cartpole", changes, ValueError, words)


@pytest.mark.parametrize(("changes", "words"), WRONG_TYPE)
def test_wrong_types_are_refused(changes, words):
    refuses("cartpole", changes, TypeError, words)


@pytest.mark.parametrize(("changes", "words"), OUT_OF_RANGE + BATCHES + AGENTS)
def test_impossible_values_are_refused(changes, words):
    refuses("cartpole", changes, ValueError, words)


TAG = [
    ({"policies.tagger.agents": ["runner"]}, r"runner\[0\] already belongs to policy 'tagger'"),
    (
        {"policies": {"tagger": {}}},
        r"no policy controls runner\[0\], runner\[1\], runner\[2\] \.\.\.",
    ),
    ({"policies.runner.agents": ["runner[0:50]"]}, r"no policy controls runner\[50\]"),
    (
        {"policies.runner.agents": ["runner[0:60]", "runner[59:100]"]},
        r"runner\[59\] already belongs to",
    ),
    (
        {"policies.runner.agents": ["runner[0:101]"]},
        r"'runner\[0:101\]': must be a nonempty range inside runner",
    ),
    (
        {"policies.all": {"agents": ["tagger", "runner"]}},
        r"policies\.all\.agents: tagger\[0\] already belongs",
    ),
    ({"env_params.num_taggers": 0}, r"env_params: num_taggers = 0: must be at least 1"),
    (
        {"env_params.num_other_agents_observed": 500},
        r"num_other_agents_observed = 500: must be at most 110",
    ),
    (
        {"env_params.max_acceleration": -3},
        r"min_acceleration = -0\.1.*: must be at most max_acceleration",
    ),
]


OUT_OF_PLACE = [  # fields that an algorithm, an environment or a policy does not have
    (
        "cartpole",
        {f"{AGENT}.clip": 0.3},
        r"clip = 0\.3: A2C has no such option \(PPO has it\)\. Remove it",
    ),
    (
        "cartpole",
        {f"{AGENT}.target_kl": 1.0},
        r"target_kl = 1\.0: A2C has no such option \(PPO has it\)",
    ),
    (
        "cartpole",
        {f"{AGENT}.epochs": 2},
        r"policies\.agent\.epochs = 2: A2C has no such option \(PPO and PQN have it\)",
    ),
    (
        "cartpole",
        {f"{AGENT}.noise_stddev": 5},
        r"policies\.agent\.noise_stddev = 5: A2C has no such option \(DDPG has it\)",
    ),
    (
        "cartpole",
        {f"{AGENT}.ddpg.noise_stddev": 5},
        r"policies\.agent\.noise_stddev = 5: A2C has no such option \(DDPG has it\)",
    ),
    (
        "cartpole_ppo",
        {f"{AGENT}.noise_stddev": -3},
        r"noise_stddev = -3: PPO has no such option \(DDPG has it\)",
    ),
    (
        "pendulum_ddpg",
        {f"{AGENT}.entropy_coefficient": 0.3},
        r"entropy_coefficient = 0\.3: DDPG has no such option \(A2C and PPO have it\)",
    ),
    (
        "cartpole",
        {f"{AGENT}.action_distribution": "squashed_gaussian"},
        r"policies\.agent: .* must be gaussian",
    ),
    (
        "cartpole",
        {f"{NET}.encoder": "deep_sets"},
        r"network\.encoder = 'deep_sets': CartPole does not define how",
    ),
    (
        "tag_small",
        {
            "policies.runner.past_selves": 2,
            "num_envs": 5,
            "policies.runner.minibatches": 1,
            "policies.tagger.minibatches": 1,
        },
        r"num_blocks = 1: must be at least 2, because policies",
    ),
    (
        "tag_small",
        {"policies.runner.past_selves_fraction": 1.0},
        r"past_selves_fraction = 1\.0: must be .* below 1",
    ),
]


@pytest.mark.parametrize(("preset", "changes", "words"), OUT_OF_PLACE)
def test_fields_without_effect_are_refused(preset, changes, words):
    refuses(preset, changes, ValueError, words)


@pytest.mark.parametrize(("changes", "words"), TAG)
def test_agents_without_or_with_two_policies_are_refused(changes, words):
    refuses("tag_continuous", changes, ValueError, words)


# --- options of algorithms ---


def with_option(algorithm, name, value, block=None):
    """Return a configuration of one policy with an option, flat or in a block."""
    option = {name: value}
    policy = {"algorithm": algorithm, **({block: option} if block else option)}
    return load_config({"env": "pendulum", "policies": {"agent": policy}})


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [
        ("PPO", "clip", 0.1),
        ("PPO", "epochs", 3),
        ("A2C", "gamma", 0.5),
        ("DDPG", "tau", 0.5),
        ("DDPG", "n_step", 2),
    ],
)
def test_options_are_read_flat_and_from_the_blocks_of_0_2(algorithm, name, value):
    expected = with_option(algorithm, name, value)
    assert getattr(expected.policies["agent"].options, name) == value
    base = with_option(algorithm, "gamma", 0.99)
    for block in ("options", "ddpg"):
        assert with_option(algorithm, name, value, block) == expected
        changed = load_config(dataclasses.asdict(base), **{f"{AGENT}.{block}.{name}": value})
        assert changed == expected
    policy = PolicyConfig(algorithm=algorithm, options={name: value})
    assert load_config({"env": "pendulum", "policies": {"agent": policy}}) == expected
    assert (
        load_config({"env": "pendulum", "policies": {"agent": expected.policies["agent"]}})
        == expected
    )


def test_an_option_given_twice_is_refused():
    given = {"clip": 0.1, "options": {"clip": 0.3}}
    with pytest.raises(
        ValueError,
        match=r"policies\.agent\.clip = 0\.1: also given as policies\.agent\.options\.clip",
    ):
        load_config({"env": "cartpole", "policies": {"agent": given}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip", 0.2),
        ("value_clip", INF),
        ("epochs", 1),
        ("ddpg.tau", 0.005),
        ("ddpg.twin_critics", False),
    ],
)
def test_an_option_of_another_algorithm_is_dropped_at_its_default(name, value):
    """Files of 0.2 contain the options of all algorithms."""
    assert load_config("cartpole", **{f"{AGENT}.{name}": value}) == load_config("cartpole")


def test_options_of_a_replaced_algorithm_are_refused():
    policy = dataclasses.replace(load_config("cartpole_ppo").policies["agent"], algorithm="A2C")
    words = r"policies\.agent\.epochs = 4, .*: A2C has no such options \(PPO and PQN have them\)"
    with pytest.raises(ValueError, match=words):
        load_config("cartpole_ppo", **{AGENT: policy})
    one = PolicyConfig(algorithm="A2C", options={"epochs": 4})
    with pytest.raises(ValueError, match=r"policies\.agent\.epochs = 4: A2C has no such option \("):
        make_learner(TrainConfig("cartpole", {"agent": one}))


@dataclasses.dataclass(frozen=True)
class Unrelated:
    temperature: float = 1.0


class Incomplete(PPO):
    Options = Unrelated


def test_options_must_extend_those_of_the_base_class():
    words = "Options must be a subclass of PPO.Options, which PPO reads"
    with pytest.raises(TypeError, match=words):
        load_config("cartpole", **{f"{AGENT}.algorithm": f"{__name__}:Incomplete"})


# --- refusals of make_learner: what Python lets into a dataclass ---


def one_policy(env, *agents, **changes):
    return TrainConfig(env, {"all": PolicyConfig(agents=agents, **changes)})


BUILT = [
    (
        TrainConfig("cartpole", {"agent": PolicyConfig()}, num_envs="64"),
        TypeError,
        r"num_envs = '64': must be a whole",
    ),
    (
        TrainConfig("cartpole", {"agent": PolicyConfig()}, env_params=None),
        TypeError,
        r"env_params = None: must be",
    ),
    (TrainConfig("cartpole", [PolicyConfig()]), TypeError, r"policies = \[.*: must be a mapping"),
    (
        one_policy("cartpole", "agent", algorithm="TRPO"),
        ValueError,
        r"policies\.all\.algorithm = 'TRPO'",
    ),
    (one_policy("cartpole", "agent", optimizer="x"), ValueError, r"policies\.all\.optimizer = 'x'"),
    (
        one_policy("cartpole", "agent", learning_rate="abc"),
        TypeError,
        r"policies\.all\.learning_rate = 'abc'",
    ),
    (
        one_policy("cartpole", "agent", options={"gamma": 2.0}),
        ValueError,
        r"policies\.all\.gamma = 2\.0",
    ),
    (
        one_policy("cartpole", "agent", network=NetworkConfig(8)),
        TypeError,
        r"hidden_sizes = 8: must be a list",
    ),
    (
        one_policy("cartpole", "agent", network=None),
        TypeError,
        r"policies\.all\.network = None: must be",
    ),
    (
        one_policy("probe_pair", "pilot", "clerk"),
        ValueError,
        r"policies\.all\.agents: groups .* different spaces",
    ),
    (
        "cartpole",
        TypeError,
        r"config = 'cartpole': must be a TrainConfig\. Use load_config\('cartpole'\)",
    ),
]


@pytest.mark.parametrize(("config", "error", "words"), BUILT)
def test_wrong_configurations_of_python_are_refused(config, error, words):
    with pytest.raises(error, match=words):
        make_learner(config)


@dataclasses.dataclass(frozen=True)
class Masked(Signal):
    """A mask of three entries, for two actions or for a box."""

    box: bool = False

    def observation_space(self, params):
        return Dict({"action_mask": MultiDiscrete((2, 2, 2)), "x": Box(shape=(1,))})

    def action_space(self, params):
        return Box(-1.0, 1.0, (3,)) if self.box else super().action_space(params)


@pytest.mark.parametrize(
    ("box", "error", "words"),
    [
        (False, ValueError, r"Masked: action_mask has shape \(3,\): must be \(2,\)"),
        (True, ValueError, r"Masked: action_mask masks a Box: must be Discrete or MultiDiscrete"),
    ],
)
def test_masks_that_do_not_fit_are_refused(monkeypatch, box, error, words):
    monkeypatch.setitem(envs._REGISTRY, "probe_masked", Masked)
    with pytest.raises(error, match=words):
        make_learner(
            TrainConfig("probe_masked", {"agent": PolicyConfig()}, env_params={"box": box})
        )


@dataclasses.dataclass(frozen=True)
class Nested(Signal):
    """A mask inside a part of the observation."""

    def observation_space(self, params):
        return Dict({"a": Box(), "b": Dict({"c": Dict({"action_mask": MultiDiscrete((2, 2))})})})


def test_a_mask_inside_a_part_is_refused(monkeypatch):
    monkeypatch.setitem(envs._REGISTRY, "probe_nested", Nested)
    with pytest.raises(
        ValueError, match=r"agent: observation\['b'\] contains action_mask: must be a top-level key"
    ):
        make_learner(TrainConfig("probe_nested", {"agent": PolicyConfig()}))


@dataclasses.dataclass(frozen=True)
class Boundless(Signal):
    """Actions in a box without an upper bound."""

    def action_space(self, params):
        return Box(0.0, math.inf, (2,))


def test_a_squashed_gaussian_needs_a_bounded_box(monkeypatch):
    monkeypatch.setitem(envs._REGISTRY, "probe_boundless", Boundless)
    policy = PolicyConfig(options={"action_distribution": "squashed_gaussian"})
    with pytest.raises(
        ValueError,
        match=r"agent: action_distribution = 'squashed_gaussian': requires finite bounds",
    ):
        make_learner(TrainConfig("probe_boundless", {"agent": policy}))


def test_tracing_is_detected():
    with pytest.raises(AssertionError, match="something was traced"):
        make_learner(load_config("cartpole"))


class Unbatched(Leaver):
    """The observation space of one player instead of a batch."""

    def observation_space(self, params):
        return Dict({"player": super().observation_space(params)["player"].single})


class OtherGroups(Leaver):
    def action_space(self, params):
        return Dict({"players": super().action_space(params)["player"]})


class TooMany(Signal):
    def action_space(self, params):
        return super().action_space(params).batch(1)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Unbatched, r"observation_space\['player'\] is not a batch of 2 agents\. Return one"),
        (
            OtherGroups,
            r"action_space returns a Dict of \['players'\]: "
            r"must be .* in their order: \['player'\]",
        ),
        (
            TooMany,
            r"action_space is a batch, but TooMany has no groups\. Return the space of one agent",
        ),
    ],
)
def test_spaces_of_another_number_of_agents_are_refused(env, words, monkeypatch):
    monkeypatch.setitem(envs._REGISTRY, "probe_spaces", env)
    name = next(iter(env().groups), "agent")
    with pytest.raises(ValueError, match=words):
        make_learner(TrainConfig("probe_spaces", {name: PolicyConfig()}))
    with pytest.raises(ValueError, match=words):
        vectorize(env(), 3).reset(jax.random.key(0), env().default_params)
