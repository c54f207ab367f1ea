/* The floor under a proxy: one thread, level-triggered epoll, one recv and one send for each readable
 * socket, both legs of a tunnel in one table. It looks at nothing that passes: no handshake is
 * checked, no header written, no peer chosen.
 *
 * Usage: relay UPSTREAM_PORT [PORT]    prints {"port":N,"pid":P} when ready
 * Not handled, on purpose: timeouts, limits, half-close (the end of one leg ends both), queues (a peer
 * that does not read stops the loop until it does). */
#include "floor.h"

static int *peer; /* the other leg of a descriptor, indexed by descriptor */
static int epoll;
static uint8_t buffer[BUFFER_BYTES];

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in at = address("127.0.0.1", port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096)) die("listen");
    return fd;
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static void accept_all(int listener, const struct sockaddr_in *upstream) {
    for (;;) {
        int near = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (near < 0) {
            if (errno == EAGAIN || errno == ECONNABORTED) return;
            die("accept4"); /* out of descriptors: a floor program has no plan for it */
        }
        int far = connect_start(upstream, 0);
        if (far < 0) die("connect");
        peer[near] = far, peer[far] = near;
        watch(near), watch(far);
    }
}

/* Sends everything, waiting for a peer that has stopped reading or is not connected yet. */
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

static void readable(int fd) {
    int other = peer[fd];
    if (other < 0) return; /* an event of this turn whose tunnel has just ended */
    ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0 && send_all(other, buffer, (size_t)got)) return;
    peer[fd] = peer[other] = -1;
    close(fd), close(other);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: relay UPSTREAM_PORT [PORT]\n");
        return 2;
    }
    peer = calloc(raise_nofile() + 1, sizeof *peer);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct sockaddr_in upstream = address("127.0.0.1", atoi(argv[1])), at;
    int listener = listen_on(argc > 2 ? atoi(argv[2]) : 0);
    socklen_t len = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &len);
    watch(listener);
    printf("{\"port\":%d,\"pid\":%d}\n", ntohs(at.sin_port), getpid());
    fflush(stdout);
    for (;;) {
        struct epoll_event events[1024];
        int ready = epoll_wait(epoll, events, 1024, -1);
        if (ready < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == listener) accept_all(listener, &upstream);
            else readable(events[i].data.fd);
        }
    }
}
