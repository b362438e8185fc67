//! The byte layout of a record, as the module above describes it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::{About, MAX_GROUP_RECORD_BYTES, MAX_LIFETIME, MAX_RECORD_BYTES, Record, check, members, relay};
use crate::UnixTime;
use crate::address::{MAX_ADDRESSES, portable};
use crate::delegation::Delegation;
use crate::wire::{DecodeError, Reader, put_name};

/// Without an end of its own.
const VERSION_1: u8 = 1;
const VERSION_2: u8 = 2;
const REVOKED: u8 = 1;
const DELEGATED: u8 = 2;
const GROUP: u8 = 4;
const RELAY: u8 = 8;

/// What a record says beside its signature.
pub(super) struct Content {
    pub(super) record: Record,
    pub(super) delegation: Option<Delegation>,
    pub(super) about: About,
}

/// Writes everything but the signature. The record must keep the rules of [`check`].
pub(super) fn content(record: &Record, delegation: Option<&Delegation>, about: &About) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    let revoked = if record.revoked { REVOKED } else { 0 };
    let delegated = if delegation.is_some() { DELEGATED } else { 0 };
    let kind = match about {
        About::Endpoint => 0,
        About::Group(_) => GROUP,
        About::Relay(_) => RELAY,
    };
    bytes.extend_from_slice(&[VERSION_2, revoked | delegated | kind]);
    put_name(&mut bytes, &record.name);
    bytes.extend_from_slice(record.id.as_bytes());
    bytes.extend_from_slice(&record.sequence.to_be_bytes());
    bytes.extend_from_slice(&record.expires.as_secs().to_be_bytes());
    // Both checked: at most seven days, at most sixteen addresses.
    bytes.extend_from_slice(&(record.lifetime.as_secs() as u32).to_be_bytes());
    bytes.push(record.addrs.len() as u8);
    for addr in &record.addrs {
        put_address(&mut bytes, *addr);
    }
    if let Some(delegation) = delegation {
        bytes.extend_from_slice(&delegation.encode());
    }
    match about {
        About::Endpoint => {}
        About::Group(group) => members::put(&mut bytes, group),
        About::Relay(state) => relay::put(&mut bytes, state),
    }
    bytes
}

/// Reads a record with its signature, which is left to be verified.
pub(super) fn read(bytes: &[u8]) -> Result<Content, DecodeError> {
    let is_group = matches!(bytes, [VERSION_2, flags, ..] if flags & GROUP != 0);
    let limit = if is_group { MAX_GROUP_RECORD_BYTES } else { MAX_RECORD_BYTES };
    let mut reader = Reader::new(bytes, limit)?;
    let version = reader.u8()?;
    if !matches!(version, VERSION_1 | VERSION_2) {
        return Err(DecodeError::Version(version));
    }
    let flags = reader.u8()?;
    let known = if version == VERSION_1 { REVOKED | DELEGATED } else { REVOKED | DELEGATED | GROUP | RELAY };
    let is_both = flags & GROUP != 0 && flags & RELAY != 0;
    if flags & !known != 0 || is_both {
        return Err(DecodeError::Malformed("flags"));
    }
    let (name, id, sequence) = (reader.name()?, reader.id()?, reader.u64()?);
    let expires = match version {
        VERSION_1 => UnixTime::from_millis(sequence).saturating_add(MAX_LIFETIME),
        _ => UnixTime::from_secs(reader.whole_seconds()?),
    };
    let record = Record {
        revoked: flags & REVOKED != 0,
        name,
        id,
        sequence,
        expires,
        lifetime: Duration::from_secs(reader.u32()?.into()),
        addrs: read_addresses(&mut reader)?,
    };
    let delegation = match flags & DELEGATED {
        0 => None,
        _ => Some(Delegation::read(&mut reader)?),
    };
    let about = match flags & (GROUP | RELAY) {
        GROUP => About::Group(members::read(&mut reader)?.into()),
        RELAY => About::Relay(relay::read(&mut reader)?.into()),
        _ => About::Endpoint,
    };
    reader.signature()?;
    reader.finish()?;
    check(&record, delegation.as_ref(), &about).map_err(|_| DecodeError::Malformed("record"))?;
    Ok(Content { record, delegation, about })
}

fn put_address(bytes: &mut Vec<u8>, addr: SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => {
            bytes.push(4);
            bytes.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(6);
            bytes.extend_from_slice(&ip.octets());
        }
    }
    bytes.extend_from_slice(&addr.port().to_be_bytes());
}

fn read_addresses(reader: &mut Reader<'_>) -> Result<Vec<SocketAddr>, DecodeError> {
    let count = usize::from(reader.u8()?);
    if count > MAX_ADDRESSES {
        return Err(DecodeError::Malformed("number of addresses"));
    }
    let mut addrs = Vec::with_capacity(count);
    for _ in 0..count {
        let ip: IpAddr = match reader.u8()? {
            4 => Ipv4Addr::from(reader.array::<4>()?).into(),
            6 => Ipv6Addr::from(reader.array::<16>()?).into(),
            _ => return Err(DecodeError::Malformed("address")),
        };
        let addr = SocketAddr::new(ip, reader.u16()?);
        if portable(addr) != addr || addrs.contains(&addr) {
            return Err(DecodeError::Malformed("address"));
        }
        addrs.push(addr);
    }
    Ok(addrs)
}
