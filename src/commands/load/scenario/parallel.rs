//! Steps whose requests are sent at the same time: `[[flows.steps.parallel]]`.

use anyhow::Result;
use load::scenario::STEPS_MAX;

use super::keys::{PARALLEL, STEP};
use super::steps::{Reader, on_failure, repeat, tags};
use super::tables::Table;
use crate::units;

/// Keys of a step that apply to all its requests together.
const TOGETHER: [&str; 8] =
    ["parallel", "tags", "think", "once", "when", "for_each", "repeat", "on_failure"];

impl Reader<'_> {
    /// Reads the requests of a step, which follow each other in the list of steps.
    pub(super) fn parallel(&mut self, table: &Table<'_>) -> Result<()> {
        let is_of_one = |key: &&'static str| !TOGETHER.contains(key) && table.has(key);
        if let Some(key) = STEP.keys.iter().map(|key| key.name).find(is_of_one) {
            let what = format!("parallel cannot be combined with {key}: set it in its requests");
            return Err(table.doc.wrong(table.at, what));
        }
        // Reports keys that a request of a group cannot have.
        let checked = table.tables("parallel", &PARALLEL)?;
        let has_grpc = |request: &&Table<'_>| request.has("grpc");
        let requests = checked.iter().filter(|request| !has_grpc(request));
        requests.into_iter().try_for_each(|request| request.required("url").map(drop))?;
        let count = checked.len();
        let requests = table.tables("parallel", &STEP)?;
        let Some(parallel) = u8::try_from(count).ok().filter(|_| count <= STEPS_MAX) else {
            return Err(table.doc.wrong(table.at, format!("more than {STEPS_MAX} steps")));
        };
        if requests.is_empty() {
            return Err(table.doc.wrong(table.at, "parallel needs at least one request"));
        }
        let (when, items) = (self.condition(table)?, self.items(table)?);
        let think = table.parsed("think", units::duration_range)?.or(self.think);
        let think = think.filter(|(_, most)| !most.is_zero());
        let (repeat, common) = (repeat(table)?, tags(table)?);
        let once = table.boolean("once")?.unwrap_or(false);
        let continues = on_failure(table)?.unwrap_or(self.continues);
        // What one request captures is known after all of them.
        let before = self.names.captures.clone();
        let mut after = before.clone();
        let first = self.steps.len();
        for table in &requests {
            self.names.captures.clone_from(&before);
            let mut step = self.step(table)?;
            (step.once, step.think, step.continues) = (once, None, continues);
            for (name, value) in &common {
                step.tags.entry(name.clone()).or_insert_with(|| value.clone());
            }
            let captures: Vec<usize> = step.captures.iter().map(|capture| capture.slot).collect();
            let mut others = self.steps.iter().skip(first).flat_map(|step| &step.captures);
            if let Some(twice) = others.find(|capture| captures.contains(&capture.slot)) {
                let what = format!("two requests of one step capture {}", twice.name);
                return Err(table.doc.wrong(table.at, what));
            }
            after.resize(self.names.captures.len().max(after.len()), String::new());
            for (known, name) in after.iter_mut().zip(&self.names.captures) {
                if known.is_empty() {
                    known.clone_from(name);
                }
            }
            self.steps.push(step);
        }
        self.names.captures = after;
        if let Some(step) = self.steps.get_mut(first) {
            (step.parallel, step.think, step.repeat) = (parallel, think, repeat);
            (step.when, step.items) = (when, items);
        }
        Ok(())
    }
}
