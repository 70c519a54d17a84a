"""SSH and sudo."""

from __future__ import annotations

from runbook.causes.logs.sign import Rule, Sign

RULES = (
    Rule(
        "ssh-name-unresolvable",
        "ssh cannot resolve the name {host}",
        (
            Sign("ssh-lookup", "could not resolve hostname", r"Could not resolve hostname (?P<host>.+?)(?:: |$)"),
            Sign("ssh-lookup-other", "ssh: |unknownhostexception", r"ssh: (?P<host>\S+): (?:Name or service not known|nodename nor|Temporary failure|No address associated)"),
        ),
    ),
    Rule(
        "ssh-host-key-changed",
        "{host} shows another host key than the known one: a new machine behind the name, or somebody between",
        (Sign("host-key-changed", "host identification has changed|host key for|hostkeychanged|badhostkey", r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for (?P<host>\S+) has changed|BadHostKeyException|Host key for server .* does not match"),),
    ),
    Rule(
        "ssh-host-key-unknown",
        "the host key of {host} is not known here, and nobody is there to confirm it",
        (Sign("host-key-unknown", "host key verification failed|host key is known|not found in known_hosts|authenticity of host", r"Host key verification failed|No \S+ host key is known for (?P<host>\S+)|not found in known_hosts|authenticity of host '(?P<host2>[^']+)' can't"),),
        unless=("host-key-changed",),
    ),
    Rule(
        "ssh-auth-failed",
        "{host} refuses the user or key",
        (
            Sign(
                "ssh-denied",
                "sign_and_send_pubkey|mutual signature|permission denied|unprotected private key|bad permissions|too many authentication failures|authentication failed|no supported authentication|bad owner or permissions|authenticationexception|not reachable via ssh|passwordauthentication=no",
                r"Permission denied \((?:publickey|password|keyboard|gssapi|hostbased)|(?P<host>\S+@\S+): Permission denied|UNPROTECTED PRIVATE KEY|Load key .*: bad permissions|Too many authentication failures|No supported authentication methods|sign_and_send_pubkey: |no mutual signature"
                r"|Permission denied, please try again|Bad owner or permissions on|AuthenticationException|ssh\b.*Authentication failed|not reachable via ssh|'ssh -o PasswordAuthentication=no.*exit status 255",
            ),
        ),
    ),
    Rule(
        "ssh-refused",
        "{host} answers, but no sshd listens on port {port}",
        (Sign("ssh-port-refused", "connection refused|unable to connect to port", r"ssh: connect to host (?P<host>\S+) port (?P<port>\d+): Connection refused|connect to address \S+ port 22: Connection refused|Unable to connect to port 22 on"),),
    ),
    Rule(
        "ssh-unreachable",
        "no answer from {host} port {port}",
        (
            Sign(
                "ssh-no-answer",
                "connect to host|operation timed out|connection timed out",
                r"ssh: connect to host (?P<host>\S+) port (?P<port>\d+): (?:Connection timed out|Operation timed out|No route to host|Network is unreachable|Host is down|Resource temporarily unavailable|Connection reset)",
            ),
        ),
    ),
    Rule(
        "ssh-handshake-failed",
        "the SSH port opens, then the protocol fails",
        (
            Sign(
                "ssh-handshake",
                "kex_exchange_identification|ssh_exchange_identification|no matching|banner exchange|unable to negotiate|protocol version|error reading ssh protocol banner|connection closed by|connection reset by|ssh_dispatch_run_fatal|incompatible ssh",
                r"(?:kex|ssh)_exchange_identification|no matching (?:host key type|key exchange|cipher|mac)|Unable to negotiate with (?P<host>\S+)|Error reading SSH protocol banner|banner exchange: Connection|ssh_dispatch_run_fatal|Incompatible ssh|protocol version mismatch"
                r"|^Connection (?:closed|reset) by (?P<host2>\S+) port \d+$",
            ),
        ),
    ),
    Rule(
        "sudo-password-required",
        "sudo asks for a password where nobody can type one",
        (Sign("sudo-asks", "sudo", r"sudo: (?:a password is required|a terminal is required|no tty present|sorry, you must have a tty|\d+ incorrect password|no askpass)|is not in the sudoers|may not run sudo"),),
    ),
    Rule(
        "python-missing",
        "the interpreter {python} is not there",
        (Sign("no-interpreter", "python", r"(?:bad interpreter|env): .{0,3}(?P<python>\S*python[\d.]*).{0,3}: No such file|(?P<python2>/\S*/python[\d.]*)(?:: No such file| .*bad interpreter)|bad interpreter: (?P<python3>\S*python[\d.]*)"),),
        follows=("environment-not-activated",),
    ),
)  # fmt: skip
