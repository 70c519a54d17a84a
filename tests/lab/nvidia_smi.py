"""What stands in for nvidia-smi on a host of the lab: run there as a program, with /run/lab-gpus.json for its hardware.

It prints what nvidia-smi 550 prints for the questions it knows, refuses fields and options as that does, and obeys the
few orders (reset, MIG, compute mode) that a remedy may give. Orders want root.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

HARDWARE = Path("/run/lab-gpus.json")
UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB"}
NO = "N/A"


def main(words: list[str]) -> int:
    hardware = json.loads(HARDWARE.read_text())
    gpus, options = hardware["gpus"], read_options(words)
    if not gpus:
        print("No devices were found")
        return 6
    if "-i" in options:
        gpus = [gpu for gpu in gpus if gpu["index"] in options["-i"].split(",")]
    orders = {"--gpu-reset": reset, "-r": reset, "-mig": mig, "-c": compute_mode}
    for word, order in orders.items():
        if word in options:
            if os.geteuid() != 0:
                print("Insufficient Permissions")
                return 4
            for gpu in gpus:
                order(gpu, options[word])
            HARDWARE.write_text(json.dumps(hardware))
            print("All done.")
            return 0
    reachable = [gpu for gpu in gpus if not gpu.get("lost")]
    code = 0
    if "--query-gpu" in options:
        code = query(reachable, options["--query-gpu"], options.get("--format", ""))
    elif "--query-compute-apps" in options:
        code = query(apps(reachable, hardware), options["--query-compute-apps"], options.get("--format", ""))
    elif "nvlink" in options:
        links(reachable)
    elif "-L" in options:
        for gpu in reachable:
            print("GPU {index}: {name} (UUID: {uuid})".format(**gpu))
    elif "-q" in options:
        details(reachable, hardware)
    else:
        print("| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda} |".format(**hardware))
    for gpu in gpus:
        if gpu.get("lost"):
            place = "GPU{}: {}".format(gpu["index"], gpu["pci.bus_id"][4:])
            print("Unable to determine the device handle for {}: {}".format(place, gpu["lost"]), file=sys.stderr)
    return code


def read_options(words: list[str]) -> dict[str, str]:
    """`--name=value`, `-x value` where a value is taken, and bare words."""
    options: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, _, value = word.partition("=")
        options[name] = left.pop(0) if name in ("-i", "-mig", "-c") and left else value
    return options


def query(rows: list[dict[str, Any]], names: str, form: str) -> int:
    fields = names.split(",")
    for name in fields:
        if rows and name not in rows[0]:
            print(f'Field "{name}" is not a valid field to query.\n')
            return 2
    if "noheader" not in form:
        print(", ".join(name + (" [MiB]" if name in UNITS else "") for name in fields))
    for row in rows:
        units = {} if "nounits" in form else UNITS
        print(", ".join((row[name] + " " + units.get(name, "")).strip() for name in fields))
    return 0


def apps(gpus: list[dict[str, Any]], hardware: dict[str, Any]) -> list[dict[str, Any]]:
    by_index = {gpu["index"]: gpu for gpu in gpus}
    return [
        {
            "pid": str(app["pid"]),
            "gpu_uuid": by_index[app["gpu"]]["uuid"],
            "used_memory": app["mib"],
            "process_name": app["name"],
        }
        for app in hardware["apps"]
        if app["gpu"] in by_index
    ]


def links(gpus: list[dict[str, Any]]) -> None:
    for gpu in gpus:
        print("GPU {index}: {name} (UUID: {uuid})".format(**gpu))
        states = gpu["links"]
        if states and not any(states):
            print("NVML: Unable to retrieve NVLink information as all links are inActive")
            continue
        for number, up in enumerate(states):
            print(f"\t Link {number}: {'26.562 GB/s' if up else '<inactive>'}")


def details(gpus: list[dict[str, Any]], hardware: dict[str, Any]) -> None:
    def line(depth: int, name: str, value: str | None = None) -> None:
        print("    " * depth + (name if value is None else name.ljust(42 - 4 * depth) + ": " + value))

    print("\n==============NVSMI LOG==============\n")
    line(0, "Driver Version", hardware["driver"])
    line(0, "CUDA Version", hardware["cuda"])
    line(0, "Attached GPUs", str(len(gpus)))
    for gpu in gpus:
        line(0, "GPU " + gpu["pci.bus_id"])
        line(1, "Product Name", gpu["name"])
        line(1, "Compute Mode", gpu["compute_mode"])
        line(1, "GPU Recovery Action", gpu["recovery"])
        line(1, "FB Memory Usage")
        line(2, "Total", gpu["memory.total"] + " MiB")
        line(1, "Remapped Rows")
        line(2, "Pending", gpu["remap_pending"])
        line(2, "Remapping Failure Occurred", "No")
        line(1, "Fabric")
        line(2, "State", gpu["fabric"])
        line(2, "Status", "Success" if gpu["fabric"] == "Completed" else NO)


def reset(gpu: dict[str, Any], _value: str) -> None:
    gpu.update({"ecc.errors.uncorrected.volatile.total": "0", "remap_pending": "No", "recovery": "None"})
    gpu.pop("lost", None)


def mig(gpu: dict[str, Any], value: str) -> None:
    gpu["mig.mode.current"] = "Enabled" if value == "1" else "Disabled"


def compute_mode(gpu: dict[str, Any], value: str) -> None:
    gpu["compute_mode"] = {"DEFAULT": "Default", "0": "Default"}.get(value, value.title())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
