//! Notices: any datagram is refused, and so is any body that somebody with the key sealed, or it can be said
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_proto::notice::{self, NoticeKey};

fuzz_target!(|data: &[u8]| {
    let key = NoticeKey::of_nobody();
    let _ = notice::tag(data);
    assert_eq!(key.open(data), None, "nobody without the key is authentic");
    let datagram = key.sealed(data);
    if let Some(notice) = key.open(&datagram) {
        assert_eq!(key.open(&key.seal(&notice)), Some(notice));
    }
});
