// Looks names up in the ways that the C library has, and prints what comes: names CASE.
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <resolv.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <arpa/inet.h>
#include <unistd.h>

static void list(const char *name) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    int result = getaddrinfo(name, "80", &hints, &all), count = 0;
    printf("%s:", name);
    if (result)
        printf(" %s", gai_strerror(result));
    for (struct addrinfo *at = all; at && count < 4; at = at->ai_next, count++) {
        char host[64];
        getnameinfo(at->ai_addr, at->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST);
        printf(" %s", host);
    }
    printf("\n");
    if (all)
        freeaddrinfo(all);
}

static void functions(void) {
    list("here.test");
    list("nothing.test");
    list("127.0.0.1");
    struct hostent *entry = gethostbyname("here.test");
    printf("gethostbyname %s\n", entry ? inet_ntoa(*(struct in_addr *)entry->h_addr_list[0]) : "nothing");
    struct hostent memory, *found = NULL;
    char buffer[1024];
    int error;
    gethostbyname2_r("here.test", AF_INET6, &memory, buffer, sizeof buffer, &found, &error);
    char text[64];
    printf("gethostbyname2_r %s\n", found ? inet_ntop(AF_INET6, found->h_addr_list[0], text, sizeof text) : "-");
    struct in_addr address;
    inet_aton("198.18.0.1", &address);
    entry = gethostbyaddr(&address, sizeof address, AF_INET);
    printf("gethostbyaddr %s\n", entry ? entry->h_name : "nothing");
    struct sockaddr_in of = {.sin_family = AF_INET, .sin_addr = address};
    char host[64];
    int result = getnameinfo((void *)&of, sizeof of, host, sizeof host, NULL, 0, NI_NAMEREQD);
    printf("getnameinfo %s\n", result ? gai_strerror(result) : host);
    unsigned char answer[4096];
    printf("res_query %d\n", res_query("here.test", 1, 1, answer, sizeof answer));
    struct addrinfo *all;
    result = getaddrinfo("large.test", NULL, &(struct addrinfo){.ai_socktype = SOCK_STREAM}, &all);
    int count = 0;
    for (struct addrinfo *at = result ? NULL : all; at; at = at->ai_next)
        count++;
    printf("large.test %d\n", count);
}

// A handler in the middle of look-ups, which uses sockets itself, with every signal blocked while it runs.
static volatile int ticks;

static void tick(int signal) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), kept = errno;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(0xc6120001)}};
    if (fd < 0 || sendto(fd, "x", 1, 0, (void *)&to, sizeof to) != 1)
        abort();
    close(fd);
    errno = kept;
    ticks++;
    (void)signal;
}

static void handlers(void) {
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < 200; i++) {
        struct addrinfo *all;
        int result = getaddrinfo("here.test", NULL, &(struct addrinfo){.ai_socktype = SOCK_STREAM}, &all);
        if (result) {
            printf("look-up %d: %s\n", i, gai_strerror(result));
            return;
        }
        freeaddrinfo(all);
    }
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    printf("200 look-ups, %s\n", ticks >= 20 ? "signals among them" : "few signals");
}

// A look-up that is left by siglongjmp, and the next ones.
static sigjmp_buf out;

static void leave(int signal) {
    (void)signal;
    siglongjmp(out, 1);
}

static void jumps(void) {
    signal(SIGALRM, leave);
    volatile int left = 0;
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(out, 1)) {
            left++;
            continue;
        }
        alarm(1);
        list("silent.test");
    }
    printf("left %d\n", left);
    list("here.test");
}

// SIGSYS is the program's as before, blocked or not.
static volatile int trapped;

static void on_sigsys(int signal) {
    (void)signal;
    trapped++;
}

static void sigsys(void) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    list("here.test");
    sigset_t now;
    sigprocmask(SIG_SETMASK, &before, &now);
    printf("SIGSYS %s\n", sigismember(&now, SIGSYS) ? "stays blocked" : "is unblocked");
    signal(SIGSYS, on_sigsys);
    raise(SIGSYS);
    list("here.test");
    raise(SIGSYS);
    printf("handled %d, %s\n", trapped, signal(SIGSYS, SIG_DFL) == on_sigsys ? "the same" : "another");
    fflush(stdout);
    raise(SIGSYS);
    printf("raise returns\n");
}

static void *many(void *name) {
    for (int i = 0; i < 20; i++) {
        struct addrinfo *all = NULL;
        if (getaddrinfo(name, NULL, NULL, &all))
            return "failed";
        freeaddrinfo(all);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[8];
    int failed = 0;
    for (int i = 0; i < 8; i++)
        pthread_create(&all[i], NULL, many, "here.test");
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(all[i], &result);
        failed += result != NULL;
    }
    printf("8 threads, %d failed\n", failed);
}

int main(int argc, char **argv) {
    setlinebuf(stdout);
    struct { const char *name; void (*run)(void); } cases[] = {
        {"functions", functions}, {"handlers", handlers}, {"jumps", jumps}, {"sigsys", sigsys}, {"threads", threads},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc > 1 && !strcmp(argv[1], cases[i].name))
            cases[i].run();
    return 0;
}
