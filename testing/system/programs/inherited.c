// What can a process without privileges ask on connections to a supervisor that were made by, or for, a privileged one?
//
//   inherited USER own REQUEST ...    opens a socket as its own user, becomes USER, and asks
//   inherited USER PID REQUEST ...    takes the descriptors of process PID, becomes USER, and asks
//
// A request is text, or the octets of a packet as hex:0102.... What is answered is printed; system calls are made directly, so that a
// library in between has no say.
#include <arpa/inet.h>
#include <dirent.h>
#include <err.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "direct.h"

static int option(int fd, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    return direct(SYS_getsockopt, fd, SOL_SOCKET, name, &value, &len) ? -1 : value;
}

static void ask(int fd, const char *request) {
    unsigned char packet[4096];
    size_t len = strlen(request);
    if (!strncmp(request, "hex:", 4)) {
        len = (len - 4) / 2;
        for (size_t i = 0; i < len; i++)
            sscanf(request + 4 + 2 * i, "%2hhx", &packet[i]);
    } else {
        memcpy(packet, request, len);
    }
    if (direct(SYS_sendto, fd, packet, len, MSG_NOSIGNAL | MSG_DONTWAIT, 0) < 0) {
        printf("%s: not sent\n", request);
        return;
    }
    // Whoever else has the connection may take the answer; some requests have several.
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    for (int answers = 0; answers < 4 && direct(SYS_poll, &wait, 1, answers ? 300 : 5000) > 0; answers++) {
        long n = direct(SYS_recvfrom, fd, packet, sizeof packet - 1, MSG_DONTWAIT, 0);
        if (n <= 0) {
            printf("%s: closed\n", request);
            return;
        }
        packet[n] = 0;
        printf("%s: answer ", request);
        if (packet[0] == '{')
            printf("%s", packet);
        else
            for (long i = 0; i < n; i++)
                printf("%02x", packet[i]);
        printf("\n");
        fflush(stdout);
    }
    printf("%s: that was all\n", request);
}

int main(int count, char **arguments) {
    if (count < 4)
        errx(2, "inherited USER own|PID REQUEST ...");
    struct passwd *user = getpwnam(arguments[1]);
    if (!user)
        errx(2, "no user %s", arguments[1]);
    long pid = atol(arguments[2]);
    int sock = -1;
    if (!pid) {
        sock = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(4711)};
        if (sock < 0 || bind(sock, (struct sockaddr *)&any, sizeof any) || listen(sock, 5))
            err(1, "no socket");
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/fd", pid ? arguments[2] : "self");
    DIR *all = opendir(path);
    if (!all)
        err(1, "%s", path);
    long process = pid ? direct(SYS_pidfd_open, pid) : -1;
    int connections[64], found = 0;
    for (struct dirent *entry; (entry = readdir(all)) && found < 64;) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.')
            continue;
        if (pid && (fd = direct(SYS_pidfd_getfd, process, fd, 0)) < 0)
            continue;
        if (option(fd, SO_DOMAIN) == AF_UNIX && option(fd, SO_TYPE) == SOCK_SEQPACKET)
            connections[found++] = fd;
    }
    if (setgroups(0, NULL) || setgid(user->pw_gid) || setuid(user->pw_uid) || !setuid(0))
        err(1, "cannot become %s", arguments[1]);
    printf("%d connections\n", found);
    fflush(stdout);
    for (int i = 0; i < found; i++)
        for (int r = 3; r < count; r++)
            ask(connections[i], arguments[r]);
    printf("done\n");
    return found ? 0 : 1;
}
