/* A process that shares its connections with children which die at any instruction of the socket library: hunt PORT CONNECTIONS ROUNDS SEED
 *
 * Three generations. The hunter traces; its child, the elder, listens, serves, writes on its connections, and never dies; each round the
 * elder forks a victim, which does all that can be done with those connections and new ones, in two threads. The hunter stops it after a random time,
 * lets it go on instruction by instruction, a random number of them inside of the library, and kills it.
 *
 * On the shared connections the elder writes 0, 1 .. 126, 0 .. and each victim the same with the highest bit, from 0 on. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNECTIONS_MAX 16
#define PART 20000

#define MUST(call) must((long)(call), #call)
static long must(long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%d: %s: %s\n", getpid(), what, strerrorname_np(errno));
        _exit(1);
    }
    return result;
}

static __thread uint64_t state;
static uint32_t below(uint32_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % limit;
}

static int listener, shared[CONNECTIONS_MAX], connections;
static struct sockaddr_in own;

/* Writes some of an endless row of octets, as much as fits now. */
static void write_row(int fd, uint64_t *written, unsigned char bit)
{
    unsigned char text[PART];
    size_t length = 1 + below(PART);
    for (size_t i = 0; i < length; i++)
        text[i] = (unsigned char)((*written + i) % 127) | bit;
    ssize_t n = send(fd, text, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0)
        *written += (uint64_t)n;
    else if (errno != EAGAIN)
        MUST(n);
}

static void read_some(int fd)
{
    unsigned char text[PART];
    ssize_t n = recv(fd, text, 1 + below(PART), MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN)
        MUST(n);
}

/* Takes a connection, if there is one, and gives back what it says. */
static void serve_one(void)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    unsigned char text[4096];
    struct timeval patience = {.tv_usec = 200000};
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    memset(text, '?', sizeof text);
    ssize_t n = recv(fd, text, sizeof text, 0);
    /* Either end asks for the same: 0, 1 .. 250, 0 .. or "hello". */
    for (ssize_t i = 0; i < n; i++)
        if (text[i] != i % 251 && (n > 5 || memcmp(text, "hello", (size_t)n) != 0)) {
            printf("received wrongly: octet %zd of %zd is %d (%d, %s)\n", i, n, text[i], getpid(), i > 0 ? "later" : "from the start");
            fflush(stdout);
            break;
        }
    if (n > 0)
        send(fd, text, (size_t)n, MSG_NOSIGNAL);
    close(fd);
}

/* A connection to oneself, which the other side may close first. */
static void connect_one(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    struct linger linger = {.l_onoff = (int)below(2)};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    connect(fd, (struct sockaddr *)&own, sizeof own);
    send(fd, "hello", 5, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, (int)below(3));
    close(fd);
}

static void *second_thread(void *argument)
{
    state = (uint64_t)(uintptr_t)argument;
    for (;;) {
        serve_one();
        read_some(shared[below((uint32_t)connections)]);
        if (below(4) == 0)
            connect_one();
        usleep(below(300));
    }
    return NULL;
}

static void suffer(uint64_t seed)
{
    uint64_t written[CONNECTIONS_MAX] = {0};
    pthread_t thread;
    state = seed;
    pthread_create(&thread, NULL, second_thread, (void *)(uintptr_t)(seed ^ 0x5555555555));
    for (;;) {
        uint32_t n = below((uint32_t)connections);
        switch (below(12)) {
        case 0:
            serve_one();
            break;
        case 1:
            connect_one();
            break;
        case 2:
            read_some(shared[n]);
            break;
        case 3: {
            int again = dup(shared[n]);
            if (again >= 0)
                close(again);
            break;
        }
        case 4:
            if (below(8) == 0) {
                pid_t child = fork();
                if (child == 0)
                    _exit(0);
                if (child > 0)
                    waitpid(child, NULL, 0);
            }
            break;
        default:
            write_row(shared[n], &written[n], 0x80);
        }
    }
}

static void elder(int port, int rounds, uint64_t seed, int tell)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1;
    own = any;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(listener, (struct sockaddr *)&any, sizeof any));
    MUST(listen(listener, 1024));
    printf("listening\n");
    fflush(stdout);
    uint64_t written[CONNECTIONS_MAX] = {0}, sum = 0;
    for (int n = 0; n < connections; n++)
        shared[n] = (int)MUST(accept(listener, NULL, NULL));
    MUST(fcntl(listener, F_SETFL, O_NONBLOCK));
    state = seed;
    for (int round = 0; round < rounds; round++) {
        uint64_t its_seed = seed * 1000 + (uint64_t)round + 1;
        pid_t victim = (pid_t)MUST(fork());
        if (victim == 0)
            suffer(its_seed * 0x9e3779b97f4a7c15);
        MUST(write(tell, &victim, sizeof victim));
        int status;
        while (waitpid(victim, &status, WNOHANG) == 0) {
            uint32_t n = below((uint32_t)connections);
            write_row(shared[n], &written[n], 0);
            read_some(shared[below((uint32_t)connections)]);
            serve_one();
            usleep(below(500));
        }
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
            fprintf(stderr, "round %d: the victim has ended by itself: %x\n", round, status);
            _exit(1);
        }
    }
    for (int n = 0; n < connections; n++) {
        sum += written[n];
        MUST(shutdown(shared[n], SHUT_WR));
    }
    /* The peer reads all of it, and closes. Others are served meanwhile. */
    for (int open = connections; open > 0; usleep(1000)) {
        serve_one();
        for (int n = 0; n < connections; n++) {
            unsigned char text[PART];
            ssize_t got = shared[n] < 0 ? -1 : recv(shared[n], text, sizeof text, MSG_DONTWAIT);
            if (shared[n] >= 0 && got < 0 && errno != EAGAIN)
                MUST(got);
            if (got == 0) {
                close(shared[n]);
                shared[n] = -1;
                open--;
            }
        }
    }
    printf("wrote %llu octets\n", (unsigned long long)sum);
    fflush(stdout);
    _exit(0);
}

/* Where the library's code lies in a process. */
static int find_library(pid_t pid, uint64_t *from, uint64_t *to)
{
    char path[64], line[512];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long long first, last;
        char rights[8];
        if (strstr(line, "libatoll") && sscanf(line, "%llx-%llx %7s", &first, &last, rights) == 3 && strchr(rights, 'x')) {
            *from = first;
            *to = last;
            found = 1;
        }
    }
    if (maps)
        fclose(maps);
    return found;
}

/* Lets the victim run for some instructions inside of the library, and kills it there. Returns their number. */
static uint32_t hunt(pid_t victim)
{
    uint64_t from = 0, to = UINT64_MAX;
    uint32_t inside = 0;
    int status;
    MUST(ptrace(PTRACE_SEIZE, victim, NULL, NULL));
    find_library(victim, &from, &to);
    usleep(below(20000));
    MUST(ptrace(PTRACE_INTERRUPT, victim, NULL, NULL));
    MUST(waitpid(victim, &status, __WALL));
    uint32_t wanted = 1 + below(400);
    for (uint32_t steps = 0; steps < 4000 && inside < wanted && WIFSTOPPED(status); steps++) {
        if (ptrace(PTRACE_SINGLESTEP, victim, NULL, NULL) < 0 || waitpid(victim, &status, __WALL) < 0)
            break;
        struct user_regs_struct registers;
        if (WIFSTOPPED(status) && ptrace(PTRACE_GETREGS, victim, NULL, &registers) == 0)
            inside += registers.rip >= from && registers.rip < to;
    }
    MUST(kill(victim, SIGKILL));
    while (waitpid(victim, &status, __WALL) == victim && !WIFSIGNALED(status) && !WIFEXITED(status))
        ;
    return inside;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int port = atoi(argv[1]), rounds = atoi(argv[3]), pipes[2];
    connections = atoi(argv[2]);
    uint64_t seed = strtoull(argv[4], NULL, 10), inside = 0;
    MUST(pipe2(pipes, O_CLOEXEC));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0)
        elder(port, rounds, seed, pipes[1]);
    close(pipes[1]);
    state = seed ^ 0x123456789abcdef;
    pid_t victim;
    while (read(pipes[0], &victim, sizeof victim) == sizeof victim)
        inside += hunt(victim);
    int status;
    MUST(waitpid(child, &status, 0));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the elder has died: %x\n", status);
        return 1;
    }
    printf("inside %llu instructions\n", (unsigned long long)inside);
    return 0;
}
