//! Program 3: a load balancer for WebSockets and whatever else HTTP carries.
//!
//! What it is not: it parses no command line and no file, knows no system call, and looks into no
//! tunnel.
