"""A real Kubernetes cluster of one machine: Debian's kube-apiserver, scheduler, kubelet, etcd, containerd and runc.

It stands in namespaces and control groups of its own and ends with them. Pods have a network of their own, on one bridge, and see
the Python of this environment; their images are made here. There is no controller manager: nothing starts a pod anew but the
kubelet, which restarts its containers, and nothing enforces a NetworkPolicy but what a test itself drops.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from lab.needs import SEARCH_PATH

CHECKOUT = Path(__file__).resolve().parents[2]
MACHINE, ADDRESS, PORT = "gpu-1", "10.90.0.1", 6443
TOKENS = {"admin": "system:masters", "ada": "people", "eve": "strangers"}
"""Who there is, each with a token of the same name, and the group: RBAC lets `people` look at pods, and `strangers` nothing."""

NAMESPACES = f"""\
set -e
mount --make-rprivate / && mount --make-rshared /
for folder in /run /var/lib /var/log; do mount -t tmpfs tmpfs $folder; done
mount -t tmpfs tmpfs /sys/fs/cgroup
for one in cpu cpuacct cpuset memory pids freezer blkio devices; do
    mkdir /sys/fs/cgroup/$one && mount -t cgroup -o $one cgroup /sys/fs/cgroup/$one
done
if grep -q :name=systemd: /proc/self/cgroup; then
    mkdir /sys/fs/cgroup/systemd && mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
fi
ip link set lo up
ip link add uplink type veth peer name beyond && ip link set beyond up
ip address add {ADDRESS}/24 dev uplink && ip link set uplink up
ip route add default via {ADDRESS} dev uplink
echo ready
exec sleep infinity
"""
CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "lab/bare:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs}/root/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""
BRIDGE = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.91.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
SEEN = ["/usr", str(Path(sys.base_prefix).resolve()), str(Path(sys.prefix).resolve())]
"""What a pod with Python sees of this machine."""

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer", "blkio", "devices", "name=systemd")


class ClusterError(AssertionError):
    """The cluster did not do what the test needs; the message has what its programs said."""


class Cluster:
    """`with Cluster(programs) as cluster:` — when the block ends nothing of it is left."""

    def __init__(self, programs: Path) -> None:
        """`programs` is what build.sh made."""
        self.programs = programs
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="runbook-kubernetes-"))
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Its parts

    def _start(self) -> None:
        self._groups = [group for name in CONTROLLERS if (group := self._group(name))]
        namespaces = ["--mount", "--net", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc"]
        self._enter = "".join(f"echo $$ >{shlex.quote(str(group))}/cgroup.procs; " for group in self._groups)
        # Whoever kills the tests kills the cluster.
        inside = shlex.join(["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "sh", "-c", NAMESPACES])
        self._anchor = subprocess.Popen(
            ["sh", "-c", f"{self._enter} exec {inside}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._anchor.stdout is not None
        if self._anchor.stdout.readline() != "ready\n":
            raise ClusterError("no namespaces for the cluster: see what it said above")
        children = Path(f"/proc/{self._anchor.pid}/task/{self._anchor.pid}/children").read_text().split()
        self.pid = int(children[0])
        self._files()
        run = self._daemon
        bin = self.programs / "bin"
        run("etcd", bin / "etcd", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync")
        run("containerd", bin / "containerd", "--config", self.folder / "containerd.toml")
        self._api_server()
        self.until("the API server is ready", lambda: self.kubectl("get", "--raw", "/readyz", check=False) == "ok", 90)
        run("kube-scheduler", bin / "kube-scheduler", f"--kubeconfig={self.kubeconfig()}", "--leader-elect=false")
        self._images()
        self._kubelet()
        self.until("the machine is ready", lambda: '"True"' in self._ready(), 90)
        self._roles()
        self._path()

    def _group(self, controller: str) -> Path | None:
        """A control group below our own, in a hierarchy of the first version."""
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                group = Path("/sys/fs/cgroup") / controller.removeprefix("name=") / path.lstrip("/") / self.folder.name
                group.mkdir()
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if (group / name).exists():
                        (group / name).write_text((group.parent / name).read_text())
                return group
        return None

    def _files(self) -> None:
        config = CONTAINERD.format(folder=self.folder, programs=self.programs)
        (self.folder / "containerd.toml").write_text(config)
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(BRIDGE))
        rows = (f"{name},{name},{number},{group}\n" for number, (name, group) in enumerate(TOKENS.items(), 1))
        (self.folder / "tokens.csv").write_text("".join(rows))
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "accounts.key"), "2048"],
            check=True,
            capture_output=True,
            timeout=60,
        )

    def _daemon(self, name: str, *argv: str | Path) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        env = {"PATH": f"{self.programs}/bin:{SEARCH_PATH}", "HOME": str(self.folder), "TMPDIR": tempfile.gettempdir()}
        self._daemons[name] = subprocess.Popen(
            self.inside(*map(str, argv)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )
        log.close()

    def _api_server(self) -> None:
        key = self.folder / "accounts.key"
        self._daemon(
            "kube-apiserver",
            self.programs / "bin" / "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={ADDRESS}",
            f"--secure-port={PORT}",
            f"--cert-dir={self.folder}/certificates",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-cluster-ip-range=10.92.0.0/24",
            "--service-account-issuer=https://lab",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        )

    def _kubelet(self) -> None:
        self._daemon(
            "kubelet",
            self.programs / "bin" / "kubelet",
            f"--kubeconfig={self.kubeconfig()}",
            f"--hostname-override={MACHINE}",
            f"--node-ip={ADDRESS}",
            f"--root-dir={self.folder}/kubelet",
            f"--cert-dir={self.folder}/kubelet-certificates",
            f"--volume-plugin-dir={self.folder}/volume-plugins",
            "--container-runtime=remote",
            "--container-runtime-endpoint=unix:///run/containerd.sock",
            "--cgroups-per-qos=false",
            "--enforce-node-allocatable=",
            "--eviction-hard=",
            "--anonymous-auth=true",
            "--authorization-mode=AlwaysAllow",
            "--make-iptables-util-chains=false",
            "--fail-swap-on=false",
            "--resolv-conf=/etc/resolv.conf",
            "--housekeeping-interval=5s",
        )

    def _ready(self) -> str:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        return json.dumps(self.kubectl("get", "node", MACHINE, "-o", f"jsonpath={path}", check=False))

    def _images(self) -> None:
        """`lab/python`, which sees the machine's; `lab/bare`, a shell and little else; `lab/empty`, not even that."""
        small = ["/bin/sleep", "/bin/cat"]
        images = {"lab/python:1": [], "lab/bare:1": ["/bin/sh", *small], "lab/empty:1": small}
        file = self.folder / "images.tar"
        file.write_bytes(_archive(images))
        ctr = [
            "ctr",
            "--address",
            "/run/containerd.sock",
            "--namespace",
            "k8s.io",
            "images",
            "import",
            "--snapshotter",
            "native",
        ]
        self.until("containerd imports images", lambda: self.run(*ctr, str(file), check=False).returncode == 0, 60)

    def _roles(self) -> None:
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "looks"}}
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
        binding = {
            "apiVersion": role["apiVersion"],
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "looks"},
            "subjects": [{"kind": "Group", "name": "people", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "ClusterRole", "name": "looks", "apiGroup": "rbac.authorization.k8s.io"},
        }
        self.apply({**role, "rules": rules}, binding)

    def _path(self) -> None:
        """A folder for PATH with `kubectl` as it is in the cluster's network, and nothing else."""
        self.path = self.folder / "path"
        self.path.mkdir()
        enter = shlex.join(["nsenter", "-t", str(self.pid), "-n", "--", str(self.programs / "bin" / "kubectl")])
        (self.path / "kubectl").write_text(f'#!/bin/sh\nexec {enter} "$@"\n')
        (self.path / "kubectl").chmod(0o755)

    def close(self) -> None:
        """Everything dies with the first process of the namespaces."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if hasattr(self, "_anchor"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._anchor.pid, signal.SIGKILL)
            self._anchor.wait()
            assert self._anchor.stdout is not None
            self._anchor.stdout.close()
        for daemon in self._daemons.values():
            with contextlib.suppress(ProcessLookupError):
                daemon.kill()
            daemon.wait()
        for group in getattr(self, "_groups", ()):
            _remove(group)
        shutil.rmtree(self.folder, ignore_errors=True)

    # What an administrator does

    def inside(self, *argv: str) -> list[str]:
        """The argv that runs this in the cluster's namespaces and control groups."""
        enter = f'{self._enter} exec nsenter -t {self.pid} -m -n -p -C -- "$@"'
        return ["sh", "-c", enter, "sh", *argv]

    def run(
        self, *argv: str, check: bool = True, timeout: float = 60.0, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.programs}/bin:{SEARCH_PATH}", "HOME": str(self.folder)}
        done = subprocess.run(
            self.inside(*argv), input=text or "", capture_output=True, text=True, timeout=timeout, check=False, env=env
        )
        if check and done.returncode != 0:
            raise ClusterError(f"{shlex.join(argv)} ended {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def kubeconfig(self, user: str = "admin", *, server: str | None = None, **of_user: Any) -> Path:
        """A kubeconfig for this user; with the token of nobody where TOKENS has no such user."""
        file = self.folder / f"{user}.kubeconfig"
        address = server or f"https://127.0.0.1:{PORT}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": address, "insecure-skip-tls-verify": True}}],
            "users": [{"name": user, "user": of_user or {"token": user}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user, "namespace": "default"}}],
            "current-context": "lab",
        }
        file.write_text(yaml.safe_dump(content))
        return file

    def kubectl(self, *argv: str, check: bool = True, text: str | None = None, user: str = "admin") -> str:
        done = self.run("kubectl", f"--kubeconfig={self.kubeconfig(user)}", *argv, check=check, text=text)
        return done.stdout.strip()

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))

    def delete(self, *argv: str) -> None:
        self.kubectl("delete", "--grace-period=0", "--force", "--wait=true", *argv, check=False)

    def signal_daemon(self, name: str, number: int) -> None:
        """To the daemon itself, which nsenter has become or is the parent of."""
        pid = self._daemons[name].pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or [str(pid)]:
            os.kill(int(child), number)

    def stop(self, name: str) -> None:
        self.signal_daemon(name, signal.SIGKILL)
        self._daemons[name].wait()

    # Pods

    def pod(
        self,
        name: str,
        *command: str,
        image: str = "lab/python:1",
        labels: Mapping[str, str] | None = None,
        limits: Mapping[str, object] | None = None,
        container: Mapping[str, Any] | None = None,
        wait: bool = True,
        **spec: Any,
    ) -> None:
        """Create a pod whose first container, `train`, runs this, or sleeps; and wait until it runs."""
        shown = SEEN if image.startswith("lab/python") else []
        one = {
            "name": "train",
            "image": image,
            "imagePullPolicy": "Never",
            "command": list(command) or ["/bin/sleep", "infinity"],
            "volumeMounts": [{"name": f"v{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(shown)],
            "resources": {"limits": dict(limits or {})},
            **(container or {}),
        }
        body = {
            "containers": [one],
            "volumes": [{"name": f"v{n}", "hostPath": {"path": path}} for n, path in enumerate(shown)],
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        }
        for key, value in spec.items():
            body[key] = [*body.get(key, []), *value] if isinstance(value, list) else value  # type: ignore[misc]
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": dict(labels or {"app": "train"})},
                "spec": body,
            }
        )
        if wait:
            self.until(f"{name} runs", lambda: self.status(name).get("phase") == "Running" and self.address(name), 90)

    def status(self, name: str) -> dict[str, Any]:
        text = self.kubectl("get", "pod", name, "--ignore-not-found", "-o", "json")
        return dict(json.loads(text)["status"]) if text else {}

    def address(self, name: str) -> str:
        return str(self.status(name).get("podIP", ""))

    def execute(self, name: str, line: str) -> str:
        return self.kubectl("exec", name, "--", "/bin/sh", "-c", line)

    def first_process(self, name: str) -> str:
        """The pid, in the cluster, of a pod's first container."""
        id = self.status(name)["containerStatuses"][0]["containerID"].rpartition("/")[2]
        tasks = self.run("ctr", "--address", "/run/containerd.sock", "--namespace", "k8s.io", "tasks", "list").stdout
        return next(line.split()[1] for line in tasks.splitlines() if line.startswith(id))

    def kill(self, name: str) -> None:
        """End a pod's first container, as a crash would."""
        self.run("kill", "-KILL", self.first_process(name))

    def drop(self, name: str, rule: str) -> None:
        """What a network plugin does for a policy, in the pod's own network: packets that match are dropped."""
        chain = "add table inet lab; add chain inet lab in { type filter hook input priority 0; }"
        self.run("nsenter", "-t", self.first_process(name), "-n", "nft", f"{chain}; add rule inet lab in {rule} drop")

    def until(self, what: str, true: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
                if true():
                    return
            if time.monotonic() > deadline or any(one.poll() is not None for one in self._daemons.values()):
                logs = "\n".join(f"--- {name}\n{self._tail(name)}" for name in self._daemons)
                raise ClusterError(
                    f"not within {seconds:g} s, or a daemon has ended: {what}\n{self.kubectl('get', 'pods', '-o', 'wide', check=False)}\n{logs}"
                )
            time.sleep(0.3)

    def _tail(self, name: str) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-8:])

    # runbook itself

    def environment(self, user: str = "admin") -> dict[str, str]:
        unwanted = ("SSH_", "RUNBOOK_", "XDG_", "NCCL_", "GLOO_", "MASTER_", "PYTEST_", "KUBE")
        env = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        path = f"{self.path}{os.pathsep}{env['PATH']}"
        home, config = str(self.folder), str(self.kubeconfig(user))
        return {
            **env,
            "HOME": home,
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(CHECKOUT),
            "PATH": path,
            "KUBECONFIG": config,
        }

    def start(self, *argv: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "runbook", *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**self.environment(), **(env or {})},
            start_new_session=True,
        )
        self.started.append(process)
        return process


def _remove(group: Path) -> None:
    """A control group with those below it, whose processes have just been killed."""
    deadline = time.monotonic() + 10
    while group.exists():
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
        if time.monotonic() > deadline:
            raise ClusterError(f"{group} is still in use")
        time.sleep(0.05)


def _archive(images: Mapping[str, Sequence[str]]) -> bytes:
    """Images with these programs and what they link to, in the form of `docker save`."""
    from hashlib import sha256

    manifest, files = [], {}
    for number, (name, programs) in enumerate(images.items()):
        layer = _layer(programs)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {
                    "Cmd": ["/bin/sleep", "infinity"],
                    "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root"],
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
            }
        ).encode()
        files[f"{number}.tar"], files[f"{number}.json"] = layer, config
        manifest.append({"Config": f"{number}.json", "RepoTags": [f"docker.io/{name}"], "Layers": [f"{number}.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    return _tar(files.items())


def _layer(programs: Sequence[str]) -> bytes:
    folders = ["root", "tmp", "etc", "proc", "sys", "dev", "usr"]
    links = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
    wanted = {path: Path(path).resolve() for path in programs}
    for path in list(wanted.values()):
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True, timeout=10).stdout
        for word in said.split():
            if word.startswith("/"):
                wanted[word] = Path(word).resolve()
    files = {f"usr{path}".replace("usr/usr/", "usr/"): file.read_bytes() for path, file in wanted.items()}
    return _tar(files.items(), folders, links)


def _tar(files: Any, folders: Sequence[str] = (), links: Mapping[str, str] | None = None) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()
