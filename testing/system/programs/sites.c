/* Calls by instructions that libatoll rewrites, made by threads of the C library's whose stacks are short: those that have another stack
 * for signals, as all threads of Go with cgo have. This program bears the note of Go's linker. Prints the same on every stack. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "instruction.h"

__asm__(".pushsection .note.go.buildid, \"a\", @note\n\t"
        ".p2align 2\n\t"
        ".long 4, 4, 4\n\t"
        ".ascii \"Go\\0\\0test\"\n\t"
        ".popsection");

/* sendto(2) and recvfrom(2) of a connected socket: a fixed number right before the instruction. */
#define SITE(name, number)                                                              \
    __attribute__((noinline)) static long name(int fd, char *text, size_t len)          \
    {                                                                                   \
        register long r10 __asm__("r10") = 0;                                           \
        register long r8 __asm__("r8") = 0;                                             \
        register long r9 __asm__("r9") = 0;                                             \
        long result;                                                                    \
        __asm__ volatile("nop\n\tmov $" #number ", %%eax\n\tsyscall"                    \
                         : "=a"(result)                                                 \
                         : "D"((long)fd), "S"(text), "d"(len), "r"(r10), "r"(r8), "r"(r9) \
                         : "rcx", "r11", "memory");                                     \
        return result;                                                                  \
    }
SITE(send_by_site, 44)
SITE(recv_by_site, 45)

enum { STACK = 64 << 10, THREADS = 8, ROUNDS = 5000 };

static void must(int is_right, const char *what)
{
    if (!is_right) {
        printf("FAILED: %s\n", what);
        fflush(stdout);
        _exit(1);
    }
}

static void make_pair(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(!bind(listener, (struct sockaddr *)&address, len) && !listen(listener, 1), "listen");
    must(!getsockname(listener, (struct sockaddr *)&address, &len), "getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(!connect(ends[0], (struct sockaddr *)&address, len), "connect");
    ends[1] = accept(listener, NULL, NULL);
    must(ends[1] >= 0, "accept");
    close(listener);
}

static stack_t new_stack(void)
{
    return (stack_t){.ss_sp = malloc(STACK), .ss_size = STACK};
}

/* ---- threads that are made by threads which make such calls ---- */

/* Every second one has one stack only; its calls are trapped, so it makes fewer. */

static void *talk(void *argument)
{
    long depth = (long)argument;
    stack_t stack = new_stack();
    int ends[2];
    pthread_t next;
    int has_stack = depth % 2;
    if (has_stack)
        must(!sigaltstack(&stack, NULL), "sigaltstack");
    make_pair(ends);
    for (long round = 0; round < (has_stack ? ROUNDS : ROUNDS / 10); round++) {
        long text = depth << 32 | round, heard = 0;
        if (round == 10 && depth < THREADS)
            must(!pthread_create(&next, NULL, talk, (void *)(depth + 1)), "pthread_create");
        must(send_by_site(ends[0], (char *)&text, sizeof text) == sizeof text, "send");
        must(recv_by_site(ends[1], (char *)&heard, sizeof heard) == sizeof heard, "recv");
        must(heard == text, "what was sent");
    }
    if (depth < THREADS)
        pthread_join(next, NULL);
    close(ends[0]);
    close(ends[1]);
    return NULL;
}

/* ---- a stack for signals that changes ---- */

static int waits_in[2];
static volatile int deep, left;

/* Waits for an octet, on the stack for signals, while another signal comes there. */
static void wait_for_octet(int number)
{
    char byte, mark[256];
    memset(mark, number, sizeof mark);
    must(recv_by_site(waits_in[1], &byte, 1) == 1 && byte == 'x', "recv in a handler");
    for (unsigned i = 0; i < sizeof mark; i++)
        must(mark[i] == number, "the stack of a handler");
    left++;
}

static void note(int number)
{
    char mark[2048];
    memset(mark, number, sizeof mark);
    __asm__ volatile("" : : "r"(mark) : "memory");
    deep++;
}

static void *disturb(void *thread)
{
    usleep(20000);
    pthread_kill(*(pthread_t *)thread, SIGUSR2);
    usleep(20000);
    must(send_by_site(waits_in[0], "x", 1) == 1, "send");
    return NULL;
}

static void change(int way, stack_t *stack)
{
    switch (way) {
    case 0: sigaltstack(stack, NULL); break;
    case 1: raw(SYS_sigaltstack, stack, NULL); break;
    case 2: syscall(SYS_sigaltstack, stack, NULL); break;
    }
}

static void change_stacks(void)
{
    char byte = 'y';
    struct sigaction waits = {.sa_handler = wait_for_octet, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct sigaction notes = {.sa_handler = note, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGUSR1, &waits, NULL);
    sigaction(SIGUSR2, &notes, NULL);
    make_pair(waits_in);
    for (int way = 0; way < 3; way++) {
        stack_t stack = new_stack();
        pthread_t self = pthread_self(), other;
        change(way, &stack);
        must(send_by_site(waits_in[1], &byte, 1) == 1 && recv_by_site(waits_in[0], &byte, 1) == 1, "before");
        stack = new_stack();
        change(way, &stack);
        pthread_create(&other, NULL, disturb, &self);
        raise(SIGUSR1);
        pthread_join(other, NULL);
        printf("handlers: %d, %d\n", left, deep);
    }
}

int main(void)
{
    pthread_t first;
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    pthread_create(&first, NULL, talk, (void *)1L);
    pthread_join(first, NULL);
    puts("threads: right");
    change_stacks();
    return 0;
}
