// What fork(2) costs a process that listens: forks.c COUNT LISTENERS [accept]
//
//   forks COUNT LISTENERS          children that end at once
//   forks COUNT LISTENERS accept   children that accept a connection, answer one octet and end
//
// Prints microseconds for each fork: by the clock, of this process's CPU time, and of its children's. Run it on the kernel and on
// Atoll alternately (`atoll run -- forks 200 1`). Time that servers of the stack need is not in it.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double cpu(int who) {
    struct rusage u;
    getrusage(who, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static int listen_somewhere(struct sockaddr_in *name) {
    socklen_t len = sizeof *name;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    check(s >= 0, "socket");
    memset(name, 0, sizeof *name);
    name->sin_family = AF_INET;
    name->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(s, (struct sockaddr *)name, len) == 0, "bind");
    check(listen(s, 128) == 0, "listen");
    check(getsockname(s, (struct sockaddr *)name, &len) == 0, "getsockname");
    return s;
}

static void serve(int listener) {
    int s = accept(listener, NULL, NULL);
    if (s < 0 || write(s, "x", 1) != 1)
        _exit(1);
    close(s);
    _exit(0);
}

// Connects from a child that was there before the first fork is measured, because its connections are not to be inherited.
static pid_t begin_client(struct sockaddr_in to, int count, int *go) {
    int fds[2];
    check(pipe(fds) == 0, "pipe");
    pid_t pid = fork();
    check(pid >= 0, "fork");
    if (pid == 0) {
        char c;
        close(fds[1]);
        for (int i = 0; i < count && read(fds[0], &c, 1) == 1; i++) {
            int s = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(s, (struct sockaddr *)&to, sizeof to) != 0 || read(s, &c, 1) != 1)
                _exit(1);
            close(s);
        }
        _exit(0);
    }
    close(fds[0]);
    *go = fds[1];
    return pid;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100, listeners = argc > 2 ? atoi(argv[2]) : 1;
    int accepts = argc > 3 && strcmp(argv[3], "accept") == 0, go = -1;
    struct sockaddr_in name;
    int *all = calloc(listeners + 1, sizeof *all);
    for (int i = 0; i < listeners; i++)
        all[i] = listen_somewhere(&name);
    pid_t client = accepts ? begin_client(name, count, &go) : 0;
    double wall = now(), mine = cpu(RUSAGE_SELF), theirs = cpu(RUSAGE_CHILDREN);
    for (int i = 0; i < count; i++) {
        int status = 0;
        pid_t pid = fork();
        check(pid >= 0, "fork");
        if (pid == 0) {
            if (accepts)
                serve(all[listeners - 1]);
            _exit(0);
        }
        if (accepts)
            check(write(go, "x", 1) == 1, "write");
        check(waitpid(pid, &status, 0) == pid, "waitpid");
        if (status != 0) {
            fprintf(stderr, "a child failed: %d\n", status);
            return 1;
        }
    }
    wall = now() - wall;
    mine = cpu(RUSAGE_SELF) - mine;
    theirs = cpu(RUSAGE_CHILDREN) - theirs;
    printf("%d forks, %d listeners%s: %.0f us, parent %.0f us, child %.0f us\n", count, listeners, accepts ? ", accept" : "",
           wall / count, mine / count, theirs / count);
    if (client > 0) {
        close(go);
        waitpid(client, NULL, 0);
    }
    return 0;
}
