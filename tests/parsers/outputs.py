# ruff: noqa: E101  tabs and blanks are as the tools print them
"""Outputs as tools print them, of no machine in particular: what they say, and what they prove."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """`faults`: the causes it proves. `from_`: the record that shows the first of them begins with this line; a cut
    inside of it must not look healthy. `whole`: nothing else in it may be missing either."""

    command: str
    text: str
    faults: tuple[str, ...] = ()
    supports: tuple[str, ...] = ()
    unknown: bool = False
    from_: str = ""


OUTPUTS: dict[str, Output] = {
    "chronyc tracking, loose": Output(
        "chronyc -n tracking",
        """\
Reference ID    : 00000000 ()
Stratum         : 0
Ref time (UTC)  : Thu Jan 01 00:00:00 1970
System time     : 0.000000000 seconds fast of NTP time
Last offset     : +0.000000000 seconds
RMS offset      : 0.000000000 seconds
Frequency       : 0.000 ppm slow
Residual freq   : +0.000 ppm
Skew            : 0.000 ppm
Root delay      : 1.000000000 seconds
Root dispersion : 1.000000000 seconds
Update interval : 0.0 seconds
Leap status     : Not synchronised
""",
        ("clock-skew",),
        ("clock-skew",),
        from_="Reference",
    ),
    "chronyc tracking, far off": Output(
        "chronyc tracking",
        """\
Reference ID    : CB00710F (time.example.net)
Stratum         : 3
Ref time (UTC)  : Fri Jan 27 09:49:17 2026
System time     : 41.300000000 seconds slow of NTP time
Last offset     : -0.000006747 seconds
RMS offset      : 0.000035822 seconds
Frequency       : 3.225 ppm slow
Residual freq   : -0.000 ppm
Skew            : 0.129 ppm
Root delay      : 0.013639022 seconds
Root dispersion : 0.001100737 seconds
Update interval : 64.2 seconds
Leap status     : Normal
""",
        ("clock-skew",),
        from_="Reference",
    ),
    "timedatectl, not synchronized": Output(
        "timedatectl",
        """\
               Local time: Sat 2026-11-21 09:46:21 UTC
           Universal time: Sat 2026-11-21 09:46:21 UTC
                 RTC time: Sat 2026-11-21 09:46:20
                Time zone: Etc/UTC (UTC, +0000)
System clock synchronized: no
              NTP service: inactive
          RTC in local TZ: no
""",
        ("clock-skew",),
        ("clock-skew",),
        from_="               Local",
    ),
    "timedatectl of systemd 215": Output(
        "timedatectl status",
        """\
      Local time: Sat 2026-11-21 09:46:21 UTC
  Universal time: Sat 2026-11-21 09:46:21 UTC
        RTC time: Sat 2026-11-21 09:46:20
       Time zone: Etc/UTC (UTC, +0000)
 Network time on: yes
NTP synchronized: yes
 RTC in local TZ: no
""",
    ),
    "ibstat, one port down": Output(
        "ibstat",
        """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Hardware version: 0
	Node GUID: 0x0123456789abcdef
	System image GUID: 0x0123456789abcdef
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 400
		Base lid: 12
		LMC: 0
		SM lid: 1
		Capability mask: 0xa751e848
		Port GUID: 0x0123456789abcdef
		Link layer: InfiniBand
CA 'mlx5_1'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Hardware version: 0
	Node GUID: 0x0123456789abcdf0
	System image GUID: 0x0123456789abcdf0
	Port 1:
		State: Down
		Physical state: Disabled
		Rate: 10
		Base lid: 65535
		LMC: 0
		SM lid: 0
		Capability mask: 0xa751e848
		Port GUID: 0x0123456789abcdf0
		Link layer: InfiniBand
""",
        ("ib-port-not-active",),
        from_="CA 'mlx5_1'",
    ),
    "ibstat of one port": Output(
        "ibstat mlx5_1 1",
        """\
CA: 'mlx5_1'
Port 1:
State: Down
Physical state: Polling
Rate: 10
Base lid: 65535
LMC: 0
SM lid: 0
Capability mask: 0xa659e848
Port GUID: 0x0002c90300a1b2c3
Link layer: InfiniBand
""",
        ("ib-port-not-active",),
        from_="CA: 'mlx5_1'",
    ),
    "ibstatus, no subnet manager": Output(
        "ibstatus",
        """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:0015:5dff:fd34:11eb
	base lid:	 0x0
	sm lid:		 0x0
	state:		 2: INIT
	phys state:	 5: LinkUp
	rate:		 400 Gb/sec (4X NDR)
	link_layer:	 InfiniBand

""",
        ("ib-port-initializing",),
        from_="Infiniband",
    ),
    "ibportstate, one lane": Output(
        "ibportstate 12 1 query",
        """\
CA/RT PortInfo:
# Port info: Lid 12 port 1
LinkState:.......................Active
PhysLinkState:...................LinkUp
Lid:.............................12
SMLid:...........................1
LMC:.............................0
LinkWidthSupported:..............1X or 4X
LinkWidthEnabled:................1X or 4X
LinkWidthActive:.................1X
LinkSpeedSupported:..............2.5 Gbps or 5.0 Gbps or 10.0 Gbps
LinkSpeedActive:.................10.0 Gbps
""",
        ("ib-rate-low",),
        from_="LinkState",
    ),
    "perfquery, saturated": Output(
        "perfquery",
        """\
# Port counters: Lid 12 port 1 (CapMask: 0x5A00)
PortSelect:......................1
CounterSelect:...................0x0000
SymbolErrorCounter:..............65535
LinkErrorRecoveryCounter:........255
LinkDownedCounter:...............0
PortRcvErrors:...................0
PortRcvRemotePhysicalErrors:.....0
PortRcvSwitchRelayErrors:........0
PortXmitDiscards:................0
PortXmitConstraintErrors:........0
PortRcvConstraintErrors:.........0
LocalLinkIntegrityErrors:........0
ExcessiveBufferOverrunErrors:....0
VL15Dropped:.....................0
PortXmitData:....................4294967295
PortRcvData:.....................4294967295
PortXmitPkts:....................34038722564
PortRcvPkts:.....................23038722564
""",
        ("ib-port-not-active",),
        from_="# Port",
    ),
    "rdma link, down": Output(
        "rdma link show",
        """\
link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1np0
link mlx5_1/1 state DOWN physical_state DISABLED netdev ens2np0
""",
        ("ib-port-not-active",),
        from_="link mlx5_1",
    ),
    "py-spy, one process elsewhere": Output(
        "for p in 411 412; do py-spy dump --pid $p; done",
        """\
Process 411: /srv/env/bin/python -u train.py
Python v3.12.7 (/usr/bin/python3.12)

Thread 411 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2219)
    wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:46)
    <module> (train.py:90)
Thread 702 (idle): "Thread-4 (_heartbeat)"
    wait (threading.py:359)
    beat (heartbeat.py:55)
Process 412: /srv/env/bin/python -u train.py
Python v3.12.7 (/usr/bin/python3.12)

Thread 412 (idle): "MainThread"
    read (ssl.py:1103)
    upload (tracker/client.py:212)
    step (train.py:47)
    <module> (train.py:90)
""",
        ("rank-behind",),
        unknown=True,
        from_="Process 412",
    ),
    "ping, half lost": Output(
        "ping -c 20 10.0.0.2",
        """\
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.
64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.040 ms
64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=0.040 ms

--- 10.0.0.2 ping statistics ---
20 packets transmitted, 11 received, 45% packet loss, time 19070ms
rtt min/avg/max/mdev = 0.040/0.040/0.040/0.000 ms
""",
        ("packet-loss",),
        from_="PING",
    ),
    "ping, no way at all": Output("ping -c1 10.9.0.2", "ping: connect: Network is unreachable\n", ("no-route",)),
    "ping of old iputils, no such name": Output("ping node-b", "ping: unknown host node-b\n", ("name-unresolvable",)),
    "ping of Windows, unreachable though received": Output(
        "C:\\> ping 10.0.0.9",
        """\

Pinging 10.0.0.9 with 32 bytes of data:
Reply from 10.0.0.5: Destination host unreachable.
Reply from 10.0.0.5: Destination host unreachable.
Reply from 10.0.0.5: Destination host unreachable.
Reply from 10.0.0.5: Destination host unreachable.

Ping statistics for 10.0.0.9:
    Packets: Sent = 4, Received = 4, Lost = 0 (0% loss),
""",
        ("host-unreachable",),
        from_="Pinging",
    ),
    "ping of Windows": Output(
        "C:\\> ping node-b",
        """\

Pinging node-b [10.0.0.2] with 32 bytes of data:
Reply from 10.0.0.2: bytes=32 time<1ms TTL=64
Reply from 10.0.0.2: bytes=32 time=2ms TTL=64

Ping statistics for 10.0.0.2:
    Packets: Sent = 2, Received = 2, Lost = 0 (0% loss),
Approximate round trip times in milli-seconds:
    Minimum = 0ms, Maximum = 2ms, Average = 1ms
""",
    ),
    "ping of Windows in German": Output(
        "C:\\> ping node-b",
        """\

Ping wird ausgeführt für node-b [10.0.0.2] mit 32 Bytes Daten:
Antwort von 10.0.0.2: Bytes=32 Zeit<1ms TTL=64
""",
        unknown=True,
    ),
    "ss with processes": Output(
        "sudo ss -tlnp",
        """\
State  Recv-Q Send-Q Local Address:Port  Peer Address:Port Process
LISTEN 0      128          0.0.0.0:22         0.0.0.0:*     users:(("sshd",pid=812,fd=3))
LISTEN 0      2048               *:29500            *:*     users:(("python3",pid=4711,fd=18))
LISTEN 0      128             [::]:22            [::]:*     users:(("sshd",pid=812,fd=4))
""",
        (),
        ("port-in-use", "port-in-use", "port-in-use"),
    ),
    "ss without a heading": Output(
        "ss -ltnpH",
        'LISTEN 0      2048       127.0.0.1:29500      0.0.0.0:*    users:(("python3",pid=4711,fd=18))\n',
        (),
        ("port-in-use",),
    ),
    "netstat": Output(
        "netstat -tlnp",
        """\
(Not all processes could be identified, non-owned process info
 will not be shown, you would have to be root to see it all.)
Active Internet connections (only servers)
Proto Recv-Q Send-Q Local Address           Foreign Address         State       PID/Program name
tcp        0      0 0.0.0.0:29500           0.0.0.0:*               LISTEN      4711/python3
tcp6       0      0 :::22                   :::*                    LISTEN      -
""",
        (),
        ("port-in-use", "port-in-use"),
    ),
    "ifconfig of macOS": Output(
        "ifconfig en0",
        """\
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
	ether 02:42:ac:11:00:02
	inet 10.0.0.1 netmask 0xffffff00 broadcast 10.0.0.255
""",
        (),
        ("interface-missing",),
    ),
    "netstat, with UDP, users and inodes": Output(
        "netstat -tulnpe",
        """\
Active Internet connections (only servers)
Proto Recv-Q Send-Q Local Address           Foreign Address         State       User       Inode      PID/Program name
tcp        0      0 0.0.0.0:29500           0.0.0.0:*               LISTEN      1000       123456     4711/python3
udp        0      0 0.0.0.0:68              0.0.0.0:*                           0          23456      612/dhclient
udp6       0      0 :::111                  :::*                                0          23457      -
""",
        (),
        ("port-in-use",),
    ),
    "netstat of Windows": Output(
        "netstat -ano",
        """\

Active Connections

  Proto  Local Address          Foreign Address        State           PID
  TCP    0.0.0.0:29500          0.0.0.0:0              LISTENING       4711
  TCP    10.0.0.2:50112         10.0.0.1:29500         ESTABLISHED     4711
  UDP    0.0.0.0:123            *:*                                    1040
""",
        (),
        ("port-in-use",),
    ),
    "lsof": Output(
        "lsof -iTCP -sTCP:LISTEN -n -P",
        """\
COMMAND   PID USER   FD   TYPE DEVICE SIZE/OFF NODE NAME
python3  4711  ann   18u  IPv4 123456      0t0  TCP *:29500 (LISTEN)
""",
        (),
        ("port-in-use",),
    ),
    "ulimit of dash": Output(
        "ulimit -a",
        """\
time(seconds)        unlimited
file(blocks)         unlimited
data(kbytes)         unlimited
stack(kbytes)        8192
coredump(blocks)     0
memory(kbytes)       unlimited
locked memory(kbytes) 64
process              96365
nofiles              20000
""",
        ("memlock-limit",),
        from_="locked",
    ),
    "limits of a process": Output(
        "cat /proc/self/limits",
        """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            200                  4096                 files
Max locked memory         unlimited            unlimited            bytes
""",
        ("open-files-limit",),
        from_="Max open",
    ),
    "ulimit -l": Output("ulimit -l", "64\n", ("memlock-limit",)),
    "df, full": Output(
        "df -hT",
        """\
Filesystem     Type      Size  Used Avail Use% Mounted on
tmpfs          tmpfs      64M     0   64M   0% /dev/shm
/dev/sda1      ext4      100G  100G     0 100% /
/dev/loop3     squashfs   64M   64M     0 100% /snap/core20/1
""",
        ("shm-too-small", "disk-full"),
    ),
    "df -i, full": Output(
        "df -i",
        """\
Filesystem       Inodes   IUsed  IFree IUse% Mounted on
/dev/sda1       6553600 6553600      0  100% /var
""",
        ("disk-full",),
    ),
    "free": Output(
        "free -m",
        """\
               total        used        free      shared  buff/cache   available
Mem:           24105       23252         192           9         669         392
Swap:              0           0           0
""",
        (),
        ("rank-killed",),
    ),
    "free of procps 3.2": Output(
        "free -m",
        """\
             total       used       free     shared    buffers     cached
Mem:          7982       7800        182          0        300       5000
-/+ buffers/cache:       2500       5482
Swap:            0          0          0
""",
        unknown=True,
    ),
    "ip address": Output(
        "ip addr",
        """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
4: eth0@if7: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc fq state UP group default qlen 1000
    link/ether 02:fc:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 10.0.0.2/24 brd 10.0.0.255 scope global eth0
       valid_lft forever preferred_lft forever
""",
        (),
        ("interface-missing",),
    ),
    "ip -br address": Output(
        "ip -br addr",
        """\
lo               UNKNOWN        127.0.0.1/8 ::1/128
ib0              DOWN
eth0@if2         UP             10.0.0.2/24 fe80::fc:ff:fe00:1/64
""",
        (),
        ("interface-missing",),
    ),
    "ifconfig": Output(
        "ifconfig",
        """\
eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1400
        inet 10.0.0.2  netmask 255.255.255.0  broadcast 10.0.0.255
        inet6 fe80::1  prefixlen 64  scopeid 0x20<link>
        ether 02:fc:00:00:00:01  txqueuelen 1000  (Ethernet)
""",
        (),
        ("interface-missing",),
    ),
    "ip route": Output(
        "ip route",
        """\
default via 10.0.0.1 dev eth0
10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.2
""",
    ),
    "ip route get, none": Output("ip route get 10.9.9.9", "RTNETLINK answers: Network is unreachable\n", ("no-route",)),
    "getent, Debian's loopback": Output(
        "getent hosts node-a",
        "127.0.1.1       node-a.example node-a\n",
        ("name-resolves-to-loopback",),
        ("gloo-loopback-advertised",),
        from_="127",
    ),
    "getent ahosts": Output(
        "getent ahosts node-b",
        """\
10.0.0.2        STREAM node-b
10.0.0.2        DGRAM
10.0.0.2        RAW
""",
    ),
    "sysctl": Output(
        "sysctl net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_port_range = 1024\t65000\n",
        (),
        ("port-in-use",),
    ),
    "lspci, ACS on": Output(
        "sudo lspci -vvv | grep -E '^[0-9a-f]|ACSCtl'",
        """\
00:01.0 PCI bridge: Example Root Port (rev 04)
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
00:02.0 PCI bridge: Example Root Port (rev 04)
		ACSCtl:	SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
""",
        ("acs-breaks-gdr",),
        ("p2p-hang-acs-iommu",),
        from_="\t\tACSCtl:\tSrcValid+",
    ),
    "lsmod without peermem": Output(
        "lsmod",
        """\
Module                  Size  Used by
nvidia_uvm           1941504  0
nvidia              56717312  1 nvidia_uvm
ib_core               491520  3 rdma_cm,ib_umad,ib_uverbs
""",
        (),
        ("gdr-disabled",),
    ),
    "nvidia-smi, memory errors": Output(
        "nvidia-smi",
        """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:10:1C.0 Off |                    4 |
| N/A   33C    P0              61W / 400W |  70123MiB / 81920MiB |      0%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+

+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|        ID   ID                                                             Usage      |
|=======================================================================================|
|    0   N/A  N/A      4711      C   python3                                  70112MiB |
+---------------------------------------------------------------------------------------+
""",
        ("gpu-ecc-uncorrectable",),
        ("gpu-out-of-memory",),
        from_="|   0  NVIDIA",
    ),
    "nvidia-smi, memory that is the machine's": Output(
        "nvidia-smi",
        """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   38C    P8              4W /  N/A  | Not Supported          |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
""",
    ),
    "nvidia-smi of Windows": Output(
        "nvidia-smi",
        """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 566.14                 Driver Version: 566.14         CUDA Version: 12.7     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                  Driver-Model | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA GeForce RTX 4090      WDDM  |   00000000:01:00.0  On |                  Off |
|  0%   44C    P8             18W /  450W |    1593MiB /  24564MiB |      4%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A      1234    C+G   ...5n1h2txyewy\\ShellExperienceHost.exe    N/A       |
+-----------------------------------------------------------------------------------------+
""",
    ),
    "nvidia-smi, no driver": Output(
        "nvidia-smi",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n",
        ("no-gpu-visible",),
    ),
    "nvidia-smi, versions differ": Output(
        "nvidia-smi",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n",
        ("driver-library-mismatch",),
    ),
    "nvidia-smi -q, a row without spares": Output(
        "nvidia-smi -q -d ECC,ROW_REMAPPER",
        """\

==============NVSMI LOG==============

Timestamp                                 : Wed Jun  7 19:32:16 2026
Driver Version                            : 535.104.05
CUDA Version                              : 12.2

Attached GPUs                             : 1
GPU 00000000:10:1C.0
    ECC Mode
        Current                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 3
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 3
        Pending                           : No
        Remapping Failure Occurred        : Yes
""",
        ("gpu-reset-required", "gpu-ecc-uncorrectable"),
        from_="GPU 00000000",
    ),
    "nvidia-smi -q, narrow link under load": Output(
        "nvidia-smi -q",
        """\
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 8x
""",
        (),
        ("allreduce-slow",),
        unknown=True,
    ),
    "nvidia-smi nvlink, one link away": Output(
        "nvidia-smi nvlink -s",
        """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5269b708-678a-b1a8-60f0-c90406537486)
	 Link 0: 25 GB/s
	 Link 1: 25 GB/s
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-a7605225-d684-1f65-4ad4-ee2ab39338b4)
	 Link 0: 25 GB/s
	 Link 1: <inactive>
""",
        ("nvlink-error",),
        from_="GPU 1",
    ),
    "nvidia-smi topo with NICs": Output(
        "nvidia-smi topo -m",
        """\
	GPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity	GPU NUMA ID
GPU0	 X 	NV18	PIX	0-47	0		N/A
GPU1	NV18	 X 	SYS	48-95	1		N/A
NIC0	PIX	SYS	 X

Legend:

  X    = Self
""",
    ),
    "nvidia-smi --query-gpu": Output(
        "nvidia-smi --query-gpu=index,name,ecc.errors.uncorrected.volatile.total --format=csv",
        """\
index, name, ecc.errors.uncorrected.volatile.total
0, NVIDIA H100, 0
1, NVIDIA H100, 2
""",
        ("gpu-ecc-uncorrectable",),
        from_="1,",
    ),
    "fabric manager, failed": Output(
        "journalctl -u nvidia-fabricmanager",
        """\
Jan 05 14:44:41 host-a nv-fabricmanager[1120]: Connected to 1 node.
Jan 05 14:45:28 host-a systemd[1]: nvidia-fabricmanager.service: Main process exited, code=exited, status=1/FAILURE
Jan 05 14:45:28 host-a systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.
""",
        ("fabricmanager-down",),
        from_="Jan 05 14:45:28",
    ),
    "dmesg, Xid": Output(
        "sudo dmesg",
        "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n",
        ("gpu-fell-off-bus",),
    ),
    "nft text": Output(
        "sudo nft list ruleset",
        """\
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state established,related accept
		iif "lo" accept
		tcp dport 22 accept
	}
	chain output {
		type filter hook output priority filter; policy accept;
	}
}
""",
        (),
        ("firewall-drop",),
    ),
    "nft text that accepts by a set": Output(
        "nft list ruleset",
        """\
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ip saddr @friends accept
	}
}
""",
    ),
    "iptables -S": Output(
        "sudo iptables -S",
        """\
-P INPUT DROP
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
""",
        (),
        ("firewall-drop",),
    ),
    "netsh": Output(
        "PS C:\\> netsh advfirewall show allprofiles",
        """\

Domain Profile Settings:
----------------------------------------------------------------------
State                                 OFF
Firewall Policy                       BlockInbound,AllowOutbound
LocalFirewallRules                    N/A (GPO-store only)

Public Profile Settings:
----------------------------------------------------------------------
State                                 ON
Firewall Policy                       BlockInbound,AllowOutbound
LocalFirewallRules                    N/A (GPO-store only)

Ok.

""",
        (),
        ("firewall-drop",),
    ),
    "netsh in German": Output(
        "PS C:\\> netsh advfirewall show allprofiles",
        """\

Domänenprofil-Einstellungen:
----------------------------------------------------------------------
Status                                AUS
Firewallrichtlinie                    BlockInbound,AllowOutbound
OK.
""",
        unknown=True,
    ),
    "netsh rules": Output(
        "PS C:\\> netsh advfirewall firewall show rule name=all",
        """\

Rule Name:                            python
----------------------------------------------------------------------
Enabled:                              Yes
Direction:                            In
Profiles:                             Public
Grouping:
LocalIP:                              Any
RemoteIP:                             Any
Protocol:                             TCP
LocalPort:                            Any
RemotePort:                           Any
Edge traversal:                       No
Action:                               Block

Rule Name:                            File Sharing
----------------------------------------------------------------------
Enabled:                              No
Direction:                            In
Profiles:                             Private
Action:                               Allow
Ok.
""",
        (),
        ("firewall-drop",),
    ),
    "Get-NetFirewallProfile": Output(
        "PS C:\\> Get-NetFirewallProfile",
        """\

Name                            : Public
Enabled                         : True
DefaultInboundAction            : NotConfigured
DefaultOutboundAction           : NotConfigured
AllowInboundRules               : NotConfigured

""",
        (),
        ("firewall-drop",),
    ),
    "Get-NetFirewallRule": Output(
        "PS C:\\> Get-NetFirewallRule -DisplayName python",
        """\
Name                          : {1F0A}
DisplayName                   : python
Description                   :
Enabled                       : True
Profile                       : Public
Direction                     : Inbound
Action                        : Block
""",
        (),
        ("firewall-drop",),
    ),
    "Test-NetConnection, closed": Output(
        "PS C:\\> Test-NetConnection 10.0.0.1 -Port 29500",
        """\
WARNING: TCP connect to (10.0.0.1 : 29500) failed

ComputerName           : 10.0.0.1
RemoteAddress          : 10.0.0.1
RemotePort             : 29500
InterfaceAlias         : Ethernet
SourceAddress          : 10.0.0.5
PingSucceeded          : True
PingReplyDetails (RTT) : 1 ms
TcpTestSucceeded       : False
""",
        ("master-not-listening",),
        from_="WARNING",
    ),
}
