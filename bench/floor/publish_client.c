/* The foreign publisher: HTTP POSTs over a few keep-alive connections, at a rate or one after another.
 * Each message starts with its decimal CLOCK_MONOTONIC nanoseconds: the moment it was due when a rate
 * is asked for (so a server that answers late is charged for it), else the moment it was sent.
 *
 * Usage: publish_client HOST PORT PATH TOPIC BYTES json|cable|text
 *   json   body {"topic":TOPIC,"data":MESSAGE}          text   body MESSAGE (TOPIC goes in PATH)
 *   cable  body {"stream":TOPIC,"data":MESSAGE}, as AnyCable's /_broadcast takes it
 * Obeys stdin:
 *   publish COUNT PER_SECOND   PER_SECOND 0 = each as soon as the one before is answered; prints
 *       {"published":..,"refused":..,"seconds":..,"answer_p50_ms":..,"answer_p99_ms":..}
 *   quit                       (or end of input) */
#include "floor.h"

enum { LINES = 8, ANSWER_TIMEOUT_MS = 30000 };

/* One connection; busy while an answer is outstanding. */
struct line {
    int fd, busy;
    uint64_t sent_ns;
    size_t have;
    char answer[4096];
};

static struct line lines[LINES];
static struct sockaddr_in server;
static const char *host, *path, *topic, *key;
static int json;
static size_t size;
static uint64_t accepted, refused;
static struct hist latency;

static void publish(unsigned long count, double per_second);

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "usage: publish_client HOST PORT PATH TOPIC BYTES json|cable|text\n");
        return 2;
    }
    host = argv[1], path = argv[3], topic = argv[4], key = strcmp(argv[6], "cable") ? "topic" : "stream";
    json = strcmp(argv[6], "text") != 0;
    server = address(argv[1], atoi(argv[2]));
    size = (size_t)atoi(argv[5]);
    if (size < 20 || size > 32768) errno = ERANGE, die("BYTES (20 to 32768)");
    for (int i = 0; i < LINES; i++) lines[i].fd = -1;
    char command[128];
    while (fgets(command, sizeof command, stdin) && strncmp(command, "quit", 4)) {
        unsigned long count;
        double per_second;
        if (sscanf(command, "publish %lu %lf", &count, &per_second) != 2) errno = EINVAL, die("command");
        publish(count, per_second);
    }
    return 0;
}

/* Connects a line that is not, or that the server has closed while it rested. */
static void ensure_open(struct line *l) {
    char byte;
    if (l->fd >= 0 && recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0) return;
    if (l->fd >= 0) close(l->fd);
    l->fd = connect_start(&server, 0);
    if (l->fd < 0) die("connect");
    poll(&(struct pollfd){.fd = l->fd, .events = POLLOUT}, 1, 5000);
}

static void post(struct line *l, uint64_t stamp) {
    static char body[40000], all[42000];
    int at = json ? snprintf(body, sizeof body, "{\"%s\":\"%s\",\"data\":\"", key, topic) : 0;
    int digits = snprintf(body + at, sizeof body - (size_t)at, "%lu", stamp);
    memset(body + at + digits, ' ', size - (size_t)digits);
    at += (int)size;
    if (json) memcpy(body + at, "\"}", 2), at += 2;
    int head = snprintf(all, sizeof all,
                        "POST %s HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", path,
                        host, ntohs(server.sin_port), json ? "application/json" : "text/plain", at);
    memcpy(all + head, body, (size_t)at);
    ensure_open(l);
    l->busy = 1, l->have = 0, l->sent_ns = now_ns();
    if (send(l->fd, all, (size_t)(head + at), MSG_NOSIGNAL) != head + at) die("send");
}

/* 1 = a whole answer with its Content-Length is there. */
static int complete(const struct line *l) {
    const char *end = memmem(l->answer, l->have, "\r\n\r\n", 4);
    if (!end) return 0;
    const char *length = strcasestr(l->answer, "\r\ncontent-length:");
    size_t body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    return l->have >= (size_t)(end - l->answer) + 4 + body;
}

static void read_answer(struct line *l) {
    ssize_t got = recv(l->fd, l->answer + l->have, sizeof l->answer - 1 - l->have, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("publisher's connection lost");
    l->have += (size_t)got;
    l->answer[l->have] = 0;
    if (!complete(l)) {
        if (l->have == sizeof l->answer - 1) errno = EMSGSIZE, die("answer");
        return;
    }
    if (!strncmp(l->answer, "HTTP/1.1 2", 10)) accepted++;
    else refused++;
    hist_add(&latency, now_ns() - l->sent_ns);
    l->busy = 0;
}

/* Waits for answers until `until` (0 = until one has come). */
static void wait_answers(uint64_t until) {
    struct pollfd polled[LINES];
    struct line *of[LINES];
    nfds_t busy = 0;
    for (int i = 0; i < LINES; i++)
        if (lines[i].busy) polled[busy] = (struct pollfd){.fd = lines[i].fd, .events = POLLIN}, of[busy++] = &lines[i];
    uint64_t now = now_ns(), wait = until > now ? until - now : 0;
    struct timespec limit = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
    if (!until) limit = (struct timespec){ANSWER_TIMEOUT_MS / 1000, 0};
    int ready = ppoll(polled, busy, &limit, NULL);
    if (ready == 0 && !until) errno = ETIMEDOUT, die("no answer to a publish");
    for (nfds_t i = 0; i < busy && ready > 0; i++)
        if (polled[i].revents) read_answer(of[i]);
}

static struct line *idle_line(void) {
    for (int i = 0; i < LINES; i++)
        if (!lines[i].busy) return &lines[i];
    return NULL;
}

static int any_busy(void) {
    for (int i = 0; i < LINES; i++)
        if (lines[i].busy) return 1;
    return 0;
}

static void publish(unsigned long count, double per_second) {
    memset(&latency, 0, sizeof latency);
    accepted = refused = 0;
    uint64_t start = now_ns();
    for (unsigned long i = 0; i < count; i++) {
        uint64_t due = per_second > 0 ? start + (uint64_t)((double)i / per_second * 1e9) : 0;
        while (now_ns() < due) wait_answers(due);
        struct line *free_line;
        while (!(free_line = idle_line()) || (!due && any_busy())) wait_answers(0);
        post(free_line, due ? due : now_ns());
    }
    while (any_busy()) wait_answers(0);
    printf("{\"published\":%lu,\"refused\":%lu,\"seconds\":%.6f,\"answer_p50_ms\":%.3f,\"answer_p99_ms\":%.3f}\n",
           accepted, refused, (double)(now_ns() - start) / 1e9, (double)hist_at(&latency, 0.5) / 1e6,
           (double)hist_at(&latency, 0.99) / 1e6);
    fflush(stdout);
}
