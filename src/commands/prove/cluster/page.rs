//! The HTML page of a proof: its figures as rows of a [`Report`], with a timeline of faults and losses.

use capacity::Count;

use super::result::{ClusterProof, FaultResult, HELD, duration};
use crate::report::{Bars, Lane, Report, Rows, Table, Tile, Timeline};

/// Returns the report of a proof.
pub(super) fn report(proof: &ClusterProof) -> Report<'_> {
    let findings = &proof.findings;
    let causes = findings.explained.iter();
    let bars = causes.map(|(cause, &count)| {
        ((*cause).to_owned(), count as f64, Count(count).to_string(), false)
    });
    let unexplained = findings.unexplained.lost;
    let bad = (unexplained > 0).then(|| {
        ("unexplained".to_owned(), unexplained as f64, Count(unexplained).to_string(), true)
    });
    Report {
        title: format!("Cluster, seed {}", proof.settings.seed),
        verdict: (proof.verdict, proof.verdict == HELD),
        result: proof.sentence(),
        reasons: &proof.reasons,
        scope: None,
        tiles: tiles(proof),
        timings: crate::report::Timings::default(),
        figures: owned(proof.rows()),
        tables: tables(proof),
        bars: Bars::new("Losses by cause", bad.into_iter().chain(bars)).into_iter().collect(),
        timeline: Some(timeline(proof)),
        configuration: configuration(proof),
        series: &proof.series,
        machine: &proof.machine,
        command: proof.command.clone(),
    }
}

fn owned(rows: Vec<(&'static str, String)>) -> Rows {
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn tiles(proof: &ClusterProof) -> Vec<Tile> {
    let findings = &proof.findings;
    let explained = findings.explained.values().sum();
    let of = format!("of {} deliveries", Count(findings.pairs));
    vec![
        Tile::bad("Unexplained", findings.unexplained.total(), "losses, doubles, reorders"),
        Tile::new("Delivered once", Count(findings.delivered).to_string(), of),
        Tile::new("Explained losses", Count(explained).to_string(), "told, with a cause"),
        Tile::new("Faults", Count(proof.faults.len() as u64).to_string(), "carried out"),
        Tile::new(
            "Acknowledged",
            Count(proof.publications.acknowledged).to_string(),
            format!("of {} publications", Count(proof.publications.sent)),
        ),
    ]
}

fn tables(proof: &ClusterProof) -> Vec<Table> {
    let fault = |fault: &FaultResult| {
        vec![
            fault.text.clone(),
            format!("{:.1} s", fault.from_seconds),
            format!("{:.1} s", fault.until_seconds),
            Count(fault.losses).to_string(),
        ]
    };
    let mut tables = vec![Table {
        title: "Faults",
        heads: vec!["fault", "from", "until", "losses of this cause"],
        rows: proof.faults.iter().map(fault).collect(),
        texts: &[],
    }];
    if !proof.findings.examples.is_empty() {
        tables.push(Table {
            title: "Unexplained, the first",
            heads: vec!["what"],
            rows: proof.findings.examples.iter().map(|text| vec![text.clone()]).collect(),
            texts: &[],
        });
    }
    tables
}

/// A lane for each node, its link, the broker and the clients.
fn timeline(proof: &ClusterProof) -> Timeline {
    let mut lanes = Vec::new();
    let mut lane = |name: String, is_own: &dyn Fn(&FaultResult) -> bool| {
        let own = proof.faults.iter().filter(|fault| is_own(fault));
        let spans = own.map(|f| (f.from_seconds, f.until_seconds, f.text.clone())).collect();
        lanes.push(Lane { name, spans });
    };
    for node in 1..=proof.settings.nodes {
        let is_process = |fault: &FaultResult| fault.kind.starts_with("node");
        lane(format!("node {node}"), &|f| f.node == Some(node) && is_process(f));
        if proof.settings.broker != "none" {
            lane(format!("link {node}"), &|f| f.node == Some(node) && !is_process(f));
        }
    }
    if proof.settings.broker != "none" {
        lane("broker".to_owned(), &|f| f.kind.starts_with("broker"));
    }
    lane("clients".to_owned(), &|f| f.kind.starts_with("clients"));
    Timeline {
        title: "Faults and losses over time",
        seconds: proof.seconds,
        lanes,
        counts: proof.losses().collect(),
    }
}

fn configuration(proof: &ClusterProof) -> Rows {
    let settings = &proof.settings;
    let speech = if settings.cable { "Action Cable" } else { "topics" };
    let mut rows = vec![
        ("seed", settings.seed.to_string()),
        ("faults for", duration(settings)),
        ("nodes", settings.nodes.to_string()),
        ("broker", settings.broker.to_owned()),
        ("clients", format!("{}, {speech}", Count(settings.clients.into()))),
        (
            "in front of the nodes",
            if settings.proxy { "standfast proxy" } else { "nothing" }.into(),
        ),
        ("topics", settings.topics.to_string()),
        ("publications per second", Count(settings.rate).to_string()),
    ];
    if !settings.serve.is_empty() {
        rows.push(("additional serve flags", settings.serve.join(" ")));
    }
    owned(rows)
}
