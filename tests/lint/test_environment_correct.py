"""Inventories as people write them, for clusters as they are: no rule about variables has anything to say."""

from __future__ import annotations

from pathlib import Path

import pytest

from .environment_findings import findings

CORRECT = {
    "the contract's own example": """
rendezvous: {master: node-a, address: 10.0.0.1, port: 29500, backend: nccl}
network: {interface: eth0, ports: 29500-29510}
infiniband: {hca: mlx5, min_rate_gbps: 200}
env: {NCCL_DEBUG: INFO}
defaults: {python: /opt/venv/bin/python}
nodes:
  node-a: {address: 10.0.0.1, gpus: 2}
  node-b: {address: 10.0.0.2, gpus: [0, 1], env: {NCCL_SOCKET_IFNAME: ens5}}
  "gn[01-04]": {address: "10.0.1.[1-4]", gpus: 8}
groups:
  rack1: {nodes: "gn[01-02]", defaults: {env: {NCCL_IB_HCA: "=mlx5_0,mlx5_1"}}}
""",
    "an InfiniBand cluster": """
network: {interface: ib0}
infiniband: {hca: "=mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11", min_rate_gbps: 400}
env:
  NCCL_DEBUG: WARN
  NCCL_IB_TIMEOUT: 22
  NCCL_IB_RETRY_CNT: 7
  NCCL_IB_QPS_PER_CONNECTION: 4
  NCCL_IB_SPLIT_DATA_ON_QPS: 0
  NCCL_IB_SL: 1
  NCCL_NVLS_ENABLE: 1
  NCCL_NET_GDR_LEVEL: PXB
  NCCL_CROSS_NIC: 0
  NCCL_COLLNET_ENABLE: 1
  SHARP_COLL_ENABLE_SAT: 1
  TORCH_NCCL_ASYNC_ERROR_HANDLING: 1
  TORCH_NCCL_BLOCKING_WAIT: 0
  TORCH_NCCL_TRACE_BUFFER_SIZE: 20000
  TORCH_NCCL_DUMP_ON_TIMEOUT: true
  TORCH_DISTRIBUTED_DEBUG: INFO
  PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True"
  CUDA_DEVICE_MAX_CONNECTIONS: 1
  OMP_NUM_THREADS: 8
defaults: {gpus: 8}
nodes:
  "dgx[01-32]": {address: "10.0.0.[1-32]"}
""",
    "two interfaces, exactly these for NCCL": """
network: {interface: "eth1,eth0"}
env: {NCCL_SOCKET_IFNAME: "=eth0,eth1"}
defaults: {gpus: 8}
nodes:
  "gn[01-02]": {address: "10.0.0.[1-2]"}
""",
    "RoCE with a GID index": """
network: {interface: bond0}
infiniband: {hca: mlx5_bond, min_rate_gbps: 200}
env:
  NCCL_IB_GID_INDEX: 3
  NCCL_IB_TC: 106
  NCCL_IB_FIFO_TC: 184
  NCCL_IB_ROCE_VERSION_NUM: 2
  NCCL_IB_ADDR_FAMILY: AF_INET
  NCCL_IB_PCI_RELAXED_ORDERING: 1
  NCCL_SOCKET_IFNAME: bond0
  GLOO_SOCKET_IFNAME: bond0
  UCX_NET_DEVICES: bond0
defaults: {gpus: 8}
nodes:
  "h100-[01-08]": {address: "10.8.0.[1-8]"}
""",
    "RoCE whose GID differs by node": """
network: {interface: enp1s0f0np0}
defaults: {gpus: 4, env: {NCCL_IB_HCA: "^=mlx5_2"}}
nodes:
  a: {address: 10.0.0.1, env: {NCCL_IB_GID_INDEX: 3}}
  b: {address: 10.0.0.2, env: {NCCL_IB_GID_INDEX: 5}}
""",
    "AWS with EFA": """
network: {interface: ens32}
env:
  FI_PROVIDER: efa
  FI_EFA_USE_DEVICE_RDMA: 1
  FI_EFA_FORK_SAFE: 1
  RDMAV_FORK_SAFE: 1
  NCCL_OFI_NIC_DUP_CONNS: 2
  NCCL_PROTO: simple
  NCCL_ALGO: Ring
  NCCL_NET: AWS Libfabric
  NCCL_NET_PLUGIN: aws-ofi
  NCCL_TUNER_PLUGIN: /opt/amazon/ofi-nccl/lib/libnccl-tuner-ofi.so
  NCCL_SOCKET_IFNAME: "^docker,lo,veth"
  NCCL_TOPO_FILE: /opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/p5.48xl-topo.xml
  LD_LIBRARY_PATH: /opt/amazon/efa/lib:/usr/local/cuda/lib64
defaults: {gpus: 8}
nodes:
  "p5-[1-4]": {address: "10.1.0.[1-4]"}
""",
    "Google Cloud with TCPX": """
network: {interface: eth0}
env:
  NCCL_GPUDIRECTTCPX_SOCKET_IFNAME: eth1,eth2,eth3,eth4
  NCCL_GPUDIRECTTCPX_CTRL_DEV: eth0
  NCCL_GPUDIRECTTCPX_FORCE_ACK: 0
  NCCL_GPUDIRECTTCPX_TX_BINDINGS: "eth1:8-21,112-125;eth2:8-21,112-125"
  NCCL_NET: GPUDirectTCPX_v7
  NCCL_DYNAMIC_CHUNK_SIZE: 524288
  NCCL_P2P_NET_CHUNKSIZE: 524288
  NCCL_P2P_PCI_CHUNKSIZE: 524288
  NCCL_P2P_NVL_CHUNKSIZE: 1048576
  NCCL_BUFFSIZE: 4194304
  NCCL_NSOCKS_PERTHREAD: 4
  NCCL_SOCKET_NTHREADS: 1
  NCCL_P2P_PXN_LEVEL: 0
  NCCL_NET_GDR_LEVEL: PIX
  NCCL_CROSS_NIC: 0
  NCCL_FASTRAK_NUM_FLOWS: 2
  NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE: /var/lib/tcpxo/guest_config.textproto
  NCCL_TUNER_CONFIG_PATH: /var/lib/tcpxo/tuner.textproto
  CUDA_VISIBLE_DEVICES: 0,1,2,3,4,5,6,7
defaults: {gpus: 8}
nodes:
  "a3-[0-3]": {address: "10.128.0.[2-5]"}
""",
    "Ethernet only": """
network: {interface: eth1}
env: {NCCL_IB_DISABLE: 1, NCCL_SOCKET_NTHREADS: 4, NCCL_NSOCKS_PERTHREAD: 4, NCCL_DEBUG: VERSION}
defaults: {gpus: 2}
nodes:
  box-1: {address: 192.168.1.11}
  box-2: {address: 192.168.1.12}
""",
    "in the manner of Slurm": """
env:
  NCCL_DEBUG: INFO
  NCCL_DEBUG_SUBSYS: INIT,NET,ENV
  NCCL_DEBUG_FILE: /scratch/logs/nccl.%h.%p.log
  SLURM_CPU_BIND: none
  TORCH_EXTENSIONS_DIR: /scratch/ext
  TORCH_HOME: /scratch/torch
  TORCH_LOGS: "+dynamo"
  TORCHINDUCTOR_CACHE_DIR: /scratch/inductor
  TORCH_CUDA_ARCH_LIST: "8.0;9.0"
  TORCH_COMPILE_DEBUG: 0
  TRITON_CACHE_DIR: /scratch/triton
  HF_HOME: /scratch/hf
  WANDB_API_KEY: {env: WANDB_API_KEY}
  WANDB_MODE: offline
  TOKENIZERS_PARALLELISM: false
  NCCL_SOCKET_IFNAME: hsn
  GLOO_SOCKET_IFNAME: hsn0
  TP_SIZE: 8
defaults: {gpus: 4}
nodes:
  "nid[0001-0016]": {address: "10.4.0.[1-16]"}
""",
    "JAX on GPUs": """
env:
  JAX_PLATFORMS: cuda
  JAX_ENABLE_X64: true
  JAX_COORDINATOR_BIND_ADDRESS: 0.0.0.0:29500
  JAX_COMPILATION_CACHE_DIR: /data/jax
  JAX_CPU_COLLECTIVES_IMPLEMENTATION: gloo
  JAX_TRACEBACK_FILTERING: "off"
  XLA_FLAGS: "--xla_gpu_enable_latency_hiding_scheduler=true"
  XLA_PYTHON_CLIENT_MEM_FRACTION: .92
  XLA_PYTHON_CLIENT_PREALLOCATE: false
  TORCH_NCCL_USE_COMM_NONBLOCKING: 0
  TORCH_NCCL_NONBLOCKING_TIMEOUT: 600
  NCCL_DEBUG: WARN
defaults: {gpus: 8}
nodes:
  "n[1-2]": {address: "10.0.0.[1-2]"}
""",
    "JAX on TPUs": """
env: {JAX_PLATFORMS: "tpu,cpu", TPU_WORKER_ID: 0, JAX_LOG_COMPILES: 1, LIBTPU_INIT_ARGS: --xla_tpu_spmd=true}
nodes:
  "tpu-[0-3]": {address: "10.164.0.[2-5]"}
""",
    "AMD GPUs": """
network: {interface: ens50f0}
env:
  RCCL_MSCCL_ENABLE: 0
  HSA_FORCE_FINE_GRAIN_PCIE: 1
  HIP_VISIBLE_DEVICES: "0,1,2,3"
  ROCR_VISIBLE_DEVICES: "0,1,2,3"
  HCCL_OVER_OFI: 1
  NCCL_IB_HCA: "=bnxt_re0,bnxt_re1"
  NCCL_MIN_CTAS: 32
  NCCL_IB_PCI_RELAXED_ORDERING: 1
defaults: {gpus: 4}
nodes:
  mi-1: {address: 10.0.0.1}
  mi-2: {address: 10.0.0.2}
""",
    "CPU ranks over gloo": """
network: {interface: eth0}
env: {GLOO_SOCKET_IFNAME: "eth0,eth1", TORCH_GLOO_LAZY_INIT: 1, GLOO_LOG_LEVEL: INFO, TORCH_CPP_LOG_LEVEL: info}
defaults: {processes: 4, env: {TORCH_FR_BUFFER_SIZE: 2000, CUDA_VISIBLE_DEVICES: ""}}
nodes:
  c1: {address: 10.0.0.1}
  c2: {address: 10.0.0.2, env: {GLOO_SOCKET_IFNAME: ""}}
""",
    "one Windows machine": """
nodes:
  desk:
    address: 127.0.0.1
    connection: local
    shell: bat
    gpus: 1
    env: {USE_LIBUV: 0, gloo_socket_ifname: "Ethernet 2", CUDA_VISIBLE_DEVICES: 0, KMP_DUPLICATE_LIB_OK: "TRUE"}
""",
    "both nodes on this machine": """
network: {interface: lo}
defaults: {connection: local, env: {GLOO_SOCKET_IFNAME: lo}}
nodes:
  one: {address: 127.0.0.1}
  two: {address: 127.0.0.2}
""",
    "a dense box with NVLink": """
env:
  NCCL_P2P_LEVEL: NVL
  NCCL_P2P_DISABLE: 0
  NCCL_SHM_DISABLE: false
  NCCL_ALGO: "allreduce:tree,nvlstree;broadcast:^pat"
  NCCL_PROTO: "^LL128"
  NCCL_CTA_POLICY: EFFICIENCY|ZERO
  NCCL_CUMEM_ENABLE: 0
  NCCL_MNNVL_ENABLE: 2
  NCCL_DEBUG_SUBSYS: ^ALLOC,CALL
  NCCL_SOCKET_FAMILY: AF_INET6
  NCCL_SOCKET_MAGIC: "0xfedcba9876543210"
  NCCL_DEBUG_TIMESTAMP_FORMAT: "%FT%T.%3f"
  TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 1800
nodes:
  gb200: {address: 10.0.0.1, gpus: [0, 1, 2, 3], env: {CUDA_VISIBLE_DEVICES: "3,2,1,0"}}
""",
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_inventory_is_not_complained_about(name: str, tmp_path: Path) -> None:
    assert [f"{finding.span}: {finding.message}" for finding in findings(tmp_path, CORRECT[name])] == []


def test_what_we_ship_is_not_complained_about() -> None:
    from runbook.files.shipped_files import shipped_path
    from runbook.lint.run import lint

    report = lint([str(shipped_path("inventories")), str(shipped_path("playbooks"))])
    assert [f"{finding.span}: {finding.message}" for finding in report.findings if "env." in finding.rule.id] == []
