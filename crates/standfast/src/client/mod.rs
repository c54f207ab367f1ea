//! WebSocket clients: [`Connect`] says where to and how, [`Client`] is driven by its caller, [`Clients`] are
//! driven by a worker that calls a [`ClientHandler`].

mod address;
mod blocking;
mod clients;
mod connect;
mod driver;
mod error;
mod resolver;
mod socket;
mod worker;

pub use self::blocking::Client;
pub use self::clients::{ClientRemote, Clients};
pub use self::connect::{Connect, Reconnect};
pub use self::error::{ClientError, Lost};
pub use self::resolver::Lookups;
pub use self::socket::{ClientHandler, ClientSocket};
