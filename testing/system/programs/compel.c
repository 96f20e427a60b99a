/* Acts as an attacker who controls the memory of a process: compel PID CALL [ARGUMENT ...] lets the process PID make the system call
 * with that number and those arguments in place of the next one in which it would sleep, and prints the result: "returned N" or
 * "died of signal N". The process continues as if a signal had woken it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#ifndef __x86_64__
#error "registers are called otherwise here"
#endif

static pid_t pid;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* Waits until the process stops. Signals are delivered meanwhile; its death is the answer. */
static void stopped(int request)
{
    for (;;) {
        int status;
        if (waitpid(pid, &status, __WALL) != pid)
            fail("waitpid");
        if (WIFSIGNALED(status)) {
            printf("died of signal %d\n", WTERMSIG(status));
            exit(0);
        }
        if (WIFEXITED(status)) {
            printf("ended with status %d\n", WEXITSTATUS(status));
            exit(0);
        }
        int signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80) || signal == SIGTRAP)
            return;
        /* The process runs its handler now: it dies there, or it survives. */
        if (signal == SIGSYS)
            request = PTRACE_CONT;
        if (ptrace(request, pid, 0, signal))
            fail("ptrace");
    }
}

static void go_on(void)
{
    if (ptrace(PTRACE_SYSCALL, pid, 0, 0))
        fail("PTRACE_SYSCALL");
    stopped(PTRACE_SYSCALL);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 1;
    pid = atoi(argv[1]);
    unsigned long long arguments[6] = {0};
    for (int i = 3; i < argc && i < 9; i++)
        arguments[i - 3] = (unsigned long long)strtoll(argv[i], NULL, 0);
    if (ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD) || ptrace(PTRACE_INTERRUPT, pid, 0, 0))
        fail("PTRACE_SEIZE");
    stopped(PTRACE_SYSCALL);
    struct user_regs_struct registers;
    do {
        go_on();
        if (ptrace(PTRACE_GETREGS, pid, 0, &registers))
            fail("PTRACE_GETREGS");
        /* At the entry the result is not there yet. */
    } while (registers.orig_rax != SYS_epoll_pwait || (long long)registers.rax != -ENOSYS);
    struct user_regs_struct changed = registers;
    changed.orig_rax = (unsigned long long)strtoll(argv[2], NULL, 0);
    changed.rdi = arguments[0];
    changed.rsi = arguments[1];
    changed.rdx = arguments[2];
    changed.r10 = arguments[3];
    changed.r8 = arguments[4];
    changed.r9 = arguments[5];
    if (ptrace(PTRACE_SETREGS, pid, 0, &changed))
        fail("PTRACE_SETREGS");
    go_on();
    if (ptrace(PTRACE_GETREGS, pid, 0, &changed))
        fail("PTRACE_GETREGS");
    long long result = (long long)changed.rax;
    registers.rip = changed.rip;
    registers.rax = (unsigned long long)-EINTR;
    registers.orig_rax = (unsigned long long)-1;
    if (ptrace(PTRACE_SETREGS, pid, 0, &registers))
        fail("PTRACE_SETREGS");
    /* A signal comes before the next call. */
    go_on();
    printf("returned %lld\n", result);
    if (ptrace(PTRACE_DETACH, pid, 0, 0))
        fail("PTRACE_DETACH");
    return 0;
}
