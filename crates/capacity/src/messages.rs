//! Error messages of programs that run into a limit, with their cause and remedies. `standfast doctor
//! explain` searches here, and `docs/operate/troubleshooting.md` is generated from it. The messages are in
//! `table.rs`, their meaning and the remedies in `trouble.rs`.
//!
//! Messages are written as the programs print them, with `N` for numbers and `X` for names. A message is
//! recognised by those of its phrases that never change.

mod table;
mod trouble;

use std::fmt::Write;

pub use table::MESSAGES;
pub use trouble::Trouble;

/// A known message.
#[derive(Debug)]
pub struct Message {
    /// The programs that print it.
    pub program: &'static str,
    /// As it is printed.
    pub text: &'static str,
    /// Phrases that all occur in it, in lower case.
    phrases: &'static [&'static str],
    /// The problem it is about.
    pub trouble: Trouble,
}

/// The known messages that a text contains, the likeliest first, one per problem. Case, quotes, numbers and
/// the rest of the text are ignored.
#[must_use]
pub fn explain(text: &str) -> Vec<&'static Message> {
    let text = plain(text);
    let mut matches: Vec<&Message> = MESSAGES
        .iter()
        .filter(|message| message.phrases.iter().all(|phrase| contains(&text, phrase)))
        .collect();
    // Longer phrases match by chance less often.
    matches.sort_by_key(|message| {
        std::cmp::Reverse(message.phrases.iter().map(|phrase| phrase.len()).sum::<usize>())
    });
    let mut seen = Vec::new();
    matches.retain(|message| {
        let new = !seen.contains(&message.trouble);
        seen.push(message.trouble);
        new
    });
    matches
}

/// For a text without a known message: the messages that share most words with it, the nearest first.
#[must_use]
pub fn nearest(text: &str, most: usize) -> Vec<&'static Message> {
    let text = plain(text);
    let words: Vec<&str> = text.split(' ').filter(|word| word.len() > 3).collect();
    let shared = |message: &Message| {
        let of = plain(message.text);
        words.iter().filter(|word| of.split(' ').any(|other| other == **word)).count()
    };
    let mut near: Vec<(usize, &Message)> =
        MESSAGES.iter().map(|message| (shared(message), message)).filter(|(n, _)| *n > 0).collect();
    near.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    near.into_iter().take(most).map(|(_, message)| message).collect()
}

/// The text of `docs/operate/troubleshooting.md`.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# Troubleshooting: error messages, causes and remedies\n\n\
         Generated from the table that `standfast doctor explain \"MESSAGE\"` searches; a test \
         compares them.\n`standfast doctor` shows what this machine allows and needs, and \
         [limits.md](limits.md) explains the limits.\n",
    );
    for trouble in Trouble::ALL {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n## {}\n\n{}\n\n", trouble.name(), trouble.cause());
        page += "| printed by | message |\n|---|---|\n";
        for message in MESSAGES.iter().filter(|message| message.trouble == trouble) {
            let _ = writeln!(page, "| {} | `{}` |", message.program, message.text);
        }
        page += "\n| where | remedy |\n|---|---|\n";
        for (place, line) in trouble.remedies() {
            let _ = writeln!(page, "| {place} | `{}` |", line.replace('|', "\\|"));
        }
    }
    page
}

/// The text in lower case, without quotes, with single spaces.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for word in text.to_lowercase().split_whitespace() {
        if !plain.is_empty() {
            plain.push(' ');
        }
        plain.extend(word.chars().filter(|c| !matches!(c, '\'' | '"' | '`' | '’' | '“' | '”')));
    }
    plain
}

/// Whether a text contains a phrase as whole words, so that 24 is not found in 1024.
fn contains(text: &str, phrase: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase).any(|(at, found)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = text.get(at + found.len()..).and_then(|after| after.chars().next());
        let edge = |own: Option<char>, other| !(inside(own) && inside(other));
        edge(phrase.chars().next(), before) && edge(phrase.chars().next_back(), after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_recognised_with_its_problem() {
        for message in MESSAGES {
            let found = explain(message.text);
            let first = found.first().unwrap_or_else(|| panic!("{} is not found", message.text));
            assert_eq!(first.trouble, message.trouble, "{}: {}", message.text, first.text);
            assert!(message.phrases.iter().all(|phrase| *phrase == phrase.to_lowercase()));
        }
    }

    #[test]
    fn messages_are_recognised_within_log_lines() {
        for (line, trouble) in [
            (
                "2026/11/20 03:12:01 [alert] 71#71: 768 worker_connections are not enough",
                Trouble::WorkerConnections,
            ),
            (
                "2026/11/20 [crit] 9#9: accept4() failed (24: Too many open files)",
                Trouble::Descriptors,
            ),
            (
                "http: Accept error: accept tcp [::]:8080: accept4: too many open files; retrying in 1s",
                Trouble::Descriptors,
            ),
            (
                "[ 812.1] nf_conntrack: nf_conntrack: table full, dropping packet",
                Trouble::Conntrack,
            ),
            ("OSError: [Errno 24] Too many open files", Trouble::Descriptors),
            ("bash: fork: retry: Resource temporarily unavailable", Trouble::Threads),
            ("dial tcp 10.0.0.1:80: connect: cannot assign requested address", Trouble::Ports),
            ("connect: can’t assign requested address", Trouble::Ports),
            ("ListenOverflows", Trouble::AcceptQueue),
            ("standfast_syncookies_sent_total 12", Trouble::AcceptQueue),
            ("TOO MANY OPEN FILES IN SYSTEM", Trouble::SystemFiles),
            ("FD limit (1024) too low for maxconn=5000/maxsock=10030.", Trouble::Descriptors),
        ] {
            let found = explain(line);
            assert_eq!(found.first().map(|message| message.trouble), Some(trouble), "{line}");
        }
    }

    #[test]
    fn unknown_messages_are_not_explained() {
        for text in ["", "hello", "the disk is on fire", "port 1024 is fine", "no errors 240"] {
            assert!(explain(text).is_empty(), "{text}: {:?}", explain(text));
        }
        let near = nearest("worker connections were not enough today", 3);
        assert!(near.iter().any(|message| message.text.contains("not enough")), "{near:?}");
        assert!(nearest("zzz", 3).is_empty());
    }

    #[test]
    fn every_problem_has_messages_and_remedies() {
        for trouble in Trouble::ALL {
            assert!(MESSAGES.iter().any(|message| message.trouble == trouble));
            assert!(!trouble.remedies().is_empty() && !trouble.cause().is_empty());
            assert!(page().contains(trouble.name()));
        }
    }
}
