"""What a launch script asks Python before it starts: does the name resolve, is the port free. No shell can tell."""

from __future__ import annotations

from runbook.launch.exits import CODES

PROBE = (
    "import ipaddress, ntpath, os, socket, sys; "
    "name, port, several = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]); "
    f"unresolved, loopback, taken = {CODES['address-unresolved']}, {CODES['address-loopback']}, {CODES['port-taken']}; "
    # There is no `try` in one line: what is raised comes here, and only what we know is given a code of its own.
    "sys.excepthook = lambda kind, error, trace: (sys.stderr.write(str(error) + chr(10)), sys.stderr.flush(), "
    "os._exit(unresolved if issubclass(kind, (socket.gaierror, UnicodeError)) else "
    "taken if issubclass(kind, (OSError, OverflowError)) else 1)); "
    "found = [ipaddress.ip_address(entry[4][0].partition(chr(37))[0]) for entry in socket.getaddrinfo(name, None)]; "
    "several and all(address.is_loopback for address in found) and sys.exit(loopback); "
    "door = socket.socket(); "
    # On Windows this option would let two programs have one port; elsewhere it lets the last job's closing ones be.
    "os.path is ntpath or door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    "port and door.bind((str(), port))"
)
"""Python 3.6 and later, one line, no character that any shell finds special: NAME PORT (or 0) SEVERAL (1 or 0).

Ends with 0, or with the code of address-unresolved, address-loopback or port-taken; anything else is no answer.
"""
