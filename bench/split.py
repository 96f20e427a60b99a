"""Attributes CPU time: sorts call stacks of all CPUs into the client's side and the server's.

A process's time is not its side's time: over a veth or a TAP the receiver's work in the kernel runs inside the sender's system
call. So a sample below the kernel's receive path belongs to whoever the packet is for: while one side sends, to the other.
"""
import collections
import os
import re
import subprocess

# Below these functions the kernel works for the receiver of a packet, whichever process runs.
RECEIVE = re.compile(
    r"^(__netif_receive_skb\w*|netif_receive_skb\w*|process_backlog|__napi_poll|net_rx_action|ip_rcv|ip_local_deliver\w*|tcp_v4_rcv)$"
)
CLIENTS = re.compile(r"^(ab|wrk|redis-benchmar|iperf3|pingpong|curl)")


def side_of(command, frames, client_pids, pid):
    """Returns `client` or `server`, and which part of that side."""
    is_client = pid in client_pids
    receiving = any(RECEIVE.match(frame) for frame in frames)
    in_kernel = frames and (frames[-1].startswith(("entry_SYSCALL", "do_syscall", "asm_", "ret_from")) or receiving)
    if command.startswith("swapper"):
        return ("idle", "receive work while idle") if receiving else None
    if receiving:
        return ("server" if is_client else "client", "kernel: receives")
    if is_client:
        return ("client", "kernel" if in_kernel else "program")
    if any(frame.startswith("tun_") for frame in frames):
        return ("server", "kernel: TAP")
    if command.startswith(("atoll", "replica")):
        return ("server", "kernel: other, of the stack" if in_kernel else "stack")
    if any("libatoll" in frame for frame in frames):
        return ("server", "kernel: other, of the application" if in_kernel else "library")
    return ("server", "kernel: other, of the application" if in_kernel else "application")


class Split:
    """Takes samples while a benchmark runs. Use as a context, and call `per_op` afterwards."""

    HERTZ = 2500

    def __init__(self, lab, client_pids):
        self.file = os.path.join(lab.folder, "perf.data")
        self.client_pids = client_pids

    @staticmethod
    def available():
        try:
            return subprocess.run(["perf", "--version"], capture_output=True).returncode == 0
        except OSError:
            return False

    def __enter__(self):
        command = ["perf", "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", str(self.HERTZ), "-o", self.file]
        self.perf = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self.perf.terminate()
        self.perf.wait(30)

    def per_op(self, operations):
        """Returns microseconds per operation by side and part."""
        script = ["perf", "script", "-i", self.file, "-F", "comm,pid,ip,sym,dso"]
        text = subprocess.run(script, capture_output=True, text=True, errors="replace").stdout
        seconds = collections.Counter()
        for sample in text.split("\n\n"):
            lines = sample.strip().splitlines()
            if not lines:
                continue
            head = re.match(r"\s*(.*?)\s+(\d+)", lines[0])
            if not head:
                continue
            # Frames come from the inside out: the last one is the outermost.
            frames = []
            for line in lines[1:]:
                match = re.match(r"\s*[0-9a-f]+\s+(\S+).*\((\S*)\)", line)
                if match:
                    frames.append(match[1] + (" libatoll" if "libatoll" in match[2] else ""))
            kernel = [i for i, line in enumerate(lines[1:]) if "kernel" in line]
            outermost = frames[: kernel[-1] + 1] if kernel else frames
            side = side_of(head[1], outermost, self.client_pids(), int(head[2]))
            if side:
                seconds[side] += 1 / self.HERTZ
        return {f"{side}, {part}": round(time * 1e6 / operations, 2) for (side, part), time in sorted(seconds.items())}
