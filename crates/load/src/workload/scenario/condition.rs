//! [`Condition`]: whether a step is made, from the values of its user; and [`Items`], the list over which
//! a step is repeated.

use std::sync::Arc;

use crate::workload::scenario::template::{BadTemplate, Names, Template, TemplateContext, Values};

/// The most items over which a step is repeated.
pub const ITEMS_MAX: usize = 10_000;

/// A comparison of two values, such as `{{role}} == 'admin'`.
#[derive(Clone, Debug)]
pub struct Condition {
    left: Template,
    operator: Operator,
    /// Not used by [`Operator::Exists`].
    right: Template,
}

/// How two values are compared.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Operator {
    Equal,
    Differs,
    /// As numbers; false if one of them is none.
    Less,
    More,
    Contains,
    /// The left value is not empty.
    Exists,
}

impl Operator {
    const NAMED: [(&'static str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::Differs),
        ("<", Operator::Less),
        (">", Operator::More),
        ("contains", Operator::Contains),
        ("exists", Operator::Exists),
    ];
}

/// The buffers of an evaluation.
#[derive(Default, Debug)]
pub(crate) struct Operands {
    left: Vec<u8>,
    right: Vec<u8>,
}

impl Condition {
    /// Parses `VALUE == VALUE` (or `!=`, `<`, `>`, `contains`) or `VALUE exists`, where a value is a
    /// `{{template}}`, a text in quotes or a word.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(text: &str, names: &Names) -> Result<Condition, BadTemplate> {
        let wrong = |what: &str| {
            let all = Operator::NAMED.map(|(name, _)| name).join(", ");
            BadTemplate::Invalid(format!(
                "{text:?}: {what}: expected VALUE OPERATOR VALUE with one of {all}, as in \"{{{{role}}}} == 'admin'\""
            ))
        };
        let compiled = |text: &str| Template::compile(text, TemplateContext::Body, names);
        let (left, rest) = operand(text).map_err(wrong)?;
        let named = |(name, _): &&(&str, Operator)| {
            let after = rest.strip_prefix(*name);
            // A word ends where no letter follows.
            let is_word = name.starts_with(|first: char| first.is_ascii_alphabetic());
            after.is_some_and(|after| !is_word || !after.starts_with(|c: char| c.is_alphanumeric()))
        };
        let found = Operator::NAMED.iter().find(named);
        let (name, operator) = *found.ok_or_else(|| wrong("no operator"))?;
        let rest = rest.strip_prefix(name).unwrap_or_default();
        let (right, rest) = match operator {
            Operator::Exists => ("", rest.trim()),
            _ => operand(rest).map_err(wrong)?,
        };
        if !rest.is_empty() {
            return Err(wrong(&format!("unexpected {rest:?}")));
        }
        Ok(Condition { left: compiled(left)?, operator, right: compiled(right)? })
    }

    /// Whether it is true.
    pub(crate) fn is_true(&self, values: &Values<'_>, operands: &mut Operands) -> bool {
        let Operands { left, right } = operands;
        left.clear();
        right.clear();
        self.left.render(left, values);
        self.right.render(right, values);
        let numbers = || Some((number(left)?, number(right)?));
        match self.operator {
            Operator::Equal => left == right,
            Operator::Differs => left != right,
            Operator::Less => numbers().is_some_and(|(left, right)| left < right),
            Operator::More => numbers().is_some_and(|(left, right)| left > right),
            Operator::Contains => {
                right.is_empty() || left.windows(right.len()).any(|window| window == right)
            }
            Operator::Exists => !left.is_empty(),
        }
    }
}

/// Splits off a value: a `{{template}}`, a text in quotes or a word.
fn operand(text: &str) -> Result<(&str, &str), &'static str> {
    let text = text.trim_start();
    let (value, rest) = if text.starts_with("{{") {
        let end = text.find("}}").ok_or("{{ is not closed by }}")? + 2;
        text.split_at(end)
    } else if let Some(quote) = text.chars().next().filter(|first| ['\'', '"'].contains(first)) {
        let inside = text.get(1..).unwrap_or_default();
        inside.split_once(quote).ok_or("a quote is not closed")?
    } else {
        let ends = |c: char| c.is_whitespace() || "=!<>".contains(c);
        let end = text.find(ends).unwrap_or(text.len());
        if end == 0 {
            return Err("a value is missing");
        }
        text.split_at(end)
    };
    Ok((value, rest.trim_start()))
}

fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().filter(|number: &f64| !number.is_nan())
}

/// The list over which a step is repeated.
#[derive(Clone, Debug)]
pub enum Items {
    /// Values of the file; at most [`ITEMS_MAX`].
    Values(Arc<[Box<[u8]>]>),
    /// All rows of a column, at most [`ITEMS_MAX`]: the indices of the feed and of the column.
    Column(usize, usize),
    /// The values of a captured list, at most [`ITEMS_MAX`].
    List(usize),
    /// The elements of a JSON array in a capture, at most [`ITEMS_MAX`].
    Capture(usize),
}

/// The elements of a JSON array, strings without quotes; none if the value is no array.
pub(crate) fn elements(json: &[u8]) -> Arc<[Box<[u8]>]> {
    let values: Vec<serde_json::Value> = serde_json::from_slice(json).unwrap_or_default();
    let text = |value| match value {
        serde_json::Value::String(text) => text.into_bytes().into(),
        other => other.to_string().into_bytes().into(),
    };
    values.into_iter().take(ITEMS_MAX).map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::workload::scenario::Scenario;
    use crate::workload::scenario::user::User;

    fn names() -> Names {
        let variables = [("role", "admin"), ("empty", ""), ("n", "10"), ("words", "a 'b' c")];
        let variables = variables.map(|(name, text)| (name.to_owned(), text.to_owned()));
        Names { variables: BTreeMap::from(variables), ..Names::default() }
    }

    #[test]
    fn values_are_compared() {
        let (scenario, mut operands) = (Scenario::default(), Operands::default());
        let user = User::new(&scenario, 0);
        for (text, wanted) in [
            ("{{role}} == 'admin'", true),
            ("{{role}}==admin", true),
            ("{{role}} == \"user\"", false),
            ("{{role}} != user", true),
            ("'{{role}}s' == admins", true),
            ("{{n}} > 9", true),
            ("{{n}}<9.5", false),
            ("{{n}} == 10.0", false),
            ("{{role}} > 1", false),
            ("{{role}} < 1", false),
            ("{{role}} contains 'dmi'", true),
            ("{{role}} contains x", false),
            ("{{words}} contains \"'b'\"", true),
            ("{{role}} exists", true),
            ("{{empty}} exists", false),
            ("{{user}} == 7", true),
        ] {
            let condition = Condition::parse(text, &names()).unwrap();
            assert_eq!(
                condition.is_true(&user.values(&scenario, 7), &mut operands),
                wanted,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_comparison_is_refused() {
        for (text, said) in [
            ("", "a value is missing"),
            ("{{role}}", "no operator"),
            ("{{role}} = 1", "no operator"),
            ("{{role}} ==", "a value is missing"),
            ("{{role}} == 'a", "a quote is not closed"),
            ("{{role == 1", "{{ is not closed"),
            ("{{role}} == 1 2", "unexpected \"2\""),
            ("{{role}} exists 1", "unexpected \"1\""),
            ("{{role}} containsx", "no operator"),
        ] {
            let error = Condition::parse(text, &names()).unwrap_err();
            assert!(
                matches!(&error, BadTemplate::Invalid(what) if what.contains(said)),
                "{text}: {error:?}"
            );
        }
        let unknown = Condition::parse("{{rolle}} == 1", &names()).unwrap_err();
        assert!(matches!(unknown, BadTemplate::Unknown { name, .. } if name == "rolle"));
    }

    #[test]
    fn elements_of_arrays_are_texts() {
        let texts = |json: &str| -> Vec<String> {
            let items = elements(json.as_bytes());
            items.iter().map(|item| String::from_utf8_lossy(item).into_owned()).collect()
        };
        assert_eq!(texts(r#"["a", 1, {"b":2}, "é"]"#), ["a", "1", "{\"b\":2}", "é"]);
        assert!(texts("no array").is_empty() && texts("{}").is_empty());
    }
}
