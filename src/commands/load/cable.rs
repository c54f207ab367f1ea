//! `cable://`: URLs and flags for Action Cable clients, and their messages and publications.

use std::borrow::Cow;
use std::collections::HashSet;

use action_cable::{Channel, Command, Protocol};
use anyhow::{Context, Result, bail};
use load::{Churn, Content};

use super::flags::{Args, Bytes};

/// The default of `--channel`.
const CHANNEL: &str = r#"{"channel":"$pubsub","stream_name":"load"}"#;
/// Path for URLs without one, as in Rails.
const PATH: &str = "/cable";
/// Limit of channels after ranges are expanded.
const CHANNELS_MAX: usize = 100_000;

/// The Action Cable clients that the flags describe.
pub(super) struct Clients {
    pub(super) identifiers: Vec<String>,
    protocol: Protocol,
}

/// Returns whether a URL is of Action Cable.
pub(super) fn is_cable(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("cable" | "cables"))
}

/// Converts `cable://` and `cables://` URLs to WebSocket URLs; the flag tells whether they were such.
pub(super) fn to_websocket(urls: Vec<String>) -> Result<(Vec<String>, bool)> {
    let replace = |url: &String| {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "cable" => "ws",
            "cables" => "wss",
            _ => return None,
        };
        let path = if rest.contains(['/', '?']) { "" } else { PATH };
        Some(format!("{scheme}://{rest}{path}"))
    };
    let cable: Vec<String> = urls.iter().filter_map(replace).collect();
    match cable.len() {
        0 => Ok((urls, false)),
        all if all == urls.len() => Ok((cable, true)),
        _ => bail!("cannot mix cable:// and other URLs in one run"),
    }
}

impl Clients {
    /// Returns `None` if the URLs are not `cable://`.
    pub(super) fn new(args: &Args, is_cable: bool) -> Result<Option<Clients>> {
        if !is_cable {
            return Ok(None);
        }
        let mut identifiers = Vec::new();
        for text in &args.channel {
            expand(text, &mut identifiers)?;
        }
        for identifier in &identifiers {
            action_cable::channel(identifier).with_context(|| {
                format!("invalid --channel {identifier}: expected JSON such as {CHANNEL}")
            })?;
        }
        if identifiers.is_empty() {
            identifiers.push(CHANNEL.to_owned());
        }
        let protocol = if args.cable_extended { Protocol::V1_EXT } else { Protocol::V1 };
        if args.fanout.is_some() && identifiers.len() > 1 && args.churn.is_none() {
            bail!("--fanout publishes to one stream: give one --channel, or add --churn");
        }
        Ok(Some(Clients { identifiers, protocol }))
    }

    /// Returns the subprotocols to offer, in the order of a browser client.
    pub(super) fn protocols(&self, others: &[String]) -> Vec<String> {
        let own = |name: &str| name.to_owned();
        let others = others.iter().cloned();
        let first = std::iter::once(own(self.protocol.name()));
        first.chain(others).chain(std::iter::once(own(action_cable::UNSUPPORTED))).collect()
    }

    /// Returns the stream of the only channel, if its identifier names it.
    pub(super) fn public_stream(&self) -> Result<String> {
        let identifier = self.identifiers.first().map(String::as_str).unwrap_or_default();
        match action_cable::channel(identifier) {
            Ok(Channel::PubSubPublic(stream)) => Ok(stream.into_owned()),
            _ => bail!("--topic NAME is required: {identifier} does not name its stream"),
        }
    }

    /// Returns the churn with the streams to publish to.
    pub(super) fn churn(&self, args: &Args) -> Result<Option<Churn>> {
        let Some(rate) = args.churn else { return Ok(None) };
        let mut streams = Vec::with_capacity(self.identifiers.len());
        for identifier in &self.identifiers {
            let Ok(Channel::PubSubPublic(stream)) = action_cable::channel(identifier) else {
                bail!("--churn: {identifier} does not name its stream");
            };
            streams.push(stream.into_owned());
        }
        let different = streams.iter().collect::<HashSet<_>>().len();
        if different < streams.len() {
            bail!(
                "--churn: two channels name the same stream, so their messages cannot be told apart"
            );
        }
        if streams.len() < args.publishers as usize {
            bail!("--publishers {} exceeds the number of streams", args.publishers);
        }
        Ok(Some(Churn { rate, streams }))
    }

    /// What performs `--message` on the only channel.
    pub(super) fn performed(&self, args: &Args) -> Result<Content> {
        let [identifier] = self.identifiers.as_slice() else {
            bail!("--message needs exactly one --channel");
        };
        let data = args.message.as_ref().and_then(|Bytes(data)| std::str::from_utf8(data).ok());
        let object = |text: &&str| {
            serde_json::from_str::<serde_json::Value>(text).is_ok_and(|value| value.is_object())
        };
        let Some(action) = data.filter(object).filter(|_| !args.binary) else {
            bail!(
                "with cable:// messages are performed on the channel: set \
                 --message '{{\"action\":\"echo\"}}' without --binary"
            );
        };
        let (identifier, action) = (Cow::Borrowed(identifier.as_str()), Cow::Borrowed(action));
        let mut data = Vec::new();
        Command::Message { identifier, data: action }.encode(&mut data);
        Ok(Content { data, binary: false, any_answer: true })
    }
}

/// Adds every text that `text` stands for: `{1..4}` is each number of a range, and any other brace
/// itself.
fn expand(text: &str, all: &mut Vec<String>) -> Result<()> {
    let Some((before, first, last, after)) = range(text) else {
        if all.len() >= CHANNELS_MAX {
            bail!("--channel expands to more than {CHANNELS_MAX} channels");
        }
        all.push(text.to_owned());
        return Ok(());
    };
    for number in first..=last {
        expand(&format!("{before}{number}{after}"), all)?;
    }
    Ok(())
}

/// The first range in a text, with what stands around it.
fn range(text: &str) -> Option<(&str, u32, u32, &str)> {
    text.match_indices('{').find_map(|(at, _)| {
        let (before, rest) = text.split_at(at);
        let (range, after) = rest.strip_prefix('{')?.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some((before, first, last, after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_cable_is_one_of_a_websocket() {
        for (url, becomes) in [
            ("cable://127.0.0.1:80", "ws://127.0.0.1:80/cable"),
            ("CABLES://a", "wss://a/cable"),
            ("cable://a/", "ws://a/"),
            ("cable://a?jid=1", "ws://a?jid=1"),
            ("cables://a/live", "wss://a/live"),
        ] {
            let (urls, is_cable) = to_websocket(vec![url.to_owned()]).unwrap();
            assert_eq!((urls, is_cable), (vec![becomes.to_owned()], true));
        }
        let plain = vec!["ws://a/".to_owned()];
        assert_eq!(to_websocket(plain.clone()).unwrap(), (plain, false));
    }

    #[test]
    fn ranges_stand_for_channels_and_other_braces_for_themselves() {
        let mut all = Vec::new();
        expand(r#"{"channel":"A","room":"{1..2}-{8..9}"}"#, &mut all).unwrap();
        let rooms = ["1-8", "1-9", "2-8", "2-9"];
        assert_eq!(all, rooms.map(|room| format!(r#"{{"channel":"A","room":"{room}"}}"#)));
        for text in [r#"{"channel":"A"}"#, "{3..1}", "{a..b}", "{1..2", "{}"] {
            let mut all = Vec::new();
            expand(text, &mut all).unwrap();
            assert_eq!(all, [text]);
        }
        assert!(expand("{0..100000}", &mut Vec::new()).is_err());
    }
}
