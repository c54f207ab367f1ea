//! Program 3: makes the sockets and measures.
