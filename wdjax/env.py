"""Environment base class: pure reset and step functions, spaces, and rendering hooks."""

import abc
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax
import numpy as np

from wdjax.controls import Controls, default_controls
from wdjax.spaces import Dict, Space, agent_axes, require_structure, space_rows
from wdjax.tables import html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from wdjax.drawing import Scene

SINGLE_AGENT = "agent"  # name of the only group of an environment without `groups`


@dataclasses.dataclass(frozen=True)
class Env(abc.ABC):
    """One replica of an environment, as pure functions of arrays.

    A subclass is a frozen, hashable dataclass. Its fields are static: they determine shapes and
    code paths. All other numbers belong to the pytree `params`, which can be traced, vmapped and
    swept without recompiling.

    With `groups`, the observation, action, reward, terminated and truncated are dicts keyed by
    group, and each entry has a leading agent axis. Without groups, they are bare arrays.

    An observation (of a group) may be a dict. Its key "action_mask" is not fed to networks: it
    marks the allowed choices of a Discrete or MultiDiscrete action with 1 and the others with 0.
    Its shape is [..., sum(nvec)], the masks of all components concatenated.
    """

    can_truncate: ClassVar[bool] = True
    """Whether episodes can be truncated by a time limit."""
    cheap_reset: ClassVar[bool] = False
    """Whether a reset only draws a few numbers, which is cheaper on a GPU than a branch."""
    # Whether `step` equals `advance` followed by `observe`, so that a batch may call these two.
    # A subclass that overrides `step` or `reset` must set it again; see `may_observe_late`.
    observes_late: ClassVar[bool] = False
    # Static fields that change the observations only. Policies trained with different values of
    # these fields can play one episode together, each with its own observations.
    shown_by: ClassVar[frozenset[str]] = frozenset()
    reward_threshold: ClassVar[float | None] = None
    """Mean return at which the environment counts as solved."""
    frames_per_second: ClassVar[int] = 30
    """Playback speed of videos, in env steps per second."""
    trail: ClassVar[int] = 10
    """Default number of earlier states shown in a frame."""
    # Statistics computed as the ratio of two sums of `info`: name -> (sum, divisor). Example: a
    # mean time per event.
    info_ratios: ClassVar[Mapping[str, tuple[str, str]]] = {}
    # Scripted opponents: name -> (group, script). `script(env, state, params, key)` acts in one
    # replica and returns the actions of the whole group, [n_group, ...]. In a single-agent
    # environment the group is "agent" and the script returns a bare action.
    scripts: ClassVar[Mapping[str, tuple[str, Callable]]] = {}

    def _repr_html_(self) -> str:
        params, fields = self.default_params, dataclasses.fields(self)
        rows = [(field.name, getattr(self, field.name), "static") for field in fields]
        rows += [(group, f"{num} agents", "group") for group, num in self.groups.items()]
        rows += [
            (f"{label} {name}".strip(), description, "space")
            for label, space in (
                ("obs", self.observation_space(params)),
                ("action", self.action_space(params)),
            )
            for name, description in space_rows(space)
        ]
        rows += [
            (field.name, getattr(params, field.name), "default param")
            for field in dataclasses.fields(params)
        ]
        return html_table(rows, caption=type(self).__name__)

    @property
    def groups(self) -> Mapping[str, int]:
        """Ordered mapping from group name to agent count; empty for a single-agent environment."""
        return {}

    @property
    @abc.abstractmethod
    def default_params(self) -> Any:
        """Frozen pytree dataclass of physical constants, rewards and the episode length."""

    def check_params(self, params: Any) -> None:  # noqa: B027  (optional hook)
        """Raise ValueError with the name of the field if params are invalid. Called by `make`.

        The params are concrete, not traced.
        """

    @abc.abstractmethod
    def reset(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Start a new episode.

        Args:
            key: a typed key.
            params: environment params of one replica.

        Returns:
            (obs, state).
        """

    @abc.abstractmethod
    def step(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, Any, Any, Any, dict]:
        """Advance the environment by one step, without resetting it.

        The episode is over once every agent is terminated or truncated. An agent that finishes
        earlier receives reward 0 from then on, and its actions have no effect. The same holds for
        an agent that has not joined yet (see `present`). Its flags are false, so the episode waits
        for it: set all flags at the time limit.

        Args:
            key: a typed key.
            state: from `reset` or the previous `step`.
            action: an element of the action space.
            params: environment params of one replica.

        Returns:
            (obs, state, reward, terminated, truncated, info). Per agent, `reward` is float32 and
            `terminated` and `truncated` are bool. Both flags stay true until the reset, or until
            another agent joins in the same slot (see `present`). `truncated` is never true for a
            terminated agent. `info` maps names to scalars of this step; their sums over an episode
            are statistics, for example the number of tags.
        """

    def present(self, state: Any, params: Any) -> Any:
        """Return which agents have joined the episode, if agents join during an episode.

        A group of n agents then has n slots. While a slot is empty, its reward is 0 and its action
        has no effect. Its observation is not used, but must be in its space. An agent that is
        present after a step acts from the next step on. It leaves in the step that terminates or
        truncates it, after which its flag here is ignored. Another agent can join in its slot one
        step later at the earliest: `terminated` and `truncated` of the slot are then false again.

        Args:
            state: state of one replica, from `reset` or `step`.
            params: environment params of one replica.

        Returns:
            bool flags by group, [n] each; () without groups. None: agents only leave.
        """
        return None

    def advance(
        self, key: jax.Array, state: Any, action: Any, params: Any
    ) -> tuple[Any, Any, Any, Any, Any, dict]:
        """Advance like `step`, but return a scene instead of the observation.

        Used if `observes_late` is true. The observation is then `observe(scene, params)`. A scene
        is a pytree with the same structure as the state, and not the drawing that the method
        `scene` returns. For the state of `reset`, `observe(state, params)` is the first
        observation. Batches can therefore reset the replicas that are done and then observe all
        replicas together, which saves time if observations are expensive.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no advance. Implement it, or leave observes_late False."
        )

    def observe(self, scene: Any, params: Any) -> Any:
        """Return the observation of a scene from `advance`; used if `observes_late` is true."""
        raise NotImplementedError(
            f"{type(self).__name__} has no observe. Implement it, or leave observes_late False."
        )

    @abc.abstractmethod
    def observation_space(self, params: Any) -> Space:
        """Return the space of `obs`.

        With groups, it is a Dict with one batched space per group. Without groups, it is the space
        of the agent.
        """

    @abc.abstractmethod
    def action_space(self, params: Any) -> Space:
        """Return the space of `action`.

        With groups, it is a Dict with one batched space per group. Without groups, it is the space
        of the agent.
        """

    def global_state_space(self, params: Any) -> Space | None:
        """Return the space of `global_state`, a Box with one axis; None if there is none.

        Learners then use the observations of all agents instead.
        """
        return None

    def global_state(self, state: Any, params: Any) -> Any:
        """Return the state of one replica as an input of central critics and mixers, [S] float32.

        Policies never receive it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no global_state")

    def split_observation(self, obs: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Split an observation into the other agents and the rest, for set encoders.

        Args:
            obs: observation of one agent of any group, without the action mask. Leaves have any
                number of leading axes, followed by the shape of their space.

        Returns:
            (others, present, own): the features of k other agents [..., k, features], whether each
            of them is present [..., k] bool (false for agents that left and for padding), and the
            remaining features [..., m].
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no split_observation. "
            "Implement the method split_observation(obs)."
        )

    def scene(self, states: Any, params: Any) -> "Scene":
        """Return the drawing of an episode, used for pictures, GIFs, SVG and the player.

        Args:
            states: consecutive states, NumPy arrays with a leading [T]; `time` restarts at a reset.
            params: the params of these states, NumPy arrays.

        Returns:
            A `wdjax.drawing.Scene`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no drawing. Implement the method scene(states, params)."
        )

    def controls(self, group: str, params: Any) -> Controls:
        """Return the keys that control an agent of a group in `wdjax play`; params are concrete.

        The default fits any space: see `wdjax.controls.default_controls`.
        """
        space: Any = self.action_space(params)
        return default_controls(space[group].single if self.groups else space)

    def steer(self, state: Any, group: str, agent: Any, point: Any, params: Any) -> Any:
        """Return the action of one agent towards a point of the picture, for `wdjax play`.

        Args:
            state: of one replica.
            group: group of the agent; "agent" without groups.
            agent: index in the group, () int32.
            point: (x, y) of the held pointer in units of `Scene.extent`, [2] float32.
            params: of one replica.
        """
        raise NotImplementedError(f"{type(self).__name__} has no steer")

    def draw(self, axes: "Axes", state: Any, params: Any, history: Any = None) -> None:
        """Draw one state onto empty matplotlib axes.

        The default shows `scene` as an image, so axes coordinates are pixels. To add elements in
        environment units, extend `scene`. An environment that prefers matplotlib overrides this
        method; its pictures and GIFs then use it.

        Args:
            axes: empty matplotlib axes.
            state: of one replica, NumPy or JAX arrays.
            params: of this replica.
            history: earlier states, oldest first, leaves with a leading [H], for trails.
        """
        from wdjax.drawing.raster import picture

        states = first_axis(state)
        if history is not None:
            states = jax.tree.map(
                lambda *parts: (jax.numpy if is_key(parts[-1]) else np).concatenate(parts),
                history,
                states,
            )
        axes.imshow(picture(self.scene(states, jax.device_get(params))))
        axes.axis("off")


def drawn_by(path: str) -> Callable:
    """Return a method `scene` that calls "package.module:name", a function of the same arguments.

    The module is imported on first use.
    """
    module, _, name = path.partition(":")

    def scene(self: Env, states: Any, params: Any) -> "Scene":
        return getattr(importlib.import_module(module), name)(self, states, params)

    return scene


def is_key(leaf: Any) -> bool:
    """Return whether a leaf is an array of typed keys, which NumPy cannot represent."""
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def first_axis(state: Any) -> Any:
    """Return one state as an episode of length 1, leaves [1, ...]."""
    return jax.tree.map(lambda leaf: (leaf if is_key(leaf) else np.asarray(leaf))[None], state)


def may_observe_late(env: Env) -> bool:
    """Return whether a batch may call `advance` and `observe` instead of `step`.

    This is the case if `observes_late` is true and no subclass of the class that sets it overrides
    `step` or `reset`. Otherwise the overridden methods must be called.
    """
    flag_depth, *method_depths = _depths(env, "observes_late", "step", "reset")
    return env.observes_late and flag_depth <= min(method_depths)


def draws_by_scene(env: Env) -> bool:
    """Return whether pictures use `scene`.

    Otherwise they use `draw`, because a subclass of the class that defines `scene` overrides it.
    """
    scene_depth, draw_depth = _depths(env, "scene", "draw")
    return scene_depth <= draw_depth


def _depths(env: Env, *names: str) -> list[int]:
    """Return, for each attribute, the position in the MRO of the class that defines it."""
    return [
        next(i for i, cls in enumerate(type(env).__mro__) if name in vars(cls)) for name in names
    ]


def require_params(env: Env, params: Any) -> None:
    """Raise TypeError unless params have the type of the environment's."""
    name, kind = type(env).__name__, type(env.default_params)
    allowed = f"a {kind.__qualname__} of {name}. Pass the params from wdjax.make."
    if not isinstance(params, kind):
        raise TypeError(f"params = {params!r}: must be {allowed}")


def require_batched_spaces(env: Env, params: Any) -> None:
    """Raise ValueError unless each group's space is one agent's space batched by its agent count.

    Without this check, a shape mismatch would be reported later. `check_env` checks far more.
    """
    groups = env.groups
    for method in ("observation_space", "action_space"):
        space = getattr(env, method)(params)
        if not isinstance(space, Space):
            raise ValueError(
                f"{method} returns {type(space).__name__}: "
                "must be a wdjax Box, Discrete, MultiDiscrete or Dict"
            )
        if groups and (not isinstance(space, Dict) or list(space.spaces) != list(groups)):
            returned = (
                f"Dict of {list(space.spaces)}" if isinstance(space, Dict) else type(space).__name__
            )
            raise ValueError(
                f"{method} returns a {returned}: "
                f"must be a Dict of the groups, in their order: {list(groups)}"
            )
        for group, num in groups.items():
            if agent_axes(cast(Dict, space)[group]) != {(num,)}:
                raise ValueError(
                    f"{method}[{group!r}] is not a batch of {num} agents. "
                    f"Return one agent's space.batch({num})."
                )
        if not groups and agent_axes(space) != {()}:
            raise ValueError(
                f"{method} is a batch, but {type(env).__name__} has no groups. "
                "Return the space of one agent."
            )


def require_action(
    env: Env, action: Any, params: Any, num_envs: int | None = None, owner: type[Env] | None = None
) -> None:
    """Raise ValueError if the structure or a shape of an action does not match the action space.

    Only shapes are evaluated.

    Args:
        env: the environment that receives the action.
        action: the action to check.
        params: environment params of one replica, arrays or their shapes.
        num_envs: number of replicas, if each leaf has a leading [num_envs]; None for one replica.
        owner: class whose `step` calls this. The check is skipped if a subclass overrides `step` or
            `advance`, because it may pass any action on.
    """
    if owner is not None and (type(env).step, type(env).advance) != (owner.step, owner.advance):
        return

    def check(params: Any) -> None:
        require_structure(
            "action", action, env.action_space(params), () if num_envs is None else (num_envs,)
        )

    jax.eval_shape(check, params)  # the space may compute its bounds from params


def layout_of(env: Env) -> Callable | None:
    """Return the method `split_observation` of an environment, or None if it has none."""
    return None if type(env).split_observation is Env.split_observation else env.split_observation
