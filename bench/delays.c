/* Makes processes of an unmodified server slow: preloaded, it lets each wait when it opens the page that it is asked for or, with
 * DELAYS_AT=read, when it reads it (lighttpd keeps it open).
 *
 * DELAYS names a file of entries, which balance.py writes while the server runs: whoever finds its process in it takes so many
 * microseconds, and counts. The page is the file whose name is "page". Waiting blocks the thread, as computing would, but eight such processes fit
 * two CPUs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ENTRIES 64

struct entry {
    volatile int32_t pid;
    volatile uint32_t micros;
    uint64_t served;
};

static struct entry *table;
static int at_read;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("DELAYS");
    int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(0, ENTRIES * sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED)
        table = mapped;
    if (fd >= 0)
        close(fd);
    name = getenv("DELAYS_AT");
    at_read = name && !strcmp(name, "read");
}

static void delay(const char *path)
{
    size_t len = strlen(path);
    if (!table || len < 5 || strcmp(path + len - 5, "/page"))
        return;
    int before = errno;
    for (int i = 0; i < ENTRIES; i++)
        if (table[i].pid == getpid()) {
            struct timespec left = { table[i].micros / 1000000, (long)(table[i].micros % 1000000) * 1000 };
            __atomic_add_fetch(&table[i].served, 1, __ATOMIC_RELAXED);
            while (nanosleep(&left, &left) && errno == EINTR)
                ;
            break;
        }
    errno = before;
}

#define OPEN(NAME)                                                                                                             \
    int NAME(const char *path, int flags, ...)                                                                                 \
    {                                                                                                                          \
        static int (*next)(const char *, int, ...);                                                                            \
        va_list arguments;                                                                                                     \
        va_start(arguments, flags);                                                                                            \
        int mode = va_arg(arguments, int);                                                                                     \
        va_end(arguments);                                                                                                     \
        if (!next)                                                                                                             \
            *(void **)&next = dlsym(RTLD_NEXT, #NAME);                                                                         \
        at_read ? (void)0 : delay(path);                                                                                                           \
        return next(path, flags, mode);                                                                                        \
    }

#define OPENAT(NAME)                                                                                                           \
    int NAME(int folder, const char *path, int flags, ...)                                                                     \
    {                                                                                                                          \
        static int (*next)(int, const char *, int, ...);                                                                       \
        va_list arguments;                                                                                                     \
        va_start(arguments, flags);                                                                                            \
        int mode = va_arg(arguments, int);                                                                                     \
        va_end(arguments);                                                                                                     \
        if (!next)                                                                                                             \
            *(void **)&next = dlsym(RTLD_NEXT, #NAME);                                                                         \
        at_read ? (void)0 : delay(path);                                                                                                           \
        return next(folder, path, flags, mode);                                                                                \
    }

/* What fortified programs call where there is no mode. */
#define OPEN_2(NAME)                                                                                                           \
    int NAME(const char *path, int flags)                                                                                      \
    {                                                                                                                          \
        static int (*next)(const char *, int);                                                                                 \
        if (!next)                                                                                                             \
            *(void **)&next = dlsym(RTLD_NEXT, #NAME);                                                                         \
        at_read ? (void)0 : delay(path);                                                                                                           \
        return next(path, flags);                                                                                              \
    }

#define PREAD(NAME)                                                                                                            \
    ssize_t NAME(int fd, void *to, size_t size, off_t at)                                                                      \
    {                                                                                                                          \
        static ssize_t (*next)(int, void *, size_t, off_t);                                                                    \
        if (!next)                                                                                                             \
            *(void **)&next = dlsym(RTLD_NEXT, #NAME);                                                                         \
        if (at_read) {                                                                                                         \
            char link[64], path[4096];                                                                                         \
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);                                                               \
            ssize_t len = readlink(link, path, sizeof path - 1);                                                               \
            path[len < 0 ? 0 : len] = 0;                                                                                       \
            delay(path);                                                                                                       \
        }                                                                                                                      \
        return next(fd, to, size, at);                                                                                         \
    }

PREAD(pread)
PREAD(pread64)
OPEN(open)
OPEN(open64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT(openat)
OPENAT(openat64)
