"""ufw and firewalld themselves, in a namespace with mounts of its own: what they block, and that their remedy opens."""

from __future__ import annotations

import shutil

import pytest
from profiles import one_in

from firewall.pair import CLIENT, LONG, SERVER, SHORT, Pair
from runbook.firewall.explain_connection import Ends, explain_blocked
from runbook.firewall.explain_node import explain_leg
from runbook.firewall.front_ends import UfwRule

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("temporary_folder_of_the_test")]
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

UFW = """
t=$(mktemp -d); cp -a /etc/ufw $t/ufw; cp -a /etc/default $t/default
mount --bind $t/ufw /etc/ufw; mount --bind $t/default /etc/default; mount -t tmpfs tmpfs /run
sed -i 's/^IPT_SYSCTL=.*/IPT_SYSCTL=/; s/^IPT_MODULES=.*/IPT_MODULES=/' /etc/default/ufw
ufw --force enable
"""
FIREWALLD = """
t=$(mktemp -d); cp -a /etc/firewalld $t/firewalld; mount --bind $t/firewalld /etc/firewalld
mount -t tmpfs tmpfs /run; mkdir -p /run/dbus /run/lock
dbus-daemon --system --fork --nopidfile
firewalld --nopid --nofork >/run/firewalld.out 2>&1 &
for i in $(seq 100); do firewall-cmd --state >/dev/null 2>&1 && break; sleep 0.1; done
firewall-cmd --state && firewall-cmd --permanent --zone=public --change-interface=eth0 && firewall-cmd --reload
"""


@pytest.fixture
def ufw(pair: Pair) -> Pair:
    if shutil.which("ufw", path=PATH) is None:
        pytest.skip("ufw is not installed")
    pair.keep(pair.server, UFW)
    return pair


@pytest.fixture
def firewalld(pair: Pair) -> Pair:
    if shutil.which("firewalld", path=PATH) is None or shutil.which("dbus-daemon", path=PATH) is None:
        pytest.skip("firewalld or dbus-daemon is not installed")
    pair.keep(pair.server, FIREWALLD)
    return pair


def test_ufw_by_default_denies_what_comes_in(ufw: Pair) -> None:
    assert ufw.connect(29500) == "dropped"
    told = explain_leg(ufw.evidence(ufw.server, CLIENT), ufw.flow(29500), ports=[(29500, 29510), (32768, 60999)])
    assert told.blocks
    assert (told.where.partition(" ")[0], told.action) == ("ufw", "drop")
    assert told.rule == "Default: deny (incoming)"
    assert told.allow == f"sudo ufw allow from {CLIENT} to any port 29500:29510,32768:60999 proto tcp"
    ufw.allow(ufw.server, told.allow)
    assert [ufw.connect(port, patience=LONG) for port in (29500, 29510, 40000)] == ["open"] * 3
    assert ufw.connect(29511) == "dropped"


@pytest.mark.parametrize("verb", one_in(2, ["deny", "reject"]))
def test_a_deny_rule_of_ufw_is_named_and_overruled(ufw: Pair, verb: str) -> None:
    ufw.sh(ufw.server, f"ufw allow 22/tcp; ufw {verb} 29500/tcp; ufw default allow incoming")
    assert ufw.connect(29501, patience=LONG) == "open"
    assert ufw.connect(29500, patience=SHORT if verb == "deny" else LONG) == (
        "dropped" if verb == "deny" else "rejected"
    )
    told = explain_leg(ufw.evidence(ufw.server, CLIENT), ufw.flow(29500))
    assert told.blocks
    assert told.where.startswith("ufw ")
    assert told.rule == str(UfwRule("29500/tcp", verb.upper(), "IN", "Anywhere"))
    assert told.allow.startswith("sudo ufw insert 1 allow from")
    ufw.allow(ufw.server, told.allow)
    assert ufw.connect(29500, patience=LONG) == "open"


@pytest.mark.thorough
def test_ufw_on_the_way_out(pair: Pair) -> None:
    if shutil.which("ufw", path=PATH) is None:
        pytest.skip("ufw is not installed")
    pair.keep(pair.client, UFW + "ufw default deny outgoing")
    assert pair.connect(29500) == "dropped"
    client, server = pair.evidence(pair.client, SERVER), pair.evidence(pair.server, CLIENT)
    told = explain_blocked("dropped", pair.flow(29500), Ends(client, server, "node-a", "node-b"))
    assert told is not None
    assert told.node == "node-a"
    assert told.remedy == f"sudo ufw allow out to {SERVER} port 29500 proto tcp"
    pair.allow(pair.client, told.remedy)
    assert pair.connect(29500, patience=LONG) == "open"


def test_ufw_cannot_overrule_what_stands_before_its_own_rules(ufw: Pair) -> None:
    ufw.sh(ufw.server, "iptables -I ufw-before-input 1 -p tcp --dport 29500 -j DROP; ufw allow 29500/tcp")
    assert ufw.connect(29500) == "dropped"
    told = explain_leg(ufw.evidence(ufw.server, CLIENT), ufw.flow(29500))
    assert told.allow.startswith("sudo iptables -I ufw-before-input 1 ")
    ufw.allow(ufw.server, told.allow)
    assert ufw.connect(29500, patience=LONG) == "open"


@pytest.mark.thorough
def test_a_firewalld_zone_rejects(firewalld: Pair) -> None:
    assert firewalld.connect(29500, patience=LONG) == "rejected"
    told = explain_leg(firewalld.evidence(firewalld.server, CLIENT), firewalld.flow(29500), ports=[(40000, 40100)])
    assert told.blocks
    assert (told.where.partition(" ")[0], told.action) == ("firewalld", "reject-icmp")
    assert told.where.startswith("firewalld zone public (nft rule inet firewalld filter_IN_public handle ")
    assert told.allow.startswith('sudo firewall-cmd --permanent --zone=public --add-rich-rule=\'rule family="ipv4"')
    firewalld.allow(firewalld.server, told.allow)
    assert [firewalld.connect(port, patience=LONG) for port in (29500, 40050)] == ["open", "open"]
    assert firewalld.connect(40101, patience=LONG) == "rejected"


@pytest.mark.thorough
def test_a_rich_rule_of_firewalld_is_overruled(firewalld: Pair) -> None:
    rule = 'rule family="ipv4" source address="10.77.0.0/24" port port="29500" protocol="tcp" drop'
    firewalld.sh(firewalld.server, f"firewall-cmd --permanent --add-rich-rule='{rule}'; firewall-cmd --reload")
    assert firewalld.connect(29500) == "dropped"
    told = explain_leg(firewalld.evidence(firewalld.server, CLIENT), firewalld.flow(29500))
    assert told.action == "drop"
    assert 'priority="-1"' in told.allow
    firewalld.allow(firewalld.server, told.allow)
    assert firewalld.connect(29500, patience=LONG) == "open"


def test_the_zone_of_a_source_wins_over_the_zone_of_the_interface(firewalld: Pair) -> None:
    firewalld.sh(
        firewalld.server, "firewall-cmd --permanent --zone=drop --add-source=10.77.0.0/24; firewall-cmd --reload"
    )
    assert firewalld.connect(29500) == "dropped"
    told = explain_leg(firewalld.evidence(firewalld.server, CLIENT), firewalld.flow(29500))
    assert told.where.startswith("firewalld zone drop")
    assert told.action == "drop"
    firewalld.allow(firewalld.server, told.allow)
    assert firewalld.connect(29500, patience=LONG) == "open"
