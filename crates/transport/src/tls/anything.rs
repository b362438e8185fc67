//! What peers and other processes may say, all of it. For fuzzers.

use std::sync::LazyLock;

use whimbrel_base::SecretKey;

use super::TlsError;
use super::channel::TlsChannel;
use super::config::TlsIdentity;
use super::passed_on::{TlsSessions, next};
use super::sealed::{Opener, open_anything_after};

/// What is left of a handshake, on the client's side and on the server's.
static KEPT: LazyLock<Vec<Opener>> = LazyLock::new(|| shake_hands().unwrap_or_default());

/// Opens bytes as records as they are, and what they say once more under the right keys.
pub(crate) fn open_anything(bytes: &[u8]) {
    assert_eq!(KEPT.len(), 2, "no handshake");
    KEPT.iter().for_each(|kept| open_anything_after(kept, bytes));
}

/// Remembers whatever comes; what was understood of it is remembered by the next one too.
pub(crate) fn remember_anything(bytes: &[u8]) {
    thread_local! {
        static IDENTITY: Option<TlsIdentity> = TlsIdentity::new(&SecretKey::from_bytes(&[1; 32])).ok();
    }
    let mut rest = bytes;
    while let Some((_, _, ticket, value)) = next(&mut rest) {
        assert!(ticket.len() + value.len() < bytes.len());
    }
    IDENTITY.with(|identity| {
        if let Some(identity) = identity {
            identity.remember(&TlsSessions::from_bytes(bytes));
        }
    });
}

fn shake_hands() -> Result<Vec<Opener>, TlsError> {
    let [ours, theirs] = [1, 2].map(|seed| SecretKey::from_bytes(&[seed; 32]));
    let (client, server) = (TlsIdentity::new(&ours)?, TlsIdentity::new(&theirs)?);
    let mut client = TlsChannel::client(client.clients.direct(theirs.id())?, theirs.id())?;
    let mut server = TlsChannel::server(server.server.admitting())?;
    for _ in 0..4 {
        pass(&mut client, &mut server)?;
        pass(&mut server, &mut client)?;
    }
    let openers = [client.release(&[])?, server.release(&[])?];
    Ok(openers.into_iter().flatten().collect())
}

fn pass(from: &mut TlsChannel, to: &mut TlsChannel) -> Result<(), TlsError> {
    let mut wire = from.outgoing().waiting().to_vec();
    from.outgoing().wrote(wire.len());
    to.receive(&mut wire, &mut |_| {}).map(drop)
}
