//! Running TCP connections that move from one of a user's devices to another, while the server notices
//! nothing (*A TCP Service Migration Protocol for Single User Multiple Devices*, §IV).
//!
//! ```text
//! id        what a session is called
//! message   what is asked of a gateway, and what it tells
//! frame     what is said on a session's streams then
//! window    bytes that are under way in one direction
//! line      the streams between gateway and device: either end
//! table     the gateway: which sessions there are, whose they are, who may take them
//! budget    the gateway: how many bytes are kept, of one device and in all
//! running   the gateway: one session; `server` and `seat` are its two sides
//! beginning how a session of a text protocol began: both sides
//! serving   the gateway: requests about sessions
//! lasting   the gateway: sessions that go on in another process; `parts`: their bytes
//! words     a device is told of a session that was handed over to it: both sides
//! asking    a device: requests
//! ahead     bytes that come before an answer: both sides
//! owned     a device: which sessions it has, and may take
//! attached  a device: a session that it has
//! carrying  a device: its bytes; `program` knows how far a program is
//! http      a device: the rest of an answer, for a program that asks anew
//! film      the gateway: from where a player can go on; `container` finds that, `entry` says it: both sides
//! anew      a device: what a program hears that begins a protocol of lines anew
//! alarm     a timer, for either end
//! ```
//!
//! The gateway keeps what the server sent until the program has taken it, so that another device can go on
//! from there. How much that is, devices count and say. Both directions have windows of their own, so that no
//! side ever waits to hear the other (docs/devices.md).

mod ahead;
mod alarm;
mod anew;
mod asking;
mod attached;
mod beginning;
mod budget;
mod carrying;
mod container;
mod entry;
mod film;
mod frame;
mod http;
mod id;
mod lasting;
mod line;
mod message;
mod owned;
mod parts;
mod program;
mod running;
mod seat;
mod server;
mod serving;
mod table;
mod window;
mod words;

pub use anew::{Anew, NoBeginning};
pub use asking::SessionError;
pub use attached::Attached;
pub use carrying::Outcome;
pub use container::read_anything;
pub use http::{NoRest, Rest, read_anything as read_anything_as_answer, read_request};
pub use id::{BadSessionId, SessionId};
pub use lasting::{HaltedSession, MAX_SESSION, SessionHead, SessionPiece};
pub use message::{Listed, May, Standing, Takers};
pub use owned::SessionsAt;
pub use program::{UnderWay, user_of};
pub use running::SessionSettings;
pub use table::NoSession;
pub use words::{Hearing, Word};

pub(crate) use asking::explained;
pub(crate) use message::{Asked, How};
pub(crate) use owned::{Opened, open};
pub(crate) use serving::{Refused, Sessions};
pub(crate) use words::Awaited;
