/* Clients of AnyCable's extended protocol on one topic that all leave and come back: N WebSockets from one thread,
 * each with the offset of the last message it has received. Every message carries its offset; each must be the one
 * after the last.
 *
 * Usage: away_client HOST PORT TOPIC SOCKETS
 * Prints {"subscribed":..,"seconds":..} when all are subscribed, then obeys stdin:
 *   until OFFSET SECONDS   waits until all have received this message; prints {"behind":..} and the totals
 *   leave                  closes all with a reset; prints {"left":..}
 *   return SECONDS         all connect at once, subscribe and request what comes after their offset; when all have
 *       confirm_history, or after SECONDS, prints {"returned":..,"caught_up":..,"rejected":..,"connect_s":..,
 *       "caught_up_s":..}: the last welcome since the command, and the last confirm_history since that welcome
 *   quit                   (or end of input)
 * The totals are {"received":..,"lost":..,"doubled":..,"closed":..}. */
#include "floor.h"

enum { SOURCE_PORTS = 14000, STARTS_PER_TURN = 64, OPEN_TIMEOUT_S = 120, EPOCH_BYTES = 32 };

enum state { CLOSED, CONNECTING, ANSWERING, OPEN };

struct conn {
    int fd;
    uint8_t state, subscribed, welcomed, caught_up;
    uint64_t last;
    struct tail tail;
};

static struct conn *conns;
static int sockets, epoll, subscribed, welcomed, caught_up, rejected, closed, input_ended;
static uint64_t received, lost, doubled, last_welcome, last_caught_up;
static struct sockaddr_in server;
static char request[1024], commands[256], epoch[EPOCH_BYTES], topic[128];
static size_t request_len, commands_len;
static uint8_t buffer[4 * BUFFER_BYTES];

static void lose(struct conn *c) {
    if (c->state == CLOSED) return;
    closed++;
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

static void start(int at) {
    struct conn *c = &conns[at];
    uint32_t source = htonl(0x7f000001 + (uint32_t)(at / SOURCE_PORTS));
    c->fd = connect_start(&server, source);
    if (c->fd < 0) die("connect");
    c->state = CONNECTING, c->subscribed = c->welcomed = c->caught_up = 0;
    ask(c, EPOLL_CTL_ADD);
}

static void subscribe(struct conn *c) {
    uint8_t frame[512];
    char text[480];
    const char *what = "{\"command\":\"subscribe\",\"identifier\":\"{\\\"channel\\\":\\\"$pubsub\\\",\\\"stream_name\\\":\\\"%s\\\"}\"";
    int len = snprintf(text, sizeof text, what, topic);
    if (c->last)
        len += snprintf(text + len, sizeof text - (size_t)len, ",\"history\":{\"streams\":{\"%s\":{\"epoch\":\"%s\",\"offset\":%lu}}}",
                        topic, epoch, c->last);
    text[len++] = '}';
    size_t bytes = frame_client(frame, OP_TEXT, (uint8_t *)text, (size_t)len);
    if (send(c->fd, frame, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) lose(c);
}

static int has(const uint8_t *p, size_t n, const char *text) { return memmem(p, n, text, strlen(text)) != NULL; }

/* A publication ends with its position: ..."epoch":"E","offset":N} */
static int publication(struct conn *c, const uint8_t *p, size_t n) {
    size_t at = n - 1;
    if (n < 32 || p[at] != '}') return 0;
    uint64_t offset = 0, unit = 1;
    while (at-- > 10 && p[at] >= '0' && p[at] <= '9') offset += unit * (uint64_t)(p[at] - '0'), unit *= 10;
    if (unit == 1 || at < 10 || memcmp(p + at - 8, "\"offset\":", 9)) return 0;
    if (!epoch[0]) {
        const uint8_t *from = memmem(p, n, "\"epoch\":\"", 9), *end = from ? memchr(from + 9, '"', EPOCH_BYTES) : NULL;
        if (end) memcpy(epoch, from + 9, (size_t)(end - from) - 9);
    }
    received++;
    if (c->last && offset > c->last + 1) lost += offset - c->last - 1;
    if (offset <= c->last) doubled++;
    else c->last = offset;
    return 1;
}

static void message(struct conn *c, const uint8_t *p, size_t n) {
    if (publication(c, p, n) || (n > 12 && !memcmp(p, "{\"type\":\"ping", 13))) return;
    if (has(p, n, "\"welcome\"")) {
        if (!c->welcomed) c->welcomed = 1, welcomed++, last_welcome = now_ns();
        subscribe(c);
    } else if (has(p, n, "\"confirm_subscription\"")) {
        if (!c->subscribed) c->subscribed = 1, subscribed++;
    } else if (has(p, n, "\"confirm_history\"")) {
        if (!c->caught_up) c->caught_up = 1, caught_up++, last_caught_up = now_ns();
    } else if (has(p, n, "\"reject_history\"")) {
        rejected++;
    } else {
        fprintf(stderr, "unexpected: %.*s\n", (int)n, p);
    }
}

static void readable(struct conn *c) {
    size_t have = tail_take(&c->tail, buffer), at = 0;
    ssize_t got = recv(c->fd, buffer + have, sizeof buffer - have, 0);
    if (got < 0 && errno == EAGAIN) {
        tail_keep(&c->tail, buffer, have);
        return;
    }
    if (got <= 0) {
        lose(c);
        return;
    }
    have += (size_t)got;
    if (c->state == ANSWERING) {
        const uint8_t *end = memmem(buffer, have, "\r\n\r\n", 4);
        if (!end && have < 4096) {
            tail_keep(&c->tail, buffer, have);
            return;
        }
        if (!end || memcmp(buffer, "HTTP/1.1 101", 12)) {
            lose(c);
            return;
        }
        c->state = OPEN, at = (size_t)(end - buffer) + 4;
    }
    struct frame f;
    int whole = 0;
    while (c->state == OPEN && (whole = frame_parse(buffer + at, have - at, &f)) == 1) {
        if (f.opcode == OP_CLOSE) lose(c);
        else message(c, buffer + at + f.head, f.payload);
        at += f.head + f.payload;
    }
    if (whole < 0) lose(c);
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
        } else if (c->state != CLOSED) {
            readable(c);
        }
    }
}

/* Opens all that are closed, and turns until `reached` is all of them. */
static void open_all(const int *reached, double seconds) {
    uint64_t give_up = now_ns() + (uint64_t)(seconds * 1e9);
    int next = 0;
    while (*reached < sockets && now_ns() < give_up && !input_ended) {
        for (int n = 0; next < sockets && n < STARTS_PER_TURN; next++, n++)
            if (conns[next].state == CLOSED) start(next);
        turn(next < sockets ? 0 : 100);
    }
}

static void until(uint64_t offset, double seconds) {
    uint64_t give_up = now_ns() + (uint64_t)(seconds * 1e9);
    int behind = sockets, first = 0;
    while (behind && now_ns() < give_up && !input_ended) {
        turn(100);
        while (first < sockets && conns[first].last >= offset) first++;
        behind = sockets - first;
    }
    behind = 0;
    for (int i = 0; i < sockets; i++) behind += conns[i].last < offset;
    printf("{\"behind\":%d,\"received\":%lu,\"lost\":%lu,\"doubled\":%lu,\"closed\":%d}\n", behind, received, lost, doubled,
           closed);
}

static void leave(void) {
    int left = 0;
    for (int i = 0; i < sockets; i++) {
        if (conns[i].state == CLOSED) continue;
        lose(&conns[i]);
        closed--, left++;
    }
    printf("{\"left\":%d}\n", left);
}

static void come_back(double seconds) {
    uint64_t began = now_ns();
    welcomed = subscribed = caught_up = rejected = 0;
    last_welcome = last_caught_up = began;
    open_all(&caught_up, seconds);
    double connect_s = (double)(last_welcome - began) / 1e9;
    double caught_up_s = last_caught_up > last_welcome ? (double)(last_caught_up - last_welcome) / 1e9 : 0;
    printf("{\"returned\":%d,\"caught_up\":%d,\"rejected\":%d,\"connect_s\":%.3f,\"caught_up_s\":%.3f}\n", welcomed, caught_up,
           rejected, connect_s, caught_up_s);
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
        unsigned long offset;
        double seconds;
        if (sscanf(line, "until %lu %lf", &offset, &seconds) == 2) {
            until(offset, seconds);
        } else if (!strcmp(line, "leave")) {
            leave();
        } else if (sscanf(line, "return %lf", &seconds) == 1) {
            come_back(seconds);
        } else {
            if (strcmp(line, "quit")) fprintf(stderr, "unknown command: %s\n", line);
            return 0;
        }
        fflush(stdout);
    }
    return !input_ended && commands_len < sizeof commands;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: away_client HOST PORT TOPIC SOCKETS\n");
        return 2;
    }
    server = address(argv[1], atoi(argv[2]));
    snprintf(topic, sizeof topic, "%s", argv[3]);
    sockets = atoi(argv[4]);
    if (sockets < 1 || (size_t)sockets + 16 > raise_nofile()) errno = EMFILE, die("SOCKETS");
    request_len = upgrade_request(request, sizeof request, argv[1], atoi(argv[2]), "/cable");
    request_len -= 2;
    request_len += (size_t)snprintf(request + request_len, sizeof request - request_len,
                                    "Sec-WebSocket-Protocol: actioncable-v1-ext-json\r\n\r\n");
    conns = calloc((size_t)sockets, sizeof *conns);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    uint64_t began = now_ns();
    open_all(&subscribed, OPEN_TIMEOUT_S);
    printf("{\"subscribed\":%d,\"seconds\":%.3f}\n", subscribed, (double)(now_ns() - began) / 1e9);
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event)) die("epoll_ctl: standard input must be a pipe");
    while (obey()) turn(-1);
    return 0;
}
