"""Presets and changes are read as a TrainConfig, invalid files are refused."""

import dataclasses

import pytest

from wdjax.train import (
    A2C,
    PPO,
    NetworkConfig,
    PolicyConfig,
    TrainConfig,
    list_presets,
    load_config,
    make_learner,
)
from wdjax.train.load import ALIASES

GOOD = "env: cartpole\npolicies: {agent: {}}\n"


def load_text(tmp_path, text, **changes):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return load_config(file, **changes)


def test_aliases_are_presets():
    assert load_config("CartPole-v1") == load_config("cartpole_ppo")
    assert {name: name in list_presets() for name in ALIASES.values()} == dict.fromkeys(
        ALIASES.values(), True
    )
    assert not ALIASES.keys() & {*list_presets()}


# --- files ---


BAD_FILES = [
    ("", r"must contain a mapping of fields, not nothing"),
    ("- 1", r"must contain a mapping of fields, not list"),
    ("just text", r"must contain a mapping of fields, not str"),
    ("env: [", r"invalid YAML: "),
    (GOOD + "---\n" + GOOD, r"invalid YAML: "),
    (GOOD + "seed: !!python/object:os.system x", r"invalid YAML: "),
    (GOOD + "env: tag_gridworld", r"invalid YAML: duplicate key 'env'"),
    (
        "env: cartpole\npolicies: {agent: {gamma: .5, gamma: .6}}",
        r"invalid YAML: duplicate key 'gamma'",
    ),
]


@pytest.mark.parametrize(("text", "words"), BAD_FILES)
def test_invalid_files_are_refused(tmp_path, text, words):
    with pytest.raises(ValueError, match=r"run\.yaml: " + words):
        load_text(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env: cartpole", r"field policies is missing"),
        ("policies: {agent: {}}", r"field env is missing"),
        (GOOD + "1: 2", r"unknown field 1"),
        ("env: cartpole\npolicies: {1: {}}", r"policies\.1\.agents '1'"),
    ],
)
def test_incomplete_files_are_refused(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        load_text(tmp_path, text)


def test_a_mapping_is_read_like_a_file_and_not_changed():
    given = {"env": "cartpole", "policies": {"agent": {"gamma": 0.5}}, "seed": 3}
    config = load_config(given, num_envs=8, **{"policies.agent.gamma": 0.6})
    assert (config.env, config.seed, config.num_envs) == ("cartpole", 3, 8)
    assert config.policies["agent"].options.gamma == 0.6
    assert given == {"env": "cartpole", "policies": {"agent": {"gamma": 0.5}}, "seed": 3}
    with pytest.raises(ValueError, match=r"unknown field envs: did you mean 'env'\?"):
        load_config({"envs": "cartpole"})


def test_bytes_are_refused(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"run\.yaml: invalid YAML"):
        load_config(tmp_path / "run.yaml")


def test_missing_files_and_presets_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file: .*none\.yaml"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match=r"unknown preset 'cartpol': did you mean 'cartpole'\?"):
        load_config("cartpol")
    with pytest.raises(
        TypeError,
        match=r"preset = 5: must be the name of a preset, the path of a YAML file, or a map",
    ):
        load_config(5)


def test_every_preset_is_listed():
    presets = {
        "cartpole",
        "cartpole_ppo",
        "tag_continuous",
        "tag_gridworld",
        "tag_gridworld_with_reset_pool",
    }
    assert presets <= set(list_presets())


# --- values ---


def test_missing_fields_have_their_defaults(tmp_path):
    agent = PolicyConfig(options=PPO.Options())
    assert load_text(tmp_path, GOOD) == TrainConfig("cartpole", {"agent": agent})


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", "'1e-4'", ".1e-3", "+1e-4"])
def test_numbers_with_an_exponent_are_numbers(tmp_path, text):
    config = load_text(tmp_path, f"env: cartpole\npolicies: {{agent: {{learning_rate: {text}}}}}")
    assert config.policies["agent"].learning_rate == 1e-4


def test_whole_numbers_may_have_an_exponent_or_underscores(tmp_path):
    assert load_text(tmp_path, GOOD + "total_env_steps: 1e6").total_env_steps == 1_000_000
    config = load_text(tmp_path, GOOD + "total_env_steps: 2_000\nenv_params: {gravity: 1e1}")
    assert config.total_env_steps == 2_000
    assert isinstance(config.total_env_steps, int)
    assert config.env_params == {"gravity": 10.0}


def test_infinity_leaves_a_limit_out(tmp_path):
    config = load_text(
        tmp_path, "env: cartpole\npolicies: {agent: {max_grad_norm: .inf, value_clip: .inf}}"
    )
    assert config.policies["agent"].max_grad_norm == float("inf")


def test_a_merge_takes_what_it_does_not_replace(tmp_path):
    config = load_text(
        tmp_path,
        """
env: tag_gridworld
policies:
  tagger: &policy {gamma: 0.5, network: {hidden_sizes: [8]}}
  runner: &other {<<: *policy, gamma: 0.25}
    """,
    )
    tagger, runner = config.policies["tagger"], config.policies["runner"]
    assert (tagger.options.gamma, runner.options.gamma) == (0.5, 0.25)
    assert tagger.network == runner.network == NetworkConfig(hidden_sizes=(8,))


def test_lists_become_tuples(tmp_path):
    config = load_text(
        tmp_path, "env: cartpole\npolicies: {agent: {learning_rate: [[0, 1e-3], [10, 0]]}}"
    )
    assert config.policies["agent"].learning_rate == ((0.0, 1e-3), (10.0, 0.0))


# --- changes ---


def test_changes_of_fields_and_dotted_names():
    base = load_config("tag_continuous")
    config = load_config(
        "tag_continuous",
        num_envs=200,
        **{
            "policies.runner.learning_rate": "1e-2",
            "policies.runner.network.hidden_sizes": [16, 16],
            "env_params.num_runners": 30,
            "env_params.grid_length": 7,
        },
    )
    assert config.num_envs == 200
    assert config.policies["runner"].learning_rate == 0.01
    assert config.policies["runner"].network == NetworkConfig((16, 16), "relu", shared_trunk=True)
    assert config.policies["tagger"] == base.policies["tagger"]  # shares its YAML with runner
    assert config.env_params == {**base.env_params, "num_runners": 30, "grid_length": 7}


def test_changes_do_not_persist():
    before = load_config("tag_continuous")
    load_config("tag_continuous", **{"policies.tagger.gamma": 0.5, "env_params.num_runners": 12})
    assert load_config("tag_continuous") == before


def test_dataclasses_as_values():
    policy = PolicyConfig(agents=("runner[0:50]",), algorithm="A2C", network=NetworkConfig((8,)))
    config = load_config(
        "tag_continuous",
        **{
            "policies.first": policy,
            "policies.runner.agents": ["runner[50:100]"],
            "policies.tagger.network": NetworkConfig((4,)),
        },
    )
    assert config.policies["first"] == dataclasses.replace(policy, options=A2C.Options())
    assert config.policies["tagger"].network == NetworkConfig((4,))
    assert list(config.policies) == ["tagger", "runner", "first"]


def test_a_mapping_replaces_all_policies():
    config = load_config("cartpole", policies={"agent": {"algorithm": "PPO"}})
    assert config.policies == {"agent": PolicyConfig(algorithm="PPO", options=PPO.Options())}


def test_a_learner_reads_lists_and_text_of_python_likewise():
    policy = PolicyConfig(learning_rate=[[0, "1e-3"], [10, 0]], network=NetworkConfig([8]))
    learner = make_learner(TrainConfig("cartpole", {"agent": policy}, num_envs=4, rollout_length=2))
    assert learner.config.policies["agent"].learning_rate == ((0.0, 1e-3), (10.0, 0.0))
    assert learner.config.policies["agent"].network.hidden_sizes == (8,)


# --- derived properties ---


@pytest.mark.parametrize(
    ("num_envs", "num_blocks", "blocks"), [(64, 0, 8), (12, 0, 4), (7, 0, 1), (12, 6, 6)]
)
def test_blocks(num_envs, num_blocks, blocks):
    assert load_config("cartpole", num_envs=num_envs, num_blocks=num_blocks).blocks == blocks


@pytest.mark.parametrize(("steps", "updates"), [(1, 1), (100_000, 1), (100_001, 2), (200_000, 2)])
def test_a_run_is_never_shorter_than_asked(steps, updates):
    config = load_config("cartpole", total_env_steps=steps)
    assert config.env_steps_per_update == 100_000
    assert config.num_updates == updates


def test_best_metric():
    assert load_config("cartpole").best_by == "agent/episode_return"
    assert load_config("cartpole", best_metric="none").best_by is None
    assert load_config("tag_continuous").best_by is None  # two trainable policies: no single return
    assert (
        load_config("tag_continuous", best_metric="runner/episode_return").best_by
        == "runner/episode_return"
    )
    assert (
        load_config("tag_continuous", **{"policies.tagger.trainable": False}).best_by
        == "runner/episode_return"
    )
