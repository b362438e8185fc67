//! The messages between a name service and those who ask it.
//!
//! # A stream of messages
//! One stream of a connection carries requests one way, and responses and pushes the other. Every message is
//! framed ([`frame`]):
//!
//! ```text
//! length: u32, big-endian, of what follows, at most 16384 | version: 1 byte, 1 | message: postcard
//! ```
//!
//! Requests have numbers, chosen by whoever asks and not used twice on a stream; the response has the
//! request's. So many can be under way. Responses may come in another order than the requests.
//!
//! # Messages
//! The numbers of the variants are their order here, and never change (postcard: an unsigned LEB128 number,
//! then the fields in order; strings and byte strings behind their length; an option behind 0 or 1).
//!
//! | request | answered with | errors |
//! | --- | --- | --- |
//! | 0 `Publish { record }` | `Accepted` | those of publishing |
//! | 1 `Revoke { record }` | `Accepted` | those of publishing |
//! | 2 `Lookup { name }` | `Record` | not found, expired |
//! | 3 `Watch { name, after }` | `Watching`, then pushes with the number of this request | too many watchers |
//! | 4 `Unwatch { watch }` | `Unwatched`; no push of that watch follows it | |
//! | 5 `Heartbeat { names }` | `Heard`: for each name a code, 0 if all is well | |
//! | 6 `Meet { slot }` | `Meeting` | no such meeting, too many, too often |
//! | 7 `Redeem { code }` | `Admitted` | bad invitation, too often |
//! | 8 `Invite { domain, uses, seconds }` | `Invited` | not an operator, bad terms |
//! | 9 `Register { record, readers }` | `Registered` | those of publishing |
//! | 10 `Find { id }` | `Record` | not found |
//! | 11 `Renew { delegation }` | `Accepted` | those of delegations, revoked, too many names |
//! | 12 `Renewed { name }` | `Delegation` | not found, revoked |
//! | 13 `Vouch { domain }` | `Voucher` | no name of the domain |
//! | 14 `Propose { proposal }` | `Accepted` | forged, user unknown, asked already, too many, too often |
//! | 15 `Decide { decision }` | `Accepted` | forged, no such proposal |
//! | 16 `Proposals { word, after }` | `Proposals` | those of delegations |
//! | 17 `Withdraw { proposal, word }` | `Accepted` | no such proposal, those of delegations |
//! | 18 `Devices { user, after }` | `Devices` | |
//! | 19 `Mail { user, code }` | `Accepted` | no mail, too often, bad code |
//! | 20 `Follow { word }` | `Watching`, then news | those of delegations, too many |
//! | 21 `Appoint { appointment }` | `Accepted` | forged, not the user's, a newer one is there, too many |
//! | 22 `Appointed { name }` | `Appointment` | not found |
//! | 23 `Leave { word, batch }` | `Accepted` | too large, user unknown, those of delegations, full, too often |
//! | 24 `Fetch { word, after }` | `Batches` | user unknown, those of delegations |
//!
//! | reply | |
//! | --- | --- |
//! | 0 `Response { request, response }` | the answer to a request |
//! | 1 `Update { watch, record }` | a push: a newer record of a watched name |
//! | 2 `News { watch }` | a push: what the user of a `Follow` proposed or is asked has changed |
//!
//! | response | |
//! | --- | --- |
//! | 0 `Error { code, message }` | a number of [`ErrorCode`], and what it means, for people |
//! | 1 `Accepted { seconds }` | for how long the record counts from now |
//! | 2 `Record { record, seconds }` | an encoded record, and for how long it counts from now |
//! | 3 `Watching` | |
//! | 4 `Unwatched` | |
//! | 5 `Heard { codes }` | one for each name, in order |
//! | 6 `Meeting { slot, seconds }` | the slot, and how long the meeting lasts at most |
//! | 7 `Admitted { domain }` | the key may register user names, of the domain if one is named |
//! | 8 `Invited { code }` | the code of a new invitation |
//! | 9 `Registered { seconds, lease }` | for how long the record counts from now, and its user's name is held |
//! | 10 `Delegation { delegation }` | an encoded delegation |
//! | 11 `Voucher { voucher }` | a signed [voucher](crate::voucher) |
//! | 12 `Proposals { proposals, more }` | signed [proposals](crate::proposal) and decisions; whether more follow |
//! | 13 `Devices { records, more }` | records, by name; after which name more may follow |
//! | 14 `Appointment { appointment }` | an encoded appointment |
//! | 15 `Batches { batches, more }` | what the user's devices left; whether more follow |
//!
//! Whoever resumes a watch says which sequence number it saw last, and gets what is newer.
//!
//! # Meetings
//! `Meet` is the first request of a stream of its own: without a slot it opens one, with a slot it joins the
//! peer that opened it. Behind the answer the stream carries opaque frames to the other side's stream and
//! back ([`meeting`]), until either side ends its stream or the time is over: then both streams end.
//!
//! # News of proposals
//! `Follow` too is the first request of a stream of its own, and the last one: news come until the client
//! ends the stream, its word does not count any more, or the time is over. Each says that `Proposals` may be
//! answered otherwise than before.

use serde::{Deserialize, Deserializer, Serialize};
use whimbrel_base::{EndpointId, Name};

use crate::admission::Domain;
use crate::error::{ErrorCode, NamesError};
use crate::proposal::ProposalId;
use crate::readers::Readers;

pub mod frame;
pub mod meeting;
#[cfg(test)]
mod tests;

pub use frame::{Decoder, MAX_MESSAGE, Message, ProtocolError, encode};
pub use meeting::{MEETING_FRAMES, MEETING_SLOTS, MeetingFrames, encode_frame};

/// The most names in one heartbeat. More go into several.
pub const MAX_HEARTBEAT_NAMES: usize = 50;

/// The most bytes in one frame of a meeting.
pub const MAX_MEETING_FRAME: usize = 1024;

/// The longest text of an error, in bytes. More is cut off.
pub const MAX_ERROR_TEXT: usize = 1024;

/// A numbered request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered {
    /// The number, not used twice on a stream.
    pub number: u64,
    /// What is asked.
    pub request: Request,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Request {
    /// Take in this record.
    Publish {
        /// An encoded [`SignedRecord`](whimbrel_base::SignedRecord).
        record: Vec<u8>,
    },
    /// Take in this record, which withdraws its name.
    Revoke {
        /// An encoded [`SignedRecord`](whimbrel_base::SignedRecord).
        record: Vec<u8>,
    },
    /// Say the newest record of a name.
    Lookup {
        /// The name.
        name: Name,
    },
    /// Say the newest record of a name, and each newer one, until told otherwise.
    Watch {
        /// The name.
        name: Name,
        /// The sequence number of the newest record that is known already.
        after: Option<u64>,
    },
    /// End a watch.
    Unwatch {
        /// The number of the request that began it.
        watch: u64,
    },
    /// The endpoint lives, and its records for these names count on.
    Heartbeat {
        /// At most [`MAX_HEARTBEAT_NAMES`].
        #[serde(deserialize_with = "bounded")]
        names: Vec<Name>,
    },
    /// Meet another peer on this stream, which carries nothing else. Must be its first request.
    Meet {
        /// The slot to join; `None` opens one.
        slot: Option<u16>,
    },
    /// Let this key register user names, by an invitation.
    Redeem {
        /// The invitation's code.
        code: String,
    },
    /// Make an invitation. For operators.
    Invite {
        /// The domain of the names that those who redeem it may register; every one if `None`.
        domain: Option<Domain>,
        /// How many keys may redeem it.
        uses: u16,
        /// For how long it counts.
        seconds: u32,
    },
    /// Take in this record, for these readers. As [`Publish`](Self::Publish), which is for everybody.
    Register {
        /// An encoded [`SignedRecord`](whimbrel_base::SignedRecord).
        record: Vec<u8>,
        /// Who may look it up.
        readers: Readers,
    },
    /// Say the newest record of an endpoint, under whatever name.
    Find {
        /// The endpoint.
        id: EndpointId,
    },
    /// Keep this delegation for the key that has the name already: only more time, so it is refused once the
    /// name was revoked. From the user's key only.
    Renew {
        /// An encoded [`Delegation`](whimbrel_base::Delegation).
        delegation: Vec<u8>,
    },
    /// Say the newest delegation of a name that was renewed for this key.
    Renewed {
        /// The device's or service's name.
        name: Name,
    },
    /// Vouch for this key that it has a name of the domain, whichever.
    Vouch {
        /// The domain.
        domain: Domain,
    },
    /// Keep this proposal for the user who is to decide, until it ends.
    Propose {
        /// A signed [`Proposal`](crate::proposal::Proposal).
        proposal: Vec<u8>,
    },
    /// Keep this decision about a proposal. The first one stays.
    Decide {
        /// A signed [`Decision`](crate::proposal::Decision).
        decision: Vec<u8>,
    },
    /// Say the proposals to and by a user.
    Proposals {
        /// An encoded [`Delegation`](whimbrel_base::Delegation) by which this key is one of the user's
        /// devices; the user's own key needs none.
        word: Option<Vec<u8>>,
        /// The last one that was said before.
        after: Option<ProposalId>,
    },
    /// A proposal by this user is not wanted any more, or what was decided is known.
    Withdraw {
        /// Which.
        proposal: ProposalId,
        /// As in [`Proposals`](Self::Proposals).
        word: Option<Vec<u8>>,
    },
    /// Say the newest records of a user's devices and services, and the user's own.
    Devices {
        /// The user.
        user: Name,
        /// The last name that was looked at before.
        after: Option<Name>,
    },
    /// Prove that this key's holder reads the mail of a user name that is to be registered.
    Mail {
        /// The name, which is the address.
        user: Name,
        /// The code that was sent; `None` has one sent.
        code: Option<String>,
    },
    /// Say when the proposals to and by a user change, on this stream, which carries nothing else. Must be
    /// its first request.
    Follow {
        /// As in [`Proposals`](Self::Proposals).
        word: Option<Vec<u8>>,
    },
    /// Keep this appointment for the device that it appoints. From the user's key only.
    Appoint {
        /// An encoded [`Appointment`](whimbrel_base::Appointment).
        appointment: Vec<u8>,
    },
    /// Say the appointment of a device that was left for this key.
    Appointed {
        /// The device's name.
        name: Name,
    },
    /// Keep this batch for the devices of the user.
    Leave {
        /// As in [`Proposals`](Self::Proposals).
        word: Option<Vec<u8>>,
        /// What only they can read.
        batch: Vec<u8>,
    },
    /// Say what was left for the devices of the user.
    Fetch {
        /// As in [`Proposals`](Self::Proposals).
        word: Option<Vec<u8>>,
        /// The number of the last batch that was said before; 0 for all.
        after: u64,
    },
}

/// A proposal, and what was decided about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposed {
    /// A signed [`Proposal`](crate::proposal::Proposal).
    pub proposal: Vec<u8>,
    /// A signed [`Decision`](crate::proposal::Decision), once there is one.
    pub decision: Option<Vec<u8>>,
}

/// What a device left for the others of its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBehind {
    /// Its place among those of its user, not 0.
    pub number: u64,
    /// Which key left it.
    pub by: EndpointId,
    /// For how many seconds it is kept from now.
    pub seconds: u32,
    /// What was left.
    pub batch: Vec<u8>,
}

/// A record, and for how long it counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Living {
    /// An encoded [`SignedRecord`](whimbrel_base::SignedRecord).
    pub record: Vec<u8>,
    /// For how many seconds it counts from now.
    pub seconds: u32,
}

/// What the service says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reply {
    /// The answer to a request.
    Response {
        /// The request's number.
        request: u64,
        /// The answer.
        response: Response,
    },
    /// A watched name has a newer record.
    Update {
        /// The number of the request that began the watch.
        watch: u64,
        /// An encoded [`SignedRecord`](whimbrel_base::SignedRecord).
        record: Vec<u8>,
    },
    /// What a user proposed or is asked has changed.
    News {
        /// The number of the request that asked for it.
        watch: u64,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Response {
    /// It was not done.
    Error {
        /// A number of [`ErrorCode`]; perhaps one that this program doesn't know.
        code: u16,
        /// What is wrong and what to do, for people.
        message: String,
    },
    /// The record is taken in.
    Accepted {
        /// For how many seconds it counts from now.
        seconds: u32,
    },
    /// What was looked up.
    Record {
        /// An encoded [`SignedRecord`](whimbrel_base::SignedRecord). It may be a revocation.
        record: Vec<u8>,
        /// For how many seconds it counts from now.
        seconds: u32,
    },
    /// The watch has begun.
    Watching,
    /// The watch has ended, or there was none.
    Unwatched,
    /// The heartbeat was heard.
    Heard {
        /// For each name 0, or a number of [`ErrorCode`].
        #[serde(deserialize_with = "bounded")]
        codes: Vec<u16>,
    },
    /// The slot is open, or joined; frames follow.
    Meeting {
        /// Its number, below [`MEETING_SLOTS`].
        slot: u16,
        /// For how many seconds from now the meeting lasts at most.
        seconds: u16,
    },
    /// The key may register user names now.
    Admitted {
        /// Of this domain; every one if `None`.
        domain: Option<Domain>,
    },
    /// The invitation is made.
    Invited {
        /// Its code.
        code: String,
    },
    /// The record is taken in.
    Registered {
        /// For how many seconds it counts from now.
        seconds: u32,
        /// For how many seconds from now the user's name is held for its owner without a further sign of
        /// life.
        lease: u32,
    },
    /// What the user renewed.
    Delegation {
        /// An encoded [`Delegation`](whimbrel_base::Delegation).
        delegation: Vec<u8>,
    },
    /// What the key may show to others.
    Voucher {
        /// A signed [`Voucher`](crate::Voucher).
        voucher: Vec<u8>,
    },
    /// Proposals to and by a user.
    Proposals {
        /// In the order of their ids.
        #[serde(deserialize_with = "bounded")]
        proposals: Vec<Proposed>,
        /// Ask for those after the last of these.
        more: bool,
    },
    /// What a user has.
    Devices {
        /// In the order of their names.
        #[serde(deserialize_with = "bounded")]
        records: Vec<Living>,
        /// Ask for those after this name, whether or not its record is among these.
        more: Option<Name>,
    },
    /// What the user's key left for this one.
    Appointment {
        /// An encoded [`Appointment`](whimbrel_base::Appointment).
        appointment: Vec<u8>,
    },
    /// What the user's devices left for each other.
    Batches {
        /// In the order of their numbers.
        #[serde(deserialize_with = "bounded")]
        batches: Vec<LeftBehind>,
        /// Ask for those after the last of these.
        more: bool,
    },
}

impl Response {
    /// The answer that says what went wrong.
    pub fn error(error: &NamesError) -> Self {
        Self::refusal(error.code(), error.to_string())
    }

    /// An answer with an error that is not the registry's.
    pub fn refusal(code: ErrorCode, mut message: String) -> Self {
        let mut end = message.len().min(MAX_ERROR_TEXT);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        Self::Error { code: code.number(), message }
    }
}

/// Reads a list of at most [`MAX_HEARTBEAT_NAMES`] items, without room for more.
fn bounded<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T>(std::marker::PhantomData<T>);

    impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {MAX_HEARTBEAT_NAMES} items")
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MAX_HEARTBEAT_NAMES {
                    return Err(serde::de::Error::invalid_length(items.len() + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    deserializer.deserialize_seq(Bounded(std::marker::PhantomData))
}
