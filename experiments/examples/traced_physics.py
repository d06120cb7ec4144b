"""A thousand variants of an environment's physics in one program, vmapped over traced params.

    python -m wdjax.experiments.examples.traced_physics

The first part runs CartPole with 1,000 pairs of gravity and pole length, pushing the cart
alternately left and right. The second part runs Tag with taggers of 1,000 different speeds, in
which all agents act randomly.
"""

from typing import Any

import jax
import jax.numpy as jnp

import wdjax

NUM_VARIANTS = 1_000


def batch_params(params: Any, num: int, **changes: jax.Array) -> Any:
    """Broadcast params to a leading [num] and replace the fields in `changes` ([num] each)."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (num, *jnp.shape(leaf))), params
    ).replace(**changes)


def standing_steps(params: Any, key: jax.Array) -> jax.Array:
    """Count the steps, (), until the pole falls if left and right pushes alternate; at most 500."""
    env, _ = wdjax.make("cartpole")
    _, state = env.reset(key, params)

    def step(state: Any, _: object) -> tuple[Any, jax.Array]:
        action = state.time % 2
        _, state, reward, *_ = env.step(key, state, action, params)
        return state, reward

    return jax.lax.scan(step, state, length=500)[1].sum()


def tags(params: Any, key: jax.Array) -> jax.Array:
    """Count how many of 20 runners are tagged by 5 taggers in 50 steps of random play, ()."""
    env, _ = wdjax.make("tag_continuous", num_taggers=5, num_runners=20)
    reset_key, play_key = jax.random.split(key)
    _, state = env.reset(reset_key, params)

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        action_key, step_key = jax.random.split(key)
        action = env.action_space(params).sample(action_key)
        _, state, *_, info = env.step(step_key, state, action, params)
        return state, info["tags"]

    return jax.lax.scan(step, state, jax.random.split(play_key, 50))[1].sum()


def vary_cartpole(key: jax.Array, num: int = NUM_VARIANTS) -> tuple[Any, jax.Array]:
    """Vary gravity and length from half to twice the default; return (params, steps) [num]."""
    scale_key, game_key = jax.random.split(key)
    _, params = wdjax.make("cartpole")
    gravity, length = jnp.exp2(jax.random.uniform(scale_key, (2, num), minval=-1.0, maxval=1.0))
    many = batch_params(
        params, num, gravity=params.gravity * gravity, length=params.length * length
    )
    return many, jax.jit(jax.vmap(standing_steps, (0, None)))(many, game_key)


def vary_tag(key: jax.Array, num: int = NUM_VARIANTS) -> tuple[Any, jax.Array]:
    """Vary the tagger speed from 0.1 to 4 times the default; return (params, tags) [num]."""
    _, params = wdjax.make("tag_continuous", num_taggers=5, num_runners=20)
    many = batch_params(params, num, skill_level_tagger=jnp.linspace(0.1, 4.0, num))
    return many, jax.jit(jax.vmap(tags))(many, jax.random.split(key, num))


def main() -> None:
    """Print the mean result by quartile of each varied parameter, from low to high."""
    many, steps = vary_cartpole(jax.random.key(0))
    print(f"cartpole, {NUM_VARIANTS} variants: steps until the pole falls, by quartile")
    for name in ("gravity", "length"):
        print(f"    {name}: {by_fourths(getattr(many, name), steps)}")
    many, caught = vary_tag(jax.random.key(1))
    print(f"tag_continuous, {NUM_VARIANTS} variants: tagged runners of 20, by quartile")
    print(f"    tagger speed: {by_fourths(many.skill_level_tagger, caught)}")


def by_fourths(parameter: jax.Array, result: jax.Array) -> str:
    """Format the mean result of each quartile of the variants."""
    quartiles = result[jnp.argsort(parameter)].reshape(4, -1).mean(axis=1)
    return ", ".join(f"{mean:.1f}" for mean in quartiles)


if __name__ == "__main__":
    main()
