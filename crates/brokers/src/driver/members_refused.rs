//! Members of topics whose key the broker refuses, or that no node has written.

use super::Driver;
use crate::figures::Counters;
use crate::members::{Stored, Write};
use crate::transport::{Channel, Fault, Link, Rejected};

impl Driver {
    /// Writes members. What the broker refuses for one topic is left out, and what no node has written is deleted first.
    pub(super) async fn write_members(
        &self,
        link: &impl Link,
        writes: &[Write],
    ) -> Result<(), Fault> {
        let results = link.write_members(writes).await?;
        let mut again = Vec::new();
        for (write, result) in writes.iter().zip(results) {
            match result {
                Ok(()) => {}
                Err(why) if why.is_invalid => again.push(write.clone()),
                Err(why) => self.members_rejected(&why),
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        self.reset_members(link, again.iter().map(|write| write.key.clone()).collect()).await?;
        let results = link.write_members(&again).await?;
        results.into_iter().filter_map(Result::err).for_each(|why| self.members_rejected(&why));
        Ok(())
    }

    /// Loads members. Topics that the broker refuses have none, and what no node has written is deleted.
    pub(super) async fn stored_members(
        &self,
        link: &impl Link,
        wanted: &[(String, Channel)],
    ) -> Result<Vec<Stored>, Fault> {
        let results = link.load_members(wanted).await?;
        let (mut all, mut invalid) = (Vec::with_capacity(results.len()), Vec::new());
        for ((key, _), result) in wanted.iter().zip(results) {
            match result {
                Ok(stored) => all.push(stored),
                Err(why) => {
                    if why.is_invalid {
                        invalid.push(key.clone());
                    } else {
                        self.members_rejected(&why);
                    }
                    all.push(Stored::default());
                }
            }
        }
        if !invalid.is_empty() {
            self.reset_members(link, invalid).await?;
        }
        Ok(all)
    }

    fn members_rejected(&self, why: &Rejected) {
        Counters::add(&self.broker.counters.rejected, 1);
        self.log_rejected(&format!("broker refuses members of a topic, others go on: {}", why.why));
    }

    /// Each node writes its members again when it finds none of them.
    async fn reset_members(&self, link: &impl Link, keys: Vec<String>) -> Result<(), Fault> {
        link.reset_members(&keys).await?;
        Counters::add(&self.broker.counters.reset, keys.len());
        let named = keys.first().map_or("", String::as_str);
        self.log_rejected(&format!(
            "members deleted, as their content was not written by a node: {named}"
        ));
        Ok(())
    }
}
