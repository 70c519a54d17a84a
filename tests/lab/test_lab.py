"""The lab keeps its own promises: a test that leans on it may trust it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from lab import CliTimeoutError, Lab, LabError, left_behind, runbook_cli, teardown
from lab.host import ACCOUNTS, SUDOERS
from lab.lab import CHECKOUT, _letters
from lab.processes import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.xdist_group("lab")]

RECEIVER = """
import socket
server = socket.create_server(("", 29500))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
    connection.send(b"x")
    connection.close()
"""
SENDER = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 29500), timeout=4)
size = int(sys.argv[2]) << 20
begin = time.monotonic()
connection.settimeout(60)
connection.sendall(bytes(size))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(size / (time.monotonic() - begin) / 1e6)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """For tests that leave the hosts as they found them."""
    with Lab(2) as both:
        yield both


def ssh(lab: Lab, name: str, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(lab.ssh(lab[name], command), capture_output=True, text=True, timeout=60, check=False)


def reachable(lab: Lab, source: str, target: str) -> bool:
    return lab[source].run(["ping", "-c1", "-W1", lab[target].address], check=False).returncode == 0


def receive(lab: Lab, name: str) -> None:
    receiver = lab[name].popen([lab.python_without_torch, "-c", RECEIVER])
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "listening\n"


def send(lab: Lab, source: str, target: str, mebibytes: int, timeout: float = 60) -> float:
    argv = [lab.python_without_torch, "-c", SENDER, lab[target].address, str(mebibytes)]
    return float(lab[source].run(argv, timeout=timeout).stdout)


def fastest(lab: Lab, least: float) -> float:
    """The best of what node-a sends to node-b, in MB/s, as soon as that is more than `least`: a busy machine only takes
    from it."""
    best, deadline = 0.0, time.monotonic() + 120
    while best < least:
        assert time.monotonic() < deadline, f"no more than {best:.1f} of {least:.1f} MB/s"
        best = max(best, send(lab, "node-a", "node-b", 16, timeout=60))
    return best


def test_hosts_are_told_apart_and_reach_each_other(lab: Lab) -> None:
    assert [host.run("hostname").stdout.strip() for host in lab] == ["node-a", "node-b"]
    assert reachable(lab, "node-a", "node-b")
    assert lab["node-b"].run("getent hosts node-a").stdout.split() == [lab["node-a"].address, "node-a"]
    subprocess.run(["ping", "-c1", "-W1", lab["node-a"].address], check=True, capture_output=True)
    interface = lab["node-a"].run(["ip", "-br", "address", "show", "dev", "eth0"]).stdout
    assert f"{lab['node-a'].address}/24" in interface


def test_the_user_logs_in_by_key_and_may_use_sudo(lab: Lab) -> None:
    done = ssh(lab, "node-b", "id -un; hostname; sudo -n id -un; echo $PATH; pwd")
    assert done.returncode == 0, done.stderr
    user, host, root, path, home = done.stdout.split()
    assert (user, host, root, home) == (lab.user, "node-b", "root", lab["node-b"].home)
    assert "sbin" not in path


def test_sudo_can_want_a_password_or_be_refused(two_hosts: Lab) -> None:
    host = two_hosts["node-a"]
    host.sudo("password")
    assert "password is required" in host.run("sudo -n true", check=False).stderr
    host.sudo("none")
    assert host.run("sudo -n true", check=False).returncode != 0
    host.sudo("nopasswd")
    host.run("sudo -n true")


def test_logins_and_rights_of_this_machine_are_not_the_hosts(lab: Lab) -> None:
    host = lab["node-a"]
    accounts = [line.split(":") for line in host.read("/etc/passwd").splitlines()]
    people = [name for name, _, uid, *_ in accounts if 1000 <= int(uid) < 65534]
    assert people == [lab.user]
    assert {name for name, *_ in accounts} <= {*ACCOUNTS.split(), lab.user}
    assert [
        name for *name, members in (line.split(":") for line in host.read("/etc/group").splitlines()) if members
    ] == []
    assert [file.name for file in host.path("/etc/sudoers.d").iterdir()] == [lab.user]
    assert host.read("/etc/sudoers") == SUDOERS
    assert host.run(["visudo", "-c"], "root").returncode == 0


def test_labs_beside_each_other_have_users_of_their_own(lab: Lab, lab_of: Callable[..., Lab]) -> None:
    assert lab_of(1).uid != lab.uid


@pytest.mark.thorough
def test_nodes_have_a_python_with_torch_and_one_without(lab: Lab) -> None:
    pytest.importorskip("torch")
    host = lab["node-a"]
    done = ssh(lab, "node-a", f"{lab.python} -c 'import torch; print(torch.__version__)'")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2.")
    bare = host.run([lab.python_without_torch, "-c", "import torch"], check=False)
    assert "No module named 'torch'" in bare.stderr
    # Nor does the project's own code lie about: what runs on a node has to be brought there.
    bare = host.run([lab.python, "-c", "import runbook.engine"], check=False)
    assert "No module named 'runbook" in bare.stderr
    assert host.run(["ls", str(CHECKOUT)], check=False).stdout == ""


def test_files_of_a_host_are_its_own(two_hosts: Lab) -> None:
    a, b = two_hosts.hosts
    a.write("/etc/ufw/lab", "here only\n")
    a.write("~/note", "mine\n", user=two_hosts.user)
    assert a.run("cat /etc/ufw/lab; stat -c %U ~/note").stdout.split("\n")[:2] == ["here only", two_hosts.user]
    assert b.run("cat /etc/ufw/lab", check=False).returncode != 0
    assert not Path("/etc/ufw/lab").exists()
    # An absolute link inside the host leads to the host's file, not to this machine's.
    a.run("ln -s /run /opt/link", "root")
    a.write("/opt/link/lab-test", "x")
    assert a.run("cat /run/lab-test").stdout == "x"
    assert not Path("/run/lab-test").exists()


def test_programs_can_be_added_and_removed(two_hosts: Lab) -> None:
    a, b = two_hosts.hosts
    a.tool("nvidia-smi", "echo fake")
    assert ssh(two_hosts, "node-a", "nvidia-smi").stdout == "fake\n"
    assert b.run("command -v nvidia-smi | grep /usr/local/bin", check=False).returncode == 1
    a.remove_tool("ping")
    assert a.run("ping -c1 127.0.0.1", check=False).returncode == 127
    b.run("ping -c1 -W1 127.0.0.1")
    with pytest.raises(LabError, match="no such-tool"):
        a.remove_tool("such-tool")


def test_a_login_shell_can_be_chosen(two_hosts: Lab) -> None:
    two_hosts["node-a"].login_shell("/usr/bin/fish")
    assert ssh(two_hosts, "node-a", "echo $version").stdout.strip()


def test_firewall_rules_work_and_stay_on_their_host(two_hosts: Lab) -> None:
    def mine() -> str:
        """The rules of this machine, whatever they are."""
        return subprocess.run(["nft", "-s", "list", "ruleset"], capture_output=True, text=True, check=False).stdout

    a, b = two_hosts.hosts
    before = mine()
    receive(two_hosts, "node-b")
    assert send(two_hosts, "node-a", "node-b", 1) > 0
    b.firewall("table inet filter {\n chain input {\n type filter hook input priority 0;\n }\n}\n")
    b.nft("add rule inet filter input tcp dport 29500 drop")
    with pytest.raises(LabError, match=r"(?i)timed? ?out"):
        send(two_hosts, "node-a", "node-b", 1)
    b.open()
    b.firewall("table inet f {\n chain i {\n type filter hook input priority 0; meta length > 1400 drop\n }\n}\n")
    with pytest.raises(subprocess.TimeoutExpired):
        send(two_hosts, "node-a", "node-b", 1, timeout=4)
    big = ["ping", "-c1", "-W1", "-M", "do", "-s", "1472", b.address]
    assert a.run(big, check=False).returncode == 1
    assert reachable(two_hosts, "node-a", "node-b")
    b.open()
    assert a.run(big).returncode == 0
    assert mine() == before


def test_ufw_works_on_a_host(two_hosts: Lab) -> None:
    host = two_hosts["node-a"]
    host.run("ufw allow 22/tcp && ufw --force enable", "root", timeout=60)
    assert "29500/tcp" not in host.run("sudo -n ufw status").stdout
    assert ssh(two_hosts, "node-a", "true").returncode == 0
    receive(two_hosts, "node-a")
    with pytest.raises(LabError, match=r"(?i)timed? ?out"):
        send(two_hosts, "node-b", "node-a", 1)


@pytest.mark.parametrize("offload", [True, False])
def test_a_limited_link_carries_what_it_should(lab_of: Callable[..., Lab], offload: bool) -> None:
    lab = lab_of(2, offload=offload)
    receive(lab, "node-b")
    lab.limit(200)
    carried = 200 / 8 * 1448 / 1514
    assert fastest(lab, 0.8 * carried) < 1.03 * carried
    lab.unlimit()
    fastest(lab, 1.2 * carried)


def test_a_cut_cable_and_its_repair(two_hosts: Lab) -> None:
    a = two_hosts["node-a"]
    a.cut()
    assert not reachable(two_hosts, "node-b", "node-a")
    a.restore()
    assert reachable(two_hosts, "node-b", "node-a")


def test_sshd_can_stop_start_and_change_its_key(two_hosts: Lab) -> None:
    host = two_hosts["node-a"]
    host.stop_sshd()
    assert "Connection refused" in ssh(two_hosts, "node-a", "true").stderr
    host.start_sshd()
    assert ssh(two_hosts, "node-a", "true").returncode == 0
    host.rekey()
    assert "HOST IDENTIFICATION HAS CHANGED" in ssh(two_hosts, "node-a", "true").stderr
    two_hosts.forget(host)
    assert "No ED25519 host key is known" in ssh(two_hosts, "node-a", "true").stderr
    two_hosts.trust()
    assert ssh(two_hosts, "node-a", "true").returncode == 0
    host.sshd_options(DenyUsers=two_hosts.user)
    assert "Permission denied" in ssh(two_hosts, "node-a", "true").stderr


def test_a_clock_can_be_wrong(two_hosts: Lab) -> None:
    def clock() -> float:
        program = "import time; print(time.time())"
        return float(ssh(two_hosts, "node-a", f"{two_hosts.python_without_torch} -c '{program}'").stdout)

    assert clock() == pytest.approx(time.time(), abs=20)
    two_hosts["node-a"].clock_offset(-120)
    assert clock() == pytest.approx(time.time() - 120, abs=20)
    two_hosts["node-a"].clock_offset(0)
    assert clock() == pytest.approx(time.time(), abs=20)


def test_hosts_file_can_be_rewritten(two_hosts: Lab) -> None:
    host = two_hosts["node-a"]
    host.set_hosts("127.0.1.1 node-b")
    assert host.run("getent hosts node-b").stdout.split()[0] == "127.0.1.1"
    assert host.run("getent hosts nowhere.example", check=False, timeout=5).returncode == 2


def test_processes_are_found_signalled_and_killed_with_their_helper(two_hosts: Lab) -> None:
    a, b = two_hosts.hosts
    assert a.processes() == []
    helper = a.popen(["sleep", "1000"])
    other = a.popen(["sleep", "2000"], "root")
    # Only once both are what they shall be do they die with their helper.
    wait_until("both run", lambda: sorted(command for _, command in a.processes()) == ["sleep 1000", "sleep 2000"])
    ((pid, cmdline),) = a.processes(two_hosts.user)
    assert cmdline == "sleep 1000"
    assert b.processes() == []
    with pytest.raises(LabError):
        b.signal(pid, signal.SIGTERM)
    a.signal(pid, signal.SIGTERM)
    assert helper.wait(timeout=30) == -signal.SIGTERM
    other.kill()
    a.wait_empty()


def test_ibstat_is_active_with_a_subnet_manager_only(two_hosts: Lab) -> None:
    a, b = two_hosts.hosts
    fabric = two_hosts.fabric(["mlx5_0", "mlx5_1"], subnet_manager=False, rate=400)
    shown = ssh(two_hosts, "node-b", "/usr/sbin/ibstat").stdout
    assert shown.count("State: Initializing") == 2
    assert shown.count("Rate: 400") == 2
    assert [line for line in shown.splitlines() if line.startswith("CA ")] == ["CA 'mlx5_0'", "CA 'mlx5_1'"]
    fabric.start_subnet_manager()
    shown = a.run(["/usr/sbin/ibstat"]).stdout
    assert shown.count("State: Active") == 2
    assert shown.count("Physical state: LinkUp") == 2
    assert a.processes() == []
    fabric.unlink(b, "mlx5_1")
    fabric.set_rate(b, "mlx5_0", 100)
    assert (fabric.state(b, "mlx5_0"), fabric.state(b, "mlx5_1")) == ("Active", "Down")
    assert "Rate: 100" in b.run(["/usr/sbin/ibstat", "mlx5_0", "1"]).stdout
    assert "Physical state: Polling" in b.run(["/usr/sbin/ibstat", "mlx5_1"]).stdout
    assert b.run(["/usr/sbin/ibstat", "-l"]).stdout.split() == ["mlx5_0", "mlx5_1"]
    assert "can't be found" in b.run(["/usr/sbin/ibstat", "mlx5_9"], check=False).stderr
    fabric.relink(b, "mlx5_1")
    fabric.stop()
    assert b.run(["/usr/sbin/ibstat"], check=False).stdout == ""


def test_a_card_without_a_cable_and_a_host_without_a_card(two_hosts: Lab) -> None:
    fabric = two_hosts.fabric({"node-a": ["mlx5_0", "mlx5_1"]}, down=["node-a/mlx5_1"])
    a, b = two_hosts.hosts
    assert (fabric.state(a, "mlx5_0"), fabric.state(a, "mlx5_1")) == ("Active", "Down")
    assert b.run(["/usr/sbin/ibstat"], check=False).stdout == ""
    with pytest.raises(ValueError, match="no such card"):
        two_hosts.fabric(down=["node-a/mlx5_7"])


def test_the_inventory_takes_overrides(lab: Lab) -> None:
    path = lab.inventory("other.yml", network={"interface": "ib0"}, rendezvous={"port": None}, env={"A": "b"})
    content = yaml.safe_load(path.read_text())
    assert content["network"] == {"interface": "ib0", "ports": "29500-29510"}
    assert content["rendezvous"] == {"master": "node-a", "backend": "gloo"}
    assert content["nodes"] == {host.name: {"address": host.address} for host in lab}
    assert content["env"] == {"A": "b"}
    assert Path(content["defaults"]["ssh"]["key"]).stat().st_mode & 0o077 == 0


def test_nothing_is_left() -> None:
    with Lab(2) as lab:
        host = lab["node-a"]
        host.popen("trap '' TERM HUP INT; setsid sleep 1000 & exec sleep 1001")
        subprocess.run(lab.ssh(host, "nohup setsid sleep 1002 >/dev/null 2>&1 &"), check=True, timeout=20)
        lab.fabric()
        wait_until("the fabric runs", lambda: len(host.processes()) >= 3)
        pids = [pid for pid, _ in host.processes()]
        tmp, lab_id = lab.tmp, lab.id
    assert not tmp.exists()
    assert not [entry for entry in left_behind() if lab_id in entry]
    assert not [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def test_two_labs_stand_side_by_side(lab: Lab, lab_of: Callable[..., Lab]) -> None:
    other = lab_of(names=["gpu-1"])
    assert other.subnet != lab.subnet
    assert ssh(other, "gpu-1", "hostname").stdout == "gpu-1\n"
    assert other["gpu-1"].run(["ping", "-c1", "-W1", lab["node-a"].address], check=False).returncode != 0
    other.close()
    assert reachable(lab, "node-a", "node-b")


def test_a_killed_owner_takes_its_hosts_along_and_the_next_lab_sweeps_the_rest() -> None:
    script = (
        "import time\nfrom lab import Lab\nlab = Lab(2).start()\nlab.hosts[0].popen(['sleep', '1000'])\n"
        "while not (found := lab.hosts[0].processes()): time.sleep(0.02)\n"
        "print(lab.id, lab.tmp, found[0][0], flush=True)\ntime.sleep(1000)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert owner.stdout is not None
    lab_id, tmp, pid = owner.stdout.readline().split()
    owner.kill()
    owner.wait(timeout=30)
    owner.stdout.close()
    wait_until("it has ended", lambda: not Path(f"/proc/{pid}/exe").exists())
    assert teardown.namespaces(lab_id)
    with Lab(1):
        assert not teardown.namespaces(lab_id)
        assert not Path(tmp).exists()
        assert not Path("/sys/class/net", teardown.link_name(lab_id)).exists()


def test_a_failed_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bringup.sh"
    broken.write_text("echo pid 1; echo no luck today >&2; exit 1\n")
    monkeypatch.setattr("lab.lab.BRINGUP", broken)
    lab = Lab(2)
    with pytest.raises(LabError, match="no luck today"):
        lab.start()
    assert not [entry for entry in left_behind() if lab.id in entry]
    assert not lab.tmp.exists()


@pytest.mark.thorough
def test_many_hosts_come_up() -> None:
    with Lab(32) as lab:
        assert reachable(lab, "node-001", "node-032")
        assert ssh(lab, "node-032", "hostname").stdout == "node-032\n"


def test_labs_are_letters() -> None:
    assert [_letters(number) for number in (0, 25, 26, 27, 702)] == ["a", "z", "aa", "ab", "aaa"]


def test_running_the_product_ends_by_its_deadline(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "python"
    fake.write_text(
        "#!/bin/sh\ncase $3 in hang) sleep 1000 & sleep 1001 ;; *) echo '{\"home\": \"'$HOME'\"}' ;; esac\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr("lab.cli.sys.executable", str(fake))
    done = runbook_cli(lab, "run", "x.yml")
    assert (done.returncode, done.json()) == (0, {"home": str(lab.home)})
    with pytest.raises(CliTimeoutError, match=r"no end within 0\.5 s"):
        runbook_cli(lab, "hang", timeout=0.5)
