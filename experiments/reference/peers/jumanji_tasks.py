"""Rows of games of Jumanji, next to results that Mava published."""

from collections.abc import Mapping
from typing import Any

from wdjax.experiments.reference.peers.parts import (
    MAPPO,
    NETWORK,
    PPO,
    RNN,
    SAMPLED_RETURN,
    preset,
)
from wdjax.experiments.reference.peers.programs import (
    Ours,
    Published,
    Task,
)

MAVA = "https://github.com/instadeepai/Mava"
MAVA_PPO = PPO | MAPPO | {"agents": ["agent[*]"], "agent_type_feature": True, "minibatches": 8,
                  "learning_rate": 2.5e-4}  # fmt: skip
FEED_FORWARD = NETWORK | {"hidden_sizes": [128, 128], "activation": "relu", "shared_trunk": False}
WAREHOUSE = {
    "column_height": 8, "shelf_rows": 1, "shelf_columns": 3, "num_agents": 4, "sensor_range": 1,
    "request_queue_size": 4, "time_limit": 500, "fields": ["agents_view"],
}  # fmt: skip
FORAGING = {
    "grid_size": 8, "fov": 2, "num_agents": 2, "num_food": 2, "max_agent_level": 2,
    "force_coop": True, "time_limit": 100, "fields": ["agents_view"],
}  # fmt: skip
LARGE_BATCH = (
    "wdjax has 256 replicas, rollouts of 64 steps and eight minibatches, Mava's "
    "configuration 32, 128 and two: the number and the size of the gradient steps are the same."
)


def jumanji(game: str, params: Mapping[str, Any], policy: Mapping[str, Any]) -> Ours:
    """Return a program on a game of Jumanji."""
    return Ours(preset(f"jumanji:{game}", 256, 64, {"agent": policy}, params), ("agent",))


def mava_chart(path: str, score: str) -> Published:
    """Return a result that is read from the end of a chart in Mava's documentation."""
    return Published(score, f"[chart of Mava]({MAVA}/blob/57c8e64/docs/images/{path}.png).")


TASKS = {
    "rware_mappo": Task(
        "RobotWarehouse tiny-4ag", "MAPPO", 20_000_000,
        {
            "wdjax MAPPO": jumanji("RobotWarehouse-v0", WAREHOUSE,
                MAVA_PPO | {"network": FEED_FORWARD}),
            "Mava MAPPO": mava_chart("rware_results/ff_mappo/tiny-4ag", "96 [86, 106]"),
        },
        (SAMPLED_RETURN,),
        note="Each of the four agents receives 1 for a delivered shelf. The chart shows the number "
        f"of shelves, 24 [21.5, 26.5], the table four times as much. {LARGE_BATCH}",
    ),
    "lbf_mappo": Task(
        "LevelBasedForaging 2s-8x8-2p-2f-coop", "MAPPO, recurrent", 20_000_000,
        {
            "wdjax MAPPO": jumanji("LevelBasedForaging-v0", FORAGING,
                MAVA_PPO | {"network": RNN | {"activation": "relu"}}),
            "Mava MAPPO": mava_chart("lbf_results/2s-8x8-2p-2f-coop_rec_mappo", "1.00"),
        },
        (SAMPLED_RETURN,),
        note="A return of 1 is all the food. In Mava every agent receives the sum of the rewards, "
        f"here its own. {LARGE_BATCH}",
    ),
}  # fmt: skip
