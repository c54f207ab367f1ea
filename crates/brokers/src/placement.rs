//! [`Placement`]: which connection of a process has a channel or a key: one of a list by a hash of its name, or one
//! of a Redis Cluster by its hash slot.

use std::sync::Arc;

/// Hash slots of a Redis Cluster.
pub const SLOTS: usize = 16384;

/// Which connection has which names.
#[derive(Clone, Debug, Default)]
pub enum Placement {
    /// By a hash of the name, the same on all nodes.
    #[default]
    Hashed,
    /// By the hash slot of the name: the connection of each slot. Names of what belongs to a topic have its channel as
    /// their hash tag.
    Slots(Arc<[u8; SLOTS]>),
}

impl Placement {
    /// The connection, among so many.
    pub(crate) fn shard(&self, name: &str, shards: usize) -> usize {
        match self {
            Placement::Hashed => shard_of(name, shards),
            Placement::Slots(slots) => {
                slots.get(usize::from(slot_of(name.as_bytes()))).copied().unwrap_or_default().into()
            }
        }
    }

    /// Whether a name decides which server has it, and not only which connection.
    pub(crate) fn has_slots(&self) -> bool {
        matches!(self, Placement::Slots(_))
    }
}

/// The shard of a channel: the same on all nodes, so a fixed hash (FNV-1a, folded).
#[must_use]
pub fn shard_of(channel: &str, shards: usize) -> usize {
    let hash = channel.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    ((hash ^ (hash >> 32)) % shards.max(1) as u64) as usize
}

/// The hash slot of a key or channel of a Redis Cluster: of its hash tag, if it has one.
#[must_use]
pub fn slot_of(name: &[u8]) -> u16 {
    let tag = || {
        let from = name.iter().position(|byte| *byte == b'{')? + 1;
        let rest = name.get(from..)?;
        let length = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..length).filter(|tag| !tag.is_empty())
    };
    crc16(tag().unwrap_or(name)) % SLOTS as u16
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = table();
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_spread_over_shards_in_the_same_way_by_every_node() {
        let mut counts = [0; 3];
        for number in 0..3_000 {
            counts[shard_of(&format!("standfast:t:room:{number}"), 3)] += 1;
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
        let fixed = ["a", "b", "standfast:t:news"].map(|name| shard_of(name, 3));
        assert_eq!(fixed, [1, 1, 2], "other versions of this program must agree");
        assert_eq!(shard_of("a", 1), 0);
    }

    #[test]
    fn hash_slots_are_those_of_redis() {
        // From the specification, and as CLUSTER KEYSLOT of Redis 7.0 answers.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (name, slot) in [
            ("{standfast:t:a}", 2213),
            ("{standfast:t:b}:at", 14534),
            ("{standfast:t:x}y}", 3005),
            ("{standfast:t:x}y}:kept", 3005),
            ("{standfast:t:{z}}", 3617),
            ("{standfast:t:{z}}:at", 3617),
        ] {
            assert_eq!(slot_of(name.as_bytes()), slot, "{name}");
        }
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16384);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar"), crc16(b"foo{bar") % 16384);
    }

    #[test]
    fn a_slot_decides_about_the_connection_of_a_name() {
        let mut slots = [0; SLOTS];
        slots[2213] = 2;
        let placement = Placement::Slots(Arc::new(slots));
        assert_eq!(placement.shard("{standfast:t:a}:at", 3), 2);
        assert_eq!(placement.shard("{standfast:t:b}", 3), 0);
        assert_eq!(Placement::Hashed.shard("a", 3), 1);
    }
}
