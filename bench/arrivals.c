/* Connections at a constant rate, whatever becomes of those before: arrivals ADDRESS PORT RATE SECONDS [PATH].
 *
 * Each sends a byte and waits for a byte, which names the worker, and the close; with a path, it asks for that page by HTTP/1.0. Prints
 * JSON: microseconds of each from connect to close, how many each worker has served (not with a path), how many failed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define OPEN_MAX_ 60000
#define GRACE 20.0

struct connection {
    double began;
    int sent, worker;
};

static struct connection connections[OPEN_MAX_ + 64];
static long served[64], failed, done;
static unsigned *micros;
static char request[512] = "?";
static size_t request_len = 1;
static int is_http;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void end(int fd, int is_failed)
{
    struct connection *c = &connections[fd];
    if (is_failed || c->worker < 0) {
        failed++;
    } else {
        served[c->worker]++;
        micros[done++] = (unsigned)((now() - c->began) * 1e6);
    }
    close(fd);
}

static void handle(int fd, unsigned events)
{
    struct connection *c = &connections[fd];
    char answer[2048];
    if (!c->sent && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
        if (send(fd, request, request_len, MSG_NOSIGNAL) != (ssize_t)request_len) {
            end(fd, 1);
            return;
        }
        c->sent = 1;
    }
    for (;;) {
        ssize_t got = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
        if (got > 0 && is_http && c->worker < 0) {
            /* The status comes in one piece. */
            c->worker = got > 12 && !memcmp(answer + 8, " 200", 4) ? 0 : 1;
            if (c->worker) {
                end(fd, 1);
                return;
            }
        } else if (got > 0 && is_http) {
            continue;
        } else if (got == 1 && answer[0] >= '0' && answer[0] < '0' + 64) {
            c->worker = answer[0] - '0';
        } else if (got == 0) {
            end(fd, 0);
            return;
        } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        } else {
            end(fd, 1);
            return;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    double rate = atof(argv[3]), seconds = atof(argv[4]);
    long count = (long)(rate * seconds), opened = 0;
    if (argc > 5) {
        is_http = 1;
        request_len = (size_t)snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", argv[5]);
    }
    struct rlimit limit = { OPEN_MAX_, OPEN_MAX_ };
    setrlimit(RLIMIT_NOFILE, &limit);
    inet_pton(AF_INET, argv[1], &to.sin_addr);
    micros = calloc((size_t)count + 1, sizeof *micros);
    int epoll = epoll_create1(0);
    double began = now();
    while (done + failed < count && now() < began + seconds + GRACE) {
        while (opened < count && now() >= began + opened / rate) {
            opened++;
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            if (fd < 0 || fd >= OPEN_MAX_) {
                failed++;
                if (fd >= 0)
                    close(fd);
                continue;
            }
            connections[fd] = (struct connection){ now(), 0, -1 };
            struct epoll_event event = { EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, { .fd = fd } };
            if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) {
                end(fd, 1);
                continue;
            }
            epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
        }
        double next = began + opened / rate - now();
        struct epoll_event events[256];
        int wait = opened < count ? (next > 0.001 ? 1 : 0) : 100;
        int ready = epoll_wait(epoll, events, 256, wait);
        for (int i = 0; i < ready; i++)
            handle(events[i].data.fd, events[i].events);
    }
    printf("{\"micros\":[");
    for (long i = 0; i < done; i++)
        printf("%s%u", i ? "," : "", micros[i]);
    printf("],\"served\":[");
    int last = 63;
    while (last > 0 && !served[last])
        last--;
    for (int i = 0; i <= last; i++)
        printf("%s%ld", i ? "," : "", served[i]);
    printf("],\"failed\":%ld}\n", failed + (count - done - failed));
    return 0;
}
