/*
 * What every program here needs from the kernel's BPF interface, written down rather than included, so that clang is
 * the only thing a build needs (no libbpf, no kernel headers). Numbers are kernel ABI: include/uapi/linux/bpf.h.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct __sk_buff; /* Only ever passed on to helpers. */

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* BTF-style map definitions, as every loader understands them. */
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) __typeof__(type) *name
enum { BPF_MAP_TYPE_ARRAY = 2 };

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const skb_load_bytes)(const struct __sk_buff *skb, u32 offset, void *to, u32 len) = (void *)26;
