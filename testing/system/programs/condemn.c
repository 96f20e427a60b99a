/* What a fault in the code of a server would do, found by one session: condemn PID SESSION waits until the server PID is at work on commands of that
 * session, as the word in its ledger says, and lets it jump to nowhere. It dies of that as of any fault of its own, and this says "died of signal N". */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "registers are called otherwise here"
#endif

/* crates/ipc/src/ledger: where the word is, and what commands of a session are called in it. */
#define WORK 136
#define COMMANDS 5

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static unsigned long ledger(pid_t pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    unsigned long begin, offset;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "atoll-ledger") && sscanf(line, "%lx-%*x %*s %lx", &begin, &offset) == 2 && offset == 0)
            return begin;
    fprintf(stderr, "it has no ledger\n");
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 1;
    pid_t pid = atoi(argv[1]);
    uint64_t wanted = (uint64_t)COMMANDS << 32 | (uint32_t)strtoul(argv[2], NULL, 10);
    unsigned long word = ledger(pid) + WORK;
    if (ptrace(PTRACE_SEIZE, pid, 0, 0))
        fail("PTRACE_SEIZE");
    int status;
    for (int tries = 0; tries < 300000; tries++) {
        if (ptrace(PTRACE_INTERRUPT, pid, 0, 0))
            fail("PTRACE_INTERRUPT");
        if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
            fail("waitpid");
        errno = 0;
        uint64_t work = (uint64_t)ptrace(PTRACE_PEEKDATA, pid, word, 0);
        if (errno)
            fail("PTRACE_PEEKDATA");
        /* The bits above say which incarnation works. */
        if ((work & 0xffffffffff) == wanted) {
            struct user_regs_struct registers;
            if (ptrace(PTRACE_GETREGS, pid, 0, &registers))
                fail("PTRACE_GETREGS");
            registers.rip = 0;
            registers.orig_rax = (unsigned long long)-1;
            if (ptrace(PTRACE_SETREGS, pid, 0, &registers) || ptrace(PTRACE_CONT, pid, 0, 0))
                fail("PTRACE_SETREGS");
            while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {
                int signal = WSTOPSIG(status);
                if (ptrace(PTRACE_CONT, pid, 0, signal == SIGTRAP ? 0 : signal))
                    fail("PTRACE_CONT");
            }
            printf("died of signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
            return 0;
        }
        int signal = WSTOPSIG(status);
        if (ptrace(PTRACE_CONT, pid, 0, signal == SIGTRAP ? 0 : signal))
            fail("PTRACE_CONT");
        usleep(20);
    }
    fprintf(stderr, "it was never at work on that\n");
    return 1;
}
