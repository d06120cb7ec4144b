"""tag_continuous in plain NumPy, one replica and one agent at a time.

Written from the rules, without code of wdjax.envs.tag.continuous: slow and easy to read. Floats are
float32 where the rules require it. Agents have the order of wdjax, taggers first.
"""

import dataclasses

import numpy as np

TWO_PI = np.float32(2 * np.pi)


@dataclasses.dataclass(frozen=True)
class Rules:
    """The parameters, with the names of `wdjax.make`."""

    num_taggers: int = 1
    num_runners: int = 10
    grid_length: float = 10.0
    episode_length: int = 100
    max_speed: float = 1.0
    skill_level_runner: float = 1.0
    skill_level_tagger: float = 1.0
    max_acceleration: float = 1.0
    min_acceleration: float = -1.0
    max_turn: float = np.pi / 2
    min_turn: float = -np.pi / 2
    num_acceleration_levels: int = 10
    num_turn_levels: int = 10
    edge_hit_penalty: float = -0.0
    use_full_observation: bool = True
    num_other_agents_observed: int = 2
    observe_own_motion: bool = False
    egocentric: bool = False
    tagging_distance: float = 0.01
    tag_reward_for_tagger: float = 1.0
    step_penalty_for_tagger: float = -0.0
    tag_penalty_for_runner: float = -1.0
    step_reward_for_runner: float = 0.0
    end_of_game_reward_for_runner: float = 1.0
    runner_exits_game_after_tagged: bool = True

    @property
    def num_agents(self):
        return self.num_taggers + self.num_runners

    @property
    def margin(self):
        return np.float32(np.float32(self.tagging_distance) * np.float32(self.grid_length))

    def is_tagger(self, i):
        return i < self.num_taggers

    def speed_limit(self, i):
        skill = self.skill_level_tagger if self.is_tagger(i) else self.skill_level_runner
        return np.float32(self.max_speed) * np.float32(skill)


@dataclasses.dataclass
class State:
    x: np.ndarray
    y: np.ndarray
    speed: np.ndarray
    direction: np.ndarray
    acceleration: np.ndarray
    active: np.ndarray
    time: int


@dataclasses.dataclass
class Step:
    """The result of a step, and values near which the order of float32 operations matters."""

    state: State
    obs: np.ndarray  # [N, size]
    reward: np.ndarray  # [N]
    done: bool
    tagged: np.ndarray  # [N]
    turn: np.ndarray  # [N]
    turned: np.ndarray  # [N], direction before mod 2 pi
    free_x: np.ndarray  # [N], position before clipping to the square
    free_y: np.ndarray


def level_table(low, high, num_levels):
    return np.concatenate([[0.0], np.linspace(low, high, num_levels)]).astype(np.float32)


def distances(state, i):
    """Return the distances of all agents from agent i, [N] float32."""
    dx, dy = state.x - state.x[i], state.y - state.y[i]
    return np.sqrt(dx * dx + dy * dy)


def step(rules, state, action):
    """Return the result of the actions, [N, 2] ints."""
    new, turn, turned, free_x, free_y = move(rules, state, action)
    length = np.float32(rules.grid_length)
    crossed = [
        not (0 <= free_x[i] <= length and 0 <= free_y[i] <= length) for i in range(rules.num_agents)
    ]
    obs = observe(rules, new)
    reward, tagged = tag(rules, new, crossed)
    done = new.time >= rules.episode_length or not new.active[rules.num_taggers :].any()
    return Step(new, obs, reward, done, tagged, turn, turned, free_x, free_y)


def move(rules, state, action):
    accelerations = level_table(
        rules.min_acceleration, rules.max_acceleration, rules.num_acceleration_levels
    )
    turns = level_table(rules.min_turn, rules.max_turn, rules.num_turn_levels)
    new = State(*(np.copy(getattr(state, field.name)) for field in dataclasses.fields(State)))
    new.time = state.time + 1
    turn, turned, free_x, free_y = (np.zeros(rules.num_agents, np.float32) for _ in range(4))
    for i in range(rules.num_agents):
        turn[i] = turns[action[i, 1]]
        turned[i] = state.direction[i] + turn[i]
        new.direction[i] = np.mod(turned[i], TWO_PI) * state.active[i]
        acceleration = state.acceleration[i] + accelerations[action[i, 0]]
        limit = rules.speed_limit(i)
        new.speed[i] = (
            np.clip(state.speed[i] + acceleration, np.float32(0), limit) * state.active[i]
        )
        new.acceleration[i] = acceleration if 0 < new.speed[i] < limit else 0.0
        free_x[i] = state.x[i] + new.speed[i] * np.cos(new.direction[i])
        free_y[i] = state.y[i] + new.speed[i] * np.sin(new.direction[i])
    new.x, new.y = (
        np.clip(free_x, 0, np.float32(rules.grid_length)),
        np.clip(free_y, 0, np.float32(rules.grid_length)),
    )
    return new, turn, turned, free_x, free_y


def tag(rules, state, crossed):
    """Return (rewards [N], tagged [N]). Deactivate tagged runners that exit."""
    reward, tagged = np.zeros(rules.num_agents), np.zeros(rules.num_agents, bool)
    runners = range(rules.num_taggers, rules.num_agents)
    for i in range(rules.num_agents):
        if state.active[i]:
            reward[i] += (
                rules.step_penalty_for_tagger
                if rules.is_tagger(i)
                else rules.step_reward_for_runner
            )
            reward[i] += rules.edge_hit_penalty if crossed[i] else 0.0
    for r in runners:
        if not state.active[r]:
            continue
        from_taggers = distances(state, r)[: rules.num_taggers]
        nearest = np.argmin(from_taggers)  # the first one on ties
        if from_taggers[nearest] < rules.margin:
            reward[r] += rules.tag_penalty_for_runner
            reward[nearest] += rules.tag_reward_for_tagger
            tagged[r] = True
            if rules.runner_exits_game_after_tagged:
                state.active[r] = False
    if state.time == rules.episode_length:
        for r in runners:
            reward[r] += rules.end_of_game_reward_for_runner if state.active[r] else 0.0
    return reward, tagged


def neighbors(rules, state, i):
    """Return the agents in the observation of agent i, in order."""
    others = [j for j in range(rules.num_agents) if j != i]
    if rules.use_full_observation:
        return others
    if not state.active[i]:
        return []
    order = np.argsort(distances(state, i), kind="stable")  # the lower index first on ties
    return [j for j in order if j != i and state.active[j]]


def observe(rules, state):
    diagonal, unit = rules.grid_length * np.sqrt(2), rules.max_speed + 1e-10
    scaled = [state.x / diagonal, state.y / diagonal, state.speed / unit, state.acceleration / unit]
    scaled.append(state.direction / (2 * np.pi))
    width = rules.num_agents - 1 if rules.use_full_observation else rules.num_other_agents_observed
    rows = np.zeros((rules.num_agents, 7 * width))
    own_rows = np.zeros((rules.num_agents, 6))
    for i in range(rules.num_agents):
        heading = state.direction[i]
        turn = np.array([[np.cos(heading), np.sin(heading)], [-np.sin(heading), np.cos(heading)]])
        for slot, j in enumerate(neighbors(rules, state, i)[:width]):
            relative = [feature[j] - feature[i] if state.active[i] else 0.0 for feature in scaled]
            if rules.egocentric:
                relative[:2] = turn @ relative[:2]
                relative[4] = (relative[4] + 0.5) % 1.0 - 0.5
            rows[i, slot : 5 * width : width] = relative
            rows[i, 5 * width + slot] = rules.is_tagger(j)
            rows[i, 6 * width + slot] = state.active[j]
        if state.active[i]:
            middle = rules.grid_length / 2 - np.array([state.x[i], state.y[i]])
            motion = np.cos(heading), np.sin(heading), state.speed[i] / unit
            own_rows[i] = *(turn @ middle / diagonal), *motion, state.time / rules.episode_length
    shown = [rules.egocentric] * 2 + [rules.observe_own_motion] * 3 + [True]
    return np.concatenate([rows, own_rows[:, shown]], axis=1)
