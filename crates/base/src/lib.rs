//! What every other crate of Whimbrel speaks of: keys, ids, names, addresses, records and tickets.
//!
//! Everything here is pure: no sockets, no clock (times are passed in), no threads. The only thing asked of
//! the system is randomness, for new keys and ids. Every decoder is bounded, never panics, and accepts
//! exactly one encoding of a value.
//!
//! | module | what is in it |
//! | --- | --- |
//! | [`key`] | Ed25519 keys: [`SecretKey`], [`EndpointId`], [`Signature`] |
//! | [`connection_id`] | [`ConnectionId`], the 128-bit number of a connection |
//! | [`name`] | [`Name`]: `user@example.org`, `laptop.user@example.org`, `ssh.laptop.user@example.org` |
//! | [`address`] | [`EndpointAddr`] and what an address is good for |
//! | [`appointment`] | [`Appointment`]: a user's word that a device may renew delegations |
//! | [`delegation`] | [`Delegation`]: a user's word that a key may speak for a device or a service |
//! | [`host_name`] | Names written as hosts, for programs that know hosts only |
//! | [`order`] | Sorting and gathering, made once for all kinds of elements |
//! | [`record`] | [`Record`] and [`SignedRecord`]: name, id and addresses, signed by the endpoint |
//! | [`relayed`] | [`RelayedAddr`]: a place behind a relay, and how it travels among addresses |
//! | [`routing`] | Connection ids of QUIC by which a relay knows whom a packet is for |
//! | [`ticket`] | [`Ticket`]: the `whimbrel:` URI, for connecting without a name service |
//! | [`time`] | [`UnixTime`], a wall-clock time that somebody else read |

pub mod address;
pub mod appointment;
pub mod connection_id;
pub mod delegation;
pub mod host_name;
pub mod key;
pub mod name;
pub mod order;
pub mod record;
pub mod relayed;
pub mod routing;
pub mod ticket;
pub mod time;

#[cfg(test)]
mod bit_flips;
mod random;
mod texts;
mod wire;
mod z32;

pub use address::{AddressScope, EndpointAddr, MAX_ADDRESSES};
pub use appointment::{Appointment, AppointmentError, MAX_APPOINTMENT_BYTES, MAX_APPOINTMENT_TIME};
pub use connection_id::ConnectionId;
pub use delegation::{
    Delegation, DelegationError, MAX_DELEGATION_BYTES, MAX_RENEWAL_TIME, MAX_RENEWED_TIME, RenewalError,
};
pub use host_name::{host_of_name, is_whimbrel_host, name_of_host};
pub use key::{BadSignature, EndpointId, SecretKey, Signature};
pub use name::{IntoName, Name, NameError, NameKind};
pub use random::array as random_bytes;
pub use record::{
    MAX_GROUP_MEMBERS, MAX_GROUP_RECORD_BYTES, MAX_LIFETIME, MAX_RECORD_BYTES, MAX_UNREACHABLE, Member,
    NoRelayPlace, Record, RecordError, RelayPlace, RelayState, SignedRecord, next_sequence,
};
pub use relayed::{Place, RelayToken, RelayedAddr};
pub use ticket::{Ticket, TicketError, TicketSecret};
pub use time::UnixTime;
pub use wire::DecodeError;
