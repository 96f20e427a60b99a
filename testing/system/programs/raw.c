/* What do system calls do that a program makes by an instruction of its own? One behaviour by name; what it prints must be the same on
 * every stack: raw CASE. Both ends live in one process (or its children), on the loopback. */
#include <alloca.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "instruction.h"

extern char **environ;
static const char *self;

static void show(const char *what, long result)
{
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(-result));
    else
        printf("%s: %ld\n", what, result);
}

#define MUST(call) must((long)(call), #call)
static long must(long result, const char *what)
{
    if (result < 0) {
        show(what, result);
        fflush(stdout);
        _exit(1);
    }
    return result;
}

static int listening(struct sockaddr_in *address)
{
    socklen_t len = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = MUST(raw(SYS_socket, AF_INET, SOCK_STREAM, 0));
    MUST(raw(SYS_bind, fd, address, len));
    MUST(raw(SYS_listen, fd, 8));
    MUST(raw(SYS_getsockname, fd, address, &len));
    return fd;
}

static void make_pair(int ends[2])
{
    struct sockaddr_in address;
    int server = listening(&address);
    ends[0] = MUST(raw(SYS_socket, AF_INET, SOCK_STREAM, 0));
    MUST(raw(SYS_connect, ends[0], &address, sizeof address));
    ends[1] = MUST(raw(SYS_accept4, server, NULL, NULL, 0));
    MUST(raw(SYS_close, server));
}

static void connections(void)
{
    int ends[2], one = 1, value = 0;
    socklen_t len = sizeof value;
    make_pair(ends);
    show("setsockopt", raw(SYS_setsockopt, ends[0], SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    show("getsockopt", raw(SYS_getsockopt, ends[0], SOL_SOCKET, SO_KEEPALIVE, &value, &len));
    printf("keepalive %d\n", value);
    char text[16] = "";
    struct iovec part = {"bc", 2};
    show("write", raw(SYS_write, ends[0], "a", 1));
    show("writev", raw(SYS_writev, ends[0], &part, 1));
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    show("sendmmsg", raw(SYS_sendmmsg, ends[0], messages, 2, 0));
    show("recvfrom", raw(SYS_recvfrom, ends[1], text, 7, MSG_WAITALL, NULL, NULL));
    puts(text);
    show("fcntl", raw(SYS_fcntl, ends[1], F_SETFL, O_NONBLOCK));
    show("read", raw(SYS_read, ends[1], text, 1));
    int other = MUST(raw(SYS_dup, ends[1]));
    show("close", raw(SYS_close, ends[1]));
    show("close again", raw(SYS_close, ends[1]));
    show("write", raw(SYS_write, other, "d", 1));
    show("read", raw(SYS_read, ends[0], text, 4));
    show("fcntl", raw(SYS_fcntl, other, F_SETFL, 0));
    show("shutdown", raw(SYS_shutdown, ends[0], SHUT_WR));
    show("read", raw(SYS_read, other, text, 4));
    show("read", raw(SYS_read, other, text, 4));
    show("bad descriptor", raw(SYS_sendto, 999, "d", 1, 0, NULL, 0));
    errno = 1234;
    raw(SYS_recvfrom, other, text, 4, MSG_DONTWAIT | MSG_OOB, NULL, NULL);
    raw(SYS_close, 999);
    printf("errno %d\n", errno);
}

static void waiting(void)
{
    int ends[2];
    make_pair(ends);
    struct pollfd entry = {.fd = ends[0], .events = POLLIN | POLLOUT};
    show("poll", raw(SYS_poll, &entry, 1, 5000));
    printf("%x\n", entry.revents);
    int set = MUST(raw(SYS_epoll_create1, EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    show("epoll_ctl", raw(SYS_epoll_ctl, set, EPOLL_CTL_ADD, ends[0], &event));
    show("epoll_ctl", raw(SYS_epoll_ctl, set, EPOLL_CTL_ADD, ends[0], &event));
    show("epoll_wait", raw(SYS_epoll_wait, set, &event, 1, 0));
    MUST(raw(SYS_write, ends[1], "x", 1));
    show("epoll_pwait", raw(SYS_epoll_pwait, set, &event, 1, 5000, NULL, 8));
    printf("%x %u\n", event.events, event.data.u32);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(ends[0], &readable);
    struct timeval moment = {5, 0};
    show("select", raw(SYS_select, ends[0] + 1, &readable, NULL, NULL, &moment));
}

static void splices(void)
{
    int ends[2], pipes[2];
    char text[16] = "";
    struct iovec part = {text, 1};
    make_pair(ends);
    MUST(raw(SYS_pipe2, pipes, 0));
    show("write", raw(SYS_write, ends[0], "octets", 6));
    show("splice", raw(SYS_splice, ends[1], NULL, pipes[1], NULL, 100, SPLICE_F_MOVE));
    show("splice", raw(SYS_splice, pipes[0], NULL, ends[1], NULL, 100, SPLICE_F_MORE | SPLICE_F_NONBLOCK));
    show("splice", raw(SYS_splice, pipes[0], NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    show("tee", raw(SYS_tee, ends[1], pipes[1], 100, 0));
    show("vmsplice", raw(SYS_vmsplice, ends[1], &part, 1, 0));
    int file = MUST(raw(SYS_memfd_create, "file", 0));
    MUST(raw(SYS_write, file, "0123456789", 10));
    loff_t offset = 4;
    show("sendfile", raw(SYS_sendfile, ends[1], file, &offset, 3));
    show("offset", offset);
    show("recvfrom", raw(SYS_recvfrom, ends[0], text, 9, MSG_WAITALL, NULL, NULL));
    puts(text);
    show("shutdown", raw(SYS_shutdown, ends[0], SHUT_WR));
    show("splice", raw(SYS_splice, ends[1], NULL, pipes[1], NULL, 100, 0));
}

static void datagrams(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    socklen_t len = sizeof address;
    int server = MUST(raw(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    MUST(raw(SYS_bind, server, &address, len));
    MUST(raw(SYS_getsockname, server, &address, &len));
    int client = MUST(raw(SYS_socket, AF_INET, SOCK_DGRAM, 0));
    show("sendto", raw(SYS_sendto, client, "abc", 3, 0, &address, len));
    char text[8] = "";
    show("recvfrom", raw(SYS_recvfrom, server, text, 8, 0, &from, &len));
    show("sendto", raw(SYS_sendto, server, text, 3, 0, &from, len));
    struct iovec part = {text, 8};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    show("recvmmsg", raw(SYS_recvmmsg, client, messages, 2, MSG_WAITFORONE, NULL));
    show("of octets", messages[0].msg_len);
}

/* All registers but rax, rcx and r11, and vectors, are as before, and the red zone too. */
static void registers_are_kept(void)
{
    int ends[2];
    make_pair(ends);
    char text[1];
    for (int i = 0; i < 3; i++) {
        long numbers[] = {SYS_getppid, SYS_write, SYS_read};
        long descriptors[] = {0, ends[0], ends[1]};
        unsigned long kept[13];
        register unsigned long *where __asm__("r15") = kept;
        register long result __asm__("rax") = numbers[i];
        __asm__ volatile(
            "push %%rbp\n\t"
            "mov $0x1001, %%rbx\n\tmov $0x1005, %%r12\n\tmov $0x1006, %%r13\n\tmov $0x1007, %%r14\n\tmov $0x1008, %%rbp\n\t"
            "mov $0x2001, %%r8\n\tmov $0x2002, %%r9\n\tmov $0x2003, %%r10\n\t"
            "movq %%rbx, %%xmm0\n\tmovq %%r12, %%xmm7\n\tmovq %%r13, %%xmm15\n\t"
            "movq $0x3001, -8(%%rsp)\n\tmovq $0x3002, -128(%%rsp)\n\tstc\n\tstd\n\t"
            "syscall\n\t"
            "pushfq\n\tpopq 96(%%r15)\n\tcld\n\t"
            "mov %%rbx, 0(%%r15)\n\tmov %%r12, 8(%%r15)\n\tmov %%r13, 16(%%r15)\n\tmov %%r14, 24(%%r15)\n\tmov %%rbp, 32(%%r15)\n\t"
            "mov %%r8, 40(%%r15)\n\tmov %%r9, 48(%%r15)\n\tmov %%r10, 56(%%r15)\n\t"
            "movq %%xmm0, 64(%%r15)\n\tmovq %%xmm7, 72(%%r15)\n\tmovq %%xmm15, 80(%%r15)\n\t"
            "mov -128(%%rsp), %%rbx\n\tmov %%rbx, 88(%%r15)\n\t"
            "pop %%rbp"
            : "+a"(result)
            : "D"(descriptors[i]), "S"(text), "d"(1L), "r"(where)
            : "rbx", "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "xmm0", "xmm7", "xmm15", "memory", "cc");
        printf("%ld\n", i ? result : 0);
        for (int k = 0; k < 12; k++)
            printf("%lx ", kept[k]);
        printf("flags %lx\n", kept[12] & 0x401);
    }
}

static volatile sig_atomic_t signals;
static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* struct sigaction as the kernel has it, and a restorer of the program's own. */
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};
void restorer(void);
__asm__(".text\nrestorer: mov $15, %eax\nsyscall\n");

static void on_signal(int number, unsigned long flags)
{
    struct kernel_action action = {count_signal, flags | 0x04000000, restorer, 0};
    MUST(raw(SYS_rt_sigaction, number, &action, NULL, 8));
}

static void set_timer(long ms)
{
    struct itimerval time = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    MUST(raw(SYS_setitimer, ITIMER_REAL, &time, NULL));
}

static void interrupted(void)
{
    int ends[2];
    make_pair(ends);
    char text[4];
    on_signal(SIGALRM, 0);
    set_timer(50);
    show("read", raw(SYS_read, ends[0], text, 4));
    printf("signals %d\n", signals);
    set_timer(50);
    struct pollfd entry = {.fd = ends[0], .events = POLLIN};
    show("poll", raw(SYS_poll, &entry, 1, -1));
    set_timer(50);
    struct timespec long_time = {5, 0};
    show("nanosleep", raw(SYS_nanosleep, &long_time, NULL));
    int pipes[2];
    MUST(raw(SYS_pipe2, pipes, 0));
    set_timer(50);
    show("read of a pipe", raw(SYS_read, pipes[0], text, 4));
    printf("signals %d\n", signals);
}

static int to_wake;
static void write_and_count(int number)
{
    (void)number;
    if (++signals == 3)
        raw(SYS_write, to_wake, "w", 1);
}

static void restarted(void)
{
    int ends[2], pipes[2];
    make_pair(ends);
    char text[4];
    struct kernel_action action = {write_and_count, SA_RESTART | 0x04000000, restorer, 0};
    MUST(raw(SYS_rt_sigaction, SIGALRM, &action, NULL, 8));
    struct itimerval time = {.it_value = {0, 50000}, .it_interval = {0, 50000}};
    to_wake = ends[1];
    MUST(raw(SYS_setitimer, ITIMER_REAL, &time, NULL));
    show("read", raw(SYS_read, ends[0], text, 4));
    MUST(raw(SYS_pipe2, pipes, 0));
    signals = 0;
    to_wake = pipes[1];
    show("read of a pipe", raw(SYS_read, pipes[0], text, 4));
}

static sigjmp_buf place;
static void jump(int number)
{
    (void)number;
    siglongjmp(place, 1);
}

static void handlers_jump(void)
{
    int ends[2];
    make_pair(ends);
    char text[4];
    signal(SIGALRM, jump);
    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(place, 1)) {
            set_timer(30);
            raw(SYS_read, ends[0], text, 4);
        } else
            puts("jumped");
    show("write", raw(SYS_write, ends[1], "x", 1));
    show("read", raw(SYS_read, ends[0], text, 4));
}

static void blocked_signals(void)
{
    sigset_t all, before;
    sigfillset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, NULL));
    int ends[2];
    make_pair(ends);
    show("write", raw(SYS_write, ends[0], "x", 1));
    MUST(sigprocmask(SIG_BLOCK, NULL, &before));
    printf("SIGSYS %d, SIGTERM %d\n", sigismember(&before, SIGSYS), sigismember(&before, SIGTERM));
    unsigned long mask = 0, old = 0;
    MUST(raw(SYS_rt_sigprocmask, SIG_SETMASK, &mask, &old, 8));
    printf("old %lx\n", old & 1UL << (SIGSYS - 1));
    mask = ~0UL;
    MUST(raw(SYS_rt_sigprocmask, SIG_BLOCK, &mask, &old, 8));
    printf("old %lx\n", old);
    MUST(raw(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &old, 8));
    printf("old %lx\n", old & 1UL << (SIGSYS - 1));
    raw(SYS_kill, getpid(), SIGUSR1);
    raw(SYS_rt_sigpending, &old, 8);
    printf("pending %lx\n", old);
    signal(SIGUSR1, count_signal);
    mask = 1UL << (SIGUSR1 - 1);
    MUST(raw(SYS_rt_sigprocmask, SIG_UNBLOCK, &mask, NULL, 8));
    printf("signals %d\n", signals);
    show("how", raw(SYS_rt_sigprocmask, 77, &mask, NULL, 8));
    show("len", raw(SYS_rt_sigprocmask, SIG_BLOCK, &mask, NULL, 4));
}

/* A handler with all signals blocked makes calls, too. */
static int in_handler[2];
static void write_in_handler(int number)
{
    (void)number;
    show("write in the handler", raw(SYS_write, in_handler[0], "h", 1));
    char text[4];
    show("read in the handler", raw(SYS_read, in_handler[1], text, 4));
}

static void calls_in_handlers(void)
{
    make_pair(in_handler);
    struct sigaction action = {.sa_handler = write_in_handler, .sa_flags = SA_ONSTACK};
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    MUST(raw(SYS_sigaltstack, &stack, NULL));
    raise(SIGUSR1);
    int ends[2];
    make_pair(ends);
    if (fork() == 0) {
        poll(NULL, 0, 50);
        kill(getppid(), SIGUSR1);
        poll(NULL, 0, 50);
        raw(SYS_write, ends[1], "x", 1);
        _exit(0);
    }
    char text[4];
    show("read", raw(SYS_read, ends[0], text, 4));
    wait(NULL);
}

static void sigsys(int number, siginfo_t *info, void *context)
{
    (void)number;
    printf("code %d, call %d\n", info->si_code, info->si_syscall);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EXDEV;
}

/* The program has a filter of its own that sends SIGSYS. */
static void a_filter_that_traps(void)
{
    struct sigaction action = {.sa_sigaction = sigsys, .sa_flags = SA_SIGINFO}, old;
    MUST(sigaction(SIGSYS, &action, NULL));
    MUST(sigaction(SIGSYS, NULL, &old));
    printf("handler %d\n", old.sa_sigaction == sigsys);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sethostname, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    show("sethostname", raw(SYS_sethostname, "x", 1));
    show("sethostname", syscall(SYS_sethostname, "x", 1) < 0 ? -errno : 0);
    int ends[2];
    make_pair(ends);
    show("write", raw(SYS_write, ends[0], "x", 1));
}

static void sigsys_ends_the_process(void)
{
    int status;
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i)
                signal(SIGSYS, SIG_IGN);
            raise(SIGSYS);
            _exit(7);
        }
        waitpid(child, &status, 0);
        printf("signal %d, code %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) : 0);
    }
}

static int shared[2];
static void *in_thread(void *argument)
{
    char text[4];
    raw(SYS_write, shared[0], "t", 1);
    show("read in the thread", raw(SYS_read, shared[1], text, 4));
    return argument;
}

static int in_thrd(void *argument)
{
    return (int)(long)in_thread(argument);
}

static void ends_by_exit(void *argument)
{
    show("cleanup", (long)argument);
}

static void *exits(void *argument)
{
    pthread_cleanup_push(ends_by_exit, argument);
    raw(SYS_write, shared[0], "t", 1);
    pthread_exit((void *)5);
    pthread_cleanup_pop(0);
    return NULL;
}

static void threads_of_the_c_library(void)
{
    make_pair(shared);
    pthread_t thread;
    thrd_t other;
    void *result;
    int status;
    pthread_create(&thread, NULL, in_thread, (void *)42);
    pthread_join(thread, &result);
    show("result", (long)result);
    thrd_create(&other, in_thrd, (void *)43);
    thrd_join(other, &status);
    show("result", status);
    pthread_create(&thread, NULL, exits, (void *)44);
    pthread_join(thread, &result);
    show("result", (long)result);
}

/* A thread that the C library knows nothing of. It has the same memory for threads, so it may not use the C library. */
static volatile int started, tid;
static int pipes[2], of_thread;
static _Alignas(16) char stack[65536];
static void begin_thread(void)
{
    started = raw(SYS_gettid);
    raw(SYS_write, pipes[1], "abc", 3);
    raw(SYS_write, of_thread, "from the thread", 15);
    raw(SYS_exit, 0);
}

/* Makes a clone with a stack: the child calls begin_thread. */
static long make_thread(unsigned long flags, char *top)
{
    register long r10 __asm__("r10") = (long)&tid;
    register long r8 __asm__("r8") = 0;
    register void (*begin)(void) __asm__("r12") = begin_thread;
    long result;
    __asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\txor %%ebp, %%ebp\n\tcall *%%r12\n\t1:"
                     : "=a"(result)
                     : "a"(SYS_clone), "D"(flags), "S"(top), "d"(&tid), "r"(r10), "r"(r8), "r"(begin)
                     : "rcx", "r11", "memory");
    return result;
}

static void threads_of_the_programs(void)
{
    char text[20] = "";
    int ends[2];
    make_pair(ends);
    of_thread = ends[0];
    MUST(raw(SYS_pipe2, pipes, 0));
    unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    tid = 1;
    long made = MUST(make_thread(flags, stack + sizeof stack));
    show("read", raw(SYS_read, pipes[0], text, 4));
    while (tid)
        raw(SYS_sched_yield);
    printf("%s %d\n", text, made == started);
    show("read", raw(SYS_read, ends[1], text, 15));
    printf("%s\n", text);
    show("write", raw(SYS_write, ends[0], "x", 1));
    show("read", raw(SYS_read, ends[1], text, 1));
}

static void children(void)
{
    int ends[2], status;
    make_pair(ends);
    char text[64];
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    struct clone_args of_vfork = {.exit_signal = SIGCHLD, .flags = CLONE_VM | CLONE_VFORK};
    for (int i = 0; i < 6; i++) {
        long child = i == 0   ? raw(SYS_fork)
                     : i == 1 ? raw(SYS_clone, SIGCHLD, 0, 0, 0, 0)
                     : i == 2 ? raw(SYS_clone3, &arguments, sizeof arguments)
                     : i == 3 ? raw(SYS_vfork)
                     : i == 4 ? raw(SYS_clone, SIGCHLD | CLONE_VM | CLONE_VFORK, 0, 0, 0, 0)
                              : raw(SYS_clone3, &of_vfork, sizeof of_vfork);
        if (child == 0) {
            raw(SYS_write, ends[0], "child", 5);
            raw(SYS_exit_group, 3 + i);
        }
        MUST(child);
        MUST(raw(SYS_wait4, child, &status, 0, NULL));
        show("status", WEXITSTATUS(status));
        show("read", raw(SYS_read, ends[1], text, 64));
        show("write", raw(SYS_write, ends[0], "parent", 6));
        show("read", raw(SYS_read, ends[1], text, 64));
    }
}

/* A fork by clone(2) with `pad` octets more on the stack. Returns whether a vector register of the parent is as before: all octets of
 * it have to be 7. */
__attribute__((target("avx"), noinline)) static int forks_with(int pad)
{
    unsigned char *room = alloca(pad + 1), vector[32], after[32];
    memset(vector, 7, sizeof vector);
    room[0] = 0;
    long child = SYS_clone;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("vmovdqu %3, %%ymm15\n\tsyscall\n\tvmovdqu %%ymm15, %1"
                     : "+a"(child), "=m"(after), "+r"(room)
                     : "m"(vector), "D"((long)SIGCHLD), "S"(0L), "d"(0L), "r"(r10), "r"(r8)
                     : "rcx", "r11", "xmm15", "memory");
    if (child == 0)
        raw(SYS_exit_group, 0);
    MUST(child);
    MUST(raw(SYS_wait4, child, NULL, 0, NULL));
    return !memcmp(vector, after, sizeof vector);
}

/* Nothing is written to what the kernel keeps on the stack during a trap, wherever the stack is. */
static void registers_of_parents(void)
{
    int ends[2];
    make_pair(ends);
    for (int pad = 0; pad < 256; pad += 16)
        show("kept", !__builtin_cpu_supports("avx") || forks_with(pad));
}

static void executed(void)
{
    int ends[2], status;
    make_pair(ends);
    char text[64] = "", number[16];
    snprintf(number, sizeof number, "%d", ends[0]);
    for (int i = 0; i < 2; i++) {
        long child = MUST(raw(SYS_fork));
        if (child == 0) {
            char *arguments[] = {(char *)self, "write_to", number, NULL};
            if (i == 0)
                raw(SYS_execve, self, arguments, environ);
            else
                raw(SYS_execveat, AT_FDCWD, self, arguments, environ, 0);
            raw(SYS_exit_group, 1);
        }
        MUST(raw(SYS_wait4, child, &status, 0, NULL));
        show("status", WEXITSTATUS(status));
        show("read", raw(SYS_read, ends[1], text, 64));
        puts(text);
    }
    char *none[] = {"none", NULL};
    show("execve", raw(SYS_execve, "/nonexistent", none, environ));
}

/* A stack with room for hardly anything, as that of a goroutine, in a thread with another for signals. */
static ucontext_t of_main, of_routine;
static int in_routine[2];
static char moved[4];
static long results[3];
static void routine(void)
{
    results[0] = raw(SYS_write, in_routine[0], "abc", 3);
    results[1] = raw(SYS_read, in_routine[1], moved, 4);
    results[2] = raw(SYS_close, 999);
}

static void short_stacks(void)
{
    enum { ROOM = 1536, AROUND = 65536 };
    make_pair(in_routine);
    stack_t for_signals = {.ss_sp = malloc(32768), .ss_size = 32768};
    MUST(raw(SYS_sigaltstack, &for_signals, NULL));
    char *memory = malloc(AROUND + ROOM);
    memset(memory, 0x55, AROUND + ROOM);
    getcontext(&of_routine);
    of_routine.uc_stack = (stack_t){.ss_sp = memory + AROUND, .ss_size = ROOM};
    of_routine.uc_link = &of_main;
    makecontext(&of_routine, routine, 0);
    swapcontext(&of_main, &of_routine);
    int changed = 0;
    for (int i = 0; i < AROUND; i++)
        changed += memory[i] != 0x55;
    show("write", results[0]);
    show("read", results[1]);
    show("close", results[2]);
    show("octets changed below the stack", changed);
}

static void files_of_proc(void)
{
    int fd = MUST(raw(SYS_openat, AT_FDCWD, "/proc/net/tcp", O_RDONLY));
    char text[8] = "";
    show("read", raw(SYS_read, fd, text, 4));
    puts(text);
    fd = MUST(raw(SYS_open, "/dev/null", O_RDWR));
    show("write", raw(SYS_write, fd, text, 4));
    show("open", raw(SYS_open, "/nonexistent", O_RDWR));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
#define CASE(name) {#name, name}
    CASE(connections), CASE(waiting), CASE(datagrams), CASE(splices), CASE(registers_are_kept), CASE(interrupted), CASE(restarted), CASE(handlers_jump),
    CASE(blocked_signals), CASE(calls_in_handlers), CASE(a_filter_that_traps), CASE(sigsys_ends_the_process),
    CASE(threads_of_the_c_library), CASE(threads_of_the_programs), CASE(children), CASE(registers_of_parents), CASE(executed), CASE(short_stacks), CASE(files_of_proc),
};

int main(int count, char **arguments)
{
    self = arguments[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 3 && !strcmp(arguments[1], "write_to"))
        return raw(SYS_write, atoi(arguments[2]), "from exec", 9) != 9;
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
