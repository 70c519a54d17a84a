"""What tools say beside what logs say: faults by themselves, support for a cause, and what only may be a fault."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from diagnose.read import Told, diagnose

from .outputs import OUTPUTS

IN_USE = (
    "[rank0]: torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
HEALTHY = "epoch 1 loss 2.3\nepoch 2 loss 2.1\n"


def told(folder: Path, **files: str) -> Told:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return diagnose(*(folder / f"{name}.txt" for name in files))


def test_a_port_that_is_down_is_a_cause_by_itself(tmp_path: Path) -> None:
    found = told(tmp_path, ibstat=OUTPUTS["ibstat, one port down"].text)
    assert (found.exit_code, found.first, found.causes[0]["confidence"]) == (0, "ib-port-not-active", "medium")
    assert [line["line"] for line in found.causes[0]["evidence"]] == [26, 27]
    assert "mlx5_1:1" in found.causes[0]["says"]


def test_a_whole_and_sound_output_is_healthy_and_half_of_it_is_not(tmp_path: Path) -> None:
    sound = OUTPUTS["ibstat, one port down"].text.partition("CA 'mlx5_1'")[0]
    assert (told(tmp_path, ibstat=sound).exit_code, told(tmp_path, ibstat=sound).causes) == (0, [])
    half = told(tmp_path, ibstat=sound[:200])
    assert (half.exit_code, half.first) == (1, "tool-output-unknown")


def test_another_language_is_not_healthy(tmp_path: Path) -> None:
    german = OUTPUTS["netsh in German"]
    assert told(tmp_path, firewall=f"{german.command}\n{german.text}").first == "tool-output-unknown"


def test_who_holds_the_port_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, job=IN_USE.format(port=29500), ss=OUTPUTS["ss with processes"].text)
    assert found.first == "port-in-use"
    assert "python3 (pid 4711)" in found.causes[0]["says"]
    assert "4711" in found.causes[0]["remedy"]
    assert found.causes[0]["evidence"][-1]["file"].endswith("ss.txt")


def test_a_listener_on_another_port_explains_nothing(tmp_path: Path) -> None:
    found = told(tmp_path, job=IN_USE.format(port=29511), ss=OUTPUTS["ss with processes"].text)
    assert found.first == "port-in-use"
    assert "4711" not in found.causes[0]["says"] + found.causes[0]["remedy"]


def test_a_filter_explains_what_the_log_says_and_its_remedy_names_the_port(tmp_path: Path) -> None:
    log = "[W] [c10d] The client socket cannot be initialized to connect to [10.0.0.1]:29500 (errno: 110 - Connection timed out).\n"
    found = told(tmp_path, job=log, nft=f"root@node-a:~# nft list ruleset\n{OUTPUTS['nft text'].text}")
    assert found.first == "firewall-drop"
    assert "node-a: nft blocks what no rule allows: policy drop" in found.causes[0]["says"]
    assert "nft insert rule inet filter input ip saddr PEER tcp dport 29500 accept" in found.causes[0]["remedy"]
    assert "policy drop" in found.causes[0]["evidence"][-1]["text"]


def test_a_paste_that_begins_within_a_chain_names_no_place_for_a_rule(tmp_path: Path) -> None:
    log = "[W] [c10d] The client socket cannot be initialized to connect to [10.0.0.1]:29500 (errno: 110 - Connection timed out).\n"
    rules = OUTPUTS["nft text"].text
    for begin in ("\tchain input {\n", "\t\ttype filter hook input"):
        cut = f"{rules[rules.index(begin) :]}table ip nat {{\n}}\n"
        found = told(tmp_path, job=log, nft=f"root@node-a:~# nft list ruleset\n{cut}")
        assert "policy drop" in found.causes[0]["says"]
        assert "insert rule" not in found.causes[0]["remedy"]
        assert "sudo nft -a list ruleset" in found.causes[0]["remedy"]


def test_who_owns_the_rules_says_how_to_open_the_port(tmp_path: Path) -> None:
    log = "[W] [c10d] The client socket cannot be initialized to connect to [10.0.0.1]:29500 (errno: 110 - Connection timed out).\n"
    ufw = "Status: active\nDefault: deny (incoming), allow (outgoing), disabled (routed)\n"
    found = told(tmp_path, job=log, nft=OUTPUTS["nft text"].text, ufw=ufw)
    assert found.causes[0]["remedy"].startswith("sudo ufw allow from PEER")


def test_a_port_that_the_kernel_may_give_away(tmp_path: Path) -> None:
    found = told(tmp_path, job=IN_USE.format(port=29500), sysctl=OUTPUTS["sysctl"].text)
    assert "1024-65000" in found.causes[0]["says"]
    assert "ip_local_reserved_ports=29500" in found.causes[0]["remedy"]
    usual = "net.ipv4.ip_local_port_range = 32768\t60999\n"
    assert "60999" not in told(tmp_path, job=IN_USE.format(port=29500), sysctl=usual).causes[0]["says"]


def test_listeners_and_filters_are_no_faults(tmp_path: Path) -> None:
    assert told(tmp_path, ss=OUTPUTS["ss with processes"].text, nft=OUTPUTS["nft text"].text).causes == []


def test_what_may_be_a_fault_is_none_beside_a_run_that_went_well(tmp_path: Path) -> None:
    assert told(tmp_path, limits=OUTPUTS["ulimit of dash"].text).first == "memlock-limit"
    assert told(tmp_path, job=HEALTHY, limits=OUTPUTS["ulimit of dash"].text).causes == []
    assert told(tmp_path, job=HEALTHY, smi=OUTPUTS["nvidia-smi, memory errors"].text).first == "gpu-ecc-uncorrectable"


def test_a_wrapper_tells_less_than_a_tool(tmp_path: Path) -> None:
    wrapper = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    found = told(tmp_path, job=wrapper, smi=OUTPUTS["nvidia-smi, memory errors"].text)
    assert [cause["cause"] for cause in found.causes] == ["gpu-ecc-uncorrectable"]


def test_a_paste_of_several(tmp_path: Path) -> None:
    paste = (
        f"ann@node-b:~$ ulimit -l\n64\nann@node-b:~$ ibstat\n{OUTPUTS['ibstat, one port down'].text}"
        f"ann@node-b:~$ nvidia-smi\n{OUTPUTS['nvidia-smi, memory errors'].text}ann@node-b:~$ python train.py\n{HEALTHY}"
    )
    found = told(tmp_path, paste=paste)
    assert found.first == "gpu-ecc-uncorrectable"
    assert found.causes[0]["node"] == "node-b"
    line = paste.splitlines()[found.causes[0]["evidence"][0]["line"] - 1]
    assert "NVIDIA A100" in line


@pytest.mark.parametrize("before", ["", HEALTHY])
def test_a_log_that_begins_with_a_tool_is_still_a_log(tmp_path: Path, before: str) -> None:
    crash = "exitcode  : -9 (pid: 7)\n"
    sound = OUTPUTS["ibstat, one port down"].text.partition("CA 'mlx5_1'")[0]
    found = told(tmp_path, job=f"{before}{sound}\n{HEALTHY}  rank      : 3 (local_rank: 1)\n  {crash}")
    assert found.first == "rank-killed"


def test_an_archive_of_ours_tells_which_node(tmp_path: Path) -> None:
    members = {
        "README.txt": "made by runbook collect\n",
        "manifest.json": "{}",
        "run/logs/rank-00000.node-a.log": HEALTHY,
        "nodes/node-a/gpu/nvidia-smi.txt": "$ nvidia-smi\nUnable to determine the device handle for GPU 0000:03:00.0: GPU is lost.\n[exit code 15]\n",
        "nodes/node-a/system/limits.txt": f"$ cat /proc/self/limits\n{OUTPUTS['ulimit of dash'].text}",
        "nodes/node-a/system/timedatectl.txt": "$ timedatectl\n[stderr]\nFailed to connect to bus: Host is down\n[exit code 1]\n",
        "nodes/node-a/system/kernel-log.txt": "$ dmesg\n[1.0] NVRM: Xid (PCI:0000:3b:00): 48, pid=1, last week\n",
    }
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name, text in members.items():
            file = tmp_path / "member"
            file.write_text(text)
            tar.add(file, name)
    found = diagnose(tmp_path / "a.tar.gz")
    assert [(cause["cause"], cause["node"]) for cause in found.causes] == [("gpu-fell-off-bus", "node-a")]
