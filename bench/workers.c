/* Workers that share a port: workers PORT COUNT MICROSECONDS SECONDS [reuseport].
 *
 * Each takes one connection after another, reads a byte, takes its time, answers its number in a byte and closes. Which are slow,
 * and when, is in balance.py; time begins with the first connection of the parent's children. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int listener(int port, int reuseport)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (reuseport)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096)) {
        perror("listen");
        exit(1);
    }
    return fd;
}

/* How many times as slow a worker is at a share of the whole time. */
static double slowness(int worker, double part)
{
    switch (worker) {
    case 0: return 10;
    case 1: return part >= 0.125 && part < 0.25 ? 20 : 1;
    case 2: return part >= 0.25 && part < 0.75 ? 10 : 1;
    case 3: return part >= 0.375 && part < 0.75 ? 2 : 1;
    default: return 1;
    }
}

static void serve(int fd, int worker, double service, double seconds, volatile double *began)
{
    for (;;) {
        char byte;
        int connection = accept(fd, 0, 0);
        if (connection < 0)
            continue;
        if (read(connection, &byte, 1) == 1) {
            if (*began == 0)
                *began = now();
            double takes = service * slowness(worker, (now() - *began) / seconds);
            struct timespec t = { (time_t)takes, (long)((takes - (time_t)takes) * 1e9) };
            nanosleep(&t, 0);
            byte = (char)('0' + worker);
            if (write(connection, &byte, 1) != 1)
                perror("write");
        }
        close(connection);
    }
}

static void stop(int number)
{
    (void)number;
    kill(0, SIGKILL);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    int port = atoi(argv[1]), count = atoi(argv[2]), reuseport = argc > 5 && !strcmp(argv[5], "reuseport");
    double service = atof(argv[3]) / 1e6, seconds = atof(argv[4]);
    double *began = mmap(0, sizeof *began, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setpgid(0, 0);
    signal(SIGTERM, stop);
    signal(SIGPIPE, SIG_IGN);
    int shared = reuseport ? -1 : listener(port, 0);
    for (int worker = 0; worker < count; worker++)
        if (fork() == 0) {
            signal(SIGTERM, SIG_DFL);
            serve(reuseport ? listener(port, 1) : shared, worker, service, seconds, began);
        }
    /* The parent accepts nothing. */
    while (wait(0) > 0)
        ;
    return 0;
}
