/* System calls past the library, for programs that misbehave: the library stands for the C library's syscall, hides its own descriptors
 * from it, and has calls by an instruction dispatched to it. direct(NUMBER, up to six words) returns what the kernel does, a negative
 * errno for an error. */
#include "instruction.h"

/* Switches the dispatch of this thread off first: prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF). A child of fork has it on. */
static inline long direct_words(long number, long a, long b, long c, long d, long e, long f)
{
    raw_words(157, 59, 0, 0, 0, 0, 0);
    return raw_words(number, a, b, c, d, e, f);
}

#define direct_cast(number, a, b, c, d, e, f, ...) \
    direct_words(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define direct(...) direct_cast(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
