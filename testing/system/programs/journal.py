"""A journal for one command, in a mount namespace of its own: prints the entries of events as JSON until the command ends.

journal.py COMMAND [ARGUMENT ...]"""

import json
import os
import socket
import subprocess
import sys

os.makedirs("/run/systemd", exist_ok=True)
subprocess.run(["mount", "-t", "tmpfs", "journal", "/run/systemd"], check=True)
os.makedirs("/run/systemd/journal")
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind("/run/systemd/journal/socket")
journal.settimeout(0.1)
command = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
ended = False
while True:
    try:
        entry = journal.recv(1 << 16).decode()
        print(json.dumps(dict(line.split("=", 1) for line in entry.splitlines())), flush=True)
    except TimeoutError:
        if ended:
            sys.exit(command.returncode)
        ended = command.poll() is not None
