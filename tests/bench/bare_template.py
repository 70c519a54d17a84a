"""What one would write without the tool: a loop over nodes that fills the template in and writes the file.

Arguments: how many nodes, GPUs a node, the folder. It reads no files and checks nothing; the template and the quoting
are ours, so that the work is the same. Two scripts a node, as in the comparison.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jinja2

import runbook
from runbook.launch.preconditions import RENDEZVOUS_PROBE, Guards, read_activation
from runbook.launch.quote import dialect_of
from runbook.launch.script import ScriptProcess, ScriptSpec, possible_stops


def main(nodes: int, gpus: int, out: Path) -> None:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("runbook.launch"),
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(dialect_of("sh").filters)
    template = environment.get_template("launch.sh.j2")
    words = ("python3", "train.py", "--data=/data", "--epochs=3", "--lr=3e-06", "--amp")
    for number in range(nodes):
        name = f"gn{number + 1:05d}"
        variables = {
            "MASTER_ADDR": "10.1.0.1",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": str(nodes * gpus),
            "LOCAL_WORLD_SIZE": str(gpus),
            "NODE_RANK": str(number),
            "GROUP_RANK": str(number),
            "RUNBOOK_BACKEND": "nccl",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
            "OMP_NUM_THREADS": "8",
            "GLOO_SOCKET_IFNAME": "ib0",
            "NCCL_SOCKET_IFNAME": "ib0",
            "NCCL_DEBUG": "WARN",
            "RUN_NAME": f"large-{name}",
        }
        ranks = tuple(
            ScriptProcess(local, {"RANK": str(number * gpus + local), "LOCAL_RANK": str(local)})
            for local in range(gpus)
        )
        folder = out / name
        folder.mkdir(parents=True)
        for script in ("launch", "connection"):
            guards = Guards("python3", "10.1.0.1", None if number else 29500, several_nodes=True)
            spec = ScriptSpec(name, script, ("x", "y"), nodes * gpus, variables, ranks, words, guards=guards)
            activation = read_activation(None, "sh")
            text = template.render(
                version=runbook.__version__,
                spec=spec,
                environment=variables,
                secrets=None,
                file=f"{script}.sh",
                activation=activation,
                stops=possible_stops(spec, "sh", activation),
                probe=RENDEZVOUS_PROBE,
            )
            (folder / f"{script}.sh").write_text(text)


main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
