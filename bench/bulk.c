/* One bulk transfer at a time, measured by the client, which always runs on the kernel's TCP.
 *
 *   bulk serve PORT [MS]                      serves; every MS milliseconds it reports what TCP says of each connection
 *   bulk ADDRESS PORT down|up SECONDS [MS]    receives or sends for so long and reports what arrived as JSON
 *
 * What counts is what has arrived in order: octets read, or octets that the server has acknowledged. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 };

static int sample_ms;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static struct tcp_info info_of(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    memset(&info, 0, sizeof info);
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    return info;
}

static void print_info(const char *who, double at, const struct tcp_info *i)
{
    printf("%s %.3f state %u ca %u cwnd %u ssthresh %u unacked %u sacked %u lost %u retrans %u total_retrans %u rtt %u "
           "rttvar %u min_rtt %u rto %u backoff %u snd_wnd %u rcv_space %u bytes_acked %llu reordering %u\n",
           who, at, i->tcpi_state, i->tcpi_ca_state, i->tcpi_snd_cwnd, i->tcpi_snd_ssthresh, i->tcpi_unacked, i->tcpi_sacked,
           i->tcpi_lost, i->tcpi_retrans, i->tcpi_total_retrans, i->tcpi_rtt, i->tcpi_rttvar, i->tcpi_min_rtt, i->tcpi_rto,
           i->tcpi_backoff, i->tcpi_snd_wnd, i->tcpi_rcv_space, (unsigned long long)i->tcpi_bytes_acked, i->tcpi_reordering);
    fflush(stdout);
}

/* Sends or receives until `end`, or until the peer ends it. Returns the octets that went through the socket. */
static uint64_t transfer(int fd, int sends, double start, double end, const char *who)
{
    static char zeros[CHUNK];
    char buffer[CHUNK];
    uint64_t total = 0;
    double next_sample = start;
    for (;;) {
        double t = now();
        if (t >= end)
            return total;
        if (sample_ms && t >= next_sample) {
            struct tcp_info info = info_of(fd);
            print_info(who, t - start, &info);
            next_sample = t + sample_ms * 1e-3;
        }
        ssize_t n = sends ? send(fd, zeros, CHUNK, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, buffer, CHUNK, MSG_DONTWAIT);
        if (n > 0) {
            total += n;
        } else if (n < 0 && errno == EAGAIN) {
            double until = sample_ms && next_sample < end ? next_sample : end;
            struct pollfd p = {.fd = fd, .events = sends ? POLLOUT : POLLIN};
            double wait = (until - t) * 1e3 + 1;
            poll(&p, 1, wait > 1e6 ? 1000000 : (int)wait);
        } else {
            return total;
        }
    }
}

static void *serve_one(void *argument)
{
    int fd = (int)(intptr_t)argument;
    char order = 0;
    if (recv(fd, &order, 1, 0) == 1) {
        double start = now();
        struct tcp_info info;
        transfer(fd, order == 'd', start, start + 3600, "server");
        info = info_of(fd);
        print_info("server-end", now() - start, &info);
    }
    close(fd);
    return NULL;
}

static void serve(int port)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 16))
        die("listen");
    for (;;) {
        pthread_t thread;
        int client = accept(fd, NULL, NULL);
        if (client < 0)
            die("accept");
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)client))
            die("pthread_create");
        pthread_detach(thread);
    }
}

int main(int count, char **words)
{
    signal(SIGPIPE, SIG_IGN);
    if (count >= 3 && !strcmp(words[1], "serve")) {
        sample_ms = count > 3 ? atoi(words[3]) : 0;
        serve(atoi(words[2]));
    }
    if (count < 5) {
        fprintf(stderr, "see the head of its source for usage\n");
        return 2;
    }
    sample_ms = count > 5 ? atoi(words[5]) : 0;
    int down = !strcmp(words[3], "down");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    inet_pton(AF_INET, words[1], &address.sin_addr);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        die("connect");
    double start = now();
    if (send(fd, down ? "d" : "u", 1, MSG_NOSIGNAL) != 1)
        die("send");
    double wanted = atof(words[4]);
    uint64_t total = transfer(fd, !down, start, start + wanted, "client");
    double seconds = now() - start;
    struct tcp_info info = info_of(fd);
    if (!down)
        total = info.tcpi_bytes_acked;
    printf("{\"octets\": %llu, \"seconds\": %.6f, \"retransmits\": %u, \"rtt_us\": %u, \"min_rtt_us\": %u, \"cwnd\": %u, "
           "\"mss\": %u, \"rcv_mss\": %u, \"complete\": %s}\n",
           (unsigned long long)total, seconds, info.tcpi_total_retrans, info.tcpi_rtt, info.tcpi_min_rtt, info.tcpi_snd_cwnd,
           info.tcpi_snd_mss, info.tcpi_rcv_mss, seconds >= wanted ? "true" : "false");
    /* The transfer ends here, not when all that is under way has arrived. */
    struct linger at_once = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
    return 0;
}
