/* How long does a small message take there and back?
 *
 *   pingpong serve PORT BYTES tcp|udp
 *   pingpong ADDRESS PORT BYTES tcp|udp COUNT
 *
 * Both ends wait in plain blocking calls. The client prints percentiles of the round trip in nanoseconds. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static unsigned long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000UL + now.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return x < y ? -1 : x > y;
}

static int receive_all(int fd, char *buffer, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t len = recv(fd, buffer + got, bytes - got, 0);
        if (len <= 0)
            return 0;
        got += len;
    }
    return 1;
}

static void serve(struct sockaddr_in address, size_t bytes, int is_udp)
{
    char buffer[65536];
    int one = 1, fd = socket(AF_INET, is_udp ? SOCK_DGRAM : SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        die("bind");
    if (is_udp) {
        struct sockaddr_in from;
        for (;;) {
            socklen_t len = sizeof from;
            ssize_t got = recvfrom(fd, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &len);
            if (got < 0)
                die("recvfrom");
            sendto(fd, buffer, got, 0, (struct sockaddr *)&from, len);
        }
    }
    if (listen(fd, 16))
        die("listen");
    for (;;) {
        int connection = accept(fd, NULL, NULL);
        if (connection < 0)
            die("accept");
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        while (receive_all(connection, buffer, bytes) && send(connection, buffer, bytes, MSG_NOSIGNAL) == (ssize_t)bytes)
            ;
        close(connection);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    int is_server = !strcmp(argv[1], "serve"), is_udp = !strcmp(argv[4], "udp"), one = 1;
    size_t bytes = atoi(argv[3]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    if (!is_server)
        inet_pton(AF_INET, argv[1], &address.sin_addr);
    if (is_server)
        serve(address, bytes, is_udp);
    unsigned long count = strtoul(argv[5], NULL, 10), *times = calloc(count, sizeof *times);
    int fd = socket(AF_INET, is_udp ? SOCK_DGRAM : SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        die("connect");
    struct timeval limit = {5, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (!is_udp)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char buffer[65536] = {0};
    for (unsigned long i = 0; i < count; i++) {
        unsigned long start = now_ns();
        if (send(fd, buffer, bytes, 0) != (ssize_t)bytes || !receive_all(fd, buffer, bytes))
            die("round trip");
        times[i] = now_ns() - start;
    }
    qsort(times, count, sizeof *times, by_value);
    printf("p50_ns %lu p99_ns %lu p999_ns %lu\n", times[count / 2], times[count * 99 / 100], times[count * 999 / 1000]);
    return 0;
}
