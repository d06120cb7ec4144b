"""Malformed command lines print one line, exit with status 2 and write nothing.

See tests/test_bad_input.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import wdjax
from wdjax.experiments.cli import main
from wdjax.experiments.commands.arguments import mistake

TRAIN = ["train", "cartpole"]
AWR = [*TRAIN, "--policies.agent.algorithm", "wdjax.experiments.examples.own_algorithm:AWR"]
SWEEP = ["sweep", "cartpole_ppo"]
AGENT = "--policies.agent."
COMMANDS = [
    (["trian"], "unknown command 'trian': did you mean 'train'?"),
    (["Train", "cartpole"], "unknown command 'Train': did you mean 'train'?"),
    (["--train", "cartpole"], "unknown command '--train': did you mean 'train'?"),
    ([""], "unknown command '': known names: bench, completion, diff, eval, export,"),
    (["-v"], "unknown command '-v': known names: bench, completion, diff, eval, export,"),
    (["tag_small"], "unknown command 'tag_small': did you mean wdjax train tag_small?"),
    (["pendulum"], "unknown command 'pendulum': did you mean wdjax train pendulum?"),
    (["resume", "run"], "unknown command 'resume': use wdjax train PRESET --resume"),
    (["diff", "run"],
     "wdjax diff takes two runs, presets or YAML files, such as: wdjax diff runs/a runs/b"),
    (["diff", "runs/none", "cartpole"], "runs/none: not a preset (see wdjax list), a .yaml file"),
    (["completion", "zsh"], "wdjax completion takes no arguments, not zsh"),
    (["render"], "wdjax render needs a run"),
    (["play"], "wdjax play needs a run"),
    (["export"], "wdjax export needs a run"),
    (["train", "run"], "run is a run folder. Use its preset run/config.yaml"),
    ([*TRAIN, "--callbacks"], "--callbacks = '': must be followed by a name"),
    ([*TRAIN, "--callbacks", "--resume"], "--callbacks = '': must be followed by a name"),
    ([*TRAIN, "--callbacks", "csvv"], "callback = 'csvv': did you mean 'csv'?"),
    ([*TRAIN, "--stop-at", "a=475"],
     "Error parsing --stop-at: Failed to parse key-value pairs! (see --help)"),
    ([*TRAIN, "--policies.agent.opponents", "a"],
     "Error parsing --policies.agent.opponents: Failed to parse key-value pairs! (see --help)"),
    ([*TRAIN, "--policies.agent.options", "{temperature: 0.1}"],
     "policies.agent.options = '{temperature: 0.1}': must be a mapping of fields"),
    ([*TRAIN, "--policies.agent.options.max_weight", "0.1"],
     "--policies.agent.max_weight, 0.1: unknown field policies.agent.max_weight"),
    ([*TRAIN, "--policies.agent.options.gamma", "2"],
     "policies.agent.gamma = 2.0: must be between 0 and 1"),
    ([*AWR, "--policies.agent.options", "{temperature: 0.1}"],
     "policies.agent.options = '{temperature: 0.1}': must be a mapping of fields"),
    ([*AWR, "--policies.agent.options.temprature", "0.1"],
     "--policies.agent.temprature, 0.1: did you mean --policies.agent.temperature?"),
    ([*AWR, "--policies.agent.temperature", "0"],
     "policies.agent.temperature = 0.0: must be above 0"),
    ([*AWR, "--temperature", "0.1"],
     "--temperature, 0.1: did you mean --policies.agent.temperature?"),
    ([*TRAIN, "--stop-at", "episode_return", "475"],
     "metric in stop_at 'episode_return': did you mean 'agent/"),
    ([*TRAIN, "--set", "seed=1"], "option = '--set': must be left to wdjax sweep. Use --FIELD"),
    ([*TRAIN, "seed=1"], "Unrecognized options: seed=1 (see --help)"),
    ([*TRAIN, "-seed", "1"], "Unrecognized options: -seed, 1 (see --help)"),
    ([*SWEEP, "--learning-rate", "1"],
     "unknown field learning_rate: did you mean 'policies.agent.learning_rate'?"),
    (["list", "all"], "wdjax list takes no arguments, not all"),
    (["train"], "wdjax train needs a preset first, such as tag_small"),
    (["train", "--num-envs", "3"], "wdjax train needs a preset first, such as tag_small"),
    (["train", "cartpol"], "unknown preset 'cartpol': did you mean 'cartpole'?"),
    (["train", "a folder"],
     "a folder: not a preset (see wdjax list), a .yaml file or a run folder"),
    (["train", "runs/none"],
     "runs/none: not a preset (see wdjax list), a .yaml file or a run folder"),
    (["train", "covd"], "unknown preset 'covd': did you mean 'covid'?"),
    (["train", "none.yaml"], "no such file: none.yaml"),
    (["train", "warp_drive.yaml"], "setting of policy.runner 'lrate': did you mean"),
    (["diff", "cartpole", "warp_drive.yaml"], "setting of policy.runner 'lrate': did you mean"),
    (["train", "gymnax:Catch-bsuite"],
     "preset = gymnax:Catch-bsuite: this is an environment, not a preset. For a single agent: "
     "wdjax train cartpole_ppo --env gymnax:Catch-bsuite. For several agents: write a preset"),
    (["sweep", "mine:Game"], "preset = mine:Game: this is an environment, not a preset"),
    (["train", "tab.yaml"],
     "tab.yaml: invalid YAML: found character '\\t' that cannot start any token: indent"),
    (["train", "empty.yaml"], "empty.yaml: must contain a mapping of fields, not nothing"),
    ([*TRAIN, "extra"], "Unrecognized options: extra (see --help)"),
    ([*TRAIN, "--num-env", "3"], "Unrecognized options: --num-env, 3: did you mean --num-envs?"),
    ([*TRAIN, "--num-envs"],
     "Missing value for argument '--num-envs'. Expected 1 values (see --help)"),
    ([*TRAIN, "--num-envs", "many"],
     "Error parsing --num-envs: 'many' must be a whole number (see --help)"),
    ([*TRAIN, "--num-envs", "1.5"],
     "Error parsing --num-envs: '1.5' must be a whole number (see --help)"),
    ([*TRAIN, "--num-envs", "1.5e0"],
     "Error parsing --num-envs: '1.5e0' must be a whole number (see --help)"),
    ([*TRAIN, "--num-envs", "-1e3"], "num_envs = -1000: must be at least 1"),
    ([*TRAIN, "--num-envs", "3", "4"], "Unrecognized options: 4 (see --help)"),
    ([*TRAIN, "--num-envs", "0"], "num_envs = 0: must be at least 1"),
    ([*TRAIN, "--num_envs", "-3"], "num_envs = -3: must be at least 1"),
    ([*TRAIN, "--num-envs", "9" * 30],
     "num_envs = " + "9" * 30 + ": must be at least 1 and below 2**31"),
    ([*TRAIN, "--num-blocks", "3"], "num_blocks = 3: must be a divisor of num_envs = 1000"),
    ([*TRAIN, "--seed", "-1"], "seed = -1: must be at least 0 and below 2**32"),
    ([*TRAIN, "--seed", "4294967296"], "seed = 4294967296: must be at least 0 and below 2**32"),
    ([*TRAIN, "--reset", "0"], "reset = 0: must be 'fresh', 'fixed' or a number of starts"),
    ([*TRAIN, "--reset", "frsh"],
     "--reset: no type matching {fresh,fixed}|INT could be instantiated from ['frsh']"),
    ([*TRAIN, "--best-metric", "reward"],
     "unknown best_metric 'reward': known names: agent/episode_return"),
    (["train", "tag_small", "--env", "pendulum"],
     "env 'pendulum', env_params: unknown parameter of Pendulum 'num_taggers'"),
    ([*TRAIN, "--env-params.gravity", "x"],
     "Error parsing --env-params.gravity: could not convert string to float: 'x'"),
    ([*TRAIN, "--env-params.gravty", "1"],
     "--env-params.gravty, 1: did you mean --env-params.gravity?"),
    ([*TRAIN, "--env-params.length", "0"],
     "env 'cartpole', env_params: length = 0.0: must be above 0"),
    ([*TRAIN, "--policies.agnt.gamma", "1"],
     "--policies.agnt.gamma, 1: did you mean --policies.agent.gamma?"),
    ([*TRAIN, AGENT + "gamma", "2"], "policies.agent.gamma = 2.0: must be between 0 and 1"),
    ([*TRAIN, AGENT + "gamma", "nan"], "policies.agent.gamma = nan: must be between 0 and 1"),
    ([*TRAIN, AGENT + "gamma", "high"],
     "Error parsing --policies.agent.gamma: could not convert string to float: 'high'"),
    ([*TRAIN, AGENT + "algorithm", "ppo"], "policies.agent.algorithm = 'ppo': did you mean 'PPO'?"),
    ([*TRAIN, AGENT + "algorithm", "DDPG"],
     "policies.agent.algorithm = 'DDPG': requires a Box of floats"),
    ([*TRAIN, AGENT + "clip", "0.1"],
     "clip, 0.1: policies.agent.clip = '0.1': A2C has no such option (PPO has it)"),
    ([*TRAIN, AGENT + "minibatches", "3"],
     "policies.agent.minibatches = '3': A2C has no such option (PPO and PQN have it)"),
    ([*TRAIN, AGENT + "trainable", "maybe"],
     "invalid choice 'maybe' for argument '--policies.agent.trainable'"),
    ([*TRAIN, AGENT + "learning-rate", "-1"],
     "policies.agent.learning_rate = -1.0: must be finite and at least 0"),
    ([*TRAIN, AGENT + "learning-rate", "fast"],
     "--policies.agent.learning-rate: 'fast' must be a number, or pairs of"),
    ([*TRAIN, AGENT + "learning-rate", "9", "1", "5", "1"],
     "= ((9.0, 1.0), (5.0, 1.0)): must be sorted by env_step"),
    ([*TRAIN, AGENT + "network.hidden-sizes", "0"],
     "policies.agent.network.hidden_sizes = (0,): must be widths of"),
    ([*TRAIN, AGENT + "network.hidden-sizes", "64,64"],
     "hidden-sizes: Could not find valid parse for arguments: ['64,64'] (see --help)"),
    ([*TRAIN, AGENT + "network.activation", "rely"],
     "Expected one of ('relu', 'tanh', 'gelu', 'silu') (see --help)"),
    ([*TRAIN, AGENT + "checkpoint", "none"],
     "policies.agent.checkpoint = 'none': none contains no run"),
    ([*TRAIN, "--lr", "1e-3"],
     "--lr, 1e-3: unknown field lr: did you mean 'policies.agent.learning_rate'?"),
    ([*TRAIN, "--learning_rate=1"], "learning_rate: did you mean 'policies.agent.learning_rate'?"),
    ([*TRAIN, AGENT + "lr", "1e-3"],
     "unknown field policies.agent.lr: did you mean 'learning_rate'?"),
    ([*TRAIN, "--policies.runner.lr", "1e-3"], "policies.runner.lr: did you mean 'learning_rate'?"),
    ([*TRAIN, AGENT + "hidden-sizes", "8"], "did you mean --policies.agent.network.hidden-sizes?"),
    (["train", "tag_small", "--policies.all.lr", "0.1"],
     "wdjax: Unrecognized options: --policies.all.lr, 0.1: unknown field policies.all.lr: did you"),
    (["train", "tag_small", "--policies.all.lr=0.1"],
     "wdjax: Unrecognized options: --policies.all.lr=0.1: unknown field policies.all.lr: did you"),
    (["train", "tag_small", "--lr", "1"],
     "did you mean 'policies.tagger.learning_rate' or 'policies.runner.learning_rate'?"),
    ([*TRAIN, AGENT + "network.encoder", ".mod:X"],
     "'.mod:X': must be \"package.module:Name\", a full import path"),
    ([*TRAIN, "--workdir", ""], "--workdir = '': must be a path"),
    ([*SWEEP, "--workdir="], "--workdir = '': must be a path"),
    ([*SWEEP, "--set", "learning_rate=1,2"],
     "learning_rate: did you mean 'policies.agent.learning_rate'?"),
    ([*SWEEP, "--search", "4"],
     "values = {}: must be several values or a range of at least one field. Use --FIELD V"),
    ([*SWEEP, "--pbt", "1"], "--pbt = 1: must be at least 2 members"),
    ([*TRAIN, "--resme"], "Unrecognized options: --resme: did you mean --resume?"),
    ([*TRAIN, "--resume", "yes"], "Unrecognized options: yes (see --help)"),
    ([*TRAIN, "--workdir"],
     "Missing value for argument '--workdir'. Expected 1 values (see --help)"),
    ([*TRAIN, "--workdir", "a file"], "workdir = a file: must be a writable folder (File exists)"),
    ([*TRAIN, "--workdir", "a file/run"], "workdir = a file/run: must be a writable folder (Not a"),
    ([*TRAIN, "--workdir", "/proc/run"], "workdir = /proc/run: must be a writable folder"),
    ([*TRAIN, "--workdir", "run"],
     "run already contains a run. Resume it (--resume, in Python resume=True)"),
    ([*TRAIN, "--workdir", "run", "--resume", "--num-envs", "50"],
     "num_envs = 50: the run in run was started with"),
    ([*TRAIN, "--workdir", "run", "--resume", "--seed", "1"],
     "seed = 1: the run in run was started with 0"),
    (["train", "pendulum", "--workdir", "run", "--resume"], "the run in run was started with "),
    (["sweep"], "wdjax sweep needs a preset first, such as tag_small"),
    (["sweep", "--seeds", "3"], "wdjax sweep needs a preset first, such as tag_small"),
    (["sweep", "cartpol"], "unknown preset 'cartpol': did you mean 'cartpole'?"),
    ([*SWEEP, "--seds", "3"], "unknown option --seds: did you mean --seeds?"),
    ([*SWEEP, "--policies.agent.learning-rte", "1"],
     "policies.agent.learning-rte: did you mean 'policies.agent.learning_rate'?"),
    ([*SWEEP, "--policies.all.clp", "1"], "policies.all.clp: did you mean 'policies.all.clip'?"),
    ([*SWEEP, "--lr", "1e-3"], "unknown field lr: did you mean 'policies.agent.learning_rate'?"),
    ([*SWEEP, "--policies.agent.clip"], "--policies.agent.clip = '': must be followed by VALUE"),
    ([*SWEEP, "--num-envs"], "--num-envs = '': must be followed by VALUE or VALUE,VALUE"),
    ([*SWEEP, "--dry-run"], "--dry-run is not an option of wdjax sweep (see --help)"),
    ([*SWEEP, "--resme"], "unknown option --resme: did you mean --resume?"),
    ([*SWEEP, "--num-env"], "unknown field num-env: did you mean 'num_envs'?"),
    ([*TRAIN, "--policies.all.gamma", "2"], "policies.all.gamma = 2.0: must be between 0 and 1"),
    ([*SWEEP, "--policies.all.lr", "0.1"],
     "unknown field policies.all.lr: did you mean 'learning_rate'?"),
    ([*SWEEP, "--policies.agent.clip", "high"], "policies.agent.clip = 'high': must be a number"),
    ([*SWEEP, "--set", "policies.agent.clip=1", "--policies.agent.clip", "2"],
     "--set = 'policies.agent.clip=2': must be given once for policies.agent.clip"),
    ([*SWEEP, "--set", "num_envs=4", "--num-envs", "8"], "must be given once for num_envs"),
    ([*TRAIN, "--policies.agent.learning-rate", "{fracton: [[0, 1], [1, 0]]}"],
     "unknown field schedule.fracton: did you mean 'fraction'?"),
    ([*SWEEP, "--seeds", "0"], "seeds = 0: must be at least 1"),
    ([*SWEEP, "--seeds", "many"], "Error parsing --seeds: 'many' must be a whole number"),
    ([*SWEEP, "--set", "num_envs"],
     "--set = 'num_envs': must be FIELD=VALUE,VALUE or FIELD=log:LOW:HIGH"),
    ([*SWEEP, "--set", "num_env=3"], "unknown field num_env: did you mean 'num_envs'?"),
    ([*SWEEP, "--set", "num_envs=4,many"], "num_envs = 'many': must be a whole number"),
    ([*SWEEP, "--set", "num_envs=4,4"], "num_envs = [4, 4]: must be different values"),
    ([*SWEEP, "--set", "num_envs=4", "--set", "num_envs=8"],
     "--set = 'num_envs=8': must be given once for num_envs"),
    ([*SWEEP, "--set", "policies.agent.gamma=2"],
     "policies.agent.gamma = 2.0: must be between 0 and 1"),
    ([*SWEEP, "--set", "policies.agent.gamma=log:0.9:1"],
     "must be a list of values. Ranges need --search or"),
    ([*SWEEP, "--set", "env_params.gravty=1"],
     "unknown parameter of CartPole 'gravty': did you mean 'gravity'?"),
    ([*SWEEP, "--set", "seed=1,2"],
     "swept field = 'seed': must be an option of the sweep, --seeds"),
    ([*SWEEP, "--point", "num_envs=4", "--point", "seed=4"], "must be ['num_envs'], as others"),
    ([*SWEEP, "--point", "num_envs=4,8"], "--point num_envs = [4, 8]: must be one value"),
    ([*SWEEP, "--file", "none.yaml"], "--file = 'none.yaml': must be a YAML file"),
    ([*SWEEP, "--file", "tab.yaml"], "tab.yaml: invalid YAML"),
    ([*SWEEP, "--file", "empty.yaml"],
     "empty.yaml: must contain FIELD: [VALUE, VALUE], or a list of points"),
    ([*SWEEP, "--metric", "return"], "unknown metric 'return': did you mean"),
    ([*SWEEP, "--workdir", "run"], "run contains a run of wdjax train. Use another --workdir"),
    ([*SWEEP, "--workdir", "a file"], "workdir = a file: must be a writable folder (File exists)"),
    ([*SWEEP, "--members-at-once", "-1"], "members_at_once = -1: must be at least 0"),
    ([*SWEEP, "--devices", "99"],
     "devices = 99: must be at most 8: jax finds 8 devices (cpu). Lower devices"),
    ([*SWEEP, "--pbt", "4", "--search", "4"], "--pbt = 4: must be omitted with --search"),
    ([*SWEEP, "--pbt", "-1"], "--pbt = -1: must be at least 2 members (0: no population"),
    ([*SWEEP, "--pbt", "4"],
     "values = {}: must be several values or a range of at least one field. Use --FIELD V"),
    ([*SWEEP, "--pbt", "4", "--set", "num_envs=4,8"],
     "unknown hyperparameter that a run can change 'num_envs'"),
    ([*SWEEP, "--pbt", "4", "--seeds", "2"], "--seeds = 2: must be 1 with --pbt"),
    ([*SWEEP, "--pbt", "4", "--pbt-fraction", "1"],
     "fraction = 1.0: must be above 0 and at most 0.5"),
    ([*SWEEP, "--pbt-every", "2"], "--pbt-every = 2: must be omitted without --pbt"),
    ([*SWEEP, "--halving", "4"], "--halving = 4: must be omitted without --search"),
    ([*SWEEP, "--search", "4", "--halving", "1"], "halving = 1: must be at least 2"),
    ([*SWEEP, "--search", "4", "--point", "num_envs=4"],
     "must be omitted with --search. Use --FIELD VALUES"),
    (["eval"], "wdjax eval needs a run, the folder that wdjax train wrote"),
    (["eval", "none"], "none contains no run: none/config.yaml is missing"),
    (["eval", "a file"], "a file contains no run: a file/config.yaml is missing"),
    (["eval", "run"], "no checkpoint in run/checkpoints"),
    (["eval", "run@bst"], "checkpoint 'bst': must be newest, best, or a number of updates"),
    (["eval", "run", "--checkpoint", "-1"],
     "checkpoint '-1': must be newest, best, or a number of updates"),
    (["eval", "run", "--episods", "3"],
     "Unrecognized options: --episods, 3: did you mean --episodes?"),
    (["eval", "run", "--episodes", "x"], "Error parsing --episodes: 'x' must be a whole number"),
    (["eval", "run", "--seed", "-1"], "--seed = -1: must be at least 0 and below 2**32"),
    (["eval", "run", "--output", "cells.txt"],
     "--output cells.txt: must be a file that ends in .json or .csv"),
    (["play", "tag_smal"], "unknown preset 'tag_smal': did you mean 'tag_small'?"),
    (["play", "runs/none"], "runs/none contains no run: runs/none/config.yaml is missing"),
    (["play", "tag_small", "--port", "70000"], "port = 70000: must be at least 0 and at most"),
    (["play", "tag_small", "--seed", "-1"], "--seed = -1: must be at least 0 and below 2**32"),
    (["render", "none"], "none contains no run: none/config.yaml is missing"),
    (["render", "grid"], "grid contains no run: grid/config.yaml is missing. Use grid/best"),
    (["play", "grid"], "grid contains no run: grid/config.yaml is missing. Use grid/best"),
    (["render", "run", "other"], "Unrecognized options: other (see --help)"),
    (["render", "run", "--fps", "fast"],
     "Error parsing --fps: 'fast' must be a whole number (see --help)"),
    (["render", "run", "--fps", "0"], "--fps = 0: must be at least 1"),
    (["render", "run", "--seed", "-1"], "--seed = -1: must be at least 0 and below 2**32"),
    (["render", "run", "--npz", "episode.gif"], "--npz episode.gif: must end in .npz"),
    (["render", "run", "--output"],
     "Missing value for argument '--output'. Expected 1 values (see --help)"),
]  # fmt: skip


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Work in a folder with the files that the table names, and a run without checkpoints."""
    from wdjax.train import load_config
    from wdjax.train.storage.folder import prepare_folder

    # do not change the settings of the tests
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("a folder").mkdir()
    Path("a file").write_text("")
    Path("grid/best").mkdir(parents=True)
    Path("grid/best/config.yaml").write_text("")  # of a sweep
    Path("empty.yaml").write_text("")
    Path("tab.yaml").write_text("env: cartpole\n\tseed: 3")
    Path("warp_drive.yaml").write_text(
        "name: tag_continuous\ntrainer: {num_envs: 4}\npolicy: {runner: {lrate: 0.1}}"
    )
    prepare_folder(Path("run"), load_config("cartpole"), resume=False)


def contents():
    return {path: path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


@pytest.mark.parametrize(("arguments", "message"), COMMANDS)
def test_malformed_command_lines_exit_with_status_2(folder, arguments, message, capsys):
    before = contents()
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("wdjax: ")
    assert printed.err.endswith("\n")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert contents() == before


def test_error_panels_of_tyro_become_one_line():
    """On a terminal, tyro draws its panel as a box in colors."""
    panel = (
        "\x1b[31m╭─\x1b[0m Unrecognized options \x1b[31m────────╮\x1b[0m\n"
        "\x1b[31m│\x1b[0m Unrecognized options: --sed, 3 \x1b[31m│\x1b[0m\n"
        "\x1b[31m│\x1b[0m ────────────────────────────── \x1b[31m│\x1b[0m\n"
        "\x1b[31m│\x1b[0m Perhaps you meant:             \x1b[31m│\x1b[0m\n"
        "\x1b[31m│\x1b[0m     \x1b[1m--seed\x1b[0m INT                 \x1b[31m│\x1b[0m\n"
        "\x1b[31m╰────────────────────────────────╯\x1b[0m\n"
    )
    assert mistake(panel) == "Unrecognized options: --sed, 3: did you mean --seed?"


def test_process_exits_with_status_2(folder):
    before = contents()
    root = Path(wdjax.__file__).parent.parent
    command = [sys.executable, "-m", "wdjax.experiments.cli", *TRAIN, "--num-envs", "0"]
    environment = {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    error = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert error.returncode == 2
    assert error.stderr.startswith("wdjax: num_envs = 0: must be at least 1")
    assert error.stderr.count("\n") == 1
    assert contents() == before


def test_version_flag_prints_the_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"wdjax {wdjax.__version__}\n"
