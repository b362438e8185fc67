//! What the name service refuses, and the numbers that stand for it on the wire.

use whimbrel_base::{DecodeError, EndpointId, Name, RecordError, UnixTime};

use crate::admission::Domain;
use crate::proposal::ProposalError;
use crate::store::StoreError;

mod appointing;
mod batches;

pub use self::appointing::AppointmentRefusal;
pub use self::batches::BatchRefusal;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The numbers of the errors, as they are on the wire. A number is never given another meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* $name = $number,)*
        }

        impl ErrorCode {
            /// Every code that this program knows.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

codes! {
    /// The bytes are not a record, or not a request.
    Malformed = 1,
    /// The record is larger than any can be.
    TooLarge = 2,
    /// A signature is wrong.
    Forged = 3,
    /// The record is about another endpoint than the one that sent it.
    NotYours = 4,
    /// The record to revoke with does not revoke.
    NotARevocation = 5,
    /// The record's own end has passed, or is too far ahead.
    BadEnd = 6,
    /// More readers than a record may have.
    TooManyReaders = 7,
    /// The name belongs to another key.
    NameTaken = 10,
    /// The user name is not registered.
    UserUnknown = 11,
    /// The user's signature is missing, or is another key's than the user's.
    NotTheUsers = 12,
    /// The delegation has expired.
    DelegationExpired = 13,
    /// The delegation begins in the future.
    DelegationTooEarly = 14,
    /// The user gave the name to another key since.
    DelegationSuperseded = 15,
    /// The key may not register user names here.
    NotAdmitted = 16,
    /// The invitation's code is unknown, used or has ended.
    BadInvitation = 17,
    /// The key may not make invitations.
    NotOperator = 18,
    /// The invitation is to count for too many or too long, or for nobody.
    BadTerms = 19,
    /// A record with the same or a higher sequence number is there.
    Stale = 20,
    /// The sequence number is far in the future.
    SequenceTooHigh = 21,
    /// The name stands for a group, and the record is an endpoint's.
    StandsForGroup = 22,
    /// The user was asked already, and has not decided or does not want it.
    AskedAlready = 23,
    /// There is no proof yet that this user reads the mail of the address that is to be registered.
    NotProved = 24,
    /// The code that was sent by mail is another one, or was used, or has ended.
    BadMailCode = 25,
    /// The service sends no mail.
    NoMail = 26,
    /// The device that renewed the delegation is none of the user's any more.
    NotAppointed = 27,
    /// There is no such name.
    NotFound = 30,
    /// The name's record has expired.
    Expired = 31,
    /// The name's record was revoked.
    Revoked = 32,
    /// Nobody waits in this meeting slot.
    NoMeeting = 33,
    /// The key has no name of the domain.
    NoName = 34,
    /// There is no such proposal that waits.
    NoProposal = 35,
    /// The key has too many names.
    TooManyNames = 40,
    /// The service has too many names.
    Full = 41,
    /// Too many watch.
    TooManyWatchers = 42,
    /// Too many meetings are open.
    TooManyMeetings = 43,
    /// The peer asks too often.
    TooOften = 44,
    /// Too many proposals wait.
    TooManyProposals = 45,
    /// The entry changes too quickly.
    Busy = 50,
    /// The service can't reach its store.
    Unavailable = 51,
    /// The service can't send mail.
    MailFailed = 52,
}

impl ErrorCode {
    /// The number.
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The code with this number, if this program knows it.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.number() == number)
    }

    /// Whether the same request may succeed later without anybody changing anything.
    pub const fn is_temporary(self) -> bool {
        matches!(
            self,
            Self::Busy
                | Self::Unavailable
                | Self::Full
                | Self::TooManyWatchers
                | Self::TooManyMeetings
                | Self::TooOften
                | Self::TooManyProposals
                | Self::MailFailed
        )
    }
}

/// Why the name service does not do as asked. What it prints may be shown to whoever asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamesError {
    /// The bytes are not a record.
    #[error("this is not a record: {0}")]
    Malformed(#[source] DecodeError),
    /// The record is larger than any can be.
    #[error("a record has at most {limit} bytes, this has {size}; publish fewer addresses")]
    TooLarge {
        /// How many bytes it has.
        size: usize,
        /// How many it may have.
        limit: usize,
    },
    /// A signature is wrong.
    #[error("{0}")]
    Forged(#[source] RecordError),
    /// The record is about another endpoint than the one that sent it.
    #[error("the record is about the endpoint {0}, and only that one may publish it; connect with its key")]
    NotYours(EndpointId),
    /// The record to revoke with does not revoke.
    #[error("the record given to revoke {0} does not revoke it; sign one that says so")]
    NotARevocation(Name),
    /// The record's own end has passed, or is more than seven days ahead.
    #[error(
        "the record of {name} ends at {end} (unix time), which has passed or is more than seven days ahead; set this machine's clock, and sign a new one"
    )]
    BadEnd {
        /// The name of the record.
        name: Name,
        /// When it ends.
        end: UnixTime,
    },
    /// More readers than a record may have.
    #[error("a record has at most 32 readers; name users instead of their keys, or make it public")]
    TooManyReaders,
    /// The name belongs to another key.
    #[error(
        "{0} belongs to another key; publish with that key, have its user delegate it to this one, or choose another name"
    )]
    NameTaken(Name),
    /// The user name is not registered.
    #[error("{0} is not registered here; publish a record for it first, with the user's key")]
    UserUnknown(Name),
    /// The user's signature is missing, or is another key's than the user's.
    #[error(
        "the record for {name} needs the signature of the key that {user} is registered for here; have that key delegate {name} to this endpoint"
    )]
    NotTheUsers {
        /// The name of the record.
        name: Name,
        /// The user whose signature is needed.
        user: Name,
    },
    /// The delegation has expired.
    #[error("the delegation of {name} ended at {ended} (unix time); have the user make a new one")]
    DelegationExpired {
        /// The name of the record.
        name: Name,
        /// When it ended.
        ended: UnixTime,
    },
    /// The delegation begins in the future.
    #[error(
        "the delegation of {0} begins in the future; set the clock of the machine that made it, and make a new one"
    )]
    DelegationTooEarly(Name),
    /// The user gave the name to another key since.
    #[error("the user gave {0} to another key after this delegation was made; have the user make a new one")]
    DelegationSuperseded(Name),
    /// The key may not register user names here.
    #[error(
        "this name service does not let this key register {0}; ask its operator for an invitation, and register with its code"
    )]
    NotAdmitted(Name),
    /// The invitation's code is unknown, used or has ended: the three look the same.
    #[error(
        "this invitation is mistyped, used, or has ended; ask the operator of the name service for a new one"
    )]
    BadInvitation,
    /// The key may not make invitations.
    #[error("only operators of this name service make invitations; have one of them do it")]
    NotOperator,
    /// The invitation is to count for too many or too long, or for nobody.
    #[error("an invitation counts for 1 to 100 keys, and for 30 days at most; ask for less")]
    BadTerms,
    /// A record with the same or a higher sequence number is there.
    #[error("{name} has a record with the sequence number {current} already; publish with a higher one")]
    Stale {
        /// The name of the record.
        name: Name,
        /// The sequence number of the newest record.
        current: u64,
    },
    /// The sequence number is far in the future.
    #[error(
        "the sequence number of {0} is more than a day in the future; sequence numbers are unix milliseconds: set this machine's clock"
    )]
    SequenceTooHigh(Name),
    /// The name stands for a group, and the record is an endpoint's.
    #[error(
        "{0} stands for a group, and an endpoint cannot take its name; listen under another name, or revoke the group first"
    )]
    StandsForGroup(Name),
    /// There is no such name.
    #[error(
        "{0} is not registered here, or not shown to this key; check the spelling, and whether its owner runs it and lets this key in"
    )]
    NotFound(Name),
    /// No record of the endpoint can be read that says where it is.
    #[error("no endpoint {0} is known here; it has no name, or is not known to you")]
    UnknownEndpoint(EndpointId),
    /// The name's record has expired.
    #[error(
        "the record of {0} has expired: its endpoint gave no sign of life; start that endpoint, which publishes a new record"
    )]
    Expired(Name),
    /// The name's record was revoked.
    #[error("the record of {0} was revoked; publish a new one")]
    Revoked(Name),
    /// The key has no name of the domain.
    #[error("this key has no name of {0} here that counts; publish one first")]
    NoName(Domain),
    /// The key has too many names.
    #[error("a key has at most {0} names here; wait until unused ones lapse, or use another key")]
    TooManyNames(u64),
    /// The service has too many names.
    #[error("the name service is full; ask its operator, or use another one")]
    Full,
    /// Too many watch.
    #[error("too many are watching {0} or on this connection; end other watches, or try again later")]
    TooManyWatchers(Name),
    /// Too many hear of requests between users.
    #[error("too many hear of requests with this key, or of this user's; end others, or try again later")]
    TooManyFollowers,
    /// Nobody waits in this meeting slot: it was never opened, has ended, or somebody joined it before.
    #[error("nobody waits under this code: it was used, has ended, or is mistyped; ask for a new one")]
    NoMeeting,
    /// Too many meetings are open.
    #[error("too many meetings are open, or too many of this key; end some, or try again in ten minutes")]
    TooManyMeetings,
    /// The peer asks too often.
    #[error("too much comes from this key or address; wait a while and try again")]
    TooOften,
    /// The proposal or the decision is none, is forged, has ended, or is meant for another key.
    #[error(transparent)]
    BadProposal(#[from] ProposalError),
    /// The user was asked already.
    #[error(
        "{0} was asked already, and has not decided yet or does not want it; wait until that request ends"
    )]
    AskedAlready(Name),
    /// There is no such proposal that waits.
    #[error("this request was answered or withdrawn, or has ended; nothing has changed")]
    NoProposal,
    /// Too many proposals wait.
    #[error("too many requests wait for {0}, or of yours; withdraw one, or try again in a few days")]
    TooManyProposals(Name),
    /// There is no proof yet that this user reads the mail of the address that is to be registered.
    #[error(
        "this name service registers {0} for who reads its mail: `whimbrel id register {0}` has it send a code"
    )]
    NotProved(Name),
    /// The code that was sent by mail is another one, or was used, or has ended.
    #[error("this code is mistyped, used, or has ended; have a new one sent")]
    BadMailCode,
    /// The service sends no mail.
    #[error("this name service sends no codes by mail; register without one")]
    NoMail,
    /// The device that renewed the delegation has no name of the user's that counts.
    #[error(
        "{0} may not renew: its name was taken back, has ended, or is not published here; have the user's key \
         or another appointed device renew"
    )]
    NotAppointed(Name),
    /// An appointment is not kept.
    #[error(transparent)]
    BadAppointment(#[from] AppointmentRefusal),
    /// A batch is neither kept nor handed out.
    #[error(transparent)]
    BadBatch(#[from] BatchRefusal),
    /// The service can't send mail. Why is for the operator's log.
    #[error("the name service can't send mail now; try again in a while, and tell its operator")]
    MailFailed,
    /// The entry changes too quickly.
    #[error("{0} is being changed by several at once; try again")]
    Busy(Name),
    /// The service can't reach its store. Where and why is for the operator's log, not for everybody.
    #[error("the name service can't reach its store; try again in a while, and tell its operator")]
    Unavailable(#[source] StoreError),
}

impl NamesError {
    /// The number for the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed(_) => ErrorCode::Malformed,
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::Forged(_) => ErrorCode::Forged,
            Self::NotYours(_) => ErrorCode::NotYours,
            Self::NotARevocation(_) => ErrorCode::NotARevocation,
            Self::BadEnd { .. } => ErrorCode::BadEnd,
            Self::TooManyReaders => ErrorCode::TooManyReaders,
            Self::NameTaken(_) => ErrorCode::NameTaken,
            Self::UserUnknown(_) => ErrorCode::UserUnknown,
            Self::NotTheUsers { .. } => ErrorCode::NotTheUsers,
            Self::DelegationExpired { .. } => ErrorCode::DelegationExpired,
            Self::DelegationTooEarly(_) => ErrorCode::DelegationTooEarly,
            Self::DelegationSuperseded(_) => ErrorCode::DelegationSuperseded,
            Self::NotAdmitted(_) => ErrorCode::NotAdmitted,
            Self::BadInvitation => ErrorCode::BadInvitation,
            Self::NotOperator => ErrorCode::NotOperator,
            Self::BadTerms => ErrorCode::BadTerms,
            Self::Stale { .. } => ErrorCode::Stale,
            Self::SequenceTooHigh(_) => ErrorCode::SequenceTooHigh,
            Self::StandsForGroup(_) => ErrorCode::StandsForGroup,
            Self::NotFound(_) | Self::UnknownEndpoint(_) => ErrorCode::NotFound,
            Self::Expired(_) => ErrorCode::Expired,
            Self::Revoked(_) => ErrorCode::Revoked,
            Self::NoName(_) => ErrorCode::NoName,
            Self::TooManyNames(_) => ErrorCode::TooManyNames,
            Self::Full => ErrorCode::Full,
            Self::TooManyWatchers(_) | Self::TooManyFollowers => ErrorCode::TooManyWatchers,
            Self::NoMeeting => ErrorCode::NoMeeting,
            Self::TooManyMeetings => ErrorCode::TooManyMeetings,
            Self::TooOften => ErrorCode::TooOften,
            Self::BadProposal(ProposalError::Forged) => ErrorCode::Forged,
            Self::BadProposal(ProposalError::Times) => ErrorCode::BadEnd,
            Self::BadProposal(_) => ErrorCode::Malformed,
            Self::AskedAlready(_) => ErrorCode::AskedAlready,
            Self::NoProposal => ErrorCode::NoProposal,
            Self::TooManyProposals(_) => ErrorCode::TooManyProposals,
            Self::NotProved(_) => ErrorCode::NotProved,
            Self::BadMailCode => ErrorCode::BadMailCode,
            Self::NoMail => ErrorCode::NoMail,
            Self::NotAppointed(_) => ErrorCode::NotAppointed,
            Self::BadAppointment(refusal) => match refusal {
                AppointmentRefusal::Malformed(_) => ErrorCode::Malformed,
                AppointmentRefusal::NotTheUsers(_) => ErrorCode::NotTheUsers,
                AppointmentRefusal::Forged(_) => ErrorCode::Forged,
                AppointmentRefusal::Times(_) => ErrorCode::BadEnd,
                AppointmentRefusal::Older(_) => ErrorCode::Stale,
                AppointmentRefusal::TooMany(_) => ErrorCode::TooManyNames,
            },
            Self::BadBatch(refusal) => match refusal {
                BatchRefusal::Size(_) => ErrorCode::TooLarge,
                BatchRefusal::NoUser => ErrorCode::UserUnknown,
                BatchRefusal::Full => ErrorCode::Full,
            },
            Self::MailFailed => ErrorCode::MailFailed,
            Self::Busy(_) => ErrorCode::Busy,
            Self::Unavailable(_) => ErrorCode::Unavailable,
        }
    }
}

impl From<DecodeError> for NamesError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::TooLarge { size, limit } => Self::TooLarge { size, limit },
            other => Self::Malformed(other),
        }
    }
}

impl From<StoreError> for NamesError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, older programs misunderstand this one's errors.
    #[test]
    fn the_numbers_stay() {
        let numbers: Vec<u16> = ErrorCode::ALL.iter().map(|code| code.number()).collect();
        let known = [
            1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 30,
            31, 32, 33, 34, 35, 40, 41, 42, 43, 44, 45, 50, 51, 52,
        ];
        assert_eq!(numbers, known);
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), Some(*code));
        }
        assert_eq!(ErrorCode::from_number(9999), None);
    }
}
