/* What does it cost to wake a process that sleeps in epoll on an eventfd, as servers do? For crates/papers/src/costs.toml.
 *
 *   wake SLEEPER_CPU RINGER_CPU ROUNDS   nanoseconds: of the ringer's write, of the sleeper's time on its CPU for each sleep and
 *                                        waking, from the write's beginning to the sleeper's being awake (medians, least, greatest
 *                                        of ten stretches) */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { STRETCHES = 10 };

/* What the two share. */
struct shared {
    volatile long rung, awake_at, rounds;
};

static long now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static int compare(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

static long median(long *all, int count)
{
    qsort(all, count, sizeof *all, compare);
    return all[count / 2];
}

static void say(const char *what, long *stretches)
{
    long middle = median(stretches, STRETCHES);
    printf("%s: median %ld, least %ld, greatest %ld ns\n", what, middle, stretches[0], stretches[STRETCHES - 1]);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int rounds = atoi(argv[3]), bell = eventfd(0, EFD_NONBLOCK), poll = epoll_create1(0);
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (bell < 0 || poll < 0 || shared == MAP_FAILED || rounds < 1 || epoll_ctl(poll, EPOLL_CTL_ADD, bell, &event)) {
        perror("wake");
        return 1;
    }
    pid_t sleeper = fork();
    if (sleeper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(atoi(argv[1]));
        for (;;) {
            epoll_wait(poll, &event, 1, -1);
            shared->awake_at = now(CLOCK_MONOTONIC);
            shared->rounds++;
        }
    }
    pin(atoi(argv[2]));
    clockid_t sleepers;
    if (sleeper < 0 || clock_getcpuclockid(sleeper, &sleepers)) {
        perror("wake");
        return 1;
    }
    long *writes = calloc(rounds, sizeof *writes), *wakes = calloc(rounds, sizeof *wakes);
    long write_of[STRETCHES], wake_of[STRETCHES], cpu_of[STRETCHES];
    for (int stretch = 0; stretch < STRETCHES; stretch++) {
        long cpu = now(sleepers);
        for (int round = 0; round < rounds; round++) {
            /* Long enough for the other to sleep. */
            for (long until = now(CLOCK_MONOTONIC) + 200000; now(CLOCK_MONOTONIC) < until;)
                ;
            long before = shared->rounds, began = now(CLOCK_MONOTONIC);
            uint64_t one = 1;
            if (write(bell, &one, sizeof one) != sizeof one)
                return 1;
            writes[round] = now(CLOCK_MONOTONIC) - began;
            while (shared->rounds == before)
                ;
            wakes[round] = shared->awake_at - began;
        }
        cpu_of[stretch] = (now(sleepers) - cpu) / rounds;
        write_of[stretch] = median(writes, rounds);
        wake_of[stretch] = median(wakes, rounds);
    }
    say("the ringer's write", write_of);
    say("the sleeper's time on its CPU", cpu_of);
    say("from the write to being awake", wake_of);
    kill(sleeper, SIGKILL);
    return 0;
}
