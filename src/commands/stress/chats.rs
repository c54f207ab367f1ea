//! The fork's group chats with senders and receivers, where `--message` addresses the recipient. The
//! flags are turned into a scenario ([`load::scenario`]).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use load::requests::{Requests, Web, drive_requests};
use load::scenario::{
    Action, BadTemplate, Feed, Flow, Group, GroupKind, Names, Order, Role, Scenario, Step, Tallies,
    Template, TemplateContext, Users,
};
use load::{ConnectOptions, Row, judge};

use super::flags::{Args, is_true};
use super::sockets::{self, VARIABLES};
use super::table::Table;
use super::{Wait, code, headers, skip_certificate_checks, write};
use crate::commands::load::{clock, row_line, warn_unresolved};
use crate::output;

/// Message rate: the fork waits 1 ms between messages to receivers.
const MESSAGES_PER_SECOND: u64 = 1_000;
/// Delay between connects for -connectionmode 1 and 2.
const APART: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];
/// Repetitions in a run that is limited by time.
const WITHOUT_END: u32 = u32::MAX;
/// Silence after the last send after which missing messages are lost.
const QUIET: Duration = Duration::from_secs(2);
/// Template that every message must contain.
const STAMP: &str = "{{stamp}}";

/// Returns whether the flags describe a group chat.
///
/// # Errors
/// A message without a stamp, which receivers could not check.
pub(super) fn is_group_chat(args: &Args) -> Result<bool> {
    let to_others = args.clients > 0 || is_true(&args.toclients) || is_true(&args.iscollectmsg);
    let Some(message) = args.message.as_ref().filter(|_| to_others) else { return Ok(false) };
    if !message.contains(STAMP) {
        bail!("--message needs {STAMP} with receivers: each receipt is checked by it");
    }
    Ok(true)
}

/// Runs the command.
///
/// # Errors
/// Invalid flags.
pub(super) fn run(args: &Args, url: &str) -> Result<ExitCode> {
    let mut notes = Vec::new();
    let (scenario, requests) = plan(args, url, &mut notes)?;
    notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    let tallies = Tallies::new(&scenario, &requests, false);
    let (own, shared) = (tallies.clone(), Arc::new(scenario));
    let clock = clock();
    let script = move |part| {
        Users::new(Arc::clone(&shared), part, own.clone(), clock.now_ns ^ clock.now_ms, clock)
    };
    let table = Table::new(args.users, super::LiveStats::default(), args.quiet());
    let row = |row: &Row| {
        if !row.is_mark {
            table.print(&format!("{}\n", row_line(row)));
        }
    };
    let mut wait = Wait::new(args);
    let mut outcome = drive_requests(&requests, Web::new, script, row, |time| wait.wait(time))?;
    tallies.add_groups_to(&mut outcome);
    judge(&mut outcome, &[]);
    table.print(&outcome.text(output::bars(args.json.as_deref())).to_string());
    write(args, &outcome)?;
    Ok(code(outcome.reasons.is_empty(), outcome.interrupted && wait.by_user))
}

/// Kind, size and number of groups.
struct Shape {
    kind: GroupKind,
    size: u64,
    groups: u64,
    each: bool,
}

fn shape(args: &Args) -> Result<Shape> {
    let (all_send, c) = (is_true(&args.issenders), args.users);
    let of = |kind, size, groups| Shape { kind, size, groups, each: false };
    let shape = match args.clients {
        // Every member receives.
        _ if is_true(&args.toclients) => Shape {
            each: true,
            ..of(if all_send { GroupKind::ManyToMany } else { GroupKind::OneToMany }, c, 1)
        },
        // A group chat of all users.
        _ if is_true(&args.iscollectmsg) && all_send => of(GroupKind::ManyToMany, c, 1),
        _ if is_true(&args.iscollectmsg) => of(GroupKind::OneToMany, c, 1),
        2 if all_send => of(GroupKind::OneToOne, 2, c),
        2 => of(GroupKind::OneToMany, c + 1, 1),
        _ if all_send && c > 1 => of(GroupKind::ManyToOne, c + 1, 1),
        _ => of(GroupKind::OneToOne, 2, 1),
    };
    if shape.size < 2 {
        bail!("invalid -c {c}: a group chat needs at least 2 users");
    }
    Ok(shape)
}

fn plan(args: &Args, url: &str, notes: &mut Vec<String>) -> Result<(Scenario, Requests)> {
    let Shape { kind, size, groups, each } = shape(args)?;
    let users = size * groups;
    notes.push(format!(
        "{groups} groups of {size} users, {kind}: each receipt is checked by its stamp, regardless of -v"
    ));
    let mut endpoint = ConnectOptions::direct().websocket(url).map_err(anyhow::Error::msg)?;
    let path = std::mem::take(&mut endpoint.path);
    let mut endpoints = vec![endpoint];
    warn_unresolved(&endpoints, "connections");
    skip_certificate_checks(&mut endpoints, notes)?;
    let size = u32::try_from(size).map_err(|_| anyhow!("invalid -c: too many users"))?;
    let late = args.request_timeout();
    let group = Group { kind, size, own: false, each, late, quiet: QUIET };
    let pairs = group.pairs(users);
    if pairs > load::scenario::GROUP_PAIRS_MAX {
        bail!("invalid -c: {pairs} pairs of sender and receiver are too many");
    }
    let names = names(args, &group, users, notes)?;
    let maker = Maker { args, path: &path, names: &names, late };
    let (mut steps, mut flows) = (Vec::new(), Vec::new());
    let (of_first, of_others) = (group.role(0), group.role(1));
    let roles = if of_first == of_others { vec![of_first] } else { vec![of_first, of_others] };
    for role in roles {
        let first = steps.len();
        steps.extend(maker.steps(role, each)?);
        flows.push(Flow {
            name: format!("{role:?}").to_lowercase(),
            weight: 1,
            steps: first..steps.len(),
            role: Some(role),
            rate: Some(MESSAGES_PER_SECOND),
            ..Flow::default()
        });
    }
    let apart = APART.get(usize::from(args.connectionmode) - 1).copied().unwrap_or_default();
    let arrive = match args.step {
        0 => (1, apart),
        step => (step, Duration::from_secs(args.interval)),
    };
    let scenario = Scenario {
        endpoints: endpoints.clone(),
        flows,
        steps,
        feeds: names.feeds,
        passes: Some(1),
        group: Some(group),
        arrive: Some(arrive),
        ..Scenario::default()
    };
    let requests = Requests {
        duration: args.duration(),
        requests: Some(u64::MAX >> 1),
        timeout: late,
        ..Requests::new(endpoints, users)
    };
    Ok((scenario, requests))
}

/// Returns a feed with a row per user: its values as sender and as receiver.
fn names(args: &Args, group: &Group, users: u64, notes: &mut Vec<String>) -> Result<Names> {
    let Some(columns) = sockets::columns(args, notes)? else { return Ok(Names::default()) };
    let mut text = format!("{}\n", VARIABLES.join(","));
    let size = u64::from(group.size);
    for user in 0..users {
        let (of, member) = (user / size, user % size);
        // Numbers of the sender and receiver row.
        let (sender, receiver) = match group.kind {
            GroupKind::OneToOne => (of, of),
            GroupKind::OneToMany => (0, member.saturating_sub(u64::from(!group.each))),
            GroupKind::ManyToOne => (member.saturating_sub(1), 0),
            GroupKind::ManyToMany => (member, member),
        };
        let cells =
            columns.iter().zip([sender, sender, receiver, receiver]).map(|(column, row)| {
                let at = row as usize % column.len().max(1);
                let value = column.get(at).map_or("", String::as_str);
                format!("\"{}\"", value.replace('"', "\"\""))
            });
        text += &format!("{}\n", cells.collect::<Vec<_>>().join(","));
    }
    let mut feed = Feed::from_csv("v", text.as_bytes()).map_err(anyhow::Error::msg)?;
    feed.order = Order::PerUser;
    Ok(Names { feeds: vec![Arc::new(feed)], ..Names::default() })
}

/// Builds the steps of a role.
struct Maker<'a> {
    args: &'a Args,
    path: &'a str,
    names: &'a Names,
    late: Duration,
}

impl Maker<'_> {
    fn steps(&self, role: Role, each: bool) -> Result<Vec<Step>> {
        let args = self.args;
        let mut connect = self.step("connect", Action::Connect)?;
        connect.target = self.template(&self.filled(self.path, role), TemplateContext::Target)?;
        for (name, value) in headers(args).iter().map(|(n, v)| (n.as_str(), v.as_str())).chain([
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
        ]) {
            connect.headers.push((name.to_owned(), self.template(value, TemplateContext::Header)?));
        }
        let mut meet = self.step("meet", Action::Meet)?;
        // All users wait for the last one to arrive.
        meet.limit = Some(self.late.max(Duration::from_secs(60)).saturating_add(self.arrival()));
        let mut steps = vec![connect, meet];
        if role == Role::Receiver {
            steps.push(self.step("receive", Action::Stay)?);
            return Ok(steps);
        }
        let message = args.message.as_deref().unwrap_or(STAMP);
        let mut send = self.step("send", Action::Send { binary: false })?;
        send.body = Some(self.template(&self.filled(message, role), TemplateContext::Body)?);
        (send.stamped, send.each) = (true, each);
        let messages =
            u32::try_from(args.each).map_err(|_| anyhow!("invalid -n: too many messages"))?;
        send.repeat = if args.duration().is_some() { WITHOUT_END } else { messages };
        if let Some(connect) = steps.first_mut() {
            connect.think = Some((args.pause, args.pause)).filter(|(time, _)| !time.is_zero());
        }
        steps.push(send);
        Ok(steps)
    }

    /// Returns the time until all users have started to connect.
    fn arrival(&self) -> Duration {
        let steps = match self.args.step {
            0 => return Duration::from_millis(20).saturating_mul(self.args.users as u32 * 2 + 1),
            step => (self.args.users * 2 + 1).div_ceil(step),
        };
        Duration::from_secs(self.args.interval.saturating_mul(steps))
    }

    /// Replaces the fork's variables with templates. A receiver's URL uses its own values for both.
    fn filled(&self, text: &str, role: Role) -> String {
        if self.names.feeds.is_empty() {
            return text.to_owned();
        }
        let values: [(&str, &str); 4] = match role {
            Role::Receiver => [
                ("{sendtoken}", "{{v.recvtoken}}"),
                ("{sendid}", "{{v.recvid}}"),
                ("{recvtoken}", "{{v.recvtoken}}"),
                ("{recvid}", "{{v.recvid}}"),
            ],
            Role::Sender | Role::Both => [
                ("{sendtoken}", "{{v.sendtoken}}"),
                ("{sendid}", "{{v.sendid}}"),
                ("{recvtoken}", "{{to v.recvtoken}}"),
                ("{recvid}", "{{to v.recvid}}"),
            ],
        };
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    fn template(&self, text: &str, place: TemplateContext) -> Result<Template> {
        Template::compile(text, place, self.names).map_err(|error| match error {
            BadTemplate::Invalid(said) => anyhow!("{said}"),
            BadTemplate::Unknown { name, .. } => {
                anyhow!("unknown template {{{{{name}}}}}: expected {{{{stamp}}}}, {{{{user}}}}, {{{{to}}}} or others of scenarios")
            }
        })
    }

    fn step(&self, name: &str, action: Action) -> Result<Step> {
        let target = self.template("/", TemplateContext::Target)?;
        Ok(Step::new(name.to_owned(), 0, action, target))
    }
}
