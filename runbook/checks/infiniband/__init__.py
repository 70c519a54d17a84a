"""InfiniBand and RoCE ports: what is there, which of them NCCL takes, and whether it did."""
