//! Session ids: names of connections, given to clients and applications. An id does not help to guess
//! another one. Where sessions can be resumed the id is all that is needed for it, so it has 128 bits that
//! cannot be computed without a key.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{hmac, rand};
use engine::ConnId;

/// Bytes of the proof in an id by which a session can be resumed.
const PROOF_BYTES: usize = 16;

/// Creates and verifies session ids. Those of one process are invalid in another.
#[derive(Default)]
pub(crate) struct Sids {
    /// Keyed at random (SipHash).
    proof: RandomState,
    /// Used instead of it where sessions can be resumed.
    key: Option<hmac::Key>,
}

impl Sids {
    /// Ids by which sessions can be resumed; `None` if the system has no random numbers.
    pub(crate) fn secret() -> Option<Self> {
        let mut key = [0; 32];
        rand::fill(&mut key).ok()?;
        Some(Sids { key: Some(hmac::Key::new(hmac::HMAC_SHA256, &key)), ..Sids::default() })
    }

    /// The session id of a connection: its number and a keyed hash of it, in hexadecimal.
    pub(crate) fn of(&self, id: ConnId) -> String {
        let Some(key) = &self.key else {
            return format!("{:016x}{:016x}", id.as_u64(), self.proof.hash_one(id.as_u64()));
        };
        let mut sid = format!("{:016x}", id.as_u64());
        for byte in hmac::sign(key, sid.as_bytes()).as_ref().iter().take(PROOF_BYTES) {
            let _ = write!(sid, "{byte:02x}");
        }
        sid
    }

    /// Whether a text has the form of an id by which a session can be resumed, of any process.
    pub(crate) fn is_secret(sid: &str) -> bool {
        sid.len() == 16 + 2 * PROOF_BYTES && sid.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// The connection that a session id names; it may be closed. `None` for an id of another process.
    pub(crate) fn find(&self, sid: &str) -> Option<ConnId> {
        if self.key.is_some() {
            let number = u64::from_str_radix(sid.get(..16)?, 16).ok()?;
            let id = ConnId::from_u64(number);
            let same = verify_slices_are_equal(sid.as_bytes(), self.of(id).as_bytes());
            return same.is_ok().then_some(id);
        }
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
        let makers: [fn() -> Sids; 2] = [Sids::default, || Sids::secret().unwrap()];
        for (make, length) in makers.into_iter().zip([32, 48]) {
            let sids = make();
            let id = ConnId::from_u64(0x0040_0001_0000_0007);
            let sid = sids.of(id);
            assert_eq!((sids.find(&sid), sid.len()), (Some(id), length));
            let another = format!("{:016x}{}", 0x0040_0001_0000_0008_u64, &sid[16..]);
            let short = &sid[..length - 1];
            for wrong in [&*another, short, "", "é", &sid.replace(&sid[16..17], "+")] {
                assert_eq!(sids.find(wrong), None, "{wrong}");
            }
            assert_eq!(make().find(&sid), None, "of another process");
        }
    }
}
