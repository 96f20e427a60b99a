"""Runs a command again and again for a time, and says how often it ended well: repeat.py SECONDS COMMAND...

A run that has begun is finished; one that fails ends it all. For programs that have no load generator of their own (programs.py).
"""
import subprocess
import sys
import time


def main():
    seconds, command = float(sys.argv[1]), sys.argv[2:]
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"status {done.returncode}: {done.stdout.decode(errors='replace')[-1000:]}")
        count += 1
    print(f"{count} runs in {time.monotonic() - began:.6f} s")


if __name__ == "__main__":
    main()
