"""Several hosts on one machine: each with its own network, files, hostname, processes and sshd, on one bridge."""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import itertools
import json
import os
import pwd
import re
import select
import signal
import string
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from . import keys, teardown
from .fabric import Fabric
from .host import ACCOUNTS, SUDO, SUDOERS, Host, bucket, hosts_file, sshd_config
from .needs import SEARCH_PATH, find_program, lab_missing
from .processes import LabError, call, wait_until

BRINGUP = Path(__file__).with_name("bringup.sh")
CHECKOUT = Path(__file__).resolve().parents[2]
_counter = itertools.count()
MOST_HOSTS = 1000
FEW_HOSTS = 24


def host_names(count: int) -> list[str]:
    """node-a, node-b, …; with more than an alphabet of them node-001, node-002, …"""
    if count <= len(string.ascii_lowercase):
        return [f"node-{letter}" for letter in string.ascii_lowercase[:count]]
    return [f"node-{number:03}" for number in range(1, count + 1)]


def _letters(number: int) -> str:
    text = ""
    while True:
        number, digit = divmod(number, 26)
        text = string.ascii_lowercase[digit] + text
        if number == 0:
            return text
        number -= 1


def _free_subnet(prefix_length: int) -> ipaddress.IPv4Network:
    """A network that no interface and no route of this machine knows."""
    taken: list[ipaddress.IPv4Network] = []
    for route in json.loads(call(["ip", "-j", "-4", "route", "show", "table", "all"]) or "[]"):
        with contextlib.suppress(ValueError, KeyError):  # `default` is no network
            taken.append(ipaddress.IPv4Network(route["dst"], strict=False))
    for third in range(256):
        for second in (77, 78, 79, 93):
            address = f"10.{second}.{(third + os.getpid()) % 256}.0/{prefix_length}"
            subnet = ipaddress.IPv4Network(address, strict=False)
            if not any(subnet.overlaps(other) for other in taken):
                return subnet
    raise LabError(f"no free 10.x.y.0/{prefix_length} for the lab")


def _room_for_neighbours(hosts: int) -> None:
    """The kernel keeps 1024 neighbours of all networks of a machine together, and sends nothing to one more. Of so many hosts
    it is raised, and stays so: it is a limit, and other labs may be up."""
    wanted = 64 * hosts
    for number, share in ((3, 1), (2, 2), (1, 4)):
        file = Path(f"/proc/sys/net/ipv4/neigh/default/gc_thresh{number}")
        if int(file.read_text()) < wanted // share:
            file.write_text(str(wanted // share))


def _free_uid() -> int:
    """Of no account of this machine and of no other lab: the kernel counts processes and files by the number alone."""
    taken = {entry.pw_uid for entry in pwd.getpwall()} | teardown.registered_uids()
    return next(uid for uid in range(61200, 65000) if uid not in taken)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes win, key by key; None removes a key."""
    found = dict(base)
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = merged(found[key], value)
        else:
            found[key] = value
    return found


def _site_packages() -> list[str]:
    """Where this environment keeps its packages: one folder, or two on some distributions."""
    return sorted({str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("purelib", "platlib")})


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a started program, with its process group if it leads one."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


class Lab:
    """`with Lab(hosts=2) as lab:` — when the block ends, or this process does, nothing of it is left.

    The hosts and the bridge between them stand in network namespaces of their own, so no firewall rule of this machine
    touches what they say to each other. This machine has one address on the bridge, `bridge_address`.
    """

    user = "rblab"
    controller: Sequence[str] = ("-m", "runbook")
    """How Python is told to run runbook."""

    def __init__(
        self,
        hosts: int = 2,
        *,
        names: Sequence[str] | None = None,
        offload: bool = True,
        sites: Sequence[Path] = (),
        login: str | None = None,
    ) -> None:
        """`offload=False` makes TCP hand over single packets, as no network card does: 60 times slower, and a rule for
        `meta length` then sees on the sending host what it sees on the receiving one.

        `sites` are folders of packages that the hosts' Python finds before those of this environment. `login` names one
        more host, `self.login`, which is no node: where a batch system lives, and its users log in."""
        self.names = list(names) if names is not None else host_names(hosts)
        everybody = [*self.names, *([login] if login else [])]
        if len(set(everybody)) != len(everybody) or not 0 < len(everybody) <= MOST_HOSTS:
            raise ValueError(f"1 to {MOST_HOSTS} hosts, each with a name of its own")
        if bad := [name for name in everybody if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", name)]:
            raise ValueError(f"not a hostname: {bad[0]!r}")
        self.offload = offload
        self.sites = [str(site.resolve()) for site in sites]
        self.id = f"{os.getpid()}{_letters(next(_counter))}"
        self.switch = teardown.netns_name(self.id, ":switch")
        self.hosts: list[Host] = []
        self._login_name = login
        self.started: list[subprocess.Popen[str]] = []
        self._anchors: list[subprocess.Popen[bytes]] = []
        self._fabric: Fabric | None = None
        self._up = False
        self._owner = os.getpid()

    # Coming up and going away

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Lab:
        missing = lab_missing()
        if missing:
            raise LabError("; ".join(missing))
        if len(self.names) > FEW_HOSTS:
            _room_for_neighbours(len(self.names))
        self.tmp = Path(tempfile.mkdtemp(prefix=teardown.TMP_PREFIX))
        self._up = True
        atexit.register(self.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        self._login = keys.generate("lab")
        with teardown.one_at_a_time():
            teardown.sweep()
            self.uid = _free_uid()
            teardown.register(self.id, self.tmp, self.uid)
            names = [*self.names, *([self._login_name] if self._login_name else [])]
            self.subnet = _free_subnet(24 if len(names) < 250 else 22)
            self.bridge_address = str(self.subnet[-2])
            self.hosts = [Host(self, index, name, str(self.subnet[index + 1])) for index, name in enumerate(names)]
            self._make_network()
        self._make_home()
        self.shared = self.tmp / "shared"  # what every host has at /shared
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        for host in self.hosts:
            self._launch(host)
        deadline = time.monotonic() + 60 + len(self.hosts)
        for host, anchor in zip(self.hosts, self._anchors, strict=True):
            self._await(host, anchor, deadline)
        self.await_links(*self.hosts)
        for host in self.hosts:
            host.await_sshd()
        if self._login_name:
            self.login = self.hosts.pop()

    def await_links(self, *hosts: Host) -> None:
        """Wait until packets pass. The kernel takes up to a second to notice a carrier, and drops them until then."""
        self._await_bridge("lab", {"uplink", *(host.port for host in hosts)}, hosts, Host.interface)

    def _await_bridge(self, bridge: str, ports: set[str], hosts: Sequence[Host], interface: str) -> None:
        def pass_packets() -> bool:
            links = json.loads(call(["ip", "-n", self.switch, "-d", "-j", "link", "show", "master", bridge]))
            up = {link["ifname"] for link in links if link["operstate"] == "UP"}
            forwarding = {
                link["ifname"] for link in links if link["linkinfo"]["info_slave_data"]["state"] == "forwarding"
            }
            # Mounted in the host's network namespace, so this shows the host's own interface.
            states = {host.read(f"/sys/class/net/{interface}/operstate").strip() for host in hosts}
            return ports <= up & forwarding and states == {"up"}

        wait_until("the links come up", pass_packets, pause=0.01)

    def close(self) -> None:
        """Take everything apart; can be repeated, and after a failed start."""
        if not self._up or os.getpid() != self._owner:  # a fork of the owner ends without taking the lab along
            return
        self._up = False
        atexit.unregister(self.close)
        for process in self.started:
            if process.poll() is None:
                _kill(process)
        for anchor in self._anchors:
            anchor.kill()  # with it goes the host's first process, and with that every other
        teardown.dismantle(self.id, self.tmp)
        everything: list[subprocess.Popen[str] | subprocess.Popen[bytes]] = [*self._anchors, *self.started]
        for ended in everything:
            for stream in (ended.stdin, ended.stdout, ended.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):  # unsent input of a program that is gone
                        stream.close()
            ended.wait(timeout=60)

    def _make_network(self) -> None:
        segments = 65535 if self.offload else 1
        link = teardown.link_name(self.id)
        spaces = [self.switch, *(host.netns for host in self.hosts)]
        call(
            ["ip", "-batch", "-"],
            stdin="".join(f"netns add {space}\n" for space in spaces)
            + f"link add name {link} type veth peer name uplink netns {self.switch}\n"
            + f"addr add {self.bridge_address}/{self.subnet.prefixlen} dev {link}\n"
            + f"link set dev {link} gso_max_segs {segments} up\n",
        )
        # This machine's own firewall may be asked about bridged packets; here it must not be.
        no = "for knob in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -w $knob ] || echo 0 >$knob; done"
        call(["ip", "netns", "exec", self.switch, "sh", "-c", no])
        lines = [
            "link add name lab type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            "link set dev uplink master lab up",
        ]
        for host in self.hosts:
            lines.append(f"link add name {host.port} type veth peer name {host.interface} netns {host.netns}")
            lines.append(f"link set dev {host.port} master lab gso_max_segs {segments} up")
        lines.append("link set dev lab up")
        call(["ip", "-n", self.switch, "-batch", "-"], stdin="\n".join(lines) + "\n")

    def _launch(self, host: Host) -> None:
        files = self.tmp / "hosts" / host.name
        scratch = files / "scratch"
        scratch.mkdir(parents=True)
        (files / "authorized_keys").write_text(f"{self._login.public} lab\n")
        (files / "sudoers").write_text(SUDOERS)
        (files / "sudo_of_user").write_text(SUDO["nopasswd"].format(user=self.user))
        (files / "sshd_config").write_text(sshd_config(host.address, {}))
        (files / "host_key").write_text(host.key.private)
        (files / "hosts").write_text(hosts_file("\n".join(f"{each.address} {each.name}" for each in self.hosts)))
        with (files / "stderr").open("w") as stderr:
            self._anchors.append(
                subprocess.Popen(
                    [
                        *(find_program("nsenter"), f"--net={teardown.NETNS / host.netns}", find_program("unshare")),
                        *("--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private"),
                        *(find_program("bash"), str(BRINGUP)),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in a terminal is for the tests, not for the hosts
                    env={
                        "PATH": SEARCH_PATH,
                        "LC_ALL": "C.UTF-8",
                        "LAB_NAME": host.name,
                        "LAB_ADDRESS": host.address,
                        "LAB_PREFIX_LENGTH": str(self.subnet.prefixlen),
                        "LAB_GSO_SEGMENTS": "65535" if self.offload else "1",
                        "LAB_FILES": str(files),
                        "LAB_SCRATCH": str(scratch),
                        "LAB_SHARED": str(self.shared),
                        "LAB_ACCOUNTS": ACCOUNTS,
                        "LAB_USER": self.user,
                        "LAB_UID": str(self.uid),
                        "LAB_SSHD": find_program("sshd"),
                        "LAB_CHECKOUT": str(CHECKOUT),
                        "LAB_PYTHON_BASE": str(Path(sys.base_prefix).resolve()),
                        "LAB_PYTHON_NAME": f"python{sys.version_info.major}.{sys.version_info.minor}",
                        "LAB_SITES": "\n".join([*self.sites, *_site_packages()]),
                    },
                )
            )

    def _await(self, host: Host, anchor: subprocess.Popen[bytes], deadline: float) -> None:
        assert anchor.stdout is not None
        said = b""
        while b"ready\n" not in said:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([anchor.stdout], [], [], max(0.0, left))
            piece = os.read(anchor.stdout.fileno(), 4096) if ready else b""
            if not piece:
                why = (self.tmp / "hosts" / host.name / "stderr").read_text().strip()
                raise LabError(f"{host.name} did not come up: {why or 'no time left'}")
            said += piece
        host.anchor = int(said.split()[1])

    # The controller's side

    def _make_home(self) -> None:
        self.home = self.tmp / "home"
        folder = self.home / ".ssh"
        folder.mkdir(parents=True, mode=0o700)
        self.key = folder / "id_ed25519"
        self.key.touch(mode=0o600)
        self.key.write_text(self._login.private)
        (folder / "id_ed25519.pub").write_text(f"{self._login.public} lab\n")
        self.known_hosts = folder / "known_hosts"
        self.trust()
        self.ssh_config = folder / "config"
        self.ssh_config.write_text(
            "".join(
                f"Host {host.name} {host.address}\n  HostName {host.address}\n  User {self.user}\n"
                f"  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
                f"  StrictHostKeyChecking yes\n  UserKnownHostsFile {self.known_hosts}\n"
                for host in self.hosts
            )
        )

    def trust(self) -> None:
        """Write the hosts' present keys to `known_hosts`, by address and by name."""
        lines = (f"{host.address},{host.name} {host.key.public}\n" for host in self.hosts)
        self.known_hosts.write_text("".join(lines))

    def forget(self, host: Host) -> None:
        """Remove a host's key from `known_hosts`: the next connection meets an unknown key."""
        lines = self.known_hosts.read_text().splitlines(keepends=True)
        self.known_hosts.write_text("".join(line for line in lines if not line.startswith(f"{host.address},")))

    def ssh(self, host: Host, *command: str) -> list[str]:
        """The argv of OpenSSH's client; it takes its home from the user database, not from HOME, so it is told."""
        return [find_program("ssh"), "-F", str(self.ssh_config), "-o", "BatchMode=yes", host.address, *command]

    def environment(self) -> dict[str, str]:
        """For running the controller: its HOME is `home`, and no agent or setting of the caller leaks in."""
        unwanted = ("SSH_", "RUNBOOK_", "XDG_", "NCCL_", "GLOO_", "MASTER_", "PYTEST_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        return {
            **env,
            "HOME": str(self.home),
            "USER": "root",
            "LOGNAME": "root",
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(CHECKOUT),  # this checkout is what is tested, installed or not
        }

    @property
    def python(self) -> str:
        """A Python on every host that has this environment's packages, torch among them."""
        return "/opt/runbook-lab/venv/bin/python"

    @property
    def python_without_torch(self) -> str:
        """The same Python with nothing but its standard library."""
        return "/opt/runbook-lab/bare/bin/python"

    def inventory(self, file: str = "inventory.yml", **overrides: Any) -> Path:
        """Write an inventory of these hosts. Overrides are merged into it, key by key; None removes a key."""
        content = {
            "name": "lab",
            "rendezvous": {"master": self.hosts[0].name, "port": 29500, "backend": "gloo"},
            "network": {"interface": Host.interface, "ports": "29500-29510"},
            "defaults": {
                "connection": "ssh",
                "ssh": {"user": self.user, "port": 22, "key": str(self.key)},
                "python": self.python,
                "processes": 1,
            },
            "nodes": {host.name: {"address": host.address} for host in self.hosts},
        }
        path = self.tmp / file
        path.write_text(yaml.safe_dump(merged(content, overrides), sort_keys=False))
        return path

    # All hosts

    def __getitem__(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def work_file(self, name: str, text: str) -> None:
        """A file of the user's own in ~/work, on every host."""
        for host in self:
            host.run("mkdir -p ~/work", self.user)
            host.write(f"~/work/{name}", text, user=self.user)

    def data_network(self, *networks: str) -> None:
        """A second network that has no other way in: eth1 on every host, with an address (`.1`, `.2`, …) of each of
        these networks, `10.44.0.0/24` when none is named. The logins stay on eth0; see `over_data_network`.
        """
        nets = [ipaddress.ip_network(text) for text in networks or ("10.44.0.0/24",)]
        segments = 65535 if self.offload else 1
        lines = ["link add name data type bridge stp_state 0 forward_delay 0 mcast_snooping 0"]
        for host in self.hosts:
            lines.append(f"link add name d{host.index} type veth peer name eth1 netns {host.netns}")
            lines.append(f"link set dev d{host.index} master data gso_max_segs {segments} up")
        call(["ip", "-n", self.switch, "-batch", "-"], stdin="\n".join([*lines, "link set dev data up"]) + "\n")
        for host in self.hosts:
            host.data_addresses = [str(net[host.index + 1]) for net in nets]
            plan = [
                f"addr add {address}/{net.prefixlen} dev eth1" + (" nodad" if net.version == 6 else "")
                for address, net in zip(host.data_addresses, nets, strict=True)
            ]
            up = f"link set dev eth1 gso_max_segs {segments} up"
            call(["ip", "-n", host.netns, "-batch", "-"], stdin="\n".join([*plan, up]) + "\n")
        self.await_data_network()

    def await_data_network(self) -> None:
        """Wait until packets pass there."""
        self._await_bridge("data", {f"d{host.index}" for host in self.hosts}, self.hosts, "eth1")

    def over_data_network(self, *names: str) -> dict[str, Any]:
        """What to change in the inventory so that the job uses `data_network` while the logins stay on eth0; with
        names, these hosts alone are nodes."""
        nodes = {
            host.name: {"address": host.data_addresses[0], "ssh": {"host": host.address}}
            if host.name in (names or self.names)
            else None
            for host in self.hosts
        }
        return {"network": {"interface": "eth1"}, "nodes": nodes}

    def limit(self, mbit: float) -> None:
        for host in self.hosts:
            host.limit(mbit)

    def leaf(
        self, name: str, hosts: Sequence[Host], *, leaves: float | None = None, enters: float | None = None
    ) -> None:
        """Hang these hosts on a switch of their own, which is joined to the others by one cable: so many Mbit/s leave by it,
        and so many enter."""
        segments = 65535 if self.offload else 1
        ports = [f"link set dev {host.port} master {name}" for host in hosts]
        lines = [
            f"link add name {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            f"link add name {name}-up type veth peer name {name}-down",
            f"link set dev {name}-up master {name} gso_max_segs {segments} up",
            f"link set dev {name}-down master lab gso_max_segs {segments} up",
            f"link set dev {name} up",
            *ports,
        ]
        call(["ip", "-n", self.switch, "-batch", "-"], stdin="\n".join(lines) + "\n")
        for mbit, end in ((leaves, f"{name}-up"), (enters, f"{name}-down")):
            if mbit is not None:
                call(["tc", "-n", self.switch, "qdisc", "replace", "dev", end, "root", *bucket(mbit)])
        self._await_bridge(name, {f"{name}-up", *(host.port for host in hosts)}, hosts, Host.interface)

    def join(self, name: str, hosts: Sequence[Host]) -> None:
        """Undo `leaf`."""
        ports = [f"link set dev {host.port} master lab" for host in hosts]
        call(
            ["ip", "-n", self.switch, "-batch", "-"],
            stdin="\n".join([*ports, f"link del {name}-up", f"link del {name}"]) + "\n",
        )
        self.await_links(*hosts)

    def unlimit(self) -> None:
        for host in self.hosts:
            host.unlimit()

    def fabric(
        self,
        hcas: dict[str, Sequence[str]] | Sequence[str] = ("mlx5_0",),
        *,
        subnet_manager: bool = True,
        rate: int = 200,
        down: Sequence[str] = (),
    ) -> Fabric:
        """Give the hosts InfiniBand; see `Fabric`. A fabric that is there already is replaced."""
        if self._fabric is not None:
            self._fabric.stop()
        per_host = hcas if isinstance(hcas, dict) else {host.name: hcas for host in self.hosts}
        self._fabric = Fabric(self, per_host, subnet_manager=subnet_manager, rate=rate, down=down)
        self._fabric.start()
        return self._fabric


def left_behind() -> list[str]:
    """Traces of this process's labs that are still to be seen: none, once they are closed."""
    mine = f"{os.getpid()}[a-z]*"
    found = [
        *teardown.REGISTER.glob(mine),
        *teardown.NETNS.glob(teardown.netns_name(mine, "*")),
        *Path("/sys/class/net").glob(teardown.link_name(mine)),
    ]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [str(path) for path in found] + [line for line in mounts if f"{teardown.TMP_PREFIX}{os.getpid()}" in line]


__all__ = ["Lab", "LabError", "host_names", "left_behind"]
