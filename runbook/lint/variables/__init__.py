"""The environment variables that NCCL, PyTorch, gloo, JAX, CUDA and the launchers read: one JSON file a reader.

Each entry says how its value is read (`kind`), what may stand there, since when the name is read and until when, and
what to write in its place. It is the project's own table: names and dates from the official guides and the released
sources, behaviour as `NCCL's ncclLoadParam`, `PyTorch's getCvarBool` and JAX's `bool_env` have it.
"""
