/* Many connections to a web server, without an event library:
 *
 *   load open  ADDRESS PORT COUNT ROUNDS    opens all, then asks on each, ROUNDS times, and reports the spread of one round
 *   load short ADDRESS PORT COUNT WIDTH     one request per connection, WIDTH at a time
 *
 * Prints words and numbers in turn. Fails only where it could not run; what went wrong with connections is counted. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SILENCE_MS = 20000 };

struct connection {
    int fd;
    unsigned received;
    unsigned long asked_us;
};

static struct sockaddr_in server;
static int events;
static struct connection *connections;
static unsigned long answers, failed, first_error;

static unsigned long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000UL + now.tv_nsec / 1000;
}

static void fail(struct connection *connection, int error)
{
    failed++;
    if (!first_error)
        first_error = error;
    close(connection->fd);
    connection->fd = -1;
}

static int start(unsigned index)
{
    struct connection *connection = &connections[index];
    connection->received = 0;
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connection->fd < 0) {
        perror("socket");
        exit(1);
    }
    struct epoll_event event = {.events = EPOLLOUT, .data.u32 = index};
    epoll_ctl(events, EPOLL_CTL_ADD, connection->fd, &event);
    if (connect(connection->fd, (struct sockaddr *)&server, sizeof server) < 0 && errno != EINPROGRESS) {
        fail(connection, errno);
        return 0;
    }
    return 1;
}

static void watch(unsigned index, unsigned what)
{
    struct epoll_event event = {.events = what, .data.u32 = index};
    epoll_ctl(events, EPOLL_CTL_MOD, connections[index].fd, &event);
}

static int connect_error(int fd)
{
    int error = 0;
    socklen_t len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

static int ask(struct connection *connection, const char *request)
{
    connection->asked_us = now_us();
    ssize_t len = strlen(request);
    if (send(connection->fd, request, len, MSG_NOSIGNAL) == len)
        return 1;
    fail(connection, errno);
    return 0;
}

static int next_events(struct epoll_event *list, int room)
{
    int count = epoll_wait(events, list, room, SILENCE_MS);
    if (count <= 0)
        fprintf(stderr, "nothing has happened for %d ms\n", SILENCE_MS);
    return count;
}

static int by_value(const void *a, const void *b)
{
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return x < y ? -1 : x > y;
}

static void open_many(unsigned count, unsigned rounds)
{
    static const char request[] = "GET /small HTTP/1.1\r\nHost: a\r\n\r\n";
    struct epoll_event list[256];
    unsigned long *waits = calloc(count, sizeof *waits);
    unsigned connected = 0, pending = 0, started = 0, median = 0, slowest = 0;
    while (connected + failed < count) {
        // No more than the backlog at once.
        while (started < count && pending < 512)
            pending += start(started++);
        int ready = pending ? next_events(list, 256) : 0;
        if (ready <= 0)
            break;
        for (int i = 0; i < ready; i++) {
            struct connection *connection = &connections[list[i].data.u32];
            int error = connect_error(connection->fd);
            pending--;
            if (error) {
                fail(connection, error);
            } else {
                connected++;
                watch(list[i].data.u32, 0);
            }
        }
    }
    for (unsigned round = 0; round < rounds; round++) {
        unsigned waiting = 0, served = 0;
        for (unsigned i = 0; i < count; i++) {
            if (connections[i].fd < 0)
                continue;
            watch(i, EPOLLIN);
            waiting += ask(&connections[i], request);
        }
        while (waiting) {
            int ready = next_events(list, 256);
            if (ready <= 0)
                break;
            for (int i = 0; i < ready; i++) {
                struct connection *connection = &connections[list[i].data.u32];
                char answer[4096];
                ssize_t len = recv(connection->fd, answer, sizeof answer, 0);
                if (len <= 0) {
                    fail(connection, len < 0 ? errno : ECONNRESET);
                    waiting--;
                } else if (memmem(answer, len, "tiny", 4)) {
                    watch(list[i].data.u32, 0);
                    waits[served++] = now_us() - connection->asked_us;
                    answers++;
                    waiting--;
                }
            }
        }
        failed += waiting;
        qsort(waits, served, sizeof *waits, by_value);
        if (served && waits[served - 1] > slowest) {
            slowest = waits[served - 1];
            median = waits[served / 2];
        }
    }
    printf("connected %u answers %lu failed %lu first_error %lu median_us %u slowest_us %u\n", connected, answers, failed,
           first_error, median, slowest);
}

static void short_ones(unsigned count, unsigned width)
{
    static const char request[] = "GET /small HTTP/1.0\r\n\r\n";
    struct epoll_event list[256];
    unsigned started = 0, running = 0;
    while (answers + failed < count) {
        // A free place is one without a descriptor.
        for (unsigned i = 0; i < width && running < width && started < count; i++)
            if (connections[i].fd < 0) {
                started++;
                running += start(i);
            }
        int ready = next_events(list, 256);
        if (ready <= 0)
            break;
        for (int i = 0; i < ready; i++) {
            unsigned index = list[i].data.u32;
            struct connection *connection = &connections[index];
            char answer[4096];
            if (connection->received == 0 && !(list[i].events & EPOLLIN)) {
                int error = connect_error(connection->fd);
                if (error)
                    fail(connection, error);
                else if (ask(connection, request)) {
                    watch(index, EPOLLIN);
                    continue;
                }
                running--;
                continue;
            }
            ssize_t len = recv(connection->fd, answer, sizeof answer, 0);
            if (len > 0) {
                connection->received += len;
                if (memmem(answer, len, "tiny", 4))
                    connection->received |= 1u << 31;
                continue;
            }
            running--;
            if (len < 0 || !(connection->received >> 31)) {
                fail(connection, len < 0 ? errno : ECONNRESET);
            } else {
                answers++;
                close(connection->fd);
                connection->fd = -1;
            }
        }
    }
    failed += running;
    printf("answers %lu failed %lu first_error %lu\n", answers, failed, first_error);
}

int main(int count, char **arguments)
{
    if (count != 6)
        return 1;
    server.sin_family = AF_INET;
    server.sin_port = htons(atoi(arguments[3]));
    inet_pton(AF_INET, arguments[2], &server.sin_addr);
    unsigned connection_count = atoi(arguments[4]), last = atoi(arguments[5]);
    events = epoll_create1(0);
    connections = calloc(connection_count, sizeof *connections);
    for (unsigned i = 0; i < connection_count; i++)
        connections[i].fd = -1;
    if (!strcmp(arguments[1], "open"))
        open_many(connection_count, last);
    else
        short_ones(connection_count, last);
    return 0;
}
