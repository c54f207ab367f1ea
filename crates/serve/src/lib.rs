//! Program 1: holds and feeds the sockets.
