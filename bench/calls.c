/* What does a call cost, by the C library's functions and by an instruction of the program's own?
 *
 *   calls [ROUNDS [functions]]
 *                       CPU time of this thread for each call, in nanoseconds: least and median of ROUNDS (default 31), each of
 *                       20000 calls; with `functions` nothing is called by an instruction
 *
 * send and recv of one octet on a connection to itself, recv that finds nothing, epoll_wait that finds nothing, and getppid. Run it
 * pinned and with priority, on the kernel and under `atoll run`:
 *
 *   taskset -c 1 nice -n -20 calls; taskset -c 1 nice -n -20 atoll run -- calls
 *
 * How many instructions the calls take, whatever else the machine does, is told by testing/system/programs/stepping.c (`count`). */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../testing/system/programs/instruction.h"

enum { CALLS = 20000, ROUNDS_MAX = 1001 };

static int ends[2], set;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void connect_to_itself(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int one = 1, server = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (struct sockaddr *)&address, len) || listen(server, 1) || getsockname(server, (struct sockaddr *)&address, &len))
        die("a listener");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&address, len))
        die("connect");
    ends[1] = accept(server, NULL, NULL);
    setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (ends[1] < 0 || epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event))
        die("accept");
}

static long send_by_name(void) { return send(ends[0], "x", 1, 0); }
static long send_raw(void) { return raw(SYS_sendto, ends[0], "x", 1, 0, NULL, 0); }
static long empty_by_name(void)
{
    char octet;
    return recv(ends[1], &octet, 1, MSG_DONTWAIT) < 0 ? -errno : 0;
}
static long empty_raw(void)
{
    char octet;
    return raw(SYS_recvfrom, ends[1], &octet, 1, MSG_DONTWAIT, NULL, NULL);
}
static long receive_by_name(void)
{
    char octet;
    return recv(ends[1], &octet, 1, 0);
}
static long receive_raw(void)
{
    char octet;
    return raw(SYS_recvfrom, ends[1], &octet, 1, 0, NULL, NULL);
}
static long poll_by_name(void)
{
    struct epoll_event event;
    return epoll_wait(set, &event, 1, 0);
}
static long poll_raw(void)
{
    struct epoll_event event;
    return raw(SYS_epoll_wait, set, &event, 1, 0);
}
static long parent_by_name(void) { return getppid() > 0; }
static long parent_raw(void) { return raw(SYS_getppid) > 0; }

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All octets that were sent have come. */
static void wait_for(int octets)
{
    char text[CALLS];
    while (recv(ends[1], text, sizeof text, MSG_PEEK) < octets)
        poll(NULL, 0, 1);
}


static const struct {
    const char *name;
    long (*by_name)(void), (*raw)(void);
    long expected;
} KINDS[] = {
    {"send of 1 octet", send_by_name, send_raw, 1},          {"recv of 1 octet", receive_by_name, receive_raw, 1},
    {"recv that finds nothing", empty_by_name, empty_raw, -EAGAIN}, {"epoll_wait that finds nothing", poll_by_name, poll_raw, 0},
    {"getppid", parent_by_name, parent_raw, 1},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

static double time_of(long (*call)(void), long expected, const char *name)
{
    double start = nanoseconds();
    for (int i = 0; i < CALLS; i++) {
        long result = call();
        if (result != expected) {
            fprintf(stderr, "%s: %ld\n", name, result);
            exit(1);
        }
    }
    return (nanoseconds() - start) / CALLS;
}

int main(int count, char **arguments)
{
    static double times[KIND_COUNT][2][ROUNDS_MAX];
    int rounds = count > 1 ? atoi(arguments[1]) : 31;
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return 2;
    int ways = count > 2 ? 1 : 2;
    connect_to_itself();
    for (int round = 0; round < rounds; round++)
        for (int way = 0; way < ways; way++)
            for (int kind = 0; kind < KIND_COUNT; kind++) {
                if (kind == 1)
                    wait_for(CALLS);
                times[kind][way][round] = time_of(way ? KINDS[kind].raw : KINDS[kind].by_name, KINDS[kind].expected, KINDS[kind].name);
            }
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int way = 0; way < ways; way++) {
            double *all = times[kind][way];
            qsort(all, rounds, sizeof *all, by_value);
            printf("%-30s %-14s least %8.1f median %8.1f ns\n", KINDS[kind].name, way ? "instruction" : "function", all[0], all[rounds / 2]);
        }
    return 0;
}
