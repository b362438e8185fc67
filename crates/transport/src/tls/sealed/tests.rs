#![allow(clippy::unwrap_used)]

use whimbrel_base::SecretKey;

use super::*;
use crate::tls::{TlsChannel, TlsIdentity};

/// What one side has after a handshake.
struct Side {
    sealer: Sealer,
    opener: Opener,
}

fn pair() -> (Side, Side) {
    let (a, b) = (SecretKey::generate(), SecretKey::generate());
    let (ta, tb) = (TlsIdentity::new(&a).unwrap(), TlsIdentity::new(&b).unwrap());
    let mut client = TlsChannel::client(ta.clients.direct(b.id()).unwrap(), b.id()).unwrap();
    let mut server = TlsChannel::server(tb.server.admitting()).unwrap();
    for _ in 0..4 {
        pass(&mut client, &mut server);
        pass(&mut server, &mut client);
    }
    (side(client), side(server))
}

fn pass(from: &mut TlsChannel, to: &mut TlsChannel) {
    let mut wire = from.outgoing().waiting().to_vec();
    from.outgoing().wrote(wire.len());
    assert_eq!(to.receive(&mut wire, &mut |_| {}).unwrap(), wire.len());
}

fn side(mut channel: TlsChannel) -> Side {
    let opener = channel.release(&[]).unwrap().unwrap();
    Side { sealer: channel.take_sealer().unwrap(), opener }
}

fn seal(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    sealer.record(&mut wire, |out| out.extend_from_slice(plain)).unwrap();
    wire
}

/// A record of any content.
fn odd(sealer: &mut Sealer, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    sealer.short(&mut wire, kind, content).unwrap();
    wire
}

fn open(opener: &mut Opener, mut wire: Vec<u8>) -> Result<Vec<u8>, TlsError> {
    let mut plain = Vec::new();
    let used = opener.open(&mut wire, |data| plain.extend_from_slice(data))?;
    assert_eq!(used, wire.len());
    Ok(plain)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// The client's application data of RFC 8448 §3.
#[test]
fn a_record_is_that_of_rfc_8448() {
    let key = || {
        let iv: [u8; 12] = hex("5b78923dee08579033e523d9").try_into().unwrap();
        Key::of(&AES_128_GCM, &hex("17422dda596ed5d9acd890e3c63f5051"), &iv.into()).unwrap()
    };
    let (mut client, mut server) = pair();
    (client.sealer.key, client.sealer.sequence) = (key(), 0);
    (server.opener.key, server.opener.sequence) = (key(), 0);
    let plain: Vec<u8> = (0..50).collect();
    let wire = seal(&mut client.sealer, &plain);
    let expected = hex("17030300 43a23f70 54b62c94 d0affafe 8228ba55 cbefacea 42f914aa 66bcab3f 2b9819a8
        a5b46b39 5bd54a9a 20441e2b 62974e1f 5a6292a2 97701 4bd1e3dea e63aeebb 21694915 e4");
    assert_eq!(wire, expected);
    assert_eq!(open(&mut server.opener, wire).unwrap(), plain);
}

#[test]
fn records_of_all_sizes_go_both_ways_in_whatever_pieces_they_arrive() {
    let (mut client, mut server) = pair();
    for size in [1, 2, 100, 16_383, 16_384] {
        let plain: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let wire = seal(&mut client.sealer, &plain);
        let mut held = wire[..wire.len() - 1].to_vec();
        assert_eq!(server.opener.open(&mut held, |_| panic!("half a record")).unwrap(), 0);
        assert_eq!(open(&mut server.opener, wire).unwrap(), plain);
        let answer = seal(&mut server.sealer, &plain);
        assert_eq!(open(&mut client.opener, answer).unwrap(), plain);
    }
    let mut wire = Vec::new();
    client.sealer.record(&mut wire, |_| {}).unwrap();
    assert!(wire.is_empty());
}

#[test]
fn what_was_changed_repeated_or_left_out_is_refused() {
    let refused = |spoil: &dyn Fn(&mut Vec<u8>, &mut Sealer)| {
        let (mut client, mut server) = pair();
        let mut wire = seal(&mut client.sealer, b"whimbrel");
        spoil(&mut wire, &mut client.sealer);
        open(&mut server.opener, wire).unwrap_err();
    };
    for at in [0, 1, 4, 5, 12, 20] {
        refused(&|wire, _| wire[at] ^= 1);
    }
    refused(&|wire, _| wire.extend_from_within(..));
    refused(&|wire, sealer| *wire = seal(sealer, b"the second"));
}

#[test]
fn a_record_too_long_is_refused_before_it_is_whole() {
    let (_, mut server) = pair();
    let error = server.opener.open(&mut [23, 3, 3, 0x41, 0x01], |_| {}).unwrap_err();
    assert!(matches!(error, TlsError::Rustls(Error::PeerSentOversizedRecord)), "{error}");
}

#[test]
fn too_much_for_one_record_ends_the_sealer_for_good() {
    let (mut client, _) = pair();
    let mut wire = Vec::new();
    client.sealer.record(&mut wire, |out| out.resize(out.len() + 16_385, 1)).unwrap_err();
    client.sealer.record(&mut wire, |out| out.push(1)).unwrap_err();
    assert!(wire.is_empty());
}

#[test]
fn content_that_has_no_place_behind_the_handshake_is_refused() {
    for (kind, content) in [
        (20, &[1][..]),                 // change_cipher_spec
        (22, &[][..]),                  // an empty piece of a handshake message
        (22, &[1, 0, 0, 0][..]),        // ClientHello
        (22, &[4, 0, 0, 1, 0][..]),     // a session ticket from a client
        (22, &[24, 0, 0, 1, 2][..]),    // KeyUpdate with a request that does not exist
        (22, &[24, 0, 0, 1, 0, 0][..]), // KeyUpdate, and something behind it under the old key
        (22, &[4, 1, 0, 0][..]),        // longer than any may be
        (21, &[1][..]),                 // half an alert
        (21, &[2, 40][..]),             // handshake_failure
        (24, &[1][..]),
    ] {
        let (mut client, mut server) = pair();
        let wire = odd(&mut client.sealer, kind, content);
        assert!(open(&mut server.opener, wire).is_err(), "{kind} {content:?}");
    }
}

#[test]
fn data_between_the_pieces_of_a_message_is_refused() {
    let (mut client, mut server) = pair();
    let piece = odd(&mut client.sealer, HANDSHAKE, &[KEY_UPDATE, 0]);
    assert_eq!(open(&mut server.opener, piece).unwrap(), b"");
    let data = seal(&mut client.sealer, b"data");
    open(&mut server.opener, data).unwrap_err();
}

#[test]
fn a_message_in_pieces_counts_when_it_is_whole() {
    let (mut client, mut server) = pair();
    for piece in [&[KEY_UPDATE, 0][..], &[0, 1], &[0]] {
        let wire = odd(&mut client.sealer, HANDSHAKE, piece);
        assert_eq!(open(&mut server.opener, wire).unwrap(), b"");
    }
    let (sequence, secrets) = client.sealer.common.with_kernel(Kernel::next_sending).unwrap();
    (client.sealer.key, client.sealer.sequence) = (Key::new(&secrets).unwrap(), sequence);
    let wire = seal(&mut client.sealer, b"under the next key");
    assert_eq!(open(&mut server.opener, wire).unwrap(), b"under the next key");
}

#[test]
fn padding_is_no_data() {
    let (mut client, mut server) = pair();
    let wire = odd(&mut client.sealer, 0, &[b'x', APPLICATION_DATA, 0, 0, 0]);
    assert_eq!(open(&mut server.opener, wire).unwrap(), b"x");
    let zeros = odd(&mut client.sealer, 0, &[0; 100]);
    open(&mut server.opener, zeros).unwrap_err();
}

#[test]
fn a_key_is_changed_before_it_protected_too_much() {
    let (mut client, mut server) = pair();
    assert_eq!(client.sealer.limit, 1 << 23);
    client.sealer.limit = client.sealer.sequence + 2;
    for turn in 0..10 {
        let wire = seal(&mut client.sealer, &[turn; 10]);
        assert!(client.sealer.sequence <= client.sealer.limit);
        assert_eq!(open(&mut server.opener, wire).unwrap(), [turn; 10]);
        client.sealer.limit = client.sealer.limit.min(2);
    }
}

#[test]
fn who_asks_for_a_key_update_gets_one_with_the_next_record() {
    let (mut client, mut server) = pair();
    let wire = odd(&mut client.sealer, HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1]);
    let (sequence, secrets) = client.sealer.common.with_kernel(Kernel::next_sending).unwrap();
    (client.sealer.key, client.sealer.sequence) = (Key::new(&secrets).unwrap(), sequence);
    assert_eq!(open(&mut server.opener, wire).unwrap(), b"");
    assert!(server.opener.owes_update());
    let answer = seal(&mut server.sealer, b"answer");
    assert!(!server.opener.owes_update());
    assert_eq!(open(&mut client.opener, answer).unwrap(), b"answer");
    assert_eq!(server.sealer.sequence, 1, "the answer is the first record of the next key");
    let wire = seal(&mut client.sealer, b"more");
    assert_eq!(open(&mut server.opener, wire).unwrap(), b"more");
}

#[test]
fn key_updates_without_end_are_refused() {
    let (mut client, mut server) = pair();
    let mut taken = 0;
    loop {
        let mut wire = Vec::new();
        client.sealer.update(&mut wire).unwrap();
        if open(&mut server.opener, wire).is_err() {
            break;
        }
        taken += 1;
        assert!(taken <= MAX_UPDATES);
    }
    assert_eq!(taken, MAX_UPDATES);
}

#[test]
fn behind_close_notify_nothing_is_looked_at() {
    let (mut client, mut server) = pair();
    let mut wire = Vec::new();
    client.sealer.close(&mut wire).unwrap();
    wire.extend(seal(&mut client.sealer, b"too late"));
    assert_eq!(open(&mut server.opener, wire).unwrap(), b"");
}
