"""Names, addresses, the text of endpoints, and network interfaces: the one that was named, the one that was chosen."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

ELSEWHERE = r"https?://|HTTPSConnectionPool|huggingface|wandb|amazonaws|googleapis|:443\b"
"""What a line tries to reach that is no part of the job."""

LOOKUP = Sign(
    "lookup-failed",
    "gai error|host not found|name or service not known|nodename nor servname|name resolution|host is known"
    "|getaddrinfo|dns resolution failed|could not resolve host|domain name not found|unknown host"
    "|no address associated|name does not resolve|failed to resolve|cannot be resolved|unable to resolve"
    "|no such host|server misbehaving|could not find host|nxdomain|unknownhostexception"
    "|unable to get host address|can't find address for host",
    rf"^(?!.*(?:\bssh: |loopback|resolve hostname to a|resolve host(?:name )?keys?|{ELSEWHERE}))(?:.*network "
    r"addresses of \((?P<host>[^\s,()]+), (?P<port>\d+)\) cannot be retrieved \(gai error: (?:-[2345]|[78]"
    r"|1100[1-4])\b|.*host not found: |.*name or service not known|.*nodename nor servname|.*name resolution"
    r"|.*No such host is known|.*getaddrinfo(?:\(\))?[ :]+(?:failed|error|ENOTFOUND|EAI)|.*dns resolution failed(?: "
    r"for (?P<host2>[^\s:;,]+))?|.*lookup (?P<host4>\S+)(?: on \S+)?: (?:no such host|server misbehaving)"
    r"|.*could not find host (?P<host5>[\w.-]+)|.*can't find (?P<host6>[\w.-]+): NXDOMAIN|.*UnknownHostException: "
    r"(?P<host7>[\w.-]+)|.*unable to get host address for (?P<host8>[\w.-]+)|.*can't find address for host "
    r"(?P<host9>[\w.-]+)|.*could not resolve host:? ?(?P<host3>[\w.-]+)?|.*domain name not found|.*unknown host"
    r"|.*no address associated with|.*name does not resolve|.*failed to resolve(?! reference)|.*cannot be resolved"
    r"|.*unable to resolve host)",
)
NONSENSE = (
    r"(?:\s[^,)]*|[^,()]*\s|[^,()]*(?:://|/|<|>|\$|\{|\bX{2,3}\b|_IP\b|ip_addr|your[-_])[^,()]*|None|null"
    r"|0\.0\.0\.[1-9]\d*|\d+|[^,():]+:\d+|[^\s,()]*\[[^,)]*)"
)

RULES = (
    Rule(
        "name-unresolvable",
        "the name {host} does not resolve on {who}",
        (LOOKUP,),
        unless=("lookup-of-nonsense",),
    ),
    Rule(
        "endpoint-malformed",
        "{host} is no address: the text of the endpoint is wrong",
        (
            Sign(
                "lookup-of-nonsense",
                "cannot be retrieved|connect to|network address of|cannot be resolved",
                r"(?:network addresses of|trying to connect to|network address of"
                rf"|address) \((?P<host>{NONSENSE}), ?\d*\)"
                r"|connect to \[?(?:::ffff:)?(?P<host3>0\.0\.0\.[1-9]\d*)\]?:\d"
                r"|network addresses of \((?P<host2>(?:\d{1,3}\.){3}\d{1,3}), \d+\) cannot be retrieved",
            ),
            Sign(
                "port-is-no-port",
                "gai error|servname|port must|must be in range|out of range|cast to integer|port number"
                "|invalid int value|not a valid port|endpoint|invalid port|valid hostname|missing port|missing rank"
                "|unbracketed|nonnumeric port|not an integer|no rendezvous handler|nccl_comm_id",
                r"gai error: -8\b|servname not supported|port must (?:have value|be (?:0-65535|in|an? int|between))"
                r"|port out of range|port could not be cast|port number of the rendezvous endpoint"
                r"|argument --(?:master[-_]port|rdzv[-_]endpoint|main_process_port)\S*: invalid|No rendezvous handler "
                r"for|Invalid NCCL_COMM_ID|not a valid port|invalid port\b|nonnumeric port|rendezvous endpoint "
                r"'?(?P<host>[^'\s]*)'? must be|hostname of the rendezvous endpoint|missing port for"
                r"|\bendpoint\b.*\b(?:malformed|must be in the form)",
            ),
            Sign(
                "address-is-no-address",
                "not a valid|invalid|malformed|does not appear to be|failed to parse|unparseable|not in the form",
                # a fabric's `Invalid address` is a peer's that went away, and NCCL ignores one of another family
                r"^(?!.*(?:ignoring address|\bfi_addr|\befa_rdm_))(?:.*(?:(?:address|endpoint|MASTER_ADDR|hostname"
                r"|init_method|url)\b.{0,60}(?:is not a valid|is invalid|malformed|not in the form)"
                r"|(?:invalid|malformed|unparseable|failed to parse)\W+(?:target |coordinator |master |ip "
                r"|socket )?(?:address|endpoint|host:port|uri)\b|does not appear to be an IPv4 or IPv6"
                r"|Invalid IPv6 URL))",
            ),
        ),
    ),
    Rule(
        "endpoint-malformed",
        "the port of the endpoint is no number: {value}",
        (
            Sign(
                "not-a-number",
                "invalid literal for int",
                r"invalid literal for int\(\) with base 10: (?P<value>['\"].*['\"])",
            ),
        ),
        needs=("parses-endpoint",),
    ),
    Rule(
        "endpoint-malformed",
        "an IPv6 address stands without brackets before its port: {value}",
        (
            Sign(
                "not-a-number-but-address",
                "invalid literal for int",
                r"invalid literal for int\(\) with base 10: (?P<value>['\"](?:[0-9a-f]*:){2,}.*['\"])",
            ),
        ),
    ),
    Rule(
        "master-addr-loopback",
        "{who} dials {host}, which is itself: a job of several machines needs an address that all of them reach",
        (
            Sign(
                "dials-loopback",
                "trying to connect to|network address of|jax distributed service|failed to connect to",
                r"(?:trying to connect to|network address of|network addresses of|failed to connect to"
                r"|validate to host) [(\[]?(?P<host>localhost|127\.0\.0\.\d+|::1|ip6-localhost)\b"
                r"|Connecting to JAX distributed service on (?P<host2>localhost|127\.\d+\.\d+\.\d+|\[::1\])",
            ),
            "told-loopback",
        ),
        needs=("many-nodes",),
        unless=("lookup-of-nonsense", "bind-in-use", "peer-closed", "summary-killed", "system-error-windows"),
        tier=Tier.NETWORK,
    ),
    Rule(
        "master-addr-loopback",
        "{who} waits for {host}, which is itself; the master runs elsewhere, or does not run",
        ("dials-loopback",),
        needs=("client-timed-out", "other-machine"),
        unless=("lookup-of-nonsense", "bind-in-use", "peer-closed", "system-error-windows", "drops", "many-nodes"),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "master-addr-loopback",
        "{who} looks for JAX's coordinator on {host}, which is itself",
        ("dials-loopback",),
        needs=("coordinator-timeout",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "master-addr-wrong-host",
        "nobody answers at {host}: connecting fails only after seconds of asking who has the address",
        ("nobody-has-address",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "master-addr-wrong-host",
        "rank 0 cannot reach {host}, which should be its own address",
        ("master-dials-itself-in-vain",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "master-addr-wrong-host",
        "the address {host} is on no interface of this machine, which should listen on it",
        (
            Sign(
                "cannot-assign",
                "cannot assign requested address|can't assign requested address|errno: |system error: |eaddrnotavail",
                r"ZMQError: (?:Cannot|Can't) assign|(?:bind|listen|server socket|Failed to add (?:any )?port"
                r"|start server)\b.*(?:cannot assign requested address|can't assign requested|errno: 99\b"
                r"|system error: 10049|EADDRNOTAVAIL)|(?:cannot|can't) assign requested address.*\b(?:bind|listen)",
            ),
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "master-addr-wrong-host",
        "the address to listen on is on no interface of this machine",
        (
            Sign(
                "cannot-assign-raised",
                "errno |winerror",
                r"^(?:OSError|socket\.error): \[(?:Errno (?:99|49)|WinError 10049)\]",
            ),
        ),
        needs=("bind-frame",),
        tier=Tier.NETWORK,
    ),
    Rule(
        "ipv6-ipv4-mixing",
        "one end speaks IPv6, the other IPv4",
        (
            Sign(
                "families-differ",
                "address family mismatch|address family not supported by peer|families differ"
                "|address family for hostname|errno ",
                r"address family mismatch|address family not supported by peer|families differ|\[Errno -9\]"
                r"|^(?:OSError|socket\.error): \[Errno 97\]",
            ),
        ),
    ),
    Rule(
        "gloo-loopback-advertised",
        "a rank told its peers that it listens on {peer}: its own host name means loopback there",
        (
            Sign(
                "gloo-dials-loopback",
                "connectfullmesh|failed to connect|connect [|pair.cc",
                r"(?:connectFullMesh|willRetry=|pair\.cc:\d+\]).*(?:refused|timed out|unreachable|no route"
                r"|cannot assign).*remote=\[(?P<peer>(?:127\.\d+\.\d+\.\d+|::1|::ffff:127\.\d+\.\d+\.\d+))\]"
                r"|connect \[(?P<peer2>127\.\d+\.\d+\.\d+|::1)\]:\d+: (?:Connection refused"
                r"|Connection timed out|Network is unreachable)",
            ),
        ),
    ),
    Rule(
        "gloo-loopback-advertised",
        "gloo could not find the address of its own host name and fell back to loopback",
        (
            Sign(
                "gloo-fell-back",
                "loopback address as fallback|resolve hostname to a (local) address",
            ),
        ),
        needs=("connect-failed",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "windows-10049-loopback-stall",
        "Windows refuses the address that it found for the machine's own name, and nothing else is wrong in "
        "these lines",
        (
            Sign(
                "system-error-windows",
                "system error:|winerror",
                r"(?:failed to connect to|connect).*(?:system error: 10049|WinError 10049)",
            ),
        ),
        unless=("exception", "traceback", "client-timed-out", "bind-in-use", "bind-forbidden", "summary-exit"),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
)

SIGNS = (
    Sign("bind-frame", "bind(", r"\.bind\(|server_bind\("),
    Sign(
        "other-machine",
        "rdzv|node_rank|node-rank|rendezvous|rank",
        r"rdzv|RendezvousConnectionError|(?:node_?rank|machine_rank)\W+[1-9]"
        r"|\b(?:GROUP_)?RANK\W{1,3}(?:[1-9])\b|\[rank:? ?[1-9]\d*\]|rank(?: |:|=)+[1-9]",
    ),
    Sign(
        "parses-endpoint",
        "rendezvous|urllib/parse|master_port|urlparse|rdzv_endpoint|result.port|coordinator_address|tcpstore(",
        None,
    ),
    Sign(
        "told-loopback",
        "master_addr|master-addr|rdzv_endpoint|rdzv-endpoint|coordinator_address|main_process_ip"
        "|dist-init-addr|init_method|dist_url",
        r"(?:master[-_]addr|rdzv[-_]endpoint|coordinator_address|main_process_ip|dist[-_]init[-_]addr"
        r"|init_method|dist_url)['\"]?[\s=:]+['\"]?(?:tcp://)?(?P<host>localhost|127\.0\.\d+\.\d+|\[::1\])",
    ),
    Sign(
        "many-nodes",
        "following workers|nnodes|node_rank|node-rank|num_nodes|num-nodes|num_machines|machine_rank|min_nodes"
        "|slurm_n|group_rank|num_processes|np=",
        r"(?:nnodes|num[-_]nodes|num_machines|min_nodes|SLURM_NNODES|SLURM_JOB_NUM_NODES)['\"]?[\s=:]+['\"]?(?:[2-9]"
        r"|\d{2,})\b(?!:1\b)|nnodes['\"]?[= ]+1:[2-9]|following workers: [^\s,]+,\S|(?:node[-_]rank|machine_rank"
        r"|group_rank|GROUP_RANK|NODE_RANK)['\"]?[\s=:]+['\"]?[1-9]\d*\b",
    ),
)


INTERFACE_RULES = (
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
        way="mpi",
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

INTERFACE_SIGNS = (
    Sign("container-id", "nccl", r"\b(?=[0-9a-f]*\d)[0-9a-f]{12}:\d+:\d+ \[\d+\]"),
    Sign("lists-interfaces", "net/socket : using|net/socket: using|bootstrap : using", r"(?P<list>\[0\]\S+:.*)"),
    Sign("through-socket", "via net/socket", r"via NET/Socket/(?P<at>\d+)"),
)
