//! A PROXY header, versions 1 and 2: the result does not depend on how it is split, and the header ends
//! where it says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{Status, V2_BYTES_MAX, parse_proxy_header};

fuzz_target!(|data: &[u8]| {
    let whole = parse_proxy_header(data);
    for end in 0..data.len() {
        match parse_proxy_header(&data[..end]) {
            Ok(Status::Partial) => {}
            torn => {
                assert_eq!(torn, whole, "the reads decide what a header is");
                break;
            }
        }
    }
    let Ok(Status::Complete(header)) = whole else { return };
    assert!(header.bytes <= data.len() && header.bytes <= V2_BYTES_MAX);
    // What follows it is not read.
    assert_eq!(parse_proxy_header(&data[..header.bytes]), whole);
    if data[0] == b'P' {
        assert!(header.bytes <= 107 && data[..header.bytes].ends_with(b"\r\n"));
    }
});
