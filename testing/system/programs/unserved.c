// Makes sockets by system calls of its own, and prints what becomes of each. As a static program
// it loads no library; as another one it has the library's functions beside its own instructions.
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

// A call as 32-bit programs make it.
static long raw32(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "r8", "r9", "r10", "r11", "memory");
    return result;
}

static void told(const char *what, long result) {
    printf("%s %s\n", what, result >= 0 ? "works" : strerrorname_np(-result));
    if (result >= 0)
        close(result);
}

static long called(int family, int kind) {
    long result = socket(family, kind, 0);
    return result < 0 ? -errno : result;
}

int main(void) {
    char parameters[120] = {0};
    told("tcp", called(AF_INET, SOCK_STREAM));
    told("unix", called(AF_UNIX, SOCK_STREAM));
    told("raw tcp", raw(SYS_socket, AF_INET, SOCK_STREAM, 0));
    told("raw udp", raw(SYS_socket, AF_INET, SOCK_DGRAM, 0));
    told("raw tcp6", raw(SYS_socket, AF_INET6, SOCK_STREAM, 0));
    told("raw unix", raw(SYS_socket, AF_UNIX, SOCK_STREAM, 0));
    told("tcp of 32 bits", raw32(359, AF_INET, SOCK_STREAM, 0));
    told("unix of 32 bits", raw32(359, AF_UNIX, SOCK_STREAM, 0));
    told("io_uring", raw(SYS_io_uring_setup, 4, (long)parameters, 0));
    return 0;
}
