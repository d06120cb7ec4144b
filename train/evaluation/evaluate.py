"""Evaluation of policies over whole episodes, also against opponents, and cross-play matrices.

    learner, state = load_run("runs/mine")
    episodes = evaluate(learner, state, jax.random.key(0), num_episodes=1_000)
    episodes.episode_return["runner"].mean()  # NumPy arrays with one value per episode
    statistics(episodes, learner.env.info_ratios)["runner return"]  # mean, error, quantiles
    evaluate(learner, state, jax.random.key(0), players={"tagger": "chase_nearest"})
    old = Player("old", *load_run("runs/old"))
    cells = cross_play(learner, state, jax.random.key(0), opponents=["random", old])
    cells["trained", "old"].episode_return["runner"].mean()  # taggers of this run, runners of old

To evaluate a population member, select its state with `jax.tree.map(lambda leaf: leaf[i], states)`.
All members share one compiled program.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.checks import require, require_integer, require_key, require_known
from wdjax.env import Env
from wdjax.spaces import with_axes
from wdjax.train.evaluation.episodes import Episodes, evaluation_metrics
from wdjax.train.evaluation.players import (
    Candidate,
    Game,
    Player,
    Role,
    as_player,
    make_game,
    play_step,
    plays,
    roles_of,
    seat,
)
from wdjax.train.learner.init import abstract_state
from wdjax.train.learner.learner import Learner
from wdjax.train.state.actors import Script
from wdjax.train.state.agents import Assignment, gather, group_sizes, to_groups
from wdjax.train.state.policy import Setup
from wdjax.train.state.state import TrainState
from wdjax.vector import select

MOST_EPISODES = 10_000_000  # at once: with many more, XLA ends the process without an error
MAX_STEPS = 20_000  # default maximum length of an episode
PlayedEpisodes = tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array], jax.Array]
"""results of `play_episodes`"""
Opponents = Sequence[Player | Script | str] | Mapping[str, Sequence[Player | Script | str]]


class UnfinishedEpisodeError(ValueError):
    """An episode did not end within the maximum number of steps."""


def evaluate(
    learner: Learner,
    state: TrainState,
    key: jax.Array,
    num_episodes: int = 256,
    greedy: bool = False,
    random: Sequence[str] = (),
    max_steps: int = MAX_STEPS,
    players: Mapping[str, Player | Script | str] | None = None,
    batch: int | None = None,
) -> Episodes:
    """Evaluate policies over `num_episodes` whole episodes, in parallel in one program.

    Normalizers keep their statistics from training. Recurrent policies start each episode with an
    empty state.

    Args:
        learner: learner of the run.
        state: trained state; its replicas are not changed.
        key: random key for initial states and actions.
        num_episodes: number of episodes, each in its own replica from a fresh reset.
        greedy: take the most likely actions; False: sample them as in training. DDPG always acts
            without noise.
        random: policies that are replaced by uniformly random actions.
        max_steps: maximum length of an episode.
        players: policy or role -> replacement: a Player, "random", a script or the name of a
            script. A policy with agents of several groups has a role "POLICY/GROUP" for each.
        batch: maximum number of replicas at once, to limit memory; None: all episodes at once.

    Returns:
        Episodes, by policy.

    Raises:
        ValueError: if a policy in `random` or `players` is unknown, the state is a population, or
            an episode is longer than `max_steps`.
    """
    game = make_game(learner.setup, state, *choose_players(learner, state, random, players))
    return play_in_turns(
        game, learner.setup.assignments, key, num_episodes, greedy, max_steps, batch
    )


def lower_evaluation(
    learner: Learner, like: TrainState, num_episodes: int, greedy: bool
) -> jax.stages.Lowered:
    """Trace the program of `evaluate` for the policies of a run, from the shapes of a state.

    It can be compiled in the background and passed to `begin_evaluation`.
    """
    like = with_axes(like)
    game = make_game(learner.setup, like, *choose_players(learner, like))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return play_episodes.lower(game, key, num_episodes, greedy, MAX_STEPS)


def begin_evaluation(
    learner: Learner, state: TrainState, key: jax.Array, program: jax.stages.Compiled
) -> PlayedEpisodes:
    """Begin `evaluate` of the policies of a run, with a program from `lower_evaluation`.

    Returns:
        Arrays that may not be computed yet, for `end_evaluation`.
    """
    return program(make_game(learner.setup, state, *choose_players(learner, state)), key)


def end_evaluation(learner: Learner, played: PlayedEpisodes) -> Episodes:
    """Wait for the results of `begin_evaluation`. Raise UnfinishedEpisodeError as `evaluate`."""
    return episodes_of(learner.env, learner.setup.assignments, *counted(played, MAX_STEPS))


def choose_players(
    learner: Learner,
    state: TrainState,
    random: Sequence[str] = (),
    players: Mapping[str, Player | Script | str] | None = None,
) -> tuple[list[list[Candidate]], list[Candidate]]:
    """Return (candidates of each role, chosen candidate of each role).

    The trained policy and random play are always candidates, so that all choices between them share
    one program.
    """
    allowed = "a list of policy or role names"
    require(not isinstance(random, str), "random", random, allowed, TypeError)
    if not isinstance(players, Mapping | None):
        raise TypeError(
            "players: must be a mapping from policy or role names to players, not a "
            f"{type(players).__name__}"
        )
    setup, roles = learner.setup, roles_of(learner.setup)
    replaced = {**(players or {}), **dict.fromkeys(random, "random")}
    for name in replaced:
        require_known("policy", name, [*setup.policies, *(role.name for role in roles)])
    trained, candidates, chosen = Player("trained", learner, state), [], []
    for role in roles:
        usual = [seat(setup, player, role) for player in (trained, Player("random"))]
        player = replaced.get(role.name, replaced.get(role.policy, trained))
        player = as_player(setup, player)
        if not plays(setup, player, role):
            raise ValueError(
                f"player {player.name!r} (group {player.group}): "
                f"must act for group {role.group}, of role {role.name}"
            )
        chosen.append(seat(setup, player, role))
        candidates.append([*usual, chosen[-1]])
    return candidates, chosen


def cross_play(
    learner: Learner,
    state: TrainState,
    key: jax.Array,
    num_episodes: int = 256,
    greedy: bool = False,
    max_steps: int = MAX_STEPS,
    opponents: Opponents = ("random",),
    name: str = "trained",
    batch: int | None = None,
) -> dict[tuple[str, ...], Episodes]:
    """Evaluate every combination of the trained policies and opponents: the cross-play matrix.

    For example::

        old = Player("old", *load_run("runs/old"))
        cross_play(learner, state, key, opponents=["random", "chase_nearest", old])

    All cells use the same initial states. Cells that differ only in parameters share a compiled
    program.

    Args:
        learner: defines the environment and the roles: its policies, or "POLICY/GROUP" for each
            group of a policy with agents of several groups.
        state: trained state; also provides the env_params.
        key: random key for initial states and actions.
        num_episodes: episodes per cell.
        greedy: take the most likely actions; False: sample them as in training.
        max_steps: maximum length of an episode.
        opponents: additional players for every role: "random", names of scripts, script functions,
            or a `Player` (other runs and checkpoints); or a mapping {role: players}. A script fills
            only roles of its group.
        name: name of this learner in the result.
        batch: maximum number of replicas at once; None: all episodes at once.

    Returns:
        {(player name for each role, in order): Episodes by role}, for example with key ("trained",
        "random").

    Raises:
        ValueError: if a name is unknown, an opponent was trained in another environment, or an
            episode is longer than `max_steps`.
    """
    setup, roles = learner.setup, roles_of(learner.setup)
    players = line_up(setup, roles, Player(name, learner, state), opponents)
    candidates = [
        [seat(setup, player, role) for player in own]
        for role, own in zip(roles, players, strict=True)
    ]
    assignments, cells = {role.name: role.assignment for role in roles}, {}
    for chosen in itertools.product(*candidates):
        game = make_game(setup, state, candidates, chosen)
        words = tuple(candidate.player.name for candidate in chosen)
        cells[words] = play_in_turns(game, assignments, key, num_episodes, greedy, max_steps, batch)
    return cells


def line_up(
    setup: Setup, roles: Sequence[Role], first: Player, opponents: Opponents
) -> list[list[Player]]:
    """Return the players of each role, starting with `first`.

    Raises:
        TypeError, ValueError: for an invalid player, or one that fills no role.
    """
    require(not isinstance(opponents, str), "opponents", opponents, "a list of players", TypeError)
    titles = [role.name for role in roles]
    asked = opponents if isinstance(opponents, Mapping) else dict.fromkeys(titles, opponents)
    for name in asked:
        require_known("role", name, titles)
    by_role = {name: [as_player(setup, player) for player in asked[name]] for name in asked}
    fitting = [
        [player for player in by_role.get(role.name, ()) if plays(setup, player, role)]
        for role in roles
    ]
    for role, own in zip(roles, fitting, strict=True):
        names = [player.name for player in (first, *own)]
        is_unique = len(set(names)) == len(names)
        require(is_unique, f"names of the players of {role.name}", names, "unique")
    used = {player.name for own in fitting for player in own}
    unused = [player for own in by_role.values() for player in own if player.name not in used]
    if unused:
        raise ValueError(
            f"player {unused[0].name!r}: "
            f"must be listed for a role of its group. Roles: {', '.join(titles)}"
        )
    return [[first, *own] for own in fitting]


def play_in_turns(
    game: Game,
    assignments: Mapping[str, Assignment],
    key: jax.Array,
    num_episodes: int,
    greedy: bool,
    max_steps: int,
    batch: int | None,
) -> Episodes:
    """Evaluate a game with at most `batch` replicas at once.

    Returns:
        Episodes, by the names of the assignments.

    Raises:
        UnfinishedEpisodeError: if an episode is longer than max_steps.
    """
    require_key(key)
    require_integer("num_episodes", num_episodes, 1)
    require_integer("max_steps", max_steps, 1)
    if batch is not None:
        require_integer("batch", batch, 1)
    size = min(batch or num_episodes, num_episodes)
    require(
        size <= MOST_EPISODES,
        "num_episodes",
        num_episodes,
        f"at most {MOST_EPISODES} at once. Set batch to play them in parts.",
    )
    num_turns = -(-num_episodes // size)
    turns = [
        counted(play_episodes(game, turn_key, size, greedy, max_steps), max_steps)
        for turn_key in ([key] if num_turns == 1 else jax.random.split(key, num_turns))
    ]
    # Surplus episodes are dropped by index: dropping the last to end would favor short episodes.
    joined = jax.tree.map(lambda *parts: np.concatenate(parts)[:num_episodes], *turns)
    return episodes_of(game.env, assignments, *joined)


def counted(
    played: PlayedEpisodes, max_steps: int
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray]]:
    """Return the results of `play_episodes` on the host. Raise UnfinishedEpisodeError."""
    returns, length, info, finished = jax.device_get(played)
    if not finished.all():
        raise UnfinishedEpisodeError(
            f"max_steps = {max_steps}: must be at least the length of the longest episode"
        )
    return returns, length, info


def episodes_of(
    env: Env,
    assignments: Mapping[str, Assignment],
    returns: Mapping[str, np.ndarray],
    length: np.ndarray,
    info: dict[str, np.ndarray],
) -> Episodes:
    """Return the results of `counted` as Episodes, by the names of the assignments."""
    agent_return = {name: gather(assignment, returns) for name, assignment in assignments.items()}
    return Episodes(
        episode_return={name: values.sum(axis=1) for name, values in agent_return.items()},
        episode_length=length,
        episode_info=info,
        agent_return=agent_return,
        group_return={group: returns[group].sum(axis=1) for group in group_sizes(env)},
    )


@functools.partial(jax.jit, static_argnames=("num_episodes", "greedy", "max_steps"))
def play_episodes(
    game: Game, key: jax.Array, num_episodes: int, greedy: bool, max_steps: int
) -> PlayedEpisodes:
    """Step `num_episodes` replicas until the first episode of each is over, without resets.

    Returns:
        (returns of every agent by group [E, n_group], lengths [E], sums of the environment's info
        [E], finished [E]).
    """
    reset_key, step_key = jax.random.split(key)
    first = game.reset(jax.random.split(reset_key, num_episodes))

    def add_where(rows: jax.Array, total: jax.Array, new: jax.Array) -> jax.Array:
        return total + jnp.where(rows, new, 0)

    def body(loop: tuple) -> tuple:
        time, carry, returns, statistics, finished = loop
        action_key, env_key = jax.random.split(jax.random.fold_in(step_key, time))
        env_keys = jax.random.split(env_key, num_episodes)
        counted = jax.tree.map(lambda live: live & ~finished[:, None], carry[-1])
        carry, _, reward, *_, info = play_step(game, carry, action_key, env_keys, greedy)
        returns = jax.tree.map(add_where, counted, returns, to_groups(game.env, reward))
        statistics = select(finished, statistics, (info["episode_length"], info["episode_info"]))
        return time + 1, carry, returns, statistics, finished | info["over"]

    _, replicas, *_ = first
    returns = to_groups(game.env, replicas.episode_return)
    statistics = (replicas.episode_length, replicas.episode_info)
    start = (jnp.int32(0), first, returns, statistics, jnp.zeros(num_episodes, bool))
    end = jax.lax.while_loop(lambda loop: (loop[0] < max_steps) & ~loop[-1].all(), body, start)
    _, _, returns, (length, info), finished = end
    return returns, length, info, finished


def no_evaluation(learner: Learner, state: TrainState | None = None) -> dict[str, None]:
    """Return the evaluation fields of a row of metrics.jsonl without an evaluation.

    Args:
        learner: learner of the run.
        state: state of the run; None: its shapes are traced.
    """
    config, env, zero = learner.config, learner.env, np.zeros(1)
    if not config.evaluates:
        return {}
    info = (state or abstract_state(learner.setup)).replicas.episode_info
    nothing = Episodes(
        episode_return=dict.fromkeys(config.policies, zero),
        episode_length=zero,
        episode_info=dict.fromkeys(info, zero),
        agent_return={},
        group_return=dict.fromkeys(group_sizes(env), zero),
    )
    best = {f"eval/best/{config.best_by}": None} if config.best_by else {}
    return dict.fromkeys(evaluation_metrics(nothing, env.info_ratios)) | best
