/* The foreign echo client: N sockets on one thread, each with exactly one message on its way (closed
 * loop), every answer compared byte by byte. Small enough that the server is what saturates.
 *
 * Usage: echo_client HOST PORT PATH SOCKETS BYTES
 * Prints {"opened":N,...}, then obeys stdin:
 *   run SECONDS   starts one message on each socket, keeps each going, stops, waits for the last
 *                 answers and prints {"messages":..,"seconds":..,"p50_us":..,"p99_us":..}; the server
 *                 is idle before and after, so its CPU can be read exactly
 *   quit          (or end of input) */
#include "floor.h"

struct conn {
    int fd;
    uint8_t waiting;
    uint64_t sent_ns;
    struct tail tail;
};

static struct conn *conns;
static int sockets, epoll;
static size_t size;
static uint8_t *payload, *out, buffer[BUFFER_BYTES];
static struct hist latency;

static void open_one(struct conn *c, const struct sockaddr_in *to, const char *request, size_t len);
static void run(double seconds);

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: echo_client HOST PORT PATH SOCKETS BYTES\n");
        return 2;
    }
    raise_nofile();
    struct sockaddr_in to = address(argv[1], atoi(argv[2]));
    sockets = atoi(argv[4]), size = (size_t)atoi(argv[5]);
    if (sockets < 1 || size < 1 || size > BUFFER_BYTES - 14) die("arguments");
    conns = calloc((size_t)sockets, sizeof *conns);
    payload = malloc(size), out = malloc(size + 14);
    for (size_t i = 0; i < size; i++) payload[i] = (uint8_t)('a' + i % 26);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    char request[1024], line[128];
    size_t len = upgrade_request(request, sizeof request, argv[1], atoi(argv[2]), argv[3]);
    for (int i = 0; i < sockets; i++) open_one(&conns[i], &to, request, len);
    printf("{\"opened\":%d,\"failed\":0}\n", sockets);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strncmp(line, "quit", 4)) {
        double seconds = 0;
        if (sscanf(line, "run %lf", &seconds) != 1 || seconds <= 0) die("command");
        run(seconds);
    }
    for (int i = 0; i < sockets; i++) close_now(conns[i].fd);
    return 0;
}

/* Connects and upgrades, blocking: opening is not what this program measures. */
static void open_one(struct conn *c, const struct sockaddr_in *to, const char *request, size_t len) {
    c->fd = connect_start(to, 0);
    if (c->fd < 0) die("connect");
    poll(&(struct pollfd){.fd = c->fd, .events = POLLOUT}, 1, 5000);
    if (send(c->fd, request, len, MSG_NOSIGNAL) != (ssize_t)len) die("send request");
    size_t have = 0;
    int head = 0;
    while (!head) {
        if (poll(&(struct pollfd){.fd = c->fd, .events = POLLIN}, 1, 5000) != 1) die("no answer");
        ssize_t got = recv(c->fd, buffer + have, sizeof buffer - have, 0);
        if (got <= 0) die("recv answer");
        have += (size_t)got;
        head = upgrade_answer(buffer, have);
    }
    if (head != (int)have) errno = 0, die("upgrade");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
}

static void send_next(struct conn *c, uint64_t now) {
    size_t len = frame_client(out, OP_BINARY, payload, size);
    if (send(c->fd, out, len, MSG_NOSIGNAL) != (ssize_t)len) die("send");
    c->sent_ns = now;
    c->waiting = 1;
}

/* Reads once; returns 1 when the awaited answer is complete. */
static int answered(struct conn *c) {
    size_t have = tail_take(&c->tail, buffer), at = 0;
    ssize_t got = recv(c->fd, buffer + have, sizeof buffer - have, 0);
    if (got <= 0) die("connection lost");
    have += (size_t)got;
    struct frame f;
    int complete = 0;
    while (frame_parse(buffer + at, have - at, &f) == 1) {
        const uint8_t *body = buffer + at + f.head;
        if (f.opcode == OP_PING) {
            uint8_t pong[140];
            size_t len = frame_client(pong, OP_PONG, body, f.payload & 127);
            if (send(c->fd, pong, len, MSG_NOSIGNAL) < 0) die("pong");
        } else {
            errno = 0;
            if (complete || !c->waiting || f.opcode != OP_BINARY) die("unexpected frame");
            if (f.payload != size || memcmp(body, payload, size)) die("echo differs");
            complete = 1;
        }
        at += f.head + f.payload;
    }
    tail_keep(&c->tail, buffer + at, have - at);
    return complete;
}

static void run(double seconds) {
    memset(&latency, 0, sizeof latency);
    uint64_t start = now_ns(), stop = start + (uint64_t)(seconds * 1e9), now = start;
    int waiting = sockets;
    for (int i = 0; i < sockets; i++) send_next(&conns[i], now_ns());
    while (waiting) {
        struct epoll_event events[1024];
        int ready = epoll_wait(epoll, events, 1024, 10000);
        if (ready <= 0) die("no answer for 10 s");
        for (int i = 0; i < ready; i++) {
            struct conn *c = events[i].data.ptr;
            if (!answered(c)) continue;
            now = now_ns();
            hist_add(&latency, now - c->sent_ns);
            c->waiting = 0;
            if (now < stop) send_next(c, now);
            else waiting--;
        }
    }
    printf("{\"messages\":%lu,\"seconds\":%.6f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n",
           latency.count, (double)(now - start) / 1e9, (double)hist_at(&latency, 0.5) / 1e3,
           (double)hist_at(&latency, 0.99) / 1e3, (double)latency.max / 1e3);
    fflush(stdout);
}
