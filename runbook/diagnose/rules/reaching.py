"""What keeps a process from being started on a node: SSH, sudo, Kubernetes and its schedulers, container engines."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

RULES = (
    Rule(
        "ssh-name-unresolvable",
        "ssh cannot resolve the name {host}",
        (
            Sign("ssh-lookup", "could not resolve hostname", r"Could not resolve hostname (?P<host>.+?)(?:: |$)"),
            Sign(
                "ssh-lookup-other",
                "ssh: |unknownhostexception|gethostbyname(|host does not exist|dial tcp: lookup",
                r"ssh: (?P<host>\S+): (?:Name or service not known|nodename nor|Temporary failure"
                r"|No address associated)|\bpdsh\S*:.*gethostbyname\(\"?(?P<host2>[^\")]+)\"?\) failed"
                r"|Network error: Host does not exist|\bssh\b.*dial tcp: lookup (?P<host3>\S+)",
            ),
        ),
    ),
    Rule(
        "ssh-name-unresolvable",
        "the SSH client cannot resolve the host's name",
        ("lookup-failed",),
        needs=("ssh-client-frame",),
    ),
    Rule(
        "ssh-host-key-changed",
        "{host} shows another host key than the known one: a new machine behind the name, or somebody between",
        (
            Sign(
                "host-key-changed",
                "host identification has changed|host key for|host key has just been changed|hostkeychanged"
                "|badhostkey|key mismatch|doing something nasty|add correct host key|man-in-the-middle"
                "|offending |potential security breach|does not match the one putty|dns spoofing",
                r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for (?P<host>\S+) has changed"
                r"|BadHostKeyException|Host key for server .* does not match|knownhosts: key mismatch"
                r"|SOMEONE IS DOING SOMETHING NASTY|Add correct host key in|host key has just been changed"
                r"|to avoid man-in-the-middle attacks|Offending (?:\S+ )?key (?:in|for)"
                r"|POTENTIAL SECURITY BREACH|host key does not match the one PuTTY|POSSIBLE DNS SPOOFING",
            ),
        ),
    ),
    Rule(
        "ssh-host-key-unknown",
        "the host key of {host} is not known here, and nobody is there to confirm it",
        (
            Sign(
                "host-key-unknown",
                "host key verification failed|host key is known|not found in known_hosts|authenticity of host"
                "|key is unknown|host key checking is enabled|host key is not cached|confirm a host key"
                "|hostkeynotverifiable|unknownhostkey|reject hostkey",
                r"Host key verification failed|No \S+ host key is known for (?P<host>\S+)"
                r"|not found in known_hosts|authenticity of host '(?P<host2>[^']+)' can't"
                r"|knownhosts: key is unknown|Host Key checking is enabled and sshpass|host key is not cached"
                r"|Cannot confirm a host key|HostKeyNotVerifiable|UnknownHostKey|reject HostKey",
            ),
        ),
        unless=("host-key-changed",),
    ),
    Rule(
        "ssh-auth-failed",
        "{host} refuses the user or key",
        (
            Sign(
                "ssh-denied",
                "sign_and_send_pubkey|mutual signature|permission denied|unprotected private key|bad permissions"
                "|too many authentication failures|authentication failed|no supported authentication"
                "|bad owner or permissions|authenticationexception|authentication refused|unable to authenticate"
                "|load key|passwordrequiredexception|permissiondenied|no supported methods|no authentication methods"
                "|not a valid rsa private|unknown key type|incorrect passphrase|enter passphrase"
                "|account is currently not|account has expired|password has expired|access denied by"
                "|unprivileged users|this account is|su: permission",
                r"Permission denied \((?:publickey|password|keyboard|gssapi|hostbased)|(?P<host>\S+@\S+): Permission "
                r"denied|UNPROTECTED PRIVATE KEY|Load key .*: (?:bad permissions|invalid format|error in libcrypto"
                r"|Permission denied|incorrect passphrase)|Too many authentication failures|No supported "
                r"authentication methods|sign_and_send_pubkey: |no mutual signature|Permission denied, please try "
                r"again|Bad owner or permissions on|AuthenticationException|ssh\b.*(?:Authentication failed"
                r"|unable to authenticate)|Authentication refused: bad ownership|PasswordRequiredException"
                r"|No authentication methods available|asyncssh\S*PermissionDenied|not a valid RSA private key"
                r"|Enter passphrase for key|This account is currently not available|Your (?:account"
                r"|password) has expired|Access denied by pam_\w+|Unprivileged users are not permitted to log in",
            ),
        ),
        unless=("host-key-changed",),
    ),
    Rule(  # strangers knock at every SSH port
        "ssh-auth-failed",
        "the SSH server turned a user or key away",
        (
            Sign(
                "ssh-turned-away",
                "not allowed because|failed publickey|failed password|invalid user",
                r"\bsshd\b.*(?:not allowed because|Failed (?:publickey|password) for|Invalid user)",
            ),
        ),
        unless=("host-key-changed", "ssh-denied"),
        confidence="medium",
    ),
    Rule(
        "ssh-auth-failed",
        "the launcher could not log in over SSH without a password",
        (
            Sign(
                "ssh-login-failed",
                "not reachable via ssh|passwordauthentication=no",
                r"not reachable via ssh|'ssh -o PasswordAuthentication=no.*exit status 255",
            ),
        ),
        unless=(
            "host-key-changed",
            "host-key-unknown",
            "ssh-lookup",
            "ssh-lookup-other",
            "ssh-port-refused",
            "ssh-no-answer",
            "ssh-handshake",
            "ssh-absent",
        ),
        confidence="medium",
    ),
    Rule(
        "ssh-refused",
        "{host} answers, but no sshd listens on port {port}",
        (
            Sign(
                "ssh-port-refused",
                "connection refused|unable to connect to port|connect call failed",
                r"ssh: connect to host (?P<host>\S+) port (?P<port>\d+): Connection refused|connect to address \S+ "
                r"port 22: Connection refused|Unable to connect to port 22 on|dial tcp (?P<host2>\S+):22: .*refused"
                r"|Connection refused.*\('(?P<host3>[^']+)', 22\)|Connect call failed \('(?P<host4>[^']+)', 22\)"
                r"|^FATAL ERROR: Network error: Connection refused|^\S*\bpdsh@\S+: \S+ connect: Connection refused",
            ),
        ),
    ),
    Rule(
        "ssh-refused",
        "the host answers, but no sshd listens there",
        ("refused",),
        needs=("ssh-client-frame",),
    ),
    Rule(
        "ssh-unreachable",
        "no answer from {host} port {port}",
        (
            Sign(
                "ssh-no-answer",
                "connect to host|operation timed out|connection timed out|dial tcp|timed out|no route to host",
                r"ssh: connect to host (?P<host>\S+) port (?P<port>\d+): (?:Connection timed out|Operation timed out"
                r"|No route to host|Network is (?:unreachable|down)|Host is down|Resource temporarily unavailable"
                r"|Connection reset|Unknown error|Undefined error)|dial tcp (?P<host2>\S+):22: (?:i/o timeout"
                r"|connect: (?:no route|network is unreach|connection timed|operation timed|host is down))"
                r"|^FATAL ERROR: Network error: (?:Connection timed out|No route|Network is unreach)"
                r"|connect to address (?P<host3>\S+) port 22: (?:Connection timed out|No route|Network is unreach)",
            ),
        ),
    ),
    Rule(
        "ssh-unreachable",
        "no answer from the host's SSH port",
        ("drops", "no-route"),
        needs=("ssh-client-frame",),
    ),
    Rule(
        "ssh-handshake-failed",
        "the SSH port opens, then the protocol fails",
        (
            Sign(
                "ssh-handshake",
                "kex_exchange_identification|ssh_exchange_identification|no matching|banner exchange"
                "|unable to negotiate|protocol version|error reading ssh protocol banner|connection closed by"
                "|connection reset by|ssh_dispatch_run_fatal|incompatible ssh"
                "|handshake failed|maxstartups|bad packet length|no common algorithm|corrupted mac"
                "|not allowed at this time|connection timed out during",
                r"(?:kex|ssh)_exchange_identification|no matching (?:host key type|key exchange|cipher|mac)"
                r"|Unable to negotiate with (?P<host>\S+)|Error reading SSH protocol banner|banner exchange"
                r"|ssh_dispatch_run_fatal|Incompatible ssh|protocol version mismatch|^Connection (?:closed"
                r"|reset) by (?P<host2>\S+) port \d+$|ssh: handshake failed: (?!.*(?:unable to authenticate|knownhosts"
                r"|host key))|\bMaxStartups\b|Bad packet length \d+|no common algorithm for|Corrupted MAC on input"
                r"|^Not allowed at this time",
            ),
        ),
        unless=("ssh-denied", "ssh-turned-away"),
    ),
    Rule(
        "sudo-password-required",
        "sudo asks for a password where nobody can type one",
        (
            Sign(
                "sudo-asks",
                "sudo|doas|privilege escalation|interactive authentication|is not allowed to execute|become password",
                r"doas: (?:.*password is required|a tty is required|Authentication failed"
                r"|Operation not permitted)|sudo(?:-rs)?: (?:.*password is required|a terminal is required"
                r"|no tty present|sorry, you must have a tty|\d+ incorrect password|no askpass"
                r"|no password was provided|timed out reading password|unable to read password"
                r"|interactive authentication is required|.*(?:Passwort|mot de passe|contraseña|密码|パスワード))"
                r"|is not in the sudoers|may not run sudo|(?:Missing|Incorrect) (?:sudo|become) password"
                r"|waiting for privilege escalation prompt|Interactive authentication (?:is )?required"
                r"|is not allowed to execute .* as root|^\[sudo\] (?:password for|Passwort|Mot de passe)",
            ),
        ),
    ),
    Rule(
        "python-missing",
        "the interpreter {python} is not there",
        (
            Sign(
                "no-interpreter",
                "python",
                r"(?:bad interpreter|env): .{0,3}(?P<python>\S*python[\d.]*).{0,3}: No such file"
                r"|(?<!/)(?P<python2>/\S*/python[\d.]*)(?:['’]?(?::|,| \() ?(?:No such file|not found)"
                r"| .*bad interpreter)|(?<!\S)(?P<python3>\S*python[\d.]*): bad interpreter|bad interpreter: "
                r"(?P<python4>\S*python[\d.]*)|Python was not found|No Python at |No such file or directory: "
                r"'(?P<python5>\S*/python[\d.]*)'|interpreter '?(?P<python6>[^'\s]*python[\d.]*)'? was not found"
                r"|init_fs_encoding: failed",
            ),
        ),
    ),
)

SIGNS = (
    Sign("ssh-client-frame", "paramiko|asyncssh|parallel-ssh|pssh", r"paramiko|asyncssh|pssh/|fabric/connection"),
    Sign(
        "ssh-absent",
        "no such file or directory|command not found",
        r"No such file or directory: '?ssh'?|\bssh: command not found",
    ),
)


CONTAINER_RULES = (
    Rule(
        "ranks-missing",
        "a pod got no machine: none has room for it, or its queue has no quota left",
        ("pod-without-machine",),
        tier=Tier.NETWORK,
        confidence="medium",
        way="pod-pending",
    ),
    Rule(
        "ranks-missing",
        "a container could not start: its image cannot be had",
        ("container-without-image",),
        tier=Tier.NETWORK,
        confidence="medium",
        way="image-not-pulled",
    ),
    Rule(
        "ranks-missing",
        "a container could not start: a volume, a secret, a device or its sandbox could not be had",
        ("container-not-started",),
        tier=Tier.NETWORK,
        confidence="medium",
        way="container-not-made",
    ),
    Rule(
        "terminated-from-outside",
        "a pod was taken away: preempted, evicted, or its node went",
        (
            Sign(
                "pod-taken",
                "preempted|taintmanagereviction|marking for deletion pod|nodenotready|nodeshutdown"
                "|memorypressure|evicted",
                r"\bPreempted +\S+ +\S*scheduler\b|\bPreempted by pod\b|TaintManagerEviction|Marking for deletion Pod"
                r"|\bNodeNotReady\b|\bNodeShutdown\b|Pod was rejected: The node had condition: \[MemoryPressure"
                r"|^\s*Reason:\s+(?:Evicted|Terminated|NodeShutdown)\b",
            ),
        ),
        tier=Tier.SYMPTOM,
    ),
    Rule(
        "insufficient-evidence",
        "a container ends again and again ({line}); why stands in its own log",
        (
            Sign(
                "ends-again-and-again",
                "crashloopbackoff|back-off|waiting message",
                r"\bCrashLoopBackOff\b|[Bb]ack-off(?: \w+)? restarting failed container",
            ),
        ),
        tier=Tier.WRAPPER,
        confidence="medium",
        way="pod-restarts",
    ),
)

CONTAINER_SIGNS = (
    Sign(
        "waits-for-machine",
        "failedscheduling|nodes are available|nodes are unavailable|tasks in gang|podgrouppending"
        "|pod group is not ready|quota|assign flavors|unschedulable|unexpectedadmissionerror"
        "|insufficient nvidia|insufficient amd|number of devices unavailable",
        r"\bFailedScheduling\b|\b\d+/\d+ nodes are (?:un)?available|tasks in gang unschedulable|\bPodGroupPending\b"
        r"|queue resource quota insufficient|insufficient (?:unused )?quota|couldn't assign flavors|\bexceeded quota\b"
        r"|\bUnexpectedAdmissionError\b|Insufficient (?:nvidia|amd)\.com|number of devices unavailable",
    ),
    Sign(
        "waits-for-image",
        "pull image|pulling image|errimage|imagepullbackoff|invalidimagename|pull access denied"
        "|manifest unknown|manifest for|pull and unpack|import docker image|is waiting to start",
        r"Failed to pull image|failed to pull and unpack image|\bErrImage(?:Pull|NeverPull)\b"
        r"|\bImagePullBackOff\b|\bInvalidImageName\b|Back-off pulling image|trying and failing to pull image"
        r"|pull access denied|manifest unknown|manifest for \S+ not found|failed to import docker image",
    ),
    Sign(
        "waits-for-container",
        "failedmount|failedattachvolume|createcontainer|runcontainererror|failedcreatepodsandbox"
        "|is waiting to start|start container process|couldn't start container|nvidia-container-cli"
        "|failed to create shim|failed to create task",
        r"\bFailed(?:Mount|AttachVolume|CreatePodSandBox)\b|\bCreateContainer(?:Config)?Error\b"
        r"|\bRunContainerError\b|is waiting to start: (?!trying)|unable to start container process"
        r"|pyxis: couldn't start container|nvidia-container-cli: .*error|failed to create (?:shim )?task",
    ),
    Sign(
        "pod-placed",
        "successfully assigned|started container|successfully pulled",
        r"Successfully assigned \S+|Started container\b|Successfully pulled image",
    ),
)
