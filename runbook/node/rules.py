"""Runs on a node: collects what its packet filters are, in whatever tool's words, and prints it as one JSON line.

Contract: `python3 rules.py '{"peers": ["10.0.0.2"]}'` prints `\\x1erunbook ` and one JSON object. Python >= 3.8,
standard library only. Nothing is judged here and nothing is changed: every command only lists. An ordinary user's
commands go through `sudo -n`, which never asks. Each command has 3 s, and they run side by side.

A command's record says what happened: `ok` (rc, stdout, stderr), `missing` (no such tool), `denied` (needs root, and
sudo would ask or refuses), `timeout`, `failed` (it could not be started). "Could not look" is never an empty list.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

MARKER = "\x1erunbook "
SECONDS = 3.0
LARGEST = 32 * 1024 * 1024
PATHS = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"]

AS_ROOT = {
    "nft-json": ["nft", "-j", "-a", "list", "ruleset"],
    "nft-text": ["nft", "-a", "list", "ruleset"],
    "iptables-save": ["iptables-save"],
    "ip6tables-save": ["ip6tables-save"],
    "iptables-legacy-save": ["iptables-legacy-save"],
    "ip6tables-legacy-save": ["ip6tables-legacy-save"],
    "iptables-nft-save": ["iptables-nft-save"],
    "ip6tables-nft-save": ["ip6tables-nft-save"],
    "ipset": ["ipset", "save"],
    "ufw": ["ufw", "status", "verbose"],
    "firewalld-state": ["firewall-cmd", "--state"],
    "firewalld-zones": ["firewall-cmd", "--list-all-zones"],
    "firewalld-default": ["firewall-cmd", "--get-default-zone"],
}
AS_ANYONE = {
    "addresses": ["ip", "-j", "addr", "show"],
}
FACTS = {
    "conntrack_count": "/proc/sys/net/netfilter/nf_conntrack_count",
    "conntrack_max": "/proc/sys/net/netfilter/nf_conntrack_max",
    "local_ports": "/proc/sys/net/ipv4/ip_local_port_range",
    "rp_filter": "/proc/sys/net/ipv4/conf/all/rp_filter",
    "ip_forward": "/proc/sys/net/ipv4/ip_forward",
    "release": "/proc/sys/kernel/osrelease",
}
MOST_DEVICES = 16
KERNELS_OWN = (0, 32766, 32767)  # priorities of the policy rules that lead to the tables local, main and default
LEGACY_TABLES = {"ip": "/proc/net/ip_tables_names", "ip6": "/proc/net/ip6_tables_names"}
# What sudo, nft, iptables, ufw and firewall-cmd print when the caller is not root enough.
DENIED = (
    "password is required",
    "terminal is required",
    "not allowed",
    "not in the sudoers",
    "may not run sudo",
    "must be root",
    "you need to be root",
    "permission denied",
    "operation not permitted",
    "not authorized",
    "a password",
    "no new privileges",
    "must be owned by uid 0",
)


def find(tool):
    return shutil.which(tool, path=os.pathsep.join(PATHS))


def flavour(path):
    """`nft` or `legacy`: which half of the kernel an iptables binary speaks to."""
    name = os.path.basename(os.path.realpath(path))
    if "nft" in name or "compat" in name:
        return "nft"
    return "legacy"


def stop(process, with_sudo):
    """Kill the command's whole process group; what sudo runs as root, only sudo may kill."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except PermissionError:
        if with_sudo:
            subprocess.call(
                [with_sudo, "-n", "kill", "-KILL", "--", "-%d" % process.pid],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=2,
            )
    except ProcessLookupError:
        pass


def run(argv, sudo=None):
    """One command -> its record."""
    started = time.monotonic()
    path = find(argv[0])
    if path is None:
        return {"status": "missing", "argv": argv}
    command = [path, *argv[1:]]
    record = {"status": "ok", "argv": argv, "path": os.path.realpath(path)}
    if sudo is not None:
        if not sudo:
            record.update(status="denied", stderr="not root, and there is no sudo here")
            return record
        command = [sudo, "-n", *command]
    environment = dict(os.environ, LC_ALL="C", LANG="C", PATH=os.pathsep.join(PATHS))
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        record.update(status="failed", stderr=str(error))
        return record
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        record["status"] = "timeout"
        try:
            stop(process, sudo)
            out, err = process.communicate(timeout=1)
        except Exception:
            out, err = b"", b""
    record["seconds"] = round(time.monotonic() - started, 3)
    record["stderr"] = err.decode("utf-8", "replace")[:4000]
    if record["status"] == "timeout":
        return record
    record["rc"] = process.returncode
    if len(out) > LARGEST:
        record.update(status="failed", stderr="%d bytes of rules: more than this program carries" % len(out))
        return record
    record["stdout"] = out.decode("utf-8", "replace")
    said = (record["stderr"] + record["stdout"][:1000]).lower()
    if process.returncode != 0 and any(words in said for words in DENIED):
        record["status"] = "denied"
    return record


def read(path):
    try:
        with open(path) as handle:
            return handle.read().strip()
    except OSError:
        return None


def legacy_tables(sudo):
    """The tables that iptables-legacy has filled; None where nobody may look. No such file: none."""
    found = {}
    for family, path in LEGACY_TABLES.items():
        if not os.path.exists(path):
            found[family] = []
            continue
        text = read(path)
        if text is None:
            record = run(["cat", path], sudo)
            text = record.get("stdout") if record.get("rc") == 0 else None
        found[family] = text.split() if text is not None else None
    return found


def traffic_filters():
    """`tc` filters where an interface has any: they drop what no packet filter ever sees. (interface, way) -> text."""
    try:
        listed = json.loads(run(["tc", "-j", "qdisc", "show"]).get("stdout") or "[]")
    except ValueError:
        return {}
    devices = sorted({one.get("dev", "") for one in listed if one.get("kind") in ("ingress", "clsact")})
    found = {}
    for device in devices[:MOST_DEVICES]:
        for way in ("ingress", "egress"):
            text = run(["tc", "filter", "show", "dev", device, way]).get("stdout", "").strip()
            if text:
                found["%s %s" % (device, way)] = text[:4000]
    return found


def policy(family):
    """The policy rules of an IP version (`-4`, `-6`), and whether there are any beyond the kernel's own."""
    record = run(["ip", family, "-j", "rule", "show"])
    try:
        priorities = {rule.get("priority") for rule in json.loads(record.get("stdout") or "[]")}
    except (ValueError, AttributeError):
        priorities = set()
    return record, not priorities <= set(KERNELS_OWN)


def nf_tables_in_kernel(release):
    """False only when it is certain that this kernel has no nf_tables."""
    if os.path.exists("/sys/module/nf_tables"):
        return True
    builtin = read("/lib/modules/%s/modules.builtin" % release)
    if builtin is None or read("/proc/modules") is None:
        return None
    return "nf_tables.ko" in builtin


def wanted(root, sudo):
    """name -> (argv, sudo or None): what to run here. One save command for each flavour of iptables is enough."""
    jobs = {name: (argv, None if root else sudo) for name, argv in AS_ROOT.items()}
    jobs.update({name: (argv, None) for name, argv in AS_ANYONE.items()})
    for prefix in ("iptables", "ip6tables"):
        path = find(prefix + "-save")
        if path is not None:
            jobs.pop("%s-%s-save" % (prefix, flavour(path)))
    if find("firewall-cmd") is None:
        for name in ("firewalld-state", "firewalld-zones", "firewalld-default"):
            jobs.pop(name)
    return jobs


def main():
    started = time.monotonic()
    arguments = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    root = os.geteuid() == 0
    sudo = None if root else (find("sudo") or "")
    jobs = wanted(root, sudo)
    peers = arguments.get("peers", [])
    policies = {family: policy(family) for family in sorted({"-6" if ":" in peer else "-4" for peer in peers})}
    for peer in peers:
        jobs["route " + peer] = (["ip", "-j", "route", "get", peer], None)
    records = {}
    facts = {name: read(path) for name, path in FACTS.items()}
    facts.update(uid=os.getuid(), gid=os.getgid())

    def work(name, argv, how):
        try:
            records[name] = run(argv, how)
            if name.startswith("route "):
                peer = argv[-1]
                ruled, more = policies["-6" if ":" in peer else "-4"]
                if more or records[name].get("rc"):
                    # The routes and rules that a refusal comes from: of every packet, or of some ports or users only.
                    shown = run(["ip", "-j", "-details", "route", "show", "table", "all", "match", peer])
                    records.update({"routes " + peer: shown, "policy " + peer: ruled})
        except Exception as error:
            records[name] = {"status": "failed", "argv": argv, "stderr": repr(error)}

    def look():
        facts["legacy_tables"] = legacy_tables(sudo)
        facts["nf_tables"] = nf_tables_in_kernel(facts.get("release"))
        facts["traffic_filters"] = traffic_filters()

    threads = [threading.Thread(target=work, args=(name, *job), daemon=True) for name, job in jobs.items()]
    threads.append(threading.Thread(target=look, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + SECONDS + 3 - time.monotonic()))
    for name, (argv, _) in jobs.items():
        records.setdefault(name, {"status": "timeout", "argv": argv})
    for name, record in records.items():
        if name.endswith("-save") and "path" in record:
            record["flavour"] = flavour(record["path"])
    answer = {
        "program": "rules",
        "version": 1,
        "root": root,
        "uid": os.geteuid(),
        "tools": dict(records),
        "facts": facts,
        "seconds": round(time.monotonic() - started, 3),
    }
    sys.stdout.write(MARKER + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
