"""Errors for custom algorithms: options, schedules, the order of checks, and public parts."""

import ast
import dataclasses
import inspect

import jax
import pytest
from probes import tiny_config

from wdjax.experiments.cli import main
from wdjax.train import PPO, PolicyConfig, load_config, make_learner, traced, with_hypers
from wdjax.train.learning import A2C, Gaussian, Schedule

pytestmark = pytest.mark.usefixtures("quick_compile")

POINTS = [[0, 1.0], [1000, 0.0]]


@dataclasses.dataclass(frozen=True)
class Options(PPO.Options):
    alpha: float = traced(0.1)
    beta: Schedule = traced(0.1, allowed="at least 0")


class Weighted(PPO):
    Options = Options


def weighted(**options):
    changes = {f"policies.agent.{name}": value for name, value in options.items()}
    algorithm = {"policies.agent.algorithm": f"{__name__}:Weighted"}
    return load_config("cartpole_ppo", **algorithm, **changes)


@pytest.mark.parametrize("schedule", [POINTS, {"fraction": [[0, 1.0], [1, 0.0]]}])
def test_a_schedule_of_a_custom_number_names_the_annotation(schedule):
    assert weighted(beta=schedule)
    words = r"agent.alpha = .*: must be a number. To allow a schedule, annotate the field with "
    with pytest.raises(TypeError, match=words + "wdjax.train.learning.Schedule"):
        weighted(alpha=schedule)


def test_a_schedule_of_a_built_in_number_is_refused_without_the_annotation():
    with pytest.raises(TypeError, match=r"agent.clip = .*: must be a number$"):
        weighted(clip=POINTS)


@pytest.mark.parametrize("schedule", [POINTS, {"fraction": POINTS}])
def test_with_hypers_refuses_schedules(schedule):
    config = dataclasses.replace(weighted(beta=POINTS), num_envs=2, rollout_length=4)
    learner = make_learner(config)
    state = learner.init(jax.random.key(0))
    with pytest.raises((TypeError, ValueError), match="Set schedules in the configuration"):
        with_hypers(state, **{"agent.beta": schedule})
    assert with_hypers(state, **{"agent.beta": 0.5}).hypers["agent"]["beta"].values[0] == 0.5


def test_a_flag_of_an_unknown_option_names_the_known_ones(capsys, tmp_path):
    workdir = str(tmp_path / "run")
    with pytest.raises(SystemExit):
        main(["train", "cartpole_ppo", "--workdir", workdir, "--policies.agent.beta", "1.0"])
    words = "unknown field policies.agent.beta: known names:"
    assert words in " ".join(capsys.readouterr().err.split())


class Ordered(PPO):
    """Validates in `check`, and cannot build anything."""

    def check(self, name, run, assignment):
        super().check(name, run, assignment)
        raise ValueError(f"policies.{name}: refused by check")

    def make_distribution(self, config, assignment):
        raise AssertionError("called before check")

    make_network = make_distribution


class NoDistribution(PPO):
    def make_distribution(self, config, assignment):
        raise ValueError("action space: must be bounded")


class Kept(Gaussian):
    def log_prob(self, outputs, action):
        return super().log_prob(outputs, action)[..., None]


class KeptEntropy(Gaussian):
    def entropy(self, outputs):
        return super().entropy(outputs)[..., None]


class Unsummed(PPO):
    distribution = Kept

    def make_distribution(self, config, assignment):
        return self.distribution(1, (1,))


class UnsummedEntropy(Unsummed):
    distribution = KeptEntropy


@pytest.mark.parametrize(
    ("algorithm", "name"), [(Unsummed, "Kept.log_prob"), (UnsummedEntropy, "KeptEntropy.entropy")]
)
def test_a_distribution_returns_one_number_per_action(algorithm, name):
    path = f"{__name__}:{algorithm.__name__}"
    words = rf"policies.agent.algorithm: shape of {name} = \(2, 3, 1\): must be \(2, 3\) for "
    with pytest.raises(ValueError, match=words):
        make_learner(load_config("pendulum_ppo", **{"policies.agent.algorithm": path}))


def test_check_is_called_before_networks_and_distributions_are_made():
    for name, words in (
        ("Ordered", "policies.agent: refused by check"),
        ("NoDistribution", "policies.agent: action space: must be bounded"),
    ):
        policy = PolicyConfig(algorithm=f"{__name__}:{name}")
        with pytest.raises(ValueError, match=words):
            make_learner(tiny_config("probe_signal", {"agent": policy}))


@pytest.mark.parametrize("algorithm", [A2C, PPO])
def test_the_pages_of_a2c_and_ppo_need_public_names_only(algorithm):
    tree = ast.parse(inspect.getsource(inspect.getmodule(algorithm)))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module.startswith("wdjax")} == {"wdjax.train.learning"}
