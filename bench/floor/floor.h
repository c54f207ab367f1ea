/* What the floor programs share: clock, histogram, torn tails, RFC 6455 frames, opening a socket.
 *
 * Not a library and not the project's codec: the least C that speaks the protocol correctly, so that
 * what these programs cost is what the kernel costs. Frames: RFC 6455 section 5.2. */
#ifndef FLOOR_H
#define FLOOR_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OP_TEXT = 1, OP_BINARY = 2, OP_CLOSE = 8, OP_PING = 9, OP_PONG = 10 };

/* One read of at most this much per readiness; also the largest frame these programs accept. */
enum { BUFFER_BYTES = 256 * 1024 };

/* RFC 6455 section 1.3 works this pair out, so a client needs no SHA-1 to check its server. */
#define SAMPLE_KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define SAMPLE_ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

static inline _Noreturn void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(2);
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The soft descriptor limit up to the hard one; returns it. */
static inline size_t raise_nofile(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    return limit.rlim_cur;
}

/* ---- log-linear histogram of nanoseconds: 128 steps per doubling, so within 0.8 % ---- */

enum { HIST_STEPS = 128, HIST_BUCKETS = 40 * HIST_STEPS };

struct hist {
    uint64_t count, max;
    uint64_t bucket[HIST_BUCKETS];
};

static inline void hist_add(struct hist *h, uint64_t ns) {
    int shift = ns < 2 * HIST_STEPS ? 0 : 56 - __builtin_clzll(ns);
    size_t at = (size_t)shift * HIST_STEPS + (ns >> shift);
    h->bucket[at < HIST_BUCKETS ? at : HIST_BUCKETS - 1]++;
    h->count++;
    if (ns > h->max) h->max = ns;
}

/* The upper edge of the bucket that holds the share `q` of all values. */
static inline uint64_t hist_at(const struct hist *h, double q) {
    uint64_t want = (uint64_t)((double)h->count * q), seen = 0;
    for (size_t i = 0; i < HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen > want) {
            unsigned shift = i < 2 * HIST_STEPS ? 0 : (unsigned)(i / HIST_STEPS) - 1;
            uint64_t edge = ((i - (size_t)shift * HIST_STEPS + 1) << shift) - 1;
            return edge < h->max ? edge : h->max;
        }
    }
    return h->max;
}

/* ---- a torn tail: what a read left of an unfinished head or frame ---- */

struct tail {
    uint8_t *bytes;
    uint32_t len;
};

/* Moves the kept bytes to the front of `buffer`; returns how many. */
static inline size_t tail_take(struct tail *t, uint8_t *buffer) {
    size_t len = t->len;
    if (len) {
        memcpy(buffer, t->bytes, len);
        free(t->bytes);
        *t = (struct tail){0};
    }
    return len;
}

static inline void tail_keep(struct tail *t, const uint8_t *from, size_t len) {
    if (!len) return;
    t->bytes = malloc(len);
    if (!t->bytes) die("malloc");
    memcpy(t->bytes, from, len);
    t->len = (uint32_t)len;
}

/* ---- frames ---- */

struct frame {
    uint8_t opcode, masked;
    uint32_t head, payload; /* bytes; a masked head ends with its 4-byte key */
};

/* 1 = a whole frame is there, 0 = not yet, -1 = larger than these programs accept. */
static inline int frame_parse(const uint8_t *p, size_t n, struct frame *f) {
    if (n < 2) return 0;
    uint64_t payload = p[1] & 127;
    uint32_t head = 2;
    if (payload == 126) {
        if (n < 4) return 0;
        payload = (uint64_t)p[2] << 8 | p[3];
        head = 4;
    } else if (payload == 127) {
        if (n < 10) return 0;
        payload = 0;
        for (int i = 2; i < 10; i++) payload = payload << 8 | p[i];
        head = 10;
    }
    f->opcode = p[0] & 15;
    f->masked = p[1] >> 7;
    f->head = head + (f->masked ? 4 : 0);
    f->payload = (uint32_t)payload;
    if (payload > BUFFER_BYTES - 14) return -1;
    return n >= f->head + payload;
}

/* Writes an unmasked head of 2, 4 or 10 bytes; returns its length. */
static inline size_t frame_head(uint8_t *out, uint8_t opcode, size_t payload) {
    out[0] = 0x80 | opcode;
    if (payload < 126) {
        out[1] = (uint8_t)payload;
        return 2;
    }
    int bytes = payload < 65536 ? 2 : 8;
    out[1] = bytes == 2 ? 126 : 127;
    for (int i = 0; i < bytes; i++) out[2 + i] = (uint8_t)(payload >> 8 * (bytes - 1 - i));
    return 2 + (size_t)bytes;
}

/* XORs with a 4-byte key while copying; `out` may lie before `in` in the same buffer. */
static inline void frame_mask(uint8_t *out, const uint8_t *in, size_t len, const uint8_t key[4]) {
    uint32_t key32;
    memcpy(&key32, key, 4);
    uint64_t key64 = (uint64_t)key32 << 32 | key32;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, in + i, 8);
        word ^= key64;
        memcpy(out + i, &word, 8);
    }
    uint8_t k[4];
    memcpy(k, &key32, 4);
    for (; i < len; i++) out[i] = in[i] ^ k[i & 3];
}

/* A whole masked client frame into `out`; returns its length (at most payload + 14). */
static inline size_t frame_client(uint8_t *out, uint8_t opcode, const uint8_t *payload, size_t len) {
    static uint32_t seed = 0x9e3779b9;
    seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
    size_t head = frame_head(out, opcode, len);
    out[1] |= 0x80;
    memcpy(out + head, &seed, 4);
    frame_mask(out + head + 4, payload, len, out + head);
    return head + 4 + len;
}

/* ---- client sockets ---- */

/* The address of `--host`-like text and a port; exits on nonsense. */
static inline struct sockaddr_in address(const char *host, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) die(host);
    return a;
}

/* A non-blocking connect; `source` (network order, 0 = any) spreads many sockets over 127/8, with
 * the port chosen at connect time so that each source has the whole ephemeral range per server. */
static inline int connect_start(const struct sockaddr_in *to, uint32_t source) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (source) {
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = source};
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&from, sizeof from)) goto failed;
    }
    if (!connect(fd, (const struct sockaddr *)to, sizeof *to) || errno == EINPROGRESS) return fd;
failed:
    close(fd);
    return -1;
}

static inline size_t upgrade_request(char *out, size_t size, const char *host, int port, const char *path) {
    return (size_t)snprintf(out, size,
                            "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\n"
                            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                            "Sec-WebSocket-Key: " SAMPLE_KEY "\r\n\r\n",
                            path, host, port);
}

/* Length of a complete and correct 101 answer, 0 = not all there, -1 = refused. */
static inline int upgrade_answer(const uint8_t *p, size_t n) {
    const uint8_t *end = memmem(p, n, "\r\n\r\n", 4);
    if (!end) return n > 4096 ? -1 : 0;
    size_t len = (size_t)(end - p) + 4;
    int ok = len > 12 && !memcmp(p, "HTTP/1.1 101", 12) && memmem(p, len, SAMPLE_ACCEPT, 28);
    return ok ? (int)len : -1;
}

/* Closes with a reset, so that thousands of ports need not wait a minute each. */
static inline void close_now(int fd) {
    struct linger none = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(fd);
}

#endif
