//! [`Ledger`]: the book of a run, in which every handler records what happened; [`Judge`]: the first contradiction in
//! it is the run's failure.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use engine::Handler;
use engine::sys::sim::Kernel;

use crate::Member;

/// One book for all.
pub(crate) struct Ledger<B>(Rc<RefCell<B>>);

impl<B> Clone for Ledger<B> {
    fn clone(&self) -> Self {
        Ledger(Rc::clone(&self.0))
    }
}

impl<B> Ledger<B> {
    pub(crate) fn of(book: B) -> Self {
        Ledger(Rc::new(RefCell::new(book)))
    }

    pub(crate) fn book(&self) -> RefMut<'_, B> {
        self.0.borrow_mut()
    }
}

impl<B: Judge> Ledger<B> {
    /// Gives a worker a turn if it would not sleep; whether it had anything to do.
    pub(crate) fn turn<H: Handler>(&self, member: &mut Member<H>, kernel: &Kernel) -> bool {
        member.step(kernel).unwrap_or_else(|wrong| {
            self.book().fail(wrong);
            true
        })
    }
}

/// A book that knows what is wrong.
pub(crate) trait Judge {
    /// The first failure.
    fn failure(&mut self) -> &mut Option<String>;

    /// Records a failure, unless there is one.
    fn fail(&mut self, what: impl Into<String>) {
        self.failure().get_or_insert(what.into());
    }

    fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what());
        }
    }
}
