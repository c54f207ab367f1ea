//! go-stress-testing's flags, in the dialects of its two branches. Go writes long names with one
//! dash, `-data x` and `-cpuNumber=2`; [`to_clap`] rewrites that for clap, so help, completions and
//! errors work as in the other commands.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::builder::ValueParser;
use clap::{Args as _, Command, ValueEnum};

use crate::commands::load::header;
use crate::{output, units};

const BOTH: &str = "Both dialects";
const FORK: &str = "Fork (with -dialect fork)";
pub(super) const OURS: &str = "Ours (not in go-stress-testing)";

/// Load generator with go-stress-testing's command line
///
/// Each user (-c) sends requests (-n) one after another over http, https, ws, wss, grpc or radius. Flags
/// take one dash or two.
#[derive(clap::Args, Clone, Debug)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    /// Concurrent users, one connection each
    #[arg(short = 'c', value_name = "N", default_value = "1", value_parser = units::positive_count,
        help_heading = BOTH)]
    pub(super) users: u64,
    /// Requests per user; c × n in total
    #[arg(short = 'n', value_name = "N", default_value = "1", value_parser = units::positive_count,
        help_heading = BOTH)]
    pub(super) each: u64,
    /// Target URL: http, https, ws, wss, grpc or radius [default scheme: http]. grpc://HOST:PORT calls the
    /// example of go-stress-testing, grpc://HOST:PORT/package.Service/Method any method;
    /// radius://HOST:PORT@REALM sends Access-Requests
    #[arg(short = 'u', value_name = "URL", help_heading = BOTH)]
    pub(super) url: Option<String>,
    /// Print status and body of every response if true
    #[arg(short = 'd', value_name = "true|false", default_value = "false", help_heading = BOTH)]
    pub(super) debug: String,
    /// File of curl commands with method, headers, body and, unless -u is given, the URL; several
    /// commands are used in turn
    #[arg(short = 'p', value_name = "FILE", help_heading = BOTH)]
    pub(super) curl: Option<PathBuf>,
    /// Response check: statusCode or json over http and grpc [default: statusCode, for the example over
    /// grpc json], json or any over ws [default: json]
    #[arg(short = 'v', value_name = "NAME", help_heading = BOTH)]
    pub(super) verify: Option<String>,
    /// Add a header; values of the same name are joined with "; "
    #[arg(short = 'H', value_name = "NAME: VALUE", value_parser = ValueParser::new(header),
        help_heading = BOTH)]
    pub(super) header: Vec<(String, String)>,
    /// Request body; makes the request a POST. Over grpc the message as JSON, for the example its userName
    #[arg(long, value_name = "TEXT", help_heading = BOTH)]
    pub(super) data: Option<String>,
    /// Idle connections per host; accepted without effect, each user keeps its own connection
    #[arg(short = 'm', value_name = "N", default_value = "1", help_heading = BOTH)]
    pub(super) idle: u64,
    /// Expected code: HTTP status, or "code" in the body with -v json [default: 200, with -v json in
    /// the fork's dialect 0]
    #[arg(long, value_name = "CODE", help_heading = BOTH)]
    pub(super) code: Option<i64>,
    /// HTTP/2 over https, with certificates checked; each user has its own connection
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help_heading = BOTH)]
    pub(super) http2: Option<bool>,
    /// Keep connections open between requests [default: false, fork: true]
    #[arg(short = 'k', num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help_heading = BOTH)]
    pub(super) keep: Option<bool>,
    /// Request timeout in seconds, 0 for 30; in the fork's dialect the run's duration in minutes
    #[arg(short = 't', value_name = "N", default_value = "0", help_heading = BOTH)]
    pub(super) time: u64,
    /// Time limit of the run in seconds, 0 for none; in the fork's dialect the request timeout
    /// [default: 0, fork: 60]
    #[arg(long, value_name = "SECONDS", help_heading = BOTH)]
    pub(super) timeout: Option<u64>,
    /// Number of worker threads [default: 1, fork: 4]
    #[arg(long = "cpuNumber", value_name = "N", help_heading = BOTH)]
    pub(super) cpu_number: Option<usize>,
    /// Follow redirects, at most 10
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        help_heading = BOTH)]
    pub(super) redirect: Option<bool>,

    /// Users started per step; -c must be a multiple
    #[arg(short = 's', value_name = "N", default_value = "0", help_heading = FORK)]
    pub(super) step: u64,
    /// Seconds between steps
    #[arg(short = 'i', value_name = "SECONDS", default_value = "1", help_heading = FORK)]
    pub(super) interval: u64,
    /// Receivers over ws: 0 each sender receives its answer, 1 one receiver, 2 as many receivers as -c;
    /// without --message every user receives every message
    #[arg(long, alias = "client", value_name = "0|1|2", default_value = "0", help_heading = FORK,
        value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(super) clients: u8,
    /// Every user sends over ws, or only one
    #[arg(long, aliases = ["issender", "sender"], value_name = "true|false", default_value = "false",
        help_heading = FORK)]
    pub(super) issenders: String,
    /// Group chat: with --message every user receives the senders' messages
    #[arg(long, value_name = "true|false", default_value = "false", help_heading = FORK)]
    pub(super) iscollectmsg: String,
    /// Each sender sends to every recipient
    #[arg(long, value_name = "true|false", default_value = "false", help_heading = FORK)]
    pub(super) toclients: String,
    /// Connect one by one (1) or 50 per second (2)
    #[arg(long, value_name = "1|2", default_value = "1", help_heading = FORK,
        value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) connectionmode: u8,
    /// Values of sendtoken,sendid,recvtoken,recvid, or *.csv files with one value per line; they replace
    /// {sendtoken} and so on in the URL and, with receivers, in --message
    #[arg(long, value_name = "A,B,C,D", help_heading = FORK)]
    pub(super) variable: Option<String>,
    /// Time limit of the run in seconds, 0 for none
    #[arg(long, value_name = "SECONDS", default_value = "0", help_heading = FORK)]
    pub(super) apptimeout: u64,

    /// Flag dialect; -t, -timeout and the defaults differ
    #[arg(long, value_enum, default_value = "upstream", help_heading = OURS)]
    pub(super) dialect: Dialect,
    /// Message to send over ws; $SEQ is replaced by a text that the answer must carry as "seq". With
    /// receivers: a template that contains {{stamp}}
    #[arg(long, value_name = "TEXT", help_heading = OURS)]
    pub(super) message: Option<String>,
    /// Pause before the first message over ws and between an answer and the next message
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration,
        help_heading = OURS)]
    pub(super) pause: Duration,
    /// How long to hold WebSockets open after the last message
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration,
        help_heading = OURS)]
    pub(super) hold: Duration,
    /// Types of a method over grpc from this .proto file; repeatable [default: reflection of the server]
    #[arg(long, value_name = "FILE", help_heading = OURS)]
    pub(super) proto: Vec<PathBuf>,
    /// User-Name over radius, without the realm
    #[arg(long, value_name = "NAME", default_value = "tim", help_heading = OURS)]
    pub(super) user: String,
    /// User-Password over radius
    #[arg(long, value_name = "TEXT", default_value = "12345678", help_heading = OURS)]
    pub(super) password: String,
    /// Secret that the radius server shares with this client
    #[arg(long, value_name = "TEXT", default_value = "cisco", help_heading = OURS)]
    pub(super) secret: String,
    /// NAS-Identifier over radius
    #[arg(long, value_name = "NAME", default_value = "benchmark", help_heading = OURS)]
    pub(super) nas: String,
    /// Write the results as JSON to a file, or - for standard output
    #[arg(long, value_name = "FILE", help_heading = OURS)]
    pub(super) json: Option<String>,
}

#[derive(ValueEnum, Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Dialect {
    /// link1st/go-stress-testing
    Upstream,
    /// yyltesting/goStressTesting
    Fork,
}

impl Args {
    pub(super) fn fork(&self) -> bool {
        self.dialect == Dialect::Fork
    }

    /// Returns whether standard output is reserved for JSON.
    pub(super) fn quiet(&self) -> bool {
        self.json.as_deref() == Some(output::STDOUT)
    }

    pub(super) fn keep(&self) -> bool {
        self.keep.unwrap_or(self.fork())
    }

    pub(super) fn http2(&self) -> bool {
        self.http2 == Some(true)
    }

    pub(super) fn cores(&self) -> usize {
        self.cpu_number.unwrap_or(if self.fork() { 4 } else { 1 }).max(1)
    }

    /// Returns the timeout of one request.
    pub(super) fn request_timeout(&self) -> Duration {
        let seconds = if self.fork() { self.timeout.unwrap_or(60) } else { self.time };
        Duration::from_secs(if seconds == 0 { 30 } else { seconds })
    }

    /// Whether the timeout of one request was given.
    pub(super) fn request_time_given(&self) -> bool {
        if self.fork() { self.timeout.is_some() } else { self.time > 0 }
    }

    /// Returns the time limit of the run, if there is one.
    pub(super) fn run_limit(&self) -> Option<Duration> {
        let seconds = if self.fork() { self.apptimeout } else { self.timeout.unwrap_or(0) };
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Returns the duration of the run, if it replaces `each`.
    pub(super) fn duration(&self) -> Option<Duration> {
        (self.fork() && self.time > 0).then(|| Duration::from_secs(60 * self.time))
    }

    pub(super) fn is_json(&self) -> bool {
        self.verify.as_deref() == Some("json")
    }

    pub(super) fn good_code(&self) -> i64 {
        self.code.unwrap_or(if self.fork() && self.is_json() { 0 } else { 200 })
    }

    /// Checks that the flags can be combined.
    ///
    /// # Errors
    /// Names the conflicting or unsupported flag.
    pub(super) fn check(&self) -> Result<()> {
        for (name, value) in [
            ("d", &self.debug),
            ("issenders", &self.issenders),
            ("iscollectmsg", &self.iscollectmsg),
            ("toclients", &self.toclients),
        ] {
            // One of its examples has `-sender 1`.
            if !matches!(value.to_ascii_lowercase().as_str(), "true" | "false" | "0" | "1") {
                bail!("invalid value \"{value}\" for -{name}: expected true or false");
            }
        }
        let of_fork = [
            ("s", self.step > 0),
            ("clients", self.clients > 0),
            ("issenders", is_true(&self.issenders)),
            ("iscollectmsg", is_true(&self.iscollectmsg)),
            ("toclients", is_true(&self.toclients)),
            ("connectionmode", self.connectionmode != 1),
            ("variable", self.variable.is_some()),
            ("apptimeout", self.apptimeout > 0),
        ];
        if let Some((name, _)) = of_fork.iter().find(|(_, given)| *given && !self.fork()) {
            bail!("-{name} exists in the fork only: add --dialect fork");
        }
        if self.step > 0 && !self.users.is_multiple_of(self.step) {
            bail!("-c {} is not a multiple of -s {}", self.users, self.step);
        }
        if self.url.is_none() && self.curl.is_none() {
            bail!("missing URL: give -u URL, or -p FILE with a curl command");
        }
        Ok(())
    }
}

/// Returns whether the text is `true` in any case, as Go's programs compare it, or `1`.
pub(super) fn is_true(text: &str) -> bool {
    text.eq_ignore_ascii_case("true") || text == "1"
}

/// Returns the command with all flags.
pub(super) fn command() -> Command {
    Args::augment_args(Command::new("stress"))
}

/// Rewrites Go's flag syntax for clap: one dash before long names, values in the next word even if
/// they begin with a dash, and a word after boolean flags.
pub(crate) fn to_clap(words: Vec<String>) -> Vec<String> {
    let command = command();
    // The name as clap has it, and whether a value follows.
    let find = |name: &str| {
        let mut arguments = command.get_arguments();
        let found = arguments.find(|argument| {
            let is_short = argument.get_short().is_some_and(|short| name == short.to_string());
            let aliases = argument.get_all_aliases().unwrap_or_default();
            is_short || argument.get_long() == Some(name) || aliases.contains(&name)
        })?;
        let takes = !found.is_require_equals_set();
        let dashes = if found.get_short().is_some() { "-" } else { "--" };
        Some((format!("{dashes}{name}"), takes))
    };
    let flag = |word: &str| {
        let name = word.strip_prefix("--").or(word.strip_prefix('-'))?;
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        find(name).map(|(name, takes)| (name, takes, value))
    };
    let mut read = words.into_iter().peekable();
    let mut written = Vec::new();
    // Up to the command's name.
    for word in read.by_ref().take(2) {
        written.push(word);
    }
    while let Some(word) = read.next() {
        let Some((name, takes, value)) = flag(&word) else {
            // A long name that is none: clap then says which is near.
            let long = word.strip_prefix('-').filter(|name| name.len() > 1);
            let long = long.filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
            written.push(long.map_or(word.clone(), |name| format!("--{name}")));
            continue;
        };
        let is_next = |word: &String| word.len() > 2 && !word.contains('=') && flag(word).is_some();
        let value = match value {
            Some(value) => Some(value),
            None if takes && read.peek().is_some_and(is_next) => {
                output::note(&format!("standfast stress: {word} has no value and is left out"));
                continue;
            }
            None if takes => read.next(),
            None => read.next_if(|next| next == "true" || next == "false"),
        };
        written.push(value.map_or(name.clone(), |value| format!("{name}={value}")));
    }
    written
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn read(line: &str) -> Result<Args> {
        let words = ["standfast", "stress"].into_iter().chain(line.split_whitespace());
        let words = to_clap(words.map(str::to_owned).collect());
        let words = words.iter().filter(|word| *word != "stress");
        let args = Args::from_arg_matches(&command().try_get_matches_from(words)?)?;
        args.check()?;
        Ok(args)
    }

    #[test]
    fn flags_are_written_as_in_go() {
        for line in [
            "-c 3 -n 4 -u http://a/ -data x=-1 -cpuNumber 2 -k -redirect=false -code 201",
            "--c 3 --n=4 -u=http://a/ --data=x=-1 -cpuNumber=2 -k=true --redirect false -code=201",
        ] {
            let args = read(line).unwrap();
            assert_eq!((args.users, args.each, args.url.as_deref()), (3, 4, Some("http://a/")));
            assert_eq!((args.data.as_deref(), args.cores(), args.keep()), (Some("x=-1"), 2, true));
            assert_eq!((args.redirect, args.good_code()), (Some(false), 201));
        }
        let args = read("-u a -data -starts-with-a-dash").unwrap();
        assert_eq!(args.data.as_deref(), Some("-starts-with-a-dash"));
    }

    #[test]
    fn the_dialects_differ_as_their_programs_do() {
        let upstream = read("-u a -t 5 -timeout 7").unwrap();
        assert_eq!(upstream.request_timeout(), Duration::from_secs(5));
        assert_eq!(upstream.run_limit(), Some(Duration::from_secs(7)));
        assert_eq!((upstream.duration(), upstream.cores(), upstream.keep()), (None, 1, false));
        assert_eq!(read("-u a").unwrap().request_timeout(), Duration::from_secs(30));
        let fork = read("-u a -t 5 -timeout 7 -apptimeout 9 --dialect fork -v json").unwrap();
        assert_eq!(fork.request_timeout(), Duration::from_secs(7));
        assert_eq!(fork.run_limit(), Some(Duration::from_secs(9)));
        assert_eq!(fork.duration(), Some(Duration::from_secs(300)));
        assert_eq!((fork.cores(), fork.keep(), fork.good_code()), (4, true, 0));
        let fork = read("-u a --dialect fork").unwrap();
        assert_eq!((fork.request_timeout(), fork.good_code()), (Duration::from_secs(60), 200));
    }

    #[test]
    fn examples_of_the_original_documentation_are_parsed() {
        let args = read("-c 100 -n 1 -issenders false -clients 0 -v -variable json -u wss://a/?t=2V --dialect fork").unwrap();
        assert_eq!((args.verify.as_deref(), args.variable.as_deref()), (None, Some("json")));
        assert_eq!(args.url.as_deref(), Some("wss://a/?t=2V"));
        let args = read("-c 1 -n 1 -sender 1 -clients 2 -u ws://a --dialect fork").unwrap();
        assert!(is_true(&args.issenders) && args.clients == 2);
        assert!(is_true(&read("-issender true -u ws://a --dialect fork").unwrap().issenders));
    }

    #[test]
    fn invalid_flags_are_named() {
        for (line, named) in [
            ("-c 1", "-u URL"),
            ("-u a -c 0", "at least 1"),
            ("-u a -d perhaps", "\"perhaps\" for -d"),
            ("-u a -clients 2", "--dialect fork"),
            ("-u a -c 10 -s 3 --dialect fork", "multiple"),
            ("-u a -frobnicate", "--frobnicate"),
            ("-u a -cpunumber 2", "--cpuNumber"),
        ] {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
