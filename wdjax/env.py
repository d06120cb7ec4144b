"""The contract of an environment: two pure functions, spaces, and a drawing."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from wdjax.checks import one_line, require, require_known
from wdjax.spaces import Dict, Space, agent_axes, require_structure, space_rows
from wdjax.tables import html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wdjax.drawing import Scene

SINGLE_AGENT = "agent"  # the name of the only group where an environment has no groups


@dataclasses.dataclass(frozen=True)
class Env(abc.ABC):
    """One game for one replica, as pure functions of arrays.

    A subclass is a frozen, hashable dataclass whose fields fix shapes and code paths; all other numbers live in a
    pytree `params`, which may be traced, vmapped and swept without a recompile.

    In an environment with `groups`, observation, action, reward, terminated and truncated are dicts keyed by group,
    each with a leading agent axis; one without groups takes and returns bare arrays.

    An observation (of a group) may be a dict, whose key "action_mask" is no input of networks: it says which choices of
    Discrete or MultiDiscrete are allowed, 1, and which are not, 0: [..., sum(nvec)], those of all components in a row.
    """

    can_truncate: ClassVar[bool] = True  # whether a time limit may cut an episode off
    cheap_reset: ClassVar[bool] = False
    """whether a start is a few numbers to draw, cheaper on a GPU than a branch"""
    # whether `step` is `advance` and then `observe`, and a batch may call these; of a subclass that overrides `step` or
    # `reset` it does not hold any more, unless that says it again
    observes_late: ClassVar[bool] = False
    # static fields that change what agents are shown and nothing else: who learned with other values plays on its own
    # observations in the same game
    shown_by: ClassVar[frozenset[str]] = frozenset()
    reward_threshold: ClassVar[float | None] = None
    """the mean return from which the game counts as solved"""
    frames_per_second: ClassVar[int] = 30  # of its own time, for who shows it
    trail: ClassVar[int] = 10
    """earlier states that show in a frame, unless more or fewer are asked for"""
    # statistics that are one sum of `info` over another, name -> (sum, divisor): a mean time, say
    info_ratios: ClassVar[Mapping[str, tuple[str, str]]] = {}
    # opponents by rule, name -> (group, script(env, state, params, key) of one replica -> the actions of all of that
    # group, [n_group, ...]); a single agent's group is "agent", its script returns a bare action
    scripts: ClassVar[Mapping[str, tuple[str, Callable]]] = {}

    def _repr_html_(self) -> str:
        params, fields = self.default_params, dataclasses.fields(self)
        rows = [(field.name, getattr(self, field.name), "static") for field in fields]
        rows += [(group, f"{num} agents", "group") for group, num in self.groups.items()]
        rows += [
            (f"{what} {name}".strip(), words, "space")
            for what, space in (
                ("obs", self.observation_space(params)),
                ("action", self.action_space(params)),
            )
            for name, words in space_rows(space)
        ]
        rows += [
            (field.name, getattr(params, field.name), "default param")
            for field in dataclasses.fields(params)
        ]
        return html_table(rows, caption=type(self).__name__)

    @property
    def groups(self) -> Mapping[str, int]:
        """Group name -> number of its agents, in order; empty in a single-agent environment."""
        return {}

    @property
    @abc.abstractmethod
    def default_params(self) -> Any:
        """A frozen pytree dataclass: physics, rewards and the episode length."""

    def check_params(self, params: Any) -> None:  # noqa: B027  (a hook: most games have nothing to refuse)
        """Raises ValueError, naming the field, where concrete params make no sense. `make` calls it."""

    @abc.abstractmethod
    def reset(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Returns (obs, state) of a new episode."""

    @abc.abstractmethod
    def step(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, Any, Any, Any, dict]:
        """Advances the game once; never resets.

        Returns (obs, state, reward, terminated, truncated, info): reward float32, terminated and truncated bool, per
        agent. Both stay true until the reset; `truncated` is never true for an agent that has terminated. The episode
        is over when every agent is one or the other: one that is earlier is paid 0 from then on, and its actions have
        no effect.
        `info` maps names to scalars of this step, which sum up to a statistic of the episode (tags, say).
        """

    def advance(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, Any, Any, Any, dict]:
        """`step`, but with a scene in the place of obs: where `observes_late`, obs is `observe(scene, params)`.

        A scene is a pytree like the state, and a new state is the scene of its own first obs, so that a batch can
        restart those whose episode is over and then observe all at once: for observations that are dear.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no advance: its observes_late is to stay false"
        )

    def observe(self, scene: Any, params: Any) -> Any:
        """Returns obs of a scene, where `observes_late`."""
        raise NotImplementedError(
            f"{type(self).__name__} has no observe: its observes_late is to stay false"
        )

    @abc.abstractmethod
    def observation_space(self, params: Any) -> Space:
        """The space of `obs`: a Dict of groups, each a batch of its agents, or one agent's space."""

    @abc.abstractmethod
    def action_space(self, params: Any) -> Space:
        """The space of `action`, likewise."""

    def split_observation(self, obs: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Says who is whom in an observation, for networks that see the other agents as a set.

        Args:
            obs: of one agent of any group, leaves `[..., *part of its space]` with any leading axes, without a mask.

        Returns:
            (others [..., k, features], present [..., k] bool: who of them is there, own [..., m]: all the rest).
        """
        name = type(self).__name__
        raise NotImplementedError(
            f"{name} does not say who is whom: write its method split_observation(obs)"
        )

    def scene(self, states: Any, params: Any) -> "Scene":
        """Returns how an episode is drawn, in the words of `wdjax.drawing`, from which pictures, GIFs, SVG and the
        player are made.

        Args:
            states: in order, leaves with a leading [T], arrays of NumPy; after a reset `time` starts again.
            params: their params, arrays of NumPy.
        """
        name = type(self).__name__
        raise NotImplementedError(f"{name} has no drawing: write its method scene(states, params)")

    def draw(self, axes: "Axes", state: Any, params: Any, history: Any = None) -> None:
        """Draws one state (arrays of NumPy or JAX) onto empty matplotlib axes: what `scene` shows of it, as a
        picture in pixels. To add to it, extend `scene`: what is drawn after `super().draw(axes, ...)` is placed in its
        pixels, not in units of the game.

        A game that would rather draw with matplotlib overrides this: pictures and GIFs are then made so.
        `history` holds the states before it, oldest first, leaves with a leading [H], for a drawing that shows trails.
        """
        from wdjax.drawing.raster import picture

        one = first_axis(state)

        def join(old, new) -> Any:
            return (jax.numpy if is_key(new) else np).concatenate([old, new])

        states = one if history is None else jax.tree.map(join, history, one)
        axes.imshow(picture(self.scene(states, jax.device_get(params))))
        axes.axis("off")


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf is a typed key, which NumPy does not know."""
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def first_axis(state: Any) -> Any:
    """Returns one state as an episode of it, leaves [1, ...]."""
    return jax.tree.map(lambda leaf: (leaf if is_key(leaf) else np.asarray(leaf))[None], state)


def may_observe_late(env: Env) -> bool:
    """Returns whether a batch may call `advance` and `observe` in the place of `step`: `observes_late` is said by the
    class whose `step` and `reset` are played, or by a subclass of it. What somebody has overridden is played."""
    said, *written = _depths(env, "observes_late", "step", "reset")
    return env.observes_late and said <= min(written)


def draws_by_scene(env: Env) -> bool:
    """Returns whether `scene` draws a game: a `draw` of its class, or of one between that and `scene`'s, goes first."""
    scene, draw = _depths(env, "scene", "draw")
    return scene <= draw


def _depths(env: Env, *names: str) -> list[int]:
    """Returns of each attribute how far up in the classes of an environment it is first written."""
    return [
        next(i for i, cls in enumerate(type(env).__mro__) if name in vars(cls)) for name in names
    ]


def require_batched_spaces(env: Env, params: Any) -> None:
    """Raises ValueError where a space is not, for every group, one agent's space batched by the number of its agents:
    else shapes clash somewhere later. (`check_env` looks for much more.)"""
    groups = env.groups
    for method in ("observation_space", "action_space"):
        space = getattr(env, method)(params)
        if not isinstance(space, Space):
            found = type(space).__name__
            raise ValueError(
                f"{method} returns {found}: must be a wdjax Box, Discrete, MultiDiscrete or Dict"
            )
        if groups and (not isinstance(space, Dict) or list(space.spaces) != list(groups)):
            found = (
                f"Dict of {list(space.spaces)}" if isinstance(space, Dict) else type(space).__name__
            )
            words = f"must be a Dict of the groups, in their order: {list(groups)}"
            raise ValueError(f"{method} returns a {found}: {words}")
        for group, num in groups.items():
            if agent_axes(space[group]) != {(num,)}:
                words = f"is no batch of {num} agents: return one agent's space.batch({num})"
                raise ValueError(f"{method}[{group!r}] {words}")
        if not groups and agent_axes(space) != {()}:
            words = (
                f"is a batch: {type(env).__name__} has no groups, so return the space of one agent"
            )
            raise ValueError(f"{method} {words}")


def require_action(
    env: Env, action: Any, params: Any, num_envs: int | None = None, owner: type[Env] | None = None
) -> None:
    """Raise ValueError where an action has another structure or other shapes than the action space. Computes nothing.

    Args:
        params: of one replica, arrays or their shapes.
        num_envs: None: the action of one replica; else of so many, each leaf with a leading [num_envs].
        owner: the class whose `step` asks: a subclass with a `step` of its own may hand it any action.
    """
    if owner is not None and (type(env).step, type(env).advance) != (owner.step, owner.advance):
        return

    def check(params: Any) -> None:
        require_structure(
            "action", action, env.action_space(params), () if num_envs is None else (num_envs,)
        )

    jax.eval_shape(check, params)  # a space may compute bounds from params


def layout_of(env: Env) -> Callable | None:
    """Returns the `split_observation` of an environment, or None where it has none."""
    return None if type(env).split_observation is Env.split_observation else env.split_observation


def static_names(env: Env | type[Env]) -> list[str]:
    """Returns the names of the static fields that `make` takes: all but those with metadata {"argument": False}."""
    return [
        field.name
        for field in dataclasses.fields(env)
        if field.init and field.metadata.get("argument", True)
    ]


def with_static(source: Env | type[Env], static: Mapping[str, Any]) -> Env:
    """Return an environment of a class, or like an environment, with these static fields; a list, as YAML has it,
    becomes a tuple where the field is one."""
    tuples = {name for name in static if isinstance(getattr(source, name, None), tuple)}
    static = {name: _as_tuple(value) if name in tuples else value for name, value in static.items()}
    return source(**static) if isinstance(source, type) else dataclasses.replace(source, **static)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, (tuple, list)) else value


def split_arguments(
    source: Env | type[Env], arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sorts arguments of `make` into static fields of a class, or of an environment, and names of params.

    Raises ValueError, with the nearest right name, for a name that is neither.
    """
    names = static_names(source)
    static = {name: value for name, value in arguments.items() if name in names}
    env = with_static(source, static)
    param_names = [field.name for field in dataclasses.fields(env.default_params)]
    for name in arguments:
        require_known(f"parameter of {type(env).__name__}", name, names + param_names)
    return static, {name: value for name, value in arguments.items() if name not in static}


def cast_params(params: Any, defaults: Any) -> Any:
    """Returns params with every number as a NumPy scalar or array of 32 bits, checked for its kind.

    A number whose default is a np.float64 keeps 64 bits: of a game that computes in them where `jax_enable_x64` is on.
    A field whose default is None may be None or an array of numbers; one whose default is a tuple of n numbers becomes
    an array [..., n] float32; one whose default is an array of 32 bits takes arrays and lists of numbers, a list in its
    shape (in any where it is empty); one whose default is none of these (a pytree) stays what it is. Raises TypeError
    or ValueError, naming the field.
    """
    names = [field.name for field in dataclasses.fields(params)]
    changes = {name: _cast(name, getattr(params, name), getattr(defaults, name)) for name in names}
    return params.replace(**changes)


def is_number_tuple(default: Any) -> bool:
    """Returns whether the default of a field of params stands for an array of as many numbers."""
    return isinstance(default, tuple) and all(
        isinstance(number, (int, float)) for number in default
    )


def _cast(name: str, value: Any, default: Any) -> Any:
    is_table = isinstance(default, np.ndarray) and default.dtype in (np.int32, np.float32)
    if is_table and value is default:  # the environment's own, for its check_params to judge
        return value
    # of YAML
    if (
        isinstance(default, (np.ndarray, jax.Array))
        and isinstance(value, (list, tuple))
        and default.size
    ):
        require(
            np.shape(value) == default.shape, name, value, f"numbers in the shape {default.shape}"
        )
        value = np.asarray(value, None if is_table else default.dtype)
    default = default.dtype.type(0).item() if is_table else default
    several = is_number_tuple(default)
    if not (several or isinstance(default, (bool, int, float, type(None)))) or (
        value is None and default is None
    ):
        return value
    one = not is_table and default is not None
    words = f"{len(default)} numbers" if several else "a number" if one else "numbers"
    whole = "a whole number" if one else "whole numbers"
    kinds = {
        bool: ("b", np.bool_, "true or false"),
        int: ("iu", np.int32, whole),
        np.float64: ("iuf", np.float64, words),
    }
    allowed, dtype, words = kinds.get(type(default), ("iuf", np.float32, words))
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except ValueError:  # rows of unequal lengths
        array = np.array(None)
    if getattr(array.dtype, "kind", "O") not in allowed:  # a key of jax has none
        raise TypeError(f"{name} = {one_line(repr(value))}: must be {words}")
    if several:
        require(array.shape[-1:] == (len(default),), name, value, words)
    if dtype is not np.bool_:
        limits = np.iinfo(dtype) if dtype is np.int32 else np.finfo(dtype)
        fits = ((array >= limits.min) & (array <= limits.max)) | np.isinf(array)
        require(np.all(fits), name, value, f"{words} within the range of {dtype.__name__}, not NaN")
    array = array.astype(dtype)
    return array if isinstance(array, jax.Array) or array.ndim else dtype(array)
