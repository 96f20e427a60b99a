/* Connections that do nothing.
 *
 *   idle serve PORT                   accepts, and reports on standard output how many it holds, each 1000
 *   idle ADDRESS PORT COUNT FROM...   opens COUNT, from these addresses in turn, says `open`, and keeps them
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

static void die(const char *what)
{
    perror(what);
    exit(1);
}

int main(int argc, char **argv)
{
    struct rlimit limit = {1000000, 1000000};
    setrlimit(RLIMIT_NOFILE, &limit);
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    if (argc == 3) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), held = 0;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096))
            die("listen");
        for (;;) {
            if (accept(fd, NULL, NULL) < 0)
                die("accept");
            if (++held % 1000 == 0) {
                printf("%d\n", held);
                fflush(stdout);
            }
        }
    }
    if (argc < 5)
        return 2;
    int count = atoi(argv[3]);
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    for (int i = 0; i < count; i++) {
        struct sockaddr_in from = {.sin_family = AF_INET};
        inet_pton(AF_INET, argv[4 + i % (argc - 4)], &from.sin_addr);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0)
            die("socket");
        // The port is chosen at connect, when the whole four-tuple is known.
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&from, sizeof from))
            die("bind");
        if (connect(fd, (struct sockaddr *)&address, sizeof address))
            die("connect");
    }
    printf("open\n");
    fflush(stdout);
    pause();
    return 0;
}
