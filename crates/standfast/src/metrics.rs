//! The counters of a server as text, for Prometheus and its like.

use std::fmt::Write;

use engine::{Closed, Refusal, Totals};
use wire::Violation;

/// Totals in Prometheus's text format 0.0.4, with the names that `standfast serve` has, too: the prefix is
/// `standfast_`, counters end in `_total`.
pub(crate) fn exposition(totals: &Totals) -> String {
    let mut text = String::new();
    for (name, help, value) in totals.described() {
        let (name, kind) = match help.contains("(gauge)") {
            true => (name.to_owned(), "gauge"),
            false => (format!("{name}_total"), "counter"),
        };
        head(&mut text, &name, kind, &help.replace(" (gauge)", ""));
        let _ = writeln!(text, "standfast_{name} {value}");
    }
    let closed = Closed::ALL.iter().map(|cause| cause.name()).zip(&totals.closed);
    labelled(&mut text, "closed", "Connections ended.", "cause", closed);
    let violations = Violation::ALL.iter().map(|violation| violation.name());
    let violations = violations.zip(&totals.violations);
    labelled(&mut text, "violations", "Protocol violations by peers.", "violation", violations);
    let refused = Refusal::ALL.iter().map(|refusal| refusal.name()).zip(&totals.refused);
    labelled(&mut text, "refused", "Connections refused.", "limit", refused);
    text
}

fn labelled<'a>(
    text: &mut String,
    name: &str,
    help: &str,
    label: &str,
    samples: impl Iterator<Item = (&'static str, &'a u64)>,
) {
    let name = format!("{name}_total");
    head(text, &name, "counter", help);
    for (of, value) in samples {
        let _ = writeln!(text, "standfast_{name}{{{label}=\"{of}\"}} {value}");
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP standfast_{name} {help}\n# TYPE standfast_{name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_follows_its_type_and_is_there_once() {
        let totals = Totals::sum([]);
        let text = exposition(&totals);
        let mut names = std::collections::BTreeSet::new();
        let mut family = "";
        for line in text.lines() {
            if let Some(of) = line.strip_prefix("# TYPE ") {
                family = of.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                let (sample, value) = line.split_once(' ').unwrap();
                assert!(sample.starts_with(family) && names.insert(sample), "{line}");
                assert_eq!(value, "0", "{line}");
            }
        }
        for name in [
            "standfast_websockets",
            "standfast_messages_in_total",
            "standfast_closed_total{cause=\"by_peer\"}",
            "standfast_violations_total{violation=\"message_too_big\"}",
        ] {
            assert!(names.contains(name), "{name} in {text}");
        }
    }
}
