//! The HTTP API, with gowebsocket's paths and shapes.

use std::borrow::Cow;
use std::fs;
use std::sync::Arc;
use std::thread::available_parallelism;

use standfast::{Request, Response, Routes, Server};

use crate::chat::{Chat, Delivery, count, same_secret};
use crate::codes::Code;
use crate::protocol::{self, push_json};
use crate::users::UserId;

const PAGE: &str = include_str!("page.html");
/// Longest form in bytes.
const FORM_BYTES: u64 = 256 * 1024;
const METHODS: &str = "GET, POST, OPTIONS";
const HEADERS: &str = "Authorization, Content-Type";

/// The paths of plain requests, for a server.
pub(crate) fn routes<R: Routes>(mut server: Server<R>, chat: &Arc<Chat>) -> Server<R> {
    type Answer = fn(&Chat, &Request<'_>) -> Response;
    let gets: [(&str, Answer); 3] =
        [("/user/list", list), ("/user/online", online), ("/system/state", state)];
    for (path, answer) in gets {
        let own = Arc::clone(chat);
        server = server.get(path, move |request| guarded(&own, request, answer));
        server = server.http("OPTIONS", path, None, |_| cross_origin(Response::new(204)));
    }
    let posts: [(&str, Answer); 2] =
        [("/user/sendMessage", send), ("/user/sendMessageAll", send_to_all)];
    for (path, answer) in posts {
        let own = Arc::clone(chat);
        server = server.post(path, FORM_BYTES, move |request| guarded(&own, request, answer));
        server = server.http("OPTIONS", path, None, |_| cross_origin(Response::new(204)));
    }
    let apps: Vec<String> = chat.settings.apps.iter().map(u32::to_string).collect();
    let page = PAGE.replace("{{apps}}", &apps.join(","));
    server
        .get("/home/index", move |_| Response::html(page.clone()))
        .get("/", |_| Response::new(302).header("Location", "/home/index"))
}

/// Answers whoever has the key.
fn guarded(
    chat: &Chat,
    request: &Request<'_>,
    answer: fn(&Chat, &Request<'_>) -> Response,
) -> Response {
    let key = chat.settings.api_key.as_deref();
    let given = request.bearer_token().unwrap_or_default();
    if key.is_some_and(|key| !same_secret(key, given)) {
        return respond(Code::Unauthorized, "null");
    }
    answer(chat, request)
}

fn list(chat: &Chat, request: &Request<'_>) -> Response {
    let app = chat.app(number(request.query("appID")));
    let (mut data, mut listed) = (String::from("{\"userCount\":"), 0);
    let users = app.map_or(0, |app| chat.users.in_app(app));
    data.push_str(&users.to_string());
    data.push_str(",\"userList\":[");
    if app.is_some() {
        chat.users.each(app, chat.settings.list_users, |_, user, _| {
            push_item(&mut data, &mut listed, user.as_str());
        });
    }
    if users > chat.settings.list_users as u64 {
        count(&chat.counters.lists_cut);
    }
    data.push_str("]}");
    respond(Code::Ok, &data)
}

fn online(chat: &Chat, request: &Request<'_>) -> Response {
    let name = request.query("userID").unwrap_or_default();
    let online = UserId::new(&name).is_some_and(|user| match number(request.query("appID")) {
        0 => (0..chat.settings.apps.len()).any(|app| chat.is_online(app as u8, &user)),
        app => chat.app(app).is_some_and(|app| chat.is_online(app, &user)),
    });
    let mut data = format!("{{\"online\":{online},\"userID\":");
    push_json(&mut data, &name);
    data.push('}');
    respond(Code::Ok, &data)
}

fn send(chat: &Chat, request: &Request<'_>) -> Response {
    let form = Form::of(request);
    if !chat.message_ids.is_new(&form.message_id, chat.now_seconds()) {
        return respond_delivery(&Delivery::Duplicate);
    }
    let mut text = String::new();
    // The original has no sender here: `from` is the recipient unless the form has `fromID`.
    let from = if form.from.is_empty() { &form.user } else { &form.from };
    protocol::push(&mut text, &form.message_id, "msg", &form.message, from, "");
    let delivery = match (chat.app(form.app), UserId::new(&form.user)) {
        (Some(app), Some(user)) => chat.send(request.remote(), app, &user, &text),
        _ => Delivery::Failed(crate::chat::NOT_ONLINE),
    };
    respond_delivery(&delivery)
}

fn send_to_all(chat: &Chat, request: &Request<'_>) -> Response {
    let form = Form::of(request);
    if !chat.message_ids.is_new(&form.message_id, chat.now_seconds()) {
        return respond_delivery(&Delivery::Duplicate);
    }
    let Some(app) = chat.app(form.app) else {
        return respond_delivery(&Delivery::Failed(Code::Unauthorized.text()));
    };
    let mut text = String::new();
    protocol::push(&mut text, &form.message_id, "msg", &form.message, &form.user, "");
    let sender = UserId::new(&form.user).and_then(|user| chat.users.find(app, &user));
    let socket = sender.map(|sender| sender.socket);
    respond_delivery(&chat.send_to_all(request.remote(), app, socket, text))
}

fn state(chat: &Chat, request: &Request<'_>) -> Response {
    let totals = request.remote().totals();
    let cores = available_parallelism().map_or(0, usize::from);
    let users = chat.users.len();
    let mut data = format!(
        "{{\"managerInfo\":{{\"chanBroadcastLen\":0,\"chanLoginLen\":0,\"chanRegisterLen\":0,\
         \"chanUnregisterLen\":0,\"clientsLen\":{},\"usersLen\":{users}",
        totals.websockets
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
    data.push_str("}}");
    respond(Code::Ok, &data)
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
    respond(Code::Ok, &data)
}

fn respond(code: Code, data: &str) -> Response {
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
