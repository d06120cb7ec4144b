"""Statistics of an environment keep their names and values, whatever their names are."""

import re
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger import STEPS, Ledger
from probes import NETWORK

from wdjax import envs
from wdjax.metric_names import LENGTHS, STANDARD_ERROR, statistic_names
from wdjax.train import PolicyConfig, TrainConfig, Trainer, read_metrics
from wdjax.train.learner.learner import join_metrics
from wdjax.train.learning import Metric
from wdjax.train.state.metric import beside
from wdjax.vector import RESERVED_INFO

pytestmark = pytest.mark.usefixtures("quick_compile")

REWARD = 2.0


def train(folder, env, policies=("one", "two"), **changes):
    """Train a Ledger for 3 updates in chunks of up to 2. Return the rows of metrics.jsonl."""
    first, second = policies
    small = {"algorithm": "PPO", "network": NETWORK}
    pool = {"opponents": dict.fromkeys(("random", *env.plays), 0.5 / (1 + len(env.plays)))}
    config = TrainConfig(
        env="ledger",
        policies={
            first: PolicyConfig(
                agents=env.members[:1], past_selves=1, past_selves_fraction=0.2, **pool, **small
            ),
            second: PolicyConfig(agents=env.members[1:], **small),
        },
        num_envs=4,
        num_blocks=2,
        rollout_length=4,
        total_env_steps=48,
        updates_per_chunk=2,
        eval_episodes=2,
        evaluate_every=1,
        devices=1,
        **changes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(envs._REGISTRY, "ledger", env)
        Trainer(config, folder, quiet=True, pictures=False).train()
    return read_metrics(folder)


def expected(env, policies):
    """Return metric -> value of the environment's statistics, lengths and returns."""
    sums, ratios = statistic_names(env.names, env.info_ratios, policies, env.members)
    step = {name: i + 1 for i, name in enumerate(env.names)}
    found = {metric: STEPS * step[name] for name, metric in sums.items()}
    found |= {ratios[name]: step[total] / step[count] for name, total, count in env.ratios}
    lengths = dict(zip(LENGTHS, (STEPS, STEPS, STEPS, 0), strict=True))
    returns = {
        f"{name}/{metric.replace('length', 'return')}": REWARD * value
        for name in policies for metric, value in lengths.items()
    }  # fmt: skip
    return found | lengths | returns


def assert_numbers(env, policies, rows):
    numbers = expected(env, policies)
    spreads = {
        f"{mean}{end}"
        for mean in (LENGTHS[0], *(f"{own}/episode_return" for own in policies))
        for end in ("_min", "_max", "_std")
    }
    for row in rows:
        for name, value in numbers.items():
            assert row[name] == pytest.approx(value), name
            if name not in spreads:
                assert row[f"eval/{name}"] == pytest.approx(value), name
                assert row[f"eval/{name}{STANDARD_ERROR}"] == pytest.approx(0.0, abs=1e-6), name


@pytest.mark.slow
def test_statistics_with_names_of_the_library(tmp_path):
    """Each of these names was lost, stopped training or had another value once."""
    env = Ledger(
        ("length", "length_std", "speed", "speed_std", "speed_max"),
        (("updates", "speed", "length"),),
    )
    goal = {"user/length_std": 1e9, "user/updates": 1e9}
    rows = train(tmp_path / "run", env, stop_at=goal, best_metric="user/length_std")
    assert rows[-1]["eval/best/user/length_std"] in (None, 6.0)
    assert_numbers(env, ("one", "two"), rows)
    assert (rows[-1]["updates"], rows[-1]["user/updates"], rows[-1]["user/length_std"]) == (
        3,
        3.0,
        6.0,
    )
    assert (rows[-1]["episode_speed_max"], rows[-1]["episode_length"]) == (15.0, 3.0)


def test_metrics_of_an_algorithm_never_replace_those_of_the_learner():
    own = {
        "loss": 1,
        "episode_return": 2,
        "learning_rate": 3,
        "user/learning_rate": 4,
        "opponent_games/past": 5,
        "past_self_blocks": 6,
    }
    reported = {"learning_rate": 7, "temperature": 9}
    assert join_metrics(reported, own, has_snapshots=True) == {
        **reported,
        "loss": 1,
        "user/learning_rate": 4,
        "user/episode_return": 2,
        "user/user/learning_rate": 3,
        "user/opponent_games/past": 5,
        "user/past_self_blocks": 6,
    }
    assert join_metrics({}, own, has_snapshots=False)["past_self_blocks"] == 6


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (Metric(1, "mx"), "unknown rule of the metric 'x' 'mx': did you mean 'max'"),
        (
            Metric(1, weight=("liv",)),
            "unknown metric that 'x' refers to 'liv': did you mean 'live'",
        ),
        (
            Metric(1, "deviation", mean="liv"),
            "unknown metric that 'x' refers to 'liv': did you mean 'live'",
        ),
    ],
)
def test_metric_that_refers_to_an_unknown_metric_is_refused(metric, words):
    with pytest.raises(ValueError, match=words):
        beside({"x": metric, "live": 1.0}, "agent")


def test_policy_named_like_evaluations_is_refused(tmp_path):
    with pytest.raises(ValueError, match="policies = 'eval': must be another name"):
        train(tmp_path / "run", Ledger(), ("eval", "two"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_custom_names_hide_no_metric():
    with tempfile.TemporaryDirectory() as folder:
        plain = [name for name in train(Path(folder) / "run", Ledger())[-1] if name != "updates"]
    words = [
        *plain,
        *(name.removeprefix("episode_") for name in plain),
        *(name.rpartition("/")[2] for name in plain),
    ]
    words = sorted(
        {end for word in words for end in (word, f"{word}_max", f"user/{word}")}
        - set(RESERVED_INFO)
    )
    name = st.sampled_from(words)
    policy = st.sampled_from(
        [word for word in words if re.fullmatch(r"\w+", word) and word != "eval"]
    )

    @hypothesis.settings(max_examples=4, deadline=None, phases=[hypothesis.Phase.generate])
    @given(
        st.lists(name, min_size=2, max_size=6, unique=True),
        st.lists(name, max_size=3, unique=True),
        st.lists(policy, min_size=2, max_size=2, unique=True),
        st.lists(policy, min_size=2, max_size=2, unique=True),
        st.lists(st.one_of(st.sampled_from(("past", "present")), policy), max_size=2, unique=True),
    )
    def play(names, ratios, policies, members, plays):
        divided = tuple((ratio, names[i % len(names)], names[-1]) for i, ratio in enumerate(ratios))
        env = Ledger(tuple(names), divided, tuple(members), tuple(plays))
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            rows = train(run, env, tuple(policies))
            assert_numbers(env, policies, rows)
            for row in rows:
                opponents = [
                    name for name in row if name.startswith(f"{policies[0]}/opponent_blocks/")
                ]
                assert len(opponents) == 3 + len(plays)  # past, present, random
                assert sum(row[name] for name in opponents) == pytest.approx(2)

    play()
