"""Connections: the store's port, gloo's and NCCL's ports, and what sits between two machines."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

OURS = (
    r"(?!.*(?:\bssh: |sshd|NCCL|socket(?:Start|Poll)Connect|socketProgress|connectFullMesh|willRetry=|pair\.cc"
    r"|socketPollConnect|Call to |(?:socket|net_socket|bootstrap)\.(?:h|cc|cu):|\bORTE|btl_tcp|tcp_peer|slurm"
    r"|MESSAGE_TASK|\bsrun: |\bpmix|\bmunge|wandb|https?://|:443\b|:22\b|huggingface|Max retries))"
)
"""Lines of the store's, the rendezvous' and JAX's clients; others have rules of their own, or are not about the job."""

IPV4 = r"(?!127\.|0\.0\.0\.0)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}"
DIALLED = r"(?!.*(?:\bbind|\blisten|server socket|server_bind|localhost|10049))"
"""An address that is not this machine's cannot be listened on, with the same words; the loopback of IPv6, where it is
off, cannot be dialled."""
UNASSIGNED = r"(?:(?:cannot|can't) assign requested address|errno:? (?:99|49)\b|EADDRNOTAVAIL)"

NOT_LOST = ("drops", "no-route", "lookup-failed", "lookup-of-nonsense", "bind-in-use", "store-reset-at-once")

RULES = (
    Rule(
        "port-in-use",
        "port {port} is taken: another process listens there",
        (
            Sign(
                "bind-in-use",
                "already in use|eaddrinuse|only one usage|system error: |errno: |errno|already allocated"
                "|failed to add port|failed to bind to address| is in use|another process is utilizing"
                "|winerror|address in use|port in use|is trying to use a port|any free port",
                r"^(?!.*(?:GPU|device|cuda|gloo/transport/tcp/|\bfile\b.*already in use))(?:.*(?:Errno (?:98|48"
                r"|10048)\b.*\(\S*, (?P<port4>\d+)|port: (?P<port>\d+).*EADDRINUSE"
                r"|:(?P<port2>\d{2,5})\b.{0,20}\(?(?:errno: (?:98|48)\b|system error: 10048))|.*(?:address"
                r"|port)\b.*(?:already in use|already being used|is in use|already allocated)|.*EADDRINUSE"
                r"|.*Only one usage of each socket|.*(?:system error: |WinError )10048|.*\[?Errno (?:98|48|10048)\b"
                r"|.*errno: (?:98|48)\b|.*address in use|.*Failed to bind to address|.*is trying to use a port number "
                r"(?P<port3>\d+) that is used|.*(?:find|are) (?:any|no) free ports?|.*Failed to add port to server"
                r"|.*another process is utilizing it)",
            ),
        ),
        way="logs",
    ),
    Rule(
        "port-privileged-or-reserved",
        "the system does not let this user listen on port {port}",
        (
            Sign(
                "bind-forbidden",
                "system error: |errno: |errno |eacces|eperm|permission denied|forbidden by its access|winerror"
                "|permissiondenied",
                r"^(?=(?:.*(?:address \(\S*, |(?:port|tcp)\W{0,3}|\d\.\d:|\*:|\]:)(?P<port>\d+))?)(?=.*(?:\b|_"
                r"|\.)(?:bind(?:ing)?|listen(?:ing)?|server socket|bind_?exception|port)\b)(?=.*(?:system error: 10013"
                r"|errno:? ?(?:10013|13|1)\b|EACCES|EPERM|permission ?denied|\(13: |code: 13\b))(?!.*: ['\"]/)"
                r"|(?:WinError|Errno) 10013\b|in a way forbidden by its access",
            ),
        ),
    ),
    Rule(
        "port-privileged-or-reserved",
        "the system does not let this user listen on the port",
        (Sign("forbidden-raised", "errno ", r"^(?:PermissionError|OSError): \[Errno 13\] (?!.*: ['\"])"),),
        needs=("bind-frame",),
    ),
    Rule(
        "ephemeral-ports-exhausted",
        "no local port was left to dial {host} from: the kernel hands out too few, or all of them are taken",
        (
            Sign(
                "no-port-to-dial",
                "cannot assign requested address|can't assign requested address|errno: |errno |eaddrnotavail",
                rf"^{DIALLED}(?=.*{UNASSIGNED})(?:.*?(?:\bto|remote=|tcp|connect(?:\(\))?"
                rf"|\bhost=)[ '\[(]{{1,3}}(?P<host>{IPV4}))",
            ),
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "ephemeral-ports-exhausted",
        "no local port was left to dial {host} from (or that name means an IPv6 address here, and this "
        "machine has none)",
        (
            Sign(
                "no-port-to-dial-name",
                "errno: ",
                r"client socket has failed to connect to \[(?!localhost"
                r"|ip6-)(?P<host>[a-z][^\]:]*)\]:\d+ \(errno: (?:99|49)\b",
            ),
        ),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "ephemeral-ports-exhausted",
        "no local port was left to dial from (or an IPv6 address was dialled, and this machine has none)",
        ("cannot-assign-raised",),
        needs=("connect-frame",),
        unless=("bind-frame",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "ephemeral-ports-exhausted",
        "gloo found no port to listen on, though any would do: the kernel hands out too few, or all of them are taken",
        (
            Sign(
                "no-port-to-listen-on",
                "already in use|eaddrinuse|cannot assign",
                r"gloo/transport/tcp/\S{1,60} .{0,80}\bbind: (?:Address already in use"
                r"|Cannot assign requested address)",
            ),
        ),
    ),
    Rule(
        "firewall-drop",
        "packets to {host} port {port} vanish: no answer, not even a refusal",
        (
            Sign(
                "drops",
                "errno: |errno |system error: |has timed out, will retry|connection timed out|etimedout|winerror"
                "|connection attempt timed out|i/o timeout|timed out: operation now|operation timed out",
                rf"^{OURS}(?:.*server socket on (?P<host>\S+) has timed out, will retry|.*(?:connect"
                r"|socket)\b.*(?:errno: (?:110|60)\b|system error: 10060|WinError 10060|Errno (?:110|10060)\b"
                r"|Connection timed out|ETIMEDOUT)|.*connection attempt timed out|RuntimeError: Connection timed out"
                r"|(?:TimeoutError|OSError|socket\.error): \[(?:Errno (?:110|60)|WinError 10060)\]"
                r"|.*dial tcp (?P<host2>\S+):\d+: (?:i/o timeout|connect: (?:connection|operation) timed)"
                r"|.*connect to (?P<host3>\S+) port \d+ .*timed out|.*Failed to connect to (?P<host4>\S+) port "
                r"\d+.*timed out)",
            ),
        ),
        unless=("lookup-of-nonsense", "no-route", "reads-from-lost-peer", "barrier-passed"),
        tier=Tier.NETWORK,
    ),
    Rule(
        "firewall-drop",
        "a firewall here blocks packets to port {port}, and says so in the kernel log",
        (
            Sign(
                "kernel-blocks",
                "[ufw block]|dpt=",
                r"(?:\[UFW BLOCK\]|(?:DROP|BLOCK|DENY|REJECT)\S* ).*\bIN=\S* OUT=.*\bSRC=(?:10\.|192\.168\."
                r"|172\.(?:1[6-9]|2\d|3[01])\.|fd\w\w:|fe80:).*\bDPT=(?P<port>\d+)",
            ),
        ),
        unless=("reject-logged",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "firewall-reject",
        "a firewall answers that it does not let packets through",
        (
            Sign("reject-logged", "reject", r"REJECT\S* .*\bIN=\S* OUT=.*\bDPT=(?P<port>\d+)"),
            Sign(
                "prohibited",
                "packet filtered|prohibited|administratively",
                r"icmp_seq.*(?:Packet filtered|Prohibited|administratively)|Communication administratively"
                r"|unreachable - admin prohibited",
            ),
        ),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "no-route-or-reject",
        "{host} answers at once that it cannot be reached: no route, or a firewall that rejects (a host that "
        "answers ping: the firewall)",
        (
            Sign(
                "no-route",
                "errno: |errno |system error: |no route to host|network is unreachable|host is unreachable"
                "|winerror|ehostunreach|enetunreach|host is down",
                rf"^{OURS}(?:.*any network address of \((?P<host>[^,]+), (?P<port>\d+)\)(?=.*(?:errno: (?:113|101|65"
                r"|51|64)\b|No route|unreachable))|.*(?:errno: (?:113|101|65|51|64)\b|system error: 100(?:65|51)"
                r"|No route to host|Network is unreachable|Host is unreachable|Host is down|WinError 100(?:65|51)"
                r"|Errno (?:113|101|65|51)\b|EHOSTUNREACH|ENETUNREACH))",
            ),
        ),
        unless=("nobody-has-address", "lookup-of-nonsense"),
        tier=Tier.NETWORK,
    ),
    Rule(
        "master-not-listening",
        "{host} answers, but nothing listens on port {port}: the master did not start, died, or listens elsewhere",
        (
            Sign(
                "refused",
                "connection refused|errno: |errno |system error: |econnrefused|actively refused|winerror",
                rf"^{OURS}(?:.*ipv[46]:(?:%5B)?(?P<host>[\d.a-f:]+?)(?:%5D)?:(?P<port>\d+).*Connection refused"
                r"|.*(?:errno: (?:111|61)\b|system error: 10061|WinError 10061|Errno (?:111|61|10061)\b"
                r"|Connection refused|ECONNREFUSED|actively refused))",
            ),
        ),
        unless=("lookup-of-nonsense", "joined"),
        tier=Tier.NETWORK,
    ),
    Rule(
        "master-not-listening",
        "the head process of the cluster does not answer: it is not up, or not at that address",
        (
            Sign(
                "head-not-there",
                "connection refused|running ray instance|to gcs at|etcdconnectionfailed|etcdexception"
                "|connection to etcd|unable to connect from|unable to connect to server|ray cluster at",
                r"HTTPConnectionPool\(host='(?P<host4>(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.[\d.]+)'.*Connection "
                r"refused|Could not find any running Ray instance|(?:Unable|Failed) to connect to GCS at (?:address "
                r")?(?P<host>[^\s:]+)|Etcd\w+: .*(?:refused|failed)|[Cc]onnection to etcd failed"
                r"|unable to connect from \"[^\"]+\" to \"(?P<host2>[^\"]+)\" \(Connection refused"
                r"|unable to connect to server (?P<host3>\S+) at port|Could not connect to (?:the )?Ray cluster",
            ),
        ),
        unless=("lookup-failed",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "master-not-listening",
        "nobody accepted at {host} port {port}, and no packet came back to say why: most often the master is not up",
        (
            Sign(
                "client-timed-out",
                "has timed out after|timed out trying to connect|connect() timed out|timed out (try"
                "|tcp client failed to connect|jax distributed service|failed to connect to all addresses",
                r"client socket has timed out after \S+ while trying to connect to (?:\((?P<host>[^,]*), "
                r"(?P<port>\d+)\)|\[?(?P<host3>[\w.:-]+?)\]?:(?P<port3>\d+))|TCP client failed to connect/validate to "
                r"host (?P<host2>\S+):(?P<port2>\d+) - timed out(?!.*got 0 bytes)|Timed out trying to connect to "
                r"'?tcp://(?P<host4>[^:']+):(?P<port4>\d+)|connect\(\) timed out\. Original timeout"
                r"|failed to connect to all addresses(?!.*refused)",
            ),
        ),
        unless=NOT_LOST,
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "master-not-listening",
        "registering with JAX's coordinator got no answer in time: it is not up, not reachable, or waits for others",
        ("coordinator-timeout",),
        unless=("coordinator-here", "tasks-named", "dials-loopback", "refused", "shutdown-barrier"),
        tier=Tier.NETWORK,
        confidence="low",
    ),
    Rule(
        "data-ports-blocked",
        "the rendezvous worked, but {peer}, a port between ranks, cannot be reached",
        (
            Sign(
                "mesh-blocked",
                "connectfullmesh|willretry=|pair.cc|unable to complete a tcp|failed to tcp connect|connect to"
                "|connect()",
                r"(?:connectFullMesh|willRetry=0|pair\.cc:\d+\]).*(?:timed out|No route|unreachable|refused"
                r"|SO_ERROR).*remote=\[(?P<peer>(?!127\.|::1|172\.17\.|169\.254)[^\]]+)\]|pair\.cc:\d+\] connect "
                r"\[(?P<peer2>(?!127\.|::1)[^\]]+)\]:\d+: (?:Connection timed out|No route|Network is unreachable"
                r"|Connection refused|.*unreachable)|connectFullMesh failed with .*(?:timed out|No route|unreachable)"
                r"|unable to complete a TCP connection|failed to TCP connect to a peer|\bConnect(?:ing"
                r"|ion)? to (?P<peer4>\S+):\d{4,5} (?:failed|timed out)|connect\(\) to (?P<peer3>(?!127\.|169\.254"
                r"|192\.168\.122\.|172\.17\.)\d[\d.]+)(?::\d+)? failed|pair\.cc:\d+\] timed out connecting"
                r"|Unable to connect to the peer (?P<peer5>(?!127\.|172\.17\.|169\.254\.|192\.168\.122\.)\S+) on port "
                r"\d+: ",
            ),
            Sign(
                "nccl-connect-failed",
                "connect to|connect returned|socketstartconnect|socketpollconnect|call to connect"
                "|connect failed|socketpoll|ncclsocketconnect",
                r"(?:NCCL\b|socket\w*:|\bCall to\b).*(?:connect(?:ion)? (?:to (?P<peer>(?!127\.|172\.17\.0"
                r"|169\.254|fe80|192\.168\.122)[^\s<]+)<\d+> )?(?:failed|returned|timed?)[^,]*(?:No route"
                r"|timed ?out|unreachable|Software caused|\b11[03]\b|\b101\b|exceeded))"
                r"|socketPollConnect.*exceeded.*retr|connect to \S+ (?:timed out|returned 11[03])",
            ),
        ),
        unless=(
            "dials-bridge",
            "dials-unreachable-kind",
            "uses-inner-interface",
            "socket-through-inner-interface",
            "gloo-dials-loopback",
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "data-ports-blocked",
        "a port between ranks refuses: {peer}; the process there is gone, or a firewall rejects",
        (
            Sign(
                "nccl-refused",
                "connection refused",
                r"(?:NCCL|socket\w*:|Call to connect|BTL|tcp_peer).{0,600}Connection refused",
            ),
        ),
        unless=("dials-bridge", "dials-unreachable-kind", "uses-inner-interface", "joined"),
        tier=Tier.SYMPTOM,
        confidence="low",
    ),
    Rule(
        "tcp-connection-lost-midrun",
        "an established connection to {peer} broke while the job ran",
        (
            Sign(
                "reads-from-lost-peer",
                "call to recv|call to write|call to send|read failed|recv failed|socketprogress|misc/socket|btl_tcp"
                "|socketrecv|nic|net/socket|send disconnect|packet_write_wait|closed by remote host|timeout, server",
                r"(?:Call to )?(?:recv|write|send|read|readv|writev)\b(?: from| to)?(?: (?P<peer>[^\s<]+)<\d+>)? "
                r"(?:failed|returned) ?:? ?.*(?:timed out|reset by peer|no route|unreachable|broken pipe)"
                r"|btl_tcp\w*.*(?:readv|recv|writev).*(?:failed|reset|timed out)|send disconnect: "
                r"|packet_write_wait: Connection to|Timeout, server \S+ not responding|^Connection to \S+ closed by "
                r"remote host",
            ),
        ),
        tier=Tier.SYMPTOM,
        confidence="medium",
    ),
    Rule(
        "mtu-blackhole",
        "small packets pass, full-size ones do not",
        (
            Sign(
                "too-long",
                "message too long|frag needed|fragmentation needed|packet needs to be fragmented",
                r"Message too long|frag(?:mentation)? needed|Packet needs to be fragmented",
            ),
            "large-pings-vanish",
        ),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
)

SIGNS = (
    Sign("connect-frame", "create_connection|.connect(|sock_connect|connect_ex", None),
    Sign("ping-size", "bytes of data", r"(?<!\d)(?P<bytes>\d+)(?:\(\d+\))? (?:data )?bytes of data", keep=200),
    Sign("ping-loss", "packet loss", r"(?<![\d.])(?P<loss>[\d.]+)% packet loss", keep=200),
    Sign("gloo-mesh-failed", "connectfullmesh|gloo", r"connectFullMesh failed|gloo.*(?:timed out connecting|refused)"),
    Sign("nccl-or-mpi", "nccl|mpi|orte|btl|socketstartconnect|socketpollconnect", None, keep=4),
    Sign(
        "connect-failed",
        "connectfullmesh|refused|timed out|timeout|no route|unreachable|reset by peer|socket timeout"
        "|unhandled system error|ncclsystemerror|connection closed",
        r"connectFullMesh failed|connect\w*\b.*(?:refused|timed out|no route|unreach)|reset by peer"
        r"|ncclSystemError|(?:unhandled system|remote|internal) error|Connection closed|timed? ?out",
    ),
    Sign("joined", "joined|init complete", r"init COMPLETE|all ranks joined", keep=4),
    Sign("barrier-passed", "all_reduce ok", None, keep=4),
)
