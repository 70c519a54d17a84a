"""Inventories that are right, of every kind that people have: not one finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.lint.run import lint

SOUND = {
    "two nodes": """
        name: two-node
        rendezvous: {master: node-a, port: 29500, backend: nccl}
        network: {interface: ib0, ports: 29500-29510}
        infiniband: {hca: mlx5, min_rate_gbps: 200}
        env: {NCCL_DEBUG: WARN}
        defaults: {ssh: {user: ubuntu, key: ~/.ssh/id_ed25519}, python: /opt/venv/bin/python, gpus: 8}
        nodes:
          node-a: {address: 10.0.0.1}
          node-b: {address: 10.0.0.2, ssh: {host: bastion-side-name}}
        """,
    "a thousand nodes": """
        defaults: {gpus: 8, workdir: /scratch/runbook, activate: conda activate train}
        nodes:
          "gn[0001-0250]": {address: "10.1.0.[1-250]"}
          "gn[0251-0500]": {address: "10.1.1.[1-250]"}
          "gn[0501-1000]": {address: "gn[0501-1000].cluster.example"}
        groups:
          old: {nodes: "gn[0001-0250]", defaults: {gpus: 4, python: /opt/old/bin/python3.8}}
          racks: {nodes: ["gn[0251-0300]", "gn[0901-1000]"], defaults: {env: {NCCL_SOCKET_IFNAME: ens5}}}
        """,
    "a wide network": """
        nodes:
          "gn[0-1]": {address: "10.0.1.[255,0]", gpus: 8}
          "gn[2-3]": {address: "10.0.2.[0-1]", gpus: 8}
        """,
    "one Windows machine": """
        defaults: {shell: bat, activate: call conda activate stable-diffusion-webui}
        nodes:
          chensong: {address: 192.168.1.20, gpus: 1, workdir: 'D:\\runbook'}
        """,
    "one Windows machine by name": """
        rendezvous: {address: localhost, port: 8514, backend: gloo}
        nodes:
          chensong: {shell: ps1, gpus: 1, activate: 'C:\\venv\\Scripts\\Activate.ps1'}
        """,
    "two Windows machines": """
        rendezvous: {master: desk-1, address: 192.168.1.21, port: 8514}
        defaults: {shell: ps1, python: 'C:\\venv\\Scripts\\python.exe', gpus: 1, workdir: C:/runbook}
        nodes:
          desk-1: {address: 192.168.1.21}
          desk-2: {address: 192.168.1.22, activate: '& C:\\tools\\conda-hook.ps1'}
        """,
    "behind a bastion": """
        defaults: {ssh: {user: ada, jump: "ops@bastion.example:2222", host_keys: accept-new, connect_timeout: 30s}}
        nodes:
          "gn[01-02]": {address: "10.0.1.[1-2]", gpus: 8}
        groups:
          inner: {nodes: gn02, defaults: {ssh: {jump: "bastion.example,gn01"}}}
        """,
    "a lab on this machine": """
        rendezvous: {port: 29500, backend: gloo}
        network: {interface: lo, ports: 29500-29510}
        defaults: {connection: local, processes: 2}
        nodes:
          node-a: {address: 127.0.0.1}
          node-b: {address: 127.0.0.2}
        """,
    "a lab on this machine with one GPU": """
        rendezvous: {backend: gloo}
        defaults: {connection: local, gpus: [0]}
        nodes:
          node-a: {address: 127.0.0.1}
          node-b: {address: 127.0.0.2}
        """,
    "the controller is a node": """
        defaults: {ssh: {user: ada}}
        nodes:
          controller: {address: 10.0.0.1, connection: local, gpus: 2}
          server: {address: 10.0.0.2, gpus: 2}
        """,
    "one and three GPUs": """
        nodes:
          node-a: {address: 10.0.0.1, gpus: [2]}
          node-b: {address: 10.0.0.2, gpus: [0, 1, 3]}
        """,
    "two cards": """
        rendezvous: {master: node-b, address: 192.168.7.2}
        nodes:
          node-a: {address: 10.0.0.1, gpus: 8}
          node-b: {address: 10.0.0.2, gpus: 8}
        """,
    "the master's other name": """
        rendezvous: {address: node-a-ib.cluster.example}
        nodes:
          node-a: {address: node-a.cluster.example, gpus: 8}
          node-b: {address: node-b.cluster.example, gpus: 8}
        """,
    "the master's address, written another way": """
        rendezvous: {address: "FD00:0:0::1"}
        nodes:
          node-a: {address: "fd00::1", gpus: 8}
          node-b: {address: "fd00::2", gpus: 8}
        """,
    "containers on two hosts": """
        defaults: {ssh: {user: root}}
        nodes:
          left-1: {address: 10.0.0.1, ssh: {port: 2201}, gpus: [0, 1]}
          left-2: {address: 10.0.0.1, ssh: {port: 2202}, gpus: [2, 3]}
          right-1: {address: 172.17.0.2, ssh: {host: 10.0.0.2, port: 2201}, gpus: [0, 1]}
          right-2: {address: 172.17.0.3, ssh: {host: 10.0.0.2, port: 2202}, gpus: [0, 1]}
        """,
    "CPU ranks only": """
        rendezvous: {port: 23456}
        defaults: {processes: 64}
        nodes:
          "cpu[1-3]": {address: "10.0.0.[1-3]"}
        """,
    "CPU and GPU nodes on purpose": """
        rendezvous: {backend: gloo}
        defaults: {processes: 16}
        nodes:
          node-a: {address: 10.0.0.1, gpus: 2}
          node-b: {address: 10.0.0.2}
        """,
    "host names and nothing else": """
        nodes: {gn01: {gpus: 4}, gn02: {gpus: 4}, gn10: {gpus: 4}}
        order: name
        """,
    "data ports that the kernel gives out too": """
        network: {ports: [29500, 40000-40100]}
        nodes:
          "gn[01-02]": {address: "10.0.1.[1-2]", gpus: 8}
        """,
    "secrets from the environment": """
        env: {WANDB_API_KEY: {env: WANDB_API_KEY}, HF_TOKEN: {env: HF_TOKEN}, TOKENIZERS_PARALLELISM: false}
        nodes:
          node-a: {address: 10.0.0.1, vars: {token_file: /run/secrets/token, max_tokens: 4096, sort_key: loss, pass: 2}}
        """,
    "modules and one-liners": """
        nodes:
          node-a: {address: 10.0.0.1, activate: module load cuda/12.4 && . ~/venv/bin/activate}
          node-b: {address: 10.0.0.2, activate: 'eval "$(micromamba shell hook -s posix)" && micromamba activate train'}
          node-c: {address: 10.0.0.3, activate: set -a; . /etc/train.env}
          node-d: {address: 10.0.0.4, activate: source /opt/venv/bin/activate}
        """,
}


@pytest.mark.parametrize("text", SOUND.values(), ids=list(SOUND))
def test_nothing_is_found(text: str, tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(text, encoding="utf-8")
    report = lint([str(file)])
    assert [(finding.rule.id, finding.message) for finding in report.findings] == []


def test_nothing_is_found_in_what_is_shipped() -> None:
    top = Path(__file__).parents[2]
    report = lint([str(top / "inventories"), str(top / "playbooks")])
    assert [(finding.rule.id, str(finding.span)) for finding in report.findings] == []
