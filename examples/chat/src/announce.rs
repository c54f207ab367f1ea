//! [`Announcements`]: telling the users of an application who enters and leaves.
//!
//! One announcement of everybody's login to everybody is N² deliveries. So deliveries have a budget per
//! second: within it each user is announced at once, in gowebsocket's form; beyond it those of the
//! meantime are announced together. In an application with more users than a limit nobody is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::protocol;
use crate::users::{AppIndex, UserId};

/// Names in an announcement of several users; the others are a number.
pub(crate) const NAMES_MAX: usize = 16;

/// What is announced.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Enter,
    Exit,
}

impl Event {
    /// `cmd` on the wire.
    pub(crate) fn command(self) -> &'static str {
        if self == Event::Enter { "enter" } else { "exit" }
    }

    /// `msg` on the wire.
    pub(crate) fn text(self) -> &'static str {
        if self == Event::Enter { "哈喽~" } else { "用户已经离开~" }
    }
}

/// Users that are announced together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Together {
    pub(crate) names: Vec<UserId>,
    /// Further users, without names.
    pub(crate) more: u64,
}

#[derive(Default)]
struct App {
    /// Deliveries that may be made now.
    budget: u64,
    refilled_ms: u64,
    waiting: [Together; 2],
}

/// The enters and exits of all applications of this node.
pub(crate) struct Announcements {
    apps: Vec<Mutex<App>>,
    /// Users that an application may have.
    users_max: u64,
    /// Deliveries a second, for each application.
    rate: u64,
    single: AtomicU64,
    together: AtomicU64,
    omitted: AtomicU64,
}

impl Announcements {
    pub(crate) fn new(apps: usize, users_max: u64, rate: u64) -> Self {
        Announcements {
            apps: (0..apps).map(|_| Mutex::default()).collect(),
            users_max,
            rate,
            single: AtomicU64::new(0),
            together: AtomicU64::new(0),
            omitted: AtomicU64::new(0),
        }
    }

    /// A user of an application with this many users enters or leaves. Returns whether to announce it now.
    pub(crate) fn add(
        &self,
        app: AppIndex,
        event: Event,
        user: &UserId,
        users: u64,
        now_ms: u64,
    ) -> bool {
        let Some(app) = self.apps.get(usize::from(app)) else { return false };
        if users > self.users_max {
            self.omitted.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let mut app = app.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = app.waiting.iter().all(|waiting| waiting.names.is_empty());
        if quiet && app.pay(users, self.rate, now_ms) {
            self.single.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let waiting = &mut app.waiting[event as usize];
        if waiting.names.len() < NAMES_MAX {
            waiting.names.push(*user);
        } else {
            waiting.more += 1;
        }
        false
    }

    /// What an application's users have to be told together, as far as the budget allows it now.
    pub(crate) fn take(
        &self,
        app: AppIndex,
        users: u64,
        now_ms: u64,
    ) -> impl Iterator<Item = (Event, Together)> + use<> {
        let mut taken = [None, None];
        if let Some(app) = self.apps.get(usize::from(app)) {
            let mut app = app.lock().unwrap_or_else(PoisonError::into_inner);
            for (event, taken) in [Event::Enter, Event::Exit].into_iter().zip(&mut taken) {
                let waiting = &app.waiting[event as usize];
                let count = waiting.names.len() as u64 + waiting.more;
                if count == 0 || !app.pay(users, self.rate, now_ms) {
                    continue;
                }
                let counter = if users > self.users_max { &self.omitted } else { &self.together };
                counter.fetch_add(count, Ordering::Relaxed);
                let waiting = std::mem::take(&mut app.waiting[event as usize]);
                *taken = (users <= self.users_max).then_some((event, waiting));
            }
        }
        taken.into_iter().flatten()
    }

    /// Users that were announced alone, together with others, and not at all.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.single, &self.together, &self.omitted].map(|count| count.load(Ordering::Relaxed))
    }
}

impl App {
    /// Takes this many deliveries from the budget, which holds those of one second or one announcement.
    fn pay(&mut self, deliveries: u64, rate: u64, now_ms: u64) -> bool {
        let most = rate.max(deliveries);
        let gained = rate.saturating_mul(now_ms.saturating_sub(self.refilled_ms)) / 1_000;
        if gained > 0 {
            self.budget = self.budget.saturating_add(gained).min(most);
            self.refilled_ms = now_ms;
        }
        match self.budget.checked_sub(deliveries) {
            Some(left) => {
                self.budget = left;
                true
            }
            None => false,
        }
    }
}

/// The announcement of several users: in gowebsocket's form for the first, with `others` and `more`.
pub(crate) fn push_text(seq: &str, event: Event, users: &Together, text: &mut String) {
    let Some((first, others)) = users.names.split_first() else { return };
    protocol::push_begin(text, seq, event.command(), event.text(), first.as_str(), "");
    if users.more > 0 || !others.is_empty() {
        text.push_str(",\"others\":[");
        for (at, other) in others.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            protocol::push_json(text, other.as_str());
        }
        text.push_str("],\"more\":");
        text.push_str(&users.more.to_string());
    }
    text.push_str("}}}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(number: u64) -> UserId {
        UserId::new(&format!("u{number}")).unwrap()
    }

    #[test]
    fn deliveries_keep_to_their_rate_whatever_the_number_of_logins() {
        let announcements = Announcements::new(1, 10_000, 20_000);
        let (mut deliveries, mut announced) = (0, 0);
        for number in 0..10_000 {
            let (users, now_ms) = (number + 1, 1_000 + number / 5);
            if announcements.add(0, Event::Enter, &user(number), users, now_ms) {
                (deliveries, announced) = (deliveries + users, announced + 1);
            }
            if number % 1_000 == 0 {
                for (event, together) in announcements.take(0, users, now_ms) {
                    assert_eq!(event, Event::Enter);
                    deliveries += users;
                    announced += together.names.len() as u64 + together.more;
                }
            }
        }
        announced += announcements.take(0, 10_000, 5_000).map(|(_, t)| t.more + 16).sum::<u64>();
        assert!(deliveries <= 3 * 20_000, "{deliveries} deliveries in two seconds");
        assert_eq!(announced, 10_000);
        let [single, together, omitted] = announcements.counts();
        assert!(single > 100 && single + together == 10_000 && omitted == 0, "{single}");
    }

    #[test]
    fn in_a_large_application_nobody_is_announced() {
        let announcements = Announcements::new(1, 10, 100);
        assert!(announcements.add(0, Event::Exit, &user(1), 10, 1_000));
        assert!(!announcements.add(0, Event::Exit, &user(1), 11, 1_000));
        assert_eq!(announcements.take(0, 11, 9_000).count(), 0);
        assert_eq!(announcements.counts(), [1, 0, 1]);
    }

    #[test]
    fn a_budget_below_the_number_of_users_is_saved_up() {
        let announcements = Announcements::new(1, 1_000, 100);
        assert!(!announcements.add(0, Event::Enter, &user(1), 500, 1_000));
        assert_eq!(announcements.take(0, 500, 2_000).count(), 0);
        assert_eq!(announcements.take(0, 500, 6_000).count(), 1);
        assert_eq!(announcements.counts(), [0, 1, 0]);
    }

    #[test]
    fn an_announcement_of_several_has_the_form_of_one() {
        let together = Together { names: vec![user(1)], more: 0 };
        let mut text = String::new();
        push_text("7", Event::Enter, &together, &mut text);
        let expected = r#"{"seq":"7","cmd":"enter","response":{"code":200,"codeMsg":"Ok","data":{"target":"","type":"text","msg":"哈喽~","from":"u1"}}}"#;
        assert_eq!(text, expected);
        let together = Together { names: vec![user(1), user(2), user(3)], more: 4 };
        text.clear();
        push_text("8", Event::Exit, &together, &mut text);
        assert!(text.ends_with(r#""from":"u1","others":["u2","u3"],"more":4}}}"#), "{text}");
    }
}
