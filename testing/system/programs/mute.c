/* An application that keeps others from being woken: mute PORT. Accepts a connection, and then does with all bells that it shares with
 * the stack what their descriptors allow: reads them, fills them, and lets writing to them block. Until it is killed. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "direct.h"

/* Bare system calls: the library guards its own descriptors against slips of its program. */
static void fill(int bell)
{
    direct(SYS_fcntl, bell, F_SETFL, O_RDWR | O_NONBLOCK);
    for (uint64_t amount = (uint64_t)1 << 63; amount; amount >>= 1)
        direct(SYS_write, bell, &amount, sizeof amount);
    uint64_t one = 1;
    while (direct(SYS_write, bell, &one, sizeof one) == sizeof one)
        ;
    direct(SYS_fcntl, bell, F_SETFL, O_RDWR);
}

static void empty(int bell)
{
    uint64_t count;
    direct(SYS_fcntl, bell, F_SETFL, O_RDWR | O_NONBLOCK);
    for (int turn = 0; turn < 1000; turn++)
        if (direct(SYS_read, bell, &count, sizeof count) != sizeof count)
            break;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int server = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 16))
        return 1;
    printf("listening\n");
    fflush(stdout);
    char hello[100];
    int fd = accept(server, NULL, NULL);
    if (fd < 0 || read(fd, hello, sizeof hello) <= 0)
        return 1;
    int bells[1024], count = 0;
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *entry; all && (entry = readdir(all)) && count < 1024;) {
        char target[64] = "";
        if (readlinkat(dirfd(all), entry->d_name, target, sizeof target - 1) > 0 && !strcmp(target, "anon_inode:[eventfd]"))
            bells[count++] = atoi(entry->d_name);
    }
    time_t end = time(NULL) + 3;
    printf("muting %d bells\n", count);
    fflush(stdout);
    while (time(NULL) < end)
        for (int i = 0; i < count; i++)
            empty(bells[i]);
    for (int i = 0; i < count; i++)
        fill(bells[i]);
    printf("full\n");
    fflush(stdout);
    /* Its own are full, too, and it wants to be woken by one of them. */
    while (read(fd, hello, sizeof hello) > 0)
        ;
    for (;;)
        pause();
}
