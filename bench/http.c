/* An HTTP server with one thread and epoll(7): http PORT. It answers each request with 20 octets, and closes if the client says so
 * (ab without -k: HTTP/1.0; "Connection: close"). Linked statically, it makes its system calls by instructions of its own. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, REQUEST_MAX = 4096 };

#define HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 20\r\n"
static const char KEPT[] = HEAD "\r\n" "twenty octets, once\n", LAST[] = HEAD "Connection: close\r\n\r\n" "twenty octets, once\n";

static int listen_at(int port)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096)) {
        perror("listen");
        exit(1);
    }
    return fd;
}

static void accept_all(int set, int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    }
}

/* Requests are small, and come whole; one that does not ends the connection. */
static void answer(int fd)
{
    char request[REQUEST_MAX + 1];
    ssize_t len = read(fd, request, REQUEST_MAX);
    if (len < 0 && errno == EAGAIN)
        return;
    if (len > 0) {
        request[len] = 0;
        int is_last = strstr(request, "HTTP/1.0") || strstr(request, "Connection: close");
        const char *text = is_last ? LAST : KEPT;
        size_t whole = is_last ? sizeof LAST - 1 : sizeof KEPT - 1;
        if (strstr(request, "\r\n\r\n") && write(fd, text, whole) == (ssize_t)whole && !is_last)
            return;
    }
    close(fd);
}

int main(int count, char **arguments)
{
    signal(SIGPIPE, SIG_IGN);
    int listener = listen_at(count > 1 ? atoi(arguments[1]) : 80), set = epoll_create1(0);
    struct epoll_event events[EVENTS], first = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &first);
    for (;;) {
        int ready = epoll_wait(set, events, EVENTS, -1);
        for (int i = 0; i < ready; i++)
            if (events[i].data.fd == listener)
                accept_all(set, listener);
            else
                answer(events[i].data.fd);
    }
}
