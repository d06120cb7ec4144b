"""WarpDrive's released run configurations train as the presets do, and no setting is lost."""

import copy

import pytest
import yaml
from flax import struct

import wdjax
from wdjax.envs import CartPole
from wdjax.experiments.cli import main
from wdjax.train import complete_env_params, load_config, plain_config, read_warp_drive
from wdjax.train.config.facts import in_env_steps

A2C = {
    "to_train": True, "algorithm": "A2C", "vf_loss_coeff": 1, "entropy_coeff": 0.05,
    "clip_grad_norm": True, "max_grad_norm": 3, "normalize_advantage": False,
    "normalize_return": False, "gamma": 0.99, "lr": 0.001,
    "model": {"type": "fully_connected", "fc_dims": [32, 32], "model_ckpt_filepath": ""},
}  # fmt: skip
DDPG = {
    "to_train": True, "algorithm": "DDPG", "clip_grad_norm": True, "max_grad_norm": 3,
    "normalize_advantage": False, "normalize_return": False, "gamma": 0.99, "tau": 0.05,
    "lr": {"actor": 0.001, "critic": 0.0001},
    "model": {
        "actor": {"type": "fully_connected_actor", "fc_dims": [64, 64]},
        "critic": {"type": "fully_connected_action_value_critic", "fc_dims": [64, 64]},
        "model_ckpt_filepath": {"actor": "", "critic": ""},
    },
}  # fmt: skip
GRIDWORLD = {
    "num_taggers": 4, "grid_length": 100, "episode_length": 100, "seed": 20,
    "wall_hit_penalty": 0.1, "tag_reward_for_tagger": 10.0, "tag_penalty_for_runner": 5.0,
    "step_cost_for_tagger": 0.01,
}  # fmt: skip
CONTINUOUS = {
    "num_taggers": 10, "num_runners": 100, "grid_length": 20.0, "episode_length": 500,
    "max_acceleration": 0.1, "min_acceleration": -0.1, "max_turn": 2.356, "min_turn": -2.356,
    "num_acceleration_levels": 20, "num_turn_levels": 20, "skill_level_runner": 1.0,
    "skill_level_tagger": 1.0, "max_speed": 1.0, "seed": 274880, "use_full_observation": False,
    "runner_exits_game_after_tagged": True, "num_other_agents_observed": 10,
    "tag_reward_for_tagger": 10.0, "tag_penalty_for_runner": -10.0,
    "step_penalty_for_tagger": 0.0, "step_reward_for_runner": 0.0, "edge_hit_penalty": 0.0,
    "end_of_game_reward_for_runner": 1.0, "tagging_distance": 0.02,
}  # fmt: skip
PENDULUM = {
    **DDPG,
    "lr": {
        "actor": [[2.5e9, 0.001], [3.75e9, 0.0005]], "critic": [[2.5e9, 0.0001], [3.75e9, 0.00005]]
    },
    "model": {**DDPG["model"], "actor": {**DDPG["model"]["actor"], "output_w": 2.0}},
}  # fmt: skip


def released(name, env, sizes, policy, **more):
    """Return a run configuration with num_envs, num_episodes and train_batch_size."""
    sizes = dict(zip(("num_envs", "num_episodes", "train_batch_size"), sizes, strict=True))
    saving = {"metrics_log_freq": 100, "model_params_save_freq": 5000, "basedir": "/tmp"}
    trainer = {**sizes, "env_backend": "numba", **more.pop("trainer", {})}
    raw = {"name": name, "env": env, "trainer": trainer, "policy": policy, "saving": saving, **more}
    return copy.deepcopy(raw)


def control(name, sizes, policy, length=500, pool=10_000, **more):
    env = {"episode_length": length, "reset_pool_size": pool}
    return released(name, env, sizes, {"shared": policy}, **more)


def noise(stddev):
    return {"params": {"damping": 0.15, "stddev": stddev, "scale": 1.0}}


WIDE = {
    **A2C,
    "gamma": 0.98,
    "max_grad_norm": 0.5,
    "model": {**A2C["model"], "fc_dims": [256, 256]},
}
GRID = {"shared": {**A2C, "gamma": 0.98}}
GRID_SIZES = (2_000, 20_000, 200_000)
SMALL = {"num_envs": 1000, "rollout_length": 100, "policies.agent.learning_rate": 0.003}
# preset -> WarpDrive's run configuration, and fields of the preset that differ on purpose
RUNS = {
    "tag_continuous": (
        released(
            "tag_continuous", CONTINUOUS, (100, 500, 25_000),
            {"runner": {**WIDE, "lr": 0.005}, "tagger": WIDE},
        ),
        {},
    ),
    "tag_gridworld": (released("tag_gridworld", GRIDWORLD, GRID_SIZES, GRID), {}),
    "tag_gridworld_with_reset_pool": (
        released("tag_gridworld_with_reset_pool", GRIDWORLD, GRID_SIZES, GRID), {},
    ),
    "cartpole": (control("single_cartpole", (100, 200_000, 50_000), A2C, pool=1000), SMALL),
    "acrobot": (
        control(
            "single_acrobot", (100, 200_000, 50_000),
            {**A2C, "vf_loss_coeff": 0.1, "entropy_coeff": 0.1}, pool=1000,
        ),
        SMALL,
    ),
    "mountain_car_warpdrive": (
        control(
            "single_mountain_car", (1000, 2_000_000, 500_000), A2C,
            trainer={"neg_pos_env_ratio": 10},
        ),
        {"policies.agent.neg_pos_env_ratio": -1},
    ),
    "continuous_mountain_car_warpdrive": (
        control(
            "single_continuous_mountain_car", (10_000, 1_000_000, 50_000), DDPG, 1000,
            trainer={"n_step": 5, "evaluator": True}, sampler=noise(0.5),
        ),
        {},
    ),
    "pendulum_warpdrive": (
        control(
            "single_pendulum", (10_000, 10_000_000, 50_000), PENDULUM, trainer={"n_step": 5},
            sampler=noise(0.2),
        ),
        {},
    ),
}  # fmt: skip
# fields without an effect on learning, and the seed
HOST = ("seed", "updates_per_chunk", "checkpoint_every_updates", "evaluate_every_updates")


def comparable(config):
    """Return the fields of a configuration with schedules in env steps and all env_params."""
    config = complete_env_params(in_env_steps(config, config.total_env_steps))
    return {name: value for name, value in plain_config(config).items() if name not in HOST}


@pytest.mark.parametrize("preset", RUNS)
def test_released_configuration_equals_the_preset(preset):
    raw, differing = RUNS[preset]
    config = load_config(raw)
    if "agent" in load_config(preset).policies:
        differing = {name.replace("agent", "shared"): value for name, value in differing.items()}
        config = load_config(plain_config(config), **differing)
        shared = comparable(config)["policies"]["shared"]
        mine = {**comparable(config), "policies": {"agent": {**shared, "agents": []}}}
    else:
        mine = comparable(config)
    assert mine == comparable(load_config(preset))
    if not differing:
        assert config.num_updates == load_config(preset).num_updates


OUTPUT = {"output_w": 3, "output_b": 1, "init_method": "orthogonal"}


@pytest.mark.parametrize(("preset", "changes"), [
    *((preset, {}) for preset in RUNS),
    ("tag_gridworld", {"policy__shared__model": OUTPUT, "policy__shared__tau": 0.1}),
    ("tag_gridworld", {"trainer__seed": 3, "trainer__n_step": 5, "sampler": {"params": {}}}),
    ("pendulum_warpdrive", {"policy__shared__model__critic": OUTPUT}),
    ("pendulum_warpdrive", {"policy__shared__lr": 0.1, "policy__shared__clip_param": 0.2}),
])  # fmt: skip
def test_every_setting_of_a_file_is_reported_once_with_its_effect(preset, changes):
    raw = changed(preset, **changes)
    settings = read_warp_drive(raw).settings
    names = [own.name for own in settings if not own.is_default]
    assert sorted(names) == sorted(paths_of(raw))
    assert all(own.effect for own in settings)


def paths_of(values, path=""):
    """Return the dotted names of all settings; a file of a model counts as one."""
    whole = not isinstance(values, dict) or path.endswith("model_ckpt_filepath.")
    inner = [] if whole else [paths_of(own, f"{path}{name}.") for name, own in values.items()]
    return [path[:-1]] if whole else [name for names in inner for name in names]


def changed(preset="tag_gridworld", **changes):
    """Return a configuration with changed settings, by dotted name with "__" for dots."""
    raw = copy.deepcopy(RUNS[preset][0])
    for name, value in changes.items():
        *blocks, last = name.split("__")
        inner = raw
        for block in blocks:
            inner = inner[block]
        inner[last] = value
    return raw


@pytest.mark.parametrize(("preset", "changes", "field", "value"), [
    ("tag_gridworld", {"policy__shared__clip_grad_norm": False}, "max_grad_norm", float("inf")),
    ("tag_gridworld", {"policy__shared__to_train": False}, "trainable", False),
    ("tag_gridworld", {"policy__shared__lr": [[0, 0.1], [9, 0.2]]}, "learning_rate",
     ((0, 0.1), (9, 0.2))),
    ("pendulum_warpdrive", {"policy__shared__lr": 0.5}, "options.critic_learning_rate", 0.5),
    ("tag_gridworld", {"policy__shared__algorithm": "PPO"}, "options.clip", 0.01),
    ("tag_gridworld", {"policy__shared__model": {"init_method": "xavier"}},
     "network.initializer", "xavier"),
    ("tag_gridworld", {"policy__shared__model": {}}, "network.hidden_sizes", (64, 64)),
    ("tag_gridworld", {"policy__shared": {"to_train": True}}, "learning_rate", 1e-4),
])  # fmt: skip
def test_setting_becomes_the_field_of_a_policy(preset, changes, field, value):
    found = load_config(changed(preset, **changes)).policies["shared"]
    for name in field.split("."):
        found = getattr(found, name)
    assert found == value


def test_batches_that_do_not_divide_keep_the_number_of_updates():
    config = load_config(changed(trainer__train_batch_size=205_000))  # 102.5 steps per replica
    assert (config.rollout_length, config.num_updates) == (102, 2_000_000 // 205_000)


def test_seed_of_the_trainer_takes_precedence_and_logging_follows_the_file():
    config = load_config(changed(trainer__seed=3, trainer__evaluator=True))
    assert (config.seed, config.updates_per_chunk, config.evaluate_every_updates) == (3, 100, 100)
    assert load_config(RUNS["tag_gridworld"][0]).seed == 20


@pytest.mark.parametrize(("preset", "changes", "message"), [
    ("tag_gridworld", {"trainer__num_env": 3}, "of trainer 'num_env': did you mean 'num_envs'"),
    ("tag_gridworld", {"policy__shared__gama": 3}, r"policy.shared 'gama': did you mean 'gamma'\?"),
    ("tag_gridworld", {"polcy": {}}, "unknown setting 'polcy': did you mean 'policy'"),
    ("tag_gridworld", {"env__num_tagger": 3}, "did you mean 'num_taggers'"),
    ("tag_gridworld", {"name": "tag_gridwold"}, "environment name 'tag_gridwold': did you mean"),
    ("tag_gridworld", {"name": "single_agent_one_atom_gas1"}, "energy tables are not part"),
    ("tag_gridworld", {"trainer__num_envs": "many"}, "trainer.num_envs = 'many': must be a whole"),
    ("tag_gridworld", {"trainer__train_batch_size": 8}, "at least num_envs = 2000"),
    ("tag_gridworld", {"trainer__num_episodes": 1}, "num_episodes = 1: must be at least 2000"),
    ("tag_gridworld", {"trainer__num_gpus": 2}, "num_gpus = 2: must be 1.* Multiply"),
    ("tag_gridworld", {"policy__shared__normalize_return": True}, "normalize_return = True: must"),
    ("tag_gridworld", {"policy__shared__model__type": "mine"}, "type = 'mine': must be 'fully_co"),
    ("tag_gridworld", {"policy__shared__model__model_ckpt_filepath": "a"}, "PyTorch state dicts"),
    ("tag_gridworld", {"sampler": {"params": {"use_argmax": True}}}, "use_argmax = True: must be"),
    ("tag_continuous", {"policy__runer": A2C}, "unknown policy 'runer': did you mean 'runner'"),
    ("pendulum_warpdrive", {"policy__shared__model__critic__fc_dims": [8]}, "be .64, 64., as"),
    ("pendulum_warpdrive", {"policy__shared__model__actor__output_w": 1}, "output_w 2"),
    ("pendulum_warpdrive", {"policy__shared__tau": None}, "policy.shared.tau = None"),
    ("pendulum_warpdrive", {"sampler__params__stddev": [[0, 1]]}, "stddev = .*must be a number"),
    ("pendulum_warpdrive", {"policy__shared__model__actor__output_w": "x"}, "output_w = 'x': must"),
    ("pendulum_warpdrive", {"policy__shared__model__critic__init_method": "xavier"}, "be None"),
    ("tag_gridworld", {"env": None}, "env = None: must be a mapping of settings"),
    ("tag_gridworld", {"env__reset_pool_size": "many"}, "size = 'many': must be a whole"),
    ("tag_gridworld", {"env__reset_pool_size": -3}, "reset_pool_size = -3: must be at least 0"),
    ("tag_gridworld", {"policy__shared__clip_grad_norm": "no"}, "clip_grad_norm = 'no': must be T"),
    ("tag_gridworld", {"policy__shared__gamma": "big"}, "policy.shared.gamma = 'big': must be a n"),
    ("tag_gridworld", {"policy": {}}, "policy = {}: must be a mapping with at least one policy"),
])  # fmt: skip
def test_wrong_or_unsupported_setting_is_an_error(preset, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        load_config(changed(preset, **changes))


def test_unsupported_settings_are_reported_and_all_named_in_the_error():
    wrong = {"policy__shared__normalize_return": True, "trainer__num_gpus": 2}
    run = read_warp_drive(changed(**wrong))
    names = [own.name for own in run.settings if own.status == "not supported"]
    assert names == ["trainer.num_gpus", "policy.shared.normalize_return"]
    with pytest.raises(ValueError, match=r"num_gpus = 2.*normalize_return = True"):
        run.require_supported()


@struct.dataclass
class Discounted(type(CartPole().default_params)):
    gamma: float = 0.9  # also the name of a setting of policies


class Custom(CartPole):
    default_params = Discounted()


def test_own_environment_is_read_and_its_parameters_are_not_confused_with_settings(registry):
    wdjax.register("custom", Custom)
    raw = changed("cartpole", name="custom", env__gamma=0.5)
    config = load_config(raw)
    assert (config.env, config.env_params["gamma"]) == ("custom", 0.5)
    assert config.policies["shared"].options.gamma == 0.99


def test_other_files_are_not_of_warp_drive():
    assert read_warp_drive({"env": "cartpole", "policies": {}}) is None
    assert read_warp_drive({"env": "cartpole", "policy": {}}) is None  # a typing mistake


def test_code_that_the_config_of_a_run_names_is_not_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(changed(name="evil_module:Env")))
    for command in (["train", str(file)], ["diff", "cartpole", str(file)]):
        with pytest.raises(SystemExit, match="2"):
            main(command)
        assert "in a file that is not named config.yaml" in capsys.readouterr().err


def test_commands_print_the_table_before_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    raw = changed(policy__shared__normalize_return=True)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    for command in (["train", "mine.yaml", "--dry-run"], ["sweep", "mine.yaml"]):
        with pytest.raises(SystemExit, match="2"):
            main(command)
        out, err = capsys.readouterr()
        assert "trainer.num_episodes" in out
        assert "not supported" in out
        assert "normalize_return = True: must be False" in err
