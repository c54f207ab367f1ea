//! [`Rare`]: what few users have, in 8 bytes of those that have nothing of it.

use crate::transport::tunnel::Tunnel;
use crate::workload::requests::link::Link;
use crate::workload::requests::parallel::Group;
use crate::workload::requests::request::Request;

/// Connections that are not the active one, and what is needed while a tunnel opens, a redirect is
/// followed or branches run.
pub(crate) struct Rare<C>(Option<Box<Fields<C>>>);

struct Fields<C> {
    /// The one used last is the last.
    links: Vec<Link<C>>,
    /// The tunnel that is being opened.
    tunnel: Option<Box<Tunnel>>,
    /// The request that follows a redirect.
    redirect: Option<Box<Request>>,
    /// The requests that its branches send.
    group: Option<Box<Group>>,
}

const _: () = assert!(size_of::<Rare<u64>>() == 8);

impl<C> Default for Rare<C> {
    fn default() -> Self {
        Rare(None)
    }
}

impl<C> Rare<C> {
    fn fields(&mut self) -> &mut Fields<C> {
        self.0.get_or_insert_with(|| {
            Box::new(Fields { links: Vec::new(), tunnel: None, redirect: None, group: None })
        })
    }

    #[inline]
    pub(crate) fn links(&self) -> &[Link<C>] {
        self.0.as_ref().map_or(&[], |fields| &fields.links)
    }

    pub(crate) fn link_mut(&mut self, at: usize) -> Option<&mut Link<C>> {
        self.0.as_mut()?.links.get_mut(at)
    }

    pub(crate) fn push_link(&mut self, link: Link<C>) {
        let links = &mut self.fields().links;
        // A user has few connections.
        links.reserve_exact(1);
        links.push(link);
    }

    pub(crate) fn take_links(&mut self) -> Vec<Link<C>> {
        self.0.as_mut().map(|fields| std::mem::take(&mut fields.links)).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn tunnel(&mut self) -> Option<&mut Tunnel> {
        self.0.as_mut()?.tunnel.as_deref_mut()
    }

    #[inline]
    pub(crate) fn has_tunnel(&self) -> bool {
        self.0.as_ref().is_some_and(|fields| fields.tunnel.is_some())
    }

    pub(crate) fn set_tunnel(&mut self, tunnel: Option<Box<Tunnel>>) {
        if tunnel.is_some() || self.0.is_some() {
            self.fields().tunnel = tunnel;
        }
    }

    #[inline]
    pub(crate) fn redirect(&self) -> Option<&Request> {
        self.0.as_ref()?.redirect.as_deref()
    }

    #[inline]
    pub(crate) fn take_redirect(&mut self) -> Option<Box<Request>> {
        self.0.as_mut()?.redirect.take()
    }

    #[inline]
    pub(crate) fn set_redirect(&mut self, redirect: Option<Box<Request>>) {
        if redirect.is_some() || self.0.is_some() {
            self.fields().redirect = redirect;
        }
    }

    pub(crate) fn group(&mut self) -> Option<&mut Group> {
        self.0.as_mut()?.group.as_deref_mut()
    }

    #[inline]
    pub(crate) fn has_group(&self) -> bool {
        self.0.as_ref().is_some_and(|fields| fields.group.is_some())
    }

    pub(crate) fn set_group(&mut self, group: Group) {
        self.fields().group = Some(Box::new(group));
    }

    pub(crate) fn take_group(&mut self) -> Option<Box<Group>> {
        self.0.as_mut()?.group.take()
    }
}

impl<C: Default> Rare<C> {
    /// Removes the link at a place, which there is.
    pub(crate) fn remove_link(&mut self, at: usize) -> Link<C> {
        let fields = self.0.as_mut().filter(|fields| at < fields.links.len());
        fields.map_or_else(Link::default, |fields| fields.links.remove(at))
    }
}
