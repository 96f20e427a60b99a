/* Sends itself datagrams, by the C library's functions or (`instructions`) by instructions of its own, and waits then: the library
 * counts 21 calls, socket and two for each of ten datagrams. Calls for what is no socket of a stack go beside, by instructions. The last
 * call, poll, is a function's, and does not come to its end. */
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "instruction.h"

#define EITHER(name, ...) (by_instruction ? raw(SYS_##name, __VA_ARGS__) : name(__VA_ARGS__))

int main(int count, char **arguments)
{
    int by_instruction = count > 1 && strcmp(arguments[1], "instructions") == 0;
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof own;
    int fd = EITHER(socket, AF_INET, SOCK_DGRAM, 0), pipes[2];
    if (fd < 0 || EITHER(bind, fd, (void *)&own, sizeof own) != 0 || EITHER(getsockname, fd, (void *)&own, &len) != 0 || pipe(pipes) != 0)
        return 1;
    char octet = 'x';
    for (int i = 0; i < 10; i++) {
        if (EITHER(sendto, fd, &octet, 1, 0, (void *)&own, len) != 1 || EITHER(recvfrom, fd, &octet, 1, 0, NULL, NULL) != 1)
            return 2;
        if (raw(SYS_write, pipes[1], &octet, 1) != 1 || raw(SYS_read, pipes[0], &octet, 1) != 1 || raw(SYS_getpid) <= 0)
            return 3;
    }
    struct pollfd one = {.fd = fd, .events = POLLIN};
    puts("done");
    fflush(stdout);
    poll(&one, 1, -1);
    return 0;
}
