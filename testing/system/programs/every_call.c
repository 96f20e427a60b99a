/* Makes every socket call, with good and bad arguments, and asks for and sets every option, on sockets of each kind and
 * state. Prints a line for each: STATE|CALL: RESULTS. What it prints must be the same on every stack, but for what
 * every_call.rs lists.
 *
 * every_call OWN4 OWN6 SILENT4 SILENT6 PORT options|calls
 *     The addresses are the stack's own, and those of a host that leaves a SYN to this port without an answer. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Bad arguments are meant. */
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wattribute-warning"
#pragma GCC diagnostic ignored "-Wunused-result"

enum state {
    FRESH, BOUND, LISTENING, CONNECTING, CONNECTED, ACCEPTED, SHUT_WRITING, SHUT_READING, PEER_SHUT, PEER_RESET, PEER_CLOSED,
    REFUSED, STATES
};
static const char *const STATE_NAMES[STATES] = {
    "fresh", "bound", "listening", "connecting", "connected", "accepted", "shut-for-writing", "shut-for-reading", "peer-shut",
    "reset", "peer-closed", "refused",
};

static struct sockaddr_storage own[2], silent[2], listening[2], nobody[2];
static int listener[2];
/* The socket that calls are about, its peer, an empty file, and both ends of a pipe. */
static int s, peer, file, pipes[2], epoll;
static int is_udp, is_v6;
static char octets[66000];

static void must(long result, const char *what)
{
    if (result < 0) {
        printf("%s: %s\n", what, strerrorname_np(errno));
        fflush(stdout);
        _exit(1);
    }
}
#define MUST(call) must((call), #call)

static socklen_t address_len(void)
{
    return is_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void bind_to(int fd, const struct sockaddr_storage *to)
{
    MUST(bind(fd, (const struct sockaddr *)to, address_len()));
}

static int new_socket(void)
{
    int fd = socket(is_v6 ? AF_INET6 : AF_INET, is_udp ? SOCK_DGRAM : SOCK_STREAM, 0);
    MUST(fd);
    return fd;
}

static void await(int fd, short events)
{
    struct pollfd one = {fd, events, 0};
    if (poll(&one, 1, 3000) != 1) {
        printf("nothing happened\n");
        fflush(stdout);
        _exit(1);
    }
}

static void leave_peer(int resets)
{
    if (peer < 0)
        return;
    if (resets)
        setsockopt(peer, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(peer);
    peer = -1;
}

static void make_connection(void)
{
    s = new_socket();
    if (is_udp) {
        struct sockaddr_storage name;
        socklen_t len = sizeof name;
        peer = new_socket();
        bind_to(peer, &own[is_v6]);
        MUST(getsockname(peer, (struct sockaddr *)&name, &len));
        MUST(connect(s, (struct sockaddr *)&name, len));
        return;
    }
    MUST(connect(s, (struct sockaddr *)&listening[is_v6], address_len()));
    peer = accept(listener[is_v6], 0, 0);
    MUST(peer);
}

static void make_socket(enum state state)
{
    struct sockaddr *to;
    peer = -1;
    if (state <= CONNECTING || state == REFUSED) {
        s = new_socket();
        if (state == BOUND || state == LISTENING)
            bind_to(s, &own[is_v6]);
        if (state == LISTENING)
            MUST(listen(s, 5));
        MUST(fcntl(s, F_SETFL, O_NONBLOCK));
        to = (struct sockaddr *)(state == REFUSED ? &nobody[is_v6] : &silent[is_v6]);
        if (state == CONNECTING && connect(s, to, address_len()) != -1)
            printf("an answer\n");
        if (state == REFUSED && connect(s, to, address_len()) == -1)
            await(s, POLLOUT);
        return;
    }
    make_connection();
    MUST(fcntl(s, F_SETFL, O_NONBLOCK));
    if (state == ACCEPTED) {
        int other = s;
        s = peer;
        peer = other;
        MUST(fcntl(s, F_SETFL, O_NONBLOCK));
    }
    if (state == SHUT_WRITING) {
        MUST(shutdown(s, SHUT_WR));
        if (!is_udp)
            await(peer, POLLRDHUP);
    }
    if (state == SHUT_READING)
        MUST(shutdown(s, SHUT_RD));
    if (state == PEER_SHUT)
        MUST(shutdown(peer, SHUT_WR));
    if (state == PEER_RESET || state == PEER_CLOSED)
        leave_peer(state == PEER_RESET);
    if (state >= PEER_SHUT && !is_udp)
        await(s, POLLRDHUP);
}

static void leave_socket(void)
{
    /* No connection is left in TIME-WAIT. */
    setsockopt(s, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(s);
    leave_peer(1);
}

static void say(long result)
{
    if (result < 0)
        printf(" %s", strerrorname_np(errno));
    else
        printf(" %ld", result);
}

/* ---- options ---- */

/* Options whose values differ from run to run, or are measured: only their lengths are shown. */
static int is_changing(int level, int number)
{
    static const int all[][2] = {{1, 48}, {1, 55}, {1, 56}, {1, 57}, {1, 71}, {6, 11}, {6, 21}, {6, 24}, {6, 26}, {6, 29}};
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++)
        if (all[at][0] == level && all[at][1] == number)
            return 1;
    return 0;
}

static void get(int level, int number, socklen_t room)
{
    unsigned char value[512] = {0};
    socklen_t len = room;
    if (getsockopt(s, level, number, value, &len) < 0) {
        printf(" %s", strerrorname_np(errno));
        return;
    }
    printf(" %d=", len);
    if (is_changing(level, number))
        printf("..");
    else
        for (socklen_t at = 0; at < len && at < sizeof value; at++)
            printf("%02x", value[at]);
}

static void set(int level, int number, const void *value, socklen_t len)
{
    int result = setsockopt(s, level, number, value, len);
    say(result);
    if (result == 0)
        get(level, number, 4);
}

static void try_option(const char *state, int level, int number)
{
    static const int numbers[] = {1, 0, -1, 2, 100000, 2147483647};
    socklen_t len = 4;
    printf("%s|%d %d:", state, level, number);
    get(level, number, 4);
    get(level, number, 0);
    get(level, number, 1);
    get(level, number, 300);
    get(level, number, -1);
    say(getsockopt(s, level, number, 0, &len));
    say(getsockopt(s, level, number, octets, 0));
    printf(" ;");
    for (unsigned at = 0; at < sizeof numbers / sizeof *numbers; at++)
        set(level, number, &numbers[at], 4);
    printf(" ;");
    set(level, number, "\1", 1);
    set(level, number, "\1\0\0", 3);
    set(level, number, octets, 0);
    set(level, number, 0, 0);
    /* Linux takes it for 0 at the level of IPv6. */
    if (level != IPPROTO_IPV6)
        set(level, number, 0, 4);
    set(level, number, (void *)8, 4);
    set(level, number, octets, -1);
    printf(" ;");
    set(level, number, (int[]){1, 5}, 8);
    set(level, number, (long[]){1, 0}, 16);
    set(level, number, octets, 64);
    set(level, number, octets, 300);
    printf("\n");
}

static void try_options(const char *state, enum state kind)
{
    static const int levels[][2] = {{SOL_SOCKET, 90}, {IPPROTO_IP, 56}, {IPPROTO_TCP, 48}, {IPPROTO_UDP, 106},
        {IPPROTO_IPV6, 84}, {IPPROTO_ICMPV6, 2}, {SOL_RAW, 2}, {300, 2}, {-1, 2}};
    for (unsigned at = 0; at < sizeof levels / sizeof *levels; at++)
        for (int number = 0; number <= levels[at][1]; number++) {
            if (levels[at][0] == IPPROTO_UDP && number > 2 && number < 99)
                continue;
            make_socket(kind);
            try_option(state, levels[at][0], number);
            leave_socket();
        }
}

/* ---- calls ---- */

static long closing(int fd)
{
    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

static struct msghdr *message(size_t count, size_t len, void *control, size_t control_len)
{
    static struct msghdr one;
    static struct iovec parts[1025];
    parts[0] = (struct iovec){octets, len};
    one = (struct msghdr){.msg_iov = parts, .msg_iovlen = count, .msg_control = control, .msg_controllen = control_len};
    return &one;
}

static long send_control(int level, int type, const void *data, size_t len)
{
    static char control[256];
    struct cmsghdr *head = (struct cmsghdr *)control;
    memset(control, 0, sizeof control);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = type};
    memcpy(CMSG_DATA(head), data, len);
    return sendmsg(s, message(1, 1, control, CMSG_SPACE(len)), 0);
}

static long watch(int operation, unsigned events)
{
    struct epoll_event one = {.events = events};
    return epoll_ctl(epoll, operation, s, &one);
}

static long watch_twice(int operation, unsigned events)
{
    struct epoll_event one = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, s, &one);
    return watch(operation, events);
}

static long happened(unsigned events)
{
    struct epoll_event one = {.events = events};
    epoll_ctl(epoll, EPOLL_CTL_ADD, s, &one);
    return epoll_wait(epoll, &one, 1, 0) == 1 ? (long)one.events : 0;
}

static long polled(short events)
{
    struct pollfd one = {s, events, 0};
    long result = poll(&one, 1, 0);
    return result < 0 ? result : one.revents;
}

static long selected(int how, struct timeval *time)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(s, &set);
    return select(s + 1, how == 0 ? &set : 0, how == 1 ? &set : 0, how == 2 ? &set : 0, time);
}

static long number_of(unsigned long request)
{
    int value = -77;
    int result = ioctl(s, request, &value);
    return result < 0 ? result : value == -77 ? 77 : value;
}

static long of_interface(unsigned long request, const char *name)
{
    struct ifreq one = {0};
    strncpy(one.ifr_name, name, sizeof one.ifr_name - 1);
    return ioctl(s, request, &one);
}

static long name_of(int (*call)(int, struct sockaddr *, socklen_t *), long room)
{
    socklen_t len = room;
    int result = call(s, (struct sockaddr *)octets, &len);
    memset(octets, 0, 128);
    return result < 0 ? result : (long)len;
}

#define OTHER_FAMILY (is_v6 ? AF_INET : AF_INET6)

static struct sockaddr *of_family(int family)
{
    static struct sockaddr_storage name;
    name = own[is_v6];
    name.ss_family = family;
    return (struct sockaddr *)&name;
}

static const char *only;
static int begin(const char *state, enum state kind, const char *what)
{
    if (only && !strstr(what, only))
        return 0;
    make_socket(kind);
    printf("%s|%s:", state, what);
    errno = 0;
    return 1;
}

static void end(long result)
{
    say(result);
    printf("\n");
    leave_socket();
}

/* A call with a new socket of this kind. */
#define TRY(what, call) \
    do { \
        if (begin(state, kind, what)) \
            end(call); \
    } while (0)
#define TELL(call) TRY(#call, call)

static void try_names(const char *state, enum state kind)
{
    struct sockaddr *mine = (struct sockaddr *)&own[is_v6];
    socklen_t len = address_len();
    TELL(bind(s, mine, len));
    TELL(bind(s, mine, len - 1));
    TELL(bind(s, mine, 0));
    TELL(bind(s, mine, -1));
    TELL(bind(s, mine, 1));
    TELL(bind(s, mine, 129));
    TELL(bind(s, 0, len));
    TELL(bind(s, 0, 0));
    TELL(bind(s, of_family(AF_UNSPEC), len));
    TELL(bind(s, of_family(AF_UNIX), len));
    TELL(bind(s, of_family(OTHER_FAMILY), len));
    TELL(bind(s, (struct sockaddr *)&silent[is_v6], len));
    TELL(bind(s, (struct sockaddr *)&listening[is_v6], len));
    TELL(listen(s, 0));
    TELL(listen(s, 5));
    TELL(listen(s, -1));
    TELL(closing(accept(s, 0, 0)));
    TELL(closing(accept(s, mine, 0)));
    TELL(closing(accept4(s, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC)));
    TELL(closing(accept4(s, 0, 0, 1)));
    TELL(connect(s, (struct sockaddr *)&nobody[is_v6], len - 1));
    TELL(connect(s, (struct sockaddr *)&nobody[is_v6], 0));
    TELL(connect(s, (struct sockaddr *)&nobody[is_v6], 1));
    TELL(connect(s, (struct sockaddr *)&nobody[is_v6], -1));
    TELL(connect(s, (struct sockaddr *)&silent[is_v6], len));
    TELL(connect(s, 0, len));
    TELL(connect(s, 0, 0));
    TELL(connect(s, of_family(AF_UNSPEC), len));
    TELL(connect(s, of_family(AF_UNIX), len));
    TELL(connect(s, of_family(OTHER_FAMILY), len));
    TELL(shutdown(s, SHUT_RD));
    TELL(shutdown(s, SHUT_WR));
    TELL(shutdown(s, SHUT_RDWR));
    TELL(shutdown(s, 3));
    TELL(shutdown(s, -1));
    TELL(name_of(getsockname, 128));
    TELL(name_of(getsockname, 0));
    TELL(name_of(getsockname, 3));
    TELL(name_of(getsockname, -1));
    TELL(getsockname(s, 0, &(socklen_t){16}));
    TELL(getsockname(s, mine, 0));
    TELL(name_of(getpeername, 128));
    TELL(name_of(getpeername, 0));
    TELL(name_of(getpeername, -1));
    TELL(getpeername(s, 0, &(socklen_t){16}));
    TELL(getpeername(s, mine, 0));
}

static void try_sending(const char *state, enum state kind)
{
    const struct sockaddr *to = (struct sockaddr *)&nobody[is_v6];
    socklen_t len = address_len();
    char what[64];
    for (int bit = 0; bit < 31; bit++) {
        if (1 << bit == MSG_FASTOPEN && !is_udp)
            continue;
        snprintf(what, sizeof what, "send(s, octets, 1, %#x)", 1 << bit);
        TRY(what, send(s, octets, 1, 1 << bit));
    }
    TELL(send(s, octets, 0, 0));
    TELL(send(s, 0, 1, 0));
    TELL(send(s, 0, 0, 0));
    TELL(send(s, octets, 65536, 0) > 0);
    TELL(sendto(s, octets, 1, 0, to, len));
    TELL(sendto(s, octets, 1, 0, to, len - 1));
    TELL(sendto(s, octets, 1, 0, to, 0));
    TELL(sendto(s, octets, 1, 0, to, -1));
    TELL(sendto(s, octets, 1, 0, 0, len));
    TELL(sendto(s, octets, 1, 0, (struct sockaddr *)8, len));
    TELL(sendto(s, octets, 1, 0, of_family(AF_UNSPEC), len));
    TELL(sendto(s, octets, 1, 0, of_family(AF_UNIX), len));
    TELL(sendmsg(s, message(1, 1, 0, 0), 0));
    TELL(sendmsg(s, message(0, 1, 0, 0), 0));
    TELL(sendmsg(s, message(1025, 1, 0, 0), 0));
    TELL(sendmsg(s, message(1, 1, (void *)8, 32), 0));
    TELL(sendmsg(s, message(1, 1, octets, 32), 0));
    TELL(sendmsg(s, message(1, 1, octets, 8), 0));
    TELL(sendmsg(s, 0, 0));
    TELL(sendmsg(s, (struct msghdr *)8, 0));
    TELL(sendmmsg(s, 0, 0, 0));
    TELL(sendmmsg(s, 0, 1, 0));
    TELL(sendmmsg(s, (struct mmsghdr *)message(1, 1, 0, 0), 1, 0));
    TELL(write(s, octets, 1));
    TELL(write(s, octets, 0));
    TELL(write(s, 0, 1));
    TELL(writev(s, message(1, 1, 0, 0)->msg_iov, 1));
    TELL(writev(s, message(1, 1, 0, 0)->msg_iov, 0));
    TELL(writev(s, message(1, 1, 0, 0)->msg_iov, -1));
    TELL(writev(s, message(1, 1, 0, 0)->msg_iov, 1025));
    TELL(writev(s, 0, 1));
    TELL(pwrite(s, octets, 1, 0));
    TELL(pwritev2(s, message(1, 1, 0, 0)->msg_iov, 1, -1, 0));
    TELL(pwritev2(s, message(1, 1, 0, 0)->msg_iov, 1, 0, 0));
    TELL(pwritev2(s, message(1, 1, 0, 0)->msg_iov, 1, -1, RWF_NOWAIT));
}

/* The control messages that programs may send. */
static void try_control(const char *state, enum state kind)
{
    static const int all[][3] = {
        {SOL_SOCKET, SCM_RIGHTS, 4}, {SOL_SOCKET, SCM_CREDENTIALS, 12}, {SOL_SOCKET, SO_MARK, 4}, {SOL_SOCKET, SO_TIMESTAMPING, 4},
        {SOL_SOCKET, 61, 8}, {SOL_SOCKET, SO_PRIORITY, 4}, {SOL_SOCKET, SO_PRIORITY, 2}, {SOL_SOCKET, 80, 4}, {SOL_SOCKET, 99, 4},
        {IPPROTO_IP, IP_PKTINFO, 12}, {IPPROTO_IP, IP_PKTINFO, 4}, {IPPROTO_IP, IP_TTL, 4}, {IPPROTO_IP, IP_TOS, 1},
        {IPPROTO_IP, IP_TOS, 4}, {IPPROTO_IP, IP_TOS, 2}, {IPPROTO_IP, IP_RETOPTS, 4}, {IPPROTO_IP, 52, 4}, {IPPROTO_IP, 99, 4},
        {IPPROTO_IPV6, IPV6_PKTINFO, 20}, {IPPROTO_IPV6, IPV6_PKTINFO, 4}, {IPPROTO_IPV6, 2, 20}, {IPPROTO_IPV6, 11, 4},
        {IPPROTO_IPV6, IPV6_HOPLIMIT, 4}, {IPPROTO_IPV6, IPV6_HOPLIMIT, 1}, {IPPROTO_IPV6, 8, 4}, {IPPROTO_IPV6, IPV6_TCLASS, 4},
        {IPPROTO_IPV6, IPV6_DONTFRAG, 4}, {IPPROTO_IPV6, IPV6_HOPOPTS, 8}, {IPPROTO_IPV6, IPV6_DSTOPTS, 8},
        {IPPROTO_IPV6, IPV6_RTHDR, 8}, {IPPROTO_IPV6, 99, 4}, {IPPROTO_UDP, 103, 2}, {IPPROTO_UDP, 103, 4}, {IPPROTO_UDP, 99, 4},
        {IPPROTO_TCP, 1, 4}, {300, 1, 4},
    };
    static const int one[8] = {1};
    char what[64];
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        snprintf(what, sizeof what, "send_control(%d, %d, %d)", all[at][0], all[at][1], all[at][2]);
        TRY(what, send_control(all[at][0], all[at][1], one, all[at][2]));
    }
}

static void try_receiving(const char *state, enum state kind)
{
    char what[64];
    for (int bit = 0; bit < 31; bit++) {
        snprintf(what, sizeof what, "recv(s, octets, 1, %#x)", 1 << bit);
        TRY(what, recv(s, octets, 1, 1 << bit));
    }
    TELL(recv(s, octets, 0, 0));
    TELL(recv(s, 0, 1, 0));
    TELL(recvfrom(s, octets, 1, 0, (struct sockaddr *)octets, 0));
    TELL(recvfrom(s, octets, 1, 0, (struct sockaddr *)octets, &(socklen_t){-1}));
    TELL(recvmsg(s, message(1, 1, 0, 0), 0));
    TELL(recvmsg(s, message(0, 1, 0, 0), 0));
    TELL(recvmsg(s, message(1025, 1, 0, 0), 0));
    TELL(recvmsg(s, 0, 0));
    TELL(recvmsg(s, message(1, 1, 0, 0), MSG_ERRQUEUE));
    TELL(recvmmsg(s, 0, 0, 0, 0));
    TELL(recvmmsg(s, 0, 1, 0, 0));
    TELL(recvmmsg(s, (struct mmsghdr *)message(1, 1, 0, 0), 1, 0, 0));
    TELL(recvmmsg(s, (struct mmsghdr *)message(1, 1, 0, 0), 1, 0, &(struct timespec){0, 0}));
    TELL(recvmmsg(s, (struct mmsghdr *)message(1, 1, 0, 0), 1, 0, &(struct timespec){0, -1}));
    TELL(recvmmsg(s, (struct mmsghdr *)message(1, 1, 0, 0), 1, 0, &(struct timespec){-1, 0}));
    TELL(read(s, octets, 1));
    TELL(read(s, octets, 0));
    TELL(read(s, 0, 1));
    TELL(readv(s, message(1, 1, 0, 0)->msg_iov, 1));
    TELL(readv(s, message(1, 1, 0, 0)->msg_iov, 0));
    TELL(readv(s, message(1, 1, 0, 0)->msg_iov, -1));
    TELL(readv(s, message(1, 1, 0, 0)->msg_iov, 1025));
    TELL(pread(s, octets, 1, 0));
    TELL(preadv2(s, message(1, 1, 0, 0)->msg_iov, 1, -1, 0));
    TELL(preadv2(s, message(1, 1, 0, 0)->msg_iov, 1, -1, RWF_NOWAIT));
}

static void try_waiting(const char *state, enum state kind)
{
    TELL(polled(0));
    TELL(polled(POLLIN));
    TELL(polled(POLLPRI));
    TELL(polled(POLLOUT));
    TELL(polled(POLLRDHUP));
    TELL(polled(-1));
    TELL(ppoll(&(struct pollfd){s, 0, 0}, 1, &(struct timespec){0, -1}, 0));
    TELL(ppoll(&(struct pollfd){s, 0, 0}, 1, &(struct timespec){-1, 0}, 0));
    TELL(poll(0, 1, 0));
    TELL(selected(0, &(struct timeval){0, 0}));
    TELL(selected(1, &(struct timeval){0, 0}));
    TELL(selected(2, &(struct timeval){0, 0}));
    TELL(selected(0, &(struct timeval){-1, 0}));
    TELL(select(-1, 0, 0, 0, &(struct timeval){0, 0}));
    TELL(pselect(0, 0, 0, 0, &(struct timespec){0, 1000000000}, 0));
    TELL(watch(EPOLL_CTL_ADD, EPOLLIN));
    TELL(watch(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE));
    TELL(watch(EPOLL_CTL_ADD, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT));
    TELL(watch(EPOLL_CTL_ADD, EPOLLRDHUP | EPOLLEXCLUSIVE));
    TELL(watch(EPOLL_CTL_ADD, -1));
    TELL(watch(EPOLL_CTL_MOD, EPOLLIN));
    TELL(watch(EPOLL_CTL_DEL, EPOLLIN));
    TELL(watch(0, EPOLLIN));
    TELL(watch_twice(EPOLL_CTL_ADD, EPOLLIN));
    TELL(watch_twice(EPOLL_CTL_MOD, EPOLLOUT));
    TELL(watch_twice(EPOLL_CTL_MOD, EPOLLOUT | EPOLLEXCLUSIVE));
    TELL(watch_twice(EPOLL_CTL_DEL, 0));
    TELL(epoll_ctl(epoll, EPOLL_CTL_ADD, s, 0));
    TELL(epoll_ctl(s, EPOLL_CTL_ADD, s, &(struct epoll_event){0}));
    TELL(epoll_ctl(s, EPOLL_CTL_ADD, epoll, &(struct epoll_event){0}));
    TELL(happened(EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP));
    TELL(happened(EPOLLIN | EPOLLOUT | EPOLLET));
    TELL(happened(EPOLLONESHOT | EPOLLRDNORM | EPOLLWRNORM | EPOLLMSG));
    TELL(epoll_wait(epoll, (struct epoll_event *)octets, 0, 0));
    TELL(epoll_wait(epoll, (struct epoll_event *)octets, -1, 0));
    TELL(epoll_wait(s, (struct epoll_event *)octets, 1, 0));
}

static void try_requests(const char *state, enum state kind)
{
    TELL(number_of(FIONREAD));
    TELL(number_of(SIOCOUTQ));
    TELL(number_of(SIOCOUTQNSD));
    TELL(number_of(SIOCATMARK));
    TELL(number_of(SIOCGPGRP));
    TELL(number_of(FIOGETOWN));
    TELL(number_of(0x5460));
    TELL(number_of(TCGETS));
    TELL(number_of(FIOCLEX));
    TELL(number_of(FIONCLEX));
    TELL(number_of(FIOQSIZE));
    TELL(number_of(0x89ff));
    TELL(number_of(SIOCPROTOPRIVATE));
    TELL(number_of(SIOCDEVPRIVATE));
    TELL(ioctl(s, FIONBIO, &(int){1}));
    TELL(ioctl(s, FIONBIO, 0));
    TELL(ioctl(s, FIONREAD, 0));
    TELL(ioctl(s, SIOCOUTQ, 0));
    TELL(ioctl(s, SIOCATMARK, 0));
    TELL(ioctl(s, SIOCSPGRP, &(int){getpid()}));
    TELL(ioctl(s, FIOSETOWN, &(int){0}));
    TELL(ioctl(s, FIOSETOWN, &(int){999999999}));
    TELL(ioctl(s, SIOCGSTAMP, octets));
    TELL(ioctl(s, SIOCGSTAMPNS, octets));
    TELL(ioctl(s, SIOCGSTAMP, 0));
    TELL(ioctl(s, SIOCGIFCONF, &(struct ifconf){0}));
    TELL(ioctl(s, SIOCGIFCONF, 0));
    TELL(of_interface(SIOCGIFFLAGS, "lo"));
    TELL(of_interface(SIOCGIFFLAGS, "none"));
    TELL(of_interface(SIOCGIFMTU, "lo"));
    TELL(of_interface(SIOCGIFADDR, "lo"));
    TELL(of_interface(SIOCGIFADDR, "none"));
    TELL(of_interface(SIOCGIFINDEX, "lo"));
    TELL(of_interface(SIOCGIFHWADDR, "lo"));
    TELL(of_interface(SIOCGIFNAME, ""));
    TELL(fcntl(s, F_GETFL));
    TELL(fcntl(s, F_SETFL, 0));
    TELL(fcntl(s, F_SETFL, O_NONBLOCK | O_APPEND));
    TELL(fcntl(s, F_SETFL, O_NONBLOCK | O_DIRECT));
    TELL(fcntl(s, F_GETFD));
    TELL(fcntl(s, F_SETFD, FD_CLOEXEC));
    TELL(closing(fcntl(s, F_DUPFD, 0)));
    TELL(fcntl(s, F_DUPFD, -1));
    TELL(fcntl(s, F_DUPFD, 1 << 30));
    TELL(closing(fcntl(s, F_DUPFD_CLOEXEC, 40)));
    TELL(fcntl(s, F_GETOWN));
    TELL(fcntl(s, F_SETOWN, getpid()));
    TELL(fcntl(s, F_GETSIG));
    TELL(fcntl(s, F_SETSIG, 999));
    TELL(fcntl(s, F_GETLK, &(struct flock){.l_type = F_WRLCK}));
    TELL(fcntl(s, F_SETLK, &(struct flock){.l_type = F_WRLCK}));
    TELL(fcntl(s, F_GETLEASE));
    TELL(fcntl(s, F_SETLEASE, F_RDLCK));
    TELL(fcntl(s, F_NOTIFY, 0));
    TELL(fcntl(s, F_GETPIPE_SZ));
    TELL(fcntl(s, F_GET_SEALS));
    TELL(fcntl(s, F_ADD_SEALS, 0));
    TELL(fcntl(s, 999, 0));
    TELL(closing(dup(s)));
    TELL(dup2(s, s) == s);
    TELL(dup2(s, -1));
    TELL(dup3(s, s, 0));
    TELL(dup3(s, s + 1, 1));
}

static void try_files(const char *state, enum state kind)
{
    struct stat told;
    TELL(lseek(s, 0, SEEK_CUR));
    TELL(lseek(s, 0, 99));
    TELL(fstat(s, &told));
    TELL(fstat(s, &told) < 0 ? -1 : (long)(told.st_mode & S_IFMT));
    TELL(ftruncate(s, 0));
    TELL(fallocate(s, 0, 0, 1));
    TELL(fsync(s));
    TELL(fdatasync(s));
    TELL(posix_fadvise(s, 0, 0, 0));
    TELL(readahead(s, 0, 1));
    TELL(syncfs(s));
    TELL(fchmod(s, 0600));
    TELL(fchdir(s));
    TELL(mmap(0, 4096, PROT_READ, MAP_SHARED, s, 0) == MAP_FAILED ? -1 : 0);
    TELL(closing(openat(s, "x", O_RDONLY)));
    TELL(copy_file_range(file, 0, s, 0, 1, 0));
    TELL(copy_file_range(s, 0, file, 0, 1, 0));
    TELL(tee(s, pipes[1], 1, SPLICE_F_NONBLOCK));
    TELL(vmsplice(s, message(1, 1, 0, 0)->msg_iov, 1, 0));
    TELL(sync_file_range(s, 0, 1, 0));
    TELL(close(s) + close(s));
}

static void try_everything(int does_options)
{
    char state[64];
    for (is_v6 = 0; is_v6 < 2; is_v6++)
        for (is_udp = 0; is_udp < 2; is_udp++)
            for (enum state kind = FRESH; kind < STATES; kind++) {
                int is_streams = kind == LISTENING || kind == CONNECTING || kind == ACCEPTED || kind == PEER_SHUT ||
                    kind == PEER_RESET || kind == PEER_CLOSED || kind == REFUSED;
                if (is_udp && is_streams)
                    continue;
                snprintf(state, sizeof state, "%s%d %s", is_udp ? "udp" : "tcp", is_v6 ? 6 : 4, STATE_NAMES[kind]);
                if (does_options) {
                    try_options(state, kind);
                    continue;
                }
                try_names(state, kind);
                try_sending(state, kind);
                try_control(state, kind);
                try_receiving(state, kind);
                try_waiting(state, kind);
                try_requests(state, kind);
                try_files(state, kind);
            }
}

static struct sockaddr_storage named(const char *addr, int port)
{
    struct sockaddr_storage name = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&name;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&name;
    if (inet_pton(AF_INET, addr, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else {
        inet_pton(AF_INET6, addr, &v6->sin6_addr);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    }
    return name;
}

int main(int argc, char **argv)
{
    if (argc < 7)
        return 2;
    only = argc > 7 ? argv[7] : 0;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGURG, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    file = memfd_create("file", 0);
    MUST(file);
    MUST(ftruncate(file, 100));
    MUST(pipe2(pipes, O_NONBLOCK));
    epoll = epoll_create1(0);
    MUST(epoll);
    for (is_v6 = 0; is_v6 < 2; is_v6++) {
        socklen_t len = sizeof listening[is_v6];
        own[is_v6] = named(argv[1 + is_v6], 0);
        silent[is_v6] = named(argv[3 + is_v6], atoi(argv[5]));
        nobody[is_v6] = named(argv[1 + is_v6], 9);
        listener[is_v6] = new_socket();
        bind_to(listener[is_v6], &own[is_v6]);
        MUST(listen(listener[is_v6], 100));
        MUST(getsockname(listener[is_v6], (struct sockaddr *)&listening[is_v6], &len));
    }
    try_everything(!strcmp(argv[6], "options"));
    return 0;
}
