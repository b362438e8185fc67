//! Relays: how an endpoint that nobody can dial is reached all the same.
//!
//! ```text
//!  client ── TCP ──► relay ◄── TCP, opened in advance ── server          what the relay splices
//!                      ▲
//!                      └────── a Whimbrel connection ──── server          its reservation
//! ```
//!
//! A server keeps one connection to a relay ([`keeper`]) and gets a *reservation*: its token, by which the
//! relay knows whom a connection is for, and a key. It holds a stock of TCP connections to the relay open,
//! the *spares*, each with a proof that it belongs to the reservation. A client dials the relay and begins
//! TLS with the token as the server name. The relay ([`service`]) reads that one field of the ClientHello
//! ([`hello`]), tells the server on a spare where the client is, and passes bytes on between the two
//! ([`splice`]) until either ends. TLS is between the client and the server: the relay can delay and cut off,
//! and neither read nor change, nor pose as either side. It connects nowhere by itself.
//!
//! | module | what is in it |
//! | --- | --- |
//! | [`service`] | the relay |
//! | [`keeper`] | the server's side: reservations, and a stock of spares |
//! | [`reservations`] | the rules, without sockets: who has which token, spares, clients that wait |
//! | [`spare`] | what is said on a spare, with its proofs |
//! | [`alias`] | tokens for single clients, which a relay makes and keeps none of |
//! | [`wire`] | what is said on the control stream |
//! | [`choice`] | which relays of many a server takes: a pure function |
//! | [`gate`] | what servers prove to relays, to be given a reservation |
//! | [`directory`] | what relays and servers see of a name service |
//! | [`group`] | who of a group is there, and which relay comes next: pure functions |
//! | [`probe()`] | whether there is a relay, and gives a reservation |
//! | [`pool`] | the server's side of a group |
//! | [`member`] | a relay's side: what it says of itself; relays of a group watch each other |
//! | [`estate`] | what a relay leaves to the one that goes on in its place |
//! | [`hello`] | the server name of a ClientHello |
//! | [`splice`] | bytes from one socket to the other |
//! | [`udp`] | QUIC: what a server and a relay send each other, and the rules, without sockets |

pub mod alias;
pub mod choice;
pub mod directory;
pub mod estate;
pub mod gate;
pub mod group;
pub mod hello;
pub mod keeper;
pub mod member;
pub mod pool;
pub mod probe;
pub mod reservations;
pub mod service;
pub mod spare;
pub mod splice;
pub mod udp;
pub mod wire;

mod fair;
mod limits;
mod rates;
mod sources;
mod token;
mod traffic;
mod turns;
mod watchdog;

pub use directory::{Directory, Listed, Roster};
pub use estate::{BadEstate, Estate};
pub use gate::{Gate, Prover};
pub use keeper::{Keeper, Keeping, Kept};
pub use limits::Limits;
pub use member::Membership;
pub use probe::{ProbeError, probe};
pub use reservations::{Refusal, RelayStats};
pub use service::{Left, Listening, Prepared, Relay, control_name};
pub use token::{Salt, token_of};
