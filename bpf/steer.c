/*
 * To which queue of a TAP does the kernel give a frame? To the one that the steering table names for its flow group.
 *
 * Attached with TUNSETSTEERINGEBPF; the kernel takes the return value modulo the number of queues. The hash is
 * FlowKey::group of crates/base/src/flow.rs, bit for bit: fixtures/steer.txt and the tests of atoll-tap hold them
 * together. What a frame counts as:
 *   IPv4 with TCP or UDP, not a fragment ... source, destination and both ports
 *   IPv4, a fragment ....................... source and destination; identification and protocol in place of the ports,
 *                                            so that all fragments of a packet meet, and packets spread
 *   any other IPv4 ......................... source and destination, ports 0
 *   IPv6 with TCP or UDP right behind it ... source, destination and both ports
 *   IPv6 with a fragment header behind it .. source and destination; the identification in place of the ports, or the ports, if the
 *                                            fragment is all of a packet (RFC 6946)
 *   any other IPv6 ......................... source and destination, ports 0 (the replica looks behind extension headers)
 *   everything else (ARP, broken) .......... queue 0
 */
#include "types.h"

#define FLOW_GROUPS 4096

#define ETH_LEN 14
#define IPV4_LEN_MIN 20
#define IPV6_LEN 40
#define IPV6_ADDRESSES_AT 8
#define PROTO_TCP 6
#define PROTO_UDP 17
#define FRAGMENT 44
#define FRAGMENT_LEN 8

struct flow_key {
	u32 k0;
	u32 k1;
};

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct flow_key);
	MAP_UINT(max_entries, 1);
} flow_key SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
	MAP_UINT(max_entries, FLOW_GROUPS);
} steering_table SEC(".maps");

INLINE u32 be16(const u8 *p)
{
	return (u32)p[0] << 8 | p[1];
}

INLINE u32 be32(const u8 *p)
{
	return be16(p) << 16 | be16(p + 2);
}

/* FlowKey::group, in three steps, of which the first two take each word of an address. The frame comes in to the stack, so its
 * source is the remote end. */
INLINE u32 add_remote(u32 h, u32 word)
{
	h = (h ^ word) * 0x85ebca6b;
	return h ^ h >> 15;
}

INLINE u32 add_local(u32 h, u32 word)
{
	h = (h ^ word) * 0xc2b2ae35;
	return h ^ h >> 13;
}

INLINE u32 flow_group(const struct flow_key *key, u32 h, u32 ports)
{
	h = (h ^ ports ^ key->k1) * 0x9e3779b1;
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	return h & (FLOW_GROUPS - 1);
}

INLINE int queue_of(const struct flow_key *key, u32 h, u32 ports)
{
	u32 group = flow_group(key, h, ports);
	const u32 *queue = map_lookup(&steering_table, &group);

	return queue ? *queue : 0;
}

INLINE int has_ports(u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP;
}

INLINE int steer_ipv6(const struct __sk_buff *skb, const struct flow_key *key)
{
	u8 head[IPV6_LEN], fragment[FRAGMENT_LEN], protocol;
	u8 port_bytes[4];
	u32 h = key->k0, ports = 0, i, at = ETH_LEN + IPV6_LEN;

	if (skb_load_bytes(skb, ETH_LEN, head, sizeof(head)) || head[0] >> 4 != 6)
		return 0;
	protocol = head[6];
	if (protocol == FRAGMENT && !skb_load_bytes(skb, at, fragment, sizeof(fragment))) {
		protocol = fragment[0];
		at += FRAGMENT_LEN;
		/* 0xfff9: the offset and "more fragments". */
		if (be16(fragment + 2) & 0xfff9) {
			ports = be32(fragment + 4);
			protocol = 0;
		}
	}
	if (has_ports(protocol) && !skb_load_bytes(skb, at, port_bytes, sizeof(port_bytes)))
		ports = be32(port_bytes);
#pragma unroll
	for (i = 0; i < 4; i++)
		h = add_remote(h, be32(head + IPV6_ADDRESSES_AT + 4 * i));
#pragma unroll
	for (i = 4; i < 8; i++)
		h = add_local(h, be32(head + IPV6_ADDRESSES_AT + 4 * i));
	return queue_of(key, h, ports);
}

SEC("socket")
int steer(struct __sk_buff *skb)
{
	u8 head[ETH_LEN + IPV4_LEN_MIN]; /* Ethernet and the fixed part of IPv4: one copy for both. */
	u8 port_bytes[4];
	const u8 *ip = head + ETH_LEN;
	u32 zero = 0, ports = 0, header_len;
	const struct flow_key *key;

	if (skb_load_bytes(skb, 0, head, sizeof(head)))
		return 0;
	key = map_lookup(&flow_key, &zero);
	if (!key)
		return 0;
	if (be16(head + 12) == 0x86dd)
		return steer_ipv6(skb, key);
	header_len = (ip[0] & 0xf) * 4;
	if (be16(head + 12) != 0x0800 || ip[0] >> 4 != 4 || header_len < IPV4_LEN_MIN)
		return 0;

	/* 0x3fff: "more fragments" and the offset. Only an unfragmented packet is sure to begin with its ports. */
	if (be16(ip + 6) & 0x3fff)
		ports = be16(ip + 4) << 16 | ip[9];
	else if (has_ports(ip[9]) && !skb_load_bytes(skb, ETH_LEN + header_len, port_bytes, sizeof(port_bytes)))
		ports = be32(port_bytes); /* Source, that is remote, in the upper half. */

	return queue_of(key, add_local(add_remote(key->k0, be32(ip + 12)), be32(ip + 16)), ports);
}

/* Uses no helper that is reserved for GPL programs. */
char license_of_this_file[] SEC("license") = "Apache-2.0 OR MIT";
