//! Broken invariants ([`engine::invariant`]) as operators see them: a counter in the metrics and one
//! line in the log for each place.

use engine::invariant::{self, BrokenInvariant};
use tracing::error;

/// Help of the metric `invariant_broken_total`.
pub(crate) const HELP: &str =
    "Internal states that only a bug can cause; the log names each place.";

/// Logs each place that was not logged before.
pub(crate) fn log_unreported() {
    for broken in invariant::take_unreported() {
        error!("{}", report(&broken));
    }
}

fn report(broken: &BrokenInvariant) -> String {
    let BrokenInvariant { what, location } = broken;
    let (file, line) = (location.file(), location.line());
    format!("invariant broken: {what} at {file}:{line}; please report this")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_invariant_is_counted_and_its_log_line_names_the_place() {
        let before = invariant::total();
        // It panics in debug builds, after it has counted.
        let _ = std::panic::catch_unwind(|| invariant::broken("a test breaks none"));
        assert!(invariant::total() > before);
        let reported = invariant::take_unreported();
        let broken = reported.iter().find(|broken| broken.what == "a test breaks none").unwrap();
        let line = report(broken);
        assert!(line.starts_with("invariant broken: a test breaks none at "), "{line}");
        assert!(
            line.contains("invariants.rs:") && line.ends_with("; please report this"),
            "{line}"
        );
    }
}
