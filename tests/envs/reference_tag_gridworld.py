"""tag_gridworld in plain NumPy and Python, one replica and one agent at a time.

Written from the rules, without code of wdjax.envs.tag.gridworld. Agents have the order taggers,
runner.
"""

import dataclasses

import numpy as np

MOVES = {0: (0, 0), 1: (1, 0), 2: (-1, 0), 3: (0, 1), 4: (0, -1)}


@dataclasses.dataclass(frozen=True)
class Rules:
    """The parameters, with the names of `wdjax.make`."""

    num_taggers: int = 10
    grid_length: int = 10
    episode_length: int = 100
    starting_location_x: tuple | None = None
    starting_location_y: tuple | None = None
    wall_hit_penalty: float = 0.1
    tag_reward_for_tagger: float = 10.0
    tag_penalty_for_runner: float = 2.0
    step_cost_for_tagger: float = 0.01
    use_full_observation: bool = True
    random_start: bool = False

    @property
    def num_agents(self):
        return self.num_taggers + 1


@dataclasses.dataclass
class State:
    x: list
    y: list
    time: int


def is_tagged(state):
    runner = (state.x[-1], state.y[-1])
    return runner in list(zip(state.x[:-1], state.y[:-1], strict=True))


def step(rules, state, action):
    """Return (state, obs [N, size], reward [N], done, tagged) after the actions, N ints."""
    x, y, hits = [], [], []
    for i in range(rules.num_agents):
        dx, dy = MOVES[int(action[i])]
        place = (state.x[i] + dx, state.y[i] + dy)
        inside = tuple(min(max(coordinate, 0), rules.grid_length) for coordinate in place)
        hits.append(place != inside)
        x.append(inside[0])
        y.append(inside[1])
    new = State(x, y, state.time + 1)
    tagged = is_tagged(new)
    gains = [
        rules.tag_reward_for_tagger if tagged else -rules.step_cost_for_tagger
    ] * rules.num_taggers
    gains.append(-rules.tag_penalty_for_runner if tagged else rules.step_cost_for_tagger)
    reward = np.array(gains, np.float32) - np.array(hits) * np.float32(rules.wall_hit_penalty)
    return new, observe(rules, new), reward, new.time >= rules.episode_length or tagged, tagged


def observe(rules, state):
    rows = [_observe_one(rules, state, i) for i in range(rules.num_agents)]
    return np.array(rows, np.float64).astype(np.float32)


def _observe_one(rules, state, i):
    size, runner = rules.grid_length, rules.num_agents - 1
    time = state.time / rules.episode_length
    x, y = [place / size for place in state.x], [place / size for place in state.y]
    types = [float(j == runner) for j in range(rules.num_agents)]
    if rules.use_full_observation:
        return x + y + types + [float(j == i) for j in range(rules.num_agents)] + [time]
    squares = [
        (state.x[j] - state.x[i]) ** 2 + (state.y[j] - state.y[i]) ** 2
        for j in range(rules.num_taggers)
    ]
    adversary = runner if i != runner else squares.index(min(squares))
    return [x[i], y[i], x[adversary], y[adversary], types[i], time]
