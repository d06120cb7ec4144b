"""A2C's and PPO's computations on a rollout of the probe `Shop`, in NumPy float64.

Written from the equations. Arrays of a policy are [T, N, n, ...]: T steps of N replicas with n
agents.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def one_hot(index, size):
    return np.eye(size)[np.asarray(index).astype(int)]


def scaled(values, statistics):
    """Return (values - mean) / deviation, at most 10. `statistics` is (mean, variance) or None."""
    if statistics is None:
        return np.asarray(values, np.float64)
    mean, variance = statistics
    return np.clip((np.asarray(values, np.float64) - mean) / np.sqrt(variance + 1e-8), -10, 10)


def shop_row(obs, statistics):
    """Return the network input of an observation, in the order of the space.

    Its shape is [..., 2 + 5 + 1 + 2].
    """
    place, clock = (statistics or {}).get("place"), (statistics or {}).get("clock")
    choices = obs["inner"]["choices"]
    parts = [
        scaled(obs["inner"]["place"], place),
        one_hot(choices[..., 0], 2),
        one_hot(choices[..., 1], 3),
    ]
    return np.concatenate([*parts, scaled(obs["clock"], clock), one_hot(obs["light"], 2)], axis=-1)


def trunk(params, row, carry):
    """Apply hidden layers with tanh, and a GRU if there is one. Return (features, carry)."""
    for name in sorted(params["mlp"]):
        row = np.tanh(row @ params["mlp"][name]["kernel"] + params["mlp"][name]["bias"])
    if "cell" not in params:
        return row, None
    cell = params["cell"]
    from_input = row @ cell["dense_i"]["kernel"] + cell["dense_i"]["bias"]
    from_carry = carry @ cell["dense_h"]["kernel"]
    (reset, update, new), (reset_h, update_h, new_h) = (
        np.split(from_input, 3, -1),
        np.split(from_carry, 3, -1),
    )
    keep = sigmoid(update + update_h)
    new = np.tanh(new + sigmoid(reset + reset_h) * new_h)
    carry = (1 - keep) * new + keep * carry
    return carry, carry


def network(params, row, carry):
    """Return (outputs, value, carry), with the carries of both trunks if there are two."""
    features, first = trunk(params["trunk"], row, carry[0])
    value_features, second = features, None
    if "value_trunk" in params:
        value_features, second = trunk(params["value_trunk"], row, carry[1])
    outputs = features @ params["policy_head"]["kernel"] + params["policy_head"]["bias"]
    value = value_features @ params["value_head"]["kernel"] + params["value_head"]["bias"]
    return outputs, value[..., 0], (first, second)


def choices(outputs, mask):
    """Return the probabilities of two masked choices, among 2 and among 3."""
    weights = [np.exp(part) for part in np.split(np.where(mask == 1, outputs, -np.inf), [2], -1)]
    return [weight / weight.sum(-1, keepdims=True) for weight in weights]


def choice_log_prob(outputs, mask, action):
    parts = zip(choices(outputs, mask), np.moveaxis(action, -1, 0), strict=True)
    return sum(
        np.log(np.take_along_axis(part, chosen[..., None], -1)[..., 0]) for part, chosen in parts
    )


def choice_entropy(outputs, mask):
    return sum(
        -np.sum(part * np.log(np.where(part > 0, part, 1)), -1) for part in choices(outputs, mask)
    )


def squashed_log_prob(mean, log_std, action, low, high):
    """Return the log density of low + (high - low) sigmoid(2 u), u normal.

    By a change of variables in another form than wdjax.train.
    """
    share = (action - low) / (high - low)
    u = np.log(share / (1 - share)) / 2
    normal = np.exp(-(((u - mean) / np.exp(log_std)) ** 2) / 2) / (
        np.sqrt(2 * np.pi) * np.exp(log_std)
    )
    slope = 2 * (high - low) * share * (1 - share)  # d action / d u
    return np.log(normal / slope).sum(-1)


def squashed_entropy(mean, log_std, low, high):
    """Return the entropy, an integral of -p log p over a fine grid of u.

    log(d action / d u) is added to the entropy of the normal distribution.
    """
    z = np.linspace(-8, 8, 401)
    weight = np.exp(-(z**2) / 2) / np.sum(np.exp(-(z**2) / 2))
    u = mean[..., None] + np.exp(log_std)[..., None] * z
    slope = (high - low) / 2 / np.cosh(u) ** 2
    surprise = z**2 / 2 + log_std[..., None] + np.log(2 * np.pi) / 2 + np.log(slope)
    return np.sum(surprise * weight, axis=(-2, -1))


def ppo_loss(log_prob, entropy, value, old, advantage, target, live, options):
    """Return the terms of the loss, each a mean over valid transitions.

    `old` is (log_prob, value) at the time of the rollout.
    """
    kept = advantage[live]
    if options.normalize_advantage:
        kept = (kept - kept.mean()) / kept.std()
    ratio = np.exp(log_prob - old[0])[live]
    gain = np.minimum(
        ratio * kept, np.clip(ratio, 1 - options.clip, 1 + options.clip) * kept
    ).mean()
    near = np.clip(value, old[1] - options.value_clip, old[1] + options.value_clip)
    error = np.maximum((value - target) ** 2, (near - target) ** 2)[live].mean()
    entropy = entropy[live].mean()
    loss = -gain + options.value_coefficient * error - options.entropy_coefficient * entropy
    return {"loss": loss, "policy_loss": -gain, "value_loss": error, "entropy": entropy}


def slope_along(function, params, path, direction, step=1e-4):
    """Return the derivative of function(params) along a direction of the array at `path`."""

    def moved(params, path, change):
        if not path:
            return params + change
        return {**params, path[0]: moved(params[path[0]], path[1:], change)}

    ahead, behind = (function(moved(params, path, sign * step * direction)) for sign in (1, -1))
    return (ahead - behind) / (2 * step)


def replay(params, obs, final_obs, last_obs, carry, over, statistics):
    """Step a policy through a rollout. Return (outputs, value, next value), [T, N, n, ...].

    `carry` is the carry before the first step. It is reset where an episode ends, after V(final
    obs).
    """
    outputs, values, after = [], [], []
    for t in range(len(over)):
        out, value, carry = network(params, shop_row(at(obs, t), statistics), carry)
        outputs.append(out)
        values.append(value)
        after.append(network(params, shop_row(at(final_obs, t), statistics), carry)[1])
        carry = tuple(
            None if part is None else np.where(over[t][:, None, None], 0.0, part) for part in carry
        )
    last = network(params, shop_row(last_obs, statistics), carry)[1]
    following = np.where(over[..., None], after, np.concatenate([values[1:], last[None]]))
    return np.array(outputs), np.array(values), following


def at(obs, t):
    return {name: at(part, t) if isinstance(part, dict) else part[t] for name, part in obs.items()}


def advantages(reward, value, following, terminated, over, gamma, gae_lambda):
    """Return A_t = delta_t + gamma lambda A_{t+1} within an episode of an agent."""
    advantage, later = np.zeros_like(value), 0.0
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * np.where(terminated[t], 0.0, following[t]) - value[t]
        later = delta + gamma * gae_lambda * np.where(terminated[t] | over[t][:, None], 0.0, later)
        advantage[t] = later
    return advantage


def discounted_sums(reward, over, gamma, before):
    """Return (R, sum to continue with): R_t = gamma R_{t-1} + r_t, from 0 in every episode."""
    sums = []
    for t in range(len(reward)):
        before = gamma * before + reward[t]
        sums.append(before)
        before = np.where(over[t][:, None], 0.0, before)
    return np.array(sums), before


def deviation_along(action, live, axis):
    """Return the mean deviation of valid entries along an axis.

    Positions without valid entries are excluded.
    """
    moved, flags = np.moveaxis(action, axis, -1), np.moveaxis(live, axis, -1)
    deviations = [
        np.std(moved[i][flags[i]]) for i in np.ndindex(flags.shape[:-1]) if flags[i].any()
    ]
    return np.mean(deviations)
