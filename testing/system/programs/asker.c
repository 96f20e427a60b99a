/* A program whose supervisor answers late: one thread exchanges messages over an open connection, one polls, and one asks.
 *
 * asker peer HOST PORT   connects, and sends back what it gets.
 * asker WHAT PORT        listens at PORT, takes the peer's connection, says "serving", waits for SIGUSR1, does WHAT, and says what came of
 *                        it, how long that took, and how long the longest exchange and poll took meanwhile, in milliseconds. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static atomic_bool over;
static atomic_int exchanges;

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e3 + at.tv_nsec / 1e6;
}

static void rest(int milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static int made(int kind)
{
    int fd = socket(AF_INET, kind, 0);
    if (fd < 0) {
        perror("socket");
        exit(1);
    }
    return fd;
}

static int bound(int fd, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    return bind(fd, (struct sockaddr *)&address, sizeof address) ? errno : 0;
}

static int port_of(int fd)
{
    struct sockaddr_in address = {0};
    socklen_t len = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &len) ? -errno : ntohs(address.sin_port);
}

/* Returns whether a message came back, and how long that took. */
static int exchange(int fd, double *took)
{
    char sent[700], back[700];
    memset(sent, atomic_load(&exchanges), sizeof sent);
    double begun = now();
    if (send(fd, sent, sizeof sent, MSG_NOSIGNAL) != sizeof sent || recv(fd, back, sizeof back, MSG_WAITALL) != sizeof back)
        return 0;
    *took = now() - begun;
    atomic_fetch_add(&exchanges, 1);
    return !memcmp(sent, back, sizeof sent);
}

struct thread {
    pthread_t thread;
    int fd, result;
    double longest;
};

static void *stream(void *given)
{
    struct thread *self = given;
    while (!atomic_load(&over)) {
        double took = 0;
        if (!exchange(self->fd, &took)) {
            self->result = 1;
            return NULL;
        }
        if (took > self->longest)
            self->longest = took;
        rest(1);
    }
    return NULL;
}

static void *poll_on(void *given)
{
    struct thread *self = given;
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, self->fd, &event))
        self->result = 1;
    while (!atomic_load(&over)) {
        double begun = now();
        epoll_wait(set, &event, 1, 5);
        double took = now() - begun;
        if (took > self->longest)
            self->longest = took;
    }
    close(set);
    return NULL;
}

static void start(struct thread *thread, int fd, void *(*what)(void *))
{
    thread->fd = fd;
    if (pthread_create(&thread->thread, NULL, what, thread))
        exit(1);
}

/* What a child says that forks, uses the sockets of its parent, and asks for one of its own. */
static int child_of(int listener)
{
    pid_t child = fork();
    if (child < 0)
        return 1000 + errno;
    if (child == 0) {
        alarm(10);
        int own = made(SOCK_STREAM);
        int result = bound(own, 0);
        if (!result && port_of(own) <= 0)
            result = 201;
        /* It is still a socket, of the stack or the kernel. */
        int kind = 0;
        socklen_t len = sizeof kind;
        if (getsockopt(listener, SOL_SOCKET, SO_TYPE, &kind, &len) || kind != SOCK_STREAM)
            result = 202;
        _exit(result);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2000 + WTERMSIG(status);
}

static void *bind_low(void *given)
{
    struct thread *self = given;
    self->result = bound(self->fd, 99);
    return NULL;
}

static int listening(int port)
{
    int fd = made(SOCK_STREAM), error = bound(fd, port);
    return error || listen(fd, 16) ? -error : fd;
}

static int closed_meanwhile, made_meanwhile;

static void *change(void *given)
{
    struct thread *self = given;
    rest(500);
    close(closed_meanwhile);
    made_meanwhile = listening(7200);
    self->result = made_meanwhile < 0;
    return NULL;
}

/* A thread closes a listener and makes another one while its process forks. The child has the one, and no port of the other. */
static int change_while_forking(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7200)};
    struct thread other = {0};
    char got = 0;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    closed_meanwhile = listening(7100);
    start(&other, 0, change);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int fd = accept(made_meanwhile, NULL, NULL);
        char end;
        _exit(fd < 0 || send(fd, "x", 1, MSG_NOSIGNAL) != 1 || recv(fd, &end, 1, 0) != 0);
    }
    pthread_join(other.thread, NULL);
    if (child < 0 || other.result)
        return 206;
    close(made_meanwhile);
    int caller = made(SOCK_STREAM), status = 0, again = made(SOCK_STREAM);
    if (connect(caller, (struct sockaddr *)&address, sizeof address) || recv(caller, &got, 1, 0) != 1 || got != 'x')
        return 207;
    /* The child, which waits for the end of the connection, does not have the port that was closed. */
    int result = bound(again, 7100);
    close(caller);
    return result ? result : waitpid(child, &status, 0) < 0 ? errno : status;
}

static void *bind_and_close(void *given)
{
    struct thread *self = given;
    int one = 1, kind = self->fd % 2 ? SOCK_STREAM : SOCK_DGRAM;
    while (!atomic_load(&over)) {
        int fd = made(kind);
        if (self->fd < 2)
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        int result = bound(fd, self->fd < 2 ? 700 + self->fd : 0);
        if (!result && port_of(fd) <= 0)
            result = 203;
        if (result)
            self->result = result;
        close(fd);
    }
    return NULL;
}

/* Children, while four threads ask all the time. */
static int storm(int listener)
{
    struct thread threads[4] = {0};
    int result = 0, forks = 0;
    for (int i = 0; i < 4; i++)
        start(&threads[i], i, bind_and_close);
    for (double end = now() + 3000; now() < end && !result; forks++)
        result = child_of(listener);
    atomic_store(&over, 1);
    printf("%d children, the last one %d, threads", forks, result);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i].thread, NULL);
        printf(" %d", threads[i].result);
        if (!result)
            result = threads[i].result;
    }
    printf("\n");
    return result;
}

static int ask(const char *what, int listener)
{
    struct thread other = {0};
    int one = 1, fd = strcmp(what, "storm") ? made(SOCK_STREAM) : -1;
    if (!strcmp(what, "low"))
        return bound(fd, 99);
    if (!strcmp(what, "share")) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        return bound(fd, 7777);
    }
    if (!strcmp(what, "user"))
        return seteuid(geteuid()) ? errno : 0;
    if (!strcmp(what, "fork"))
        return child_of(listener);
    if (!strcmp(what, "exec")) {
        char *arguments[] = {"none", NULL};
        execv("/nowhere/none", arguments);
        return errno;
    }
    if (!strcmp(what, "spawn")) {
        char *arguments[] = {"true", NULL};
        pid_t child;
        int status = posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ);
        return status ? status : waitpid(child, &status, 0) < 0 ? errno : status;
    }
    if (!strcmp(what, "fork-while-asking")) {
        start(&other, fd, bind_low);
        rest(200);
        int child = child_of(listener);
        pthread_join(other.thread, NULL);
        return other.result ? other.result : child;
    }
    if (!strcmp(what, "close-while-asking")) {
        start(&other, fd, bind_low);
        rest(200);
        close(fd);
        int next = made(SOCK_STREAM);
        pthread_join(other.thread, NULL);
        /* The socket that has its number now has nothing of it, and the port is free. */
        if (next != fd || port_of(next) != 0)
            return 204;
        return bound(next, 99);
    }
    if (!strcmp(what, "change-while-forking"))
        return change_while_forking();
    if (!strcmp(what, "storm"))
        return storm(listener);
    return 205;
}

static int serve(const char *what, int port)
{
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    int first = !strcmp(what, "first"), ends[2], one = 1, listener = -1, signal;
    struct thread streams = {0}, polls = {0};
    if (first) {
        if (pipe(ends))
            return 1;
        start(&polls, ends[0], poll_on);
    } else {
        listener = made(SOCK_STREAM);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bound(listener, port) || listen(listener, 16))
            return 1;
        printf("listening\n");
        fflush(stdout);
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            return 1;
        start(&streams, fd, stream);
        start(&polls, listener, poll_on);
    }
    rest(100);
    printf("serving\n");
    fflush(stdout);
    sigwait(&usr1, &signal);
    int before = atomic_load(&exchanges);
    double begun = now();
    int result = first ? made(SOCK_STREAM) < 0 : ask(what, listener);
    double took = now() - begun;
    atomic_store(&over, 1);
    if (!first)
        pthread_join(streams.thread, NULL);
    pthread_join(polls.thread, NULL);
    printf("result %d after %.0f ms, %d exchanges took %.0f ms and polls %.0f ms at most\n", result, took, atomic_load(&exchanges) - before,
           streams.longest, polls.longest);
    return streams.result || polls.result;
}

static int peer(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = made(SOCK_STREAM);
    char got[4096];
    ssize_t len;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1 || connect(fd, (struct sockaddr *)&address, sizeof address))
        return 1;
    while ((len = recv(fd, got, sizeof got, 0)) > 0)
        if (send(fd, got, len, MSG_NOSIGNAL) != len)
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "peer"))
        return peer(argv[2], atoi(argv[3]));
    return argc == 3 ? serve(argv[1], atoi(argv[2])) : 1;
}
