"""Names of metrics: statistics of users never collide with metrics of wdjax."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger import Ledger

import wdjax
from wdjax.metric_names import CONFIGURED, LENGTHS, STANDARD_ERROR, WRITTEN, statistic_names
from wdjax.train import TrainConfig

WORDS = (
    "length",
    "length_min",
    "length_std",
    "return",
    "tags",
    "tags_max",
    "tags_standard_error",
    "updates",
    "seed",
    "episode_length",
    "episode_tags",
    "eval/agent/episode_return",
    "agent/loss",
    "agent/episode_return",
    "user/length",
    "best/agent/episode_return",
    "crowd/episode_return",
    "policies.agent.gamma",
    "score",
    "_step",
    "a/b",
    "",
)
names = st.one_of(
    st.sampled_from(WORDS),
    st.text("agsu/_ ", max_size=6),
    st.sampled_from(WORDS).map("user/{}".format),
)
owners = st.sampled_from(("agent", "crowd", "user", "user_", "episode_a", "a", "best"))


def written(policies, groups):
    """Return names that wdjax writes for these policies and groups, evaluations included."""
    training = {
        *WRITTEN,
        *(
            f"{name}/{metric}"
            for name in policies
            for metric in ("loss", "episode_return", "b", "length")
        ),
    }
    evaluated = {"episode_length", *(f"{name}/episode_return" for name in (*policies, *groups))}
    evaluated = {f"eval/{name}{end}" for name in evaluated for end in ("", STANDARD_ERROR)}
    return training | evaluated | {f"eval/best/{name}/episode_return" for name in policies}


@given(
    st.lists(names, max_size=8, unique=True),
    st.lists(names, max_size=4, unique=True),
    st.lists(owners, min_size=1, max_size=3, unique=True),
    st.lists(owners, max_size=3, unique=True),
)
def test_every_statistic_has_a_unique_name(info, ratios, policies, groups):
    sums, divided = statistic_names(info, dict.fromkeys(ratios, ("x", "y")), policies, groups)
    assert sums.keys() == set(info) - {"x"}
    assert divided.keys() == set(ratios)
    metrics = [*sums.values(), *divided.values()]
    evaluated = [f"eval/{name}{end}" for name in metrics for end in ("", STANDARD_ERROR)]
    everything = [*metrics, *evaluated, *written(policies, groups)]
    assert len(set(everything)) == len(everything)


def test_statistics_that_do_not_collide_keep_their_names():
    sums, ratios = statistic_names(
        ["tags", "steps", "speed_max"], {"time_to_tag": ("steps", "tags")}, ["agent"]
    )
    assert sums == {"tags": "episode_tags", "speed_max": "episode_speed_max"}
    assert ratios == {"time_to_tag": "time_to_tag"}


def test_colliding_statistics_get_the_prefix_user():
    sums, ratios = statistic_names(
        ["length", "length_std"], {"updates": ("length", "length_std")}, ["agent"]
    )
    assert (sums, ratios) == ({"length_std": "user/length_std"}, {"updates": "user/updates"})
    assert statistic_names(["length"], {}, ["user"])[0] == {"length": "user_/length"}


def test_fields_of_a_run_are_reserved_names():
    assert {field.name for field in dataclasses.fields(TrainConfig)} == CONFIGURED


@pytest.mark.slow
def test_check_env_warns_about_colliding_statistics(monkeypatch):
    monkeypatch.setattr(wdjax.env_checker, "CONTRACT", ())  # only the warnings
    monkeypatch.setattr(wdjax.env_checker.play, "random_play", lambda case: [])
    env = Ledger(("length", "coins"), ratios=(("updates", "length", "coins"),))
    with pytest.warns(
        UserWarning, match="updates is already a metric. Training reports it as user/updates"
    ) as warned:
        wdjax.check_env(env, num_steps=40)
    assert len(warned) == 1
    with pytest.warns(
        UserWarning,
        match=f"{LENGTHS[3]} is already a metric. Training reports it as user/length_std",
    ):
        wdjax.check_env(Ledger(("length_std",)), num_steps=40)
