//! Session ids that clients present to resume, with the code of `serve`: any text names the connection whose
//! id it is, or none. One changed byte makes it another's or nobody's.
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "a module of `serve`")]

use std::sync::LazyLock;

use engine::ConnId;
use libfuzzer_sys::fuzz_target;
use standfast_fuzz::input::Input;

#[path = "../../crates/serve/src/sid.rs"]
mod sid;

use sid::Sids;

static MAKERS: LazyLock<[Sids; 2]> =
    LazyLock::new(|| [Sids::default(), Sids::secret().expect("random numbers")]);

fuzz_target!(|data: &[u8]| {
    for sids in &*MAKERS {
        if let Ok(text) = std::str::from_utf8(data) {
            // libFuzzer learns valid ones, as it sees what is compared below.
            if let Some(id) = sids.find(text) {
                assert_eq!(text.to_ascii_lowercase(), sids.of(id));
            }
        }
        let mut input = Input::new(data);
        let number = u64::from_le_bytes(std::array::from_fn(|_| input.byte()));
        let sid = sids.of(ConnId::from_u64(number));
        assert_eq!(sids.find(&sid).map(|id| id.as_u64()), Some(number));
        let mut changed = sid.clone().into_bytes();
        let at = usize::from(input.byte()) % changed.len();
        match input.byte() {
            0 => drop(changed.remove(at)),
            1 => changed.insert(at, b'0'),
            byte => changed[at] = byte,
        }
        let Ok(changed) = String::from_utf8(changed) else { continue };
        // Digits of ids that only name a connection may be capitals.
        if changed.to_ascii_lowercase() != sid {
            assert!(sids.find(&changed).is_none(), "{changed:?} for {sid:?}");
        }
    }
});
