"""InfiniBand without any: the real `ibstat` and the real subnet manager, on a simulated fabric.

`ibsim` speaks over abstract unix sockets, and those belong to a network namespace. So every host simulates the whole
fabric for itself, with a subnet manager of its own: what happens to a link is told to all of them, and no firewall
rule and no cut cable of a test can come between `ibstat` and its simulator.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .host import ROOT_PATH, Host
from .needs import find_library, find_program
from .processes import LabError, wait_until

if TYPE_CHECKING:
    from .lab import Lab

FOLDER = "/run/lab-fabric"
REAL = "/opt/runbook-lab/ibstat"
LINK = "w=2 s=4"  # 4x QDR, the fastest the simulator knows; both ends of a cable must say so

# The simulator shows a program one card, always called ibsim0, and its links are of 2008: 40 Gbit/s at most. So the
# cards are asked for one after another and called by their names, and the rate is the one the test wants; states,
# GUIDs and LIDs are the simulator's. It leaves a folder where it was started if it is killed, hence the detour.
WRAPPER = """#!/bin/sh
wanted= port= flags=
for word; do
  case $word in
    -*) flags="$flags $word" ;;
    *) if [ -z "$wanted" ]; then wanted=$word; else port=$word; fi ;;
  esac
done
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
found=no status=0
while read -r name node rate; do
  [ -z "$wanted" ] || [ "$wanted" = "$name" ] || continue
  found=yes
  SIM_HOST=$node LD_PRELOAD={library} {real} $flags ${{wanted:+ibsim0}} $port >out || status=$?
  sed -e "s/ibsim0/$name/" -e "s/CA type: simulator/CA type: MT4123/" -e "s/Link layer: IB$/Link layer: InfiniBand/" \\
      -e "s/Rate: .*/Rate: $rate/" out
done <{folder}/cards
if [ "$found" = no ]; then
  echo "ibpanic: [$$] main: '$wanted' IB device can't be found: Success" >&2
  exit 255
fi
exit "$status"
"""


def _ibstat() -> str:
    return os.path.realpath(find_program("ibstat"))


class Fabric:
    """One switch with every host's cards on it. `lab.fabric(...)` makes and starts it.

    Without a subnet manager the ports stay Initializing; a card in `down`, given as `node-a/mlx5_0`, has no cable.
    `rate` is what `ibstat` shows, in Gbit/s.
    """

    def __init__(
        self,
        lab: Lab,
        hcas: Mapping[str, Sequence[str]],
        *,
        subnet_manager: bool = True,
        rate: int = 200,
        down: Sequence[str] = (),
    ) -> None:
        self.lab = lab
        self.cards = [(lab[host], card) for host, cards in hcas.items() for card in cards]
        self.hosts = [lab[host] for host in hcas]
        self.rates = {self._node(host, card): rate for host, card in self.cards}
        self.down = {self._node(lab[name], card) for name, _, card in (each.partition("/") for each in down)}
        if unknown := self.down - self.rates.keys():
            raise ValueError(f"no such card: {', '.join(sorted(unknown))}")
        self.subnet_manager = subnet_manager
        self._simulators: dict[str, subprocess.Popen[str]] = {}
        self._managers: dict[str, subprocess.Popen[str]] = {}

    @staticmethod
    def _node(host: Host, card: str) -> str:
        return f"{host.name}/{card}"

    def _topology(self) -> str:
        """The fabric as `ibnetdiscover` would print it, which is what ibsim reads."""
        linked = [
            (number, self._node(host, card))
            for number, (host, card) in enumerate(self.cards, 1)
            if self._node(host, card) not in self.down
        ]
        switch = [f'Switch {len(self.cards) + 1} "leaf"']
        switch += [f'[{number}] "{node}"[1] {LINK}' for number, node in linked]
        blocks = ["\n".join(switch)]
        ports = {node: number for number, node in linked}
        for node in self.rates:
            cable = f'\n[1] "leaf"[{ports[node]}] {LINK}' if node in ports else ""
            blocks.append(f'Hca 1 "{node}"{cable}')
        return "\n\n".join(blocks) + "\n"

    def start(self) -> None:
        topology = self._topology()
        wrapper = WRAPPER.format(library=find_library("libumad2sim.so"), real=REAL, folder=FOLDER)
        for host in self.hosts:
            ibstat = _ibstat()
            if not host.path(REAL).exists():
                real = host.path(REAL)
                real.write_bytes(host.path(ibstat).read_bytes())
                real.chmod(0o755)
            host.path(ibstat).unlink()
            host.write(ibstat, wrapper, mode=0o755)
            host.write(f"{FOLDER}/net", topology)
            self._write_cards(host)
            self._simulators[host.name] = host.popen(
                f"exec {find_program('ibsim')} -s {FOLDER}/net >{FOLDER}/ibsim.log 2>&1",
                "root",
                stdin=subprocess.PIPE,  # the console: ibsim reads commands from it as long as it is open
                stdout=None,
                stderr=None,
            )
        for host in self.hosts:
            # A program that is started before the simulator listens would sleep two seconds and try again.
            wait_until(f"{host.name}: ibsim", lambda host=host: self._listens(host))  # type: ignore[misc]
        if self.subnet_manager:
            self.start_subnet_manager()
        else:
            for host in self.hosts:
                self._await_state(host, "Initializing")

    def _write_cards(self, host: Host) -> None:
        lines = (
            f"{card} {self._node(owner, card)} {self.rates[self._node(owner, card)]}\n"
            for owner, card in self.cards
            if owner is host
        )
        host.write(f"{FOLDER}/cards", "".join(lines))

    def _listens(self, host: Host) -> bool:
        simulator = self._simulators.get(host.name)
        if simulator is not None and simulator.poll() is not None:
            raise LabError(f"{host.name}: ibsim ended: {host.read(f'{FOLDER}/ibsim.log')}")
        return "@sim:ctl" in Path(f"/proc/{host.anchor}/net/unix").read_text()

    def state(self, host: Host, card: str) -> str:
        """The port's state, as `ibstat` on that host shows it: Active, Initializing, Down."""
        done = host.run([_ibstat(), card], check=False, timeout=10)
        states = [line.split(":")[1].strip() for line in done.stdout.splitlines() if line.strip().startswith("State:")]
        return states[0] if states else f"none: {done.stderr.strip()}"

    def _await_state(self, host: Host, state: str) -> None:
        for owner, card in self.cards:
            if owner is host and self._node(host, card) not in self.down:
                what = f"{host.name}: {card} {state}"
                wait_until(what, lambda card=card: self.state(host, card) == state, timeout=15, pause=0.02)  # type: ignore[misc]

    def start_subnet_manager(self) -> None:
        """Every port with a cable becomes Active."""
        preload = find_library("libumad2sim.so")
        for host in self.hosts:
            if host.name in self._managers:
                continue
            command = f"cd {FOLDER} && exec {find_program('opensm')} -s 1 -f {FOLDER}/opensm.log >opensm.out 2>&1"
            environment = {
                "SIM_HOST": "leaf",
                "OSM_CACHE_DIR": FOLDER,
                "OSM_TMP_DIR": FOLDER,
                "PATH": ROOT_PATH,
            }
            # Preloaded for opensm alone: the shell that starts it has no business on the fabric.
            command = command.replace("exec ", f"exec env LD_PRELOAD={preload} ")
            self._managers[host.name] = host.popen(command, "root", env=environment, stdout=None, stderr=None)
        for host in self.hosts:
            self._await_state(host, "Active")

    def set_rate(self, host: Host, card: str, rate: int) -> None:
        """What `ibstat` shows for one card, such as a link that came up slower than it should."""
        if self._node(host, card) not in self.rates:
            raise ValueError(f"no such card: {self._node(host, card)}")
        self.rates[self._node(host, card)] = rate
        self._write_cards(host)

    def unlink(self, host: Host, card: str) -> None:
        """Pull the card's cable: Down and Polling."""
        self.command(f'Unlink "{self._node(host, card)}"[1]')
        wait_until(f"{host.name}: {card} down", lambda: self.state(host, card) == "Down", pause=0.02)

    def relink(self, host: Host, card: str) -> None:
        """Plug it in again; a subnet manager, if there is one, finds it within two seconds."""
        self.command(f'ReLink "{self._node(host, card)}"[1]')
        state = "Active" if self._managers else "Initializing"
        wait_until(f"{host.name}: {card} {state}", lambda: self.state(host, card) == state, timeout=15, pause=0.05)

    def command(self, line: str) -> None:
        """Give every simulator a command of ibsim's console; `help` lists them."""
        for name, simulator in self._simulators.items():
            if simulator.stdin is None or simulator.poll() is not None:
                raise LabError(f"{name}: ibsim is not running")
            simulator.stdin.write(f"{line}\n")
            simulator.stdin.flush()

    def stop(self) -> None:
        """Take the simulators away; the real ibstat, which finds no card, is back."""
        for process in (*self._managers.values(), *self._simulators.values()):
            process.kill()
            process.wait(timeout=10)
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
        self._managers.clear()
        self._simulators.clear()
        for host in self.hosts:
            wait_until(f"{host.name}: ibsim ends", lambda host=host: not self._listens(host))  # type: ignore[misc]
            real = host.path(REAL)
            ibstat = host.path(_ibstat())
            ibstat.write_bytes(real.read_bytes())
            ibstat.chmod(0o755)
