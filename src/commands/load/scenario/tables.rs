//! [`Table`]: a table of a TOML file with a fixed set of keys. Errors name the file, the line and the
//! key; for an unknown key they suggest the nearest known one.

use anyhow::{Result, anyhow};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::Section;
use crate::settings::nearest;
use crate::units;

/// The text and name of a file, for errors.
#[derive(Copy, Clone, Debug)]
pub(super) struct Doc<'a> {
    pub(super) text: &'a str,
    pub(super) shown: &'a str,
}

/// A table of the file.
#[derive(Copy, Clone)]
pub(super) struct Table<'a> {
    pub(super) doc: Doc<'a>,
    section: &'static Section,
    /// Byte offset of the table.
    pub(super) at: usize,
    values: &'a DeTable<'a>,
}

/// A value or key as text, with its byte offset in the file.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) text: String,
    pub(super) at: usize,
}

impl Doc<'_> {
    /// Returns an error with the line of a byte offset.
    pub(super) fn wrong(&self, at: usize, what: impl std::fmt::Display) -> anyhow::Error {
        let before = self.text.get(..at).unwrap_or_default();
        anyhow!("{}, line {}: {what}", self.shown, before.matches('\n').count() + 1)
    }
}

impl<'a> Table<'a> {
    /// # Errors
    /// An unknown key.
    pub(super) fn new(
        doc: Doc<'a>,
        section: &'static Section,
        at: usize,
        values: &'a DeTable<'a>,
    ) -> Result<Table<'a>> {
        for key in values.keys() {
            let name: &str = key.as_ref();
            if section.keys.iter().any(|known| known.name == name) {
                continue;
            }
            let near = nearest(name, section.keys.iter().map(|known| known.name));
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let section = section.name;
            return Err(doc.wrong(key.span().start, format!("{section} has no key {name}{near}")));
        }
        Ok(Table { doc, section, at, values })
    }

    /// The value of a key of the section.
    fn get(&self, name: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        debug_assert!(self.section.keys.iter().any(|key| key.name == name), "{name}");
        self.values.get(name)
    }

    pub(super) fn has(&self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    /// Returns a string, number or boolean as text.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<Located>> {
        self.get(name).map(|value| self.as_flag_values(name, value)).transpose()
    }

    /// As [`Table::text`], for a key that must be set.
    pub(super) fn required(&self, name: &'static str) -> Result<Located> {
        let missing = || self.doc.wrong(self.at, format!("{} needs {name}", self.section.name));
        self.text(name)?.ok_or_else(missing)
    }

    pub(super) fn parsed<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(located) = self.text(name)? else { return Ok(None) };
        let wrong = |error: String| {
            self.doc
                .wrong(located.at, format!("{name}: {}", units::with_value(&located.text, &error)))
        };
        parse(&located.text).map(Some).map_err(wrong)
    }

    pub(super) fn boolean(&self, name: &'static str) -> Result<Option<bool>> {
        let parse = |text: &str| text.parse().map_err(|_| "expected true or false".to_owned());
        self.parsed(name, parse)
    }

    /// Parses an array of values, or a single one.
    pub(super) fn all<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let each = match value.get_ref() {
            DeValue::Array(values) => values.iter().collect(),
            _ => vec![value],
        };
        let one = |value| {
            let located = self.as_flag_values(name, value)?;
            let wrong = |error: String| {
                self.doc.wrong(
                    located.at,
                    format!("{name}: {}", units::with_value(&located.text, &error)),
                )
            };
            parse(&located.text).map_err(wrong)
        };
        each.into_iter().map(one).collect()
    }

    /// Returns a nested table with the keys of a section.
    pub(super) fn table(
        &self,
        name: &'static str,
        section: &'static Section,
    ) -> Result<Option<Table<'a>>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        self.as_table(name, value, section).map(Some)
    }

    /// Returns an array of tables.
    pub(super) fn tables(
        &self,
        name: &'static str,
        section: &'static Section,
    ) -> Result<Vec<Table<'a>>> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let DeValue::Array(values) = value.get_ref() else {
            let section = section.name;
            return Err(self.doc.wrong(value.span().start, format!("{name} must be {section}")));
        };
        values.iter().map(|value| self.as_table(name, value, section)).collect()
    }

    /// Returns a table whose keys are free names and whose values are text.
    pub(super) fn pairs(&self, name: &'static str) -> Result<Vec<(Located, Located)>> {
        let pairs = self.entries(name)?;
        let located = pairs.into_iter().map(|(key, value)| {
            let located = self.as_flag_values(&key.text, value)?;
            Ok((key, located))
        });
        located.collect()
    }

    /// Returns a table whose keys are free names and whose values are tables of a section.
    pub(super) fn named_tables(
        &self,
        name: &'static str,
        section: &'static Section,
    ) -> Result<Vec<(Located, Table<'a>)>> {
        let pairs = self.entries(name)?;
        let tables = pairs.into_iter().map(|(key, value)| {
            let table = self.as_table(&key.text, value, section)?;
            Ok((key, table))
        });
        tables.collect()
    }

    /// Returns any value as JSON, with its byte offset.
    pub(super) fn json(&self, name: &'static str) -> Result<Option<(serde_json::Value, usize)>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        Ok(Some((self.as_json(value)?, value.span().start)))
    }

    /// Returns the entries of a table in the order of the file.
    fn entries(&self, name: &'static str) -> Result<Vec<(Located, &'a Spanned<DeValue<'a>>)>> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let DeValue::Table(values) = value.get_ref() else {
            return Err(self.doc.wrong(value.span().start, format!("{name} must be a table")));
        };
        let entry = |(key, value): (&Spanned<_>, &'a _)| {
            let text: &std::borrow::Cow<'_, str> = key.get_ref();
            (Located { text: text.to_string(), at: key.span().start }, value)
        };
        let mut entries: Vec<_> = values.iter().map(entry).collect();
        entries.sort_by_key(|(key, _)| key.at);
        Ok(entries)
    }

    fn as_table(
        &self,
        name: &str,
        value: &'a Spanned<DeValue<'a>>,
        section: &'static Section,
    ) -> Result<Table<'a>> {
        let at = value.span().start;
        match value.get_ref() {
            DeValue::Table(values) => Table::new(self.doc, section, at, values),
            _ => Err(self.doc.wrong(at, format!("{name} must be a table"))),
        }
    }

    fn as_flag_values(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Located> {
        let at = value.span().start;
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(truth) => truth.to_string(),
            _ => {
                return Err(self
                    .doc
                    .wrong(at, format!("{name} must be a string, a number, true or false")));
            }
        };
        Ok(Located { text, at })
    }

    fn as_json(&self, value: &Spanned<DeValue<'_>>) -> Result<serde_json::Value> {
        use serde_json::Value;
        let at = value.span().start;
        Ok(match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Boolean(truth) => Value::Bool(*truth),
            DeValue::Integer(number) => {
                let number = i64::from_str_radix(number.as_str(), number.radix());
                number.map_err(|error| self.doc.wrong(at, error))?.into()
            }
            DeValue::Float(number) => {
                let number: f64 = number.as_str().parse().map_err(|e| self.doc.wrong(at, e))?;
                number.into()
            }
            DeValue::Array(values) => {
                values.iter().map(|value| self.as_json(value)).collect::<Result<Vec<_>>>()?.into()
            }
            DeValue::Table(values) => {
                let pairs = values.iter().map(|(key, value)| {
                    let key: &std::borrow::Cow<'_, str> = key.get_ref();
                    Ok((key.to_string(), self.as_json(value)?))
                });
                Value::Object(pairs.collect::<Result<_>>()?)
            }
            DeValue::Datetime(_) => {
                return Err(self.doc.wrong(at, "JSON has no dates: use a string"));
            }
        })
    }
}
