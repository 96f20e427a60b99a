/* What do calls say of pointers that lead nowhere? One behaviour by name; what it prints must be the same on every
 * stack: pointers CASE. Both ends live in one process, on the loopback. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

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

static const char *place;

static void show(const char *what, long result)
{
    if (result < 0)
        printf("%s: %s: %s\n", place, what, strerrorname_np(errno));
    else
        printf("%s: %s: %ld\n", place, what, result);
}

#define SHOW(call) show(#call, (long)(call))

static int listener, client, server, sender, receiver, set;
static struct sockaddr_in name;

static void wait_readable(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    MUST(poll(&entry, 1, 5000));
}

static void drain(int fd)
{
    static char text[1 << 16];
    while (recv(fd, text, sizeof text, MSG_DONTWAIT) > 0)
        ;
}

static void open_all(void)
{
    socklen_t len = sizeof name;
    name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(listener, (void *)&name, sizeof name));
    MUST(listen(listener, 8));
    MUST(getsockname(listener, (void *)&name, &len));
    client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(client, (void *)&name, sizeof name));
    server = MUST(accept(listener, NULL, NULL));
    receiver = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(bind(receiver, (void *)&any, sizeof any));
    MUST(getsockname(receiver, (void *)&any, &len));
    sender = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(connect(sender, (void *)&any, sizeof any));
    set = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, server, &event));
}

/* Calls that read `p`. */
static void sends(void *p)
{
    struct iovec part = {p, 1000};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    SHOW(send(client, p, 1000, 0));
    SHOW(write(client, p, 1));
    SHOW(writev(client, &part, 1));
    SHOW(writev(client, p, 2));
    SHOW(sendmsg(client, &message, 0));
    SHOW(sendmsg(client, p, 0));
    message.msg_iov = p;
    SHOW(sendmsg(client, &message, 0));
    SHOW(send(sender, p, 1000, 0));
    part = (struct iovec){"x", 1};
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = p, .msg_controllen = 32};
    SHOW(sendmsg(sender, &message, 0));
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_name = p, .msg_namelen = 16};
    SHOW(sendmsg(sender, &message, 0));
    SHOW(sendto(sender, "x", 1, 0, p, 16));
    SHOW(sendmmsg(sender, p, 1, 0));
    drain(receiver);
}

static void names(void *p)
{
    int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    socklen_t len = 16;
    SHOW(bind(fresh, p, 16));
    SHOW(connect(fresh, p, 16));
    SHOW(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, p, 4));
    SHOW(setsockopt(fresh, IPPROTO_IP, IP_TTL, p, 4));
    SHOW(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, p, &len));
    int value;
    SHOW(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &value, p));
    len = sizeof name;
    SHOW(getsockname(client, p, &len));
    SHOW(getpeername(client, p, &len));
    struct sockaddr_in room;
    SHOW(getsockname(client, (void *)&room, p));
    SHOW(getpeername(client, (void *)&room, p));
    SHOW(ioctl(server, FIONREAD, p));
    MUST(close(fresh));
}

/* Calls that write to `p`. What was sent to a stream is still there afterwards. */
static void receives(void *p)
{
    char text[16] = "";
    MUST(send(client, "hello", 5, 0));
    wait_readable(server);
    struct iovec part = {p, 1000};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    SHOW(recv(server, p, 1000, 0));
    SHOW(recv(server, p, 1000, MSG_PEEK));
    SHOW(read(server, p, 1000));
    SHOW(readv(server, &part, 1));
    SHOW(readv(server, p, 2));
    SHOW(recvmsg(server, &message, 0));
    SHOW(recvmsg(server, p, 0));
    struct iovec parts[2] = {{text, 2}, {p, 3}};
    SHOW(readv(server, parts, 2));
    SHOW(recv(server, text, sizeof text, 0));
    puts(text);
    MUST(send(sender, "datagram", 8, 0));
    wait_readable(receiver);
    SHOW(recv(receiver, p, 1000, MSG_PEEK));
    SHOW(recv(receiver, p, 1000, 0));
    SHOW(recv(receiver, text, sizeof text, MSG_DONTWAIT));
    socklen_t len = 16;
    MUST(send(sender, "datagram", 8, 0));
    wait_readable(receiver);
    SHOW(recvfrom(receiver, text, sizeof text, 0, p, &len));
    MUST(send(sender, "datagram", 8, 0));
    wait_readable(receiver);
    SHOW(recvfrom(receiver, text, sizeof text, 0, (void *)&name, p));
    MUST(send(sender, "datagram", 8, 0));
    wait_readable(receiver);
    SHOW(recvmmsg(receiver, p, 1, MSG_DONTWAIT, NULL));
    SHOW(recv(receiver, text, sizeof text, MSG_DONTWAIT));
}

static void accepts(void *p)
{
    socklen_t len = 16;
    struct sockaddr_in room;
    for (int i = 0; i < 2; i++) {
        int one = MUST(socket(AF_INET, SOCK_STREAM, 0));
        struct sockaddr_in to;
        socklen_t room_len = sizeof to;
        MUST(getsockname(listener, (void *)&to, &room_len));
        MUST(connect(one, (void *)&to, sizeof to));
        wait_readable(listener);
        if (i)
            SHOW(accept(listener, (void *)&room, p));
        else
            SHOW(accept(listener, p, &len));
        struct pollfd entry = {.fd = one, .events = POLLIN};
        /* Linux closes what it could not name. */
        SHOW(poll(&entry, 1, 1000));
        MUST(close(one));
    }
}

static void waits(void *p)
{
    /* By number where the C library would read what it is given. */
    SHOW(poll(p, 2, 0));
    SHOW(ppoll(p, 2, NULL, NULL));
    SHOW(select(64, p, NULL, NULL, NULL));
    SHOW(select(64, NULL, NULL, p, NULL));
    fd_set ours;
    FD_ZERO(&ours);
    FD_SET(client, &ours);
    SHOW(select(64, &ours, p, NULL, NULL));
    SHOW(syscall(SYS_select, 64, NULL, &ours, NULL, p));
    SHOW(syscall(SYS_pselect6, 64, NULL, &ours, NULL, p, NULL));
    struct pollfd entry = {.fd = client, .events = POLLOUT};
    SHOW(syscall(SYS_ppoll, &entry, 1, p, NULL, 8));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, client, p));
    SHOW(epoll_wait(set, p, 4, 0));
    MUST(send(client, "x", 1, 0));
    wait_readable(server);
    SHOW(epoll_wait(set, p, 4, 1000));
    struct epoll_event event;
    SHOW(epoll_wait(set, &event, 1, 1000));
    SHOW(epoll_pwait2(set, &event, 1, p, NULL));
    drain(server);
}

static void everything(const char *where, void *p)
{
    place = where;
    sends(p);
    names(p);
    receives(p);
    waits(p);
}

static void lead_nowhere(void)
{
    open_all();
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(pages, PAGE, PROT_NONE));
    everything("a page without rights", pages + 64);
    everything("the first page", (void *)0x40);
    everything("no address", (void *)0xdead000000000000);
    everything("the kernel's", (void *)0xffffffff81000000);
    place = "a page without rights";
    accepts(pages + 64);
}

static void are_beyond_a_file(void)
{
    open_all();
    int file = MUST(memfd_create("short", 0));
    MUST(ftruncate(file, PAGE));
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    everything("beyond a file", pages + PAGE);
}

static void may_not_be_written(void)
{
    open_all();
    char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    place = "read only";
    receives(page);
    names(page);
    struct epoll_event event;
    MUST(send(client, "x", 1, 0));
    wait_readable(server);
    SHOW(epoll_wait(set, (void *)page, 4, 1000));
    SHOW(epoll_wait(set, &event, 1, 1000));
}

/* What is before the page that is not there may be sent, or not; both are right if it is in one piece. */
static void lead_out_of_memory(void)
{
    open_all();
    char *pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(pages + 2 * PAGE, PAGE, PROT_NONE));
    place = "half";
    memset(pages, 'a', 2 * PAGE);
    SHOW(send(sender, pages + 2 * PAGE - 8, 16, 0));
    SHOW(recv(receiver, pages, 16, MSG_DONTWAIT));
    SHOW(send(client, pages + 2 * PAGE - 8, 16, 0));
    struct iovec parts[2] = {{pages, 4}, {pages + 2 * PAGE, 4}};
    SHOW(writev(client, parts, 2));
    SHOW(recv(server, pages, 100, MSG_DONTWAIT));
    MUST(send(client, "0123456789", 10, 0));
    wait_readable(server);
    SHOW(recv(server, pages + 2 * PAGE - 5, 100, 0));
    SHOW(recv(server, pages + 2 * PAGE - 10, 100, 0));
    printf("%.10s\n", pages + 2 * PAGE - 10);
    /* A buffer may claim more than there is of memory if nothing is written there. */
    MUST(send(client, "abc", 3, 0));
    wait_readable(server);
    SHOW(recv(server, pages + 2 * PAGE - 3, 1 << 20, 0));
    SHOW(recv(server, pages, LONG_MAX, MSG_DONTWAIT));
}

static sigjmp_buf back;
static volatile sig_atomic_t faults;
static void jump(int number, siginfo_t *info, void *context)
{
    (void)context;
    faults = faults + 1;
    printf("signal %d, code %d, at %p\n", number, info->si_code, info->si_code > 0 ? info->si_addr : 0);
    siglongjmp(back, 1);
}

static void set_handler(int number, void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO}, before;
    MUST(sigaction(number, &action, &before));
    printf("before: %s\n", before.sa_handler == SIG_DFL   ? "default"
                           : before.sa_handler == SIG_IGN ? "ignored"
                                                          : "a handler");
}

/* Returns how a child ends. */
static void ends(const char *what, void (*run)(void))
{
    int status;
    fflush(stdout);
    pid_t child = MUST(fork());
    if (child == 0) {
        run();
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    printf("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static char *volatile nowhere = (char *)0x40;
static void touch(void) { *nowhere = 1; }
static void send_fault(void) { kill(getpid(), SIGSEGV); }
static void by_default(void)
{
    signal(SIGSEGV, SIG_DFL);
    touch();
}
static void ignored(void)
{
    signal(SIGSEGV, SIG_IGN);
    kill(getpid(), SIGSEGV);
    touch();
}
static void blocked(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    touch();
}
static void once(void)
{
    struct sigaction action = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    if (!sigsetjmp(back, 1))
        touch();
    touch();
}
static void waiting(void)
{
    char octet;
    alarm(1);
    signal(SIGALRM, SIG_IGN);
    signal(SIGSEGV, SIG_IGN);
    kill(getpid(), SIGSEGV);
    struct timeval soon = {0, 100000};
    setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    show("recv", recv(server, &octet, 1, 0));
}

static void are_the_programs_own(void)
{
    open_all();
    place = "own";
    ends("a fault", touch);
    ends("a signal", send_fault);
    ends("by default", by_default);
    ends("ignored", ignored);
    ends("blocked", blocked);
    ends("once", once);
    ends("waiting", waiting);
    set_handler(SIGSEGV, jump);
    SHOW(send(client, (void *)0x40, 10, 0));
    printf("faults %d\n", faults);
    if (!sigsetjmp(back, 1))
        touch();
    SHOW(send(client, (void *)0x40, 10, 0));
    if (!sigsetjmp(back, 1))
        raise(SIGSEGV);
    printf("faults %d\n", faults);
    set_handler(SIGSEGV, jump);
    signal(SIGSEGV, SIG_DFL);
    set_handler(SIGSEGV, jump);
    SHOW(send(client, (void *)0x40, 10, 0));
    printf("faults %d\n", faults);
    signal(SIGSEGV, SIG_DFL);
    ends("a fault", touch);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
#define CASE(name) {#name, name}
    CASE(lead_nowhere), CASE(are_beyond_a_file), CASE(may_not_be_written), CASE(lead_out_of_memory),
    CASE(are_the_programs_own),
};

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
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
