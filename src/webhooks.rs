//! The flags of webhooks: which events are posted where, and how much may wait.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use serve::{Auth, EventKinds, PostUrl, WebhookConfig};

use crate::application::tls_to;
use crate::auth::{SecretSource, secret_source};
use crate::units;

const HEADING: &str = "Webhooks";

/// Receivers at most: each has a thread.
const URLS_MAX: usize = 8;

/// The flags.
#[derive(clap::Args, Debug)]
#[group(id = "webhooks")]
pub(crate) struct Flags {
    /// Post events of connections and topics to this http:// or https:// URL, in signed batches. Repeatable
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = HEADING)]
    webhook_url: Vec<PostUrl>,
    /// Secret that signs webhooks, or file:PATH, or none [default: derived from --secret]
    #[arg(long, value_name = "SECRET", value_parser = secret_source, help_heading = HEADING)]
    webhook_secret: Option<SecretSource>,
    /// Events that are posted: connect, disconnect, subscribe, unsubscribe; occupied and vacant: the first
    /// subscriber of a topic, and the end of the last [default: all]
    #[arg(long, value_name = "EVENT", value_delimiter = ',', value_parser = event,
        help_heading = HEADING)]
    webhook_events: Vec<String>,
    /// Maximum events of a batch
    #[arg(long, value_name = "N", default_value = "100", value_parser = units::positive_count,
        help_heading = HEADING)]
    webhook_batch: u64,
    /// Maximum bytes of a batch
    #[arg(long, value_name = "SIZE", default_value = "256KiB", value_parser = units::size,
        help_heading = HEADING)]
    webhook_batch_bytes: u64,
    /// How long an event waits for others of its batch
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::duration,
        help_heading = HEADING)]
    webhook_window: Duration,
    /// Time for a request
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::positive_duration,
        help_heading = HEADING)]
    webhook_timeout: Duration,
    /// Maximum memory of the events that wait for one receiver; then the oldest are dropped
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = units::size,
        help_heading = HEADING)]
    webhook_queue_bytes: u64,
    /// Drop events that no receiver accepts for this time
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::positive_duration,
        help_heading = HEADING)]
    webhook_max_age: Duration,
    /// Report a topic as vacant after this time without a subscriber
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration,
        help_heading = HEADING)]
    webhook_vacant_delay: Duration,
    /// Trust receivers whose certificate is of a CA in this PEM file, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    webhook_tls_ca: Option<PathBuf>,
}

impl Flags {
    /// The webhooks, if there is a receiver.
    ///
    /// # Errors
    /// A file that cannot be read, or more receivers than there may be.
    pub(crate) fn config(&self, auth: &Auth) -> Result<Option<WebhookConfig>> {
        if self.webhook_url.is_empty() {
            return Ok(None);
        }
        if self.webhook_url.len() > URLS_MAX {
            bail!("--webhook-url: expected at most {URLS_MAX}, found {}", self.webhook_url.len());
        }
        let own = self.webhook_secret.as_ref();
        let secret = match own.map(|source| source.read("webhook-secret")).transpose()? {
            Some(own) => Some(own).filter(|own| !own.is_none()),
            None => auth.webhook_key(),
        };
        let tls = |url: &PostUrl| {
            let ca = self.webhook_tls_ca.as_deref();
            url.tls.then(|| tls_to(&url.host.name, ("webhook-tls-ca", ca), false)).transpose()
        };
        let events = match self.webhook_events.is_empty() {
            true => EventKinds::ALL,
            false => EventKinds::named(self.webhook_events.iter().map(String::as_str))
                .unwrap_or(EventKinds::ALL),
        };
        let size = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Some(WebhookConfig {
            urls: self.webhook_url.clone(),
            tls: self.webhook_url.iter().map(tls).collect::<Result<_>>()?,
            secret,
            events,
            batch_events: size(self.webhook_batch),
            batch_bytes: size(self.webhook_batch_bytes),
            window: self.webhook_window,
            timeout: self.webhook_timeout,
            queue_bytes: size(self.webhook_queue_bytes),
            max_age: self.webhook_max_age,
            vacant_delay: self.webhook_vacant_delay,
        }))
    }
}

fn event(text: &str) -> Result<String, String> {
    match EventKinds::named([text]) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            let names: Vec<&str> = EventKinds::names().collect();
            Err(format!("expected {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_named() {
        assert_eq!(event("vacant"), Ok("vacant".to_owned()));
        let error = event("message").unwrap_err();
        assert!(error.contains("connect") && error.contains("occupied"), "{error}");
    }
}
