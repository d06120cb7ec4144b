"""Environments in other libraries' forms: wdjax's for them (`to_...`), and theirs for wdjax (`from_...`)::

    from wdjax.adapters import to_gymnasium, ...
    env, params = wdjax.make("cartpole")
    to_gymnasium(env, params)                             # a gymnasium.Env
    to_gymnasium_vector(env, 64, params)                  # a gymnasium.vector.VectorEnv
    register_gymnasium()                                  # then gymnasium.make("wdjax/cartpole"), and make_vec
    to_gymnax(env, params)                                # a gymnax Environment
    to_pettingzoo(*wdjax.make("tag_continuous"))          # a pettingzoo.ParallelEnv
    to_jaxmarl(*wdjax.make("tag_continuous"))             # a JaxMARL MultiAgentEnv
    env, params = from_gymnax(MyGymnaxEnv())              # a wdjax.Env: wdjax.make("gymnax:CartPole-v1") by name
    env, params = from_jaxmarl(MyJaxMARLEnv())            # likewise: wdjax.make("jaxmarl:MPE_simple_tag_v3")

The other libraries are optional, and imported when one of these names is first used: `pip install wdjax[adapters]`
brings gymnasium and PettingZoo; gymnax and JaxMARL are installed on their own.

`to_gymnasium` and `to_pettingzoo` play one replica and cross between host and device in every step: they are for
compatibility, not for speed. `to_gymnasium_vector` steps any number of replicas at that price, and what stays in JAX
(`to_gymnax`, `to_jaxmarl`) pays it not at all.
"""

from typing import TYPE_CHECKING, Any

from wdjax.lazy import import_when_used

if TYPE_CHECKING:
    from wdjax.adapters._from_gymnax import from_gymnax
    from wdjax.adapters._from_jaxmarl import from_jaxmarl
    from wdjax.adapters._to_gymnasium import register_gymnasium, to_gymnasium, to_gymnasium_vector
    from wdjax.adapters._to_gymnax import to_gymnax
    from wdjax.adapters._to_jaxmarl import to_jaxmarl
    from wdjax.adapters._to_pettingzoo import to_pettingzoo

# Library -> what pip installs it with.
_INSTALL = {
    "gymnasium": "wdjax[adapters]",
    "pettingzoo": "wdjax[adapters]",
    "gymnax": "gymnax",
    "jaxmarl": "jaxmarl",
}

__all__ = [
    "from_gymnax",
    "from_jaxmarl",
    "register_gymnasium",
    "to_gymnasium",
    "to_gymnasium_vector",
    "to_gymnax",
    "to_jaxmarl",
    "to_pettingzoo",
]

# A module must not have the name of its function: importing it would put it in the function's place.
_get, __dir__, _HOME = import_when_used(__name__)


def _import(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library in ("", "wdjax"):
            raise
        # what one of the libraries itself needs goes by its own name
        source = _INSTALL.get(library, library)
        raise ImportError(
            f"wdjax.adapters.{name} needs {library}: pip install '{source}'"
        ) from error


if not TYPE_CHECKING:
    __getattr__ = _import
