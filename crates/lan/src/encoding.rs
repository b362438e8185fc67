//! A signed record as the TXT strings of a service (RFC 6763 §6), which hold no more than 255 bytes each.

use mdns_sd::TxtProperty;
use sha2::{Digest as _, Sha256};
use whimbrel_base::{EndpointId, MAX_RECORD_BYTES, Name, SignedRecord};

/// The service that all endpoints are instances of.
pub(crate) const SERVICE: &str = "_whimbrel._udp.local.";
/// Bytes of a record in one string: with its key and `=`, fewer than 255.
const PIECE: usize = 240;
const PIECES: usize = MAX_RECORD_BYTES.div_ceil(PIECE);

/// The pieces of a record: `r0`, `r1`, …
pub(crate) fn strings(record: &SignedRecord) -> Vec<TxtProperty> {
    let pieces = record.encode().chunks(PIECE).enumerate();
    pieces.map(|(number, piece)| TxtProperty::from((format!("r{number}"), piece))).collect()
}

/// The record that strings are of, whose signatures are right. `string` gives the one with that key.
pub(crate) fn record<'a>(string: impl Fn(&str) -> Option<&'a [u8]>) -> Option<SignedRecord> {
    let mut bytes = Vec::new();
    for number in 0..PIECES {
        let Some(piece) = string(&format!("r{number}")) else { break };
        bytes.extend_from_slice(piece);
    }
    let record = SignedRecord::decode(&bytes).ok()?;
    record.verify().ok()?;
    // A group is no endpoint that could be dialled.
    record.members().is_none().then_some(record)
}

/// Reads whatever strings come, a piece behind each number and length; what is understood can be told again.
/// For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    let (mut told, mut rest) = (Vec::new(), bytes);
    while let Some((&[number, length], after)) = rest.split_first_chunk::<2>() {
        let (piece, after) = after.split_at(usize::from(length).min(after.len()));
        told.push((format!("r{number}"), piece));
        rest = after;
    }
    if let Some(found) = record(|key| told.iter().find(|(of, _)| of == key).map(|(_, piece)| *piece)) {
        let again = strings(&found);
        let string = |key: &str| again.iter().find(|string| string.key() == key).and_then(TxtProperty::val);
        assert_eq!(record(string), Some(found));
    }
}

/// What the instance of an endpoint's name is called: the same each time, and it tells neither.
pub(crate) fn instance(id: EndpointId, name: &Name) -> String {
    let digest = Sha256::new().chain_update(id.as_bytes()).chain_update(name.to_string()).finalize();
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;
    use std::time::{Duration, SystemTime};

    use whimbrel_base::{Record, SecretKey, UnixTime};

    use super::*;

    fn signed(addresses: u8) -> SignedRecord {
        let key = SecretKey::from_bytes(&[7; 32]);
        let record = Record {
            name: "ada@example.org".parse().unwrap(),
            id: key.id(),
            addrs: (1..=addresses).map(|n| SocketAddr::from(([192, 0, 2, n], 4480))).collect(),
            sequence: 1,
            expires: UnixTime::from(SystemTime::now()).saturating_add(Duration::from_secs(60)),
            lifetime: Duration::from_secs(60),
            revoked: false,
        };
        SignedRecord::sign(record, &key, None).unwrap()
    }

    #[test]
    fn a_record_is_read_from_its_strings_and_each_changed_or_missing_byte_is_told() {
        let record_of = |strings: &[TxtProperty]| {
            record(|key| strings.iter().find(|string| string.key() == key).and_then(TxtProperty::val))
        };
        for addresses in [1, 16] {
            let signed = signed(addresses);
            let all = strings(&signed);
            assert!(all.iter().all(|s| s.key().len() + 1 + s.val().unwrap().len() <= 255));
            assert_eq!(record_of(&all), Some(signed.clone()));
            assert_eq!(record_of(&all[1..]), None);
            let bytes = signed.encode();
            for at in 0..bytes.len() {
                let mut forged = bytes.to_vec();
                forged[at] ^= 1;
                let pieces: Vec<&[u8]> = forged.chunks(PIECE).collect();
                let piece = |key: &str| pieces.get(key[1..].parse::<usize>().unwrap()).copied();
                assert_eq!(record(piece), None, "byte {at}");
            }
        }
    }

    #[test]
    fn an_instance_is_called_the_same_each_time_and_otherwise_than_others() {
        let [one, other] = [[1; 32], [2; 32]].map(|key| SecretKey::from_bytes(&key).id());
        let [ada, bob] = ["ada@example.org", "bob@example.org"].map(|name| name.parse::<Name>().unwrap());
        assert_eq!(instance(one, &ada), instance(one, &ada));
        assert_ne!(instance(one, &ada), instance(one, &bob));
        assert_ne!(instance(one, &ada), instance(other, &ada));
    }
}
