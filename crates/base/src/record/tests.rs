#![allow(clippy::unwrap_used)]
use super::*;
use crate::{UnixTime, bit_flips};
use proptest::prelude::*;

fn user_key() -> SecretKey {
    SecretKey::from_bytes(&[1; 32])
}

fn device_key() -> SecretKey {
    SecretKey::from_bytes(&[2; 32])
}

fn record(name: &str, id: EndpointId) -> Record {
    Record {
        name: name.parse().unwrap(),
        id,
        addrs: vec!["192.0.2.1:4433".parse().unwrap(), "[2001:db8::1]:4433".parse().unwrap()],
        sequence: 1_700_000_000_000,
        expires: UnixTime::from_secs(1_700_604_800),
        lifetime: Duration::from_secs(300),
        revoked: false,
    }
}

fn delegation(name: &str) -> Delegation {
    let times = (UnixTime::from_secs(1000), UnixTime::from_secs(2000));
    let name = name.parse().unwrap();
    Delegation::sign(name, device_key().id(), times.0, times.1, &user_key()).unwrap()
}

/// A service's record, with the device's delegation.
fn delegated() -> SignedRecord {
    let record = record("ssh.laptop.user@example.org", device_key().id());
    let delegation = delegation("laptop.user@example.org");
    SignedRecord::sign(record, &device_key(), Some(delegation)).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of version 2, field by field. If this fails, older programs can no longer read what this one
/// writes.
#[test]
fn the_bytes_of_a_record() {
    let key = user_key();
    let signed = SignedRecord::sign(record("user@example.org", key.id()), &key, None).unwrap();
    let expected = [
        "02",                                                               // version
        "00",                                                               // flags
        "10",                                                               // length of the name
        "75736572406578616d706c652e6f7267",                                 // user@example.org
        "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c", // endpoint id
        "0000018bcfe56800",                                                 // sequence
        "00000000655d2b80",                                                 // end
        "0000012c",                                                         // lifetime
        "02",                                                               // addresses
        "04c00002011151",                                                   // 192.0.2.1:4433
        "0620010db80000000000000000000000011151",                           // [2001:db8::1]:4433
        SIGNATURE,
    ];
    assert_eq!(hex(signed.encode()), expected.concat());
}

/// Ed25519 signatures are deterministic.
const SIGNATURE: &str = "14be55a73f62463adfcffb224dced3669857b9d31222c181a0c30f55269879b5\
     2f3866b6b052f1839386eba2eba2a2221622c74d8ac0383263626786c2fc1507";

/// Programs from before write it, and stores have it.
#[test]
fn a_record_of_version_1_is_read_and_ends_seven_days_after_its_sequence() {
    const BYTES: &str = "01001075736572406578616d706c652e6f7267\
        8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c0000018bcfe568000000012c02\
        04c000020111510620010db80000000000000000000000011151\
        5178dbe19d3cccd11ad35926b1ce5195d1469a3515a9f87029f646ea1b919f32\
        06340edb325f11b5510b0cd81b3d7eed5b11ae4fad9551838737de4713de9c02";
    let hex: Vec<u8> = BYTES.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let bytes: Vec<u8> = hex.chunks(2).map(byte).collect();
    let old = SignedRecord::decode(&bytes).unwrap();
    assert_eq!(old.verify(), Ok(&record("user@example.org", user_key().id())));
    assert_eq!(old.encode(), bytes);
    // The number of the version is signed too.
    let mut newer = bytes.clone();
    newer[0] = 2;
    newer.splice(59..59, [0, 0, 0, 0, 0x65, 0x5d, 0x2b, 0x80]);
    assert!(SignedRecord::decode(&newer).is_ok_and(|record| record.verify() == Err(RecordError::Forged)));
}

#[test]
fn the_bytes_of_a_delegated_record() {
    let signed = delegated();
    let bytes = signed.encode();
    assert_eq!(bytes[1], 2, "flags");
    let delegation = signed.delegation().unwrap().encode();
    let end = bytes.len() - 64;
    assert_eq!(bytes[end - delegation.len()..end], delegation);
}

#[test]
fn what_is_signed_verifies_and_comes_back() {
    let signed = delegated();
    let back = SignedRecord::decode(signed.encode()).unwrap();
    assert_eq!(back, signed);
    assert_eq!(back.verify().unwrap(), signed.record());
    assert_eq!(back.delegation(), signed.delegation());
    assert_eq!(back.authority(), user_key().id());
}

fn is_taken(bytes: &[u8]) -> bool {
    SignedRecord::decode(bytes).is_ok_and(|it| it.verify().is_ok())
}

#[test]
fn every_bit_flip_is_noticed() {
    for signed in [
        delegated(),
        SignedRecord::sign(record("user@example.org", user_key().id()), &user_key(), None).unwrap(),
    ] {
        bit_flips::are_noticed(signed.encode(), is_taken);
    }
}

#[test]
fn every_truncation_and_extension_is_noticed() {
    let signed = delegated();
    let bytes = signed.encode();
    for cut in 0..bytes.len() {
        assert!(SignedRecord::decode(&bytes[..cut]).is_err(), "{cut}");
    }
    let longer = [bytes, &[0]].concat();
    assert_eq!(SignedRecord::decode(&longer), Err(DecodeError::Trailing(1)));
    let huge = vec![0; MAX_RECORD_BYTES + 1];
    let (size, limit) = (huge.len(), MAX_RECORD_BYTES);
    assert_eq!(SignedRecord::decode(&huge), Err(DecodeError::TooLarge { size, limit }));
}

/// A signature of a delegation, or of anything else, is never one of a record.
#[test]
fn signatures_are_for_one_purpose() {
    let signed = delegated();
    let content = &signed.encode()[..signed.encode().len() - 64];
    let other = device_key().sign(&signed_message("whimbrel delegation v1", content));
    let bytes = [content, &other.to_bytes()].concat();
    let forged = SignedRecord::decode(&bytes).unwrap();
    assert_eq!(forged.verify(), Err(RecordError::Forged));
}

#[test]
fn a_forged_delegation_is_noticed_though_the_record_is_well_signed() {
    let stranger = SecretKey::from_bytes(&[9; 32]);
    let good = delegation("laptop.user@example.org");
    // The stranger claims that the user delegated to it: the id in the middle is replaced.
    let mut bytes = good.encode();
    let at = 2 + good.name().as_str().len();
    bytes[at..at + 32].copy_from_slice(stranger.id().as_bytes());
    let forged = Delegation::decode(&bytes).unwrap();
    let record = record("laptop.user@example.org", stranger.id());
    let signed = SignedRecord::sign(record, &stranger, Some(forged)).unwrap();
    assert_eq!(signed.verify(), Err(RecordError::ForgedDelegation));
}

#[test]
fn rules_when_signing() {
    let key = device_key();
    let id = key.id();
    let sign = |change: &dyn Fn(&mut Record)| {
        let mut record = record("laptop.user@example.org", id);
        change(&mut record);
        SignedRecord::sign(record, &key, None).map(|signed| signed.record().clone())
    };
    let port = |port| SocketAddr::from(([192, 0, 2, 1], port));
    assert!(matches!(sign(&|r| r.id = user_key().id()), Err(RecordError::OtherKey { .. })));
    assert_eq!(sign(&|r| r.addrs = (1..=17).map(port).collect()), Err(RecordError::TooManyAddresses(17)));
    assert_eq!(sign(&|r| r.addrs = vec![port(0)]), Err(RecordError::UnusableAddress(port(0))));
    assert_eq!(sign(&|r| r.revoked = true), Err(RecordError::RevokedWithAddresses));
    assert!(matches!(sign(&|r| r.lifetime = Duration::from_millis(999)), Err(RecordError::Lifetime(_))));
    let eight_days = Duration::from_secs(8 * 86_400);
    assert_eq!(sign(&|r| r.lifetime = eight_days), Err(RecordError::Lifetime(eight_days)));
    // Brought into the one form.
    let same = ["[::ffff:192.0.2.1]:5", "192.0.2.1:5", "[fe80::1%4]:5"];
    let made = sign(&|r| {
        r.addrs = same.map(|addr| addr.parse().unwrap()).to_vec();
        r.lifetime = Duration::from_millis(2500);
        r.expires = UnixTime::from_millis(9_999);
    });
    let made = made.unwrap();
    assert_eq!(made.addrs, [port(5), "[fe80::1]:5".parse().unwrap()]);
    assert_eq!(made.lifetime, Duration::from_secs(2));
    assert_eq!(made.expires, UnixTime::from_secs(9));
}

#[test]
fn delegations_must_fit() {
    let key = device_key();
    let sign = |name: &str, delegated: &str| {
        let record = record(name, key.id());
        SignedRecord::sign(record, &key, Some(delegation(delegated))).map(|_| ())
    };
    assert_eq!(sign("laptop.user@example.org", "laptop.user@example.org"), Ok(()));
    for (name, delegated) in [
        ("phone.user@example.org", "laptop.user@example.org"),
        ("user@example.org", "laptop.user@example.org"),
        ("laptop.user@example.org", "ssh.laptop.user@example.org"),
    ] {
        assert!(matches!(sign(name, delegated), Err(RecordError::DelegationForOther { .. })));
    }
    let record = record("laptop.user@example.org", user_key().id());
    let signed = SignedRecord::sign(record, &user_key(), Some(delegation("laptop.user@example.org")));
    assert_eq!(signed, Err(RecordError::DelegationForOtherKey(key.id())));
}

#[test]
fn the_largest_record_fits() {
    let key = device_key();
    let name = format!("a.b@{}", "c.".repeat(124) + "c");
    let mut record = record(&name, key.id());
    record.addrs = (1..=16).map(|n| SocketAddr::from(([0x2001, n, n, n, n, n, n, n], 1))).collect();
    let signed = SignedRecord::sign(record, &key, Some(delegation(&name))).unwrap();
    assert!(signed.encode().len() <= MAX_RECORD_BYTES);
    assert_eq!(SignedRecord::decode(signed.encode()), Ok(signed));
}

/// What a client is shown: the record is well signed, and the chain behind it is not.
#[test]
fn a_renewal_that_is_forged_is_noticed_though_the_record_is_well_signed() {
    let (from, to) = (UnixTime::from_secs(1000), UnixTime::from_secs(2000));
    let (name, other) = ("laptop.user@example.org", "desk.user@example.org".parse().unwrap());
    let desk = SecretKey::from_bytes(&[3; 32]);
    let appointment = crate::Appointment::sign(other, desk.id(), from, to, &user_key()).unwrap();
    let good = delegation(name).renew(&appointment, from, to, &desk).unwrap().encode();
    let (given, appointed) = (delegation(name).encode().len(), appointment.encode().len());
    // The last byte of each signature: the user's word, the appointment, and the renewal.
    for at in [given, given + appointed, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        let forged = Delegation::decode(&bytes).unwrap();
        let signed =
            SignedRecord::sign(record(name, device_key().id()), &device_key(), Some(forged)).unwrap();
        let back = SignedRecord::decode(signed.encode()).unwrap();
        assert_eq!(back.verify(), Err(RecordError::ForgedDelegation), "{at}");
    }
}

#[test]
fn the_largest_record_with_a_renewed_delegation_fits_and_is_good() {
    let (key, appointed) = (device_key(), SecretKey::from_bytes(&[3; 32]));
    let domain = "c.".repeat(124) + "c";
    let (name, other) = (format!("a.b@{domain}"), format!("d.b@{domain}"));
    let (from, to) = (UnixTime::from_secs(1000), UnixTime::from_secs(2000));
    let appointment =
        crate::Appointment::sign(other.parse().unwrap(), appointed.id(), from, to, &user_key()).unwrap();
    let renewed = delegation(&name).renew(&appointment, from, to, &appointed).unwrap();
    let mut record = record(&name, key.id());
    record.addrs = (1..=16).map(|n| SocketAddr::from(([0x2001, n, n, n, n, n, n, n], 1))).collect();
    let signed = SignedRecord::sign(record, &key, Some(renewed)).unwrap();
    assert!(signed.encode().len() <= MAX_RECORD_BYTES);
    let back = SignedRecord::decode(signed.encode()).unwrap();
    assert!(back.verify().is_ok());
    assert_eq!((back.authority(), back == signed), (user_key().id(), true));
}

#[test]
fn sequences_rise() {
    assert_eq!(next_sequence(None, 5), 5);
    assert_eq!(next_sequence(Some(3), 5), 5);
    assert_eq!(next_sequence(Some(5), 5), 6);
    assert_eq!(next_sequence(Some(9), 5), 10);
    assert_eq!(next_sequence(Some(u64::MAX), 5), u64::MAX);
}

proptest! {
    #[test]
    fn round_trip(
        addrs in proptest::collection::vec(any::<SocketAddr>(), 0..=16),
        sequence: u64,
        secs in 1..=604_800u64,
        end: u64,
        revoked: bool,
    ) {
        let key = user_key();
        let lifetime = Duration::from_secs(secs);
        let addrs = if revoked { vec![] } else { addrs };
        let expires = UnixTime::from_millis(end);
        let record = Record { addrs, sequence, expires, lifetime, revoked, ..record("user@example.org", key.id()) };
        match SignedRecord::sign(record, &key, None) {
            Ok(signed) => {
                let back = SignedRecord::decode(signed.encode()).unwrap();
                prop_assert_eq!(back.verify(), Ok(signed.record()));
            }
            Err(error) => prop_assert!(matches!(error, RecordError::UnusableAddress(_)), "{error}"),
        }
    }

    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2100)) {
        if let Ok(signed) = SignedRecord::decode(&bytes) {
            let _ = signed.verify();
        }
    }

    /// Random bytes seldom get far: damage a good record instead. What still decodes is in its one form.
    #[test]
    fn damaged_records_never_panic_and_never_verify(
        at in 0..400usize, byte: u8, cut in 0..8usize,
    ) {
        let good = delegated();
        let mut bytes = good.encode().to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut);
        if let Ok(signed) = SignedRecord::decode(&bytes) {
            let verified = signed.verify().is_ok();
            prop_assert_eq!(verified, bytes == good.encode());
            if bytes[0] == 2 {
                let content = codec::content(signed.record(), signed.delegation(), &signed.about);
                prop_assert_eq!(&bytes[..bytes.len() - 64], &content[..]);
            }
        }
    }
}

fn group() -> SignedRecord {
    let delegation = delegation("team.user@example.org");
    let record = Record { addrs: Vec::new(), ..record("team.user@example.org", device_key().id()) };
    let members = [
        Member::Name("phone.bob@example.org".parse().unwrap()),
        Member::Key(user_key().id()),
        Member::Name("anna@example.org".parse().unwrap()),
        Member::Key(user_key().id()),
    ];
    SignedRecord::sign_group(record, members, &device_key(), Some(delegation)).unwrap()
}

#[test]
fn a_group_comes_back_with_its_members_in_order_and_each_once() {
    let signed = group();
    let back = SignedRecord::decode(signed.encode()).unwrap();
    assert_eq!(back, signed);
    assert!(back.verify().is_ok());
    assert!(back.delegation().is_some());
    let names: Vec<_> = back.members().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, [user_key().id().to_string().as_str(), "anna@example.org", "phone.bob@example.org"]);
    assert_eq!(delegated().members(), None);
    let empty = Record { addrs: Vec::new(), ..record("user@example.org", user_key().id()) };
    let empty = SignedRecord::sign_group(empty, [], &user_key(), None).unwrap();
    assert_eq!(
        SignedRecord::decode(empty.encode()).unwrap().members(),
        Some(&[][..]),
        "a group all the same"
    );
}

#[test]
fn every_bit_flip_in_a_group_is_noticed() {
    bit_flips::are_noticed(group().encode(), is_taken);
}

#[test]
fn a_group_is_bounded_and_is_in_no_place() {
    let key = user_key();
    let nowhere = || Record { addrs: Vec::new(), ..record("team.user@example.org", key.id()) };
    let ids = |count: u32| {
        (0..count).map(|number| {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            Member::Key(SecretKey::from_bytes(&bytes).id())
        })
    };
    let full = SignedRecord::sign_group(nowhere(), ids(256), &key, None).unwrap();
    assert_eq!(SignedRecord::decode(full.encode()).unwrap().members().unwrap().len(), MAX_GROUP_MEMBERS);
    let sign =
        |record, members: Vec<Member>| SignedRecord::sign_group(record, members, &key, None).unwrap_err();
    assert_eq!(sign(nowhere(), ids(257).collect()), RecordError::TooManyMembers(257));
    let somewhere = record("team.user@example.org", key.id());
    assert_eq!(sign(somewhere, Vec::new()), RecordError::GroupWithAddresses);
    let withdrawn = Record { revoked: true, ..nowhere() };
    assert_eq!(sign(withdrawn, Vec::new()), RecordError::GroupWithAddresses);
    let long = |number: usize| format!("m{number}.{}.user@example.org", "x".repeat(30)).parse().unwrap();
    let long = (0..256).map(|number| Member::Name(long(number))).collect();
    assert!(matches!(sign(nowhere(), long), RecordError::GroupTooLarge(_)));
}

/// There is one encoding: neither repeated nor unordered members, nor unknown kinds.
#[test]
fn members_out_of_order_or_of_unknown_kinds_are_refused() {
    let signed = group();
    let bytes = signed.encode();
    let first =
        bytes.windows(33).position(|at| at[0] == 1 && at[1..] == *user_key().id().as_bytes()).unwrap();
    let mut unknown = bytes.to_vec();
    unknown[first] = 3;
    assert_eq!(SignedRecord::decode(&unknown), Err(DecodeError::Malformed("member")));
    let anna = first + 33;
    let bob = anna + 2 + "anna@example.org".len();
    let end = bytes.len() - 64;
    let swapped = [&bytes[..anna], &bytes[bob..end], &bytes[anna..bob], &bytes[end..]].concat();
    assert_eq!(SignedRecord::decode(&swapped), Err(DecodeError::Malformed("member")));
    let mut twice = [&bytes[..anna], &bytes[first..]].concat();
    twice[first - 1] = 4;
    assert_eq!(SignedRecord::decode(&twice), Err(DecodeError::Malformed("member")));
    let mut many = bytes.to_vec();
    many[first - 2] = 2;
    assert_eq!(SignedRecord::decode(&many), Err(DecodeError::Malformed("number of members")));
}
