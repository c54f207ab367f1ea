//! Clients with a JSON Web Token, as `Authorization: Bearer` or `?token=`, which is checked in another
//! thread: `SECRET=… cargo run --release -p standfast --example jwt -- 127.0.0.1:8080`. The token is signed with HS256,
//! expires, and names the client in `sub`.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use standfast::{Accept, Decision, Handler, Message, Response, Server, Socket, UpgradeRequest};

/// Clients that wait to be checked; others are told to come back.
const WAITING_MAX: usize = 1024;

#[derive(Deserialize)]
struct Claims {
    sub: String,
}

/// A client that waits: its token, and the way to answer it.
type Waiting = (String, Decision<Claims>);

#[derive(Clone)]
struct Whoami {
    checker: SyncSender<Waiting>,
}

impl Handler for Whoami {
    type Data = Claims;

    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<Claims>, Response> {
        let header = request.bearer_token().map(str::to_owned);
        let token = header.or_else(|| request.query("token").map(String::from));
        let token = token.ok_or_else(|| Response::text(401, "expected a token\n"))?;
        let (decision, later) = request.later();
        match self.checker.try_send((token, decision)) {
            Ok(()) => Ok(later),
            Err(TrySendError::Full((_, decision)) | TrySendError::Disconnected((_, decision))) => {
                decision.refuse(Response::text(503, "busy\n").header("Retry-After", "1"));
                Ok(later)
            }
        }
    }

    fn message(&mut self, socket: &mut Socket<'_>, claims: &mut Claims, _: Message<'_>) {
        socket.send(&claims.sub);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let secret = std::env::var("SECRET").map_err(|_| "expected SECRET in the environment")?;
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let (checker, waiting) = sync_channel::<Waiting>(WAITING_MAX);
    std::thread::spawn(move || {
        let key = DecodingKey::from_secret(secret.as_bytes());
        let validation = Validation::new(Algorithm::HS256);
        for (token, decision) in waiting {
            match decode::<Claims>(&token, &key, &validation) {
                Ok(token) => decision.accept(token.claims),
                Err(error) => decision.refuse(Response::text(403, format!("{error}\n"))),
            }
        }
    });
    let server = Server::bind(address)?.route("/whoami", Whoami { checker });
    println!("ws://{}/whoami", server.address());
    Ok(server.run()?)
}
