#!/usr/bin/python3
"""Measures what hostile frames cost: the kernel and Atoll in turn, medians.

    attacks.py [--rounds 3] [--rate 40000] [--seconds 1.5] [--configuration TS2LS2CM2] [KIND ...]

For each kind of frame (`bench/attacks.c` makes them) and each stack: CPU time of everything - sender, link and stack - per frame while nothing
else happens, and the rate of a good stream (iperf3, to the stack) without and beside the attack. The first kind, `nothing`, is what
no stack looks at; what a frame costs beyond it is the stack's. Frames are sent from the client's namespace at RATE a second. The last
column is how many of the frames could be sent.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

from lab import CLIENT, SERVER, Atoll, Failure, Kernel, Lab, Measured, say, sh, wait_for

HELD_PORT, STREAM_PORT = 40000, 40001
HOLD = """
import socket, sys, time
if sys.argv[1] == "serve":
    import select
    listeners = [socket.socket(), socket.socket()]; kept = []
    for s, port in zip(listeners, (80, 81)): s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("", port)); s.listen(128)
    while True:
        for s in select.select(listeners, [], [])[0]:
            kept.append(s.accept()[0]); del kept[:-8]
            if s is listeners[1]: kept[-1].setblocking(False); kept[-1].send(bytes(1 << 20))
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("", int(sys.argv[2]))); s.connect((sys.argv[1], 80)); time.sleep(3600)
"""


class Target:
    """One stack with its servers, a held connection, and the target of the attack."""

    def __init__(self, lab, stack):
        self.lab, self.stack = lab, stack
        hold = lab.file("hold.py", HOLD)
        server = lab.start(stack.on_server(0, "python3", hold, "serve"))
        self.iperf = lab.start(stack.on_server(0, "iperf3", "-s", "-p", "5201"))
        wait_for(stack, 1, server, 80)
        wait_for(stack, 1, self.iperf, 5201)
        lab.start(stack.on_client(1, "python3", hold, SERVER, str(HELD_PORT)))
        said = sh(*stack.on_client(1, "ip", "neigh", "show", SERVER)).split()
        self.interface, self.station = said[said.index("dev") + 1], said[said.index("lladdr") + 1]
        self.sender = lab.compile("attacks")

    def attack(self, kind, rate, seconds, port, peer_port):
        arguments = [self.interface, kind, rate, seconds, self.station, SERVER, port, CLIENT, peer_port]
        return self.lab.start(self.stack.on_client(1, self.sender, *map(str, arguments)))

    def cost(self, kind, rate, seconds):
        """Returns the CPU microseconds per frame, and the share of the frames that could be sent."""
        with Measured(self.lab) as run:
            sent = finished(self.attack(kind, rate, seconds, 80, HELD_PORT))
            time.sleep(0.1)
        return run.cpu / max(sent, 1) * 1e6, sent / (rate * seconds)

    def stream(self, seconds, attack=None):
        """Returns the gigabits a second of a good stream to the stack, beside `attack` (a kind and a rate) if there is one."""
        process = attack and self.attack(*attack, seconds + 2, 5201, STREAM_PORT)
        command = ["iperf3", "-c", SERVER, "-p", "5201", "--cport", str(STREAM_PORT), "-t", str(int(seconds)), "-J"]
        report = {}
        for _ in range(5):
            try:
                report = json.loads(sh(*self.stack.on_client(1, *command), deadline=20, check=False))
            except ValueError:
                report = {}
            except subprocess.TimeoutExpired:
                # Nothing got through.
                break
            if "sum_received" in report.get("end", {}):
                break
            # The attack before this one has not quite ended.
            time.sleep(0.3)
        if process:
            finished(process)
        return report.get("end", {}).get("sum_received", {}).get("bits_per_second", 0) / 1e9


def finished(process):
    """Returns how many frames a sender has sent."""
    if process.wait(60):
        process.log.seek(0)
        raise Failure(process.log.read().decode())
    process.log.seek(0)
    return int(process.log.read().split()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=40000)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--configuration", default="TS2LS2CM2")
    parser.add_argument("--no-stream", action="store_true", help="only the CPU time per frame")
    parser.add_argument("kinds", nargs="*")
    options = parser.parse_args()
    with Lab() as lab:
        every = sh(lab.compile("attacks"), "kinds").split()
        kinds = [kind for kind in every if kind in options.kinds or not options.kinds]
        if set(options.kinds) - set(every):
            sys.exit(f"kinds: {' '.join(every)}")
        # The setting is the namespace's own, so that no row depends on the machine's.
        targets = {"kernel": Target(lab, Kernel(lab)), "atoll": Target(lab, Atoll(lab, options.configuration, cpu=0))}
        found = {(kind, name): {"cost": [], "sent": [], "free": [], "beside": []} for kind in ["nothing", *kinds] for name in targets}
        for number in range(options.rounds):
            for kind in dict.fromkeys(["nothing", *kinds]):
                for name, target in targets.items():
                    mine = found[kind, name]
                    cost, sent = target.cost(kind, options.rate, options.seconds)
                    mine["cost"].append(cost)
                    mine["sent"].append(sent)
                    if not options.no_stream:
                        mine["free"].append(target.stream(1))
                        mine["beside"].append(target.stream(1, (kind, options.rate)))
                say(f"round {number + 1}: {kind} done")
        print(f"{options.rate} frames/s, {options.rounds} rounds; us of CPU per frame, of all and beyond `nothing`; Gb/s of a good stream")
        print(f"{'kind':16}{'kernel':>14}{'atoll':>14}{'kernel Gb/s':>18}{'atoll Gb/s':>18}{'sent':>12}")
        for kind in dict.fromkeys(["nothing", *kinds]):
            cells, rates, sents = [], [], []
            for name in targets:
                middle = {key: statistics.median(values) if values else 0 for key, values in found[kind, name].items()}
                base = statistics.median(found["nothing", name]["cost"])
                cells.append(f"{middle['cost']:6.2f} {middle['cost'] - base:+6.2f}")
                rates.append(f"{middle['free']:6.2f} -> {middle['beside']:6.2f}")
                sents.append(f"{middle['sent']:.0%}")
            print(f"{kind:16}{cells[0]:>14}{cells[1]:>14}{rates[0]:>18}{rates[1]:>18}{' '.join(sents):>12}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(str(failure))
