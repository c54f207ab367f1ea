/* The foreign crowd: opens N WebSockets from one thread, holds them, and times what they receive.
 * Stays below half the ephemeral range per source address (beyond it each connect scans for a port).
 *
 * Usage: connect_client HOST PORT PATH SOCKETS storm|one|paced:PER_SECOND
 * Prints {"opened":..,"failed":..,"seconds":..,"per_second":..} when every socket has its 101 or has
 * failed, then holds them all, answers pings, and obeys stdin:
 *   mark                   forgets what was received so far; prints {"marked":true}
 *   expect COUNT SECONDS   waits until COUNT messages have come since the mark, or SECONDS; prints
 *       {"received":..,"least":..,"most":..,"closed":..,"p50_ms":..,"p99_ms":..,"last_ms":..}: least
 *       and most per socket; latency from the decimal CLOCK_MONOTONIC nanoseconds that each message
 *       starts with to the read that brought it
 *   quit                   (or end of input) closes all with a reset */
#include "floor.h"

enum { SOURCE_PORTS = 14000, OPEN_TIMEOUT_S = 60, STARTS_PER_TURN = 64 };

enum state { CONNECTING, ANSWERING, OPEN, CLOSED };

struct conn {
    int fd;
    uint8_t state;
    uint32_t received;
    struct tail tail;
};

static struct conn *conns;
static int sockets, started, opened, failed, closed, epoll;
static struct sockaddr_in server;
static char request[1024], commands[256];
static size_t request_len, commands_len;
static uint8_t buffer[BUFFER_BYTES];
static struct hist latency;

static void open_all(double per_second, int one_by_one);
static void turn(int timeout_ms);
static int obey(void);
static int input_ended;

int main(int argc, char **argv) {
    double per_second = 0;
    int paced = argc == 6 && sscanf(argv[5], "paced:%lf", &per_second) == 1 && per_second > 0;
    if (argc != 6 || (!paced && strcmp(argv[5], "storm") && strcmp(argv[5], "one"))) {
        fprintf(stderr, "usage: connect_client HOST PORT PATH SOCKETS storm|one|paced:PER_SECOND\n");
        return 2;
    }
    server = address(argv[1], atoi(argv[2]));
    sockets = atoi(argv[4]);
    if (sockets < 1 || (size_t)sockets + 16 > raise_nofile()) errno = EMFILE, die("SOCKETS");
    request_len = upgrade_request(request, sizeof request, argv[1], atoi(argv[2]), argv[3]);
    conns = calloc((size_t)sockets, sizeof *conns);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    open_all(per_second, !strcmp(argv[5], "one"));

    /* Standard input becomes one more source of events; its pointer is null. */
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event)) die("epoll_ctl: standard input must be a pipe");
    while (obey()) turn(-1);
    for (int i = 0; i < sockets; i++)
        if (conns[i].state != CLOSED) close_now(conns[i].fd);
    return 0;
}

/* ---- opening ---- */

static void lose(struct conn *c) {
    if (c->state == OPEN) closed++;
    else failed++;
    if (c->fd >= 0) close_now(c->fd);
    free(c->tail.bytes);
    c->tail = (struct tail){0};
    c->state = CLOSED;
}

/* On loopback the connection usually stands when connect returns, so the request goes at once. */
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
    int loopback = (ntohl(server.sin_addr.s_addr) >> 24) == 127;
    uint32_t source = loopback ? htonl(0x7f000001 + (uint32_t)(started / SOURCE_PORTS)) : 0;
    started++;
    c->fd = connect_start(&server, source);
    if (c->fd < 0) lose(c);
    else ask(c, EPOLL_CTL_ADD);
}

static void open_all(double per_second, int one_by_one) {
    uint64_t start = now_ns(), give_up = start + OPEN_TIMEOUT_S * 1000000000ull;
    while (opened + failed < sockets && now_ns() < give_up) {
        double due = per_second > 0 ? (double)(now_ns() - start) / 1e9 * per_second + 1 : sockets;
        int limit = one_by_one ? opened + failed + 1 : due < sockets ? (int)due : sockets;
        for (int n = 0; started < limit && n < STARTS_PER_TURN; n++) start_one();
        turn(started < limit ? 0 : per_second > 0 && started < sockets ? 1 : 100);
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    printf("{\"opened\":%d,\"failed\":%d,\"seconds\":%.6f,\"per_second\":%.0f}\n", opened, sockets - opened,
           seconds, opened / seconds);
    fflush(stdout);
}

/* ---- receiving ---- */

static void receive(struct conn *c, const struct frame *f, const uint8_t *body, uint64_t now) {
    if (f->opcode == OP_PING) {
        uint8_t pong[140];
        size_t len = frame_client(pong, OP_PONG, body, f->payload & 127);
        if (send(c->fd, pong, len, MSG_NOSIGNAL) < 0) lose(c);
    } else if (f->opcode == OP_CLOSE) {
        lose(c);
    } else if (f->opcode == OP_TEXT || f->opcode == OP_BINARY) {
        uint64_t sent = 0;
        for (uint32_t i = 0; i < f->payload && body[i] >= '0' && body[i] <= '9'; i++) sent = sent * 10 + body[i] - '0';
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
        if (head > 0) c->state = OPEN, opened++;
        at = (size_t)head;
    }
    struct frame f;
    int whole = 0;
    uint64_t now = now_ns();
    while (c->state == OPEN && (whole = frame_parse(buffer + at, have - at, &f)) == 1) {
        receive(c, &f, buffer + at + f.head, now);
        at += f.head + f.payload;
    }
    if (whole < 0 && c->state == OPEN) lose(c);
    if (c->state != CLOSED) tail_keep(&c->tail, buffer + at, have - at);
}

static void turn(int timeout_ms) {
    struct epoll_event events[1024];
    int ready = epoll_wait(epoll, events, 1024, timeout_ms);
    if (ready < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < ready; i++) {
        struct conn *c = events[i].data.ptr;
        if (!c) {
            ssize_t got = read(0, commands + commands_len, sizeof commands - commands_len);
            if (got <= 0) input_ended = 1;
            else commands_len += (size_t)got;
        } else if (c->state == CONNECTING) {
            ask(c, EPOLL_CTL_MOD);
        } else {
            readable(c);
        }
    }
}

/* ---- commands ---- */

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
