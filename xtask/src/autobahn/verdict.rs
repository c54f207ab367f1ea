//! The suite's verdict of a case, the expected one (`conformance/autobahn/NAME.json`), and their
//! comparison. A run that ends early shows as cases without a verdict: the suite itself exits with
//! success when the other side has died.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Tested, testsuite};
use crate::step;

/// A case's number, `9.4.10` after `9.4.9`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct CaseId(Vec<u16>);

impl CaseId {
    /// The first part of its number.
    pub(super) fn group(&self) -> u16 {
        self.0.first().copied().unwrap_or_default()
    }
}

impl TryFrom<String> for CaseId {
    type Error = String;

    fn try_from(text: String) -> Result<CaseId, String> {
        let parts: Result<Vec<u16>, _> = text.split('.').map(str::parse).collect();
        parts.map(CaseId).map_err(|error| format!("invalid case {text:?}: {error}"))
    }
}

impl From<CaseId> for String {
    fn from(case: CaseId) -> String {
        case.to_string()
    }
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u16::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

/// The suite's verdict of one case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// Of the messages.
    #[serde(alias = "behavior")]
    pub(super) behaviour: String,
    /// Of the closing handshake.
    #[serde(alias = "behaviorClose")]
    pub(super) close: String,
}

impl Verdict {
    /// Whether it needs no reason.
    pub(super) fn is_ok(&self) -> bool {
        self.behaviour == "OK" && self.close == "OK"
    }

    /// Whether it may be an expected result: OK, or a choice that the RFC leaves to us.
    fn is_acceptable(&self) -> bool {
        [&self.behaviour, &self.close]
            .iter()
            .all(|word| ["OK", "INFORMATIONAL"].contains(&word.as_str()))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, close {}", self.behaviour, self.close)
    }
}

/// The verdict of each case.
pub(super) type Results = BTreeMap<CaseId, Verdict>;

/// What the suite should say of one of ours.
#[derive(Serialize, Deserialize)]
pub(super) struct Expected {
    /// The version of the suite.
    pub(super) suite: String,
    /// The reason for each case that is not OK.
    pub(super) reasons: BTreeMap<CaseId, String>,
    pub(super) cases: Results,
}

impl Expected {
    /// Reads the expected results of a program.
    pub(super) fn read(tested: Tested) -> Result<Expected> {
        let path = path(tested);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Writes them, one line for each case.
    pub(super) fn write(&self, tested: Tested) -> Result<()> {
        let path = path(tested);
        fs::write(&path, self.to_json()?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn to_json(&self) -> Result<String> {
        let reasons: Result<Vec<String>> = self
            .reasons
            .iter()
            .map(|(case, why)| Ok(format!("    \"{case}\": {}", serde_json::to_string(why)?)))
            .collect();
        let cases: Result<Vec<String>> = self
            .cases
            .iter()
            .map(|(case, verdict)| {
                Ok(format!("    \"{case}\": {}", serde_json::to_string(verdict)?))
            })
            .collect();
        Ok(format!(
            "{{\n  \"suite\": {},\n  \"reasons\": {{\n{}\n  }},\n  \"cases\": {{\n{}\n  }}\n}}\n",
            serde_json::to_string(&self.suite)?,
            reasons?.join(",\n"),
            cases?.join(",\n")
        ))
    }

    /// Replaces the cases that `patterns` select with the results of a run. Reasons are written by hand.
    pub(super) fn replace(&mut self, patterns: &[String], results: &Results) {
        testsuite::VERSION.clone_into(&mut self.suite);
        self.cases.retain(|case, _| !selects(patterns, case));
        self.cases.extend(results.iter().map(|(case, verdict)| (case.clone(), verdict.clone())));
    }

    /// A line for each case of `patterns` that did not run, has another verdict, is unknown, or
    /// is neither OK nor explained.
    pub(super) fn differences(&self, patterns: &[String], results: &Results) -> Vec<String> {
        let mut lines = Vec::new();
        for (case, verdict) in &self.cases {
            if !selects(patterns, case) {
                continue;
            }
            match results.get(case) {
                None => lines.push(format!("{case}: did not run")),
                Some(actual) if actual != verdict => {
                    lines.push(format!("{case}: {actual}; expected {verdict}"));
                }
                Some(_) => lines.extend(self.fault(case, verdict)),
            }
        }
        let known = |case: &&CaseId| !self.cases.contains_key(case);
        lines.extend(results.keys().filter(known).map(|case| format!("{case}: unknown case")));
        lines
    }

    /// The reason why an expected result of a case is not permitted.
    pub(super) fn fault(&self, case: &CaseId, verdict: &Verdict) -> Option<String> {
        if !verdict.is_acceptable() {
            return Some(format!("{case}: {verdict}"));
        }
        let explained = self.reasons.contains_key(case);
        (verdict.is_ok() == explained).then(|| match explained {
            true => format!("{case}: OK, but has a reason"),
            false => format!("{case}: {verdict}, without a reason"),
        })
    }
}

/// Whether `patterns` select a case, by the rules of the suite.
pub(super) fn selects(patterns: &[String], case: &CaseId) -> bool {
    let case = case.to_string();
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => case.starts_with(beginning),
        None => case == *pattern,
    })
}

/// Reads the report that the suite has written for one agent.
pub(super) fn read_report(report: &Path, agent: &str) -> Result<Results> {
    let text = fs::read_to_string(report)
        .with_context(|| format!("the suite wrote no {}", report.display()))?;
    let mut agents: BTreeMap<String, Results> = serde_json::from_str(&text)?;
    Ok(agents.remove(agent).unwrap_or_default())
}

fn path(tested: Tested) -> PathBuf {
    step::root().join(format!("conformance/autobahn/{}.json", tested.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(text: &str) -> CaseId {
        CaseId::try_from(text.to_owned()).unwrap()
    }

    fn verdict(behaviour: &str, close: &str) -> Verdict {
        Verdict { behaviour: behaviour.to_owned(), close: close.to_owned() }
    }

    fn expected(cases: &[(&str, Verdict)], reasons: &[&str]) -> Expected {
        Expected {
            suite: String::new(),
            reasons: reasons.iter().map(|text| (case(text), "because".to_owned())).collect(),
            cases: cases.iter().map(|(text, actual)| (case(text), actual.clone())).collect(),
        }
    }

    fn all() -> Vec<String> {
        vec!["*".to_owned()]
    }

    #[test]
    fn every_difference_is_reported() {
        let ok = || verdict("OK", "OK");
        let expected_results =
            expected(&[("1.1", ok()), ("1.2", ok()), ("1.10", ok()), ("2.1", ok())], &[]);
        let actual = Results::from([
            (case("1.1"), ok()),
            (case("1.10"), verdict("OK", "UNCLEAN")),
            (case("3.1"), ok()),
        ]);
        let lines = expected_results.differences(&["1.*".to_owned()], &actual);
        let expected = [
            "1.2: did not run",
            "1.10: OK, close UNCLEAN; expected OK, close OK",
            "3.1: unknown case",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn expected_results_that_are_not_permitted_fail() {
        for word in ["FAILED", "NON-STRICT", "UNIMPLEMENTED", "WRONG CODE", "UNCLEAN"] {
            for actual in [verdict(word, "OK"), verdict("OK", word)] {
                let expected_results = expected(&[("1.1", actual.clone())], &["1.1"]);
                let results = Results::from([(case("1.1"), actual)]);
                assert_eq!(expected_results.differences(&all(), &results).len(), 1, "{word}");
            }
        }
        let unexplained = expected(&[("7.1.6", verdict("INFORMATIONAL", "INFORMATIONAL"))], &[]);
        assert_eq!(unexplained.differences(&all(), &unexplained.cases).len(), 1);
        let superfluous = expected(&[("1.1", verdict("OK", "OK"))], &["1.1"]);
        assert_eq!(superfluous.differences(&all(), &superfluous.cases).len(), 1);
    }

    #[test]
    fn saved_results_have_no_faults() {
        for tested in Tested::ALL {
            let expected_results = Expected::read(tested).unwrap();
            let faults: Vec<String> = expected_results
                .cases
                .iter()
                .filter_map(|(case, actual)| expected_results.fault(case, actual))
                .collect();
            assert_eq!(faults, Vec::<String>::new(), "{tested:?}");
            assert!(
                expected_results
                    .reasons
                    .keys()
                    .all(|case| expected_results.cases.contains_key(case)),
                "{tested:?}"
            );
            let text = fs::read_to_string(path(tested)).unwrap();
            assert_eq!(
                expected_results.to_json().unwrap(),
                text,
                "{tested:?} differs from what --keep writes"
            );
        }
    }

    #[test]
    fn report_of_the_suite_is_parsed() {
        let report = std::env::temp_dir().join(format!("autobahn-{}.json", std::process::id()));
        let text = r#"{"x": {"9.10": {"behavior": "OK", "behaviorClose": "UNCLEAN",
            "duration": 3, "remoteCloseCode": null, "reportfile": "r.json"}}}"#;
        fs::write(&report, text).unwrap();
        let results = read_report(&report, "x").unwrap();
        assert_eq!(results, Results::from([(case("9.10"), verdict("OK", "UNCLEAN"))]));
        assert!(read_report(&report, "y").unwrap().is_empty());
        fs::remove_file(&report).unwrap();
    }

    #[test]
    fn results_of_others_equal_the_servers() {
        use super::super::Role;
        let of = |role| Expected::read(Tested { role, tls: false }).unwrap();
        let direct = of(Role::Server);
        for other in [Role::Proxy, Role::Node].map(of) {
            assert_eq!(direct.suite, other.suite);
            assert!(other.cases.len() > 300, "only {} cases were run", other.cases.len());
            for (case, verdict) in &other.cases {
                assert_eq!(direct.cases.get(case), Some(verdict), "{case}");
            }
            assert_eq!(direct.reasons, other.reasons);
        }
    }
}
