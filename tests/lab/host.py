"""One host of the lab: what can be run on it and done to it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from . import keys, teardown
from .needs import find_library, find_program
from .processes import LabError, Process, call, namespace, processes_in, wait_until

if TYPE_CHECKING:
    from .lab import Lab

# What Debian's sshd gives an ordinary user: no /usr/sbin, so `ibstat` and `nft` are not found just like that.
USER_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/games"
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The accounts of a host, as far as this machine has them: those of a fresh Debian, and of the services that tests start.
ACCOUNTS = (
    "root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats nobody _apt sshd messagebus "
    "polkitd systemd-network systemd-timesync adm tty disk kmem sudo shadow utmp staff users nogroup _ssh"
)
SUDOERS = """\
Defaults env_reset, mail_badpass
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
root ALL=(ALL:ALL) ALL
#includedir /etc/sudoers.d
"""
SUDO = {
    "nopasswd": "{user} ALL=(ALL:ALL) NOPASSWD: ALL\n",
    "password": "{user} ALL=(ALL:ALL) ALL\n",
    "none": "",
}

# Many sessions may start at once in the benchmark; a test that wants a stingy server says so with `sshd_options`.
SSHD_DEFAULTS: Mapping[str, str] = {
    "Port": "22",
    "HostKey": "/etc/ssh/lab_host_key",
    "PidFile": "/run/sshd.pid",
    "UsePAM": "no",
    "UseDNS": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "PubkeyAuthentication": "yes",
    "PermitRootLogin": "no",
    "PrintMotd": "no",
    "PrintLastLog": "no",
    "LoginGraceTime": "20",
    "MaxStartups": "500:30:1000",
    "MaxSessions": "200",
    "Subsystem": "sftp internal-sftp",
}


def sshd_config(address: str, options: Mapping[str, str]) -> str:
    settings = {**SSHD_DEFAULTS, "ListenAddress": address, **options}
    return "".join(f"{key} {value}\n" for key, value in settings.items())


def hosts_file(lines: str) -> str:
    return f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{lines.rstrip()}\n"


def bucket(mbit: float, interface: str = "") -> list[str]:
    """`tc`'s words for a limit in Mbit/s."""
    burst = max(200_000 if interface == "lo" else 16_000, int(mbit * 125))
    return ["tbf", "rate", f"{int(mbit * 1_000_000)}bit", "burst", str(burst), "latency", "100ms"]


class Host:
    """Its own network, mounts, hostname, IPC and pids; its files are a copy-on-write view of this machine's.

    `run` and `popen` start programs directly, without sshd, as the ordinary user unless `user="root"`.
    Pids given by `processes` are this machine's, so `os.kill` works on them.
    """

    interface = "eth0"

    def __init__(self, lab: Lab, index: int, name: str, address: str) -> None:
        self.lab = lab
        self.index = index
        self.name = name
        self.address = address
        self.netns = teardown.netns_name(lab.id, name)
        self.port = f"h{index}"  # the other end of eth0, on the bridge
        self.key = keys.generate(f"root@{name}")
        self.anchor = 0  # the pid of the host's first process, set when it is up
        self.data_addresses: list[str] = []  # on eth1, once the lab has a `data_network`
        self._sshd_options: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Host({self.name}, {self.address})"

    # Files

    @property
    def home(self) -> str:
        """The ordinary user's home, as a path on the host."""
        return f"/home/{self.lab.user}"

    def path(self, path: str) -> Path:
        """A file of the host as a path this process can open. `~` is the ordinary user's home.

        Links are followed here by hand: an absolute one inside the host would lead the kernel to this machine's file.
        """
        root = Path(f"/proc/{self.anchor}/root")
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        done: list[str] = []
        for _ in range(200):
            if not todo:
                return root.joinpath(*done)
            part = todo.pop()
            if part == "..":
                done = done[:-1]
                continue
            here = root.joinpath(*done, part)
            if not here.is_symlink():
                done.append(part)
                continue
            target = os.readlink(here)  # noqa: PTH115 - as written, not resolved
            if target.startswith("/"):
                done = []
            todo.extend(piece for piece in reversed(target.split("/")) if piece not in ("", "."))
        raise LabError(f"{self.name}: too many links in {path}")

    def read(self, path: str) -> str:
        return self.path(path).read_text()

    def write(self, path: str, text: str, *, mode: int = 0o644, user: str | None = None) -> None:
        """Write a file on the host; it belongs to root, or to the ordinary user when `user` names it."""
        real = self.path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text)
        real.chmod(mode)
        if user == self.lab.user:
            os.chown(real, self.lab.uid, self.lab.uid)

    def set_hosts(self, lines: str) -> None:
        """Rewrite /etc/hosts; localhost is always in it, nothing else is but these lines."""
        self.write("/etc/hosts", hosts_file(lines))

    def tool(self, name: str, script: str) -> None:
        """Install an executable in the host's own /usr/local/bin, found before the real one."""
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}"
        self.write(f"/usr/local/bin/{name}", text if text.endswith("\n") else f"{text}\n", mode=0o755)

    def remove_tool(self, name: str) -> None:
        """Remove a program from every folder of PATH, on this host only."""
        overlay = self.path("/").stat().st_dev
        removed = False
        for folder in dict.fromkeys((*ROOT_PATH.split(":"), *USER_PATH.split(":"))):
            program = self.path(folder) / name
            if not (program.is_symlink() or program.exists()):
                continue
            if program.parent.stat().st_dev != overlay:
                # A bind of this machine's own folder: removing there would remove it for good.
                raise LabError(f"{self.name}: {folder} is not the host's own, {name} stays")
            program.unlink()
            removed = True
        if not removed:
            raise LabError(f"{self.name}: there is no {name} to remove")

    def sudo(self, mode: str) -> None:
        """What the ordinary user may do: `nopasswd` (as at the start), `password`, `none`."""
        self.write(f"/etc/sudoers.d/{self.lab.user}", SUDO[mode].format(user=self.lab.user), mode=0o440)

    def login_shell(self, shell: str) -> None:
        """Give the ordinary user another login shell, such as `/usr/bin/fish`."""
        lines = self.read("/etc/passwd").splitlines()
        mine = f"{self.lab.user}:"
        changed = [line.rpartition(":")[0] + f":{shell}" if line.startswith(mine) else line for line in lines]
        self.write("/etc/passwd", "\n".join(changed) + "\n")

    # Programs

    def entered(self, argv: Sequence[str] | str, user: str | None) -> list[str]:
        """The argv that runs a program on the host; its environment is the caller's to give, see `environment`."""
        if user not in (None, "root", self.lab.user):
            raise ValueError(f"user: {self.lab.user} (None) or root, not {user!r}")
        command = ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv)
        uid = str(self.lab.uid)
        drop = [] if user == "root" else ["--reuid", uid, "--regid", uid, "--init-groups"]
        home = "/root" if user == "root" else self.home
        return [
            *(find_program("nsenter"), "-t", str(self.anchor), "-m", "-u", "-i", "-n", "-p", f"--wdns={home}", "--"),
            # nsenter waits outside for the program inside: when it is killed, the program must go too.
            *(find_program("setpriv"), "--pdeathsig", "KILL", *drop, "--"),
            *command,
        ]

    def environment(self, user: str | None = None) -> dict[str, str]:
        """What `run` and `popen` start programs with."""
        name, home, path = ("root", "/root", ROOT_PATH) if user == "root" else (self.lab.user, self.home, USER_PATH)
        return {"HOME": home, "USER": name, "LOGNAME": name, "SHELL": "/bin/bash", "PATH": path, "LANG": "C.UTF-8"}

    def run(
        self,
        argv: Sequence[str] | str,
        user: str | None = None,
        *,
        check: bool = True,
        timeout: float = 60.0,
        input: str = "",
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the host and wait for it; a string is for /bin/sh. Not through sshd."""
        done = subprocess.run(
            self.entered(argv, user),
            input=input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            cwd="/",
            env={**self.environment(user), **(env or {})},
        )
        if check and done.returncode != 0:
            shown = argv if isinstance(argv, str) else shlex.join(argv)
            raise LabError(f"{self.name}: {shown} ended {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done

    def popen(
        self,
        argv: Sequence[str] | str,
        user: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[str] | None = subprocess.DEVNULL,
        stdout: int | IO[str] | None = subprocess.PIPE,
        stderr: int | IO[str] | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a program on the host. However it is ended, and at the latest with the lab, it dies by SIGKILL.

        `pid` is that of the helper outside; the program itself is found by `processes`.
        """
        process = subprocess.Popen(
            self.entered(argv, user),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            cwd="/",
            env={**self.environment(user), **(env or {})},
        )
        self.lab.started.append(process)
        return process

    def processes(self, user: str | None = None) -> list[tuple[int, str]]:
        """`(pid, command line)` of what lives on the host, without sshd and the lab's own helpers."""
        uid = {None: None, "root": 0, self.lab.user: self.lab.uid}[user]
        return [
            (process.pid, process.cmdline)
            for process in self._inside()
            if not self._ours(process) and uid in (None, process.uid)
        ]

    def _inside(self) -> list[Process]:
        inode = namespace(self.anchor, "pid")
        if inode is None:
            raise LabError(f"{self.name} is not up")
        return processes_in("pid", inode)

    def _ours(self, process: Process) -> bool:
        helper = Path(process.exe).name in ("sshd", "sshd-session", "sshd-auth", "ibsim", "opensm")
        return helper or process.inner_pid == 1

    # Network

    def firewall(self, ruleset: str) -> None:
        """Load an nft ruleset, added to what is there; see `open`. nft wants each closing brace on its own line."""
        self.run(["nft", "-f", "-"], "root", input=ruleset)

    def nft(self, command: str) -> str:
        """One nft command, such as `add rule inet filter input tcp dport 29500 drop`."""
        return self.run(["nft", *shlex.split(command)], "root").stdout

    def open(self) -> None:
        """Remove every firewall rule."""
        self.nft("flush ruleset")

    def cut(self) -> None:
        """Pull the cable at the switch: eth0 loses its carrier and every packet is lost."""
        call(["ip", "-n", self.lab.switch, "link", "set", self.port, "down"])

    def restore(self) -> None:
        """Plug it in again; packets pass when this returns."""
        call(["ip", "-n", self.lab.switch, "link", "set", self.port, "up"])
        self.lab.await_links(self)
        # Who asked in vain for an address while it was cut would ask again only after a second.
        for host in self.lab.hosts:
            call(["ip", "-n", host.netns, "neighbor", "flush", "dev", host.interface, "nud", "all"])

    def switch_rule(self, rule: str, way: str = "from") -> None:
        """An nft rule in the switch, unseen by any host, for what comes `from` this host or goes `to` it.

        It stands before what the host says to other hosts only, not to this machine.
        """
        ports = f'{{ "{self.port}", "d{self.index}" }}'
        match = f'iifname {ports} oifname != "uplink"' if way == "from" else f'oifname {ports} iifname != "uplink"'
        table = (
            f"table bridge lab {{\n chain forward {{\n type filter hook forward priority 0;\n {match} {rule}\n }}\n}}\n"
        )
        call(["ip", "netns", "exec", self.lab.switch, "nft", "-f", "-"], stdin=table)

    def lose(self, percent: int, way: str = "from") -> None:
        """Lose this share of the packets on the cable to the switch."""
        self.switch_rule(f"numgen random mod 100 < {percent} drop", way)

    def ip(self, *commands: str) -> None:
        """Commands of `ip`, such as `route add blackhole 10.0.0.1`, in one go."""
        call(["ip", "-n", self.netns, "-batch", "-"], stdin="".join(f"{command}\n" for command in commands))

    def knob(self, name: str, value: int) -> None:
        """A network setting of the kernel: `net.ipv4.conf.eth0.rp_filter`."""
        self.run(f"echo {value} >/proc/sys/{name.replace('.', '/')}", "root")

    def limit(self, mbit: float, interface: str = interface) -> None:
        """Let no more than this leave by eth0. TCP then carries 1448 of every 1514 bytes: 200 Mbit/s are 23.9 MB/s.

        The bucket holds a millisecond of traffic, so a short transfer is as slow as a long one; on `lo` it must hold
        the largest packet there is, which is bigger.
        """
        call(["tc", "-n", self.netns, "qdisc", "replace", "dev", interface, "root", *bucket(mbit, interface)])

    def limit_towards(self, address: str, mbit: float, others: float) -> None:
        """Let no more than `mbit` leave for that address, and no more than `others` for all the others."""
        where = ["dev", self.interface]
        tc = ["tc", "-n", self.netns]
        call([*tc, "qdisc", "replace", *where, "root", "handle", "1:", "htb", "default", "2"])
        for number, rate in ((1, mbit), (2, others)):
            bits = f"{int(rate * 1_000_000)}bit"
            call(
                [
                    *tc,
                    "class",
                    "add",
                    *where,
                    "parent",
                    "1:",
                    "classid",
                    f"1:{number}",
                    "htb",
                    "rate",
                    bits,
                    "ceil",
                    bits,
                ]
            )
        match = ["u32", "match", "ip", "dst", f"{address}/32", "flowid", "1:1"]
        call([*tc, "filter", "add", *where, "parent", "1:", "protocol", "ip", *match])

    def limit_incoming(self, mbit: float) -> None:
        """Let the switch send no more than this to the host, which cannot see why."""
        call(["tc", "-n", self.lab.switch, "qdisc", "replace", "dev", self.port, "root", *bucket(mbit)])

    def network_card(self, mbit: int) -> None:
        """Let the kernel's files about eth0 look as if it were a card, with a link of this rate."""
        fake, real = "/run/lab-eth0", f"/sys/devices/virtual/net/{self.interface}"
        copy = f"for file in {real}/*; do [ ! -f $file ] || cat $file >{fake}/${{file##*/}} 2>/dev/null || :; done"
        tell = f"echo {mbit} >{fake}/speed; echo full >{fake}/duplex"
        self.run(f"mkdir -p {fake}/device; {copy}; {tell}; mount --bind {fake} {real}", "root")

    def unlimit(self) -> None:
        call(["tc", "-n", self.netns, "qdisc", "del", "dev", self.interface, "root"], check=False)

    # sshd

    def _sshd_pid(self) -> int | None:
        try:
            return int(self.read("/run/sshd.pid"))
        except (OSError, ValueError):
            return None

    def await_sshd(self) -> None:
        """sshd writes its pid file once it listens."""
        wait_until(f"{self.name}: sshd", lambda: self._sshd_pid() is not None)

    def stop_sshd(self, *, sessions: bool = False) -> None:
        """No new connections; with `sessions` the established ones end too."""
        inner = self._sshd_pid()
        for process in self._inside():
            server = Path(process.exe).name.startswith("sshd")
            if server and (sessions or process.inner_pid == inner):
                with contextlib.suppress(ProcessLookupError):  # it may end with the one before
                    os.kill(process.pid, signal.SIGKILL)
                wait_until(f"{self.name}: sshd ends", lambda pid=process.pid: namespace(pid, "pid") is None)  # type: ignore[misc]
        self.path("/run/sshd.pid").unlink(missing_ok=True)

    def start_sshd(self) -> None:
        self.run([find_program("sshd"), "-f", "/etc/ssh/lab_sshd_config", "-E", "/var/log/lab_sshd.log"], "root")
        self.await_sshd()

    def sshd_options(self, **options: str | None) -> None:
        """Set options of sshd (`MaxStartups="2:100:2"`; None takes one back) for connections made from now on."""
        for key, value in options.items():
            self._sshd_options.pop(key, None)
            if value is not None:
                self._sshd_options[key] = value
        self.write("/etc/ssh/lab_sshd_config", sshd_config(self.address, self._sshd_options))
        if self._sshd_pid() is not None:
            self.stop_sshd()
            self.start_sshd()

    def sshd_log(self) -> str:
        return self.read("/var/log/lab_sshd.log")

    def rekey(self) -> None:
        """A new host key, as after a reinstall; `lab.known_hosts` keeps the old one until `lab.trust`."""
        self.key = keys.generate(f"root@{self.name}")
        self.write("/etc/ssh/lab_host_key", self.key.private, mode=0o600)
        self.stop_sshd()
        self.start_sshd()

    def clock_offset(self, seconds: float) -> None:
        """Programs started through sshd from now on see a clock that is wrong by so much; 0 sets it right.

        Only the time of day: what measures durations is left alone. `sudo` drops it, as it drops every LD_PRELOAD.
        """
        if seconds == 0:
            self.sshd_options(SetEnv=None)
            return
        library = find_library("libfaketimeMT.so.1")
        self.sshd_options(SetEnv=f"LD_PRELOAD={library} FAKETIME={seconds:+f} FAKETIME_DONT_FAKE_MONOTONIC=1")

    def limit_logins(self, **limits: int) -> None:
        """Resource limits, named as prlimit names them, for whoever logs in from now on."""
        options = [f"--{name}={value}" for name, value in limits.items()]
        self.run(["prlimit", "--pid", str(self._sshd_pid()), *options], "root")

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to one of `processes`, after looking that it still lives here."""
        inode = namespace(self.anchor, "pid")
        if namespace(pid, "pid") != inode:
            raise LabError(f"{self.name}: no process {pid} here")
        os.kill(pid, number)

    def wait_empty(self, user: str | None = None, *, timeout: float = 40.0) -> float:
        """Wait until `processes(user)` is empty; how long it took. Says what stayed when it does not."""
        begin = time.monotonic()
        while left := self.processes(user):
            if time.monotonic() - begin > timeout:
                raise AssertionError(f"{self.name}: still there after {timeout:g} s: {left}")
            time.sleep(0.02)
        return time.monotonic() - begin
