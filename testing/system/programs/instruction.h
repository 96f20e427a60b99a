/* System calls by an instruction of the program's own. raw(NUMBER, up to six words) returns what the kernel does, a negative errno for
 * an error. */
static inline long raw_words(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#define raw_cast(number, a, b, c, d, e, f, ...) \
    raw_words(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define raw(...) raw_cast(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
