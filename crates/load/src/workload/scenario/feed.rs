//! [`Feed`]: rows of named columns from a file, read once and shared by all workers.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::files;
use crate::workload::requests::generators::Generators;

/// The largest file in bytes; a larger one is rejected.
pub const FEED_BYTES_MAX: u64 = 256 << 20;
/// The most columns of a feed.
pub const FEED_COLUMNS_MAX: usize = 256;

/// Rows of named columns.
#[derive(Debug)]
pub struct Feed {
    name: String,
    columns: Vec<String>,
    /// All cells, concatenated.
    bytes: Vec<u8>,
    /// Where each cell ends in `bytes`.
    ends: Vec<u32>,
    /// Which row a pass gets.
    pub order: Order,
    /// With [`Order::Sequential`]: users end when all rows were used, instead of starting over.
    pub once: bool,
    given: AtomicU64,
    /// The number of generators that take rows in turn.
    step: AtomicU64,
}

/// Which row a pass through a flow gets.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Order {
    /// The next row, over all users.
    #[default]
    Sequential,
    /// A random row.
    Random,
    /// The same row for a user each time: its number modulo the rows.
    PerUser,
}

impl Feed {
    /// Reads a file: CSV with a header, or JSON objects, one per line, if the name ends in `.jsonl` or
    /// `.ndjson`.
    ///
    /// # Errors
    /// What is wrong, with the line.
    pub fn read(name: &str, path: &Path) -> Result<Feed, String> {
        let shown = path.display();
        let mut text = Vec::new();
        let file = files::admit(path)
            .and_then(|()| File::open(path))
            .map_err(|error| format!("cannot read {shown}: {error}"))?;
        let read = file.take(FEED_BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| format!("cannot read {shown}: {error}"))?;
        if text.len() as u64 > FEED_BYTES_MAX {
            let most = FEED_BYTES_MAX >> 20;
            return Err(format!("{shown} is larger than {most} MiB: split it, or remove columns"));
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        let feed = match extension {
            Some("jsonl" | "ndjson") => Self::from_jsonl(name, &text),
            _ => Self::from_csv(name, &text),
        };
        feed.map_err(|error| format!("{shown}: {error}"))
    }

    /// Parses CSV (RFC 4180).
    ///
    /// # Errors
    /// As [`Feed::read`].
    pub fn from_csv(name: &str, text: &[u8]) -> Result<Feed, String> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut reader = csv::Reader::from_reader(text);
        let header = reader.headers().map_err(|error| error.to_string())?;
        let columns = header.iter().map(|column| column.trim().to_owned()).collect();
        let mut feed = Self::empty(name, columns)?;
        let mut record = csv::ByteRecord::new();
        while reader.read_byte_record(&mut record).map_err(|error| error.to_string())? {
            record.iter().for_each(|cell| feed.push(cell));
        }
        feed.usable()
    }

    /// Parses JSON objects, one per line: the first names the columns.
    ///
    /// # Errors
    /// As [`Feed::read`].
    pub fn from_jsonl(name: &str, text: &[u8]) -> Result<Feed, String> {
        let mut feed = Self::empty(name, Vec::new())?;
        let lines = text.split(|&byte| byte == b'\n').enumerate();
        for (at, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let number = at + 1;
            let row: serde_json::Map<String, Value> = serde_json::from_slice(line)
                .map_err(|error| format!("line {number} is not a JSON object: {error}"))?;
            if feed.columns.is_empty() {
                feed = Self::empty(name, row.keys().cloned().collect())?;
            }
            for at in 0..feed.columns.len() {
                let column = feed.columns.get(at).map(String::as_str).unwrap_or_default();
                let cell = row.get(column);
                let cell = cell.ok_or_else(|| format!("line {number} has no {column:?}"))?;
                match cell {
                    Value::String(text) => feed.push(text.as_bytes()),
                    other => feed.push(other.to_string().as_bytes()),
                }
            }
        }
        feed.usable()
    }

    fn empty(name: &str, columns: Vec<String>) -> Result<Feed, String> {
        if columns.len() > FEED_COLUMNS_MAX {
            return Err(format!("more than {FEED_COLUMNS_MAX} columns"));
        }
        let twice = columns.iter().enumerate().find(|(at, column)| columns[..*at].contains(column));
        if let Some((_, column)) = twice {
            return Err(format!("two columns are named {column:?}"));
        }
        Ok(Feed {
            name: name.to_owned(),
            columns,
            bytes: Vec::new(),
            ends: Vec::new(),
            order: Order::default(),
            once: false,
            given: AtomicU64::new(0),
            step: AtomicU64::new(1),
        })
    }

    fn push(&mut self, cell: &[u8]) {
        self.bytes.extend_from_slice(cell);
        self.ends.push(self.bytes.len() as u32);
    }

    fn usable(mut self) -> Result<Feed, String> {
        if self.ends.is_empty() {
            return Err("no rows below the header".to_owned());
        }
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        Ok(self)
    }

    /// The name that templates use.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of its columns.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The index of a column.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// The number of rows, at least one.
    #[must_use]
    pub fn rows(&self) -> u32 {
        (self.ends.len() / self.columns.len().max(1)) as u32
    }

    /// The cell of a row and column; empty if there is none.
    #[must_use]
    pub fn cell(&self, row: u32, column: usize) -> &[u8] {
        let at = row as usize * self.columns.len() + column;
        let begin = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
        let end = self.ends.get(at).copied().unwrap_or_default();
        self.bytes.get(begin.unwrap_or_default() as usize..end as usize).unwrap_or_default()
    }

    /// Starts over with the first row of a generator, which has every nth one.
    pub(crate) fn rewind(&self, generators: Generators) {
        self.given.store(generators.nth.into(), Ordering::Relaxed);
        self.step.store(generators.of.max(1).into(), Ordering::Relaxed);
    }

    /// Returns the row of a user's next pass; `None` if all were used and `once` is set.
    pub(crate) fn next_row(&self, user: u64, random: u64) -> Option<u32> {
        let rows = u64::from(self.rows());
        let number = match self.order {
            Order::Sequential => {
                self.given.fetch_add(self.step.load(Ordering::Relaxed), Ordering::Relaxed)
            }
            Order::Random => ((u128::from(random) * u128::from(rows)) >> 64) as u64,
            Order::PerUser => user,
        };
        let over = self.once && self.order == Order::Sequential && number >= rows;
        (!over).then_some((number % rows) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(feed: &Feed) -> Vec<Vec<String>> {
        let text = |row, column| String::from_utf8(feed.cell(row, column).to_vec()).unwrap();
        let row = |row| (0..feed.columns().len()).map(|column| text(row, column)).collect();
        (0..feed.rows()).map(row).collect()
    }

    #[test]
    fn csv_and_json_lines_give_the_same_rows() {
        let csv = b"\xef\xbb\xbfid, name\r\n1,\"Ann, Bo\"\r\n2,\r\n";
        let jsonl = b"{\"id\":1,\"name\":\"Ann, Bo\"}\n\n{\"name\":\"\",\"id\":2,\"more\":0}\n";
        for feed in [Feed::from_csv("x", csv).unwrap(), Feed::from_jsonl("x", jsonl).unwrap()] {
            assert_eq!(feed.columns(), ["id", "name"]);
            assert_eq!(rows(&feed), [["1", "Ann, Bo"], ["2", ""]]);
            assert!(feed.cell(2, 0).is_empty() && feed.cell(u32::MAX, 1).is_empty());
        }
    }

    #[test]
    fn rows_follow_the_order() {
        let mut feed = Feed::from_csv("x", b"id\na\nb\nc\n").unwrap();
        let given = |feed: &Feed, user, random| feed.next_row(user, random);
        let first: Vec<Option<u32>> = (0..4).map(|_| given(&feed, 9, 9)).collect();
        assert_eq!(first, [Some(0), Some(1), Some(2), Some(0)]);
        feed.once = true;
        assert_eq!(given(&feed, 0, 0), None, "all rows were used");
        feed.order = Order::PerUser;
        assert_eq!([0, 4, 4].map(|user| given(&feed, user, 7)), [Some(0), Some(1), Some(1)]);
        feed.order = Order::Random;
        assert_eq!(
            [0, u64::MAX / 2, u64::MAX].map(|r| given(&feed, 0, r)),
            [Some(0), Some(1), Some(2)]
        );
    }

    #[test]
    fn errors_name_the_line() {
        let csv = |text: &[u8]| Feed::from_csv("x", text).unwrap_err();
        assert!(csv(b"a,b\n1,2\n1\n").contains("line: 3"), "{}", csv(b"a,b\n1,2\n1\n"));
        assert!(csv(b"a,b\n").contains("no row") && csv(b"a,a\n1,2").contains("\"a\""));
        let jsonl = |text: &[u8]| Feed::from_jsonl("x", text).unwrap_err();
        assert!(jsonl(b"{\"a\":1}\n{\"b\":1}\n").contains("line 2 has no \"a\""));
        assert!(jsonl(b"{\"a\":1}\n[]\n").contains("line 2") && jsonl(b"\n").contains("no row"));
        assert!(Feed::read("x", Path::new("/no/such/file.csv")).unwrap_err().contains("file.csv"));
    }
}
