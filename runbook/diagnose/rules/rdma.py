"""InfiniBand and RoCE, GPUDirect, and the plugins that carry NCCL over other fabrics."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

STATUS = (
    r"(?:\b(?:completion|polled|wc|work completion)\b.*(?:status\s*[=:]\s*|error |status )"
    r"|\bFailed status )(?P<status>{})\b"
)

RULES = (
    Rule(
        "roce-wrong-gid-index",
        "RoCE uses a GID that the peer cannot be reached with: {gid}",
        (
            Sign(
                "gid-link-local",
                "localgid|local gid|gid|modify_qp",
                r"modify_qp.*(?:Invalid argument|with 22\b)|local GID (?:index \d+, local GID )?::(?:,| |$)"
                r"|remote GID ::(?:,| |$)|local ?GID(?: index)?\s*:?\s*(?P<gid>(?:\d+, local GID )?fe80:\S*)"
                r"|GID (?:index )?\S* (?:is )?(?:not found|invalid|zero|empty|0000:)"
                r"|no (?:valid |usable )?(?:RoCE ?v2 )?GID\b(?!.*Disabled)|Invalid GID index|no such GID",
            ),
        ),
        unless=("link-infiniband",),
    ),
    Rule(
        "roce-wrong-gid-index",
        "RoCE (link_layer Ethernet), and the very first exchange fails: most often the GID is not the "
        "routable RoCE v2 one",
        ("verbs-retry", "qp-timeout"),
        needs=("link-ethernet",),
        unless=("named-gid-routable", "cross-rail", "ib-port-down"),
        confidence="medium",
    ),
    Rule(
        "rail-isolated-nics",
        "only NICs of the same rail reach each other: the queue pair between {where} does not come up",
        ("qp-timeout",),
        needs=("rails",),
        tier=Tier.NETWORK,
        confidence="medium",
    ),
    Rule(
        "rail-isolated-nics",
        "only NICs of the same rail reach each other",
        (
            Sign(
                "cross-rail",
                "cross_nic|cross-nic|crossnic|rail",
                r"NCCL_CROSS_NIC=0.*(?:work|fix|solve|pass|help)"
                r"|rail.*(?:isolat|no route|not reachable|cannot reach|unreachable|separate)",
            ),
        ),
        needs=("rdma-failed",),
        tier=Tier.FAULT,
    ),
    Rule(
        "rdma-peer-unreachable",
        "the peer {peer} does not answer over RDMA (retries exceeded)",
        (
            Sign(
                "verbs-retry",
                "completion|failed status|vendor err|retry exceeded|retry_exc|transport retry|wc status"
                "|retry count|endpoint timeout|unhandled timeout",
                STATUS.format("12") + r"(?:.*localGid (?P<gid>\S+))?|vendor err(?:or)? 129"
                r"|transport retry (?:count(?:er)? )?exceeded|InfiniBand retry count .*exceeded|\bUD "
                r"endpoint\b.*unhandled timeout|(?:UCX|ucp_).*Endpoint timeout|IBV_WC_RETRY_EXC_ERR|RETRY_EXC",
            ),
            Sign(
                "qp-timeout",
                "modify_qp|modify qp|to rtr|connect the hca",
                r"Unable to Connect the HCA|Failed to modify QP .*to RTR"
                r"|modify_qp.*(?:110|Connection timed out|101|Network is unreachable|113|No route)"
                r"|status: (?:110|101|113) ibv_modify_qp|QP to RTR.*(?:fail|timed out)",
            ),
            Sign("cxi-undeliverable", "undeliverable|net/ofi", r"UNDELIVERABLE|NET/OFI Request .*completed with error"),
            Sign(
                "efa-unanswered",
                "efa_rdm|unresponsive re|unreachable remote",
                r"\befa_rdm_\w*handle_error\b.*\bPeer EFA addr|Unresponsive (?:receiver|remote)\b|Unreachable remote\b",
            ),
        ),
        unless=("gid-link-local",),
        tier=Tier.NETWORK,
    ),
    Rule(
        "rdma-mtu-mismatch",
        "the two ends use different RDMA MTUs",
        (
            Sign(
                "mtu-status",
                "completion|failed status|local access violation|active_mtu|mtu",
                STATUS.format("9|1") + r"(?!\d)|local access violation work queue error"
                r"|(?:active_)?mtu\b.*(?:mismatch|differ|do(?:es)? not match)|remote invalid request",
            ),
            "mtus-differ",
        ),
        unless=("verbs-protection",),
        confidence="medium",
    ),
    Rule(
        "acs-breaks-gdr",
        "the NIC may not write into the GPU: PCIe ACS or the IOMMU redirects it",
        (
            Sign(
                "verbs-protection",
                "completion|failed status|local protection|acsctl|vendor err",
                STATUS.format("4|10")
                + r"|local protection|vendor err(?:or)? 81\b|ACSCtl:.*(?:ReqRedir|SrcValid)\+.*ReqRedir\+",
            ),
        ),
        needs=("rdma-failed",),
        confidence="medium",
    ),
    Rule(
        "acs-breaks-gdr",
        "PCIe bridges redirect traffic between devices (ACS is on)",
        (Sign("acs-on", "acsctl", r"ACSCtl:.*ReqRedir\+"),),
        tier=Tier.NOTE,
        confidence="low",
    ),
    Rule(
        "wrong-hca-selected",
        "NCCL took an HCA or port that it should not use",
        (
            Sign(
                "hca-unusable",
                "no such device|unable to open device|net_mismatch|hca",
                r"modify_qp.*(?:\b19\b|No such device)|Unable to open device|NET_MISMATCH"
                r"|NCCL_IB_HCA.*(?:not found|no match|does not match|invalid)"
                r"|(?:different|mismatched?) (?:number of )?(?:HCAs|NICs|IB devices|net devices)",
            ),
        ),
    ),
    Rule(
        "ib-port-not-active",
        "an InfiniBand port is not up: {what}",
        (
            Sign(
                "ib-port-down",
                "phys state|port_down|port_init|polling|base lid|async event|link_down|physical state"
                "|port state|state:|lid|got async|phys_state|port error|sm_lid|symbolerror|port_error"
                "|link error|health|catastrophic|health|not active|link down|cable unplugged|==> |no active ib"
                "|no active port|physical_state",
                r"(?P<what>state:\s*\d: (?:DOWN|INIT)|phys state:\s*\d: (?:Polling|Disabled|Sleep)"
                r"|State: *(?:Down|Initializ\w+|Polling|Disabled)|Physical state: *(?:Polling|Disabled|Sleep"
                r"|LinkErrorRecovery|Training)|PORT_(?:DOWN|INIT)|link \S+ state (?:DOWN|INIT)|state: DOWN "
                r"physical_state|==> \S+ \(Down\)|port \d+ of \S+ is not active|[Nn]o active IB device|Cable unplugged"
                r"|no active ports? (?:detected|found)|Port: \d+ Link DOWN|mlx\d_core \S+ (?!eth|en)\S+: Link down"
                r"|\bstate DOWN physical_state|phys_state:\s*(?:POLLING|DISABLED)|lid(?:[:= ]+| is )(?:65535|0xffff)"
                r"|Got async (?:error )?event ?:? ?(?:port error|port active error|local catastrophic error)"
                r"|port \S+ (?:is )?not active|async event: port error|mlx\d_core \S+ .*(?:health compromised"
                r"|device's health)|link(?:s)? (?:went |is )?down\b.*(?:ib|mlx|hca|HCA)|(?:ib\d|mlx\d\S*|hca).*(?:link"
                r"|port)\b.*\b(?:down|not active|inactive|polling))",
            ),
        ),
        tier=Tier.NETWORK,
    ),
    Rule(
        "ib-not-used-socket-fallback",
        "RDMA hardware is there, and NCCL runs over TCP sockets",
        (
            Sign(
                "uses-socket",
                "using network socket|net/ib : no device|via net/socket",
                r"Using network Socket|NET/IB : No device found|via NET/Socket",
            ),
        ),
        needs=("ib-is-there",),
        tier=Tier.NOTE,
        confidence="medium",
    ),
    Rule(
        "gdr-disabled",
        "RDMA works without GPUDirect: every byte takes a detour through host memory",
        (
            Sign(
                "gdr-off",
                "gpu direct rdma|gdr|peermem|nv_peer_mem",
                r"^(?!.*NET/Socket)(?:.*[Mm]odule nvidia[-_]peermem not found|.*could not insert '?nvidia[-_]peermem"
                r"|.*GPU Direct RDMA Disabled for HCA|.*GDR(?:DMA)? (?:is )?(?:disabled|not (?:available|supported"
                r"|enabled))|nvidia[-_]peermem.*(?:not loaded|not found|failed|Invalid argument)"
                r"|.*nv_peer_mem.*(?:not loaded|not found|failed)|.*neither nv_peer_mem,? n?or nvidia_peermem"
                r"|.*no module nvidia[-_]peermem)",
            ),
        ),
        tier=Tier.NOTE,
        confidence="medium",
    ),
    Rule(
        "gdr-disabled",
        "every channel between nodes goes without GPUDirect",
        (Sign("via-ib-plain", "via net/ib", r"via NET/IB\w*/\d+(?!.*GDRDMA)"),),
        unless=("via-gdr",),
        tier=Tier.NOTE,
        confidence="low",
    ),
    Rule(
        "sharp-unavailable",
        "SHARP (CollNet) is asked for and not there; NCCL goes on without it",
        (
            Sign(
                "no-sharp",
                "sharp|collnet",
                r"SHARP.*(?:error|fail|Cannot|unable|no(?:t)? (?:available|found|enough))"
                r"|sharp_\w+.*(?:fail|error|-\d+)|Cannot initialize CollNet|CollNet.*(?:not supported|fail)",
            ),
        ),
        tier=Tier.NOTE,
        confidence="medium",
    ),
    Rule(
        "ofi-no-provider",
        "libfabric finds no provider for its plugin (EFA devices not visible, or no driver)",
        (
            Sign(
                "no-provider",
                "fi_getinfo|no eligible provider|optimal provider|provider|output empty list|libfabric|ofi|efa",
                r"fi_getinfo.*(?:No data|fail|-61|not found)|Could not find any optimal provider"
                r"|no (?:eligible|suitable|usable|valid) (?:\w+ )?provider|output empty list|\b(?:OFI|efa"
                r"|libfabric)\b.*(?:No data available|no provider|provider not found|no devices? found)"
                r"|Failed to initialize .*(?:libfabric|OFI|aws-ofi)|Couldn't find any (?:optimal )?provider"
                r"|aws-ofi-nccl initialization failed|Only EFA provider is supported|-61 \(No data",
            ),
        ),
        unless=("provider-found",),
    ),
    Rule(
        "gcp-tcpx-daemon-down",
        "Google's receive data-path manager (RxDM, tcpgpudmarxd) does not run beside the job",
        (
            Sign(
                "tcpx",
                "tcpx|fastrak|rxdm|tcpgpudmarxd|gpudirecttcpx|receive data",
                r"^[EF]\d{4} .*(?:tcpx|fastrak|tcpgpudmarxd|rxdm)"
                r"|(?:tcpx|FasTrak|GPUDirectTCPX|RxDM|tcpgpudmarxd|fastrak_gpumem_manager).*(?:refused|exit"
                r"|fail|not running|unable|error|No such file|terminated|timed out|crash)",
            ),
        ),
    ),
    Rule(
        "topology-detection-failed",
        "NCCL cannot read the machine's topology",
        (
            Sign(
                "topology",
                "attribute |graph/|could not find cpu|topology|topo|xml|real path of|affinity|path for pattern"
                "|could not read node|_rsmi|_smi",
                r"^(?!.*NCCL INFO)(?=.)(?:.*)(?:Attribute \w+ (?:of node \w+ )?not found|Attribute \S+/\S+ (?:not "
                r"found|.*)not found|could not find CPU close to GPU|graph/(?:topo|xml|paths|search|rings"
                r"|rome\w*)\.(?:cc|h):\d+ NCCL WARN (?!Cuda failure|Call to|nvml)|NCCL WARN.*(?:topology|topo|XML"
                r"|real path of|affinity).*|Could not find real path of /sys|Could not find NET with id"
                r"|Could not find a path for pattern|(?:alt_rsmi|rocm_smi\w*|amd_?smi\w*)\.(?:cc|cpp):\d+ NCCL WARN"
                r"|could not (?:parse|open|read) (?:topology|XML))",
            ),
        ),
    ),
    Rule(
        "topology-detection-failed",
        "NCCL gave up in {where}, where it reads the machine's topology, without a word of why",
        ("gave-up-in-topology",),
        unless=("nccl-warn", "joined"),
        tier=Tier.ABORT,
        confidence="low",
        way="logs",
    ),
)

SIGNS = (
    Sign("via-gdr", "gdrdma", None, keep=4),
    Sign("provider-found", "selected provider|using network aws|net/ofi using", None, keep=4),
    Sign("link-ethernet", "link_layer|roce|link layer", r"link[_ ]layer:?\s*Ethernet|/RoCE\b|\bRoCE\b"),
    Sign("link-infiniband", "link_layer|/ib|link layer", r"link[_ ]layer:?\s*InfiniBand|mlx\d_\d+:\d+/IB\b"),
    Sign(
        "named-gid-routable",
        "gid",
        r"local ?GID(?: index \d+, local GID)? ?:? ?(?!fe80)(?:::ffff:[\dx]+\.[\dx]+|[23f][0-9a-f]{3}:)",
    ),
    Sign("rails", "modify_qp", r"modify_qp.*(?:110|timed out).*INIT.*RTR.*local GID ::ffff:.*remote GID"),
    Sign(
        "rdma-failed",
        "vendor err|modify_qp|net/ib|ibv_|completion",
        r"vendor err|modify_qp.*fail|completion.*(?:error|status)|ibv_\w+ (?:failed|.*with error)",
    ),
    Sign(
        "ib-is-there",
        "nccl_ib_disable|nccl_ib_hca|ib devices|ibstat|ibv_devinfo|openibd|ib_uverbs|infiniband|mlx|hca|]ib"
        "|using ib|plugin ib",
        r"NCCL_IB_DISABLE (?:set by environment to|=) ?0|NCCL_IB_HCA set|Failed to get IB devices list"
        r"|ibstatus|ibv_devinfo|openibd|\]ib[sp]?\d\w*:|Using ib[sp]?\d\w*:|\bib\d:|P2P plugin IB|mlx\d_\d"
        r"|hca_id|InfiniBand (?:controller|HCA)|/dev/infiniband",
    ),
    Sign("active-mtu", "active_mtu", r"active_mtu:\s*(?P<mtu>\d+)"),
)
