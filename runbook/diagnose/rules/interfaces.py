"""Network interfaces: the one that was named, the one that was chosen, and containers that have their own."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

RULES = (
    Rule(
        "container-bridge-network",
        "{peer} is a container's private address: no other machine can reach it",
        (
            Sign(
                "dials-bridge",
                "connect to|to connect|connection to|remote=|connect returned",
                r"(?:connect(?:ion)? to(?: the peer)?|remote=)[ \[]*(?P<peer>172\.17\.(?!0\.1\b)\d+\.\d+)(?:[<\]:,]"
                r"| on port).*(?:fail|refus|timed out|abort|no route|unreach|retry)|trying to connect to "
                r"\((?P<peer3>172\.17\.0\.(?!1\b)\d+), |(?:timed out|refused"
                r"|no route).*remote=\[(?P<peer2>172\.17\.(?!0\.1\b)\d+\.\d+)\]",
            ),
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "container-bridge-network",
        "{peer} is most likely a container's private address: the processes here run in bridged containers",
        (
            Sign(
                "dials-docker-range",
                "connect to|to connect",
                r"(?:connect(?:ion)? to|trying to connect to) [(\[]?(?P<peer>172\.(?:1[89]|2\d"
                r"|3[01])\.\d+\.\d+)[<\],:].*(?:fail|refus|timed out|abort|no route|unreach|retry)",
            ),
        ),
        needs=("container-id",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "interface-wrong",
        "{peer} is no address that another machine can reach: the wrong interface was chosen",
        (
            Sign(
                "dials-unreachable-kind",
                "connect to|to connect|connection to|remote=|connect returned|unable to complete a tcp"
                "|unable to connect|remote address|connect()",
                r"(?:connect(?:ion)? (?:returned|to)|to connect to|remote=|\bpeer)[ \[]*(?P<peer>127\.\d+\.\d+\.\d+"
                r"|169\.254\.\d+\.\d+|192\.168\.122\.\d+|172\.17\.0\.1|fe80:[0-9a-f:%\w]+|::1)(?:[<\]:,]"
                r"| on port).*(?:fail|refus|timed out|abort|no route|unreach|retry|cannot assign)"
                r"|connect\(\) to (?P<peer2>127\.\d+\.\d+\.\d+|169\.254\.\d+\.\d+|192\.168\.122\.\d+"
                r"|172\.17\.0\.1)(?::\d+)? failed",
            ),
        ),
        needs=("nccl-or-mpi",),
        tier=Tier.NETWORK,
    ),
    Rule(
        "interface-wrong",
        "the addresses that MPI processes told each other do not fit together: NAT, or an interface that the "
        "others do not know",
        (
            Sign(
                "peer-unexpected",
                "unexpected|corresponding process entry|reachable pairing",
                r"received unexpected process identifier|inbound MPI TCP connection.*unexpected"
                r"|cannot find a corresponding process entry|Unable to find reachable pairing",
            ),
        ),
        tier=Tier.NETWORK,
        confidence="medium",
        remedy="give every machine the network that all share: `mpirun --mca btl_tcp_if_include 10.0.0.0/24 --mca "
        "oob_tcp_if_include 10.0.0.0/24 …`",
    ),
    Rule(
        "interface-wrong",
        "NCCL or MPI uses {name}, an interface that only exists inside this machine",
        (
            "socket-through-inner-interface",
            Sign(
                "uses-inner-interface",
                "bootstrap : using|bootstrap: using|net/socket : using|net/socket: using|using interface|ifname set",
                r"(?:Bootstrap ?: ?Using|NET/Socket ?: Using|NET ?: Using interface|NET/Socket ?: Using interface"
                r"|SOCKET_IFNAME set (?:by environment )?to) (?:\[0\])?=?(?P<name>lo|docker\d*|virbr\d*|veth\w*|br-\w+"
                r"|cni\d*|cali\w*|flannel[\w.]*|vmnet\d*|tun\d*|ip6tnl\d*|tunl\d*|kube-\w+|weave|ovs\w*|utun\d*"
                r"|podman\d*|lxcbr\d*|usb\d+)\b",
            ),
        ),
        needs=("connect-failed",),
        tier=Tier.NETWORK,
    ),
    Rule(
        "interface-wrong",
        "NCCL's list of interfaces holds {name}, which only exists inside this machine, and its sockets fail",
        (
            Sign(
                "inner-interface-listed",
                "br-|veth|docker|virbr|cni",
                r"\[\d+\](?P<name>docker\d*|virbr\d*|veth\w*|br-\w+|cni\d*):\S+<\d+>",
            ),
        ),
        needs=("connect-failed",),
        unless=("nccl-connect-failed", "ib-is-there"),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "interface-missing",
        "the interface filter leaves no usable interface on {who}: {name}",
        (
            Sign(
                "no-interface",
                "no socket interface|no usable listening|no interface found|unable to find address for"
                "|unable to find interface|is neither af_inet|invalid interface|no such device|interface not found"
                "|unknown interface|no network interface|none of the interfaces|could not find interface|not find any"
                "|unable to resolve interface|does not match any interface|address family not supported by protocol"
                "|no eligible interface|no matching interface|network device|did not find interface|does not exist"
                "|cannot find device|communication interfaces",
                r"Did not find interface \"(?P<name4>[^\"]+)\"|Device \"(?P<name5>[^\"]+)\" does not exist"
                r"|Cannot find device \"(?P<name6>[^\"]+)\"|common task-to-task communication interfaces"
                r"|NET/Socket ?: no interface found|no (?:socket|network) interfaces? (?:were |was )?found"
                r"|no usable listening interface|No interface found in the same subnet|Unable to find (?:address"
                r"|interface) for:? ?\[?(?P<name>[^\s\]]+)|is neither AF_INET|(?:Net|socket|NCCL).*Address family not "
                r"supported by protocol|(?:unknown|invalid|no such|no matching|no eligible) (?:network )?interface"
                r"|interface '?(?P<name2>\S+?)'? (?:was )?not found|(?:_SOCKET_IFNAME|if_include|if_exclude"
                r"|socket_ifname).*(?:not found|no such|no match|invalid|unknown)|could not find (?:any "
                r"|an )?(?:network |usable |valid |suitable )?interface|none of the interfaces|network device "
                r"'?(?P<name3>[^'\s]+)'? is not available",
            ),
        ),
        remedy="`ip -br address` on that node shows what there is; set or unset NCCL_SOCKET_IFNAME / "
        "GLOO_SOCKET_IFNAME to one that has an address there",
    ),
    Rule(
        "interface-missing",
        "gloo could not connect its ranks, and hides why (torch 2.3 to 2.6): most often the interface chosen "
        "is not the one that peers reach",
        (Sign("mesh-no-error", "no error", r"connectFullMesh failed with .*\bno error"),),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
)

SIGNS = (
    Sign("container-id", "nccl", r"\b(?=[0-9a-f]*\d)[0-9a-f]{12}:\d+:\d+ \[\d+\]"),
    Sign("lists-interfaces", "net/socket : using|net/socket: using|bootstrap : using", r"(?P<list>\[0\]\S+:.*)"),
    Sign("through-socket", "via net/socket", r"via NET/Socket/(?P<at>\d+)"),
)
