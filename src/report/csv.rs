//! [`Csv`]: a file with one line per second of a run, written during the run.

use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result};
use load::Row;

const TITLES: &str = "elapsed_seconds,phase,open,connects_failed,closed,sent,received,per_second,\
                      p50_ms,p90_ms,p95_ms,p99_ms,p999_ms,max_ms,errors\n";

/// A CSV file. A write error is reported at the end, not during the run.
pub(crate) struct Csv {
    name: String,
    file: File,
    written: io::Result<()>,
}

impl Csv {
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn create(name: &str) -> Result<Csv> {
        let cannot = || format!("cannot write {name}");
        let mut file = File::create(name).with_context(cannot)?;
        file.write_all(TITLES.as_bytes()).with_context(cannot)?;
        Ok(Csv { name: name.to_owned(), file, written: Ok(()) })
    }

    pub(crate) fn row(&mut self, row: &Row) {
        if self.written.is_ok() {
            self.written = self.file.write_all(line(row).as_bytes());
        }
    }

    /// # Errors
    /// The first write error.
    pub(crate) fn finish(self) -> Result<()> {
        self.written.with_context(|| format!("cannot write {}", self.name))
    }
}

/// Formats a row; its fields never need quotes.
fn line(row: &Row) -> String {
    let times = row.latency.map_or(",,,,,".to_owned(), |l| {
        format!(
            "{:.3},{:.3},{:.3},{:.3},{:.3},{:.3}",
            l.p50_ms, l.p90_ms, l.p95_ms, l.p99_ms, l.p999_ms, l.max_ms
        )
    });
    let Row { phase, open, failed, closed, sent, received, messages_per_second, errors, .. } = row;
    let elapsed = row.elapsed.as_secs_f64();
    format!(
        "{elapsed:.3},{phase},{open},{failed},{closed},{sent},{received},\
         {messages_per_second:.1},{times},{errors}\n"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use load::Latency;

    use super::*;

    #[test]
    fn a_row_has_as_many_fields_as_there_are_titles() {
        let latency = Latency {
            count: 1,
            above_range: 0,
            p50_ms: 1.0,
            p90_ms: 2.0,
            p95_ms: 3.0,
            p99_ms: 4.0,
            p999_ms: 5.0,
            max_ms: 6.0,
        };
        let row = Row {
            elapsed: Duration::from_millis(1_500),
            phase: "requests",
            open: 1,
            failed: 2,
            closed: 3,
            sent: 4,
            received: 5,
            messages_per_second: 6.25,
            latency: Some(latency),
            errors: 7,
            ..Row::default()
        };
        assert_eq!(
            line(&row),
            "1.500,requests,1,2,3,4,5,6.2,1.000,2.000,3.000,4.000,5.000,6.000,7\n"
        );
        let without = line(&Row { latency: None, ..row });
        for line in [TITLES, &without] {
            assert_eq!(line.split(',').count(), 15, "{line}");
        }
    }
}
