//! `standfast plan`: how many machines a target load needs. Page views become requests per second at
//! peak; requests, connections and messages are divided by the capacity of one machine, as a run of
//! `load` or `prove` measured it. Every step is printed, so it can be checked by hand.
//!
//! It is not a model: it multiplies and divides. What does not scale linearly (a database, a lock)
//! shows only in a run with more load.

mod figures;
mod machines;
mod measured;
mod request_rate;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use self::figures::Answer;
use self::measured::Measured;
pub(crate) use self::measured::read_json;
use crate::{output, units};

const GOAL: &str = "Target load";
const MACHINE: &str = "One machine";

/// Calculate how many machines a target load needs
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Page views per day, such as 30M
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = GOAL)]
    views: Option<u64>,
    /// Share of the views in the peak
    #[arg(long, value_name = "PERCENT", default_value = "80%", value_parser = units::percent,
        requires = "views", help_heading = GOAL)]
    peak_views: f64,
    /// Share of the day in the peak
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = units::percent,
        requires = "views", help_heading = GOAL)]
    peak_time: f64,
    /// Requests per page view
    #[arg(long, value_name = "N", default_value = "1", value_parser = units::positive_count,
        requires = "views", help_heading = GOAL)]
    requests_per_view: u64,
    /// Requests per second at peak, instead of --views
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = GOAL,
        conflicts_with = "views")]
    requests: Option<u64>,
    /// Concurrent WebSockets
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = GOAL)]
    connections: Option<u64>,
    /// Messages per second over all WebSockets
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = GOAL)]
    messages: Option<u64>,

    /// Results of a run: the --json file of prove or load
    #[arg(long, value_name = "FILE", help_heading = MACHINE)]
    from: Option<PathBuf>,
    /// Requests per second of one machine [default: --from]
    #[arg(long, value_name = "RATE", value_parser = units::positive_count, help_heading = MACHINE)]
    per_machine: Option<u64>,
    /// Memory of one machine
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = MACHINE)]
    memory: Option<u64>,
    /// Cores of one machine
    #[arg(long, value_name = "N", value_parser = units::positive_count, help_heading = MACHINE)]
    cores: Option<u64>,
    /// Share of each machine to keep free
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = units::percent,
        help_heading = MACHINE)]
    headroom: f64,

    /// Write the results to a file, or - for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// A missing target, or a file that lacks the figures.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let answer = answer(args)?;
    match args.json.as_deref() {
        Some(output::STDOUT) => {}
        _ => output::print(&answer.to_string())?,
    }
    args.json.as_deref().map_or(Ok(()), |file| output::write_json(file, &answer))?;
    Ok(ExitCode::SUCCESS)
}

fn answer(args: &Args) -> Result<Answer> {
    let Args { views, requests, connections, messages, .. } = *args;
    if views.is_none() && requests.is_none() && connections.is_none() && messages.is_none() {
        bail!(
            "missing target load: give --views, --requests, --connections or --messages, such as \
             --views 30M --per-machine 69"
        );
    }
    if args.headroom >= 1.0 {
        bail!("--headroom 100% leaves no capacity: expected less than 100%");
    }
    if args.peak_time == 0.0 {
        bail!("invalid --peak-time 0%: expected more than 0, such as 20%");
    }
    let measured = args.from.as_deref().map(Measured::read).transpose()?;
    if let Some(measured) = &measured {
        let checked = measured.check_has(requests.or(views).is_some(), connections, messages);
        checked.map_err(|why| anyhow::anyhow!("{}: {why}", measured.file))?;
    } else if connections.is_some() || messages.is_some() {
        bail!(
            "--connections and --messages need a measured run: give --from FILE, the JSON of \
             `standfast prove --json FILE`"
        );
    }
    figures::answer(args, measured.as_ref())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<Answer> {
        answer(&Line::try_parse_from(line.split(' ')).unwrap().args)
    }

    fn figures(line: &str) -> Value {
        serde_json::to_value(plan(line).unwrap()).unwrap()
    }

    struct File(PathBuf);

    impl File {
        fn new(name: &str, document: &Value) -> File {
            let name = format!("standfast-plan-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::write(&path, document.to_string()).unwrap();
            File(path)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn proof() -> Value {
        json!({
            "version": 1, "standfast": "0.1.0", "verdict": "HELD", "hold_seconds": 60.0,
            "connections": {"requested": 1000, "open": 1000},
            "server": {"rss_bytes_per_connection": 200.0, "cpu_seconds": 2.0},
            "kernel_bytes_per_socket": 4400.0,
            "messages": {"sent": 100_000, "received": 100_000}
        })
    }

    #[test]
    fn every_step_of_the_calculation_is_printed() {
        let answer = plan("plan --views 30M --per-machine 69").unwrap();
        let text = answer.to_string();
        for step in [
            "30,000,000 × 80 % = 24,000,000",
            "86,400 s × 20 % = 17,280 s",
            "24,000,000 ÷ 17,280 s = 1,388.89",
            "1,389",
            "1,389 ÷ 69 = 20.13",
            "21 machines",
        ] {
            assert!(text.contains(step), "{step} is not in\n{text}");
        }
        let figures = serde_json::to_value(answer).unwrap();
        assert_eq!(figures["requests"]["per_second"], 1389);
        assert_eq!(
            (&figures["machines"], &figures["requests"]["machines"]),
            (&21.into(), &21.into())
        );
    }

    #[test]
    fn whole_numbers_are_not_rounded_up_by_arithmetic_errors() {
        let figures =
            figures("plan --views 864k --peak-views 70% --peak-time 35% --per-machine 20");
        assert_eq!(
            (&figures["requests"]["per_second"], &figures["machines"]),
            (&20.into(), &1.into())
        );
    }

    #[test]
    fn peak_shares_and_headroom_are_applied() {
        let figures = figures(
            "plan --views 8640k --peak-views 50% --peak-time 50% --requests-per-view 3 \
             --per-machine 100 --headroom 25%",
        );
        assert_eq!(figures["requests"]["per_second"], 300);
        assert_eq!(figures["machines"], 4, "75 of each machine's 100");
    }

    #[test]
    fn memory_and_cpu_are_calculated_from_a_proof() {
        let file = File::new("proof", &proof());
        let from = file.0.to_str().unwrap();
        let figures = figures(&format!(
            "plan --connections 1M --messages 17k --memory 2GiB --cores 1 --from {from}"
        ));
        let memory = &figures["memory"];
        assert_eq!(memory["bytes_per_connection"], 4600.0);
        assert_eq!(memory["bytes"], 4_600_000_000_u64);
        assert_eq!(memory["machines"], 3);
        let cpu = &figures["cpu"];
        assert_eq!(cpu["microseconds_per_message"], 20.0);
        assert_eq!((&cpu["cores"], &cpu["machines"]), (&0.34.into(), &1.into()));
        assert_eq!(figures["machines"], 3, "the larger of both");
    }

    /// A result file as the first version of the format wrote it.
    const REQUESTS: &str = include_str!("../load/compare/v1/requests.json");

    /// A run of 8 users in a closed loop: 700 requests in ten seconds.
    fn requests() -> Value {
        let mut run: Value = serde_json::from_str(REQUESTS).unwrap();
        run["requests"]["ok"] = 700.into();
        run["seconds"] = 10.0.into();
        run["users"] = 8.into();
        run["pace"] = json!({"model": "closed", "rate": null, "stages": null});
        run["samples"] = json!([]);
        run
    }

    /// A sample of that run.
    fn sample() -> Value {
        serde_json::from_str::<Value>(REQUESTS).unwrap()["samples"][0].clone()
    }

    /// The answer for 1,389 requests a second, from a run.
    fn from(name: &str, run: &Value) -> (String, Value) {
        let file = File::new(name, run);
        let answer = plan(&format!("plan --requests 1389 --from {}", file.0.display())).unwrap();
        (answer.to_string(), serde_json::to_value(&answer).unwrap())
    }

    #[test]
    fn rate_that_a_run_merely_asked_for_is_a_lower_bound() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut run = requests();
            change(&mut run);
            run
        };
        let open = json!({"model": "open", "rate": 70.0, "stages": null});
        for (name, run, because) in [
            // One user and 50 ms: 20 per second, of a server that may serve thousands.
            ("one", with(&|run| run["users"] = 1.into()), "1 user waited for each answer"),
            ("closed", requests(), "8 users waited for each answer"),
            ("met", with(&|run| run["pace"] = open.clone()), "asked for 70 per second"),
            (
                "unsent",
                with(&|run| {
                    run["pace"] = open.clone();
                    run["requests"]["unsent"] = 500.into();
                }),
                "8 users were always busy",
            ),
            (
                "saturated",
                with(&|run| run["generator"]["saturated"] = "it was busy".into()),
                "the generator was the bottleneck: it was busy",
            ),
            ("interrupted", with(&|run| run["interrupted"] = true.into()), "interrupted"),
            (
                "failed",
                with(&|run| run["requests"]["failed"] = 300.into()),
                "30.0 % of the requests failed",
            ),
            ("no-generator", with(&|run| run["generator"] = Value::Null), "it is unknown whether"),
            (
                "no-pace",
                with(&|run| drop(run.as_object_mut().unwrap().remove("pace"))),
                "it is unknown how much",
            ),
        ] {
            let (text, figures) = from(name, &run);
            assert!(text.contains("at least 70 per second") && text.contains(because), "{text}");
            assert!(text.contains("1,389 ÷ 70 = 19.84 → at most 20"), "{text}");
            assert!(text.contains("answer        at most 20 machines"), "{text}");
            assert!(text.contains("--stages"), "asks for a run that shows the limit: {text}");
            assert_eq!(figures["requests"]["bound"], "at_least");
            assert_eq!(
                (&figures["machines"], &figures["machines_at_most"]),
                (&Value::Null, &20.into()),
                "{figures}"
            );
        }
    }

    /// Seconds of a run with steps of users, and the answers per second at each.
    fn staircase(steps: &[(u64, u64)]) -> Value {
        let mut run = requests();
        let stages: Vec<(f64, u64)> =
            steps.iter().flat_map(|(users, _)| [(0.0, *users), (10.0, *users)]).collect();
        run["pace"]["stages"] = json!(stages);
        let (mut received, mut sample) = (0, sample());
        let samples: Vec<Value> = (1..=10 * steps.len())
            .map(|second| {
                let (_, rate) = steps[(second - 1) / 10];
                received += rate;
                sample["elapsed_seconds"] = second.into();
                sample["received"] = received.into();
                sample["server"]["cpu_seconds"] = (second as f64 * 0.5).into();
                sample.clone()
            })
            .collect();
        run["samples"] = samples.into();
        run
    }

    #[test]
    fn users_that_get_no_more_show_the_capacity() {
        let (text, figures) = from("plateau", &staircase(&[(8, 60), (16, 69), (32, 70)]));
        assert_eq!(figures["requests"]["bound"], "reached", "{text}");
        assert_eq!((&figures["machines"], &figures["machines_at_most"]), (&20.into(), &20.into()));
        assert!(text.contains("32 users got 70 answers per second"), "{text}");
        assert!(!text.contains("--stages"), "{text}");
        // A rate that falls: the machine can serve what fewer users got.
        let (_, figures) = from("fall", &staircase(&[(16, 70), (32, 30)]));
        assert_eq!(figures["requests"]["per_machine"], 70.0);
        let (_, figures) = from("growth", &staircase(&[(16, 35), (32, 70)]));
        assert_eq!(figures["requests"]["bound"], "at_least", "twice the users got twice as much");
        // Of an open model the free connections may have been the limit.
        let mut open = staircase(&[(16, 70), (32, 70)]);
        open["pace"]["model"] = "open".into();
        assert_eq!(from("rates", &open).1["requests"]["bound"], "at_least");
        let mut after_warm_up = staircase(&[(16, 70), (32, 70)]);
        let samples = after_warm_up["samples"].as_array_mut().unwrap();
        for sample in samples.iter_mut() {
            sample["elapsed_seconds"] = (sample["elapsed_seconds"].as_f64().unwrap() + 60.0).into();
        }
        let mut last = sample();
        (last["elapsed_seconds"], last["phase"]) = (60.0.into(), "warm-up".into());
        samples.insert(0, last);
        assert_eq!(from("warm", &after_warm_up).1["requests"]["bound"], "reached");
    }

    #[test]
    fn server_without_cpu_left_shows_the_capacity() {
        let busy = |cores: f64| {
            let mut run = staircase(&[(8, 70)]);
            for sample in run["samples"].as_array_mut().unwrap() {
                let second = sample["elapsed_seconds"].as_f64().unwrap();
                sample["server"]["cpu_seconds"] = (second * cores).into();
            }
            from(&format!("busy-{cores}"), &run)
        };
        let (text, figures) = busy(1.9);
        assert_eq!(figures["requests"]["bound"], "reached", "{text}");
        assert!(text.contains("the server used 1.9 of 2 cores"), "{text}");
        assert_eq!(busy(1.7).1["requests"]["bound"], "at_least");
        // The generator took what the server did not get: alone it may serve more.
        let mut shared = staircase(&[(16, 70), (32, 70)]);
        for sample in shared["samples"].as_array_mut().unwrap() {
            let second = sample["elapsed_seconds"].as_f64().unwrap();
            sample["server"]["cpu_seconds"] = (second * 1.2).into();
            sample["client"]["cpu_seconds"] = (second * 0.7).into();
        }
        let (text, figures) = from("shared", &shared);
        assert_eq!(figures["requests"]["bound"], "at_least", "{text}");
        assert!(text.contains("server and generator together used 1.9 of 2 cores"), "{text}");
    }

    #[test]
    fn failed_requests_are_not_served() {
        let mut run = requests();
        run["requests"]["failed"] = 10.into();
        let (text, _) = from("few-failed", &run);
        assert!(text.contains("1,389 ÷ 70 = 19.84"), "only successful requests:\n{text}");
        assert!(text.contains("10 of 710 requests failed"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_unknown() {
        let mut proof = proof();
        proof["kernel_bytes_per_socket"] = Value::Null;
        let file = File::new("kernel", &proof);
        let line = format!("plan --connections 100M --from {}", file.0.display());
        let answer = plan(&format!("{line} --memory 2GiB")).unwrap();
        let text = answer.to_string();
        assert!(text.contains("answer        at least 10 machines"), "{text}");
        let figures = serde_json::to_value(&answer).unwrap();
        assert_eq!(
            (&figures["machines"], &figures["machines_at_least"], &figures["machines_at_most"]),
            (&Value::Null, &10.into(), &Value::Null)
        );
        let text = plan(&line).unwrap().to_string();
        assert!(text.contains("give --memory of one machine"), "{text}");
    }

    #[test]
    fn implausible_kernel_memory_is_refused() {
        let run = |name: &str, change: &dyn Fn(&mut Value), goal: &str| {
            let mut proof = proof();
            change(&mut proof);
            let file = File::new(name, &proof);
            plan(&format!("plan {goal} --from {}", file.0.display()))
        };
        for (name, bytes, said) in
            [("none", 0.0, "0 B"), ("freed", -650.0, "-650 B"), ("build", 52_000.0, "52,000 B")]
        {
            let now = |proof: &mut Value| {
                proof["kernel_bytes_per_socket"] = Value::Null;
                proof["kernel_bytes_implausible"] = bytes.into();
            };
            let before = |proof: &mut Value| proof["kernel_bytes_per_socket"] = bytes.into();
            for change in [&now as &dyn Fn(&mut Value), &before] {
                let error = run(name, change, "--connections 1M").unwrap_err().to_string();
                assert!(error.contains(said) && error.contains("implausible"), "{error}");
                // It says nothing about messages.
                run(name, change, "--messages 1M").unwrap();
            }
        }
    }

    #[test]
    fn errors_name_the_missing_figure_or_flag() {
        let proof = File::new("says", &proof());
        let other = File::new("other", &json!({"hello": 1}));
        let mut dead = requests();
        dead["requests"]["ok"] = 0.into();
        dead["watched"]["rss_bytes_per_connection"] = Value::Null;
        dead["watched"]["cpu_ms_per_1000_messages"] = Value::Null;
        let dead = File::new("dead", &dead);
        let dead = dead.0.display();
        let broken = File::new("broken", &json!("x"));
        fs::write(&broken.0, "{\"a\":").unwrap();
        let [proof, other, broken] = [&proof, &other, &broken].map(|file| file.0.display());
        for (line, named) in [
            ("plan".to_owned(), "--views 30M --per-machine 69"),
            ("plan --connections 1M".to_owned(), "--from"),
            ("plan --views 1M".to_owned(), "--per-machine"),
            ("plan --views 1M --per-machine 1 --headroom 100%".to_owned(), "--headroom"),
            ("plan --views 1M --per-machine 1 --peak-time 0%".to_owned(), "--peak-time"),
            (format!("plan --views 1M --from {proof}"), "no requests"),
            (format!("plan --connections 1M --from {dead}"), "no connection of that run opened"),
            (format!("plan --messages 1M --from {dead}"), "nothing was answered in that run"),
            (format!("plan --connections 1M --from {other}"), "is not a result"),
            (format!("plan --connections 1M --from {broken}"), "is not JSON"),
            ("plan --connections 1M --from /no/such/file".to_owned(), "/no/such/file"),
        ] {
            let error = format!("{:#}", plan(&line).unwrap_err());
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
