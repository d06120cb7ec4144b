"""Malformed files, spaces, environments and actions raise one clear line.

See tests/test_bad_input.py.
"""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refusal

import wdjax
from wdjax import Box, Dict, Discrete, MultiDiscrete, ResetPool, vectorize
from wdjax.train import Trainer, load_config

NAN, INF = math.nan, math.inf

GOOD = "env: cartpole\npolicies: {agent: {}}\n"
AGENT = "env: cartpole\npolicies: {agent: {%s}}"
NO_MAPPING = "run.yaml: must contain a mapping of fields, not "
FILES = [
    ("", NO_MAPPING + "nothing"),
    ("# only a comment\n", NO_MAPPING + "nothing"),
    ("- 1\n- 2", NO_MAPPING + "list"),
    ("env cartpole", NO_MAPPING + "str"),
    ("42", NO_MAPPING + "int"),
    ("{}", "field env is missing"),
    ("env: cartpole", "field policies is missing"),
    ("policies: {agent: {}}", "field env is missing"),
    ("env: [",
     "invalid YAML: expected the node content, but found '<stream end>' (line 1, column 7)"),
    ("\tenv: cartpole",
     "found character '\\t' that cannot start any token: indent with spaces (line 1, column 1)"),
    ("env: cartpole\n\tpolicies: {}",
     "found character '\\t' that cannot start any token: indent with spaces (line 2"),
    (GOOD + "env: pendulum", "invalid YAML: duplicate key 'env' (line 3, column 1)"),
    (GOOD + "seed: 1\nseed: 1", "invalid YAML: duplicate key 'seed' (line 4, column 1)"),
    (AGENT % "gamma: .5, gamma: .5", "invalid YAML: duplicate key 'gamma' (line 2, column 31)"),
    (GOOD + "---\n" + GOOD,
     "invalid YAML: expected a single document in the stream but found another document (line"),
    (GOOD + "seed: !!python/object:os.system x", "could not determine a constructor for the tag"),
    (GOOD + "seed: !include x",
     "could not determine a constructor for the tag '!include' (line 3, column 7)"),
    (GOOD + "seed: *nope", "found undefined alias 'nope' (line 3, column 7)"),
    (GOOD + "num_envs = 3", "could not find expected ':' (line 3, column 13)"),
    (GOOD + "  num_envs: 3", "run.yaml: invalid YAML: "),
    (GOOD + "? [a, b]\n: 1", "found unhashable key (line 3, column 3)"),
    (GOOD + "x: \"\\xZZ\"",
     "expected escape sequence of 2 hexadecimal numbers, but found 'Z' (line 3, column 7)"),
    (GOOD + "\x07: 3", "special characters are not allowed"),
    ("[" * 2000, "invalid YAML: nested too deeply"),
    (AGENT % "<<: 3",
     "expected a mapping or list of mappings for merging, but found scalar (line 2, column 24)"),
    (GOOD + "seed: 2020-13-01", "run.yaml: invalid YAML: month must be in 1..12"),
    (GOOD + "seed: 2020-01-01", "seed = datetime.date(2020, 1, 1): must be a whole number"),
    (GOOD + "num_envs: 010", "num_envs = '010': must be a whole number"),
    (GOOD + "num_envs: 0x10", "num_envs = '0x10': must be a whole number"),
    (GOOD + "num_envs: 1:30", "num_envs = '1:30': must be a whole number"),
    (GOOD + "num_envs:", "num_envs = None: must be a whole number"),
    (GOOD + "num_envs: 64,", "num_envs = '64,': must be a whole number"),
    (GOOD + "num_envs: 6 4", "num_envs = '6 4': must be a whole number"),
    (GOOD + "num_envs: 1e400", "num_envs = inf: must be a whole number"),
    (GOOD + "reset: yes", "reset = True: must be 'fresh' or 'fixed' or a whole number"),
    (GOOD + "eval_greedy: ja", "eval_greedy = 'ja': must be true or false"),
    (GOOD + "env_params: {gravity: 9.8 m/s}", "gravity = '9.8 m/s': must be a number"),
    ("env: cartpole\npolicies:\n  agent:\n  gamma: 0.9",
     "policies.agent = None: must be a mapping of fields"),
    (AGENT % "learning_rate: 1e-",
     "policies.agent.learning_rate = '1e-': must be a number or a list of"),
    (AGENT % "learning_rate: {0: 1e-3}",
     "policies.agent.learning_rate = {0: 0.001}: must be a number or a list of"),
    (AGENT % "network: {hidden_sizes: 64 64}",
     "policies.agent.network.hidden_sizes = '64 64': must be a list"),
    (AGENT % "algorithm: DDPG",
     "policies.agent.algorithm = 'DDPG': requires a Box of floats as action space"),
    (AGENT % "agents: agent", "policies.agent.agents = 'agent': must be a list"),
    ("env: cartpole\npolicies: &p {agent: *p}", "invalid YAML: a value contains itself"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def work_in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def written():
    return sorted(path.name for path in Path().iterdir())


@pytest.mark.parametrize(("text", "message"), FILES)
def test_malformed_files_raise(text, message):
    Path("run.yaml").write_text(text)
    assert message in refusal(load_config, "run.yaml")
    assert written() == ["run.yaml"]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", "env: cärt".encode("latin1"), b"env: cart\x00pole"]
)
def test_files_that_are_not_text_raise(content):
    Path("run.yaml").write_bytes(content)
    assert refusal(load_config, "run.yaml").startswith("run.yaml: invalid YAML: ")


PRESETS = [
    ("cartpol", "unknown preset 'cartpol': did you mean 'cartpole'?"),
    ("CartPole", "unknown preset 'CartPole': did you mean 'cartpole'?"),
    ("cartpole.json", "unknown preset 'cartpole.json': did you mean 'cartpole'?"),
    ("", "unknown preset '': known names: Acrobot-v1,"),
    (".", "unknown preset '.': known names: Acrobot-v1,"),
    ("none.yaml", "no such file: none.yaml"),
    (Path("none.yml"), "no such file: none.yml"),
    (None, "preset = None: must be the name of a preset, the path of a YAML file, or a mapping"),
    (5, "preset = 5: must be the name of a preset, the path of a YAML file, or a mapping"),
    (
        b"cartpole",
        "preset = b'cartpole': must be the name of a preset, the path of a YAML file, or a mapping",
    ),
]


@pytest.mark.parametrize(("preset", "message"), PRESETS)
def test_malformed_presets_raise(preset, message):
    assert refusal(load_config, preset).startswith(message)


def test_folder_instead_of_a_preset_raises():
    Path("dir.yaml").mkdir()
    assert refusal(load_config, "dir.yaml") == "no such file: dir.yaml"


# --- spaces ---

NO_SPACE = "must be a Box, Discrete, MultiDiscrete or Dict"
SPACES = [
    (Discrete, (0,), "Discrete.n = 0: must be at least 1"),
    (Discrete, (-1,), "Discrete.n = -1: must be at least 1"),
    (Discrete, (2.0,), "Discrete.n = 2.0: must be a whole number, not float"),
    (Discrete, ("2",), "Discrete.n = '2': must be a whole number, not str"),
    (Discrete, (True,), "Discrete.n = True: must be a whole number, not bool"),
    (Discrete, (None,), "Discrete.n = None: must be a whole number, not NoneType"),
    (Discrete, ([2],), "Discrete.n = [2]: must be a whole number, not list"),
    (Discrete, (2**31,), "Discrete.n = 2147483648: must be at most 2147483647, the largest int32"),
    (Discrete, (2, 3), "Discrete.batch_shape = 3: must be a tuple of sizes"),
    (Discrete, (2, (-1,)), "a size in Discrete.batch_shape = -1: must be at least 0"),
    (Discrete(2).batch, (-1,), "a size in Discrete.batch_shape = -1: must be at least 0"),
    (Discrete(2).batch, (1.5,),
     "a size in Discrete.batch_shape = 1.5: must be a whole number, not float"),
    (MultiDiscrete, ((),), "MultiDiscrete.nvec = (): must be a tuple of at least one size"),
    (MultiDiscrete, ((2, 0),), "a size in MultiDiscrete.nvec = 0: must be at least 1"),
    (MultiDiscrete, ((2, 2.5),),
     "a size in MultiDiscrete.nvec = 2.5: must be a whole number, not float"),
    (MultiDiscrete, ((2, 2**40),),
     "a size in MultiDiscrete.nvec = 1099511627776: must be at most 2147483647"),
    (MultiDiscrete, (3,), "MultiDiscrete.nvec = 3: must be a tuple of sizes, like (3, 3)"),
    (MultiDiscrete, ("23",), "MultiDiscrete.nvec = '23': must be a tuple of sizes"),
    (MultiDiscrete, (None,), "MultiDiscrete.nvec = None: must be a tuple of sizes"),
    (MultiDiscrete, (((2, 2), (2, 2)),),
     "MultiDiscrete.nvec = ((2, 2), (2, 2)): must be a tuple of sizes"),
    (MultiDiscrete, (((2,), 2),), "MultiDiscrete.nvec = ((2,), 2): must be a tuple of sizes"),
    (MultiDiscrete, ((2,), 3), "MultiDiscrete.batch_shape = 3: must be a tuple of sizes"),
    (Box, (1, 0, (2,)), "Box.low = 1: must be at most Box.high = 0"),
    (Box, ([0, 2], [1, 1], (2,)), "Box.low = [0, 2]: must be at most Box.high = [1, 1]"),
    (Box, (np.ones(2), jnp.zeros(2), (2,)),
     "Box.low = [1.0, 1.0]: must be at most Box.high = [0.0, 0.0]"),
    (Box, (NAN, 1), "Box.low = nan: must be below infinity, not NaN"),
    (Box, (0, NAN), "Box.high = nan: must be above minus infinity, not NaN"),
    (Box, (INF, INF), "Box.low = inf: must be below infinity"),
    (Box, (-INF, -INF), "Box.high = -inf: must be above minus infinity"),
    (Box, ("a", 1), "Box.low = 'a': must be a number, or an array of numbers"),
    (Box, (0, None), "Box.high = None: must be a number, or an array of numbers"),
    (Box, (0, [1, [2]], (2,)), "Box.high = [1, [2]]: must be a number, or an array of numbers"),
    (Box, (1j, 2), "Box.low = 1j: must be a number"),
    (Box, ([0, 0, 0], 1, (2,)), "shape of Box.low = (3,): must be one that broadcasts to (2,)"),
    (Box, (0, np.ones((3, 1)), (3,)),
     "shape of Box.high = (3, 1): must be one that broadcasts to (3,)"),
    (Box, (0, 1, 3), "Box.shape = 3: must be a tuple of sizes, like (3,)"),
    (Box, (0, 1, "2"), "Box.shape = '2': must be a tuple of sizes"),
    (Box, (0, 1, None), "Box.shape = None: must be a tuple of sizes"),
    (Box, (0, 1, (2.5,)), "a size in Box.shape = 2.5: must be a whole number, not float"),
    (Box, (0, 1, (-1,)), "a size in Box.shape = -1: must be at least 0"),
    (Box, (0, 1, (2,), "flot32"), "Box.dtype = 'flot32': must be a dtype of real numbers"),
    (Box, (0, 1, (2,), str), "Box.dtype = <class 'str'>: must be a dtype of real numbers"),
    (Box, (0, 1, (2,), jnp.complex64), "must be a dtype of real numbers"),
    (Box().batch, ("3",), "a size in Box.shape = '3': must be a whole number, not str"),
    (Dict, ([],), "Dict.spaces = []: must be a dict of names and spaces"),
    (Dict, (None,), "Dict.spaces = None: must be a dict of names and spaces"),
    (Dict, (Discrete(2),), "must be a dict of names and spaces"),
    (Dict, ({},), "Dict.spaces = {}: must be a dict of at least one space"),
    (Dict, ({"a": 3},), "Dict.spaces['a'] = 3: " + NO_SPACE),
    (Dict, ({"a": Box},), "Dict.spaces['a'] = <class 'wdjax.spaces.Box'>: " + NO_SPACE),
    (Dict, ({"a": {"b": Box()}},), NO_SPACE),
    (Dict, ({1: Box()},), "a name in Dict.spaces = 1: must be a string, not int"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "arguments", "message"), SPACES)
def test_malformed_spaces_raise(space, arguments, message):
    assert message in refusal(space, *arguments)


def test_traced_bounds_and_lists_are_accepted():
    """Params under jit give bounds with unknown values."""
    high = jax.jit(lambda bound: Box(-bound, bound, (2,)).clip(jnp.full(2, 9.0)))(jnp.float32(3.0))
    assert high.tolist() == [3.0, 3.0]
    assert hash(Box(0, 1, [2])) == hash(Box(0, 1, (2,)))
    assert Box(0, 0, (2,)).sample(jax.random.key(0)).tolist() == [0.0, 0.0]


# --- environments ---

CARTPOLE, PARAMS = wdjax.make("cartpole")
OTHER_PARAMS = wdjax.make("pendulum")[1]
KEY = jax.random.key(0)
FOUR = vectorize(CARTPOLE, 4)
ENVIRONMENTS = [
    (wdjax.make, ("",), {}, "unknown environment '': known names: acrobot,"),
    (wdjax.make, ("gymnx:CartPole-v1",), {}, "unknown library 'gymnx': did you mean 'gymnax'?"),
    (wdjax.make, ("__main__:Lander",), {}, "Lander"),
    (wdjax.make, ("cartpole",), {"gravty": 1},
     "unknown parameter of CartPole 'gravty': did you mean 'gravity'?"),
    (wdjax.make, ("cartpole",), {"gravity": "9.8"}, "gravity = '9.8': must be a number"),
    (wdjax.make, ("cartpole",), {"gravity": None}, "gravity = None: must be a number"),
    (wdjax.make, ("cartpole",), {"gravity": NAN},
     "gravity = nan: must be a number within the range of float32, not"),
    (wdjax.make, ("cartpole",), {"gravity": [[1], [2, 3]]},
     "gravity = [[1], [2, 3]]: must be a number"),
    (wdjax.make, ("cartpole",), {"gravity": 1j}, "gravity = 1j: must be a number"),
    (wdjax.make, ("cartpole",), {"length": 0}, "length = 0.0: must be above 0"),
    (wdjax.make, ("cartpole",), {"episode_length": 0}, "episode_length = 0: must be above 0"),
    (wdjax.make, ("pendulum",), {"g": 9.8}, "unknown parameter of Pendulum 'g': known names: dt,"),
    (wdjax.make, ("mountain_car",), {"goal_position": NAN},
     "goal_position = nan: must be a number within the range"),
    (wdjax.make, ("tag_continuous",), {"num_taggers": [5]},
     "num_taggers = [5]: must be a whole number, not list"),
    (wdjax.make, ("tag_continuous",), {"num_taggers": None},
     "num_taggers = None: must be a whole number"),
    (wdjax.make, ("tag_continuous",), {"max_turn": "left"}, "max_turn = 'left': must be a number"),
    (wdjax.make, ("tag_gridworld",), {"grid_length": 0}, "grid_length = 0: must be at least 1"),
    (wdjax.register, (3, type(CARTPOLE)), {}, "name = 3: must be a string"),
    (wdjax.register, ("", type(CARTPOLE)), {},
     "name = '': must be a name without ':' and without surrounding spaces"),
    (wdjax.register, ("lib:x", type(CARTPOLE)), {}, "name = 'lib:x': must be a name without ':'"),
    (wdjax.register, ("mine ", type(CARTPOLE)), {}, "name = 'mine ': must be a name without ':'"),
    (wdjax.register, ("mine", 3), {},
     "env = 3: must be a subclass of wdjax.Env, or an instance of a subclass"),
    (wdjax.register, ("mine", int), {}, "env = <class 'int'>: must be a subclass of wdjax.Env"),
    (wdjax.register, ("pendulum", type(CARTPOLE)), {},
     "name = 'pendulum': must be a name that is not in use"),
    (vectorize, (CARTPOLE, 0), {}, "num_envs = 0: must be at least 1"),
    (vectorize, (CARTPOLE, 2.5), {}, "num_envs = 2.5: must be a whole number, not float"),
    (vectorize, (CARTPOLE, "4"), {}, "num_envs = '4': must be a whole number, not str"),
    (vectorize, (CARTPOLE, True), {}, "num_envs = True: must be a whole number, not bool"),
    (vectorize, ("cartpole", 4), {},
     "env = 'cartpole': must be a wdjax.Env. Pass the environment from wdjax.make"),
    (vectorize, (type(CARTPOLE), 4), {},
     "must be a wdjax.Env. Pass the environment from wdjax.make"),
    (vectorize, (CARTPOLE, 4, "frsh"), {}, "unknown reset strategy 'frsh': did you mean 'fresh'?"),
    (vectorize, (CARTPOLE, 4, 10), {}, "reset strategy 10: must be a string, not int"),
    (vectorize, (CARTPOLE, 4), {"params_axis": 1}, "params_axis = 1: must be None or 0"),
    (ResetPool, (0,), {}, "ResetPool.n = 0: must be at least 1"),
    (ResetPool, (1.5,), {}, "ResetPool.n = 1.5: must be a whole number, not float"),
    (FOUR.reset, (0, PARAMS), {},
     "key = 0: must be a typed key. Create it with jax.random.key(seed)"),
    (FOUR.reset, (None, PARAMS), {}, "key = None: must be a typed key"),
    (FOUR.reset, (jax.random.PRNGKey(0), PARAMS), {}, "key of dtype uint32: must be a typed key"),
    (FOUR.reset, (KEY, None), {},
     "params = None: must be a Params of CartPole. Pass the params from wdjax.make"),
    (FOUR.reset, (KEY, {"gravity": 1}), {},
     "params = {'gravity': 1}: must be a Params of CartPole"),
    (FOUR.reset, (KEY, OTHER_PARAMS), {}, "must be a Params of CartPole"),
    (FOUR.step, (KEY, None, None, OTHER_PARAMS), {}, "must be a Params of CartPole"),
    (FOUR.reset, (jax.random.split(KEY, 2), PARAMS), {},
     "key of shape = (2,): must be a single key"),
    (vectorize(CARTPOLE, 4, params_axis=0).reset, (KEY, PARAMS), {},
     "must be an array with a leading axis of 4"),
    (wdjax.train.make_learner, ("cartpole",), {},
     "config = 'cartpole': must be a TrainConfig. Use load_config("),
    (wdjax.train.Trainer, ("cartpole", "run"), {},
     "config = 'cartpole': must be a TrainConfig. Use load_config("),
    (wdjax.make, ("tag",), {},
     "unknown environment 'tag': did you mean 'tag_continuous' or 'tag_gridworld'?"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "named", "message"), ENVIRONMENTS)
def test_malformed_environment_arguments_raise(registry, function, arguments, named, message):
    assert message in refusal(function, *arguments, **named)


# --- trainers ---

RUNS = [
    ("", {}, "workdir = '': must be a path"),
    ("a file", {}, "workdir = a file: must be a writable folder (File exists)"),
    ("a file/run", {}, "workdir = a file/run: must be a writable folder (Not a directory)"),
    ("/proc/run", {}, "workdir = /proc/run: must be a writable folder"),
    (
        "run",
        {"policies.agent.checkpoint": "runs/none"},
        "policies.agent.checkpoint = 'runs/none': runs/none contains",
    ),
    (
        "run",
        {"policies.agent.checkpoint": "none@bst"},
        "policies.agent.checkpoint = 'none@bst': checkpoint 'bst':",
    ),
]


@pytest.mark.parametrize(("workdir", "changes", "message"), RUNS)
def test_malformed_trainer_arguments_raise(workdir, changes, message):
    Path("a file").write_text("")
    config = load_config("cartpole", **changes)
    assert refusal(Trainer, config, workdir).startswith(message)
    assert written() == ["a file"]
