//! [`Link`] without the features `redis` and `nats`: there are no other processes.

use std::io;

use topics::{Directory, Publication};

use crate::remote::Post;
use crate::{Error, Refused};

/// There is none.
pub(crate) type Choice = ();

#[derive(Clone, Default)]
pub(crate) struct Link;

impl Link {
    pub(crate) fn new((): Choice, _directory: &mut Directory) -> Result<Link, Error> {
        Ok(Link)
    }

    pub(crate) fn start(
        &self,
        _workers: &engine::Remote<Post>,
        _directory: &Directory,
    ) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn end(&self) {}

    #[inline]
    pub(crate) fn publish(
        &self,
        _publication: &Publication,
        here: impl FnOnce() -> Result<(), topics::Refused>,
    ) -> Result<(), Refused> {
        Ok(here()?)
    }
}
