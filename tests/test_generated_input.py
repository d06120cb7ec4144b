"""Property tests: generated configurations, presets and run folders load or raise a clear error.

Values are drawn for the fields of the schema itself (train/config/schema.py), so that new fields
are covered.
"""

import dataclasses
import json
import math
import typing

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given
from refusals import refusal

from wdjax.experiments.sweep import load_member
from wdjax.train import TrainConfig, load_config, read_metrics
from wdjax.train.config.facts import is_scheduled, leaves
from wdjax.train.learner.saved import read_run
from wdjax.train.learner.validate import validate
from wdjax.train.storage.folder import load_run_config, plain_config

# for tests that build environments
FEW = hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 3)
EDGES = [
    None,
    True,
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**32,
    10**30,
    -0.0,
    0.5,
    1.0,
    1e-45,
    1e39,
    math.inf,
    -math.inf,
    math.nan,
]
WORDS = [
    "",
    " ",
    "a:b",
    ":",
    "PPO",
    "A2C",
    "DDPG",
    "flat",
    "fresh",
    "auto",
    "none",
    "agent/episode_return",
    "ü\n\0",
]
numbers = st.sampled_from(EDGES) | st.integers() | st.floats()
plain = numbers | st.sampled_from(WORDS) | st.text(max_size=5)
anything = st.recursive(
    plain,
    lambda own: st.lists(own, max_size=3) | st.dictionaries(plain, own, max_size=2),
    max_leaves=5,
)


PRESETS = ("cartpole_ppo", "continuous_mountain_car_ddpg")
POLICY_FIELDS = {
    f"policies.agent.{name}": fields[-1]
    for preset in PRESETS
    for name, fields, _ in leaves(load_config(preset).policies["agent"])
}


def paths():
    """Return the dotted names of all fields of a run and its policy."""
    run = [field.name for field in dataclasses.fields(TrainConfig)]
    blocks = ["policies.agent", "policies.agent.network", "policies.agent.ddpg"]
    return [*run, *POLICY_FIELDS, *blocks]


def likely(path):
    """Return a strategy for values of a field's type, including its limits and beyond."""
    field = POLICY_FIELDS.get(path)
    if field is None:
        return anything
    if is_scheduled(field):
        return st.lists(st.tuples(numbers, numbers), max_size=3) | anything
    if typing.get_origin(field.type) is typing.Literal:
        return st.sampled_from(typing.get_args(field.type)) | anything
    return st.lists(numbers, max_size=3) | anything


@st.composite
def changes(draw):
    names = draw(st.lists(st.sampled_from(paths()), min_size=1, max_size=3, unique=True))
    return {name: draw(likely(name)) for name in names}


def is_rejected_clearly(function, *arguments, **named):
    """Return a function's result, or None if it raises a one-line error."""
    try:
        return function(*arguments, **named)
    except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert not any(
            sign in message
            for sign in ("object has no attribute", "not subscriptable", "unhashable")
        )
        return None


def check_round_trip(config):
    """Check that an accepted configuration has no NaN and can be written and read."""
    for name, (*_, field), value in (
        item for policy in config.policies.values() for item in leaves(policy)
    ):
        if isinstance(value, float) and not is_scheduled(field):
            assert not math.isnan(value), name
    written = yaml.safe_dump(plain_config(config))
    assert plain_config(load_of(written)) == plain_config(config)
    json.dumps(plain_config(config))


def load_of(text):
    from wdjax.train.state.registry import read_config

    config = read_config(yaml.safe_load(text))
    validate(config)
    return config


@FEW
@given(st.sampled_from(PRESETS), changes())
def test_generated_field_values_load_or_raise(preset, changed):
    config = is_rejected_clearly(load_config, preset, **changed)
    if config is not None:
        check_round_trip(config)


@given(
    anything
    | st.dictionaries(
        st.sampled_from(["env", "policies", "env_params", "reset"]), anything, max_size=4
    )
)
def test_generated_presets_load_or_raise(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("presets") / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    is_rejected_clearly(load_config, file)


@FEW
@given(st.data())
def test_damaged_run_folders_load_or_raise(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    text = yaml.safe_dump(plain_config(load_config("cartpole_ppo"))).encode()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    (folder / "config.yaml").write_bytes(
        text[:start] + data.draw(st.binary(max_size=8)) + text[end:]
    )
    (folder / "metrics.jsonl").write_bytes(data.draw(st.binary(max_size=30)))
    is_rejected_clearly(load_run_config, folder)
    is_rejected_clearly(read_run, folder)
    is_rejected_clearly(read_metrics, folder)


fields_of_a_sweep = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["config", "size", "members"], anything)
)
MEMBERS = {"size": 1, "members": [{"member": 0, "seed": 0, "values": {}}]}


@FEW
@given(anything | fields_of_a_sweep, st.booleans())
def test_damaged_sweep_folders_raise(tmp_path_factory, content, in_sweep):
    folder = tmp_path_factory.mktemp("sweep")
    config = {"config": plain_config(load_config("cartpole_ppo"))}
    turn = folder / "groups" / "000" / "000"
    (turn / "checkpoints" / "1").mkdir(parents=True)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content if in_sweep else config))
    (turn / "members.json").write_text(json.dumps(MEMBERS if in_sweep else content))
    assert is_rejected_clearly(load_member, folder, 0) is None


@pytest.mark.parametrize("line", ["3", "[]", "null", '"a"', "{", "NaN x"])
def test_metrics_lines_must_be_mappings(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"updates": 1}}\n{line}\n')
    assert "metrics.jsonl, line 2, " in refusal(read_metrics, tmp_path)
