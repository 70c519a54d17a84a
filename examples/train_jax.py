"""A small real training in JAX: one program over the devices of all processes, each with its share of every batch.

launch: {launcher: jax, command: [train_jax.py], workdir: ~/work}     a stage of a playbook: all ranks of the inventory
python examples/train_jax.py --steps 40                               one process, no launcher

The same data, model and order on any number of processes: with --batch a multiple of the number of devices the loss of
every step is that of one process, up to rounding.

A process that does not come within --patience ends all others: jax.distributed.initialize() raises nothing, it aborts
below Python, with DEADLINE_EXCEEDED on stderr and exit code 134, so no `except` gets to run. Nor can a lost process
come back into its job. That is why nothing here tries again: the whole job is started again, by `retries:` of the
launch.

Once they have met, a process that raises must not end as Python ends: on the way out JAX waits up to five minutes for
the others, who wait in a collective for this one, and none learns of it. So the last lines exit without that."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, HIDDEN = 32, 64
RATE = 0.1
Params = dict[str, jax.Array]


def main() -> None:
    options = parse()
    join(options.patience)
    mesh = Mesh(jax.devices(), "data")
    say(f"{jax.device_count()} devices in {jax.process_count()} processes")
    rows, copies = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    params: Params = jax.jit(first_params, static_argnums=0, out_shardings=copies)(options.seed)
    for step in range(options.steps):
        inputs, targets = batch(step, options.batch, options.seed)
        params, loss = update(params, spread(inputs, rows), spread(targets, rows))
        say(f"step {step} loss {loss:.6f}")
        time.sleep(options.pause)


def join(patience_s: int) -> None:
    """Meet the other processes, if there are any; it ends the process where they do not meet.

    JAX itself reads JAX_COORDINATOR_ADDRESS and JAX_LOCAL_DEVICE_IDS. It has no variables for the number of processes
    and for which of them this is: what every launcher sets as WORLD_SIZE and RANK."""
    if "RANK" not in os.environ:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # GPUs use NCCL, whatever this says
    # It would catch SIGTERM, for programs that write a checkpoint when their machine is taken away. This one has none.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
        initialization_timeout=patience_s,
        cluster_detection_method="deactivate",  # inside of Slurm or MPI it would ask these instead
    )


@jax.jit
def update(params: Params, inputs: jax.Array, targets: jax.Array) -> tuple[Params, jax.Array]:
    """One step of gradient descent, and the loss before it, over all rows.

    Nothing here says that the rows lie on many devices: XLA sees it, and puts the all-reduce into the gradients.
    """
    loss, gradients = jax.value_and_grad(mean_squared_error)(params, inputs, targets)
    return jax.tree.map(lambda value, gradient: value - RATE * gradient, params, gradients), loss


def mean_squared_error(params: Params, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] + params["b2"] - targets) ** 2)


def first_params(seed: int) -> Params:
    one, two = jax.random.split(jax.random.key(seed))
    return {
        "w1": jax.random.normal(one, (WIDTH, HIDDEN)) / WIDTH**0.5,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(two, (HIDDEN, 1)) / HIDDEN**0.5,
        "b2": jnp.zeros(1),
    }


def batch(step: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs (size, WIDTH) and targets (size, 1) of a step, the same in every process."""
    inputs = np.random.default_rng([seed, step]).standard_normal((size, WIDTH), dtype=np.float32)
    return inputs, np.tanh(inputs[:, :4].sum(axis=1, keepdims=True))


def spread(whole: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """One array over all devices; every process puts only the rows of its own devices there."""
    return jax.make_array_from_callback(whole.shape, sharding, lambda mine: whole[mine])


def say(text: str) -> None:
    if jax.process_index() == 0:
        print(text, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=48, help="rows of all devices together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=int, default=120, help="seconds to wait for the other processes")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step, to look at a run")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001 - whatever it is
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
