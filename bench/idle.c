/* Connections that do nothing.
 *
 *   idle serve PORT                   accepts, in several processes
 *   idle ADDRESS PORT COUNT FROM...   opens COUNT, from these addresses in turn, says `all are open`, and keeps them
 *
 * Several processes, because the number of descriptors of one is limited, even for root where it lacks CAP_SYS_RESOURCE. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

enum { PER_PROCESS = 12000, PROCESSES = 10 };

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Forks, and ties the child's life to the parent's. */
static pid_t child(void)
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void raise_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < PER_PROCESS + 100) {
        fprintf(stderr, "a process may have %lu descriptors, too few\n", (unsigned long)limit.rlim_max);
        exit(1);
    }
}

static void open_some(struct sockaddr_in address, int from, int to, char **sources, int source_count)
{
    int one = 1;
    for (int i = from; i < to; i++) {
        struct sockaddr_in source = {.sin_family = AF_INET};
        inet_pton(AF_INET, sources[i % source_count], &source.sin_addr);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0)
            die("socket");
        // The port is chosen at connect, when the whole four-tuple is known.
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&source, sizeof source))
            die("bind");
        if (connect(fd, (struct sockaddr *)&address, sizeof address))
            die("connect");
    }
}

int main(int argc, char **argv)
{
    int one = 1;
    raise_limit();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    if (argc == 3) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096))
            die("listen");
        for (int process = 0; process < PROCESSES; process++) {
            if (child() == 0) {
                for (int held = 0; held < PER_PROCESS; held++)
                    if (accept(fd, NULL, NULL) < 0)
                        die("accept");
                pause();
            }
        }
        wait(NULL);
        return 1;
    }
    if (argc < 5)
        return 2;
    int count = atoi(argv[3]), done[2];
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    if (pipe(done))
        die("pipe");
    int children = 0;
    for (int from = 0; from < count; from += PER_PROCESS, children++) {
        if (child() == 0) {
            int to = from + PER_PROCESS < count ? from + PER_PROCESS : count;
            open_some(address, from, to, argv + 4, argc - 4);
            if (write(done[1], "x", 1) != 1)
                die("write");
            pause();
        }
    }
    close(done[1]);
    char byte;
    for (int i = 0; i < children; i++)
        if (read(done[0], &byte, 1) != 1) {
            fprintf(stderr, "a process has failed\n");
            return 1;
        }
    printf("all are open\n");
    fflush(stdout);
    pause();
    return 0;
}
