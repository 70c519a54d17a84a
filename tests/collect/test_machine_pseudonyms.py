"""Pseudonyms of machines keep what a reader needs: equality, subnets, classes."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from profiles import examples

from runbook.collect.gather import _jump_hosts
from runbook.collect.scrub import Scrubber
from runbook.model.inventory import Node, Ssh


def hidden(*texts: str, names: tuple[str, ...] = ()) -> list[str]:
    scrubber = Scrubber(hide_addresses=True)
    assert scrubber.machines is not None
    for name in names:
        scrubber.machines.add_name(name)
    for text in texts:
        scrubber.learn(text)
    return [scrubber.text(text) for text in texts]


def shared(one: str, other: str) -> int:
    """How many leading bits two addresses share."""
    difference = int(ipaddress.IPv4Address(one)) ^ int(ipaddress.IPv4Address(other))
    return 32 - difference.bit_length()


private = st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255)).map(
    lambda t: "10.{}.{}.{}".format(*t)
)


@examples(100)
@given(addresses=st.lists(private, min_size=2, max_size=12, unique=True))
def test_two_addresses_share_the_prefix_they_shared(addresses: list[str]) -> None:
    mapped = hidden(*addresses)
    for one, new_one in zip(addresses, mapped, strict=True):
        assert new_one.startswith("10.")
        assert one.rpartition(".")[2] == new_one.rpartition(".")[2]
        for other, new_other in zip(addresses, mapped, strict=True):
            assert shared(one, other) == shared(new_one, new_other)


def test_a_network_its_hosts_and_its_broadcast_stay_together() -> None:
    (text,) = hidden("10.77.68.0/22 10.77.68.5 10.77.71.9 10.77.71.255 255.255.252.0 default via 10.77.68.1")
    network, *rest = text.split()
    hosts = [word for word in rest if word.startswith("10.")]
    assert all(ipaddress.ip_address(host) in ipaddress.ip_network(network) for host in hosts)
    assert str(ipaddress.ip_network(network).broadcast_address) == hosts[2]
    assert "255.255.252.0" in rest
    assert "77" not in text


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 0.0.0.0 255.255.255.0 224.0.0.1 ::1 :: 08:40:54 c10d::broadcast std::vector",
        "nvidia-cublas-cu12==12.1.3.1 driver version 535.104.5.1 v1.2.3.4 1.2.3.4.5",
        "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 0000:3b:00.0 localhost",
    ],
)
def test_what_is_nobodys_address_stays(text: str) -> None:
    assert hidden(text) == [text]


def test_hosts_by_all_their_names() -> None:
    texts = hidden(
        "node-a.corp.lab node-b NODE-A rank-00000.node-a.log node-a-ib0 ip-10-0-1-7.ec2",
        '"gn[01-02]": {address: "10.0.1.[1-2]"}',
        "search corp.lab",
        names=("node-a", "node-b", "gn01", "gn02", "node-a.corp.lab"),
    )
    assert texts[0] == "host1.domain1.example host2 host1 rank-00000.host1.log host1-ib0 ip-10-0-0-7.ec2"
    assert texts[1] == '"host[3-4]": {address: "10.0.0.[1-2]"}'
    assert texts[2] == "search domain1.example"


@pytest.mark.parametrize(
    "name", ["node", "torch", "data", "gpu", "gpu0", "gpu7", "rank3", "ib0", "mlx5", "eth0", "train"]
)
def test_a_host_that_is_called_like_a_word_leaves_the_word_alone(name: str) -> None:
    text = (
        f"GPU0 GPU7 rank3 ib0 mlx5_0 eth0: torch 2.4 {name} {name.upper()} no {name}: /x/{name}/y nodes/{name}/network"
    )
    assert hidden(text, names=(name,)) == [text]
    assert hidden(f"{name} {name}.corp.lab corp.lab qx9", names=(f"{name}.corp.lab", "qx9")) == [
        f"{name} {name}.domain1.example domain1.example host2"
    ]


def test_a_host_whose_name_is_in_anothers() -> None:
    (text,) = hidden("gn1 gn10 gn-1 gn1-ib0 xgn1 gn1.log gn[1-2] rank-00000.gn10.log", names=("gn1", "gn10", "gn2"))
    assert text == "host1 host2 gn-1 host1-ib0 xgn1 host1.log host1:host3 rank-00000.host2.log"


def test_a_name_beyond_ascii_is_found_right_behind_another_word() -> None:
    (text,) = hidden("örsted çörsted gn1örsted 连接节点1失败 节点12", names=("örsted", "gn1", "节点1"))
    assert text == "host1 çhost1 host2host1 连接host3失败 节点12"


def test_ranges_with_letters_and_with_hosts_that_nobody_named() -> None:
    texts = hidden(
        "2 nodes (acme-[a-b]): on acme-[a,c].",
        "acme[1-4] [error] x[0-9] gpu[0-7] [rank-a]",
        names=("acme-a", "acme-b", "acme2"),
    )
    assert texts[0] == "2 nodes (host[1-2]): on host1:host4."
    assert texts[1] == "host5:host3:host6:host7 [error] x[0-9] gpu[0-7] [rank-a]"
    assert hidden("gn3 alone", "gn[1-4]", names=("gn1",)) == ["host3 alone", "host[1-4]"]


def test_hardware_and_ipv6() -> None:
    first, second = hidden(
        "link/ether 02:42:ac:11:00:02 inet6 fe80::42:acff:fe11:2/64 fd12:3456:789a:1::5/64 2a00:1450::1",
        "02:42:AC:11:00:02 fd12:3456:789a:1::6 ::ffff:10.9.9.9 Node GUID: 0x0002c90300a1b2c3",
    )
    assert first == "link/ether 02:00:00:00:00:01 inet6 fe80::1:1/64 fd00:0:0:1::5/64 2001:db8:0:2::1"
    assert second == "02:00:00:00:00:01 fd00:0:0:1::6 ::ffff:10.0.0.9 Node GUID: 0x0000000000000002"


def test_addresses_in_escapes() -> None:
    assert hidden('{"a": "\\u0031\\u0030.77.1.2"}', "10.77.1.2")[1] == "10.0.0.2"
    assert "77" not in hidden('{"a": "\\u0031\\u0030.77.1.2"}')[0]


WAYS = [
    "IP {0}.29500 > {1}.22: Flags [S]",
    "peer {0}_29500",
    "backup_{0}.log",
    "x{0}x",
    "torch version {0}",
    "tcp4 0 0 {0}.22 {1}.40000 ESTABLISHED",
    "Reference ID    : {2:08X} ({0})",
    "sl local_address {3:08X}:7338 {3:08x}",
    "0x{2:08x}",
]


@given(private, private, st.sampled_from(WAYS))
def test_an_address_that_is_known_is_found_however_it_is_written(one: str, other: str, way: str) -> None:
    """Its pseudonym is the same one in every way."""
    value = int(ipaddress.IPv4Address(one))
    text = way.format(one, other, value, int.from_bytes(value.to_bytes(4, "little"), "big"))
    assume(value & 0xFFFF00 and one != other)
    plain, told = hidden(f"{one} {other}", text)
    new_one, new_other = plain.split()
    new = int(ipaddress.IPv4Address(new_one))
    assert told == way.format(new_one, new_other, new, int.from_bytes(new.to_bytes(4, "little"), "big"))


def test_tcpdump_alone_shows_addresses() -> None:
    assert hidden("IP 10.77.54.1.29500 > 10.77.54.2.22: Flags [S]") == ["IP 10.0.0.1.29500 > 10.0.0.2.22: Flags [S]"]


@pytest.mark.parametrize(
    "text", ["0000000A 0000000a:0000", "DEADBEEF 0x0100007F", "0A4D36010 a0A4D3601 cafe0A4D3601", "1:2:3:4:5:6"]
)
def test_what_only_looks_like_an_address_stays(text: str) -> None:
    assert hidden("10.0.0.1 10.77.54.1 127.0.0.1", text)[1] == text


@given(
    st.lists(st.integers(0, 255), min_size=6, max_size=6).filter(
        lambda octets: max(octets) > 15 and set(octets) != {255}
    )
)
def test_a_mac_without_zeros_in_front_is_the_same_one(octets: list[int]) -> None:
    whole, short = (":".join(form.format(octet) for octet in octets) for form in ("{:02x}", "{:x}"))
    first, second = hidden(whole, f"bridge_id 8000.{short} root")
    assert first == "02:00:00:00:00:01"
    assert second in (f"bridge_id 8000.{first} root", f"bridge_id 8000.{first.upper()} root")


def test_every_jump_host_and_its_user_is_known() -> None:
    node = Node("node-a", "10.0.0.1", ssh=Ssh(jump="alice@bastion1:2222,ssh://bob@[fe80::1]:22,plain,eve@fe80::2"))
    assert _jump_hosts(node) == [("alice", "bastion1"), ("bob", "fe80::1"), ("", "plain"), ("eve", "fe80::2")]
