/* An application that is called over HTTP (AnyCable's HTTP RPC), as fast as asked: SLOTS calls at a time, each for
 * DELAY_MS; further ones wait in the order they came. Every client is admitted to the one channel there is,
 * {"channel":"Bench"}, and streams "bench".
 *
 * Usage: app_server DELAY_MS SLOTS [each]    prints {"port":N} when ready; 0 milliseconds answers at once
 *   each    every client has an identity of its own, and two streams
 * Obeys stdin:
 *   figures    prints {"connects":..,"commands":..,"disconnects":..,"most":..,"connections":..} since the last time;
 *              `most` calls were performed at a time, over `connections`
 * Not handled, on purpose: pipelined requests, bodies in chunks, keys. */
#include "floor.h"

enum { REQUEST_BYTES = 16 * 1024 };

struct conn {
    int open, waits;
    size_t have;
    char bytes[REQUEST_BYTES];
};

/* A ring of calls by descriptor: those that wait, and those that are performed until `due`. */
struct ring {
    struct call {
        int fd, what;
        uint64_t due;
    } *calls;
    size_t size, first, count;
};

enum { CONNECT, COMMAND, DISCONNECT };

static const char *answers[] = {
    "{\"status\":1,\"identifiers\":\"{\\\"user\\\":\\\"bench\\\"}\",\"transmissions\":[\"{\\\"type\\\":\\\"welcome\\\"}\"]}",
    "{\"status\":1,\"streams\":[\"bench\"],\"transmissions\":[\"{\\\"type\\\":\\\"confirm_subscription\\\","
    "\\\"identifier\\\":\\\"{\\\\\\\"channel\\\\\\\":\\\\\\\"Bench\\\\\\\"}\\\"}\"]}",
    "{\"status\":1}",
};

/* With "each", which numbers its clients. */
static const char *answers_each[] = {
    "{\"status\":1,\"identifiers\":\"{\\\"user\\\":\\\"%06lu\\\"}\"}",
    "{\"status\":1,\"streams\":[\"bench\",\"bench:more\"]}",
    "{\"status\":1}",
};

static int each;
static struct conn **conns;
static struct ring waiting, running;
static size_t slots, most, opened;
static uint64_t delay_ns, calls[3];
static int epoll;

static void push(struct ring *r, struct call c) {
    if (r->count == r->size) errno = ENOBUFS, die("too many calls");
    r->calls[(r->first + r->count++) % r->size] = c;
}

static struct call pop(struct ring *r) {
    struct call c = r->calls[r->first];
    r->first = (r->first + 1) % r->size, r->count--;
    return c;
}

static void close_conn(int fd) {
    free(conns[fd]);
    conns[fd] = NULL;
    close(fd);
}

static void answer(struct call c) {
    calls[c.what]++;
    if (!conns[c.fd] || !conns[c.fd]->waits) return; /* its caller has gone */
    conns[c.fd]->waits = 0;
    char out[1024];
    char own[256];
    const char *body = answers[c.what];
    if (each) snprintf(own, sizeof own, answers_each[c.what], calls[CONNECT]), body = own;
    int len = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                       strlen(body), body);
    if (send(c.fd, out, (size_t)len, MSG_NOSIGNAL) != len) close_conn(c.fd);
}

/* Begins what has a slot, answers what is due; the time of the next answer, 0 for none. */
static uint64_t perform(void) {
    uint64_t now = now_ns();
    while (running.count && running.calls[running.first].due <= now) answer(pop(&running));
    while (waiting.count && running.count < slots) {
        struct call c = pop(&waiting);
        c.due = now + delay_ns;
        push(&running, c);
        if (running.count > most) most = running.count;
        while (!delay_ns && running.count) answer(pop(&running));
    }
    return running.count ? running.calls[running.first].due : 0;
}

/* 1 = a whole request was there and is called for. */
static int take(int fd, struct conn *c) {
    c->bytes[c->have] = 0;
    const char *end = strstr(c->bytes, "\r\n\r\n"), *length = strcasestr(c->bytes, "\r\ncontent-length:");
    if (!end) return 0;
    size_t body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    if (c->have < (size_t)(end - c->bytes) + 4 + body) return 0;
    const char *line = memchr(c->bytes, '\r', c->have);
    const char *path = strchr(c->bytes, ' '), *rest = path ? strchr(path + 1, ' ') : NULL;
    if (!rest || rest > line) errno = EPROTO, die("request");
    int what = !memcmp(rest - 8, "/connect", 8) ? CONNECT : !memcmp(rest - 8, "/command", 8) ? COMMAND : DISCONNECT;
    c->have = 0, c->waits = 1;
    push(&waiting, (struct call){.fd = fd, .what = what});
    return 1;
}

static void readable(int fd) {
    struct conn *c = conns[fd];
    if (!c) return;
    ssize_t got = recv(fd, c->bytes + c->have, REQUEST_BYTES - 1 - c->have, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        close_conn(fd);
        return;
    }
    c->have += (size_t)got;
    if (!take(fd, c) && c->have == REQUEST_BYTES - 1) errno = EMSGSIZE, die("request");
}

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        conns[fd] = calloc(1, sizeof *conns[fd]);
        if (!conns[fd]) die("calloc");
        opened++;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

static void figures(void) {
    printf("{\"connects\":%lu,\"commands\":%lu,\"disconnects\":%lu,\"most\":%zu,\"connections\":%zu}\n", calls[CONNECT],
           calls[COMMAND], calls[DISCONNECT], most, opened);
    fflush(stdout);
    memset(calls, 0, sizeof calls), most = 0, opened = 0;
}

int main(int argc, char **argv) {
    each = argc == 4 && !strcmp(argv[3], "each");
    if (argc != 3 && !each) {
        fprintf(stderr, "usage: app_server DELAY_MS SLOTS [each]\n");
        return 2;
    }
    delay_ns = (uint64_t)(atof(argv[1]) * 1e6), slots = (size_t)atoi(argv[2]);
    size_t most_open = raise_nofile() + 1;
    conns = calloc(most_open, sizeof *conns);
    waiting = running = (struct ring){.size = most_open};
    waiting.calls = calloc(most_open, sizeof *waiting.calls), running.calls = calloc(most_open, sizeof *running.calls);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = address("127.0.0.1", 0);
    socklen_t len = sizeof at;
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) die("listen");
    getsockname(listener, (struct sockaddr *)&at, &len);
    struct epoll_event of_listener = {.events = EPOLLIN, .data.fd = listener}, of_input = {.events = EPOLLIN, .data.fd = 0};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &of_listener);
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &of_input);
    printf("{\"port\":%d}\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        uint64_t due = perform(), now = now_ns(), left = due > now ? due - now : 0;
        struct timespec limit = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        struct epoll_event events[1024];
        int ready = epoll_pwait2(epoll, events, 1024, due ? &limit : NULL, NULL);
        if (ready < 0 && errno != EINTR) die("epoll_pwait2");
        for (int i = 0; i < ready; i++) {
            char line[64];
            if (events[i].data.fd == listener) accept_all(listener);
            else if (events[i].data.fd) readable(events[i].data.fd);
            else if (!fgets(line, sizeof line, stdin)) return 0;
            else figures();
        }
    }
}
