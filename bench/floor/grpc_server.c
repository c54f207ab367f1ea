/* A gRPC server as fast as frames can be written (RFC 9113, "gRPC over HTTP2"): it reads no header block, and answers each
 * request by the first letter of its message, a text in field 1:
 *   h    holds the stream: a head and one message, and never an end
 *   s    a stream of STREAMED messages, and the status OK
 *   any  one message, and the status OK
 *
 * Usage: grpc_server    prints {"port":N} when ready
 * Obeys stdin:
 *   figures    prints {"calls":N,"held":N}: calls that were answered, streams that are held, since the start
 * It keeps to the connection's window for what it sends. Not handled, on purpose: windows of streams, which its answers
 * fit into, padding, requests in several frames of data. */
#include "floor.h"

enum { STREAMED = 100, DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4, FRAME_HEAD = 9, PREFACE = 24 };

/* What is given back of the window for received data at a time. */
enum { CREDIT = 1 << 28 };

struct waiting {
    uint32_t stream;
    uint8_t letter;
};

struct conn {
    uint8_t in[64 * 1024], *out;
    size_t have, len, size;
    /* What waits for the window: a ring. */
    struct waiting *ring;
    size_t first, count, room;
    int64_t window;
    uint64_t received;
    uint32_t stream;
    uint8_t letter;
    int greeted, is_late;
};

static const uint8_t head[] = "\x88\x0f\x10\x10"
                              "application/grpc";
static const uint8_t trailers[] = "\x00\x0bgrpc-status\x01"
                                  "0";
static const uint8_t message[] = "\x00\x00\x00\x00\x03\x0a\x01x";

static struct conn **conns;
static uint64_t calls, held;
static int epoll;

static void put(struct conn *c, const void *bytes, size_t len) {
    if (c->len + len > c->size) {
        c->size = (c->len + len) * 2;
        c->out = realloc(c->out, c->size);
        if (!c->out) die("realloc");
    }
    memcpy(c->out + c->len, bytes, len);
    c->len += len;
}

static void frame(struct conn *c, uint8_t kind, uint8_t flags, uint32_t stream, const void *payload, size_t len) {
    uint8_t bytes[FRAME_HEAD] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len, kind, flags};
    for (int i = 0; i < 4; i++) bytes[5 + i] = (uint8_t)(stream >> 8 * (3 - i));
    put(c, bytes, sizeof bytes);
    put(c, payload, len);
}

static void credit(struct conn *c, uint32_t bytes) {
    uint8_t payload[4] = {(uint8_t)(bytes >> 24), (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 8), (uint8_t)bytes};
    frame(c, WINDOW_UPDATE, 0, 0, payload, sizeof payload);
}

/* Whether the window had room for the answer. */
static int answer(struct conn *c, uint32_t stream, uint8_t letter) {
    int messages = letter == 's' ? STREAMED : 1;
    int64_t bytes = messages * (int64_t)(sizeof message - 1);
    if (c->window < bytes) return 0;
    c->window -= bytes;
    frame(c, HEADERS, END_HEADERS, stream, head, sizeof head - 1);
    for (int i = 0; i < messages; i++) frame(c, DATA, 0, stream, message, sizeof message - 1);
    if (letter == 'h') {
        held++;
        return 1;
    }
    frame(c, HEADERS, END_HEADERS | END_STREAM, stream, trailers, sizeof trailers - 1);
    calls++;
    return 1;
}

static void drain(struct conn *c) {
    while (c->count && answer(c, c->ring[c->first].stream, c->ring[c->first].letter)) {
        c->first = (c->first + 1) % c->room, c->count--;
    }
}

static void wait_for_window(struct conn *c, uint32_t stream, uint8_t letter) {
    if (c->count == c->room) {
        size_t room = c->room ? c->room * 2 : 1024;
        struct waiting *ring = malloc(room * sizeof *ring);
        if (!ring) die("malloc");
        for (size_t i = 0; i < c->count; i++) ring[i] = c->ring[(c->first + i) % c->room];
        free(c->ring);
        c->ring = ring, c->room = room, c->first = 0;
    }
    c->ring[(c->first + c->count++) % c->room] = (struct waiting){stream, letter};
}

static void received(struct conn *c, uint8_t kind, uint8_t flags, uint32_t stream, const uint8_t *p, size_t len) {
    if (kind == SETTINGS && !(flags & ACK)) frame(c, SETTINGS, ACK, 0, "", 0);
    if (kind == PING && !(flags & ACK)) frame(c, PING, ACK, 0, p, len);
    if (kind == WINDOW_UPDATE && !stream && len == 4) {
        c->window += (p[0] & 127) << 24 | p[1] << 16 | p[2] << 8 | p[3];
        drain(c);
    }
    if (kind != DATA) return;
    c->received += len;
    if (c->received >= CREDIT) credit(c, (uint32_t)c->received), c->received = 0;
    if (c->stream != stream) c->stream = stream, c->letter = 'u';
    if (len > 7) c->letter = p[7];
    if (flags & END_STREAM && (c->count || !answer(c, stream, c->letter))) wait_for_window(c, stream, c->letter);
}

static void close_conn(int fd) {
    struct conn *c = conns[fd];
    conns[fd] = NULL;
    free(c->out), free(c->ring), free(c);
    close(fd);
}

/* Sends what there is; false if the connection has ended. */
static int flush(int fd) {
    struct conn *c = conns[fd];
    size_t at = 0;
    while (at < c->len) {
        ssize_t sent = send(fd, c->out + at, c->len - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent <= 0) return close_conn(fd), 0;
        at += (size_t)sent;
    }
    memmove(c->out, c->out + at, c->len - at);
    c->len -= at;
    if (c->is_late != (c->len > 0)) {
        c->is_late = c->len > 0;
        struct epoll_event event = {.events = EPOLLIN | (c->is_late ? EPOLLOUT : 0), .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
    }
    return 1;
}

static void readable(int fd) {
    struct conn *c = conns[fd];
    if (!c || !flush(fd) || c->is_late) return;
    ssize_t got = recv(fd, c->in + c->have, sizeof c->in - c->have, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return close_conn(fd);
    c->have += (size_t)got;
    size_t at = 0;
    if (!c->greeted) {
        if (c->have < PREFACE) return;
        at = PREFACE, c->greeted = 1;
        frame(c, SETTINGS, 0, 0, "", 0);
        credit(c, 0x7fffffff - 65535);
    }
    while (c->have - at >= FRAME_HEAD) {
        const uint8_t *p = c->in + at;
        size_t len = (size_t)p[0] << 16 | (size_t)p[1] << 8 | p[2];
        if (len > sizeof c->in - FRAME_HEAD) errno = EMSGSIZE, die("frame");
        if (c->have - at < FRAME_HEAD + len) break;
        uint32_t stream = (uint32_t)(p[5] & 127) << 24 | (uint32_t)p[6] << 16 | (uint32_t)p[7] << 8 | p[8];
        received(c, p[3], p[4], stream, p + FRAME_HEAD, len);
        at += FRAME_HEAD + len;
    }
    memmove(c->in, c->in + at, c->have - at);
    c->have -= at;
    flush(fd);
}

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        conns[fd] = calloc(1, sizeof *conns[fd]);
        if (!conns[fd]) die("calloc");
        conns[fd]->window = 65535;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(void) {
    conns = calloc(raise_nofile() + 1, sizeof *conns);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = address("127.0.0.1", 0);
    socklen_t len = sizeof at;
    if (!conns || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) die("listen");
    getsockname(listener, (struct sockaddr *)&at, &len);
    struct epoll_event of_listener = {.events = EPOLLIN, .data.fd = listener}, of_input = {.events = EPOLLIN, .data.fd = 0};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &of_listener);
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &of_input);
    printf("{\"port\":%d}\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event events[256];
        int ready = epoll_wait(epoll, events, 256, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            char line[64];
            if (events[i].data.fd == listener) accept_all(listener);
            else if (events[i].data.fd) readable(events[i].data.fd);
            else if (!fgets(line, sizeof line, stdin)) return 0;
            else printf("{\"calls\":%lu,\"held\":%lu}\n", calls, held), fflush(stdout);
        }
    }
}
