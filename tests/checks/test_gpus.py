"""GPUs: what nvidia-smi and the kernel tell of them to findings. Each recorded answer in, one root out."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.checks.context import Facts
from runbook.checks.reach.gpus import GpuJudgement, driver_warnings, judge_gpus, old_driver_finding
from runbook.parsers.nvidia_logs import xid_events
from runbook.parsers.nvidia_smi_facts import bus_key, parse_apps, parse_details, parse_gpus, parse_links, slowdown_names

from .made_up_cluster import node

GPUS = node("node-a", gpus=(0, 1))
FIELDS = ["index", "uuid", "name", "memory.total", "memory.used", "driver_version", "pci.bus_id"]
MORE = ["ecc.errors.uncorrected.volatile.total", "retired_pages.pending", "mig.mode.current", "compute_mode"]
UUID = "GPU-8e6a9b1c-0000-0000-0000-00000000000"
BUS = {0: "00000000:1B:00.0", 1: "00000000:3B:00.0", 2: "00000000:4C:00.0", 3: "00000000:5D:00.0"}


def line(index: int, *more: str, used: int = 4, name: str = "NVIDIA H100 80GB HBM3") -> str:
    return ", ".join([f"{index}, {UUID}{index}, {name}, 81559, {used}, 550.90.07, {BUS[index]}", *more]) + "\n"


TWO = line(0) + line(1)


def smi(out: str = "", code: int | None = 0, err: str = "", fields: list[str] | None = None) -> Facts:
    return {"out": out, "err": err, "code": code, "fields": fields or FIELDS}


def asked(gpu: Facts, **others: Any) -> Facts:
    """What the node program says; the kernel's log is empty, and nothing else was asked, unless given."""
    return {"gpu": gpu, "dmesg": [], "journal": [], "uptime_s": 5000.0, "pci": 2, **others}


def causes(judged: GpuJudgement) -> list[str]:
    return [finding.cause for finding in (*judged.findings, *judged.unknown)]


def healthy(judged: GpuJudgement) -> bool:
    return not judged.findings and not judged.unknown


def test_the_gpus_of_the_inventory_are_there() -> None:
    for text, gpus in ((TWO, (0, 1)), (TWO, (1,)), (TWO + line(2) + line(3), (0, 1))):
        judged = judge_gpus(node("node-a", gpus=gpus), asked(smi(text)))
        assert healthy(judged)
        assert [gpu.index for gpu in judged.gpus] == list(gpus)
        assert judged.driver == "550.90.07"


def test_a_card_that_the_driver_does_not_show_is_told() -> None:
    said = "the PCI bus has 2"
    assert said in judge_gpus(GPUS, asked(smi(line(0)), pci=2)).findings[0].evidence
    for pci in (0, 1, None):
        assert len(judge_gpus(GPUS, asked(smi(line(0)), pci=pci)).findings[0].evidence) == 1


COULD_NOT_TELL = {"tool-missing", "tool-output-unknown"}


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"missing": True}, "tool-missing"),
        ({"timed_out": True, "code": None, "out": "", "err": ""}, "gpu-tool-hung"),
        (smi(""), "tool-output-unknown"),
        (smi("\n\n"), "tool-output-unknown"),
        (smi("Sat Nov 21 03:00:00 2026\n+-----+\n| NVIDIA-SMI |\n"), "tool-output-unknown"),
        (smi("a, b, c\n"), "tool-output-unknown"),
        (smi(TWO, code=139), "tool-output-unknown"),
        (smi(TWO, code=-9), "tool-output-unknown"),
        (smi("", code=None, err="[Errno 8] Exec format error"), "tool-output-unknown"),
        (smi(TWO[:130]), "tool-output-unknown"),
        (smi(line(0) + line(1)[:-12]), "tool-output-unknown"),
        (smi(line(0) + "1, , , , , ,\n"), "tool-output-unknown"),
        (smi(line(0)), "gpu-count-mismatch"),
        (smi(line(0) + line(2)), "gpu-count-mismatch"),
        (smi("No devices were found\n", code=6), "gpu-count-mismatch"),
        (smi("No devices were found\n"), "gpu-count-mismatch"),  # some drivers end with 0 here
        (
            smi("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54\n", code=18),
            "driver-library-mismatch",
        ),
        (
            smi(
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that\n", code=9
            ),
            "no-gpu-visible",
        ),
        (smi("Failed to initialize NVML: Driver Not Loaded\n", code=9), "no-gpu-visible"),
        (smi("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", code=12), "no-gpu-visible"),
        (smi("Failed to initialize NVML: Unknown Error\n", code=255), "no-gpu-visible"),
        (smi("Failed to initialize NVML: Insufficient Permissions\n", code=4), "no-gpu-visible"),
        # In another language, or in none: the exit code tells as well, where nvidia-smi's manual says what it means.
        (smi("Treiber nicht geladen\n", code=9), "no-gpu-visible"),
        (smi("", code=12), "no-gpu-visible"),
        (smi("", code=15), "gpu-fell-off-bus"),
        (smi("", code=18), "driver-library-mismatch"),
        (smi("", code=255), "tool-output-unknown"),
        (smi("", code=-11), "tool-output-unknown"),
        # In the words of four drivers; the console of one wraps them; some end with 0, and list the others.
        (
            smi(
                "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot\n the system to\n",
                code=15,
            ),
            "gpu-fell-off-bus",
        ),
        (
            smi(
                "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to ",
                code=15,
            ),
            "gpu-fell-off-bus",
        ),
        (
            smi(line(0), err="Unable to determine the device handle for GPU1: 0000:3B:00.0: Unknown Error\n"),
            "gpu-fell-off-bus",
        ),
        (smi("Unable to determine the device handle for GPU1: Unknown Error\n" + line(0)), "gpu-fell-off-bus"),
        (smi(line(0) + line(1).replace("81559", "[GPU is lost]")), "gpu-fell-off-bus"),
        (smi(line(0) + line(1).replace("81559", "[GPU requires reset]")), "gpu-reset-required"),
        (smi(line(0) + line(1).replace("81559", "[Unknown Error]")), "tool-output-unknown"),
        (smi(line(0) + line(1).replace("81559", "ERR!")), "tool-output-unknown"),
    ],
)
def test_what_else_nvidia_smi_says_is_never_healthy(answer: Facts, cause: str) -> None:
    judged = judge_gpus(GPUS, asked(answer))
    assert causes(judged) == [cause]
    assert bool(judged.unknown) == (cause in COULD_NOT_TELL)
    for finding in (*judged.findings, *judged.unknown):
        assert finding.evidence
        assert "node-a" in finding.says


def test_no_answer_at_all_is_not_healthy() -> None:
    silent: list[Facts] = [{}, {"gpu": None}, {"gpu": {}}]
    for facts in silent:
        assert causes(judge_gpus(GPUS, facts)) == ["tool-output-unknown"]


@given(
    text=st.text() | st.text(string.printable), code=st.sampled_from([0, 1, 14, 255, None, -9]), fields=st.just(FIELDS)
)
def test_no_text_is_healthy_without_a_whole_line_for_every_gpu(text: str, code: int | None, fields: list[str]) -> None:
    assert not healthy(judge_gpus(GPUS, asked(smi(text, code, fields=fields))))
    assert not healthy(judge_gpus(GPUS, asked(smi(line(0) + text, code, err=text, fields=fields))))


@given(cut=st.integers(0, len(TWO) - 1))
def test_no_beginning_of_a_healthy_list_is_healthy(cut: int) -> None:
    assert not healthy(judge_gpus(GPUS, asked(smi(TWO[:cut]))))


@given(noise=st.dictionaries(st.sampled_from(["apps", "links", "all"]), st.text()), log=st.lists(st.text(), max_size=4))
def test_the_other_questions_never_break_the_judgement(noise: dict[str, str], log: list[str]) -> None:
    others = {name: {"out": text, "err": "", "code": 0} for name, text in noise.items()}
    assert causes(judge_gpus(GPUS, asked(smi(line(0)), dmesg=log, **others))) == ["gpu-count-mismatch"]


def test_a_warning_of_nvidia_smi_is_none_about_the_gpus() -> None:
    answer = smi(TWO + "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n", code=14)
    assert healthy(judge_gpus(GPUS, asked(answer)))


def test_a_driver_that_does_not_know_a_field_still_tells_the_rest() -> None:
    old = parse_gpus("0, GPU-1, Tesla K80, 11441\n", ["index", "uuid", "name", "memory.total"]).gpus
    assert [(gpu.name, gpu.number("memory.total"), gpu.number("memory.used")) for gpu in old] == [
        ("Tesla K80", 11441.0, None)
    ]


def full(index: int, ecc: str = "0", pages: str = "[N/A]", mig: str = "Disabled", mode: str = "Default") -> str:
    return line(index, ecc, pages, mig, mode)


@pytest.mark.parametrize(
    ("second", "cause", "words"),
    [
        (full(1, ecc="2"), "gpu-ecc-uncorrectable", "--gpu-reset -i 1"),
        (full(1, pages="Yes"), "gpu-reset-required", "--gpu-reset -i 1"),
        (full(1, mig="Enabled"), "gpu-count-mismatch", "-i 1 -mig 0"),
        (full(1, mode="Prohibited"), "gpu-busy", "-i 1 -c DEFAULT"),
    ],
)
def test_one_gpu_that_is_not_fit(second: str, cause: str, words: str) -> None:
    judged = judge_gpus(GPUS, asked(smi(full(0) + second, fields=FIELDS + MORE)))
    assert causes(judged) == [cause]
    assert words in judged.findings[0].remedy
    assert "GPU 1" in judged.findings[0].says
    # Of a GPU that the inventory does not name nobody asks.
    assert healthy(judge_gpus(node("node-a", gpus=(0,)), asked(smi(full(0) + second, fields=FIELDS + MORE))))


@pytest.mark.parametrize(
    "value", ["[N/A]", "N/A", "[Not Supported]", "[Requested functionality has been deprecated]", ""]
)
def test_what_a_card_does_not_have_is_no_fault_of_it(value: str) -> None:
    both = full(0, value, value, value, value) + full(1, value, value, value, value)
    assert healthy(judge_gpus(GPUS, asked(smi(both, fields=FIELDS + MORE))))


DETAILS = """
==============NVSMI LOG==============

Driver Version                            : 550.90.07
CUDA Version                              : 12.4

Attached GPUs                             : 2
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Recovery Action                   : None
    Remapped Rows
        Correctable Error                 : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    Fabric
        State                             : Completed
        Status                            : Success
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Recovery Action                   : None
    Remapped Rows
        Correctable Error                 : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    Fabric
        State                             : Completed
        Status                            : Success
"""


def with_second(old: str, new: str) -> str:
    first, mark, second = DETAILS.partition("GPU 00000000:3B:00.0")
    assert old in second
    return first + mark + second.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("Pending                           : No", "Pending                           : Yes", "gpu-reset-required"),
        ("Occurred        : No", "Occurred        : Yes", "gpu-reset-required"),
        ("Action                   : None", "Action                   : Reset", "gpu-reset-required"),
        ("Action                   : None", "Action                   : Reboot", "gpu-reset-required"),
        (
            "State                             : Completed",
            "State                             : In Progress",
            "fabricmanager-down",
        ),
        (
            "Status                            : Success",
            "Status                            : Failure",
            "fabricmanager-down",
        ),
    ],
)
def test_what_only_the_long_listing_tells(old: str, new: str, cause: str) -> None:
    said = {"out": with_second(old, new), "err": "", "code": 0}
    judged = judge_gpus(GPUS, asked(smi(TWO), all=said))
    assert causes(judged) == [cause]
    assert judged.findings[0].evidence[0].startswith("GPU 1: ")
    assert healthy(judge_gpus(GPUS, asked(smi(TWO), all={"out": DETAILS, "err": "", "code": 0})))


def test_a_card_without_a_fabric_has_no_fabric_manager_to_miss() -> None:
    said = {"out": DETAILS.replace("Completed", "N/A").replace("Success", "N/A"), "err": "", "code": 0}
    assert healthy(judge_gpus(GPUS, asked(smi(TWO), all=said)))


def test_the_long_listing_is_read_with_its_sections() -> None:
    details = parse_details(DETAILS)
    assert details.head["CUDA Version"] == "12.4"
    assert details.gpus["0000:3b:00"]["Remapped Rows/Pending"] == "No"
    assert details.gpus["0000:1b:00"]["Fabric/State"] == "Completed"


# Who else is on a GPU.


def apps(*rows: tuple[int, int, str]) -> Facts:
    """(pid, GPU, MiB) of processes that compute."""
    return {
        "out": "".join(f"{pid}, {UUID}{gpu}, {mib}, /usr/bin/python3\n" for pid, gpu, mib in rows),
        "err": "",
        "code": 0,
    }


ALICE = {"4711": {"user": "alice", "command": "python train.py --big", "ours": False}}


def test_a_gpu_that_another_job_holds() -> None:
    judged = judge_gpus(GPUS, asked(smi(line(0) + line(1, used=64500)), apps=apps((4711, 1, "64000")), processes=ALICE))
    assert causes(judged) == ["gpu-busy"]
    assert (
        "GPU 1 of node-a is in use: pid 4711 of alice (python train.py --big) holds 64000 MiB"
        in judged.findings[0].says
    )
    assert "sudo kill 4711" in judged.findings[0].remedy


def test_a_little_of_a_gpu_in_other_hands_is_a_warning() -> None:
    judged = judge_gpus(GPUS, asked(smi(line(0) + line(1, used=900)), apps=apps((4711, 1, "500")), processes=ALICE))
    assert healthy(judged)
    assert any("pid 4711 of alice" in warning for warning in judged.warnings)


def test_our_own_ranks_are_no_strangers() -> None:
    ours = {"4711": {**ALICE["4711"], "ours": True}}
    judged = judge_gpus(GPUS, asked(smi(line(0) + line(1, used=64500)), apps=apps((4711, 1, "64000")), processes=ours))
    assert healthy(judged)
    assert not judged.warnings


def test_memory_that_nobody_seems_to_hold_is_held_all_the_same() -> None:
    judged = judge_gpus(GPUS, asked(smi(line(0) + line(1, used=64500)), apps=apps()))
    assert causes(judged) == ["gpu-busy"]
    assert "64500 of 81559 MiB" in judged.findings[0].says


def test_a_process_of_another_container_has_only_a_number() -> None:
    judged = judge_gpus(
        GPUS, asked(smi(line(0) + line(1, used=64500)), apps=apps((4711, 1, "[N/A]")), processes={"4711": {}})
    )
    assert causes(judged) == ["gpu-busy"]
    assert "cannot be seen from here" in judged.findings[0].says


@pytest.mark.parametrize("mode", ["Exclusive_Process", "Exclusive_Thread"])
def test_an_exclusive_gpu_lets_in_one_process_only(mode: str) -> None:
    text = full(0) + full(1, mode=mode)
    assert healthy(judge_gpus(GPUS, asked(smi(text, fields=FIELDS + MORE))))
    judged = judge_gpus(GPUS, asked(smi(text, fields=FIELDS + MORE), apps=apps((4711, 1, "300")), processes=ALICE))
    assert causes(judged) == ["gpu-busy"]


def test_what_shares_an_exclusive_gpu_is_no_stranger() -> None:
    text = full(0) + full(1, mode="Exclusive_Process")
    served = {"out": f"99, {UUID}1, 30, nvidia-cuda-mps-server\n", "err": "", "code": 0}
    assert healthy(judge_gpus(GPUS, asked(smi(text, fields=FIELDS + MORE), apps=served)))


def test_lines_that_are_no_processes() -> None:
    assert parse_apps("pid, gpu_uuid, used_memory, process_name\nNo running processes found\n1, x\n") == ()


# NVLink.


def links(*active: str, name: str = "NVIDIA H100 80GB HBM3") -> Facts:
    """Each word is a GPU: a `+` for an active link, a `-` for one that is not; `none` for the message about them all."""
    text = ""
    for index, states in enumerate(active):
        text += f"GPU {index}: {name} (UUID: {UUID}{index})\n"
        if states == "none":
            text += "NVML: Unable to retrieve NVLink information as all links are inActive\n"
            continue
        for number, state in enumerate(states):
            text += f"\t Link {number}: {'26.562 GB/s' if state == '+' else '<inactive>'}\n"
    return {"out": text, "err": "", "code": 0}


@pytest.mark.parametrize("states", [("++++", "+-++"), ("++++", "none"), ("++++", "----")])
def test_a_gpu_with_fewer_links_than_its_like(states: tuple[str, ...]) -> None:
    judged = judge_gpus(GPUS, asked(smi(TWO), links=links(*states)))
    assert causes(judged) == ["nvlink-error"]
    assert "GPU 1 of node-a" in judged.findings[0].says


@pytest.mark.parametrize("states", [("++++", "++++"), ("++--", "--++"), ("none", "none"), ("", "")])
def test_links_that_none_of_them_has_are_not_missed(states: tuple[str, ...]) -> None:
    assert healthy(judge_gpus(GPUS, asked(smi(TWO), links=links(*states))))


@pytest.mark.parametrize(
    "name", ["NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA A40", "NVIDIA A30", "NVIDIA H100 NVL"]
)
def test_a_card_without_a_bridge_is_no_broken_card(name: str) -> None:
    text = line(0, name=name) + line(1, name=name)
    assert healthy(judge_gpus(GPUS, asked(smi(text), links=links("++++", "none", name=name))))


def test_links_are_read_as_they_are_printed() -> None:
    assert parse_links(links("+-", "none")["out"]) == {0: {0: True, 1: False}, 1: {}}
    assert parse_links("Link 0: 25 GB/s\n") == {}


# The kernel's log. `age_s` before an uptime of 5000 s.


def xid(number: int, text: str, *, at: str = "0000:3b:00", age_s: float = 60) -> str:
    return f"[{5000 - age_s:12.6f}] NVRM: Xid (PCI:{at}): {number}, {text}"


@pytest.mark.parametrize(
    ("line_of_log", "cause"),
    [
        (xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), "gpu-fell-off-bus"),
        (xid(48, "pid=1, DBE (double bit error) ECC Error"), "gpu-ecc-uncorrectable"),
        (xid(94, "pid=1, Contained: SM (0x1)."), "gpu-ecc-uncorrectable"),
        (xid(95, "pid=1, Uncontained: LTC TAG"), "gpu-ecc-uncorrectable"),
        (xid(74, "pid=1, NVLink: fatal error detected on link 6"), "nvlink-error"),
        (xid(119, "pid=1, Timeout after 6s of waiting for RPC response from GPU1 GSP!"), "gpu-reset-required"),
        (xid(120, "GSP Error: Task 1 raised error code 0x5"), "gpu-reset-required"),
        ("[ 4990.000000] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 33 egress", "nvlink-error"),
        (
            "Nov 21 03:00:00 node kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
            "gpu-fell-off-bus",
        ),
    ],
)
def test_the_driver_tells_of_a_fault(line_of_log: str, cause: str) -> None:
    judged = judge_gpus(GPUS, asked(smi(TWO), dmesg=[line_of_log]))
    assert causes(judged) == [cause]
    assert judge_gpus(GPUS, asked(smi(TWO), journal=[line_of_log])) == judged


@pytest.mark.parametrize(
    "log",
    [
        [xid(31, "pid=1, name=python, MMU Fault")],
        [xid(13, "Graphics Exception")],
        [xid(43, "Ch 00000010")],
        [xid(79, "GPU has fallen off the bus.", age_s=4500)],
        [xid(63, "Row Remapper: remapped")],
        [xid(79, "fallen"), "[ 4980.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07"],
        [
            xid(119, "Timeout"),
            xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", age_s=30),
        ],
        ["[ 4990.000000] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Non-fatal, Link 33 LTSSM Fault Up"],
        ["[ 4990.000000] NVRM: GPU at PCI:0000:3b:00: GPU-8e6a9b1c"],
        [],
    ],
)
def test_a_program_that_died_or_a_fault_of_yesterday_is_no_fault_of_now(log: list[str]) -> None:
    assert healthy(judge_gpus(GPUS, asked(smi(TWO), dmesg=log)))


def test_what_nvidia_smi_did_not_tell_beside_its_list_is_said() -> None:
    cut = {"code": None, "out": "", "err": "it printed more than 1 MiB", "too_long": True}
    hung = {"code": None, "out": "", "err": "", "timed_out": True}
    judged = judge_gpus(GPUS, asked(smi(TWO), all=cut, links=hung, apps=hung))
    queries = "`nvidia-smi --query-compute-apps` and `nvidia-smi nvlink -s`"
    assert judged.warnings[0].startswith(f"{queries} did not return within ")
    assert judged.warnings[1] == "`nvidia-smi -q` printed more than is read"
    (finding,) = judge_gpus(GPUS, asked(cut)).unknown
    assert "nvidia-smi on node-a printed more than is read" in finding.says


def test_a_fault_of_a_gpu_that_the_job_does_not_use_is_not_its_fault() -> None:
    assert healthy(judge_gpus(node("node-a", gpus=(0,)), asked(smi(TWO), dmesg=[xid(48, "DBE")])))


def test_a_container_has_the_kernels_log_of_gpus_that_are_not_its_own() -> None:
    """The host's log tells of all its GPUs; where each of ours is listed, one that is not is somebody else's."""
    fallen, died = xid(79, "GPU has fallen off the bus.", at="0000:9b:00"), xid(31, "MMU Fault", at="0000:ab:00")
    judged = judge_gpus(GPUS, asked(smi(TWO), dmesg=[fallen, died]))
    assert healthy(judged)
    (warning,) = judged.warnings
    assert "Xid 79 of the GPU at 0000:9b:00" in warning
    one_is_missing = judge_gpus(GPUS, asked(smi(line(0)), dmesg=[fallen]))
    assert causes(one_is_missing) == ["gpu-fell-off-bus"]
    switch = "[ 4990.000000] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 33 egress"
    (finding,) = judge_gpus(GPUS, asked(smi(TWO), dmesg=[switch])).findings
    assert finding.says.startswith("the NVSwitch at 0000:c1:00 of node-a had an NVLink error")


def test_the_kernels_word_goes_before_what_only_looks_like_it() -> None:
    fallen = xid(79, "GPU has fallen off the bus.")
    for answer in (smi(line(0)), {"timed_out": True, "code": None}, smi("", code=255)):
        judged = judge_gpus(GPUS, asked(answer, dmesg=[fallen]))
        assert causes(judged) == ["gpu-fell-off-bus"]
        assert any("node-a" in line_of_proof for line_of_proof in judged.findings[0].evidence)


def test_a_wrong_inventory_is_told_beside_a_broken_gpu() -> None:
    """A GPU that was never there is not explained by the memory errors of another."""
    judged = judge_gpus(node("node-a", gpus=(0, 1, 7)), asked(smi(full(0) + full(1, ecc="2"), fields=FIELDS + MORE)))
    assert set(causes(judged)) == {"gpu-ecc-uncorrectable", "gpu-count-mismatch"}


def test_one_event_in_two_logs_is_one() -> None:
    one = "[ 4940.123456] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    two = "[ 4940.123461] node kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert len(xid_events([[one], [two]], 5000)) == 1


def test_an_event_stays_though_both_logs_begin_with_the_driver() -> None:
    begins = "[    9.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90"
    cleared = (
        "[ 4000.000000] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)"
    )
    fallen = "[ 4940.123456] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    log = [begins, cleared, fallen]
    assert [event.number for event in xid_events([log, log], 5000)] == [79]


@pytest.mark.parametrize("action", ["Drain P2P", "GPU Reset Required", "Node Reboot Required", "Something New"])
def test_a_gpu_that_asks_for_an_action_is_not_sound(action: str) -> None:
    said = DETAILS.replace("GPU Recovery Action                   : None", f"GPU Recovery Action : {action}", 1)
    judged = judge_gpus(GPUS, asked(smi(full(0) + full(1), fields=FIELDS + MORE), all={"code": 0, "out": said}))
    assert causes(judged) == ["gpu-reset-required"]


# Side by side.


def test_the_node_with_another_driver_is_told() -> None:
    same, other = judge_gpus(GPUS, asked(smi(TWO))), judge_gpus(GPUS, asked(smi(TWO.replace("550.90.07", "535.1"))))
    assert driver_warnings({"a": same, "b": same}) == {}
    assert list(driver_warnings({"a": same, "b": other, "c": same})) == ["b"]
    (warning,) = driver_warnings({"odd": other, **{f"n{number}": same for number in range(999)}}).values()
    assert warning.endswith("that of n0, n1, n2, n3 and 995 more is 550.90.07"), "and not a line of all their names"


@pytest.mark.parametrize(
    ("driver", "torch", "too_old"),
    [
        ("11.4", "12.1", True),
        ("12.2", "12.8", False),
        ("13.0", "12.8", False),
        ("12.8", "13.0", True),
        ("10.1", "10.2", True),
    ],
)
def test_a_driver_of_an_older_generation_than_torch(driver: str, torch: str, *, too_old: bool) -> None:
    finding = old_driver_finding(GPUS, GpuJudgement(driver="470.1", cuda=driver), torch)
    assert (finding is not None) == too_old
    assert old_driver_finding(GPUS, GpuJudgement(), torch) is None
    assert old_driver_finding(GPUS, GpuJudgement(cuda=driver), None) is None


def test_cuda_counts_the_fastest_model_first() -> None:
    mixed = smi(line(0, name="NVIDIA T400") + line(1) + line(2))
    two = node("node-a", gpus=(1, 2))
    assert "CUDA_DEVICE_ORDER" in judge_gpus(two, asked(mixed)).warnings[0]
    assert not judge_gpus(two, asked(mixed), "PCI_BUS_ID").warnings
    assert not judge_gpus(two, asked(smi(TWO + line(2)))).warnings


def test_bits_of_the_clocks() -> None:
    assert slowdown_names(0x1) == slowdown_names(0x4) == slowdown_names(0) == ()
    assert slowdown_names(0x84) == ("HW power brake",)


@pytest.mark.parametrize("text", ["00000000:3B:00.0", "0000:3b:00", "PCI:0000:3B:00.0"])
def test_one_spelling_of_a_bus(text: str) -> None:
    assert bus_key(text) == "0000:3b:00"
    assert bus_key("nowhere") is None
