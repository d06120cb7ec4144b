"""The comparison rows: configurations of wdjax, and scripts of other authors.

wdjax uses the hyperparameters of the other program. Its value losses have a factor 0.5, so
`value_coefficient` is half as large here. JaxMARL's PQN-VDN has no factor 0.5 in its loss, so its
`max_grad_norm` is half as large here.
"""

from wdjax.experiments.reference.peers import gymnax_tasks, jaxmarl_tasks, jumanji_tasks

TASKS = {**jaxmarl_tasks.TASKS, **jumanji_tasks.TASKS, **gymnax_tasks.TASKS}
