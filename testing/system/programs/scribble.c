/* An application gone mad: scribble PORT SEED. Accepts a connection, and then overwrites everything that it shares with the
 * stack, which is every writable mapping of a memfd, for two seconds: words first, then bytes, then everything at once. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct {
    volatile unsigned char *start;
    size_t len;
} shared[256];
static unsigned count;
static uint64_t state;

static uint64_t random_word(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void find_shared(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && strstr(line, "/memfd:") && rights[1] == 'w' &&
            rights[3] == 's' && count < 256) {
            shared[count].start = (unsigned char *)from;
            shared[count++].len = to - from;
        }
    }
    if (maps)
        fclose(maps);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 1;
    state = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int server = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 16))
        return 1;
    printf("listening\n");
    fflush(stdout);
    int fd = accept(server, NULL, NULL);
    char hello[100];
    if (fd < 0 || read(fd, hello, sizeof hello) <= 0 || write(fd, "hi\n", 3) != 3)
        return 1;
    find_shared();
    size_t total = 0;
    for (unsigned i = 0; i < count; i++)
        total += shared[i].len;
    // Said before, because afterwards nothing may work any more.
    printf("scribbling\n%zu bytes in %u mappings will be overwritten\n", total, count);
    fflush(stdout);
    alarm(10);
    time_t end = time(NULL) + 2;
    // Small changes keep the rings alive long enough for the stack to read them; the calls between keep both sides at it.
    for (unsigned long round = 0; time(NULL) < end; round++) {
        for (unsigned i = 0; i < count; i++) {
            for (int change = 0; change < 64; change++) {
                // Half of the changes go to the first pages, where heads, tails and flags are.
                size_t room = random_word() & 1 && shared[i].len > 16384 ? 16384 : shared[i].len;
                size_t at = random_word() % room;
                if (random_word() & 1)
                    *(volatile uint64_t *)(shared[i].start + (at & ~7ul)) = random_word() >> (random_word() & 63);
                else
                    shared[i].start[at] = random_word();
            }
        }
        if (round % 16 == 0) {
            struct pollfd entry = {.fd = fd, .events = POLLIN};
            send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
            poll(&entry, 1, 0);
            accept4(server, NULL, NULL, SOCK_NONBLOCK);
        }
    }
    for (unsigned i = 0; i < count; i++)
        for (size_t at = 0; at < shared[i].len; at++)
            shared[i].start[at] = random_word();
    return 0;
}
