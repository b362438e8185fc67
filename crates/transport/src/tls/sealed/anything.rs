//! Records of a peer that says anything, under the right keys. For fuzzers.

use std::sync::LazyLock;

use whimbrel_base::SecretKey;

use super::*;
use crate::tls::{TlsChannel, TlsIdentity};

/// What rustls keeps of a handshake, on the client's side and on the server's.
static KEPT: LazyLock<Vec<Arc<Common>>> = LazyLock::new(|| shake_hands().unwrap_or_default());

/// Opens bytes as records as they are; then seals what they say, a record behind each kind and length, and opens
/// that.
pub(crate) fn open_anything(bytes: &[u8]) {
    assert_eq!(KEPT.len(), 2, "no handshake");
    for common in &*KEPT {
        let (Some((_, mut other)), Some((mut sealer, mut opener))) = (ends(common), ends(common)) else {
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

fn shake_hands() -> Result<Vec<Arc<Common>>, TlsError> {
    let [ours, theirs] = [1, 2].map(|seed| SecretKey::from_bytes(&[seed; 32]));
    let (client, server) = (TlsIdentity::new(&ours)?, TlsIdentity::new(&theirs)?);
    let mut client = TlsChannel::client(client.client, theirs.id())?;
    let mut server = TlsChannel::server(server.server.admitting())?;
    for _ in 0..4 {
        pass(&mut client, &mut server)?;
        pass(&mut server, &mut client)?;
    }
    let openers = [client.release(&[])?, server.release(&[])?];
    Ok(openers.into_iter().flatten().map(|opener| opener.common).collect())
}

fn pass(from: &mut TlsChannel, to: &mut TlsChannel) -> Result<(), TlsError> {
    let mut wire = from.outgoing().waiting().to_vec();
    from.outgoing().wrote(wire.len());
    to.receive(&mut wire, &mut |_| {}).map(drop)
}
