"""Value decomposition (VDN) over policies with different spaces: one gradient of summed Q values.

Source: Sunehag et al., "Value-Decomposition Networks For Cooperative Multi-Agent Learning" (2018).
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from wdjax import Dict
from wdjax.train.learning import (
    Algorithm,
    PolicyState,
    Schedule,
    Steps,
    ValueNetwork,
    average,
    block_keys,
    draw_blocks,
    make_optimizer,
    new_replay,
    num_shards,
    static,
    traced,
)


@dataclasses.dataclass(frozen=True)
class VDNOptions:
    """Options of VDN."""

    gamma: float = traced(0.9, allowed="between 0 and 1")
    """Discount factor."""
    epsilon: Schedule = traced(0.1, explores=True)
    """Probability of a random action in training."""
    tau: float = traced(0.1, allowed="between 0 and 1")
    """Step size of the target networks."""
    buffer_size: int = static(4096, allowed="at least 1")
    """Steps of replicas in the replay buffer."""
    batch_size: int = static(128, allowed="at least 1")
    """Steps of replicas per gradient step."""
    gradient_steps: int = static(2, allowed="at least 1")
    """Gradient steps per rollout."""


class VDN(Algorithm):
    """The sum of the Q values of all agents of the team is fitted to their mean reward."""

    Options = VDNOptions

    def make_network(self, context, config, assignment, rngs):
        space, actions = assignment.observation_space, assignment.action_space.n
        return ValueNetwork(space, config.network, num_values=actions, rngs=rngs)

    def init(self, policy, params):
        return PolicyState(params, None, target_params=jax.tree.map(jnp.copy, params))

    def init_shared(self, team, states, params):
        config, both = team.first.config, {name: own.params for name, own in states.items()}
        return PolicyState({}, make_optimizer(config, config.max_grad_norm).init(both))

    def init_memory(self, policy, run):
        """Return the memory; for the first policy of the team with the replay of all its agents."""
        memory, options = super().init_memory(policy, run), policy.config.options
        names = next(team.policies for team in run.teams.values() if policy.name in team.policies)
        if policy.name != names[0]:
            return memory
        agents = {name: policy.context.assignments[name] for name in names}
        step = Steps.shapes(
            Dict(
                {name: own.observation_space.batch(own.num_agents) for name, own in agents.items()}
            ),
            Dict({name: own.action_space.batch(own.num_agents) for name, own in agents.items()}),
        )
        shape = (run.rollout_length, run.num_envs, 1)
        replay = new_replay(
            step, options.buffer_size, unit="team", shape=shape, num_blocks=run.blocks
        )
        return memory.replace(replay=replay)

    def values(self, policy, params, obs):
        return nnx.merge(policy.graphdef, params)(obs)

    def act(self, policy, state, carry, obs, keys, hypers):
        best = jnp.argmax(self.values(policy, state.params, obs), axis=-1)
        keys = jax.vmap(lambda key: jax.random.split(key))(keys)
        shape, actions = best.shape, policy.assignment.action_space.n
        explores = draw_blocks(jax.random.uniform, keys[:, 0], shape) < hypers["epsilon"]
        draw = lambda key, shape: jax.random.randint(key, shape, 0, actions)  # noqa: E731
        return jnp.where(explores, draw_blocks(draw, keys[:, 1], shape), best), {}, carry

    def play(self, policy, state, carry, obs, keys, greedy):
        return jnp.argmax(self.values(policy, state.params, obs), axis=-1), carry

    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {"next_obs": final_obs}

    def update_team(self, team, states, shared, memories, hypers, rollout, key, num_blocks):
        first, rows = team.first, {name: rollout.rows[name] for name in team.policies}
        options = first.options(hypers[first.name])
        holder = next(name for name, own in memories.items() if own.replay is not None)

        def agents(field):  # [T, N, agents of the team]
            return jnp.concatenate([getattr(own, field) for own in rows.values()], axis=-1)

        obs, action, next_obs = (
            {name: getattr(own, field) for name, own in rows.items()}
            for field in ("obs", "action", "next_obs")
        )
        reward, ends = jnp.mean(agents("reward"), -1), jnp.all(agents("terminated"), -1)
        live = jnp.any(agents("live"), -1)
        steps = Steps(obs, action, reward, next_obs, ends, rollout.over, live)
        replay = memories[holder].replay.add(steps, options.gamma)
        share = options.batch_size // (num_blocks * num_shards())
        index = replay.draw(block_keys(key, num_blocks), (options.gradient_steps, share))

        def total_value(params, obs, action=None):  # None: the best actions
            total = 0.0
            for name, policy in team.policies.items():
                values = self.values(policy, params[name], obs[name])
                own = jnp.max(values, axis=-1)
                if action is not None:
                    own = jnp.take_along_axis(values, action[name][..., None], axis=-1)[..., 0]
                total += jnp.sum(own, axis=-1)
            return total

        def step(carry, index):
            params, targets, opt_state = carry
            batch = replay.take(index)
            target = batch.reward + batch.discount * total_value(targets, batch.next_obs)
            loss = lambda params: jnp.mean(  # noqa: E731
                (total_value(params, batch.obs, batch.action) - target) ** 2
            )
            value, grads = average(jax.value_and_grad(loss)(params))
            optimizer = make_optimizer(first.config, hypers[first.name]["max_grad_norm"])
            updates, opt_state = optimizer.update(grads, opt_state, params)
            rates = {name: -hypers[name]["learning_rate"] for name in params}
            updates = {name: optax.tree.scale(rates[name], own) for name, own in updates.items()}
            params = optax.apply_updates(params, updates)
            targets = optax.incremental_update(params, targets, options.tau)
            norms = {name: optax.tree.norm(own) for name, own in grads.items()}
            return (params, targets, opt_state), (value, norms)

        params, targets = (
            {name: getattr(own, field) for name, own in states.items()}
            for field in ("params", "target_params")
        )
        (params, targets, opt_state), (values, norms) = jax.lax.scan(
            step, (params, targets, shared.opt_state), index
        )
        states = {
            name: own.replace(params=params[name], target_params=targets[name])
            for name, own in states.items()
        }
        memories = {**memories, holder: memories[holder].replace(replay=replay)}
        loss = jnp.mean(values)
        metrics = {
            name: {"loss": loss, "grad_norm": jnp.mean(norm)} for name, norm in norms.items()
        }
        metrics[team.name] = {"td_error": loss}
        return states, shared.replace(opt_state=opt_state), memories, metrics
