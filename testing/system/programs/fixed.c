/* A server and a client in two threads, for C libraries that are linked statically: threads, signals, children, what the program sees of
 * itself. Prints what must be the same on every stack. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in address;
static _Thread_local int own = 7;
static volatile sig_atomic_t handled;
static int client;

/* Runs in the thread that is inside recv, with that thread's memory. */
static void handler(int number)
{
    handled += number == SIGUSR1 && own == 8;
    if (send(client, "!", 1, 0) != 1)
        handled = -100;
}

static void *waits(void *argument)
{
    own = 8;
    client = socket(AF_INET, SOCK_STREAM, 0);
    int failed = connect(client, (struct sockaddr *)&address, sizeof address);
    char text[32] = "";
    long got = recv(client, text, sizeof text, MSG_WAITALL);
    printf("thread: connect %d, recv %ld %.4s, handled %d, own %d\n", failed, got, text, (int)handled, own);
    close(client);
    return argument;
}

int main(int count, char **arguments)
{
    if (count > 1)
        return printf("again: %s\n", arguments[1]) < 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    char path[4096] = "";
    long len = readlink("/proc/self/exe", path, sizeof path - 1);
    const char *base = strrchr(arguments[0], '/');
    printf("own file: %d\n", len > 0 && base != NULL && strcmp(strrchr(path, '/'), base) == 0);
    printf("vector: %d\n", strcmp((char *)getauxval(AT_EXECFN), arguments[0]) == 0);
    char *large = malloc(1 << 24), *small = malloc(100);
    memset(large, 1, 1 << 24);
    free(large);
    free(small);

    int listener = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
    socklen_t address_len = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8))
        return 1;
    getsockname(listener, (struct sockaddr *)&address, &address_len);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, waits, &own))
        return 2;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    printf("epoll: %d\n", epoll_wait(set, &event, 1, 10000));
    int server = accept(listener, NULL, NULL);
    char signs[3] = "";
    for (int i = 0; i < 3; i++) {
        pthread_kill(thread, SIGUSR1);
        if (recv(server, &signs[i], 1, 0) != 1)
            return 3;
    }
    printf("signs: %.3s\n", signs);

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dprintf(1, "child: own %d, sent %ld\n", own, (long)send(server, "from a child, and then some more", 32, 0));
        _exit(5);
    }
    int status = 0;
    waitpid(child, &status, 0);
    void *result = NULL;
    pthread_join(thread, &result);
    printf("child ended %d, joined %d, own %d\n", WEXITSTATUS(status), result == &own, own);

    FILE *output = popen("echo from a shell", "r");
    char line[100] = "";
    if (fgets(line, sizeof line, output) != NULL)
        printf("%s", line);
    pclose(output);
    execl("/proc/self/exe", arguments[0], "by its own path", NULL);
    return 4;
}
