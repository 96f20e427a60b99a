"""Programs that limit their address space: address_space.py CASE prints what becomes of it."""
import ctypes
import errno
import mmap
import os
import resource
import socket
import subprocess
import sys
import threading

MIB = 1 << 20
AS = resource.RLIMIT_AS
CASE = sys.argv[1]


def used():
    with open('/proc/self/statm') as statm:
        return int(statm.read().split()[0]) * 4096


def connection():
    """A connection of this process to itself: the listener and both ends."""
    listener = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(listener.getsockname())
    return listener, client, listener.accept()[0]


def exchange(one, other, size=MIB):
    """Sends so many octets each way; says whether they arrive."""
    text = os.urandom(size)
    for sender, receiver in ((one, other), (other, one)):
        thread = threading.Thread(target=sender.sendall, args=(text,))
        thread.start()
        got = bytearray()
        while len(got) < size:
            got += receiver.recv(65536)
        thread.join()
        if got != text:
            return 'other octets'
    return 'exchanged'


def maps(size):
    """Says whether so much more can be mapped."""
    try:
        mmap.mmap(-1, size).close()
        return 'fits'
    except OSError as error:
        return errno.errorcode[error.errno]


def shown():
    return ['infinity' if limit == resource.RLIM_INFINITY else limit // MIB for limit in resource.getrlimit(AS)]


def before():
    """The limit is there before the first socket, as by `ulimit -v`, and is the hard one, too."""
    resource.setrlimit(AS, (256 * MIB, 256 * MIB))
    _, one, other = connection()
    print(shown(), exchange(one, other))
    print('100 MiB', maps(100 * MIB), '250 MiB', maps(250 * MIB))


def after():
    """The limit comes when there are sockets, and is the program's own: dovecot's, vsftpd's."""
    _, one, other = connection()
    resource.setrlimit(AS, (256 * MIB, 300 * MIB))
    print(shown(), exchange(one, other))
    print('100 MiB', maps(100 * MIB), '260 MiB', maps(260 * MIB))
    try:
        resource.setrlimit(AS, (301 * MIB, 300 * MIB))
    except ValueError:
        print('soft above hard: EINVAL')
    # The soft limit may reach the hard one.
    resource.setrlimit(AS, (300 * MIB, 300 * MIB))
    print(shown(), resource.prlimit(0, AS)[0] // MIB, resource.prlimit(os.getpid(), AS)[1] // MIB)


def heirs():
    """Children and the next program have the sockets and the limit."""
    listener, one, other = connection()
    resource.setrlimit(AS, (256 * MIB, 300 * MIB))
    for child in range(3):
        if os.fork() == 0:
            print('child', shown(), exchange(one, other), maps(260 * MIB), flush=True)
            os._exit(0)
        print(os.wait()[1])
    print('parent', shown(), exchange(one, other), maps(260 * MIB), flush=True)
    program = [sys.executable, __file__, 'heir', str(one.fileno()), str(other.fileno())]
    subprocess.run(program, pass_fds=(one.fileno(), other.fileno()), check=True)
    print('parent', shown(), exchange(one, other), flush=True)
    subprocess.run(['/bin/sh', '-c', 'echo sh $(ulimit -S -v)'], check=True)
    for end in (one, other):
        os.set_inheritable(end.fileno(), True)
    os.execv(program[0], program)


def heir():
    one, other = (socket.socket(fileno=int(number)) for number in sys.argv[2:4])
    print('heir', shown(), exchange(one, other), maps(260 * MIB), flush=True)
    if os.fork() == 0:
        print('child', shown(), exchange(one, other), flush=True)
        os._exit(0)
    print(os.wait()[1])
    one.detach(), other.detach()


def receives():
    """A process with a limit is sent a connection by one without, as vsftpd's sessions are."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        kept = connection()
        resource.setrlimit(AS, (256 * MIB, 256 * MIB))
        theirs.send(b'limited')
        ends = [socket.socket(fileno=number) for number in socket.recv_fds(theirs, 1, 2)[1]]
        print('receiver', shown(), exchange(*ends), exchange(*kept[1:]), maps(260 * MIB), flush=True)
        os._exit(0)
    theirs.close()
    ours.recv(99)
    _, one, other = connection()
    socket.send_fds(ours, [b'x'], [one.fileno(), other.fileno()])
    print(os.wait()[1])


def nobody():
    """Without privilege the hard limit cannot grow, and the soft one may reach it."""
    _, one, other = connection()
    resource.setrlimit(AS, (256 * MIB, 300 * MIB))
    os.setuid(65534)
    resource.setrlimit(AS, (200 * MIB, 280 * MIB))
    print(shown(), exchange(one, other))
    resource.setrlimit(AS, (280 * MIB, 280 * MIB))
    print(shown())
    try:
        resource.setrlimit(AS, (280 * MIB, 2 ** 40))
    except (ValueError, PermissionError):
        print('more than the hard limit: EPERM', shown())


def locked():
    """mlockall(MCL_CURRENT | MCL_FUTURE) takes no more memory than it has to."""
    _, one, other = connection()
    result = ctypes.CDLL(None).mlockall(3)
    print(result, exchange(one, other))
    with open('/proc/self/status') as status:
        resident = [line.split()[1] for line in status if line.startswith('VmRSS')]
    print('at most 300 MiB' if int(resident[0]) < 300 << 10 else resident)


def none_left():
    """Nothing can be mapped any more: the socket fails, and says so."""
    resource.setrlimit(AS, (used() + 2 * MIB, used() + 2 * MIB))
    try:
        socket.create_server(('127.0.0.1', 0))
        print('works')
    except OSError as error:
        print(errno.errorcode[error.errno])


{case.__name__: case for case in (before, after, heirs, heir, receives, nobody, locked, none_left)}[CASE]()
