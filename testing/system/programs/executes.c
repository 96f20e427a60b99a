/* Programs that load no library, and the ways to execute them. Linked statically, it is such a program.
 *
 *     unserved tries              says in one line which sockets can be made
 *     unserved listen PORT        listens at a port, and says so
 *     unserved ways PROGRAM       executes `PROGRAM tries` in every way, with a line for each
 *     unserved fails PROGRAM      executes it, says why that fails, and then which sockets can be made
 *     unserved inherits PROGRAM   executes `PROGRAM connects`, which has a socket of this one as standard input
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *outcome(long result) { return result < 0 ? strerrorname_np(errno) : "works"; }

static int tries(void) {
    static char parameters[256];
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    int count = 0;
    for (int signal = 1; signal < 32; signal++) count += sigismember(&blocked, signal) == 1;
    printf("inet %s,", outcome(socket(AF_INET, SOCK_STREAM, 0)));
    printf(" inet6 %s,", outcome(socket(AF_INET6, SOCK_DGRAM, 0)));
    printf(" smc %s,", outcome(socket(AF_SMC, SOCK_STREAM, 0)));
    printf(" unix %s,", outcome(socket(AF_UNIX, SOCK_STREAM, 0)));
    printf(" ring %s,", outcome(syscall(SYS_io_uring_setup, 1, parameters)));
    printf(" blocked %d\n", count);
    return 0;
}

static int connects(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7009)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    printf("connect %s\n", outcome(connect(0, (struct sockaddr *)&address, sizeof address)));
    return 0;
}

static int listens(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 8)) {
        printf("listens: %s\n", strerrorname_np(errno));
        return 1;
    }
    printf("listens\n");
    fflush(stdout);
    pause();
    return 0;
}

/* ---- ways to execute ---- */

static char *program, *name;
static char *arguments[] = {"unserved", "tries", NULL};

static void by_execve(void) { execve(program, arguments, environ); }
static void by_execv(void) { execv(program, arguments); }
static void by_execvp(void) { execvp(name, arguments); }
static void by_execvpe(void) { execvpe(name, arguments, environ); }
static void by_execl(void) { execl(program, "unserved", "tries", NULL); }
static void by_execlp(void) { execlp(name, "unserved", "tries", NULL); }
static void by_execle(void) {
    char *none[] = {NULL};
    execle(program, "unserved", "tries", NULL, none);
}
static void by_fexecve(void) { fexecve(open(program, O_RDONLY), arguments, environ); }
static void by_execveat(void) {
    char folder[4096];
    strcpy(folder, program);
    execveat(open(dirname(folder), O_PATH), name, arguments, environ, 0);
}
static void by_number(void) { syscall(SYS_execve, program, arguments, environ); }
static void by_number_at(void) { syscall(SYS_execveat, AT_FDCWD, program, arguments, environ, 0); }
static void by_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        execv(program, arguments);
        _exit(9);
    }
    waitpid(child, NULL, 0);
    exit(0);
}

static void wait_for(int error, pid_t child) {
    if (error) {
        printf("%s\n", strerrorname_np(error));
        exit(1);
    }
    waitpid(child, NULL, 0);
    tries();
    exit(0);
}

/* After these, the program that has started another is as it was. */
static void by_spawn(void) {
    pid_t child = 0;
    int error = posix_spawn(&child, program, NULL, NULL, arguments, environ);
    wait_for(error, child);
}
static void by_spawnp(void) {
    pid_t child = 0;
    int error = posix_spawnp(&child, name, NULL, NULL, arguments, environ);
    wait_for(error, child);
}
static void by_spawn_elsewhere(void) {
    char folder[4096], relative[4096] = "./";
    strcpy(folder, program);
    strcat(relative, name);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, dirname(folder));
    pid_t child = 0;
    int error = posix_spawn(&child, relative, &actions, NULL, arguments, environ);
    wait_for(error, child);
}
static void by_system(void) {
    char command[4096 + 16];
    snprintf(command, sizeof command, "%s tries", program);
    exit(system(command));
}
static void by_popen(void) {
    char command[4096 + 16];
    snprintf(command, sizeof command, "%s tries", program);
    FILE *output = popen(command, "r");
    for (int octet; (octet = getc(output)) != EOF;) putchar(octet);
    exit(pclose(output));
}

static const struct {
    const char *called;
    void (*way)(void);
} WAYS[] = {
    {"execve", by_execve},       {"execv", by_execv},
    {"execvp", by_execvp},       {"execvpe", by_execvpe},
    {"execl", by_execl},         {"execlp", by_execlp},
    {"execle", by_execle},       {"fexecve", by_fexecve},
    {"execveat", by_execveat},   {"number", by_number},
    {"number-at", by_number_at}, {"vfork", by_vfork},
    {"spawn", by_spawn},         {"spawnp", by_spawnp},
    {"chdir", by_spawn_elsewhere}, {"system", by_system},
    {"popen", by_popen},
};

static int ways(void) {
    char folder[4096];
    strcpy(folder, program);
    setenv("PATH", dirname(folder), 1);
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        printf("%s: ", WAYS[i].called);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            WAYS[i].way();
            printf("%s\n", strerrorname_np(errno));
            exit(1);
        }
        waitpid(child, NULL, 0);
    }
    return 0;
}

static int fails(void) {
    execv(program, arguments);
    printf("%s\n", strerrorname_np(errno));
    pid_t child = 0;
    int error = posix_spawn(&child, program, NULL, NULL, arguments, environ);
    printf("%s\n", error ? strerrorname_np(error) : "spawned");
    return tries();
}

static int inherits(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET};
    bind(fd, (struct sockaddr *)&any, sizeof any);
    dup2(fd, 0);
    execl(program, "unserved", "connects", NULL);
    return 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "tries")) return tries();
    if (!strcmp(what, "connects")) return connects();
    if (argc < 3) return 2;
    if (!strcmp(what, "listen")) return listens(atoi(argv[2]));
    program = argv[2];
    name = strrchr(program, '/') ? strrchr(program, '/') + 1 : program;
    if (!strcmp(what, "ways")) return ways();
    if (!strcmp(what, "fails")) return fails();
    if (!strcmp(what, "inherits")) return inherits();
    return 2;
}
