"""Players in evaluations (policies, networks, scripts, random play) and the roles that they fill.

A role is a set of agents of one group: the agents of a policy. A policy with agents of several
groups has one role per group.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.arguments import static_names
from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.train.evaluation.trained import TrainedPolicy, learned_part, require_single
from wdjax.train.learner.learner import Learner
from wdjax.train.state.actors import Actor, Network, Script
from wdjax.train.state.agents import (
    Assignment,
    first_active,
    from_groups,
    gather,
    gather_observation,
    group_sizes,
    next_active,
    present_agents,
    scatter,
    to_groups,
)
from wdjax.train.state.aliases import Carry, EnvParams, Observation
from wdjax.train.state.policy import Policy, Setup
from wdjax.train.state.sharding import one_copy
from wdjax.train.state.state import PolicyState, TrainState
from wdjax.vector import VectorState, begin_episodes, select, step_replicas


@dataclasses.dataclass(frozen=True, eq=False)
class Player:
    """A player for a role in `evaluate` and `cross_play`: a trained policy, a network or a script.

    Without any of these it acts uniformly at random. Examples::

        Player("yesterday", *load_run("runs/yesterday"))
        Player("ambush", script=ambush, group="tagger")
        Player("theirs", network=theirs, group="tagger")
        Player("last year's", network=load_policy("runs/last_year", "tagger"))

    Trained policies and networks act on observations, scripts on the environment state.
    """

    name: str
    """name in tables"""
    learner: Learner | None = None
    """learner of a trained run, whose environment differs at most in observations (`shown_by`)"""
    state: TrainState | None = None
    """state of the run that was trained"""
    script: Script | None = None
    """function (env, state, params, key) -> actions of a group [n_group, ...], for one replica"""
    group: str | None = None
    """group of the script or network; None: the only group, or the groups it was trained for"""
    network: Network | TrainedPolicy | None = None
    """custom function (obs, memory, key) -> (actions, memory), or a policy from `load_policy`"""
    memory: Carry = None
    """initial memory of a custom network for one agent, arrays of any shape; None without memory"""

    def __post_init__(self):
        player, network = f"player {self.name!r}", self.network
        if not (network is None or isinstance(network, TrainedPolicy) or callable(network)):
            raise TypeError(
                f"{player}: network of type {type(network).__name__}: "
                "must be a function of (obs, memory, key) or a policy from load_policy"
            )
        if self.learner is None and self.state is None:
            one = self.script is None or network is None
            require(one, f"{player}: network", network, "None for a player with a script")
            return
        if not (isinstance(self.learner, Learner) and isinstance(self.state, TrainState)):
            raise TypeError(
                f"{player}: learner, state = "
                f"{type(self.learner).__name__}, {type(self.state).__name__}: "
                "must be a Learner and its TrainState"
            )
        for name in ("script", "network"):
            value, allowed = getattr(self, name), "None for a player with a learner"
            require(value is None, f"{player}: {name}", value, allowed)

    def __repr__(self) -> str:
        what = self.learner or self.network or self.script
        kind = getattr(what, "__name__", type(what).__name__) if what is not None else "random play"
        return f"Player({self.name!r}, {kind}" + (f", group={self.group!r})" if self.group else ")")


@dataclasses.dataclass(frozen=True)
class Role:
    """Agents of one group that one player controls."""

    name: str
    policy: str  # policy of these agents in the run that defines the game
    assignment: Assignment

    @property
    def group(self) -> str:
        return self.assignment.segments[0].group


def roles_of(setup: Setup) -> list[Role]:
    """Return a role for each policy, or for each of its groups if it has several ("all/tagger")."""
    roles = []
    for name, policy in setup.policies.items():
        segments = policy.assignment.segments
        groups = list(dict.fromkeys(segment.group for segment in segments))
        for group in groups:
            own = tuple(segment for segment in segments if segment.group == group)
            title = name if len(groups) == 1 else f"{name}/{group}"
            roles.append(Role(title, name, dataclasses.replace(policy.assignment, segments=own)))
    return roles


@struct.dataclass
class Game:
    """An environment and the actors of each role.

    Games that differ only in arrays share a compiled program.
    """

    env: Env = struct.field(pytree_node=False)
    # by role: its possible actors
    casts: tuple[tuple[Actor, ...], ...] = struct.field(pytree_node=False)
    which: list[int]  # by role: index of the actor in the cast; the others cost nothing
    learned: list[tuple]  # by role: learned state of each actor in the cast
    env_params: EnvParams

    @property
    def views(self) -> tuple[Env, ...]:
        """The environment, and its variants with the observations that actors were trained on."""
        variants = [actor.env for cast in self.casts for actor in cast if actor.env is not None]
        return tuple(dict.fromkeys([self.env, *variants]))

    def reset(
        self, keys: jax.Array
    ) -> tuple[tuple, VectorState, list[tuple], Mapping[str, jax.Array]]:
        """Start N episodes, keys [N]; return the first carry of `play_step`."""
        starts = [jax.vmap(view.reset, (0, None))(keys, self.env_params) for view in self.views]
        replicas = begin_episodes(self.env, keys, starts[0][1], self.env_params)
        live = first_active(self.env, replicas, self.env_params)
        return tuple(obs for obs, _ in starts), replicas, self.init_carries(len(keys)), live

    def shown_to(self, actor: Actor, obs: tuple[Observation, ...]) -> Observation:
        """Return the observations of an actor, [N, n, ...], from the observations of each view."""
        view = actor.env or self.env
        groups = to_groups(view, obs[self.views.index(view)])
        return gather_observation(actor.policy.assignment, groups)

    def init_carries(self, num_envs: int) -> list[tuple]:
        """Return the initial carries of the actors of each role; None without memory."""

        def init(actor: Actor, learned: PolicyState | Carry) -> Carry:
            if actor.kind == "learned":
                return actor.policy.algorithm.init_carry(actor.policy, num_envs)
            rows = num_envs, actor.policy.assignment.num_agents
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*rows, *leaf.shape)), learned)

        pairs = zip(self.casts, self.learned, strict=True)
        return [tuple(map(init, actors, states)) for actors, states in pairs]


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A player with the actor and the learned state that it uses in a role."""

    player: Player
    actor: Actor
    # PolicyState; for a custom network the initial memory of one agent; otherwise None
    learned: PolicyState | Carry


def as_player(setup: Setup, player: Player | Script | str) -> Player:
    """Return a name ("random" or a script), a function or a trained policy as a Player."""
    if isinstance(player, Player):
        return player
    if isinstance(player, TrainedPolicy):
        return Player(player.actor.policy.name, network=player)
    if callable(player):
        return Player(getattr(player, "__name__", "script"), script=player)
    if not isinstance(player, str):
        raise TypeError(
            f"player of type {type(player).__name__}: must be a Player, a name or a function. "
            "For a run use Player(name, *load_run(folder))."
        )
    require_known("player", player, ["random", *setup.env.scripts])
    if player == "random":
        return Player("random")
    group, script = setup.env.scripts[player]
    return Player(player, script=script, group=group)


def plays(setup: Setup, player: Player, role: Role) -> bool:
    """Return whether a player can fill a role.

    Raises:
        ValueError: if its group is unknown, or missing with several groups.
    """
    if player.script is None and player.network is None:
        return True
    if isinstance(player.network, TrainedPolicy) and player.group is None:
        segments = player.network.actor.policy.assignment.segments
        return role.group in [part.group for part in segments]
    groups = group_sizes(setup.env)
    if player.group is None and len(groups) > 1:
        raise ValueError(
            f"player {player.name!r}: group must name the group it acts for ({', '.join(groups)})"
        )
    if player.group is not None:
        require_known(f"group of player {player.name!r}", player.group, groups)
    return player.group in (None, role.group)


def seat(setup: Setup, player: Player, role: Role) -> Candidate:
    """Return a player as a candidate for a role.

    Raises:
        ValueError: if its run has another environment or is a population.
    """
    own = dataclasses.replace(setup.policies[role.policy], assignment=role.assignment)
    if player.script is not None:
        return Candidate(player, Actor(own, "script", player.script), None)
    if isinstance(player.network, TrainedPolicy):
        return seat_policy(player, player.network.actor.policy, player.network.learned, role)
    if player.network is not None:
        memory = jax.tree.map(jnp.asarray, player.memory)
        return Candidate(player, Actor(own, "network", player.network), memory)
    if player.learner is None or player.state is None:
        return Candidate(player, Actor(own, "random"), None)
    theirs = player.learner.setup
    require_same_game(setup, theirs, player.name)
    require_single(player.state, f"player {player.name!r}: state shape")
    wanted, policies = set(role.assignment.agents), theirs.assignments.items()
    names = [name for name, assignment in policies if wanted.issubset(assignment.agents)]
    if not names:
        parts = role.assignment.segments
        agents = ", ".join(f"{part.group}[{part.start}:{part.stop}]" for part in parts)
        raise ValueError(
            f"player {player.name!r}: "
            f"none of its policies ({', '.join(theirs.policies)}) controls all agents of the role "
            f"({agents})"
        )
    view = None if theirs.env == setup.env else theirs.env
    learned = learned_part(player.state.policies[names[0]])
    return seat_policy(player, theirs.policies[names[0]], learned, role, view)


def seat_policy(
    player: Player, policy: Policy, learned: PolicyState, role: Role, view: Env | None = None
) -> Candidate:
    """Return a player with a trained policy as a candidate for a role.

    Args:
        player: the player.
        policy: the policy.
        learned: its learned state.
        role: the role.
        view: environment with the observations that the policy was trained on; None: the game's.

    Raises:
        ValueError: if the spaces or the agent types differ.
    """
    own, wanted = (
        (assignment.bare_space, assignment.action_space)[view is not None :]
        for assignment in (policy.assignment, role.assignment)
    )
    require(own == wanted, f"player {player.name!r}: spaces of {policy.name}", own, f"{wanted}")
    known = {agent for part in policy.assignment.types for agent in part.agents}
    for group, number in role.assignment.agents:
        if known and (group, number) not in known:
            raise ValueError(
                f"player {player.name!r}: "
                f"{policy.name} uses agent_type_feature and has no type for {group}[{number}]"
            )
    assignment = dataclasses.replace(policy.assignment, segments=role.assignment.segments)
    seated = dataclasses.replace(policy, assignment=assignment)
    return Candidate(player, Actor(seated, "learned", env=view), learned)


def require_same_game(setup: Setup, other: Setup, name: str) -> None:
    """Raise ValueError if a run has another environment, except for fields in `Env.shown_by`."""
    expected, found = setup.config.env, other.config.env
    require(
        found == expected,
        f"player {name!r}: env",
        found,
        f"{expected!r}, the environment of the other run",
    )
    for field in static_names(setup.env):
        if field in setup.env.shown_by:
            continue
        expected, found = getattr(setup.env, field), getattr(other.env, field)
        require(
            found == expected,
            f"player {name!r}: {field}",
            found,
            f"{expected!r}, the value in the other run",
        )


def make_game(
    setup: Setup,
    state: TrainState,
    candidates: Sequence[Sequence[Candidate]],
    chosen: Sequence[Candidate],
) -> Game:
    """Return the game of a run in which the chosen candidate of each role acts.

    An actor that does not act has the learned state of any of its candidates, so that all games of
    these candidates have the same shapes and share one compiled program.

    Raises:
        TypeError: for a traced state. Results of an evaluation are NumPy arrays.
    """
    allowed = (
        "a state outside of jax.jit and jax.vmap. Evaluate the members of a population one by one, "
        "with wdjax.train.Population.evaluate or jax.tree.map(lambda leaf: leaf[i], states)"
    )
    kind = type(state.num_updates)
    require(not issubclass(kind, jax.core.Tracer), "state", kind.__name__, allowed, TypeError)
    casts = tuple(tuple(dict.fromkeys(seat.actor for seat in seats)) for seats in candidates)
    which, learned = [], []
    for actors, seats, choice in zip(casts, candidates, chosen, strict=True):
        which.append(actors.index(choice.actor))
        states = {seat.actor: seat.learned for seat in (*reversed(seats), choice)}
        learned.append(tuple(states[actor] for actor in actors))
    return Game(setup.env, casts, which, learned, one_copy(state.env_params))


def play_step(
    game: Game,
    carry: tuple,
    action_key: jax.Array,
    env_keys: jax.Array,
    greedy: bool,
    replace: Callable[[dict[str, jax.Array]], dict[str, jax.Array]] = lambda actions: actions,
) -> tuple:
    """Let every role act and step all replicas, without resets.

    Args:
        game: environment and actors.
        carry: (observations of each view [N, ...], VectorState, actor carries of each role, active
            agents by group [N, n_group]).
        action_key: key of all actions.
        env_keys: [N].
        greedy: whether to take the most likely actions.
        replace: function of the actions by group, [N, n_group, ...], that returns the actions to
            take, for example with the action of a person.

    Returns:
        (carry, action, reward, terminated, truncated, info), as `step_replicas` returns them.
    """
    obs, replicas, carries, live = carry
    keys = jax.random.split(action_key, (len(game.casts), 2))
    situation = replicas.env_state, game.env_params
    actions, carries_after = {}, []
    for i, cast in enumerate(game.casts):
        shared = (game.learned[i], obs, keys[i], situation)
        branches = [functools.partial(_act, game, cast, k, greedy) for k in range(len(cast))]
        actions[str(i)], carry = jax.lax.switch(game.which[i], branches, carries[i], shared)
        carries_after.append(carry)
    assignments = {str(i): cast[0].policy.assignment for i, cast in enumerate(game.casts)}
    action, params = from_groups(game.env, replace(scatter(assignments, actions))), game.env_params
    steps = [step_replicas(view, env_keys, replicas, action, params) for view in game.views]
    _, replicas, *outcome = steps[0]  # views differ in obs only; XLA computes the rest once
    _, *flags, _ = outcome
    ended = to_groups(game.env, jax.tree.map(jnp.logical_or, *flags))
    present = present_agents(game.env, replicas.env_state, params)
    if present is None:
        live = jax.tree.map(lambda live, ended: live & ~ended, live, ended)
    else:
        live, joined = next_active(present, live, jax.tree.map(jnp.logical_not, ended))
        starts = zip(assignments.values(), game.init_carries(len(env_keys)), strict=True)
        carries_after = [
            select(gather(assignment, joined), start, carry)
            for (assignment, start), carry in zip(starts, carries_after, strict=True)
        ]
    return (tuple(obs for obs, *_ in steps), replicas, carries_after, live), action, *outcome


def _act(
    game: Game, cast: tuple[Actor, ...], k: int, greedy: bool, carry: tuple, shared: tuple
) -> tuple[jax.Array, tuple]:
    """Let actor k of a cast act. The carries of the others do not change."""
    learned, obs, keys, situation = shared
    seen = game.shown_to(cast[k], obs)
    action, after = cast[k].choose(game.env, learned[k], carry[k], seen, keys, situation, greedy)
    return action, (*carry[:k], after, *carry[k + 1 :])
