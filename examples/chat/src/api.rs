//! The HTTP API, with gowebsocket's paths and shapes.

use std::borrow::Cow;
use std::fs;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;

use standfast::{DescriptorFreeRoutes, PrivateServer, Remote, Request, Response, Routes, Server};

use crate::chat::{Chat, Delivery, NOT_ONLINE, count, same_secret};
use crate::codes::Code;
use crate::nodes::{Gathered, Question};
use crate::protocol::{self, push_json};
use crate::users::UserId;

const PAGE: &str = include_str!("page.html");
/// Longest form in bytes.
const FORM_BYTES: u64 = 256 * 1024;
const METHODS: &str = "GET, POST, OPTIONS";
const HEADERS: &str = "Authorization, Content-Type";

/// The answer to a request, or what the other nodes are asked first.
enum Answer {
    Now(Response),
    Ask(Question, Finish),
}

/// Makes the answer of what the other nodes have answered.
type Finish = Box<dyn FnOnce(&Chat, &Remote, Gathered) -> Response + Send>;
type Respond = fn(&Arc<Chat>, &Request<'_>) -> Answer;

/// The paths of plain requests, for a server.
pub(crate) fn routes<R: Routes>(mut server: Server<R>, chat: &Arc<Chat>) -> Server<R> {
    let forms = Some(FORM_BYTES);
    let paths: [(&str, &str, Option<u64>, Respond); 5] = [
        ("GET", "/user/list", None, list),
        ("GET", "/user/online", None, online),
        ("GET", "/system/state", None, state),
        ("POST", "/user/sendMessage", forms, send),
        ("POST", "/user/sendMessageAll", forms, send_to_all),
    ];
    for (method, path, body_bytes, respond) in paths {
        let own = Arc::clone(chat);
        // On a node alone everything is answered at once.
        server = match &chat.nodes {
            None => server.http(method, path, body_bytes, move |request| {
                match guarded(&own, request, respond) {
                    Answer::Now(response) => response,
                    Answer::Ask(_, finish) => finish(&own, request.remote(), Gathered::default()),
                }
            }),
            Some(_) => server.later(method, path, body_bytes, move |request, reply| {
                match (guarded(&own, request, respond), &own.nodes) {
                    (Answer::Ask(question, finish), Some(nodes)) => {
                        nodes.ask(&own, request.remote(), question, |chat, remote, gathered| {
                            reply.respond(finish(chat, remote, gathered));
                        });
                    }
                    (Answer::Now(response), _) => reply.respond(response),
                    (Answer::Ask(..), None) => {}
                }
            }),
        };
        server = server.http("OPTIONS", path, None, |_| cross_origin(Response::new(204)));
    }
    let own = Arc::clone(chat);
    server
        .get("/home/index", move |_| page_of(&own))
        .get("/", |_| Response::new(302).header("Location", "/home/index"))
}

/// The chat of [`private_routes`], whose functions own nothing.
static ALONE: OnceLock<Arc<Chat>> = OnceLock::new();

/// As [`routes`], for workers with descriptor tables of their own.
pub(crate) fn private_routes<R: DescriptorFreeRoutes>(
    mut server: PrivateServer<R>,
    chat: &Arc<Chat>,
) -> PrivateServer<R> {
    fn here(request: &Request<'_>, respond: Respond) -> Response {
        let Some(chat) = ALONE.get() else { return Response::new(503) };
        match guarded(chat, request, respond) {
            Answer::Now(response) => response,
            Answer::Ask(_, finish) => finish(chat, request.remote(), Gathered::default()),
        }
    }
    let _ = ALONE.set(Arc::clone(chat));
    let forms = Some(FORM_BYTES);
    type Here = fn(&Request<'_>) -> Response;
    let paths: [(&str, &str, Option<u64>, Here); 6] = [
        ("GET", "/user/list", None, |request| here(request, list)),
        ("GET", "/user/online", None, |request| here(request, online)),
        ("GET", "/system/state", None, |request| here(request, state)),
        ("POST", "/user/sendMessage", forms, |request| here(request, send)),
        ("POST", "/user/sendMessageAll", forms, |request| here(request, send_to_all)),
        ("GET", "/home/index", None, |_| ALONE.get().map_or(Response::new(503), |c| page_of(c))),
    ];
    for (method, path, body_bytes, respond) in paths {
        server = server.http(method, path, body_bytes, respond);
        server = server.http("OPTIONS", path, None, |_| cross_origin(Response::new(204)));
    }
    server.get("/", |_| Response::new(302).header("Location", "/home/index"))
}

fn page_of(chat: &Chat) -> Response {
    let apps: Vec<String> = chat.settings.apps.iter().map(u32::to_string).collect();
    Response::html(PAGE.replace("{{apps}}", &apps.join(",")))
}

/// Answers whoever has the key.
fn guarded(chat: &Arc<Chat>, request: &Request<'_>, respond: Respond) -> Answer {
    let key = chat.settings.api_key.as_deref();
    let given = request.bearer_token().unwrap_or_default();
    if key.is_some_and(|key| !same_secret(key, given)) {
        return Answer::Now(respond_with(Code::Unauthorized, "null"));
    }
    respond(chat, request)
}

fn list(chat: &Arc<Chat>, request: &Request<'_>) -> Answer {
    let id = number(request.query("appID"));
    match &chat.nodes {
        None => Answer::Now(list_of(chat, id, &Gathered::default())),
        Some(_) => Answer::Ask(
            Question::List { app: id },
            Box::new(move |chat, _, gathered| list_of(chat, id, &gathered)),
        ),
    }
}

/// The users of this node and of the others.
fn list_of(chat: &Chat, id: u32, others: &Gathered) -> Response {
    let app = chat.app(id);
    let (mut data, mut listed) = (String::from("{\"userCount\":"), 0);
    let users = app.map_or(0, |app| chat.users.in_app(app)) + others.count;
    data.push_str(&users.to_string());
    data.push_str(",\"userList\":[");
    let limit = chat.settings.list_users;
    if app.is_some() {
        chat.users.each(app, limit, |_, user, _| {
            push_item(&mut data, &mut listed, user.as_str());
        });
    }
    for user in others.users.iter().take(limit.saturating_sub(listed)) {
        push_item(&mut data, &mut listed, user);
    }
    if users > limit as u64 {
        count(&chat.counters.lists_cut);
    }
    data.push_str("]}");
    respond_with(Code::Ok, &data)
}

fn online(chat: &Arc<Chat>, request: &Request<'_>) -> Answer {
    let name = request.query("userID").unwrap_or_default().into_owned();
    let app = number(request.query("appID"));
    let here = chat.is_online_in(app, &name);
    if here || chat.nodes.is_none() {
        return Answer::Now(online_of(&name, here));
    }
    let question = Question::Online { app, user: name.clone() };
    Answer::Ask(question, Box::new(move |_, _, gathered| online_of(&name, gathered.online)))
}

fn online_of(name: &str, online: bool) -> Response {
    let mut data = format!("{{\"online\":{online},\"userID\":");
    push_json(&mut data, name);
    data.push('}');
    respond_with(Code::Ok, &data)
}

fn send(chat: &Arc<Chat>, request: &Request<'_>) -> Answer {
    let Form { app, user, from, message_id: id, message } = Form::of(request);
    let mut text = String::new();
    // The original has no sender here: `from` is the recipient unless the form has `fromID`.
    let from = if from.is_empty() { &user } else { &from };
    protocol::push(&mut text, &id, "msg", &message, from, "");
    match chat.begin_send(request.remote(), app, user, id, text) {
        Ok(delivery) => Answer::Now(respond_delivery(&delivery)),
        Err(question) => Answer::Ask(
            question,
            Box::new(|chat, _, gathered| respond_delivery(&chat.end_send(&gathered))),
        ),
    }
}

fn send_to_all(chat: &Arc<Chat>, request: &Request<'_>) -> Answer {
    let Form { app: id, user, message_id, message, .. } = Form::of(request);
    let Some(app) = chat.app(id) else {
        return Answer::Now(respond_delivery(&Delivery::Failed(Code::Unauthorized.text())));
    };
    if !chat.message_ids.is_new(&message_id, chat.now_seconds()) {
        return Answer::Now(respond_delivery(&Delivery::Duplicate));
    }
    let mut text = String::new();
    protocol::push(&mut text, &message_id, "msg", &message, &user, "");
    let sender = chat.find(id, &user).map(|(_, _, socket)| socket);
    let may_be_elsewhere = sender.is_none() && UserId::new(&user).is_some();
    if chat.nodes.is_none() || !may_be_elsewhere {
        chat.used(&message_id);
        return Answer::Now(respond_delivery(&chat.send_to_all(
            request.remote(),
            app,
            sender,
            text,
        )));
    }
    // The node of the sender leaves the sender out; it is published here if there is none.
    let question = Question::SendAll { app: id, user, id: message_id, text: text.clone() };
    Answer::Ask(
        question,
        Box::new(move |chat, remote, gathered| {
            respond_delivery(&match gathered.delivery() {
                Delivery::Failed(NOT_ONLINE) => chat.send_to_all(remote, app, None, text),
                delivery => delivery,
            })
        }),
    )
}

fn state(chat: &Arc<Chat>, request: &Request<'_>) -> Answer {
    let totals = request.remote().totals();
    let cores = available_parallelism().map_or(0, usize::from);
    let users = chat.users.len();
    let mut data = format!(
        "{{\"managerInfo\":{{\"chanBroadcastLen\":0,\"chanLoginLen\":0,\"chanRegisterLen\":0,\
         \"chanUnregisterLen\":0,\"clientsLen\":{},\"usersLen\":{users}",
        totals.websockets.saturating_sub(u64::from(chat.nodes.is_some()))
    );
    if request.query("isDebug").as_deref() == Some("true") {
        let (mut names, mut sockets) = (String::new(), String::new());
        let (mut listed, mut opened) = (0, 0);
        chat.users.each(None, chat.settings.list_users, |app, user, socket| {
            let app = chat.settings.apps.get(usize::from(app)).unwrap_or(&0);
            push_item(&mut names, &mut listed, &format!("{app}_{}", user.as_str()));
            push_item(&mut sockets, &mut opened, &socket.to_string());
        });
        data.push_str(&format!(",\"clients\":[{sockets}],\"users\":[{names}]"));
    }
    data.push_str("},\"numCPU\":");
    data.push_str(&cores.to_string());
    data.push_str(",\"numGoroutine\":");
    data.push_str(&threads().map_or("null".into(), |threads| threads.to_string()));
    data.push_str(",\"counters\":{");
    let [single, together, omitted] = chat.announcements.counts();
    let others = [
        ("announced", single),
        ("announcedTogether", together),
        ("notAnnounced", omitted),
        ("duplicates", chat.message_ids.duplicates()),
        ("messageIds", chat.message_ids.len() as u64),
        ("messageIdsForgotten", chat.message_ids.forgotten()),
    ];
    for (at, (name, value)) in chat.counters.all().into_iter().chain(others).enumerate() {
        let comma = if at > 0 { "," } else { "" };
        data.push_str(&format!("{comma}\"{name}\":{value}"));
    }
    if let Some(nodes) = &chat.nodes {
        let (names, counters) = nodes.describe();
        for (name, value) in counters {
            data.push_str(&format!(",\"{name}\":{value}"));
        }
        data.push_str("},\"nodes\":{\"others\":[");
        let mut listed = 0;
        for name in &names {
            push_item(&mut data, &mut listed, name);
        }
        data.push_str("],\"trouble\":");
        match request.remote().broker().and_then(|broker| broker.trouble) {
            Some(trouble) => push_json(&mut data, &trouble),
            None => data.push_str("null"),
        }
    }
    data.push_str("}}");
    Answer::Now(respond_with(Code::Ok, &data))
}

/// Threads of this process: what comes nearest to goroutines.
fn threads() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:"))?.trim().parse().ok()
}

fn push_item(list: &mut String, items: &mut usize, item: &str) {
    if *items > 0 {
        list.push(',');
    }
    *items += 1;
    push_json(list, item);
}

fn number(text: Option<Cow<'_, str>>) -> u32 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn respond_delivery(delivery: &Delivery) -> Response {
    let data = match delivery {
        Delivery::Sent => "{\"sendResults\":true}".to_owned(),
        Delivery::Duplicate => "{}".to_owned(),
        Delivery::Failed(why) => {
            let mut data = String::from("{\"sendResults\":false,\"sendResultsErr\":");
            push_json(&mut data, why);
            data.push('}');
            data
        }
    };
    respond_with(Code::Ok, &data)
}

fn respond_with(code: Code, data: &str) -> Response {
    let mut body = format!("{{\"code\":{},\"msg\":", code as u16);
    push_json(&mut body, code.text());
    body.push_str(",\"data\":");
    body.push_str(data);
    body.push('}');
    cross_origin(Response::json(body))
}

/// Lets pages of other origins read the answer, without their cookies.
fn cross_origin(response: Response) -> Response {
    response
        .header("Access-Control-Allow-Origin", "*")
        .header("Access-Control-Allow-Methods", METHODS)
        .header("Access-Control-Allow-Headers", HEADERS)
}

/// The fields of a form, as `application/x-www-form-urlencoded`.
#[derive(Default, PartialEq, Debug)]
struct Form {
    app: u32,
    user: String,
    from: String,
    message_id: String,
    message: String,
}

impl Form {
    fn of(request: &Request<'_>) -> Form {
        Form::read(request.body())
    }

    fn read(body: &[u8]) -> Form {
        let mut form = Form::default();
        for pair in body.split(|byte| *byte == b'&') {
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let (name, value) =
                (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let value = decode(value);
            match name {
                b"appID" => form.app = value.parse().unwrap_or(0),
                b"userID" => form.user = value,
                b"fromID" => form.from = value,
                b"msgID" => form.message_id = value,
                b"message" => form.message = value,
                _ => {}
            }
        }
        form
    }
}

/// Percent-decodes a value; what is not UTF-8 is replaced.
fn decode(value: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let escaped = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(*byte),
        }
    }
    match String::from_utf8_lossy(&decoded) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read() {
        let form = Form::read(b"appID=101&userID=%E9%A9%AC&msgID=1%2b&message=a+b%zz%&x&=");
        let expected = Form {
            app: 101,
            user: "马".into(),
            from: String::new(),
            message_id: "1+".into(),
            message: "a b%zz%".into(),
        };
        assert_eq!(form, expected);
        assert_eq!(Form::read(b"appID=x&message=%FF").message, "\u{fffd}");
        assert_eq!(Form::read(b""), Form::default());
    }
}
