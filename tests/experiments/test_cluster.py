"""Cluster scripts, checked without a cluster."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

CLUSTER = Path(__file__).parents[2] / "experiments" / "cluster"


def test_every_file_documents_its_purpose_and_command():
    commands = {
        "Dockerfile": "docker build -f",
        "slurm.sh": "sbatch",
        "kubernetes.yaml": "kubectl apply -f",
    }
    assert {path.name for path in CLUSTER.iterdir()} == set(commands)
    for name, command in commands.items():
        head = (CLUSTER / name).read_text(encoding="utf8").split("\n\n")[0]
        assert (
            f"#   {command} {'' if name == 'slurm.sh' else 'experiments/cluster/' + name}".rstrip()
            in head
        )


def test_pods_find_each_other():
    service, job = yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text(encoding="utf8"))
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert service["spec"]["clusterIP"] == "None"  # the word: headless
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable for variable in container["env"]}
    first = f"{job['metadata']['name']}-0.{pod['subdomain']}:"
    assert variables["JAX_COORDINATOR_ADDRESS"]["value"].startswith(first)
    number = int(variables["JAX_NUM_PROCESSES"]["value"])
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == number
    index = variables["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert all(isinstance(argument, str) for argument in container["args"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


@pytest.fixture
def slurm(tmp_path):
    """Run slurm.sh with an srun that ends with a status; return (status, output)."""

    def submit(status, *arguments):
        for name, lines in {
            "srun": f'echo "srun $@"; exit {status}',
            "scontrol": 'echo "scontrol $@"',
        }.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{lines}\n")
            (tmp_path / name).chmod(0o755)
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
        done = subprocess.run(
            ["bash", CLUSTER / "slurm.sh", *arguments],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return submit


def test_slurm_requeues_a_stopped_run(slurm):
    called = "srun --gpu-bind=none .venv/bin/wdjax train cartpole --workdir my runs --resume\n"
    assert slurm(0, "cartpole", "--workdir", "my runs") == (0, called)
    assert slurm(1, "cartpole", "--workdir", "my runs") == (1, called)
    status, said = slurm(130, "cartpole", "--workdir", "my runs")
    assert status == 130
    assert said.splitlines()[-1] == "scontrol requeue 77"
    status, said = slurm(0)
    assert status == 2
    assert "usage: sbatch" in said
