//! Workers, connections, queues, timers and mailboxes over epoll.
