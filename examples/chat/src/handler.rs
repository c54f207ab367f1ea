//! [`Acc`]: the WebSockets of `/acc`.

use std::sync::Arc;

use standfast::{
    Accept, Close, Context, DescriptorFree, Handler, Message, Response, Socket, UpgradeRequest,
};

use crate::chat::{Chat, Delivery, count};
use crate::codes::Code;
use crate::protocol::{self, Login, Outgoing};
use crate::users::{AppIndex, UserId, UserRef};

/// The handler of `/acc`.
#[derive(Clone)]
pub(crate) struct Acc {
    chat: Arc<Chat>,
    /// The answer that is being written.
    text: String,
}

/// What is kept of a socket.
pub(crate) enum Session {
    New,
    /// Logs in when the socket is open.
    Named(Box<(AppIndex, UserId)>),
    User(UserRef),
}

const _: () = assert!(size_of::<Session>() <= 16);

/// It has no descriptors, starts no threads and wakes no tasks.
impl DescriptorFree for Acc {}

/// Longest answer whose memory is kept for the next one, in bytes.
const TEXT_KEPT: usize = 4 * 1024;

impl Handler for Acc {
    type Data = Session;

    /// Anyone is let in, from any page: nothing here trusts cookies. `?appID=…&userID=…` logs in at once.
    fn upgrade(&mut self, request: &UpgradeRequest<'_>) -> Result<Accept<Session>, Response> {
        let Some(user) = request.query("userID") else { return Ok(Accept::new(Session::New)) };
        let app = request.query("appID").and_then(|app| app.parse().ok()).unwrap_or(0);
        let token = request.query("serviceToken").unwrap_or_default();
        match self.chat.check_login(&token, app, &user) {
            Ok(named) => Ok(Accept::new(Session::Named(Box::new(named)))),
            Err(code @ Code::InvalidUserId) => {
                Err(Response::text(400, format!("{}: 1 to 19 bytes\n", code.text())))
            }
            Err(code) => Err(Response::text(403, format!("{}\n", code.text()))),
        }
    }

    fn open(&mut self, socket: &mut Socket<'_>, session: &mut Session) {
        if let Session::Named(named) = session {
            let (app, user) = **named;
            *session = Session::User(self.chat.login(socket, app, &user));
        }
    }

    fn message(&mut self, socket: &mut Socket<'_>, session: &mut Session, message: Message<'_>) {
        let Some(request) = protocol::read(message.as_bytes()) else {
            count(&self.chat.counters.invalid);
            socket.send(protocol::INVALID);
            return;
        };
        let answered = match &*request.cmd {
            "ping" => Ok(Some("\"pong\"")),
            "heartbeat" => self.heartbeat(socket, session, &request.data).map(Some),
            "login" => self.login(socket, session, request.data).map(Some),
            "msg" => self.send(socket, session, &request.seq, request.data),
            _ => Err(Code::UnknownCommand),
        };
        let (code, data) = match answered {
            Ok(Some(data)) => (Code::Ok, data),
            // The other nodes are asked.
            Ok(None) => return,
            Err(code) => (code, "null"),
        };
        self.text.clear();
        protocol::answer(&mut self.text, &request.seq, &request.cmd, code, data);
        socket.send(&self.text);
        self.text.shrink_to(TEXT_KEPT);
    }

    fn stopping(&mut self, _: &mut Socket<'_>, _: &mut Session) {
        self.chat.stops();
    }

    fn close(&mut self, socket: &mut Socket<'_>, session: Session, _: &Close<'_>) {
        if let Session::User(user) = session {
            self.chat.logout(socket, user);
        }
    }

    fn tick(&mut self, context: &mut Context<'_>) {
        if context.worker() == 0 {
            self.chat.announce_waiting(context.remote());
        }
    }
}

impl Acc {
    pub(crate) fn new(chat: &Arc<Chat>) -> Self {
        Acc { chat: Arc::clone(chat), text: String::new() }
    }

    fn login(
        &self,
        socket: &mut Socket<'_>,
        session: &mut Session,
        data: serde_json::Value,
    ) -> Result<&'static str, Code> {
        let login: Login = protocol::data(data)?;
        let checked = self.chat.check_login(&login.service_token, login.app_id, &login.user_id);
        let (app, user) = checked?;
        if !matches!(session, Session::New) {
            return Err(Code::OperationFailed);
        }
        *session = Session::User(self.chat.login(socket, app, &user));
        Ok("null")
    }

    fn heartbeat(
        &self,
        socket: &mut Socket<'_>,
        session: &Session,
        data: &serde_json::Value,
    ) -> Result<&'static str, Code> {
        if !(data.is_object() || data.is_null()) {
            return Err(Code::InvalidParameter);
        }
        let Session::User(user) = session else { return Err(Code::NotLoggedIn) };
        if !self.chat.users.heartbeat(*user, socket.id(), self.chat.now_ms()) {
            return Err(Code::NotLoggedIn);
        }
        count(&self.chat.counters.heartbeats);
        Ok("null")
    }

    /// Sends a message to a user, or to everyone in the application. `None`: it is answered later.
    fn send(
        &mut self,
        socket: &mut Socket<'_>,
        session: &Session,
        seq: &str,
        data: serde_json::Value,
    ) -> Result<Option<&'static str>, Code> {
        let Session::User(user) = session else { return Err(Code::NotLoggedIn) };
        let Outgoing { to, message, message_id } = protocol::data(data)?;
        let chat = Arc::clone(&self.chat);
        let (app, from) = chat.users.identity(*user, socket.id()).ok_or(Code::NotLoggedIn)?;
        let mut text = String::new();
        protocol::push(&mut text, &message_id, "msg", &message, from.as_str(), &to);
        if to.is_empty() {
            if !chat.message_ids.is_new(&message_id, chat.now_seconds()) {
                return Ok(Some(data_of(&Delivery::Duplicate)));
            }
            chat.used(&message_id);
            let published = socket.publish_to_others(chat.topic(app), &text).is_ok();
            let delivery = chat.count_sent(published, &chat.counters.sent_to_all);
            return Ok(Some(data_of(&delivery)));
        }
        UserId::new(&to).ok_or(Code::InvalidUserId)?;
        let app = chat.settings.apps.get(usize::from(app)).copied().unwrap_or(0);
        let question = match chat.begin_send(socket.remote(), app, to, message_id, text) {
            Ok(delivery) => return Ok(Some(data_of(&delivery))),
            Err(question) => question,
        };
        let (id, seq) = (socket.id(), seq.to_owned());
        if let Some(nodes) = &chat.nodes {
            nodes.ask(&chat, socket.remote(), question, move |chat, remote, gathered| {
                let mut text = String::new();
                let data = data_of(&chat.end_send(&gathered));
                protocol::answer(&mut text, &seq, "msg", Code::Ok, data);
                let _ = remote.send(id, &text);
            });
        }
        Ok(None)
    }
}

/// `data` of the answer to `msg`.
fn data_of(delivery: &Delivery) -> &'static str {
    match delivery {
        Delivery::Sent => "{\"sendResults\":true}",
        Delivery::Duplicate => "{}",
        Delivery::Failed(_) => "{\"sendResults\":false}",
    }
}
