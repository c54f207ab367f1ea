//! The messages of gRPC, with the field numbers of the contract, and answers read from bodies.

use std::collections::BTreeMap;

use prost::Message as _;

use super::call::Method;
use super::reply::{PresenceReply, Reply, States, Status};

/// Bytes before a message: whether it is compressed, and its length.
pub(super) const PREFIX_BYTES: usize = 5;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Env {
    #[prost(string, tag = "1")]
    pub(super) url: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) headers: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(super) cstate: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(super) istate: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EnvResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(super) cstate: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) istate: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Presence {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(string, tag = "2")]
    pub(super) id: String,
    #[prost(string, tag = "3")]
    pub(super) info: String,
    #[prost(uint32, tag = "4")]
    pub(super) ttl: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ConnectionRequest {
    #[prost(message, optional, tag = "3")]
    pub(super) env: Option<Env>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ConnectionResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
    #[prost(string, tag = "2")]
    pub(super) identifiers: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) transmissions: Vec<String>,
    #[prost(string, tag = "4")]
    pub(super) error_msg: String,
    #[prost(message, optional, tag = "5")]
    pub(super) env: Option<EnvResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CommandMessage {
    #[prost(string, tag = "1")]
    pub(super) command: String,
    #[prost(string, tag = "2")]
    pub(super) identifier: String,
    #[prost(string, tag = "3")]
    pub(super) connection_identifiers: String,
    #[prost(string, tag = "4")]
    pub(super) data: String,
    #[prost(message, optional, tag = "5")]
    pub(super) env: Option<Env>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CommandResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
    #[prost(bool, tag = "2")]
    pub(super) disconnect: bool,
    #[prost(bool, tag = "3")]
    pub(super) stop_streams: bool,
    #[prost(string, repeated, tag = "4")]
    pub(super) streams: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(super) transmissions: Vec<String>,
    #[prost(string, tag = "6")]
    pub(super) error_msg: String,
    #[prost(message, optional, tag = "7")]
    pub(super) env: Option<EnvResponse>,
    #[prost(string, repeated, tag = "8")]
    pub(super) stopped_streams: Vec<String>,
    #[prost(message, optional, tag = "9")]
    pub(super) presence: Option<Presence>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DisconnectRequest {
    #[prost(string, tag = "1")]
    pub(super) identifiers: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) subscriptions: Vec<String>,
    #[prost(message, optional, tag = "5")]
    pub(super) env: Option<Env>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DisconnectResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
    #[prost(string, tag = "2")]
    pub(super) error_msg: String,
}

fn status(number: i32) -> Result<Status, String> {
    Status::of_number(number.into()).ok_or_else(|| format!("unknown status {number}"))
}

fn states(env: Option<EnvResponse>) -> States {
    env.map(|env| States { cstate: env.cstate, istate: env.istate }).unwrap_or_default()
}

impl ConnectionResponse {
    pub(super) fn into_reply(self) -> Result<Reply, String> {
        Ok(Reply {
            status: status(self.status)?,
            identifiers: self.identifiers,
            transmissions: self.transmissions,
            error_msg: self.error_msg,
            env: states(self.env),
            ..Reply::default()
        })
    }
}

impl CommandResponse {
    pub(super) fn into_reply(self) -> Result<Reply, String> {
        let presence = self.presence.map(|Presence { kind, id, info, ttl }| PresenceReply {
            kind,
            id,
            info,
            ttl,
        });
        Ok(Reply {
            status: status(self.status)?,
            disconnect: self.disconnect,
            stop_streams: self.stop_streams,
            streams: self.streams,
            stopped_streams: self.stopped_streams,
            transmissions: self.transmissions,
            error_msg: self.error_msg,
            env: states(self.env),
            presence,
            ..Reply::default()
        })
    }
}

impl DisconnectResponse {
    pub(super) fn into_reply(self) -> Result<Reply, String> {
        let (status, error_msg) = (status(self.status)?, self.error_msg);
        Ok(Reply { status, error_msg, ..Reply::default() })
    }
}

/// The message of a body that has exactly one.
pub(super) fn unframed(body: &[u8]) -> Result<&[u8], String> {
    let Some(([compressed, length @ ..], message)) = body.split_first_chunk::<PREFIX_BYTES>()
    else {
        return Err("the answer has no message".to_owned());
    };
    if *compressed != 0 {
        return Err("the answer is compressed".to_owned());
    }
    if u32::from_be_bytes(*length) as usize != message.len() {
        return Err("the answer is not one message".to_owned());
    }
    Ok(message)
}

/// Parses the answer to a call.
pub(super) fn decode(method: Method, body: &[u8]) -> Result<Reply, String> {
    let message = unframed(body)?;
    let text = |error: prost::DecodeError| error.to_string();
    Ok(match method {
        Method::Connect => ConnectionResponse::decode(message).map_err(text)?.into_reply()?,
        Method::Command => CommandResponse::decode(message).map_err(text)?.into_reply()?,
        Method::Disconnect => DisconnectResponse::decode(message).map_err(text)?.into_reply()?,
        Method::Authorize => return Err("no method of gRPC".to_owned()),
    })
}
