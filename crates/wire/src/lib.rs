//! HTTP/1.1 and WebSocket: bytes to events and back, both roles, no I/O.
