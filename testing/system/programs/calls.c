/* What do the calls do that scripts cannot make? One behaviour by name; what it prints must be the same on every stack:
 * calls CASE. Both ends live in one process (or its children), on the loopback. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static const char *self;

#define MUST(call) must((long)(call), #call)
static long must(long result, const char *what)
{
    if (result < 0) {
        printf("%s: %s\n", what, strerrorname_np(errno));
        fflush(stdout);
        _exit(1);
    }
    return result;
}

static void show(const char *what, long result)
{
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(errno));
    else
        printf("%s: %ld\n", what, result);
}

static struct sockaddr_in loopback(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return address;
}

static struct sockaddr_in name_of(int fd)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    MUST(getsockname(fd, (struct sockaddr *)&address, &len));
    return address;
}

static int bound(int type)
{
    struct sockaddr_in address = loopback();
    int fd = MUST(socket(AF_INET, type, 0));
    MUST(bind(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static int listening(void)
{
    int fd = bound(SOCK_STREAM);
    MUST(listen(fd, 64));
    return fd;
}

static int connected_to(int server)
{
    struct sockaddr_in address = name_of(server);
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static void make_pair(int ends[2])
{
    int server = listening();
    ends[0] = connected_to(server);
    ends[1] = MUST(accept(server, NULL, NULL));
    MUST(close(server));
}

static void wait_readable(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    MUST(poll(&entry, 1, 5000));
}

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static volatile sig_atomic_t signals;
static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void on_signal(int number, int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};
    MUST(sigaction(number, &action, NULL));
}

static void alarm_in_ms(long ms)
{
    struct itimerval timer = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
}

/* --- signals */

static void interrupted(void)
{
    int ends[2], server = listening();
    char byte;
    make_pair(ends);
    on_signal(SIGALRM, 0);
    alarm_in_ms(100);
    show("recv", recv(ends[1], &byte, 1, 0));
    alarm_in_ms(100);
    show("accept", accept(server, NULL, NULL));
    struct pollfd entry = {.fd = ends[1], .events = POLLIN};
    alarm_in_ms(100);
    show("poll", poll(&entry, 1, 5000));
    int epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event));
    alarm_in_ms(100);
    show("epoll_wait", epoll_wait(epoll, &event, 1, 5000));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    struct timeval timeout = {5, 0};
    alarm_in_ms(100);
    show("select", select(ends[1] + 1, &set, NULL, NULL, &timeout));
    printf("signals: %d\n", (int)signals);
}

static void *send_later(void *argument)
{
    pause_ms(300);
    MUST(send(*(int *)argument, "x", 1, 0));
    return NULL;
}

static void restarted(void)
{
    int ends[2];
    char byte;
    pthread_t thread;
    make_pair(ends);
    on_signal(SIGALRM, SA_RESTART);
    pthread_create(&thread, NULL, send_later, &ends[0]);
    alarm_in_ms(100);
    show("recv", recv(ends[1], &byte, 1, 0));
    printf("signals: %d\n", (int)signals);
    pthread_join(thread, NULL);
}

/* SIGUSR1 restarts calls, SIGUSR2 does not: what counts is which of them comes. */
static void restarted_by_one_of_two(void)
{
    int ends[2];
    char byte;
    pthread_t thread;
    make_pair(ends);
    on_signal(SIGUSR2, 0);
    on_signal(SIGALRM, SA_RESTART);
    pthread_create(&thread, NULL, send_later, &ends[0]);
    alarm_in_ms(100);
    show("recv", recv(ends[1], &byte, 1, 0));
    printf("signals: %d\n", (int)signals);
    pthread_join(thread, NULL);
    siginterrupt(SIGALRM, 1);
    alarm_in_ms(100);
    show("recv", recv(ends[1], &byte, 1, 0));
}

/* signal-safety(7): handlers may use sockets, whatever they interrupt. */
static int handled;
static sigjmp_buf loop;

static void every_us(long us)
{
    struct itimerval timer = {.it_value = {0, us}, .it_interval = {0, us}};
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
}

static void handler_receives(int number)
{
    char byte;
    int before = errno;
    (void)number;
    signals++;
    recv(handled, &byte, 1, MSG_DONTWAIT);
    errno = before;
}

static void handler_forks(int number)
{
    int before = errno;
    pid_t child = fork();
    (void)number;
    signals++;
    if (!child)
        _exit(0);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    errno = before;
}

static void handler_jumps(int number)
{
    (void)number;
    signals++;
    siglongjmp(loop, 1);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void handler_exits(int number)
{
    (void)number;
    pthread_exit("from the handler");
}

/* Sends, polls and receives for a second, under a timer. */
static void interrupt_at_any_instruction(void (*handler)(int), long us)
{
    int ends[2];
    char text[64];
    struct sigaction action = {.sa_handler = handler};
    make_pair(ends);
    handled = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in address = loopback();
    MUST(bind(handled, (struct sockaddr *)&address, sizeof address));
    struct pollfd entry = {.fd = ends[1], .events = POLLIN};
    MUST(sigaction(SIGALRM, &action, NULL));
    volatile double end = seconds() + 1;
    volatile long sent = 0, received = 0;
    ssize_t count;
    sigsetjmp(loop, 1);
    every_us(us);
    while (seconds() < end) {
        if ((count = send(ends[0], text, sizeof text, MSG_DONTWAIT)) > 0)
            sent += count;
        poll(&entry, 1, 0);
        if ((count = recv(ends[1], text, sizeof text, MSG_DONTWAIT)) > 0)
            received += count;
        /* Who jumps out of malloc may not use it again (signal-safety(7)). */
        if (handler != handler_jumps)
            free(malloc(100));
    }
    every_us(0);
    printf("signals: %d\n", signals > 20);
    show("shutdown", shutdown(ends[0], SHUT_WR));
    while ((count = recv(ends[1], text, sizeof text, 0)) > 0)
        received += count;
    show("end", count);
    /* Who jumps out of a call does not know what it has done. */
    printf("all octets: %d\n", handler == handler_jumps || sent == received);
}

static void handlers_receive(void)
{
    interrupt_at_any_instruction(handler_receives, 211);
}

static void handlers_fork(void)
{
    interrupt_at_any_instruction(handler_forks, 9001);
}

static void handlers_jump(void)
{
    interrupt_at_any_instruction(handler_jumps, 997);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

/* Leaves a call by siglongjmp, as programs do that give it a deadline. */
static void leave_a_call(int which, int fd, int server, int set)
{
    char byte;
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    struct epoll_event event;
    if (sigsetjmp(loop, 1) == 0) {
        struct itimerval timer = {.it_value = {0, 2000}};
        MUST(setitimer(ITIMER_REAL, &timer, NULL));
        if (which == 0)
            recv(fd, &byte, 1, 0);
        else if (which == 1)
            poll(&entry, 1, 5000);
        else if (which == 2)
            epoll_wait(set, &event, 1, 5000);
        else
            accept(server, NULL, NULL);
        printf("call %d comes to its end\n", which);
    }
}

static void *receive_until_the_handler_exits(void *fd)
{
    char byte;
    recv(*(int *)fd, &byte, 1, 0);
    return NULL;
}

static void calls_that_were_left_hold_nothing(void)
{
    int ends[2], server = listening(), set = MUST(epoll_create1(0));
    char byte;
    struct timeval limit = {10, 0};
    struct epoll_event event = {.events = EPOLLIN};
    on_signal(SIGUSR1, 0);
    signal(SIGALRM, handler_jumps);
    for (int round = 0; round < 2; round++) {
        make_pair(ends);
        MUST(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
        int before = open_descriptors();
        if (round == 0) {
            for (int i = 0; i < 100; i++)
                leave_a_call(i % 4, ends[0], server, set);
        } else {
            signal(SIGUSR1, handler_exits);
            for (int i = 0; i < 5; i++) {
                pthread_t thread;
                pthread_create(&thread, NULL, receive_until_the_handler_exits, &ends[0]);
                pause_ms(20);
                pthread_kill(thread, SIGUSR1);
                pthread_join(thread, NULL);
            }
        }
        printf("descriptors are lost: %d\n", open_descriptors() > before + 4);
        MUST(close(ends[0]));
        show("the peer hears", recv(ends[1], &byte, 1, 0));
        MUST(close(ends[1]));
    }
    show("recv of a number that is free", recv(ends[0], &byte, 1, 0));
}

static volatile pid_t forked;
static void handler_forks_and_returns(int number)
{
    (void)number;
    forked = fork();
}

static void *kill_and_send(void *fd)
{
    pause_ms(50);
    kill(getpid(), SIGALRM);
    while (!forked)
        pause_ms(1);
    for (int i = 0; i < 40; i++) {
        pause_ms(5);
        MUST(send(*(int *)fd, "x", 1, 0));
    }
    return NULL;
}

/* The handler interrupts recv, and its child returns to that, too. Each then waits for octets of its own. */
static void a_handler_forks_and_both_go_on(void)
{
    int of_parent[2], of_child[2], status;
    char byte;
    pthread_t thread;
    sigset_t mask;
    struct timeval moment = {0, 3000};
    make_pair(of_parent);
    make_pair(of_child);
    MUST(setsockopt(of_child[0], SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment));
    struct sigaction action = {.sa_handler = handler_forks_and_returns};
    MUST(sigaction(SIGALRM, &action, NULL));
    sigemptyset(&mask);
    sigaddset(&mask, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    pthread_create(&thread, NULL, kill_and_send, &of_parent[1]);
    pthread_sigmask(SIG_UNBLOCK, &mask, NULL);
    ssize_t result = recv(of_parent[0], &byte, 1, 0);
    if (!forked) {
        while ((result = recv(of_child[0], &byte, 1, 0)) < 0 && errno == EAGAIN)
            ;
        _exit(result == 1 && byte == 'c' ? 7 : 8);
    }
    /* On a busy machine the signal may come before the call. */
    printf("interrupted: %d\n", result == 1 || errno == EINTR);
    int received = result == 1;
    while (received < 40 && recv(of_parent[0], &byte, 1, 0) == 1)
        received++;
    printf("octets: %d\n", received);
    MUST(send(of_child[1], "c", 1, 0));
    MUST(waitpid(forked, &status, 0));
    printf("the child: %d\n", WEXITSTATUS(status));
    pthread_join(thread, NULL);
}

static void timed_receive_is_not_restarted(void)
{
    int ends[2];
    char byte;
    make_pair(ends);
    struct timeval timeout = {5, 0};
    MUST(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout));
    on_signal(SIGALRM, SA_RESTART);
    alarm_in_ms(100);
    show("recv", recv(ends[1], &byte, 1, 0));
}

static void masks_while_waiting(void)
{
    int ends[2];
    make_pair(ends);
    on_signal(SIGUSR1, 0);
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    raise(SIGUSR1);
    struct pollfd entry = {.fd = ends[1], .events = POLLIN};
    struct timespec timeout = {5, 0};
    show("ppoll", ppoll(&entry, 1, &timeout, &none));
    raise(SIGUSR1);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    show("pselect", pselect(ends[1] + 1, &set, NULL, NULL, &timeout, &none));
    raise(SIGUSR1);
    int epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event));
    show("epoll_pwait", epoll_pwait(epoll, &event, 1, 5000, &none));
    raise(SIGUSR1);
    show("epoll_pwait2", epoll_pwait2(epoll, &event, 1, &timeout, &none));
    printf("signals: %d\n", (int)signals);
}

/* --- messages */

static void many_messages(void)
{
    int server = bound(SOCK_DGRAM), client = bound(SOCK_DGRAM);
    struct sockaddr_in to = name_of(server), from[4], mine = name_of(client);
    char text[4][16], got[4][16];
    struct iovec out[4], in[4];
    struct mmsghdr send[4] = {0}, receive[4] = {0};
    for (int i = 0; i < 4; i++) {
        snprintf(text[i], sizeof text[i], "message %d", i);
        out[i] = (struct iovec){text[i], strlen(text[i])};
        in[i] = (struct iovec){got[i], sizeof got[i]};
        send[i].msg_hdr = (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &out[i], .msg_iovlen = 1};
        receive[i].msg_hdr = (struct msghdr){.msg_name = &from[i], .msg_namelen = sizeof from[i], .msg_iov = &in[i], .msg_iovlen = 1};
    }
    show("sendmmsg", sendmmsg(client, send, 4, 0));
    printf("lengths: %u %u\n", send[0].msg_len, send[3].msg_len);
    wait_readable(server);
    pause_ms(50);
    int count = recvmmsg(server, receive, 4, MSG_DONTWAIT, NULL);
    show("recvmmsg", count);
    for (int i = 0; i < count; i++)
        printf("%.*s, sender known: %d\n", (int)receive[i].msg_len, got[i], from[i].sin_port == mine.sin_port);
    show("recvmmsg", recvmmsg(server, receive, 4, MSG_DONTWAIT, NULL));
    MUST(sendto(client, "one", 3, 0, (struct sockaddr *)&to, sizeof to));
    show("recvmmsg MSG_WAITFORONE", recvmmsg(server, receive, 4, MSG_WAITFORONE, NULL));
    struct timespec timeout = {0, 100000000};
    MUST(sendto(client, "two", 3, 0, (struct sockaddr *)&to, sizeof to));
    show("recvmmsg of 1", recvmmsg(server, receive, 1, 0, &timeout));
}

static void many_times(void)
{
    int server = socket(AF_INET, SOCK_DGRAM, 0), client = bound(SOCK_DGRAM), on = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(setsockopt(server, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on));
    MUST(bind(server, (struct sockaddr *)&to, sizeof to));
    to = name_of(server);
    for (int i = 0; i < 3; i++)
        MUST(sendto(client, "when", 4, 0, (struct sockaddr *)&to, sizeof to));
    char got[3][16];
    _Alignas(struct cmsghdr) char control[3][64];
    struct iovec in[3];
    struct mmsghdr receive[3] = {0};
    for (int i = 0; i < 3; i++) {
        in[i] = (struct iovec){got[i], sizeof got[i]};
        receive[i].msg_hdr = (struct msghdr){.msg_iov = &in[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = 64};
    }
    int count = 0;
    while (count < 3) {
        int more = recvmmsg(server, receive + count, 3 - count, MSG_WAITFORONE, NULL);
        MUST(more);
        count += more;
    }
    struct timespec last = {0, 0};
    for (int i = 0; i < 3; i++) {
        struct cmsghdr *message = CMSG_FIRSTHDR(&receive[i].msg_hdr);
        struct timespec time;
        memcpy(&time, CMSG_DATA(message), sizeof time);
        int in_order = time.tv_sec > last.tv_sec || (time.tv_sec == last.tv_sec && time.tv_nsec >= last.tv_nsec);
        printf("%d %d %zu in order: %d\n", message->cmsg_level, message->cmsg_type, (size_t)message->cmsg_len, in_order);
        last = time;
    }
}

static void messages_on_streams(void)
{
    int ends[2];
    make_pair(ends);
    char one[3], two[10];
    struct iovec in[2] = {{one, 3}, {two, 10}};
    struct sockaddr_in from;
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = in, .msg_iovlen = 2};
    MUST(send(ends[0], "abcdef", 6, 0));
    wait_readable(ends[1]);
    show("recvmsg", recvmsg(ends[1], &message, 0));
    printf("%.3s %.3s name of %u bytes, flags %d\n", one, two, message.msg_namelen, message.msg_flags);
    socklen_t len = sizeof from;
    MUST(send(ends[0], "x", 1, 0));
    show("recvfrom", recvfrom(ends[1], one, 1, 0, (struct sockaddr *)&from, &len));
    printf("name of %u bytes\n", len);
    struct sockaddr_in nowhere = loopback();
    show("sendto", sendto(ends[0], "y", 1, 0, (struct sockaddr *)&nowhere, sizeof nowhere));
    show("MSG_TRUNC", recv(ends[1], two, 10, MSG_TRUNC));
}

static void short_names(void)
{
    int ends[2];
    make_pair(ends);
    struct sockaddr_in address;
    memset(&address, 0xee, sizeof address);
    socklen_t len = 4;
    show("getsockname", getsockname(ends[0], (struct sockaddr *)&address, &len));
    printf("length %u, beyond untouched: %d\n", len, address.sin_addr.s_addr == 0xeeeeeeee);
    len = 100;
    show("getpeername", getpeername(ends[0], (struct sockaddr *)&address, &len));
    printf("length %u\n", len);
    int value = 0x7f7f7f7f;
    len = 1;
    show("getsockopt", getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &value, &len));
    printf("length %u value %#x\n", len, value);
    len = (socklen_t)-1;
    show("getsockopt", getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &value, &len));
}

static void vectors_of_many_parts(void)
{
    int ends[2];
    make_pair(ends);
    static char data[1024][7];
    static struct iovec parts[1025];
    for (int i = 0; i < 1024; i++) {
        memset(data[i], 'a' + i % 26, 7);
        parts[i] = (struct iovec){data[i], 7};
    }
    show("writev", writev(ends[0], parts, 1024));
    show("writev of 1025", writev(ends[0], parts, 1025));
    char got[8192];
    show("recv", recv(ends[1], got, 7168, MSG_WAITALL));
    int right = 1;
    for (int i = 0; i < 7168; i++)
        right &= got[i] == 'a' + i / 7 % 26;
    printf("right: %d\n", right);
}

/* --- descriptors */

static void flags_at_birth(void)
{
    int server = listening();
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    printf("socket: %d %d\n", !!(fcntl(fd, F_GETFL) & O_NONBLOCK), fcntl(fd, F_GETFD));
    close(connected_to(server));
    int accepted = MUST(accept4(server, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    printf("accept4: %d %d\n", !!(fcntl(accepted, F_GETFL) & O_NONBLOCK), fcntl(accepted, F_GETFD));
    close(connected_to(server));
    accepted = MUST(accept4(server, NULL, NULL, 0));
    printf("accept4: %d %d\n", !!(fcntl(accepted, F_GETFL) & O_NONBLOCK), fcntl(accepted, F_GETFD));
    show("accept4 of nonsense", accept4(server, NULL, NULL, 0x40000000));
    show("dup3 onto itself", dup3(accepted, accepted, 0));
    int copy = MUST(dup3(accepted, 77, O_CLOEXEC));
    printf("dup3: %d %d\n", copy, fcntl(copy, F_GETFD));
}

static void ranges_of_descriptors(void)
{
    int ends[2];
    make_pair(ends);
    int copy = MUST(dup2(ends[1], 100));
    MUST(close(ends[1]));
    show("close_range", close_range(90, 110, 0));
    char byte;
    show("recv of the peer", recv(ends[0], &byte, 1, 0));
    show("write to the closed", write(copy, "x", 1));
    make_pair(ends);
    show("close_range CLOEXEC", close_range(ends[1], ends[1], CLOSE_RANGE_CLOEXEC));
    printf("FD_CLOEXEC: %d\n", fcntl(ends[1], F_GETFD));
    MUST(write(ends[1], "y", 1));
    show("recv", recv(ends[0], &byte, 1, 0));
}

static void standard_io(void)
{
    int ends[2];
    make_pair(ends);
    FILE *left = fdopen(ends[0], "r+"), *right = fdopen(dup(ends[1]), "r+");
    fprintf(left, "a line of %d\nanother\n", 42);
    fflush(left);
    char line[100];
    for (int i = 0; i < 2; i++)
        printf("fgets: %s", fgets(line, sizeof line, right));
    fclose(left);
    close(ends[1]);
    printf("at the end: %d\n", fgets(line, sizeof line, right) == NULL && feof(right));
}

static int by_list(int fd, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int written = vdprintf(fd, format, values);
    va_end(values);
    return written;
}

/* dprintf(3) with values in registers of both kinds, on the stack, and of no number at all. */
static void formatted_text(void)
{
    int ends[2];
    make_pair(ends);
    char text[400];
    show("dprintf", dprintf(ends[0], "%d %s %.3f %c|", 42, "text", 2.5, 'x'));
    show("many", dprintf(ends[0], "%d %d %d %d %d %d %d %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f %s|", 1, 2, 3, 4, 5,
                         6, 7, .1, .2, .3, .4, .5, .6, .7, .8, .9, "end"));
    show("no value", dprintf(ends[0], "alone|"));
    show("nothing", dprintf(ends[0], "%s", ""));
    show("vdprintf", by_list(ends[0], "%s %ld %.2e\n", "by a list", 1L << 40, 1e100));
    memset(text, 0, sizeof text);
    size_t got = 0;
    while (!strchr(text, '\n'))
        got += MUST(recv(ends[1], text + got, sizeof text - 1 - got, 0));
    printf("%s", text);
    int pipes[2];
    MUST(pipe(pipes));
    show("to a pipe", dprintf(pipes[1], "%d %.1f\n", 7, 7.5));
    printf("%zd\n", read(pipes[0], text, sizeof text));
    MUST(shutdown(ends[0], SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    show("shut", dprintf(ends[0], "%d", 1));
    show("nowhere", dprintf(-1, "%d", 1));
}

static void *close_later(void *argument)
{
    pause_ms(100);
    MUST(shutdown(*(int *)argument, SHUT_RDWR));
    return NULL;
}

static void shutdown_wakes_accept(void)
{
    int server = listening();
    pthread_t thread;
    pthread_create(&thread, NULL, close_later, &server);
    show("accept", accept(server, NULL, NULL));
    pthread_join(thread, NULL);
}

static void spawned(void)
{
    int ends[2];
    make_pair(ends);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    pid_t pid;
    char *arguments[] = {"cat", NULL}, got[100] = {0};
    printf("posix_spawn: %d\n", posix_spawn(&pid, "/bin/cat", &actions, NULL, arguments, environ));
    MUST(close(ends[1]));
    MUST(send(ends[0], "through cat", 11, 0));
    MUST(shutdown(ends[0], SHUT_WR));
    MUST(recv(ends[0], got, 99, MSG_WAITALL));
    printf("recv: %s\n", got);
    int status;
    MUST(waitpid(pid, &status, 0));
    printf("status: %d\n", status);
}

static void vforked(void)
{
    int ends[2];
    make_pair(ends);
    char number[12], got[100] = {0};
    snprintf(number, sizeof number, "%d", ends[1]);
    char *arguments[] = {(char *)self, "write_to", number, NULL};
    pid_t pid = vfork();
    if (pid == 0) {
        execv(self, arguments);
        _exit(127);
    }
    MUST(close(ends[1]));
    MUST(recv(ends[0], got, 99, MSG_WAITALL));
    printf("recv: %s\n", got);
    int status;
    MUST(waitpid(pid, &status, 0));
    printf("status: %d\n", status);
}

/* A child that shares the memory changes what it sees, and ends; then the program makes its first sockets. */
static void vforked_and_shut_in(void)
{
    for (int i = 0; i < 2; i++) {
        pid_t pid = vfork();
        if (pid == 0)
            _exit(i ? unshare(CLONE_NEWNS) : chroot("/"));
        int status;
        MUST(waitpid(pid, &status, 0));
        printf("status: %d\n", status);
    }
    int ends[2], others[2];
    make_pair(ends);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        make_pair(others);
        MUST(send(others[0], "child", 5, 0));
        char got[100] = {0};
        MUST(recv(others[1], got, 99, 0));
        MUST(send(ends[1], got, strlen(got), 0));
        _exit(0);
    }
    char got[100] = {0};
    MUST(recv(ends[0], got, 99, 0));
    printf("recv: %s\n", got);
    int status;
    MUST(waitpid(pid, &status, 0));
    printf("status: %d\n", status);
}

/* --- waiting */

static void poll_of_odd_entries(void)
{
    int ends[2];
    make_pair(ends);
    struct pollfd entries[4] = {
        {.fd = -1, .events = POLLIN, .revents = 77},
        {.fd = 12345, .events = POLLIN},
        {.fd = ends[0], .events = POLLOUT},
        {.fd = ends[0], .events = POLLIN},
    };
    show("poll", poll(entries, 4, 0));
    for (int i = 0; i < 4; i++)
        printf("%d: %#x\n", i, entries[i].revents);
    show("poll of nothing", poll(NULL, 0, 10));
}

static void epoll_arguments(void)
{
    int ends[2], epoll = MUST(epoll_create1(EPOLL_CLOEXEC));
    make_pair(ends);
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = 0x1122334455667788};
    show("add", epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    show("wait for 0", epoll_wait(epoll, &event, 0, 0));
    show("wait", epoll_wait(epoll, &event, 1, 0));
    printf("data: %llx events: %#x\n", (unsigned long long)event.data.u64, event.events);
    show("add itself", epoll_ctl(epoll, EPOLL_CTL_ADD, epoll, &event));
    show("add what is closed", epoll_ctl(epoll, EPOLL_CTL_ADD, 12345, &event));
    show("unknown operation", epoll_ctl(epoll, 77, ends[0], &event));
    show("no epoll", epoll_ctl(ends[0], EPOLL_CTL_ADD, ends[1], &event));
    show("wait on no epoll", epoll_wait(ends[0], &event, 1, 0));
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    show("add exclusive", epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event));
    show("modify exclusive", epoll_ctl(epoll, EPOLL_CTL_MOD, ends[1], &event));
}

static void epoll_is_fair(void)
{
    int ends[8][2], epoll = MUST(epoll_create1(0)), seen[8] = {0};
    for (int i = 0; i < 8; i++) {
        make_pair(ends[i]);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[i][1], &event));
        MUST(send(ends[i][0], "x", 1, 0));
        wait_readable(ends[i][1]);
    }
    for (int i = 0; i < 8; i++) {
        struct epoll_event event;
        MUST(epoll_wait(epoll, &event, 1, 1000));
        seen[event.data.u32]++;
    }
    for (int i = 0; i < 8; i++)
        printf("%d ", seen[i]);
    printf("\n");
}

static int shared_epoll, wakeups;
static void *wait_on_shared(void *argument)
{
    struct epoll_event event;
    if (epoll_wait(shared_epoll, &event, 1, 500) == 1)
        __atomic_add_fetch(&wakeups, 1, __ATOMIC_SEQ_CST);
    return argument;
}

static void edges_wake_one_thread(void)
{
    int ends[2];
    make_pair(ends);
    shared_epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    MUST(epoll_ctl(shared_epoll, EPOLL_CTL_ADD, ends[1], &event));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, wait_on_shared, NULL);
    pause_ms(100);
    MUST(send(ends[0], "x", 1, 0));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("woken: %d\n", wakeups);
}

static void *hammer(void *argument)
{
    int fd = *(int *)argument;
    char byte;
    for (int i = 0; i < 2000; i++) {
        MUST(send(fd, "x", 1, 0));
        MUST(recv(fd, &byte, 1, 0));
    }
    return NULL;
}

static void *echo(void *argument)
{
    int fd = *(int *)argument;
    char buffer[100];
    for (ssize_t len; (len = MUST(recv(fd, buffer, sizeof buffer, 0))) > 0;)
        MUST(send(fd, buffer, len, 0));
    return NULL;
}

static void many_threads(void)
{
    int ends[8][2];
    pthread_t clients[8], servers[8];
    for (int i = 0; i < 8; i++) {
        make_pair(ends[i]);
        pthread_create(&servers[i], NULL, echo, &ends[i][1]);
        pthread_create(&clients[i], NULL, hammer, &ends[i][0]);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(clients[i], NULL);
        MUST(shutdown(ends[i][0], SHUT_RDWR));
        pthread_join(servers[i], NULL);
    }
    printf("done\n");
}

static void send_file_moves_the_position(void)
{
    int ends[2];
    make_pair(ends);
    FILE *file = tmpfile();
    fputs("0123456789", file);
    fflush(file);
    int fd = fileno(file);
    MUST(lseek(fd, 3, SEEK_SET));
    show("sendfile", sendfile(ends[0], fd, NULL, 4));
    show("position", lseek(fd, 0, SEEK_CUR));
    show("rest", sendfile(ends[0], fd, NULL, 100));
    show("at the end", sendfile(ends[0], fd, NULL, 100));
    off_t offset = 0;
    show("from an offset", sendfile(ends[0], fd, &offset, 2));
    show("offset", offset);
    char got[100] = {0};
    show("recv", recv(ends[1], got, 9, MSG_WAITALL));
    printf("%s\n", got);
}

static void *cancel_soon(void *thread)
{
    pause_ms(100);
    pthread_cancel(*(pthread_t *)thread);
    return NULL;
}

static int spliced_ends[2], spliced_pipe[2];
static void *splice_for_ever(void *unused)
{
    splice(spliced_ends[1], NULL, spliced_pipe[1], NULL, 100, 0);
    return unused;
}

static void *splice_to_the_connection_for_ever(void *unused)
{
    splice(spliced_pipe[0], NULL, spliced_ends[1], NULL, 100, 0);
    return unused;
}

static void spliced(void)
{
    int *ends = spliced_ends, *pipes = spliced_pipe;
    make_pair(ends);
    MUST(pipe(pipes));
    on_signal(SIGALRM, 0);
    alarm_in_ms(100);
    show("interrupted for octets", splice(ends[1], NULL, pipes[1], NULL, 100, 0));
    alarm_in_ms(100);
    show("interrupted for the pipe", splice(pipes[0], NULL, ends[1], NULL, 100, 0));
    on_signal(SIGALRM, SA_RESTART);
    for (int way = 0; way < 2; way++) {
        alarm_in_ms(100);
        int child = MUST(fork());
        if (child == 0) {
            pause_ms(300);
            MUST(way ? write(pipes[1], "late", 4) : send(ends[0], "late", 4, 0));
            _exit(0);
        }
        show("restarted", way ? splice(pipes[0], NULL, ends[1], NULL, 100, 0) : splice(ends[1], NULL, pipes[1], NULL, 100, 0));
        MUST(waitpid(child, NULL, 0));
        char text[8] = "";
        show("read", way ? recv(ends[0], text, 4, MSG_WAITALL) : read(pipes[0], text, 4));
        puts(text);
    }
    printf("signals: %d\n", (int)signals);
    for (int way = 0; way < 2; way++) {
        pthread_t thread, canceller;
        void *result;
        pthread_create(&thread, NULL, way ? splice_to_the_connection_for_ever : splice_for_ever, NULL);
        pthread_create(&canceller, NULL, cancel_soon, &thread);
        pthread_join(thread, &result);
        pthread_join(canceller, NULL);
        printf("cancelled: %d\n", result == PTHREAD_CANCELED);
    }
    MUST(send(ends[0], "goes on", 7, 0));
    show("afterwards", syscall(SYS_splice, ends[1], NULL, pipes[1], NULL, 100, 0));
    show("and back", syscall(SYS_splice, pipes[0], NULL, ends[1], NULL, 100, 0));
}

static void low_water_mark(void)
{
    int ends[2], mark = 4;
    make_pair(ends);
    MUST(setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    MUST(send(ends[0], "abc", 3, 0));
    struct pollfd entry = {.fd = ends[1], .events = POLLIN};
    show("below", poll(&entry, 1, 100));
    MUST(send(ends[0], "d", 1, 0));
    show("reached", poll(&entry, 1, 1000));
}

static void event_descriptors_beside_sockets(void)
{
    int ends[2], event = MUST(eventfd(0, 0));
    make_pair(ends);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    FD_SET(event, &set);
    uint64_t one = 1;
    MUST(write(event, &one, sizeof one));
    MUST(send(ends[0], "x", 1, 0));
    wait_readable(ends[1]);
    int highest = event > ends[1] ? event : ends[1];
    show("select", select(highest + 1, &set, NULL, NULL, NULL));
    MUST(read(event, &one, sizeof one));
    FD_SET(event, &set);
    show("select", select(highest + 1, &set, NULL, NULL, NULL));
    printf("socket %d event %d\n", !!FD_ISSET(ends[1], &set), !!FD_ISSET(event, &set));
}

/* What a thread sleeps in that is to be cancelled: its sockets, and the call. */
static struct {
    int listener, ends[2], datagrams, set, event_set, event;
} sleepy;

static char sleepy_text[1 << 16];
static int cleaned;

static void clean(void *argument)
{
    (void)argument;
    cleaned++;
}

static void sleep_in(int call)
{
    int fd = sleepy.ends[1];
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr messages = {.msg_hdr = message};
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    struct epoll_event event;
    struct timespec hour = {3600, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    switch (call) {
    case 0: accept(sleepy.listener, NULL, NULL); break;
    case 1: accept4(sleepy.listener, NULL, NULL, SOCK_CLOEXEC); break;
    case 2: recv(fd, &byte, 1, 0); break;
    case 3: recvfrom(fd, &byte, 1, 0, NULL, NULL); break;
    case 4: recvmsg(fd, &message, 0); break;
    case 5: read(fd, &byte, 1); break;
    case 6: readv(fd, &part, 1); break;
    case 7: recv(sleepy.datagrams, &byte, 1, 0); break;
    case 8: recvmmsg(sleepy.datagrams, &messages, 1, 0, NULL); break;
    case 9: poll(&entry, 1, -1); break;
    case 10: ppoll(&entry, 1, &hour, NULL); break;
    case 11: select(fd + 1, &set, NULL, NULL, NULL); break;
    case 12: pselect(fd + 1, &set, NULL, NULL, &hour, NULL); break;
    case 13: epoll_wait(sleepy.set, &event, 1, -1); break;
    case 14: epoll_pwait2(sleepy.set, &event, 1, &hour, NULL); break;
    case 15: epoll_wait(sleepy.event_set, &event, 1, -1); break;
    case 16: for (;;) send(fd, sleepy_text, sizeof sleepy_text, 0);
    case 17: for (;;) write(fd, sleepy_text, sizeof sleepy_text);
    case 18: part = (struct iovec){sleepy_text, sizeof sleepy_text}; for (;;) writev(fd, &part, 1);
    case 19: part = (struct iovec){sleepy_text, sizeof sleepy_text}; for (;;) sendmsg(fd, &message, 0);
    }
}

enum { SLEEPS = 20, CANCELLED_CALLS_THAT_SEND = 16 };

static void prepare_to_sleep(void)
{
    sleepy.listener = listening();
    make_pair(sleepy.ends);
    sleepy.datagrams = bound(SOCK_DGRAM);
    sleepy.event = MUST(eventfd(0, 0));
    struct epoll_event event = {.events = EPOLLIN};
    sleepy.set = MUST(epoll_create1(0));
    MUST(epoll_ctl(sleepy.set, EPOLL_CTL_ADD, sleepy.ends[1], &event));
    sleepy.event_set = MUST(epoll_create1(0));
    MUST(epoll_ctl(sleepy.event_set, EPOLL_CTL_ADD, sleepy.event, &event));
    cleaned = 0;
}

static void *sleep_until_cancelled(void *call)
{
    pthread_cleanup_push(clean, NULL);
    sleep_in((int)(long)call);
    pthread_cleanup_pop(0);
    return NULL;
}

/* Whether a thread is cancelled within five seconds. */
static int is_cancelled(pthread_t thread)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 5;
    void *result = NULL;
    if (pthread_timedjoin_np(thread, &result, &end) != 0) {
        puts("it goes on");
        fflush(stdout);
        _exit(1);
    }
    return result == PTHREAD_CANCELED;
}

static void cancelled_while_blocked(void)
{
    for (int call = 0; call < SLEEPS; call++) {
        prepare_to_sleep();
        pthread_t thread;
        pthread_create(&thread, NULL, sleep_until_cancelled, (void *)(long)call);
        pause_ms(50);
        pthread_cancel(thread);
        printf("%d: cancelled %d ", call, is_cancelled(thread));
        printf("cleaned %d\n", cleaned);
        /* Whoever comes next finds everything as it was. */
        char byte = 'x';
        close(connected_to(sleepy.listener));
        close(MUST(accept(sleepy.listener, NULL, NULL)));
        MUST(send(sleepy.ends[0], &byte, 1, 0));
        wait_readable(sleepy.ends[1]);
        show("recv", recv(sleepy.ends[1], &byte, 1, 0));
        if (call < CANCELLED_CALLS_THAT_SEND)
            show("send", send(sleepy.ends[1], &byte, 1, 0));
        close(sleepy.listener), close(sleepy.ends[0]), close(sleepy.ends[1]), close(sleepy.datagrams);
        close(sleepy.set), close(sleepy.event_set), close(sleepy.event);
    }
}

static volatile int is_asked;
static void *call_when_asked(void *call)
{
    while (!is_asked)
        ;
    sleep_in((int)(long)call);
    return NULL;
}

static void cancelled_before_a_call(void)
{
    static const int calls[] = {0, 2, 5, 9, 11, 13, 16};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        prepare_to_sleep();
        int waits = connected_to(sleepy.listener);
        MUST(send(sleepy.ends[0], "x", 1, 0));
        wait_readable(sleepy.ends[1]);
        wait_readable(sleepy.listener);
        pthread_t thread;
        is_asked = 0;
        pthread_create(&thread, NULL, call_when_asked, (void *)(long)calls[i]);
        pthread_cancel(thread);
        is_asked = 1;
        printf("%d: cancelled %d\n", calls[i], is_cancelled(thread));
        /* What was there is still there, and nothing was sent. */
        char byte;
        close(MUST(accept(sleepy.listener, NULL, NULL)));
        show("recv", recv(sleepy.ends[1], &byte, 1, MSG_DONTWAIT));
        show("sent", recv(sleepy.ends[0], &byte, 1, MSG_DONTWAIT));
        close(waits);
    }
}

static void *receive_without_cancellation(void *argument)
{
    (void)argument;
    char byte;
    struct epoll_event event;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    show("epoll_wait", epoll_wait(sleepy.set, &event, 1, 500));
    show("recv", recv(sleepy.ends[1], &byte, 1, 0));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    recv(sleepy.ends[1], &byte, 1, 0);
    puts("not reached");
    return NULL;
}

static void cancellation_switched_off(void)
{
    prepare_to_sleep();
    pthread_t thread;
    pthread_create(&thread, NULL, receive_without_cancellation, NULL);
    pause_ms(100);
    pthread_cancel(thread);
    pause_ms(600);
    MUST(send(sleepy.ends[0], "x", 1, 0));
    printf("cancelled %d\n", is_cancelled(thread));
}

static void *cancellable_at_any_time(void *argument)
{
    (void)argument;
    char byte;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;)
        recv(sleepy.ends[1], &byte, 1, MSG_DONTWAIT);
    return NULL;
}

static void *sleep_cancellable_at_any_time(void *call)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    sleep_in((int)(long)call);
    return NULL;
}

static void cancelled_at_any_time(void)
{
    prepare_to_sleep();
    for (int round = 0; round < 200; round++) {
        pthread_t busy, asleep;
        pthread_create(&busy, NULL, cancellable_at_any_time, NULL);
        pthread_create(&asleep, NULL, sleep_cancellable_at_any_time, (void *)(long)(round % 16));
        struct timespec moment = {0, round * 7919 % 300000};
        nanosleep(&moment, NULL);
        pthread_cancel(busy);
        pthread_cancel(asleep);
        if (!is_cancelled(busy) || !is_cancelled(asleep))
            puts("not cancelled");
    }
    char byte;
    MUST(send(sleepy.ends[0], "x", 1, 0));
    wait_readable(sleepy.ends[1]);
    show("recv", recv(sleepy.ends[1], &byte, 1, 0));
}

static volatile int about_to_sleep;

static void *say_so_and_sleep(void *call)
{
    about_to_sleep = 1;
    sleep_in((int)(long)call);
    return NULL;
}

/* The request comes at any instruction of a call that is about to sleep. */
static void cancelled_while_falling_asleep(void)
{
    prepare_to_sleep();
    for (int round = 0; round < 200 * CANCELLED_CALLS_THAT_SEND; round++) {
        pthread_t thread;
        about_to_sleep = 0;
        pthread_create(&thread, NULL, say_so_and_sleep, (void *)(long)(round % CANCELLED_CALLS_THAT_SEND));
        while (!about_to_sleep)
            sched_yield();
        for (volatile int wait = round / CANCELLED_CALLS_THAT_SEND * 40; wait > 0; wait--)
            ;
        pthread_cancel(thread);
        if (!is_cancelled(thread))
            puts("not cancelled");
    }
    puts("all are over");
}

static void one_of_many_is_cancelled(void)
{
    prepare_to_sleep();
    pthread_t threads[4];
    static const int calls[] = {13, 15, 2, 0};
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (int n = 0; n < 4; n++)
            pthread_create(&threads[n], NULL, sleep_until_cancelled, (void *)(long)calls[i]);
        pause_ms(50);
        for (int n = 3; n >= 0; n--) {
            pthread_cancel(threads[n]);
            printf("%d: cancelled %d ", calls[i], is_cancelled(threads[n]));
            printf("cleaned %d\n", cleaned);
        }
    }
}

static void *exit_by_a_handler(void *in_a_call)
{
    char byte;
    pthread_cleanup_push(clean, NULL);
    if (in_a_call)
        recv(sleepy.ends[1], &byte, 1, 0);
    else
        raise(SIGUSR1);
    pthread_cleanup_pop(0);
    return "not reached";
}

static void handlers_end_their_thread(void)
{
    prepare_to_sleep();
    signal(SIGUSR1, handler_exits);
    for (long in_a_call = 0; in_a_call < 2; in_a_call++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, exit_by_a_handler, (void *)in_a_call);
        pause_ms(50);
        if (in_a_call)
            pthread_kill(thread, SIGUSR1);
        pthread_join(thread, &result);
        printf("%s, cleaned %d\n", (char *)result, cleaned);
    }
    char byte;
    MUST(send(sleepy.ends[0], "x", 1, 0));
    show("recv", recv(sleepy.ends[1], &byte, 1, 0));
}

/* Lets this process read, write, poll and end, as sshd's sandbox does, and little else. */
static void confine(void)
{
    static const int allowed[] = {
        SYS_read, SYS_write, SYS_close, SYS_poll, SYS_ppoll, SYS_exit, SYS_exit_group, SYS_brk, SYS_mmap, SYS_munmap,
        SYS_mprotect, SYS_madvise, SYS_getpid, SYS_gettid, SYS_futex, SYS_rt_sigprocmask, SYS_clock_gettime,
        SYS_clock_nanosleep, SYS_getrandom, SYS_shutdown, SYS_recvfrom, SYS_sendto,
    };
    enum { COUNT = sizeof allowed / sizeof *allowed };
    struct sock_filter filter[2 * COUNT + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < COUNT; i++) {
        filter[2 * i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        filter[2 * i + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[2 * COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {.len = 2 * COUNT + 2, .filter = filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void confined_by_a_filter(void)
{
    int ends[2], status;
    make_pair(ends);
    int child = MUST(fork());
    if (child == 0) {
        char byte = 0;
        confine();
        for (int i = 0; i < 20; i++) {
            struct pollfd entry = {.fd = ends[1], .events = POLLIN};
            if (i % 2 && poll(&entry, 1, 5000) != 1)
                _exit(1);
            if (recv(ends[1], &byte, 1, 0) != 1 || send(ends[1], &byte, 1, 0) != 1)
                _exit(2);
        }
        struct pollfd entry = {.fd = ends[1], .events = POLLIN};
        status = poll(&entry, 1, 20);
        shutdown(ends[1], SHUT_WR);
        close(ends[1]);
        _exit(3 + status);
    }
    close(ends[1]);
    for (int i = 0; i < 20; i++) {
        char byte = 'a' + i;
        pause_ms(5);
        MUST(send(ends[0], &byte, 1, 0));
        if (recv(ends[0], &byte, 1, 0) != 1 || byte != 'a' + i)
            puts("no echo");
    }
    MUST(waitpid(child, &status, 0));
    printf("exited %d status %d\n", WIFEXITED(status), WEXITSTATUS(status));
    char byte;
    show("end", recv(ends[0], &byte, 1, 0));
}

extern int capset(void *header, const void *data);

/* Takes CAP_SETUID off the effective capabilities of this thread, and off the others if `wholly`; or takes it back. */
static int with_setuid(int is_effective, int wholly, int by_number)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    MUST(syscall(SYS_capget, &header, data));
    data[0].effective &= ~(1 << CAP_SETUID);
    if (is_effective)
        data[0].effective |= 1 << CAP_SETUID;
    if (wholly)
        data[0].permitted &= ~(1 << CAP_SETUID);
    return by_number ? syscall(SYS_capset, &header, data) : capset(&header, data);
}

static volatile sig_atomic_t urgent_signals;
static void note_urgent(int number)
{
    urgent_signals += number == SIGURG;
}

static void *ends_at_once(void *nothing)
{
    return nothing;
}

/* Changes the rights of one thread, and then the user of all: does each thread of the process get the same answer? */
static void gives_up_rights(int way)
{
    int ends[2];
    make_pair(ends);
    signal(SIGURG, note_urgent);
    /* The C library prepares for threads when it makes the first. */
    pthread_t thread;
    pthread_create(&thread, NULL, ends_at_once, NULL);
    pthread_join(thread, NULL);
    MUST(fcntl(ends[1], F_SETOWN, getpid()));
    switch (way) {
    case 0:
    case 1:
        show("capset", with_setuid(0, 1, way));
        break;
    case 2:
        show("prctl", prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
        show("setuid", setuid(65534));
        show("capset", with_setuid(1, 0, 0));
        break;
    case 3:
        show("setresuid", syscall(SYS_setresuid, 65534, 65534, 65534));
        break;
    }
    show("setuid", setuid(way < 2 ? 65534 : 0));
    show("setuid", setuid(65533));
    printf("user %d\n", getuid());
    MUST(send(ends[0], "X", 1, MSG_OOB));
    for (int turn = 0; turn < 5000 && !urgent_signals; turn++)
        pause_ms(1);
    printf("signals %d\n", urgent_signals);
}

/* A program that asks for SIGURG may change the rights of the thread that runs, as ProFTPD does. */
static void rights_are_given_up_by_one_thread(void)
{
    for (int way = 0; way < 4; way++) {
        int child = MUST(fork()), status;
        if (child == 0) {
            gives_up_rights(way);
            fflush(stdout);
            _exit(0);
        }
        MUST(waitpid(child, &status, 0));
        printf("way %d: %s %d\n", way, WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

/* The same calls by their numbers, as libuv and others make them. */
static void calls_by_number(void)
{
    struct sockaddr_in address = loopback();
    socklen_t len = sizeof address;
    int server = MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0)), one = 1;
    show("setsockopt", syscall(SYS_setsockopt, server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    show("bind", syscall(SYS_bind, server, &address, len));
    show("listen", syscall(SYS_listen, server, 5));
    MUST(syscall(SYS_getsockname, server, &address, &len));
    int client = MUST(syscall(SYS_socket, AF_INET, SOCK_STREAM, 0));
    show("connect", syscall(SYS_connect, client, &address, len));
    struct pollfd entry = {.fd = server, .events = POLLIN};
    show("poll", syscall(SYS_poll, &entry, 1, 5000));
    int end = MUST(syscall(SYS_accept4, server, NULL, NULL, SOCK_CLOEXEC));
    char text[8] = "";
    struct iovec part = {"ab", 2};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    show("write", syscall(SYS_write, client, "a", 1));
    show("sendto", syscall(SYS_sendto, client, "b", 1, 0, NULL, 0));
    show("sendmsg", syscall(SYS_sendmsg, client, &message, 0));
    show("writev", syscall(SYS_writev, client, &part, 1));
    show("recvfrom", syscall(SYS_recvfrom, end, text, 6, MSG_WAITALL, NULL, NULL));
    puts(text);
    int set = MUST(syscall(SYS_epoll_create1, 0));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    show("epoll_ctl", syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, end, &event));
    show("epoll_pwait", syscall(SYS_epoll_pwait, set, &event, 1, 0, NULL, 8));
    MUST(syscall(SYS_write, client, "c", 1));
    show("epoll_pwait", syscall(SYS_epoll_pwait, set, &event, 1, 5000, NULL, 8));
    struct timespec moment = {0, 1000};
    entry = (struct pollfd){.fd = end, .events = POLLIN};
    show("ppoll", syscall(SYS_ppoll, &entry, 1, &moment, NULL, 8));
    show("read", syscall(SYS_read, end, text, 6));
    int other = MUST(syscall(SYS_dup, end));
    MUST(syscall(SYS_close, end));
    int child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), status;
    if (child == 0) {
        syscall(SYS_write, other, "from the child", 14);
        _exit(3);
    }
    MUST(waitpid(child, &status, 0));
    show("status", WEXITSTATUS(status));
    show("read", read(client, text, 4));
    on_signal(SIGUSR1, 0);
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action;
    show("rt_sigaction", syscall(SYS_rt_sigaction, SIGUSR1, NULL, &action, 8));
    printf("handler %d\n", action.handler == (void *)count_signal);
    show("shutdown", syscall(SYS_shutdown, client, SHUT_WR));
    show("read", read(other, text, 4));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
#define CASE(name) {#name, name}
    CASE(interrupted), CASE(restarted), CASE(restarted_by_one_of_two), CASE(handlers_receive),
    CASE(handlers_fork), CASE(handlers_jump), CASE(calls_that_were_left_hold_nothing),
    CASE(a_handler_forks_and_both_go_on), CASE(timed_receive_is_not_restarted), CASE(masks_while_waiting),
    CASE(many_messages), CASE(many_times), CASE(messages_on_streams), CASE(short_names),
    CASE(vectors_of_many_parts),
    CASE(flags_at_birth), CASE(ranges_of_descriptors), CASE(standard_io), CASE(formatted_text),
    CASE(shutdown_wakes_accept), CASE(spawned), CASE(vforked), CASE(vforked_and_shut_in),
    CASE(poll_of_odd_entries), CASE(epoll_arguments), CASE(epoll_is_fair),
    CASE(edges_wake_one_thread), CASE(many_threads), CASE(send_file_moves_the_position), CASE(spliced), CASE(low_water_mark),
    CASE(event_descriptors_beside_sockets), CASE(cancelled_while_blocked), CASE(cancelled_before_a_call),
    CASE(cancellation_switched_off), CASE(cancelled_at_any_time), CASE(cancelled_while_falling_asleep), CASE(one_of_many_is_cancelled),
    CASE(handlers_end_their_thread), CASE(calls_by_number), CASE(confined_by_a_filter),
    CASE(rights_are_given_up_by_one_thread),
};

int main(int count, char **arguments)
{
    self = arguments[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 3 && !strcmp(arguments[1], "write_to"))
        return write(atoi(arguments[2]), "from exec", 9) != 9;
    alarm(30);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (count == 2 && !strcmp(arguments[1], "--list"))
            puts(cases[i].name);
        if (count == 2 && !strcmp(arguments[1], cases[i].name)) {
            cases[i].run();
            return 0;
        }
    }
    return count != 2;
}
