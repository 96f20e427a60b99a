/* Do signals at random instructions lose an octet, or hang a thread? signals COUNT [cancelled-calls-lose]
 *
 * Threads exchange streams and datagrams, accept, connect, poll and fork, and are cancelled, while another process and timers send them
 * signals until COUNT handlers have run. The handlers receive, send, accept, poll, make sockets, fork, and leave by siglongjmp. Every
 * octet is checked, and a thread that makes no progress for a minute is a failure. Prints what was checked, and nothing that differs
 * from run to run; on standard error how much was done. Everything is on the loopback. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 32, STALL_S = 60, HANDLER_CONNECTIONS = 4, MESSAGE_MAX = 3000, SIGNALS_OF_STEP = 8 };

/* What the process that sends signals knows of the threads, in memory that it shares. */
static struct shared {
    atomic_int thread[THREADS_MAX], jumps[THREADS_MAX];
    atomic_ulong progress[THREADS_MAX];
    atomic_long handled;
    atomic_int is_over;
} *shared;

static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("FAILED: ");
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

#define MUST(call) must((long)(call), #call, __LINE__)
static long must(long result, const char *what, int line)
{
    if (result < 0)
        fail("line %d: %s: %s", line, what, strerror(errno));
    return result;
}

/* A call that a handler without SA_RESTART may have interrupted. */
#define AGAIN(call) ({ long again; do again = (long)(call); while (again < 0 && errno == EINTR); MUST(again); })

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* ---- sockets ---- */

static struct sockaddr_in name_of(int fd)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    MUST(getsockname(fd, (struct sockaddr *)&address, &len));
    return address;
}

static int bound(int type)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = MUST(socket(AF_INET, type, 0));
    MUST(bind(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static int listening(void)
{
    int fd = bound(SOCK_STREAM);
    MUST(listen(fd, 128));
    return fd;
}

/* connect(2): interrupted, it goes on by itself, and the socket becomes writable. */
static void connect_to(int fd, struct sockaddr_in address)
{
    if (!connect(fd, (struct sockaddr *)&address, sizeof address))
        return;
    if (errno != EINTR && errno != EINPROGRESS)
        fail("connect: %s", strerror(errno));
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    AGAIN(poll(&entry, 1, -1));
    int error = 0;
    socklen_t len = sizeof error;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    if (error)
        fail("connect: %s", strerror(error));
}

static void make_pair(int ends[2])
{
    int server = listening();
    ends[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
    connect_to(ends[0], name_of(server));
    ends[1] = AGAIN(accept(server, NULL, NULL));
    MUST(close(server));
}

/* Octet `at` of stream `number`. */
static unsigned char octet(uint64_t number, uint64_t at)
{
    uint64_t word = (at + 1) * 0x9e3779b97f4a7c15u + number * 0xff51afd7ed558ccdu;
    return word >> 56 ^ word >> 24;
}

static void fill(unsigned char *text, size_t len, uint64_t number, uint64_t at)
{
    for (size_t i = 0; i < len; i++)
        text[i] = octet(number, at + i);
}

static void check(const unsigned char *text, size_t len, uint64_t number, uint64_t at)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] != octet(number, at + i))
            fail("stream %lu: octet %lu is another", (unsigned long)number, (unsigned long)(at + i));
}

/* ---- handlers ---- */

/* What the handlers of one thread use. Each signal has its own connection, so that none finds it in the middle of a call. */
struct own {
    int ends[HANDLER_CONNECTIONS][2], datagrams, server;
    uint64_t sent[HANDLER_CONNECTIONS], received[HANDLER_CONNECTIONS], number, random;
    volatile sig_atomic_t may_jump;
    sigjmp_buf back;
};

static __thread struct own *own;

static const int STREAM_SIGNALS[HANDLER_CONNECTIONS] = {SIGUSR1, SIGUSR2, SIGALRM, SIGHUP};
enum { MIXED_SIGNAL = SIGWINCH, FORK_SIGNAL = SIGVTALRM, JUMP_SIGNAL = SIGPROF };

/* Sends and receives on a connection of the thread's. */
static void handle_stream(int signal)
{
    int before = errno, which = 0;
    atomic_fetch_add(&shared->handled, 1);
    if (!own)
        goto out;
    while (STREAM_SIGNALS[which] != signal)
        which++;
    uint64_t number = own->number * HANDLER_CONNECTIONS + which;
    unsigned char text[8];
    size_t len = 1 + signal % 7;
    fill(text, len, number, own->sent[which]);
    ssize_t count = send(own->ends[which][0], text, len, MSG_DONTWAIT);
    if (count < 0 && errno != EAGAIN && errno != EINTR)
        fail("a handler's send: %s", strerror(errno));
    own->sent[which] += count > 0 ? count : 0;
    count = recv(own->ends[which][1], text, sizeof text, MSG_DONTWAIT);
    if (!count || (count < 0 && errno != EAGAIN && errno != EINTR))
        fail("a handler's recv: %s", count ? strerror(errno) : "the end");
    if (count > 0)
        check(text, count, number, own->received[which]);
    own->received[which] += count > 0 ? count : 0;
out:
    errno = before;
}

/* A bit of everything. */
static void handle_mixed(int signal)
{
    int before = errno;
    (void)signal;
    atomic_fetch_add(&shared->handled, 1);
    if (!own)
        goto out;
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    char text[16];
    switch (next_random(&own->random) % 6) {
    case 0: {
        struct pollfd entries[2] = {{.fd = own->datagrams, .events = POLLIN}, {.fd = own->server, .events = POLLIN}};
        poll(entries, 2, 0);
        break;
    }
    case 1: {
        int fd = accept4(own->server, NULL, NULL, SOCK_NONBLOCK);
        if (fd >= 0)
            fail("a handler has accepted what nobody has connected");
        break;
    }
    case 2:
        address = name_of(own->datagrams);
        sendto(own->datagrams, "datagram", 8, MSG_DONTWAIT, (struct sockaddr *)&address, len);
        break;
    case 3:
        while (recvfrom(own->datagrams, text, sizeof text, MSG_DONTWAIT, (struct sockaddr *)&address, &len) == 8)
            if (memcmp(text, "datagram", 8))
                fail("a handler's datagram is another");
        break;
    case 4: {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        if (fd < 0)
            fail("a handler's socket: %s", strerror(errno));
        close(fd);
        break;
    }
    default: {
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        if (set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, own->datagrams, &event))
            epoll_wait(set, &event, 1, 0);
        close(set);
    }
    }
out:
    errno = before;
}

static void handle_fork(int signal)
{
    int before = errno, status = 1;
    (void)signal;
    atomic_fetch_add(&shared->handled, 1);
    /* fork(3) takes locks in the C library, which a handler may interrupt (glibc bug 4737). */
    pid_t child = _Fork();
    if (child < 0)
        fail("a handler's fork: %s", strerror(errno));
    if (!child) {
        /* What it inherits can be looked at, and goes with it. */
        struct pollfd entry = {.fd = own ? own->datagrams : -1, .events = POLLIN};
        _exit(poll(&entry, 1, 0) < 0 ? 3 : 0);
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail("a handler's waitpid: %s", strerror(errno));
    if (status)
        fail("the child of a handler ends with %x", status);
    errno = before;
}

static void handle_jump(int signal)
{
    (void)signal;
    atomic_fetch_add(&shared->handled, 1);
    if (own && own->may_jump) {
        own->may_jump = 0;
        siglongjmp(own->back, 1);
    }
}

static void install(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    /* Handlers are not left in the middle of what they count. */
    sigaddset(&action.sa_mask, JUMP_SIGNAL);
    MUST(sigaction(signal, &action, NULL));
}

/* ---- threads ---- */

static struct worker {
    const char *name;
    void (*run)(struct worker *);
    int fds[2], place;
    uint64_t number, amount;
    pthread_t thread;
} workers[THREADS_MAX];
static int worker_count;
static atomic_int is_ending;

/* Tells the other process of the thread, and prepares what its handlers use. */
static void begin(struct worker *worker, int jumps)
{
    struct own *mine = calloc(1, sizeof *mine);
    for (int i = 0; i < HANDLER_CONNECTIONS; i++)
        make_pair(mine->ends[i]);
    mine->datagrams = bound(SOCK_DGRAM);
    mine->server = listening();
    MUST(fcntl(mine->server, F_SETFL, O_NONBLOCK));
    mine->number = 1000 + worker->place;
    mine->random = 88172645463325252u + worker->place;
    own = mine;
    atomic_store(&shared->jumps[worker->place], jumps);
    atomic_store(&shared->thread[worker->place], syscall(SYS_gettid));
}

/* No signal is sent to the thread any more, but one may come. What handlers have sent is all there. */
static void end(struct worker *worker)
{
    atomic_store(&shared->thread[worker->place], 0);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (int i = 0; i < HANDLER_CONNECTIONS; i++) {
        unsigned char text[64];
        MUST(shutdown(own->ends[i][0], SHUT_WR));
        for (;;) {
            ssize_t count = MUST(recv(own->ends[i][1], text, sizeof text, 0));
            if (!count)
                break;
            check(text, count, own->number * HANDLER_CONNECTIONS + i, own->received[i]);
            own->received[i] += count;
        }
        if (own->sent[i] != own->received[i])
            fail("%s: its handlers have sent %lu octets and received %lu", worker->name, (unsigned long)own->sent[i],
                 (unsigned long)own->received[i]);
        MUST(close(own->ends[i][0]));
        MUST(close(own->ends[i][1]));
    }
    MUST(close(own->datagrams));
    MUST(close(own->server));
    struct own *mine = own;
    own = NULL;
    free(mine);
}

static void step(struct worker *worker)
{
    atomic_fetch_add(&shared->progress[worker->place], 1);
}

static void write_stream(struct worker *worker)
{
    uint64_t random = worker->number + 7, at = 0;
    unsigned char text[MESSAGE_MAX];
    while (!atomic_load(&is_ending)) {
        size_t len = 1 + next_random(&random) % sizeof text;
        fill(text, len, worker->number, at);
        ssize_t count;
        struct iovec parts[2] = {{text, len / 2}, {text + len / 2, len - len / 2}};
        struct pollfd entry = {.fd = worker->fds[0], .events = POLLOUT};
        switch (next_random(&random) % 4) {
        case 0:
            count = send(worker->fds[0], text, len, 0);
            break;
        case 1:
            count = writev(worker->fds[0], parts, 2);
            break;
        case 2:
            count = send(worker->fds[0], text, len, MSG_DONTWAIT);
            break;
        default:
            poll(&entry, 1, 1000);
            count = write(worker->fds[0], text, len);
        }
        if (count < 0 && errno != EINTR && errno != EAGAIN)
            fail("%s: %s", worker->name, strerror(errno));
        at += count > 0 ? count : 0;
        step(worker);
    }
    worker->amount = at;
    MUST(shutdown(worker->fds[0], SHUT_WR));
}

static void read_stream(struct worker *worker)
{
    uint64_t random = worker->number + 11, at = 0;
    unsigned char text[MESSAGE_MAX];
    int set = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, worker->fds[1], &event));
    for (;;) {
        size_t len = 1 + next_random(&random) % sizeof text;
        ssize_t count;
        switch (next_random(&random) % 4) {
        case 0:
            count = recv(worker->fds[1], text, len, 0);
            break;
        case 1:
            count = recv(worker->fds[1], text, len, MSG_WAITALL);
            break;
        case 2:
            epoll_wait(set, &event, 1, 1000);
            count = recv(worker->fds[1], text, len, MSG_DONTWAIT);
            break;
        default:
            count = recv(worker->fds[1], text, len, MSG_PEEK);
            if (count > 0) {
                check(text, count, worker->number, at);
                count = read(worker->fds[1], text, count);
            }
        }
        if (!count)
            break;
        if (count < 0 && errno != EINTR && errno != EAGAIN)
            fail("%s: %s", worker->name, strerror(errno));
        if (count > 0)
            check(text, count, worker->number, at);
        at += count > 0 ? count : 0;
        step(worker);
    }
    worker->amount = at;
    MUST(close(set));
}

/* One datagram is under way at a time, so that none is lost for want of room. */
static void ask_datagrams(struct worker *worker)
{
    unsigned char text[1200], answer[1200];
    uint64_t random = worker->number + 13;
    for (uint64_t at = 0; !atomic_load(&is_ending); at++) {
        size_t len = 8 + next_random(&random) % (sizeof text - 8);
        fill(text, len, worker->number, at);
        AGAIN(send(worker->fds[0], text, len, 0));
        long count = AGAIN(recv(worker->fds[0], answer, sizeof answer, 0));
        if ((size_t)count != len || memcmp(text, answer, len))
            fail("datagram %lu comes back as another", (unsigned long)at);
        step(worker);
    }
    AGAIN(send(worker->fds[0], "", 0, 0));
}

static void answer_datagrams(struct worker *worker)
{
    unsigned char text[1200];
    for (;;) {
        struct pollfd entry = {.fd = worker->fds[1], .events = POLLIN};
        AGAIN(poll(&entry, 1, -1));
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        long count = AGAIN(recvfrom(worker->fds[1], text, sizeof text, 0, (struct sockaddr *)&from, &len));
        if (!count)
            break;
        AGAIN(sendto(worker->fds[1], text, count, 0, (struct sockaddr *)&from, len));
        step(worker);
    }
}

static void connect_often(struct worker *worker)
{
    struct sockaddr_in address = name_of(worker->fds[1]);
    unsigned char text[64];
    uint64_t done = 0;
    for (; !atomic_load(&is_ending); done++) {
        int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
        connect_to(fd, address);
        fill(text, sizeof text, done, 0);
        size_t at = 0;
        while (at < sizeof text)
            at += AGAIN(send(fd, text + at, sizeof text - at, 0));
        /* The answer, and the end. */
        if (AGAIN(recv(fd, text, 1, 0)) != 1 || AGAIN(recv(fd, text, 1, 0)) != 0)
            fail("the answer of a connection is another");
        MUST(close(fd));
        step(worker);
    }
    worker->amount = done;
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    connect_to(fd, address);
    MUST(close(fd));
}

static void accept_often(struct worker *worker)
{
    uint64_t done = 0;
    int set = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, worker->fds[1], &event));
    for (;; done++) {
        if (done % 2)
            AGAIN(epoll_wait(set, &event, 1, -1));
        int fd = AGAIN(accept4(worker->fds[1], NULL, NULL, SOCK_CLOEXEC));
        unsigned char text[64];
        size_t at = 0;
        while (at < sizeof text) {
            long count = AGAIN(recv(fd, text + at, sizeof text - at, 0));
            if (!count)
                break;
            at += count;
        }
        if (!at) {
            MUST(close(fd));
            break;
        }
        check(text, at, done, 0);
        AGAIN(send(fd, "!", 1, 0));
        MUST(close(fd));
        step(worker);
    }
    worker->amount = done;
    MUST(close(set));
}

/* Leaves calls by siglongjmp. What such a call has done is not known, but what it holds is: nothing. When its sockets are closed, the
 * other end hears the end, and their numbers are free again. */
static void leave_calls(struct worker *worker)
{
    static int ends[2], server, datagrams;
    static volatile int are_open, step_number;
    server = listening();
    datagrams = bound(SOCK_DGRAM);
    int first = dup(server);
    MUST(close(first));
    are_open = 0;
    while (!atomic_load(&is_ending)) {
        if (sigsetjmp(own->back, 1) == 0) {
            if (!are_open) {
                make_pair(ends);
                are_open = 1;
            }
            char text[100] = "";
            struct pollfd entries[2] = {{.fd = ends[1], .events = POLLIN}, {.fd = datagrams, .events = POLLIN}};
            fd_set set;
            FD_ZERO(&set);
            FD_SET(ends[1], &set);
            struct timeval moment = {1, 0};
            own->may_jump = 1;
            switch (step_number++ % 7) {
            case 0:
                recv(ends[1], text, sizeof text, 0);
                break;
            case 1:
                poll(entries, 2, 1000);
                break;
            case 2:
                accept(server, NULL, NULL);
                break;
            case 3:
                for (int i = 0; i < 100; i++)
                    if (send(ends[0], text, sizeof text, MSG_DONTWAIT) > 0)
                        recv(ends[1], text, sizeof text, MSG_DONTWAIT);
                break;
            case 4:
                select(ends[1] + 1, &set, NULL, NULL, &moment);
                break;
            case 5:
                recvfrom(datagrams, text, sizeof text, 0, NULL, NULL);
                break;
            default:
                for (;;)
                    if (send(ends[0], text, sizeof text, 0) < 0 && errno != EINTR)
                        fail("%s: %s", worker->name, strerror(errno));
            }
            own->may_jump = 0;
        }
        step(worker);
        if (step_number % 7 == 0 && are_open) {
            /* Both ends are ours: the other one hears the end of this one, whatever is on the way. */
            MUST(close(ends[0]));
            char text[4096];
            for (;;) {
                ssize_t count = recv(ends[1], text, sizeof text, 0);
                if (count == 0 || (count < 0 && errno == ECONNRESET))
                    break;
                if (count < 0 && errno != EINTR)
                    fail("%s: %s", worker->name, strerror(errno));
            }
            MUST(close(ends[1]));
            are_open = 0;
        }
    }
    if (are_open) {
        MUST(close(ends[0]));
        MUST(close(ends[1]));
    }
    MUST(close(server));
    MUST(close(datagrams));
}

/* The C library loses what a cancelled call of the kernel's has taken (glibc bug 12683). */
static int may_lose;

static void *sleep_in_a_call(void *argument)
{
    int *fds = argument;
    unsigned char text[1];
    for (;;) {
        struct pollfd entry = {.fd = fds[1], .events = POLLIN};
        if (fds[2] % 2)
            poll(&entry, 1, -1);
        /* A call that has taken the octet returns it; the next one is cancelled. */
        if (recv(fds[1], text, 1, 0) == 1) {
            if (!may_lose)
                check(text, 1, 77, fds[3]);
            fds[3]++;
        }
    }
    return NULL;
}

/* Cancels threads that receive. No octet goes with them. */
static void cancel_threads(struct worker *worker)
{
    int fds[4] = {0};
    make_pair(fds);
    int sent = 0;
    uint64_t random = 4711;
    for (; !atomic_load(&is_ending); fds[2]++) {
        pthread_t thread;
        int error = pthread_create(&thread, NULL, sleep_in_a_call, fds);
        if (error)
            fail("pthread_create: %s", strerror(error));
        for (int i = next_random(&random) % 4; i > 0; i--, sent++) {
            unsigned char text[1];
            fill(text, 1, 77, sent);
            AGAIN(send(fds[0], text, 1, 0));
        }
        struct timespec moment = {0, next_random(&random) % 300000};
        nanosleep(&moment, NULL);
        pthread_cancel(thread);
        void *result;
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            fail("a thread ends without being cancelled");
        step(worker);
    }
    MUST(shutdown(fds[0], SHUT_WR));
    unsigned char text[1];
    while (AGAIN(recv(fds[1], text, 1, 0)) == 1) {
        if (!may_lose)
            check(text, 1, 77, fds[3]);
        fds[3]++;
    }
    if (fds[3] != sent && !may_lose)
        fail("%d of %d octets came to threads that were cancelled", fds[3], sent);
    MUST(close(fds[0]));
    MUST(close(fds[1]));
}

/* A child under its own timer: exchanges a stream with its parent over what it has inherited. */
static void fork_often(struct worker *worker)
{
    for (int round = 0; !atomic_load(&is_ending); round++) {
        int ends[2];
        make_pair(ends);
        pid_t child = MUST(fork());
        unsigned char text[500];
        if (!child) {
            struct itimerval timer = {.it_value = {0, 300}, .it_interval = {0, 300}};
            own = NULL;
            MUST(close(ends[0]));
            setitimer(ITIMER_REAL, &timer, NULL);
            size_t at = 0;
            while (at < sizeof text) {
                long count = AGAIN(recv(ends[1], text, sizeof text - at, 0));
                if (!count)
                    fail("a child hears the end");
                check(text, count, 99, at);
                at += count;
            }
            fill(text, sizeof text, 98, 0);
            for (at = 0; at < sizeof text;)
                at += AGAIN(send(ends[1], text + at, sizeof text - at, 0));
            _exit(0);
        }
        MUST(close(ends[1]));
        fill(text, sizeof text, 99, 0);
        for (size_t at = 0; at < sizeof text;)
            at += AGAIN(send(ends[0], text + at, sizeof text - at, 0));
        for (size_t at = 0;;) {
            long count = AGAIN(recv(ends[0], text, sizeof text, 0));
            if (!count && at == sizeof text)
                break;
            if (!count)
                fail("a child has said %zu octets", at);
            check(text, count, 98, at);
            at += count;
        }
        int status;
        AGAIN(waitpid(child, &status, 0));
        if (status)
            fail("a child ends with %x", status);
        MUST(close(ends[0]));
        step(worker);
    }
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    begin(worker, worker->run == leave_calls);
    worker->run(worker);
    end(worker);
    return NULL;
}

static struct worker *add(const char *name, void (*run)(struct worker *), int *fds)
{
    struct worker *worker = &workers[worker_count];
    worker->name = name;
    worker->run = run;
    worker->fds[0] = fds ? fds[0] : -1;
    worker->fds[1] = fds ? fds[1] : -1;
    worker->place = worker_count++;
    return worker;
}

/* ---- who sends signals ---- */

/* A thread that makes a step gets some signals, and one that makes none gets few: handlers take all the time otherwise. */
static void send_signals(pid_t to)
{
    uint64_t random = 1234567 + getpid();
    unsigned long seen[THREADS_MAX] = {0}, sent[THREADS_MAX] = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!atomic_load(&shared->is_over)) {
        int place = next_random(&random) % worker_count, thread = atomic_load(&shared->thread[place]);
        uint64_t what = next_random(&random) % 1000;
        int signal = what < 2 ? FORK_SIGNAL : what < 200 ? MIXED_SIGNAL : STREAM_SIGNALS[what % HANDLER_CONNECTIONS];
        if (atomic_load(&shared->jumps[place]) && what > 300)
            signal = JUMP_SIGNAL;
        unsigned long progress = atomic_load(&shared->progress[place]);
        if (progress != seen[place])
            sent[place] = 0;
        seen[place] = progress;
        if (thread && (sent[place]++ < SIGNALS_OF_STEP || next_random(&random) % 256 == 0)) {
            syscall(SYS_tgkill, to, thread, signal);
            for (volatile int i = next_random(&random) % 1000; i > 0; i--)
                ;
        } else {
            sched_yield();
        }
    }
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

/* Waits until the signals were sent. Every thread makes progress meanwhile. */
static void watch(long count)
{
    unsigned long seen[THREADS_MAX] = {0};
    double since[THREADS_MAX];
    for (int i = 0; i < worker_count; i++)
        since[i] = seconds();
    for (int over = 0; !over;) {
        usleep(20000);
        atomic_store(&is_ending, atomic_load(&shared->handled) >= count);
        over = atomic_load(&is_ending);
        for (int i = 0; i < worker_count; i++) {
            unsigned long progress = atomic_load(&shared->progress[i]);
            if (progress != seen[i])
                since[i] = seconds();
            seen[i] = progress;
            if (seconds() - since[i] > STALL_S)
                fail("%s makes no progress", workers[i].name);
        }
    }
}

int main(int count, char **arguments)
{
    long wanted = count > 1 ? atol(arguments[1]) : 50000;
    double start = seconds();
    may_lose = count > 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < HANDLER_CONNECTIONS; i++)
        install(STREAM_SIGNALS[i], handle_stream, i % 2 ? SA_RESTART : 0);
    install(MIXED_SIGNAL, handle_mixed, SA_RESTART);
    install(FORK_SIGNAL, handle_fork, 0);
    install(JUMP_SIGNAL, handle_jump, 0);

    int streams[2][2], datagrams[2], connections[2] = {-1, listening()};
    for (int i = 0; i < 2; i++) {
        make_pair(streams[i]);
        add("a writer", write_stream, streams[i])->number = i;
        add("a reader", read_stream, streams[i])->number = i;
    }
    datagrams[0] = bound(SOCK_DGRAM);
    datagrams[1] = bound(SOCK_DGRAM);
    connect_to(datagrams[0], name_of(datagrams[1]));
    add("who asks by datagrams", ask_datagrams, datagrams)->number = 5;
    add("who answers datagrams", answer_datagrams, datagrams);
    add("who connects", connect_often, connections);
    add("who accepts", accept_often, connections);
    add("who leaves calls by siglongjmp", leave_calls, NULL);
    add("who cancels threads", cancel_threads, NULL);
    add("who forks", fork_often, NULL);

    pid_t self = getpid(), sender = MUST(fork());
    if (!sender) {
        send_signals(self);
        _exit(0);
    }
    /* Only the workers get signals: timers go to the process. */
    sigset_t all, none;
    sigfillset(&all);
    MUST(pthread_sigmask(SIG_SETMASK, &all, &none));
    MUST(pthread_sigmask(SIG_SETMASK, &none, NULL));
    for (int i = 0; i < worker_count; i++)
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]))
            fail("pthread_create");
    MUST(pthread_sigmask(SIG_SETMASK, &all, NULL));
    struct itimerval timer = {.it_value = {0, 700}, .it_interval = {0, 700}};
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
    watch(wanted);

    double ending = seconds();
    for (int i = 0; i < worker_count; i++) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += STALL_S;
        if (pthread_timedjoin_np(workers[i].thread, NULL, &until))
            fail("%s does not come to an end", workers[i].name);
    }
    memset(&timer, 0, sizeof timer);
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
    atomic_store(&shared->is_over, 1);
    int status;
    MUST(waitpid(sender, &status, 0));
    for (int i = 0; i < 4; i += 2)
        if (workers[i].amount != workers[i + 1].amount)
            fail("stream %d: %lu octets sent, %lu received", i / 2, (unsigned long)workers[i].amount, (unsigned long)workers[i + 1].amount);
    if (workers[6].amount != workers[7].amount)
        fail("%lu connections made, %lu accepted", (unsigned long)workers[6].amount, (unsigned long)workers[7].amount);
    printf("all octets of streams, datagrams and connections\n");
    printf("descriptors are back: %s\n", open_descriptors() < 400 ? "yes" : "no");
    for (int i = 0; i < worker_count; i++)
        fprintf(stderr, "%s: %lu steps, %lu\n", workers[i].name, atomic_load(&shared->progress[i]), (unsigned long)workers[i].amount);
    fprintf(stderr, "%ld handlers ran in %.1f s, the end took %.1f s, %d descriptors\n", atomic_load(&shared->handled), ending - start,
            seconds() - ending, open_descriptors());
    return 0;
}
