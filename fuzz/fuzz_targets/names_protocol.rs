//! The name service's messages and the frames of its meetings, arriving in any pieces, its vouchers, and what
//! users ask each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_base::EndpointId;
use whimbrel_names::protocol::{
    Decoder, MAX_MEETING_FRAME, MeetingFrames, Numbered, Reply, encode, encode_frame,
};
use whimbrel_names::{Decision, Proposal, Voucher};

fuzz_target!(|data: &[u8]| {
    // It is read before its signature is looked at.
    assert!(Voucher::verify(data, EndpointId::from_bytes(&[7; 32])).is_err());
    // A fuzzer has no key to sign one that makes sense, and does not guess a signature.
    let _ = (Proposal::read(data), Decision::read(data));
    let (at, bytes) = data.split_first().map_or((0, data), |(at, rest)| (usize::from(*at), rest));
    let (first, second) = bytes.split_at(at.min(bytes.len()));
    let mut requests = Decoder::<Numbered>::new();
    let mut replies = Decoder::<Reply>::new();
    let mut frames = MeetingFrames::default();
    for piece in [first, second] {
        requests.push(piece);
        replies.push(piece);
        frames.push(piece);
        // What is understood can be said again.
        while let Ok(Some(message)) = requests.next_message() {
            encode(&message).expect("a request that came fits");
        }
        while let Ok(Some(message)) = replies.next_message() {
            encode(&message).expect("a reply that came fits");
        }
        while let Ok(Some(frame)) = frames.next_frame() {
            assert!(frame.len() <= MAX_MEETING_FRAME);
            encode_frame(&frame).expect("a frame that came fits");
        }
    }
});
