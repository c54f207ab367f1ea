//! Session ids: names of connections, given to clients and applications. An id does not help to guess
//! another one.

use std::hash::{BuildHasher, RandomState};

use engine::ConnId;

/// Creates and verifies session ids. Those of one process are invalid in another.
#[derive(Default)]
pub(crate) struct Sids {
    /// Keyed at random (SipHash).
    proof: RandomState,
}

impl Sids {
    /// The session id of a connection: its number and a keyed hash of it, in hexadecimal.
    pub(crate) fn of(&self, id: ConnId) -> String {
        format!("{:016x}{:016x}", id.as_u64(), self.proof.hash_one(id.as_u64()))
    }

    /// The connection that a session id names; it may be closed. `None` for an id of another process.
    pub(crate) fn find(&self, sid: &str) -> Option<ConnId> {
        if sid.len() != 32 || !sid.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let part = |range| u64::from_str_radix(sid.get(range)?, 16).ok();
        let (number, proof) = (part(0..16)?, part(16..32)?);
        (self.proof.hash_one(number) == proof).then(|| ConnId::from_u64(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_names_its_connection_and_altered_ids_are_refused() {
        let sids = Sids::default();
        let id = ConnId::from_u64(0x0040_0001_0000_0007);
        let sid = sids.of(id);
        assert_eq!((sids.find(&sid), sid.len()), (Some(id), 32));
        let another = format!("{:016x}{}", 0x0040_0001_0000_0008_u64, &sid[16..]);
        for wrong in [&*another, &sid[..31], "", "é", &sid.replace(&sid[16..17], "+")] {
            assert_eq!(sids.find(wrong), None, "{wrong}");
        }
        assert_eq!(Sids::default().find(&sid), None, "of another process");
    }
}
