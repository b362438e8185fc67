//! Which port a router is asked to pass on, after it has refused another one. Without I/O.

use std::num::NonZeroU16;

use crate::device::UpnpRefusal;

/// Further ports that are tried where the router chooses none.
const MOST: u8 = 20;

/// Who chooses the port outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It is the same one as inside.
    Same,
    /// The router (WANIPConnection:2).
    Router,
    /// This host, which tries further ones.
    Host,
}

/// What a router is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) choice: Choice,
    pub(super) outside: u16,
    /// Zero is for ever.
    pub(super) seconds: u32,
    /// Whether the router may know how to choose.
    may_choose: bool,
    left: u8,
}

impl Wish {
    /// The same port as inside, for so long.
    pub(super) fn first(inside: NonZeroU16, seconds: u32, may_choose: bool) -> Self {
        Self { choice: Choice::Same, outside: inside.get(), seconds, may_choose, left: MOST }
    }

    /// What to ask for once this was refused, if anything; `other` is a port that may be free.
    pub(super) fn after(self, refusal: UpnpRefusal, other: u16) -> Option<Self> {
        let by_host = Self { choice: Choice::Host, outside: other, ..self };
        match (refusal, self.choice) {
            // Then it is given back, or stays until somebody else takes the port.
            (UpnpRefusal::PERMANENT_ONLY, _) if self.seconds > 0 => Some(Self { seconds: 0, ..self }),
            (_, Choice::Same) if self.may_choose => {
                Some(Self { choice: Choice::Router, outside: other, ..self })
            }
            (_, Choice::Same) => Some(by_host),
            (UpnpRefusal::UNKNOWN_ACTION | UpnpRefusal::NOT_IMPLEMENTED, Choice::Router) => Some(by_host),
            (UpnpRefusal::CONFLICT, Choice::Host) if self.left > 0 => {
                Some(Self { left: self.left - 1, ..by_host })
            }
            _ => None,
        }
    }
}
