"""Environments that each break one rule about scripts or `split_observation`.

As in tests/broken_envs.py, each is one of the correct toys with one override.
"""

import jax.numpy as jnp
from broken_envs import says
from toy_contract import Line, Team

NAMES = r"\['worker', 'pilot'\]"


def work(env, state, params, key):
    return jnp.zeros((2, 2), jnp.int32)


def walk(env, state, params, key):
    return jnp.where(state.place > 0, 0, 2)


# --- scripts ---


@says(r"scripts has type list: must be a dict, name -> \(group, function\)")
class ListOfScripts(Team):
    scripts = [work]  # noqa: RUF012


@says(r"scripts has the key 'random': must be a string other than 'random'")
class ScriptNamedRandom(Team):
    scripts = {"random": ("worker", work)}  # noqa: RUF012


@says(
    r"scripts\['work'\] = <function work at .*>: must be \(group, function of \(env, state, "
    r"params, key\)\)"
)
class ScriptWithoutGroup(Team):
    scripts = {"work": work}  # noqa: RUF012


@says(rf"scripts\['work'\] plays the group 'workers': must be one of {NAMES}")
class ScriptOfNobody(Team):
    scripts = {"work": ("workers", work)}  # noqa: RUF012


@says(r"scripts\['walk'\] plays the group 'walker': must be one of \['agent'\]")
class ScriptOfAnotherThanTheAgent(Line):
    scripts = {"walk": ("walker", walk)}  # noqa: RUF012


@says(
    r"scripts\['walk'\] returns int32 of shape \(1,\): must be int32 of shape \(\), the actions "
    r"of 'agent'"
)
class ScriptWithAnAxisOfAgents(Line):
    scripts = {"walk": ("agent", lambda *args: walk(*args)[None])}  # noqa: RUF012


@says(
    r"scripts\['work'\] returns float32 of shape \(2, 2\): must be int32 of shape \(2, 2\), the "
    r"actions of 'worker'"
)
class ScriptOfFloats(Team):
    scripts = {"work": ("worker", lambda *args: work(*args) * 0.5)}  # noqa: RUF012


@says(r"scripts\['work'\] returns dict: must be int32 of shape \(2, 2\)")
class ScriptOfAllGroups(Team):
    scripts = {"work": ("worker", lambda *args: {"worker": work(*args)})}  # noqa: RUF012


@says(
    r"scripts\['work'\] returns \[\[3, 3\], \[3, 3\]\]: must be inside the action_space of "
    r"'worker'\. Clip"
)
class ScriptOutside(Team):
    scripts = {"work": ("worker", lambda *args: work(*args) + 3)}  # noqa: RUF012


@says(
    r"scripts\['walk'\] branches on a traced value at broken_declarations\.py:\d+\. Use "
    r"jnp\.where or lax\.cond"
)
class ScriptThatBranches(Line):
    scripts = {"walk": ("agent", lambda env, state, params, key: 0 if state.place > 0 else 2)}  # noqa: RUF012


# --- split_observation ---


class Watched(Team):
    """A correct environment. Workers observe no other agent, the pilot observes one."""

    def split_observation(self, obs):
        if isinstance(obs, dict):
            own_features = obs["energy"][..., None]
            return (
                jnp.zeros((*own_features.shape[:-1], 0, 1)),
                jnp.zeros((*own_features.shape[:-1], 0), bool),
                own_features,
            )
        return obs[..., :1, None], obs[..., :1] != 0, obs[..., 1:]


@says(
    r"split_observation of 'pilot', for leading axes \(4,\), returns 2 values: must be three "
    r"arrays, \(others"
)
class SplitInTwo(Watched):
    def split_observation(self, obs):
        parts = super().split_observation(obs)
        return parts if isinstance(obs, dict) else parts[:2]


@says(
    r"split_observation of 'pilot', .* returns present as float32 .*: must be bool of shape \(4, "
    r"1\)"
)
class PresentAsNumbers(Watched):
    def split_observation(self, obs):
        others, present, own = super().split_observation(obs)
        return others, present if isinstance(obs, dict) else present.astype(jnp.float32), own


@says(
    r"split_observation of 'pilot', .* returns present as bool .*: must be bool of shape \(4, 1\)"
)
class PresentOfOwn(Watched):
    def split_observation(self, obs):
        others, present, own = super().split_observation(obs)
        return others, present if isinstance(obs, dict) else jnp.repeat(present, 2, axis=-1), own


@says(
    r"split_observation of 'pilot', for leading axes \(2, 3\), returns others of shape \(6, 1, "
    r"1\): must be \(2, 3,"
)
class SplitInRows(Watched):
    def split_observation(self, obs):
        others, present, own = super().split_observation(obs)
        return others if isinstance(obs, dict) else others.reshape(-1, 1, 1), present, own


@says(
    r"split_observation of 'worker', for leading axes \(4,\), returns own of shape \(4,\): must "
    r"be \(4, m\)"
)
class OwnWithoutAxis(Watched):
    def split_observation(self, obs):
        others, present, own = super().split_observation(obs)
        return others, present, own[..., 0] if isinstance(obs, dict) else own


@says(
    r"split_observation of 'pilot' returns own of sizes \(4,\) for leading axes \(4,\), \(2,\) "
    r"for \(2, 3\)"
)
class OwnByTheBatch(Watched):
    def split_observation(self, obs):
        others, present, own = super().split_observation(obs)
        return (
            others,
            present,
            own if isinstance(obs, dict) else jnp.repeat(own, obs.shape[0], axis=-1),
        )


@says(
    r"split_observation branches on a traced value at broken_declarations\.py:\d+\. Use "
    r"jnp\.where or lax\.cond"
)
class SplitThatBranches(Watched):
    def split_observation(self, obs):
        parts = super().split_observation(obs)
        return parts if parts[2].sum() > 0 else (*parts[:2], -parts[2])
