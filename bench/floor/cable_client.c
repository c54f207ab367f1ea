/* Clients of Action Cable (actioncable-v1-json) from one thread: N WebSockets that each subscribe to K public streams,
 * hold them, and time what they receive. They send no pong, as the protocol has none.
 *
 * Usage: cable_client HOST PORT SOCKETS STREAMS NAME
 *   STREAMS 0: all sockets subscribe to the stream NAME; else socket i to NAME0, NAME1 ... from i * STREAMS on
 * Prints {"subscribed":..,"rejected":..,"failed":..,"seconds":..} when each subscription has its answer, or its socket
 * has failed, then obeys stdin:
 *   mark                   forgets what was received so far; prints {"marked":true}
 *   expect COUNT SECONDS   waits until COUNT messages have come since the mark, or SECONDS; prints
 *       {"received":..,"least":..,"most":..,"closed":..,"p50_ms":..,"p99_ms":..,"last_ms":..}: least and most per
 *       socket; latency from the decimal CLOCK_MONOTONIC nanoseconds that each message begins with
 *   quit                   (or end of input) closes all with a reset */
#include "floor.h"

enum { SOURCE_PORTS = 14000, GIVE_UP_S = 120, IN_FLIGHT = 128, NAME_BYTES = 128, STREAMS_MAX = 1000 };

enum state { CONNECTING, ANSWERING, OPEN, CLOSED };

struct conn {
    int fd;
    uint8_t state;
    uint16_t answers;
    uint32_t received;
    struct tail tail;
};

static struct conn *conns;
static int sockets, streams, started, ready, failed, closed, epoll, input_ended;
static uint64_t subscribed, rejected;
static const char *name;
static struct sockaddr_in server;
static char request[1024], commands[256];
static size_t request_len, commands_len;
static uint8_t buffer[4 * BUFFER_BYTES];
static struct hist latency;

static int expected(void) { return streams ? streams : 1; }

static void lose(struct conn *c) {
    if (c->state == CLOSED) return;
    if (c->answers < expected()) failed++;
    else closed++;
    close_now(c->fd);
    free(c->tail.bytes);
    c->tail = (struct tail){0};
    c->state = CLOSED;
}

static void ask(struct conn *c, int op) {
    ssize_t sent = send(c->fd, request, request_len, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        lose(c);
        return;
    }
    c->state = sent == (ssize_t)request_len ? ANSWERING : CONNECTING;
    struct epoll_event event = {.events = c->state == ANSWERING ? EPOLLIN : EPOLLOUT, .data.ptr = c};
    if (epoll_ctl(epoll, op, c->fd, &event)) die("epoll_ctl");
}

static void start_one(void) {
    struct conn *c = &conns[started];
    uint32_t source = htonl(0x7f000001 + (uint32_t)(started / SOURCE_PORTS));
    started++;
    c->fd = connect_start(&server, source);
    if (c->fd < 0) die("connect");
    ask(c, EPOLL_CTL_ADD);
}

static void subscribe(struct conn *c) {
    uint8_t frame[512];
    char text[480], stream[NAME_BYTES + 24];
    for (int i = 0; i < expected() && c->state == OPEN; i++) {
        if (streams) snprintf(stream, sizeof stream, "%s%ld", name, (c - conns) * streams + i);
        else snprintf(stream, sizeof stream, "%s", name);
        int len = snprintf(text, sizeof text,
                           "{\"command\":\"subscribe\",\"identifier\":\"{\\\"channel\\\":\\\"$pubsub\\\",\\\"stream_name\\\":"
                           "\\\"%s\\\"}\"}", stream);
        size_t bytes = frame_client(frame, OP_TEXT, (uint8_t *)text, (size_t)len);
        if (send(c->fd, frame, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) lose(c);
    }
}

static int has(const uint8_t *p, size_t n, const char *text) { return memmem(p, n, text, strlen(text)) != NULL; }

static void receive(struct conn *c, const uint8_t *body, size_t len, uint64_t now) {
    static const char message[] = "\"message\":";
    const uint8_t *at = memmem(body, len, message, sizeof message - 1), *end = body + len;
    if (has(body, len, "\"type\":\"confirm_subscription\"") || has(body, len, "\"type\":\"reject_subscription\"")) {
        if (has(body, len, "\"type\":\"confirm")) subscribed++;
        else rejected++;
        if (++c->answers == expected()) ready++;
    } else if (has(body, len, "\"type\":\"welcome\"")) {
        subscribe(c);
    } else if (at && !has(body, len, "\"type\":\"ping\"")) {
        uint64_t sent = 0;
        at += sizeof message - 1;
        if (at < end && *at == '"') at++;
        for (; at < end && *at >= '0' && *at <= '9'; at++) sent = sent * 10 + *at - '0';
        c->received++;
        hist_add(&latency, now > sent ? now - sent : 0);
    }
}

static void readable(struct conn *c) {
    size_t have = tail_take(&c->tail, buffer), at = 0;
    ssize_t got = recv(c->fd, buffer + have, sizeof buffer - have, 0);
    if (got <= 0) {
        lose(c);
        return;
    }
    have += (size_t)got;
    if (c->state == ANSWERING) {
        int head = upgrade_answer(buffer, have);
        if (head < 0) {
            lose(c);
            return;
        }
        if (head > 0) c->state = OPEN;
        at = (size_t)head;
    }
    struct frame f;
    int whole = 0;
    uint64_t now = now_ns();
    while (c->state == OPEN && (whole = frame_parse(buffer + at, have - at, &f)) == 1) {
        uint8_t pong[140];
        const uint8_t *body = buffer + at + f.head;
        if (f.opcode == OP_CLOSE) lose(c);
        else if (f.opcode == OP_TEXT) receive(c, body, f.payload, now);
        else if (f.opcode == OP_PING) {
            size_t len = frame_client(pong, OP_PONG, body, f.payload & 127);
            if (send(c->fd, pong, len, MSG_NOSIGNAL) < 0) lose(c);
        }
        at += f.head + f.payload;
    }
    if (whole < 0 && c->state == OPEN) lose(c);
    if (c->state != CLOSED) tail_keep(&c->tail, buffer + at, have - at);
}

static void turn(int timeout_ms) {
    struct epoll_event events[1024];
    int many = epoll_wait(epoll, events, 1024, timeout_ms);
    if (many < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < many; i++) {
        struct conn *c = events[i].data.ptr;
        if (!c) {
            ssize_t got = read(0, commands + commands_len, sizeof commands - commands_len);
            if (got <= 0) input_ended = 1;
            else commands_len += (size_t)got;
        } else if (c->state == CONNECTING) {
            ask(c, EPOLL_CTL_MOD);
        } else if (c->state != CLOSED) {
            readable(c);
        }
    }
}

static void open_all(void) {
    uint64_t begin = now_ns(), give_up = begin + GIVE_UP_S * 1000000000ull;
    while (ready + failed < sockets && now_ns() < give_up) {
        while (started < sockets && started - ready - failed < IN_FLIGHT) start_one();
        turn(100);
    }
    printf("{\"subscribed\":%lu,\"rejected\":%lu,\"failed\":%d,\"seconds\":%.6f}\n", subscribed, rejected, failed,
           (double)(now_ns() - begin) / 1e9);
    fflush(stdout);
}

static void expect(uint64_t count, double seconds) {
    uint64_t give_up = now_ns() + (uint64_t)(seconds * 1e9);
    while (latency.count < count && now_ns() < give_up && !input_ended) turn(100);
    uint32_t least = UINT32_MAX, most = 0;
    for (int i = 0; i < sockets; i++) {
        if (conns[i].received < least) least = conns[i].received;
        if (conns[i].received > most) most = conns[i].received;
    }
    printf("{\"received\":%lu,\"least\":%u,\"most\":%u,\"closed\":%d,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"last_ms\":%.3f}\n",
           latency.count, least, most, closed, (double)hist_at(&latency, 0.5) / 1e6,
           (double)hist_at(&latency, 0.99) / 1e6, (double)latency.max / 1e6);
    fflush(stdout);
}

/* Obeys every whole line that has come; returns 0 on quit or end of input. */
static int obey(void) {
    char *end;
    while ((end = memchr(commands, '\n', commands_len))) {
        char line[sizeof commands];
        size_t len = (size_t)(end - commands);
        memcpy(line, commands, len);
        line[len] = 0;
        commands_len -= len + 1;
        memmove(commands, end + 1, commands_len);
        unsigned long count;
        double seconds;
        if (!strcmp(line, "mark")) {
            memset(&latency, 0, sizeof latency);
            for (int i = 0; i < sockets; i++) conns[i].received = 0;
            printf("{\"marked\":true}\n");
            fflush(stdout);
        } else if (sscanf(line, "expect %lu %lf", &count, &seconds) == 2) {
            expect(count, seconds);
        } else {
            if (strcmp(line, "quit")) fprintf(stderr, "unknown command: %s\n", line);
            return 0;
        }
    }
    return !input_ended && commands_len < sizeof commands;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: cable_client HOST PORT SOCKETS STREAMS NAME\n");
        return 2;
    }
    server = address(argv[1], atoi(argv[2]));
    sockets = atoi(argv[3]), streams = atoi(argv[4]), name = argv[5];
    if (sockets < 1 || (size_t)sockets + 16 > raise_nofile()) errno = EMFILE, die("SOCKETS");
    if (streams < 0 || streams > STREAMS_MAX) errno = ERANGE, die("STREAMS");
    if (strlen(name) > NAME_BYTES) errno = ERANGE, die("NAME");
    request_len = upgrade_request(request, sizeof request, argv[1], atoi(argv[2]), "/cable");
    request_len -= 2;
    request_len += (size_t)snprintf(request + request_len, sizeof request - request_len,
                                    "Sec-WebSocket-Protocol: actioncable-v1-json\r\n\r\n");
    conns = calloc((size_t)sockets, sizeof *conns);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    open_all();
    /* Standard input becomes one more source of events; its pointer is null. */
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event)) die("epoll_ctl: standard input must be a pipe");
    while (obey()) turn(-1);
    for (int i = 0; i < sockets; i++)
        if (conns[i].state != CLOSED) close_now(conns[i].fd);
    return 0;
}
