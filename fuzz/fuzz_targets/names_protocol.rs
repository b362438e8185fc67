//! The name service's messages, arriving in any pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_names::protocol::{Decoder, Numbered, Reply};

fuzz_target!(|data: &[u8]| {
    let (at, bytes) = data.split_first().map_or((0, data), |(at, rest)| (usize::from(*at), rest));
    let (first, second) = bytes.split_at(at.min(bytes.len()));
    let mut requests = Decoder::<Numbered>::new();
    let mut replies = Decoder::<Reply>::new();
    for piece in [first, second] {
        requests.push(piece);
        replies.push(piece);
        while let Ok(Some(_)) = requests.next_message() {}
        while let Ok(Some(_)) = replies.next_message() {}
    }
});
