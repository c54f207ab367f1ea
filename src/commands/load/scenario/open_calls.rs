//! Steps of gRPC calls that stay open: `stream = "package.Service/Method"`, and then `send`, `receive` and `close` as on
//! WebSockets.

use std::sync::Arc;

use anyhow::Result;
use load::grpc::MethodKind;
use load::scenario::{Action, Call, Check, Rule, Source, Step};

use super::steps::Reader;
use super::tables::Table;
use super::talk::Socket;

impl Reader<'_> {
    /// Reads a call that stays open.
    pub(super) fn open_call(&mut self, table: &Table<'_>) -> Result<Step> {
        let head = self.call_head(table, "stream")?;
        let (path, kind) = (head.method.path(), head.method.kind());
        if head.variant.is_web() {
            let what =
                "calls of gRPC-Web end with their answer: use the key grpc, or grpc:// over HTTP/2";
            return Err(head.wrong(table, what));
        }
        if kind == MethodKind::Unary {
            return Err(head.wrong(table, &format!("{path} is a {kind} method: use the key grpc")));
        }
        if head.sends() && table.has("message") {
            let what = format!("{path} takes a stream of messages: use steps with send");
            return Err(head.wrong(table, &what));
        }
        let messages = match head.sends() {
            true => Vec::new(),
            false => self.messages(table, "message", &head.method, false)?,
        };
        let headers = self.call_headers(table, &head, None)?;
        let name = format!("stream {}", path.trim_start_matches('/'));
        let (endpoint, variant) = (head.endpoint, head.variant);
        let socket = self.slot(table)?;
        let blank = self.blank(table, endpoint, Action::Open, name)?;
        let call = Arc::new(Call { method: head.method, variant, messages });
        self.open_socket(socket, Socket::of_call(endpoint, Arc::clone(&call)));
        let call = Some(call);
        Ok(Step { target: head.target, headers, socket, call, ..blank })
    }

    /// Reads a step on a call that is open.
    pub(super) fn call_step(
        &mut self,
        table: &Table<'_>,
        action_key: &'static str,
        (endpoint, call): (u8, &Call),
    ) -> Result<Step> {
        let wrong = |what: String| Err(table.doc.wrong(table.at, what));
        let (method, variant) = (call.method.clone(), call.variant);
        let takes_stream =
            matches!(method.kind(), MethodKind::ClientStream | MethodKind::BidiStream);
        let (action, messages) = match action_key {
            "send" if !takes_stream => {
                let path = method.path();
                return wrong(format!(
                    "send: {path} takes one message: give it as message in the step with stream"
                ));
            }
            "send" if table.has("binary") => {
                return wrong("binary needs a WebSocket: messages of calls are binary".to_owned());
            }
            "send" => {
                let messages = self.messages(table, "send", &method, false)?;
                (Action::Send { binary: true }, messages)
            }
            "receive" => (Action::Receive, Vec::new()),
            "close" => (self.boolean(table, "close", Action::Close)?, Vec::new()),
            key => {
                return wrong(format!(
                    "{key} needs a WebSocket: on a call there are send, receive and close"
                ));
            }
        };
        let socket = self.slot(table)?;
        let blank = self.blank(table, endpoint, action, action_key.to_owned())?;
        Ok(Step { socket, call: Some(Arc::new(Call { method, variant, messages })), ..blank })
    }
}

/// Refuses checks and captures of what is known only when a call ends, in other steps.
pub(super) fn check_parts(table: &Table<'_>, step: &Step) -> Result<()> {
    let is_end = matches!(step.action, Action::Request | Action::Close);
    let of_head = |source: &Source| matches!(source, Source::Header(_));
    let is_of_end = |check: &Check| match &check.rule {
        Rule::Status(_) => true,
        Rule::Value(source, _) => of_head(source),
        Rule::Size(_) | Rule::Latency(_) => false,
    };
    let is_wrong = step.checks.iter().any(is_of_end)
        || step.captures.iter().any(|capture| of_head(&capture.source));
    if step.call.is_none() || is_end || !is_wrong {
        return Ok(());
    }
    let what =
        "status and header are known when a call has ended: check them in the step with close";
    Err(table.doc.wrong(table.at, what))
}
