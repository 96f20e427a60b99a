/* The neighbour that attacks are measured by.
 *
 *   neighbour serve PORT                  sends back what comes, over TCP and UDP
 *   neighbour ask ADDRESS PORT KB_PER_S   checks every octet, until SIGTERM
 *   neighbour busy ADDRESS PORT           is a fair busy program: one stream as fast as it goes, until SIGTERM
 *
 * What `ask` does: one stream of text at KB_PER_S (0: as fast as it goes), of which every octet that comes back is compared; questions
 * on another connection, one a millisecond, whose answers are timed; a connection with one question every 10 ms; and a datagram with
 * a number every 5 ms. It says `going` when each has been answered once. At the end it reads what is still under way, and prints
 * words and numbers in turn. It fails if text was wrong, or anything ended, was refused, or stood still for STALL_MS; after SLOW_MS it says so. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STALL_MS = 30000, SLOW_MS = 5000, PIECE = 65536, AHEAD = 1 << 20, SAMPLES_MAX = 1 << 22, DATAGRAM_MS = 1000 };

static struct sockaddr_in address;
static atomic_int stop, going;
static unsigned long rate;

static unsigned long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000UL + now.tv_nsec / 1000;
}

static void wait_us(unsigned long us)
{
    struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

static void die(const char *what)
{
    printf("WRONG %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static void stopped(int signal)
{
    (void)signal;
    stop = 1;
}

/* The octet at an offset of a stream: no period that a buffer's size divides. */
static unsigned char octet(uint64_t at)
{
    return (unsigned char)((at * 0x9e3779b97f4a7c15ull) >> 56);
}

static void wait_for(int fd, short events, const char *what)
{
    struct pollfd entry = {.fd = fd, .events = events};
    int n = poll(&entry, 1, SLOW_MS);
    if (n == 0) {
        printf("SLOW %s\n", what);
        fflush(stdout);
        n = poll(&entry, 1, STALL_MS - SLOW_MS);
    }
    if (n == 0)
        errno = ETIMEDOUT;
    if (n <= 0 && errno != EINTR)
        die(what);
}

static int connected(const char *what)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0, one = 1;
    socklen_t len = sizeof error;
    if (fd < 0)
        die(what);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
        die(what);
    wait_for(fd, POLLOUT, what);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) {
        errno = error;
        die(what);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Sends a question and waits for its answer. */
static void ask(int fd, uint64_t number, const char *what)
{
    uint64_t question[8], answer[8];
    for (int i = 0; i < 8; i++)
        question[i] = number * 8 + i;
    if (send(fd, question, sizeof question, MSG_NOSIGNAL) != sizeof question)
        die(what);
    for (size_t got = 0; got < sizeof answer;) {
        ssize_t n = recv(fd, (char *)answer + got, sizeof answer - got, 0);
        if (n > 0) {
            got += n;
        } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            wait_for(fd, POLLIN, what);
        } else {
            if (n == 0)
                errno = EPIPE;
            die(what);
        }
    }
    if (memcmp(question, answer, sizeof answer)) {
        errno = EBADMSG;
        die(what);
    }
}

static uint64_t octets, stall_us;

static void *stream(void *unused)
{
    int fd = connected("stream");
    uint64_t sent = 0, got = 0;
    unsigned char piece[PIECE];
    unsigned long start = now_us(), moved = start;
    while (!stop || got < sent) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        uint64_t due = rate ? (now_us() - start) * rate / 1000 + PIECE : UINT64_MAX;
        uint64_t room = stop ? 0 : got + AHEAD - sent;
        if (due < sent + room)
            room = due > sent ? due - sent : 0;
        if (room)
            entry.events |= POLLOUT;
        if (poll(&entry, 1, 2) < 0 && errno != EINTR)
            die("stream poll");
        if (entry.revents & POLLOUT && room) {
            size_t len = room < PIECE ? room : PIECE;
            for (size_t i = 0; i < len; i++)
                piece[i] = octet(sent + i);
            ssize_t n = send(fd, piece, len, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN)
                die("stream send");
            if (sent == got)
                moved = now_us();
            sent += n > 0 ? n : 0;
        }
        if (entry.revents & (POLLIN | POLLHUP | POLLERR)) {
            ssize_t n = recv(fd, piece, sizeof piece, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                die("stream receive");
            for (ssize_t i = 0; i < n; i++)
                if (piece[i] != octet(got + i)) {
                    errno = EBADMSG;
                    die("stream text");
                }
            if (n > 0) {
                if (!got)
                    going++;
                got += n;
                unsigned long now = now_us();
                if (now - moved > stall_us)
                    stall_us = now - moved;
                moved = now;
            }
        }
        if (got < sent && now_us() - moved > STALL_MS * 1000UL) {
            errno = ETIMEDOUT;
            die("stream");
        }
    }
    octets = got;
    close(fd);
    return unused;
}

static uint32_t *samples;
static size_t sample_count;

static void *questions(void *unused)
{
    int fd = connected("questions");
    for (uint64_t number = 1; !stop; number++) {
        unsigned long before = now_us();
        ask(fd, number, "questions");
        if (sample_count < SAMPLES_MAX)
            samples[sample_count++] = now_us() - before;
        if (number == 1)
            going++;
        wait_us(1000);
    }
    close(fd);
    return unused;
}

static uint64_t connections, slowest_us;

static void *brief(void *unused)
{
    for (uint64_t number = 1; !stop; number++) {
        unsigned long before = now_us();
        int fd = connected("brief");
        ask(fd, number, "brief");
        close(fd);
        if (now_us() - before > slowest_us)
            slowest_us = now_us() - before;
        if (++connections == 1)
            going++;
        wait_us(10000);
    }
    return unused;
}

static uint64_t datagrams, lost, strange;

static void *datagram(void *unused)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
        die("datagrams");
    for (uint64_t number = 1; !stop; number++) {
        uint64_t answer = 0;
        if (send(fd, &number, sizeof number, 0) < 0 && errno != ECONNREFUSED)
            die("datagrams");
        unsigned long end = now_us() + DATAGRAM_MS * 1000;
        /* Any other answer comes from another server. */
        while (answer != number && now_us() < end) {
            struct pollfd entry = {.fd = fd, .events = POLLIN};
            if (poll(&entry, 1, DATAGRAM_MS) > 0) {
                ssize_t n = recv(fd, &answer, sizeof answer, MSG_DONTWAIT);
                if (n >= 0 && (n != sizeof answer || answer > number))
                    strange++;
            }
        }
        datagrams++;
        lost += answer != number;
        if (answer == number && going < 4 && datagrams - lost == 1)
            going++;
        wait_us(5000);
    }
    return unused;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int run_ask(void)
{
    void *(*const all[])(void *) = {stream, questions, brief, datagram};
    pthread_t threads[4];
    samples = calloc(SAMPLES_MAX, sizeof *samples);
    unsigned long start = now_us();
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, all[i], NULL))
            die("threads");
    while (going < 4 && !stop)
        wait_us(1000);
    printf("going\n");
    fflush(stdout);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    unsigned long ms = (now_us() - start) / 1000;
    qsort(samples, sample_count, sizeof *samples, compare);
    size_t n = sample_count ? sample_count : 1;
    printf("octets %lu ms %lu kb_per_s %lu stall_ms %lu answers %zu median_us %u p99_us %u max_us %u connections %lu slowest_ms %lu "
           "datagrams %lu lost %lu strange %lu\n",
           octets, ms, octets / (ms ? ms : 1), stall_us / 1000, sample_count, samples[n / 2], samples[n * 99 / 100], samples[n - 1],
           connections, slowest_us / 1000, datagrams, lost, strange);
    return 0;
}

/* ---- the server ---- */

struct echo {
    int fd;
    unsigned first, last;
    unsigned char held[PIECE];
};

static void serve(int port)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    /* Who may share a port is part of what is attacked. */
    setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 1024))
        die("listener");
    if (bind(udp, (struct sockaddr *)&any, sizeof any))
        die("datagrams");
    int all = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(all, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = &udp;
    epoll_ctl(all, EPOLL_CTL_ADD, udp, &event);
    printf("serving\n");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[64];
        int count = epoll_wait(all, events, 64, -1);
        if (count < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == &udp) {
                struct sockaddr_in from;
                socklen_t len = sizeof from;
                char text[2048];
                ssize_t n;
                while ((n = recvfrom(udp, text, sizeof text, 0, (struct sockaddr *)&from, &len)) >= 0) {
                    sendto(udp, text, n, 0, (struct sockaddr *)&from, len);
                    len = sizeof from;
                }
                continue;
            }
            struct echo *echo = events[i].data.ptr;
            if (!echo) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fd < 0)
                    continue;
                echo = calloc(1, sizeof *echo);
                echo->fd = fd;
                event.events = EPOLLIN;
                event.data.ptr = echo;
                epoll_ctl(all, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            /* One piece at a time: it is read when the one before has gone. */
            ssize_t n = 1;
            if (echo->first == echo->last) {
                echo->first = echo->last = 0;
                n = recv(echo->fd, echo->held, PIECE, 0);
                if (n > 0)
                    echo->last = n;
            }
            if (n == 0 || (n < 0 && errno != EAGAIN)) {
                close(echo->fd);
                free(echo);
                continue;
            }
            if (echo->last > echo->first) {
                n = send(echo->fd, echo->held + echo->first, echo->last - echo->first, MSG_NOSIGNAL);
                if (n > 0)
                    echo->first += n;
                else if (errno != EAGAIN) {
                    close(echo->fd);
                    free(echo);
                    continue;
                }
            }
            event.events = echo->last > echo->first ? EPOLLOUT : EPOLLIN;
            event.data.ptr = echo;
            epoll_ctl(all, EPOLL_CTL_MOD, echo->fd, &event);
        }
    }
}

static int busy(void)
{
    int fd = connected("busy");
    unsigned char piece[PIECE] = {0};
    printf("attacking\n");
    fflush(stdout);
    while (!stop) {
        struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
        poll(&entry, 1, 100);
        if (entry.revents & POLLIN && recv(fd, piece, sizeof piece, 0) == 0)
            return 1;
        if (entry.revents & POLLOUT)
            send(fd, piece, sizeof piece, MSG_NOSIGNAL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = stopped};
    sigaction(SIGTERM, &action, NULL);
    if (argc == 3 && !strcmp(argv[1], "serve")) {
        signal(SIGTERM, SIG_DFL);
        serve(atoi(argv[2]));
    }
    if (argc < 4)
        return 2;
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(argv[3]));
    inet_pton(AF_INET, argv[2], &address.sin_addr);
    if (!strcmp(argv[1], "busy"))
        return busy();
    rate = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
    return run_ask();
}
