//! What this host's commands have running goes on at another device of the user, and no gateway is needed:
//! the connection itself is handed over
//! ([`Connection::hand_over`](whimbrel_transport::Connection::hand_over)).
//!
//! ```text
//! wire      what the two devices say to each other
//! session   what of a running command could move, and the word that lets one device have it
//! giving    the side that has it
//! taking    the side that will have it
//! bytes     what there is of a file, from one to the other
//! offering  the side that has it asks the other one to come
//! ```

mod bytes;
mod giving;
mod offering;
mod session;
mod taking;
mod wire;

use std::time::Duration;

pub(crate) use self::giving::{Asked, Outcome, Question};
pub(crate) use self::offering::{Offered, offer};
pub(crate) use self::session::{Movable, Session, Sessions, Ticketed, Word};
pub(crate) use self::taking::{Giver, Taken, ask, list, take_forward};
#[cfg(feature = "fuzzing")]
pub(crate) use self::wire::decode_anything;
pub(crate) use self::wire::{Arriving, Elsewhere, Halves, Leaving, MAX_STREAMS, Offer, State, Talk, Way};

/// The command of whose sessions each is an answer of HTTPS, and not a connection.
pub(crate) const WEB: &str = "proxy http";

const GONE: &str = "the other device has gone";
/// For a connection to be handed over.
const LIMIT: Duration = Duration::from_secs(20);
/// For the other side to say something, or to hear it.
const WORD_LIMIT: Duration = Duration::from_secs(10);
/// For the device that has a session to say how far it is: it halts its streams (5 s at most) and waits for
/// programs to read (5 s), or stops what it sends (10 s), and says it ([`WORD_LIMIT`]).
const ANSWER_LIMIT: Duration = Duration::from_secs(25);
