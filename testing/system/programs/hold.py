"""hold.py PID: holds a process as a debugger does, says "held", and ends when the process has ended. ptrace(2)."""
import ctypes
import os
import sys

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


def main():
    pid = int(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(ctypes.c_long(request), pid, None, None) != 0:
            sys.exit(os.strerror(ctypes.get_errno()))
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status), status
    print("held", flush=True)
    # Its parent learns of its end only after this process.
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
