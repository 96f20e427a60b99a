/* Is the state of a program's sockets sound at every instruction? A debugger that executes one instruction at a time.
 *
 *   stepping WAY HANDLER EVERY [FIRST]    at each EVERY-th instruction, from the FIRST on, of a round of calls, one in each round,
 *                                         HANDLER interrupts; WAY is `symbols` or `raw` (system calls by an instruction)
 *   stepping WAY death EVERY [FIRST]      a process with sockets of its family is killed there, and the family goes on
 *   stepping WAY stop EVERY [FIRST]       it is stopped there before, and its brother's own sockets do not wait for it
 *   stepping WAY count                    how many instructions the calls take, in which object
 *
 * HANDLER is `sockets` (uses sockets), `forks` (the child uses sockets) or `jumps` (leaves by siglongjmp). A round is socket, connect, epoll_wait, accept, send, recv and close on a connection to itself. Everything is on the
 * loopback. Prints what was checked, and nothing that differs from run to run; on standard error how many instructions. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "instruction.h"

enum { DEADLINE_S = 60 };

static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("FAILED: ");
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

#define MUST(call) must((long)(call), #call, __LINE__)
static long must(long result, const char *what, int line)
{
    if (result < 0)
        fail("line %d: %s: %s", line, what, strerror(errno));
    return result;
}

/* ---- system calls, by both ways ---- */

static int is_raw;

/* A system call by the C library's function, or by an instruction. */
static long by_instruction(long number, long a, long b, long c, long d, long e, long f)
{
    long result = raw_words(number, a, b, c, d, e, f);
    if (result >= 0 || result < -4095)
        return result;
    errno = -result;
    return -1;
}

#define BY(number, function, ...) (is_raw ? BY_RAW(number, __VA_ARGS__, 0, 0, 0, 0, 0) : (long)function(__VA_ARGS__))
#define BY_RAW(number, a, b, c, d, e, f, ...) \
    by_instruction(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static ssize_t send_octets(int fd, const void *text, size_t len, int flags)
{
    return is_raw ? by_instruction(SYS_sendto, fd, (long)text, len, flags, 0, 0) : send(fd, text, len, flags);
}

static ssize_t receive(int fd, void *text, size_t len, int flags)
{
    return is_raw ? by_instruction(SYS_recvfrom, fd, (long)text, len, flags, 0, 0) : recv(fd, text, len, flags);
}

#define open_socket(family, kind) BY(SYS_socket, socket, family, kind, 0)
#define close_it(fd) BY(SYS_close, close, fd)
#define wait_in(set, events, max, ms) BY(SYS_epoll_wait, epoll_wait, set, events, max, ms)
#define accept_from(fd, address, len) BY(SYS_accept, accept, fd, address, len)
#define connect_it(fd, address, len) BY(SYS_connect, connect, fd, address, len)

/* A call that a handler may have interrupted. */
#define AGAIN(call) ({ long again; do again = (long)(call); while (again < 0 && errno == EINTR); MUST(again); })

/* ---- sockets ---- */

static struct sockaddr_in name_of(int fd)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    MUST(getsockname(fd, (struct sockaddr *)&address, &len));
    return address;
}

static int bound(int type)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
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

static void make_pair(int ends[2])
{
    int server = listening();
    struct sockaddr_in address = name_of(server);
    ends[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(ends[0], (struct sockaddr *)&address, sizeof address));
    ends[1] = MUST(accept(server, NULL, NULL));
    MUST(close(server));
}

/* ---- what is stepped through ---- */

static int server, set, own_server;
static struct sockaddr_in address;
static volatile int may_jump;
static sigjmp_buf back;

/* The tracer looks for these addresses. */
static __attribute__((noinline)) void begin_steps(void)
{
    __asm__ volatile("");
}

static __attribute__((noinline)) void end_steps(void)
{
    __asm__ volatile("" ::: "memory");
}

/* connect(2): interrupted, it goes on by itself, and the socket becomes writable. */
static void finish_connecting(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t len = sizeof error;
    AGAIN(poll(&entry, 1, -1));
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
    if (error)
        fail("connect: %s", strerror(error));
}

/* One octet to and fro over a connection that comes and goes. */
static void round_of_calls(int number, int ends[2])
{
    struct epoll_event event = {0};
    unsigned char octet = number, got = 0;
    ends[0] = MUST(open_socket(AF_INET, SOCK_STREAM));
    if (connect_it(ends[0], (struct sockaddr *)&address, sizeof address)) {
        if (errno != EINTR)
            fail("connect: %s", strerror(errno));
        finish_connecting(ends[0]);
    }
    if (AGAIN(wait_in(set, &event, 1, -1)) != 1 || event.data.u32 != 7)
        fail("epoll_wait finds another event");
    ends[1] = AGAIN(accept_from(server, NULL, NULL));
    if (AGAIN(send_octets(ends[0], &octet, 1, 0)) != 1 || AGAIN(receive(ends[1], &got, 1, 0)) != 1 || got != octet)
        fail("round %d: the octet is another", number);
    octet ^= 0x55;
    if (AGAIN(send_octets(ends[1], &octet, 1, 0)) != 1 || AGAIN(receive(ends[0], &got, 1, 0)) != 1 || got != octet)
        fail("round %d: the answer is another", number);
    if (receive(ends[0], &got, 1, MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR))
        fail("round %d: there is an octet too many", number);
    MUST(close_it(ends[0]));
    ends[0] = -1;
    if (AGAIN(receive(ends[1], &got, 1, 0)) != 0)
        fail("round %d: there is no end", number);
    MUST(close_it(ends[1]));
    ends[1] = -1;
}

/* ---- handlers ---- */

/* What handlers use: one that interrupts another has its own. */
static struct own {
    int ends[2], datagrams;
    unsigned char sent, received;
} own[3];
static volatile int depth;

static void use_sockets(struct own *own)
{
    unsigned char octet = own->sent++;
    struct pollfd entries[2] = {{.fd = own->datagrams, .events = POLLIN}, {.fd = own->ends[1], .events = POLLIN}};
    if (AGAIN(send_octets(own->ends[0], &octet, 1, 0)) != 1 || AGAIN(receive(own->ends[1], &octet, 1, 0)) != 1
        || octet != own->received++)
        fail("a handler's octet is another");
    if (AGAIN(poll(entries, 2, 0)) != 0)
        fail("a handler's poll finds something");
    if (accept_from(own_server, NULL, NULL) >= 0 || (errno != EAGAIN && errno != EINTR))
        fail("a handler accepts something");
    int fd = MUST(open_socket(AF_INET, SOCK_DGRAM));
    struct sockaddr_in to = name_of(own->datagrams);
    AGAIN(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, sizeof to));
    char text[8];
    if (AGAIN(receive(own->datagrams, text, sizeof text, 0)) != 3 || memcmp(text, "abc", 3))
        fail("a handler's datagram is another");
    MUST(close_it(fd));
}

static void handle_sockets(int signal)
{
    int before = errno;
    (void)signal;
    use_sockets(&own[++depth]);
    depth--;
    errno = before;
}

static void handle_fork(int signal)
{
    int before = errno, status;
    struct own *mine = &own[++depth];
    (void)signal;
    pid_t child = MUST(fork());
    unsigned char octet = mine->sent;
    if (!child)
        _exit(AGAIN(send_octets(mine->ends[0], &octet, 1, 0)) != 1);
    AGAIN(waitpid(child, &status, 0));
    if (status || AGAIN(receive(mine->ends[1], &octet, 1, 0)) != 1 || octet != mine->sent++)
        fail("the child of a handler ends with %x", status);
    mine->received = mine->sent;
    depth--;
    errno = before;
}

static void handle_jump(int signal)
{
    (void)signal;
    if (may_jump) {
        may_jump = 0;
        siglongjmp(back, 1);
    }
}

/* ---- who is traced ---- */

static void listen_anew(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    server = listening();
    address = name_of(server);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, server, &event));
}

static void prepare(void)
{
    set = MUST(epoll_create1(EPOLL_CLOEXEC));
    listen_anew();
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        make_pair(own[i].ends);
        own[i].datagrams = bound(SOCK_DGRAM);
    }
    own_server = listening();
    MUST(fcntl(own_server, F_SETFL, O_NONBLOCK));
}

static void install(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGUSR1, &action, NULL));
    MUST(sigaction(SIGUSR2, &action, NULL));
}

/* Whoever has left a call does not know what it has done: a connection may be on its way to the listener, which goes. */
static void start_over(int ends[2])
{
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    ends[0] = ends[1] = -1;
    MUST(close(server));
    listen_anew();
}

static void count_descriptors(int *count)
{
    DIR *all = opendir("/proc/self/fd");
    for (*count = 0; readdir(all); ++*count)
        ;
    closedir(all);
}

static void be_traced(void (*handler)(int), int rounds)
{
    static volatile int number;
    static int ends[2] = {-1, -1};
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
    prepare();
    install(handler);
    for (int i = 0; i < 3; i++)
        round_of_calls(i, ends);
    int before, after;
    count_descriptors(&before);
    for (number = 0; number < rounds; number++) {
        raise(SIGSTOP);
        if (sigsetjmp(back, 1) == 0) {
            may_jump = 1;
            begin_steps();
            round_of_calls(number, ends);
            may_jump = 0;
        } else {
            start_over(ends);
        }
        end_steps();
    }
    /* All is as before. */
    round_of_calls(99, ends);
    use_sockets(&own[0]);
    count_descriptors(&after);
    if (after > before + 16)
        fail("%d descriptors, before %d", after, before);
    _exit(0);
}

/* ---- the debugger ---- */

static pid_t traced;
static volatile unsigned long at_instruction;

static void on_deadline(int signal)
{
    (void)signal;
    fail("no end after instruction %lu", at_instruction);
}

static int wait_for_stop(void)
{
    int status;
    alarm(DEADLINE_S);
    MUST(waitpid(traced, &status, 0));
    alarm(0);
    return status;
}

static struct user_regs_struct registers(void)
{
    struct user_regs_struct all;
    MUST(ptrace(PTRACE_GETREGS, traced, 0, &all));
    return all;
}

/* Lets the traced process run until it has stopped itself. Returns 0 if it has ended instead. */
static int run_to_round(void)
{
    for (int signal = 0;;) {
        int status = wait_for_stop();
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (status)
                fail("after instruction %lu the program ends with %x", at_instruction, status);
            return 0;
        }
        signal = WSTOPSIG(status);
        if (signal == SIGSTOP)
            return 1;
        MUST(ptrace(PTRACE_CONT, traced, 0, signal == SIGTRAP ? 0 : signal));
    }
}

/* Executes instructions until the round begins. */
static void step_to_begin(void)
{
    do {
        MUST(ptrace(PTRACE_SINGLESTEP, traced, 0, 0));
        wait_for_stop();
    } while (registers().rip != (unsigned long)begin_steps);
}

/* Executes one instruction, and passes signals on (SIGSYS of a trapped call). Returns 0 at the end of the round. */
static int step(void)
{
    int signal = 0;
    for (;;) {
        MUST(ptrace(PTRACE_SINGLESTEP, traced, 0, signal));
        int status = wait_for_stop();
        if (!WIFSTOPPED(status))
            fail("at instruction %lu the program ends with %x", at_instruction, status);
        signal = WSTOPSIG(status);
        if (signal == SIGTRAP)
            break;
    }
    return registers().rip != (unsigned long)end_steps;
}

static void interrupt(const char *name, void (*handler)(int), int every, unsigned long first)
{
    unsigned long rounds = 0;
    traced = MUST(fork());
    if (!traced)
        be_traced(handler, 1 << 30);
    for (at_instruction = first;; at_instruction += every, rounds++) {
        if (!run_to_round())
            fail("it ends too early");
        step_to_begin();
        unsigned long done = 0;
        int goes_on = 1;
        while (done < at_instruction && (goes_on = step()))
            done++;
        if (!goes_on)
            break;
        /* Every fourth time two signals come, the second in the middle of what the first one does. */
        MUST(ptrace(PTRACE_SINGLESTEP, traced, 0, SIGUSR1));
        wait_for_stop();
        if (rounds % 4 == 3) {
            for (unsigned long more = rounds % 97; more > 0; more--)
                if (!step())
                    break;
            MUST(ptrace(PTRACE_CONT, traced, 0, SIGUSR2));
        } else {
            MUST(ptrace(PTRACE_CONT, traced, 0, 0));
        }
    }
    MUST(kill(traced, SIGKILL));
    fprintf(stderr, "%s: %lu rounds, %lu instructions\n", name, rounds, at_instruction);
    printf("%s: a round ends well wherever it is interrupted\n", name);
}

/* ---- death ---- */

/* The child of a family uses what it has inherited, and a connection of its own. */
static void use_family(int family[2])
{
    static int ends[2];
    unsigned char octet = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 8};
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
    set = MUST(epoll_create1(EPOLL_CLOEXEC));
    listen_anew();
    make_pair(ends);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event));
    MUST(fcntl(server, F_SETFL, O_NONBLOCK));
    int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(client, (struct sockaddr *)&address, sizeof address));
    raise(SIGSTOP);
    begin_steps();
    MUST(send_octets(family[0], &octet, 1, 0));
    /* Whoever is so slow may find that the connection is offered to it no more. */
    int accepted = accept_from(server, NULL, NULL);
    MUST(send_octets(ends[0], &octet, 1, 0));
    MUST(wait_in(set, &event, 1, -1));
    MUST(receive(ends[1], &octet, 1, 0));
    MUST(close_it(ends[1]));
    MUST(close_it(ends[0]));
    if (accepted >= 0)
        MUST(close_it(accepted));
    MUST(close_it(client));
    MUST(send_octets(family[0], &octet, 1, 0));
    end_steps();
    _exit(0);
}

/* Asks for what the family's connection has received, again and again. Returns when a call has come back often enough. */
static void *ask_family(void *family)
{
    unsigned char octet;
    for (int turn = 0; turn < 4; turn++)
        if (recv(*(int *)family, &octet, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno != EAGAIN)
            fail("the brother asks the family: %s", strerror(errno));
    return NULL;
}

/* A brother of the stopped one: while one of its threads asks for a connection of the family, another uses sockets of its own. */
static void go_on_beside(int family[2], int begin)
{
    int ends[2];
    unsigned char octet = 1;
    listen_anew();
    make_pair(ends);
    MUST(read(begin, &octet, 1));
    pthread_t asks;
    if (pthread_create(&asks, NULL, ask_family, &family[0]))
        fail("the brother has no thread");
    for (int turn = 0; turn < 50; turn++) {
        MUST(send(ends[0], &octet, 1, 0));
        MUST(recv(ends[1], &octet, 1, 0));
    }
    if (pthread_join(asks, NULL))
        fail("the brother's thread is gone");
    _exit(0);
}

static void die(const char *name, int every, unsigned long first, int stopped)
{
    unsigned long rounds = 0;
    int family[2], ends[2], begin[2];
    prepare();
    MUST(pipe(begin));
    make_pair(family);
    for (at_instruction = first;; at_instruction += every, rounds++) {
        traced = MUST(fork());
        if (!traced)
            use_family(family);
        /* A brother, who is asleep on the connection of the family. */
        pid_t brother = MUST(fork());
        if (!brother) {
            struct pollfd entry = {.fd = own[0].ends[1], .events = POLLIN};
            unsigned char octet;
            _exit(poll(&entry, 1, DEADLINE_S * 1000) != 1 || recv(own[0].ends[1], &octet, 1, 0) != 1 || octet != 9);
        }
        pid_t beside = stopped ? MUST(fork()) : 1;
        if (!beside)
            go_on_beside(family, begin[0]);
        if (!run_to_round())
            fail("it ends too early");
        step_to_begin();
        unsigned long done = 0;
        int goes_on = 1;
        while (done < at_instruction && (goes_on = step()))
            done++;
        int status;
        if (stopped) {
            alarm(DEADLINE_S);
            MUST(write(begin[1], "", 1));
            MUST(waitpid(beside, &status, 0));
            if (status)
                fail("instruction %lu: the brother of the stopped one ends with %x", at_instruction, status);
            alarm(0);
        }
        MUST(kill(traced, SIGKILL));
        MUST(waitpid(traced, &status, 0));
        /* The peer: what the dead one has sent, whole, and then what the family says. */
        unsigned char octet = 2, got = 0;
        int of_the_dead = 0;
        alarm(DEADLINE_S);
        MUST(send(family[0], &octet, 1, 0));
        while (MUST(recv(family[1], &got, 1, 0)) == 1 && got == 1)
            of_the_dead++;
        if (got != 2 || of_the_dead > 2)
            fail("instruction %lu: the family's octet is %d, after %d of the dead", at_instruction, got, of_the_dead);
        octet = 9;
        MUST(send(own[0].ends[0], &octet, 1, 0));
        MUST(waitpid(brother, &status, 0));
        if (status)
            fail("instruction %lu: the brother ends with %x", at_instruction, status);
        alarm(DEADLINE_S);
        round_of_calls(rounds, ends);
        alarm(0);
        if (!goes_on)
            break;
    }
    fprintf(stderr, "%s: %lu deaths, %lu instructions\n", name, rounds, at_instruction);
    printf("%s: a family goes on wherever one of it %s\n", name, stopped ? "is stopped and dies" : "dies");
}

/* ---- counting ---- */

/* The objects of a process, by /proc/PID/maps. */
static struct object {
    unsigned long first, end, count;
    char name[64];
} objects[128];
static int object_count;

static void read_objects(void)
{
    char name[64], line[512];
    snprintf(name, sizeof name, "/proc/%d/maps", traced);
    FILE *maps = fopen(name, "r");
    while (fgets(line, sizeof line, maps) && object_count < 128) {
        struct object *object = &objects[object_count];
        char rights[8], *path = strrchr(line, '/');
        if (sscanf(line, "%lx-%lx %7s", &object->first, &object->end, rights) != 3 || rights[2] != 'x')
            continue;
        snprintf(object->name, sizeof object->name, "%s", path ? path + 1 : "[vdso]");
        object->name[strcspn(object->name, "\n")] = 0;
        object_count++;
    }
    fclose(maps);
}

static void count_in(unsigned long address)
{
    for (int i = 0; i < object_count; i++)
        if (address >= objects[i].first && address < objects[i].end)
            objects[i].count++;
}

static unsigned char code_at(unsigned long address)
{
    errno = 0;
    return ptrace(PTRACE_PEEKTEXT, traced, address, 0);
}

enum { SEND, RECEIVE, EMPTY, IDLE, POLL, KINDS };
static const char *const KIND_NAMES[KINDS] = {"send of 1 octet", "recv of 1 octet", "recv that finds nothing", "epoll_wait that finds nothing",
                                               "epoll_wait of a ready socket"};

/* One call of each kind, after some that are not counted. */
static void be_counted(void)
{
    unsigned char octet = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
    prepare();
    int other = MUST(epoll_create1(0));
    MUST(epoll_ctl(other, EPOLL_CTL_ADD, own[0].ends[1], &event));
    /* Each 64th call that finds nothing looks whether the stack is there: not the counted ones. */
    for (int i = 0; i < 60; i++) {
        int is_counted = i == 59;
        for (int kind = 0; kind < KINDS; kind++) {
            struct timespec moment = {0, 20000000};
            if (kind == POLL) {
                send_octets(own[0].ends[0], &octet, 1, 0);
                poll(&(struct pollfd){.fd = own[0].ends[1], .events = POLLIN}, 1, DEADLINE_S * 1000);
            }
            if (is_counted) {
                nanosleep(&moment, NULL);
                raise(SIGSTOP);
                begin_steps();
            }
            long result = kind == SEND  ? send_octets(own[0].ends[0], &octet, 1, 0)
                        : kind == POLL  ? wait_in(other, &event, 1, 0)
                        : kind == IDLE  ? wait_in(other, &event, 1, 0)
                        : kind == EMPTY ? receive(own[0].ends[1], &octet, 1, MSG_DONTWAIT)
                                        : receive(own[0].ends[1], &octet, 1, 0);
            if (is_counted)
                end_steps();
            if (result != (kind == EMPTY ? -1 : kind != IDLE))
                fail("%s: %ld", KIND_NAMES[kind], result);
            if (kind == SEND)
                poll(&(struct pollfd){.fd = own[0].ends[1], .events = POLLIN}, 1, DEADLINE_S * 1000);
        }
        receive(own[0].ends[1], &octet, 1, 0);
    }
    _exit(0);
}

static void count_instructions(void)
{
    traced = MUST(fork());
    if (!traced)
        be_counted();
    for (int kind = 0; kind < KINDS; kind++) {
        unsigned long calls = 0, all = 0;
        if (!run_to_round())
            fail("it ends too early");
        if (!object_count)
            read_objects();
        for (int i = 0; i < object_count; i++)
            objects[i].count = 0;
        step_to_begin();
        do {
            unsigned long rip = registers().rip;
            calls += code_at(rip) == 0x0f && code_at(rip + 1) == 0x05;
            count_in(rip);
            all++;
        } while (step());
        printf("%s: %lu instructions, %lu system calls", KIND_NAMES[kind], all, calls);
        for (int i = 0; i < object_count; i++)
            if (objects[i].count)
                printf(", %s %lu", objects[i].name, objects[i].count);
        printf("\n");
        MUST(ptrace(PTRACE_CONT, traced, 0, 0));
    }
    if (run_to_round())
        fail("it goes on");
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*handler)(int);
    } HANDLERS[] = {{"sockets", handle_sockets}, {"forks", handle_fork}, {"jumps", handle_jump}};
    if (count < 3)
        return 2;
    is_raw = !strcmp(arguments[1], "raw");
    int every = count > 3 ? atoi(arguments[3]) : 1;
    unsigned long first = count > 4 ? atol(arguments[4]) : 0;
    struct sigaction action = {.sa_handler = on_deadline};
    MUST(sigaction(SIGALRM, &action, NULL));
    if (!strcmp(arguments[2], "count"))
        count_instructions();
    else if (!strcmp(arguments[2], "death"))
        die("death", every, first, 0);
    else if (!strcmp(arguments[2], "stop"))
        die("stop", every, first, 1);
    else
        for (size_t i = 0; i < sizeof HANDLERS / sizeof *HANDLERS; i++)
            if (!strcmp(arguments[2], HANDLERS[i].name))
                interrupt(HANDLERS[i].name, HANDLERS[i].handler, every, first);
    return 0;
}
