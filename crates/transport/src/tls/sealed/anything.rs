//! Records of a peer that says anything, under the right keys. For fuzzers.

use super::*;

/// Opens bytes as records as they are; then seals what they say, a record behind each kind and length, and
/// opens that. Each time with what rustls keeps of the handshake that `kept` comes from.
pub(in crate::tls) fn open_anything_after(kept: &Opener, bytes: &[u8]) {
    let (Some((_, mut other)), Some((mut sealer, mut opener))) = (ends(&kept.common), ends(&kept.common))
    else {
        return;
    };
    let opened = other.open(&mut bytes.to_vec(), |_| unreachable!("nobody without the key seals"));
    assert!(opened.is_err() || opened.is_ok_and(|used| used == 0));
    let (mut wire, mut rest) = (Vec::new(), bytes);
    while let Some((&[kind, length], after)) = rest.split_first_chunk::<2>() {
        let (content, after) = after.split_at(usize::from(length).min(after.len()));
        if sealer.short(&mut wire, kind, content).is_err() {
            break;
        }
        rest = after;
    }
    let (all, mut data) = (wire.len(), 0);
    let opened = opener.open(&mut wire, |plain| data += plain.len());
    assert!(opened.is_err() || opened.is_ok_and(|used| used == all));
    assert!(data <= bytes.len());
}

/// Both directions under one key that is always the same.
fn ends(common: &Arc<Common>) -> Option<(Sealer, Opener)> {
    let key = || Key::of(&AES_128_GCM, &[1; 16], &[2u8; 12].into()).ok();
    let sealer = Sealer { key: key()?, sequence: 0, limit: u64::MAX, failed: false, common: common.clone() };
    let opener = Opener {
        key: key()?,
        sequence: 0,
        message: Vec::new(),
        updates: 0,
        closed: false,
        common: common.clone(),
    };
    Some((sealer, opener))
}
