/* Programs that use nothing but the socket API, and use it badly: misbehave ATTACK PORT [ADDRESS].
 *
 * Each runs until it is killed, and says `attacking` once what it does is under way. PORT is a free one, where `crowd` at the other end
 * finds those that listen. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../system/programs/direct.h"

/* Forks a child that ends with this process, however that ends. */
static pid_t fork_child(void)
{
    pid_t parent = getpid(), child = fork();
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(1);
    return child;
}

static struct sockaddr_in address;
static int port;

static void attacking(void)
{
    printf("attacking\n");
    fflush(stdout);
}

static void pause_ms(unsigned ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static int listener(int at)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(at)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&own, sizeof own) || listen(fd, 4096)) {
        perror("listener");
        exit(1);
    }
    return fd;
}

/* At the other end: connects to ADDRESS PORT again and again, sends what fits, keeps the last thousand. */
static void crowd(void)
{
    int kept[1000];
    memset(kept, -1, sizeof kept);
    static char text[65536];
    attacking();
    for (unsigned n = 0;; n++) {
        int *at = &kept[n % 1000];
        if (*at >= 0) {
            send(*at, text, sizeof text, MSG_DONTWAIT | MSG_NOSIGNAL);
            close(*at);
        }
        *at = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(*at, (struct sockaddr *)&address, sizeof address);
        int half = kept[(n + 500) % 1000];
        if (half >= 0)
            send(half, text, sizeof text, MSG_DONTWAIT | MSG_NOSIGNAL);
        pause_ms(1);
    }
}

/* Listens, says that it would accept, and never does. */
static void hog(void)
{
    struct pollfd entry = {.fd = listener(port), .events = POLLIN};
    attacking();
    for (;;) {
        poll(&entry, 1, 1000);
        pause_ms(1);
    }
}

/* Accepts everything, reads nothing, and writes until nothing more fits. */
static void reader(void)
{
    static char text[65536];
    int fds[4096], count = 0, fd = listener(port);
    attacking();
    for (;;) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        poll(&entry, 1, 100);
        int got = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
        if (got >= 0 && count < 4096)
            fds[count++] = got;
        else if (got >= 0)
            close(got);
        for (int i = 0; i < count; i++)
            send(fds[i], text, sizeof text, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

/* Puts 20,000 entries on every doorbell of the library, while it sleeps: a ring has to visit all of them. Bare system calls,
 * because the library guards its own descriptors. */
static void bells(void)
{
    struct rlimit many = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &many);
    int fd = listener(port), eventfds[1024], count = 0;
    struct pollfd wake = {.fd = fd, .events = POLLIN};
    poll(&wake, 1, 10);
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *entry; all && (entry = readdir(all)) && count < 1024;) {
        char target[64] = "";
        if (readlinkat(dirfd(all), entry->d_name, target, sizeof target - 1) > 0 && !strcmp(target, "anon_inode:[eventfd]"))
            eventfds[count++] = atoi(entry->d_name);
    }
    if (!count) {
        fprintf(stderr, "no bells\n");
        exit(1);
    }
    struct pollfd *entries = calloc(20000, sizeof *entries);
    for (int i = 0; i < 20000; i++)
        entries[i] = (struct pollfd){.fd = eventfds[i % count], .events = POLLPRI};
    for (int child = 0; child < 4; child++)
        if (direct(SYS_fork) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            struct timespec for_ever = {3600, 0};
            direct(SYS_ppoll, entries, 20000, &for_ever, NULL, 0);
            _exit(0);
        }
    /* And by epoll, whose entries need no sleeper. */
    for (int i = 0; i < 20000; i++) {
        int instance = i % 1000 ? -1 : (int)direct(SYS_epoll_create1, 0);
        static int last;
        if (instance >= 0)
            last = instance;
        int copy = (int)direct(SYS_dup, eventfds[i % count]);
        struct epoll_event event = {.events = EPOLLIN | EPOLLET};
        direct(SYS_epoll_ctl, last, EPOLL_CTL_ADD, copy, &event);
    }
    attacking();
    for (;;)
        poll(&wake, 1, 1000);
}

/* Datagrams to its own socket, by the stack's address. */
static void udp_self(void)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, "198.18.0.2", &own.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    static char text[1400];
    if (bind(fd, (struct sockaddr *)&own, sizeof own))
        exit(1);
    attacking();
    for (;;)
        sendto(fd, text, sizeof text, 0, (struct sockaddr *)&own, sizeof own);
}

/* Datagrams to ADDRESS, where no socket takes them. */
static void udp_flood(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    static char text[1400];
    attacking();
    for (;;)
        sendto(fd, text, sizeof text, 0, (struct sockaddr *)&address, sizeof address);
}

/* Everything that can be made is made, and closed again. */
static void churn(void)
{
    attacking();
    for (unsigned n = 0;; n++) {
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port + n % 100)};
        int fd = socket(AF_INET, n % 3 ? SOCK_STREAM | SOCK_NONBLOCK : SOCK_DGRAM, 0), one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        bind(fd, (struct sockaddr *)&own, sizeof own);
        if (n % 3 == 1)
            listen(fd, 1 << 20);
        struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(9)};
        inet_pton(AF_INET, "198.18.0.250", &nowhere.sin_addr);
        if (n % 3 == 2)
            connect(fd, (struct sockaddr *)&nowhere, sizeof nowhere);
        close(fd);
    }
}

/* Children that share its sessions, and that are stopped wherever they are, with whatever lock they have. */
static void stopped(void)
{
    int fd = listener(port);
    (void)fd;
    attacking();
    for (unsigned n = 0;; n++) {
        pid_t child = fork_child();
        if (child == 0) {
            for (;;) {
                int made = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
                connect(made, (struct sockaddr *)&address, sizeof address);
                send(made, "x", 1, MSG_NOSIGNAL);
                close(made);
            }
        }
        if (child < 0) {
            pause_ms(100);
            continue;
        }
        pause_ms(5 + n % 20);
        kill(child, SIGSTOP);
        /* Some stay for a while, with what they have. */
        static pid_t before[8];
        if (before[n % 8]) {
            kill(before[n % 8], SIGKILL);
            waitpid(before[n % 8], NULL, 0);
        }
        before[n % 8] = child;
    }
}

static void send_descriptors(int to, const int *fds, int count)
{
    char octet = 'x', space[CMSG_SPACE(sizeof(int) * 64)];
    struct iovec part = {&octet, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    memset(space, 0, sizeof space);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(head), fds, sizeof(int) * count);
    sendmsg(to, &message, MSG_DONTWAIT);
}

/* Sockets that go round in messages: through pairs that are themselves under way, never received, or received by their sender. */
static void ring(void)
{
    attacking();
    for (unsigned n = 0;; n++) {
        int one[2], two[2], fds[32];
        if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, one) || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, two)) {
            pause_ms(1);
            continue;
        }
        for (int i = 0; i < 32; i++)
            fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        send_descriptors(one[0], fds, 32);
        send_descriptors(one[0], two, 2);
        send_descriptors(two[0], one, 2);
        if (n % 2) {
            char octet, space[CMSG_SPACE(sizeof(int) * 64)];
            struct iovec part = {&octet, 1};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
            if (recvmsg(one[1], &message, MSG_DONTWAIT) >= 0)
                for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
                    for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= head->cmsg_len; at += sizeof(int)) {
                        int got;
                        memcpy(&got, CMSG_DATA(head) + at, sizeof got);
                        close(got);
                    }
        }
        for (int i = 0; i < 32; i++)
            close(fds[i]);
        for (int i = 0; i < 2; i++) {
            close(one[i]);
            close(two[i]);
        }
    }
}

/* Processes that each open a session and a socket, a hundred at a time, and die at any moment. */
static void forks(void)
{
    pid_t children[100] = {0};
    attacking();
    for (unsigned n = 0;; n++) {
        pid_t *child = &children[n % 100];
        if (*child > 0) {
            kill(*child, SIGKILL);
            waitpid(*child, NULL, 0);
        }
        *child = fork_child();
        if (*child == 0) {
            int fd = socket(AF_INET, SOCK_DGRAM, 0);
            struct sockaddr_in any = {.sin_family = AF_INET};
            bind(fd, (struct sockaddr *)&any, sizeof any);
            connect(fd, (struct sockaddr *)&address, sizeof address);
            for (;;)
                pause();
        }
        pause_ms(2);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*attack)(void);
    } all[] = {{"crowd", crowd}, {"hog", hog},     {"reader", reader},   {"bells", bells}, {"udp-self", udp_self}, {"udp-flood", udp_flood},
               {"churn", churn}, {"stopped", stopped}, {"ring", ring}, {"forks", forks}};
    if (argc < 3)
        return 2;
    port = atoi(argv[2]);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, argc > 3 ? argv[3] : "198.18.0.1", &address.sin_addr);
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, argv[1]))
            all[i].attack();
    return 2;
}
