"""Value decomposition networks (VDN): a team learns the sum of its agents' values from replay.

Source: Sunehag et al., "Value-Decomposition Networks For Cooperative Multi-Agent Learning" (2017).
"""

import functools
from collections.abc import Mapping
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp

from wdjax.checks import require
from wdjax.spaces import sample_shapes
from wdjax.train.algorithms.dqn import DQN, improve, squared_error
from wdjax.train.algorithms.off_policy import learn, with_observations
from wdjax.train.algorithms.team_values import names_of_team
from wdjax.train.learning import (
    Assignment,
    Hypers,
    Memory,
    Metric,
    Policy,
    PolicyState,
    ReplayBatch,
    Rollout,
    Steps,
    Team,
    Terms,
    TrainConfig,
    make_optimizer,
    played_metrics,
    total,
)
from wdjax.train.state.algorithm import TeamUpdate
from wdjax.train.state.aliases import Params
from wdjax.train.state.normalization import new_normalizer


class VDN(DQN):
    """DQN on the value of a team, Q = sum_i Q_i(obs_i, action_i), with the sum of its rewards.

    A transition is a step of a replica with all agents of the team, which may have several
    policies. Agents that have left the episode do not count.
    """

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        config = run.policy(name)
        allowed = "1, because past_selves change the team within an episode"
        fits = config.options.n_step == 1 or not config.past_selves
        require(fits, f"policies.{name}.n_step", config.options.n_step, allowed)
        super().check(name, run, assignment)

    def init(self, policy: Policy, params: Params) -> PolicyState:
        """Return the state of a policy; its optimizer and target are in the state of the team."""
        config, space = policy.config, policy.assignment.observation_space
        normalizer = new_normalizer(config.normalize_observation, False, space)
        steps = jnp.int32(0) if config.trainable else None
        return PolicyState(params, None, normalizer, gradient_steps=steps)

    def init_shared(
        self, team: Team, states: Mapping[str, PolicyState], params: Params | None
    ) -> PolicyState:
        """Return the mixer's parameters, and the optimizer and target network of the team."""
        config = team.first.config
        joint = joint_params(states, {} if params is None else params)
        opt_state = make_optimizer(config, config.max_grad_norm).init(joint)
        target = jax.tree.map(jnp.copy, joint)
        return PolicyState(joint["mixer"], opt_state, None, target, gradient_steps=jnp.int32(0))

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        """Return the memory. The replay buffer of a team belongs to its first policy."""
        names = names_of_team(policy, run)
        if not policy.config.trainable or policy.name != names[0]:
            return Memory(None, None)
        step = self.step_shapes({name: policy.context.assignments[name] for name in names}, policy)
        return Memory(None, None, self.empty_replay(policy, run, step, unit="team"))

    def step_shapes(self, assignments: Mapping[str, Assignment], policy: Policy) -> Steps:
        """Return the shapes and dtypes of one step of a team, see `team_steps`."""
        flags, obs, action = {}, {}, {}
        for name, own in assignments.items():
            agents = functools.partial(of_agents, own.num_agents)
            flags[name] = agents(jax.ShapeDtypeStruct((), bool))
            obs[name] = jax.tree.map(agents, sample_shapes(own.observation_space))
            action[name] = jax.tree.map(agents, sample_shapes(own.action_space))
        one = Steps.shapes(policy.assignment.observation_space, policy.assignment.action_space)
        seen = (obs, flags, self.state_shape(policy))
        return one.replace(obs=seen, next_obs=seen, action=action)

    def state_shape(self, policy: Policy) -> Any:
        """Return the shape of the global state in the replay buffer; None: not stored."""
        return None

    def mix(
        self, team: Team, joint: PolicyState, params: Params, q: jax.Array, state: Any
    ) -> jax.Array:
        """Return the value of the team, [...]: the sum over agents.

        Args:
            team: static part of the team.
            joint: state of the team, for its normalizer.
            params: parameters of the mixer.
            q: values of the agents' actions, 0 for those that do not count, [..., n].
            state: global state, [..., S], or None.
        """
        return jnp.sum(q, axis=-1)

    def update_team(
        self,
        team: Team,
        states: dict[str, PolicyState],
        shared: PolicyState | None,
        memories: dict[str, Memory],
        hypers: Mapping[str, Hypers],
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> TeamUpdate:
        """Store the rollout, then take gradient steps of all policies together after `warmup`."""
        shared, first = cast(PolicyState, shared), team.first
        options, own_hypers = first.config.options, hypers[first.name]
        steps = team_steps(team, rollout, keeps_state=bool(self.keeps))
        replay = memories[first.name].replay.add(steps, own_hypers["gamma"])
        joint = shared.replace(params=joint_params(states, shared.params))
        step = functools.partial(self.team_step, team, states, own_hypers)
        no_draws = functools.partial(self.draw, first)
        joint, losses = learn(options, joint, replay, key, step, no_draws, self.mean_metrics)
        losses["buffer_rows"] = total(jnp.sum(replay.size))
        memories = {**memories, first.name: memories[first.name].replace(replay=replay)}
        states, metrics = dict(states), cast(dict[str, Mapping[str, jax.Array | Metric]], {})
        for name in team.policies:
            rows, params = rollout.rows[name], joint.params["policies"][name]
            state = states[name].replace(params=params, gradient_steps=joint.gradient_steps)
            states[name] = with_observations(state, rows.obs, rows.live)
            metrics[name] = {**losses, **played_metrics(rows)}
        return states, joint.replace(params=joint.params["mixer"]), memories, metrics

    def team_step(
        self,
        team: Team,
        states: Mapping[str, PolicyState],
        hypers: Hypers,
        joint: PolicyState,
        batch: ReplayBatch,
        drawn: None,
    ) -> tuple[PolicyState, Terms]:
        """Take a step on mean((Q(obs, action) - target)^2) / 2, then one of the target network.

            target = reward + discount * mix(`next_value` of every agent)

        Args:
            team: static part of the team.
            states: states of its policies, for their normalizers.
            hypers: hyperparameters of its first policy.
            joint: parameters, target and optimizer of the team.
            batch: transitions of the team, see `team_steps`.
            drawn: not used.
        """

        def of_policy(name: str, params: Params) -> PolicyState:
            target = targets["policies"][name]
            return states[name].replace(params=params["policies"][name], target_params=target)

        targets = cast(Params, joint.target_params)
        obs, active, state = batch.obs
        next_obs, goes_on, next_state = batch.next_obs
        following = [
            goes_on[name] * self.next_value(policy, of_policy(name, joint.params), next_obs[name])
            for name, policy in team.policies.items()
        ]
        next_q, mixer = jnp.concatenate(following, axis=-1), targets["mixer"]
        mixed = self.mix(team, joint, mixer, next_q, next_state)
        target = batch.reward + batch.discount * mixed

        def loss(params: Params) -> tuple[jax.Array, Terms]:
            q = [
                active[name]
                * self.chosen(policy, of_policy(name, params), obs[name], batch.action[name])
                for name, policy in team.policies.items()
            ]
            mixed = self.mix(team, joint, params["mixer"], jnp.concatenate(q, axis=-1), state)
            return squared_error(mixed, target)

        return improve(team.first, joint, hypers, loss)


def joint_params(states: Mapping[str, PolicyState], mixer: Params) -> Params:
    """Return the parameters of all policies and of the mixer."""
    return {"policies": {name: own.params for name, own in states.items()}, "mixer": mixer}


def of_agents(count: int, shape: jax.ShapeDtypeStruct) -> chex.Array:
    """Return the shape of one array for `count` agents."""
    return cast(jax.Array, jax.ShapeDtypeStruct((count, *shape.shape), shape.dtype))


def team_steps(team: Team, rollout: Rollout, keeps_state: bool) -> Steps:
    """Return the steps of a team for a replay with unit "team", leaves [T, N, ...].

    `obs` is (observations by policy, active agents [n] bool by policy, global state or None), and
    `next_obs` the same after the step, with the agents that have not terminated and those that
    joined.
    """
    rows = {name: rollout.rows[name] for name in team.policies}
    live = {name: own.live for name, own in rows.items()}
    goes_on = {name: own.active_next for name, own in rows.items()}
    rewards = [jnp.sum(own.reward, axis=-1, where=own.live) for own in rows.values()]
    state = next_state = None
    if keeps_state:
        state = cast(jax.Array, rollout.global_state)
        last = cast(jax.Array, rollout.last_global_state)
        next_state = jnp.concatenate([state[1:], last[None]])
        if rollout.final_global_state is not None:
            over = rollout.over[..., None]
            next_state = jnp.where(over, rollout.final_global_state, next_state)
    return Steps(
        obs=({name: own.obs for name, own in rows.items()}, live, state),
        action={name: own.action for name, own in rows.items()},
        reward=functools.reduce(jnp.add, rewards),
        next_obs=({name: own.next_obs for name, own in rows.items()}, goes_on, next_state),
        terminated=~any_agent(goes_on),
        over=rollout.over,
        live=any_agent(live),
    )


def any_agent(flags: Mapping[str, jax.Array]) -> jax.Array:
    """Return whether a flag [T, N, n] of any agent of any policy is set, [T, N]."""
    return functools.reduce(jnp.logical_or, [jnp.any(own, axis=-1) for own in flags.values()])
