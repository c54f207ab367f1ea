/* The floor under a WebSocket echo: one thread, level-triggered epoll, one recv and one send per
 * readable socket. Its CPU per message is what the kernel asks for moving a frame in and out; a
 * server cannot go below it without doing less than one read and one write per event.
 *
 * Accepting shows the floor under connects too: TCP_DEFER_ACCEPT, options inherited from the
 * listener, and the request read and answered before the socket enters epoll.
 *
 * Usage: echo_server [PORT]    prints {"port":N,"pid":P} when ready
 * Not handled, on purpose: timeouts, limits, fragments (each frame is echoed as it came), queues
 * (a peer that does not read stops the loop until it does). */
#include "floor.h"
#include <strings.h>

struct conn {
    uint8_t upgraded;
    struct tail tail;
};

static struct conn *conns; /* indexed by descriptor */
static int epoll;
static uint8_t buffer[BUFFER_BYTES];

static int listen_on(int port);
static void accept_all(int listener);
static void readable(int fd, int registered);

int main(int argc, char **argv) {
    conns = calloc(raise_nofile() + 1, sizeof *conns);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(argc > 1 ? atoi(argv[1]) : 0);
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &len);
    printf("{\"port\":%d,\"pid\":%d}\n", ntohs(at.sin_port), getpid());
    fflush(stdout);
    for (;;) {
        struct epoll_event events[1024];
        int ready = epoll_wait(epoll, events, 1024, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == listener) accept_all(listener);
            else readable(events[i].data.fd, 1);
        }
    }
}

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in at = address("127.0.0.1", port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096)) die("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    return fd;
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN || errno == ECONNABORTED) return;
            die("accept4"); /* out of descriptors: a floor program has no plan for it */
        }
        conns[fd] = (struct conn){0};
        readable(fd, 0);
    }
}

static void drop(int fd) {
    free(conns[fd].tail.bytes);
    conns[fd].tail = (struct tail){0};
    close(fd);
}

/* Sends everything, waiting for a peer that has stopped reading. */
static int send_all(int fd, const uint8_t *p, size_t n) {
    while (n) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 1000);
            continue;
        }
        if (sent < 0) return 0;
        p += sent, n -= (size_t)sent;
    }
    return 1;
}

static uint32_t rotl(uint32_t x, int by) { return x << by | x >> (32 - by); }

/* One 64-byte block of SHA-1 (RFC 3174). */
static void sha1_block(uint32_t h[5], const uint8_t *p) {
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 80; i++) w[i] = rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                     : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                              : (b ^ c ^ d) + 0xca62c1d6;
        uint32_t t = rotl(a, 5) + f + e + w[i];
        e = d, d = c, c = rotl(b, 30), b = a, a = t;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

/* Sec-WebSocket-Accept for a 24-byte key (RFC 6455 section 4.2.2): 28 bytes of base64. */
static void accept_value(const char *key, char out[29]) {
    uint8_t text[128] = {0};
    memcpy(text, key, 24);
    memcpy(text + 24, "258EAFA5-E914-47DA-95CA-C5AB0DC85B11", 36);
    text[60] = 0x80;
    text[126] = 480 >> 8, text[127] = 480 & 255; /* 60 bytes in bits */
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    sha1_block(h, text);
    sha1_block(h, text + 64);
    uint8_t digest[21] = {0};
    for (int i = 0; i < 20; i++) digest[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
    const char *set = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 7; i++) {
        uint32_t v = (uint32_t)digest[3 * i] << 16 | (uint32_t)digest[3 * i + 1] << 8 | digest[3 * i + 2];
        for (int j = 0; j < 4; j++) out[4 * i + j] = set[v >> (18 - 6 * j) & 63];
    }
    out[27] = '=';
    out[28] = 0;
}

/* Answers the request at `p`; returns its length, 0 = not all there, -1 = not a WebSocket. */
static int upgrade(int fd, uint8_t *p, size_t n) {
    uint8_t *end = memmem(p, n, "\r\n\r\n", 4);
    if (!end) return n > 16384 ? -1 : 0;
    *end = 0;
    char *key = strcasestr((char *)p, "\r\nSec-WebSocket-Key:");
    if (!key) return -1;
    key += 20;
    key += strspn(key, " \t");
    if (strcspn(key, " \t\r") != 24) return -1;
    char accept[29], answer[160];
    accept_value(key, accept);
    int len = snprintf(answer, sizeof answer,
                       "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                       "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", accept);
    return send_all(fd, (uint8_t *)answer, (size_t)len) ? (int)(end - p) + 4 : -1;
}

/* Turns the masked frames in `p` into their echoes, in place: an unmasked head is four bytes
 * shorter, so the output never overtakes the input. Sets `*used`; returns the bytes to send. */
static size_t echo(uint8_t *p, size_t n, size_t *used, int *closing) {
    size_t in = 0, out = 0;
    struct frame f;
    int got = 0;
    while (!*closing && (got = frame_parse(p + in, n - in, &f)) == 1) {
        uint8_t key[4], first = p[in];
        if (!f.masked) {
            *closing = 1;
            break;
        }
        memcpy(key, p + in + f.head - 4, 4);
        if (f.opcode == OP_PING) first = 0x80 | OP_PONG;
        if (f.opcode == OP_CLOSE) *closing = 1;
        size_t head = frame_head(p + out, 0, f.payload);
        p[out] = first;
        frame_mask(p + out + head, p + in + f.head, f.payload, key);
        in += f.head + f.payload;
        if (f.opcode != OP_PONG) out += head + f.payload;
    }
    if (got < 0) *closing = 1;
    *used = in;
    return out;
}

static void readable(int fd, int registered) {
    struct conn *c = &conns[fd];
    size_t have = tail_take(&c->tail, buffer), at = 0;
    ssize_t got = recv(fd, buffer + have, sizeof buffer - have, 0);
    if (got > 0) have += (size_t)got;
    else if (got == 0 || errno != EAGAIN) {
        drop(fd);
        return;
    }
    if (!c->upgraded) {
        int head = upgrade(fd, buffer, have);
        if (head < 0) {
            drop(fd);
            return;
        }
        c->upgraded = head > 0;
        at = (size_t)head;
    }
    if (c->upgraded && at < have) {
        size_t used = 0;
        int closing = 0;
        size_t out = echo(buffer + at, have - at, &used, &closing);
        if (!send_all(fd, buffer + at, out) || closing) {
            drop(fd);
            return;
        }
        at += used;
    }
    tail_keep(&c->tail, buffer + at, have - at);
    if (!registered) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    }
}
