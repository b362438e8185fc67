//! Which port a router is asked to pass on, after it has refused another one. Without I/O.

use std::num::NonZeroU16;

use crate::device::UpnpRefusal;
use crate::pcp::Nonce;

/// Further ports that are tried where the router chooses none.
const MOST: u8 = 20;
/// Ports from here on are free more often.
pub(super) const HIGH: u16 = 0x8000;
/// Between two ports that are tried. It is odd: none of them comes twice.
const STEP: u16 = 0x2f1b;

/// Which side chooses the port outside: this one, or the router.
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
    /// Where the further ports begin.
    start: u16,
    left: u8,
}

impl Wish {
    /// The same port as inside, for so long. The further ones are always the same for a nonce and that port:
    /// what a router has passed on goes on when it is asked again, instead of one port after the other, some
    /// of them for ever. Another command of the same key and host has others: routers let one take the
    /// other's.
    pub(super) fn first(inside: NonZeroU16, seconds: u32, may_choose: bool, nonce: Nonce) -> Self {
        let [word, ..] = nonce;
        let [high, low, ..] = word.to_be_bytes();
        let start = u16::from_be_bytes([high, low]) ^ inside.get();
        Self { choice: Choice::Same, outside: inside.get(), seconds, may_choose, start, left: MOST }
    }

    /// What to ask for once this was refused, if anything.
    pub(super) fn after(self, refusal: UpnpRefusal) -> Option<Self> {
        match (refusal, self.choice) {
            // Then it is given back, or stays until somebody else takes the port.
            (UpnpRefusal::PERMANENT_ONLY, _) if self.seconds > 0 => Some(Self { seconds: 0, ..self }),
            (_, Choice::Same) if self.may_choose => Some(self.chosen_by(Choice::Router)),
            (_, Choice::Same) => Some(self.chosen_by(Choice::Host)),
            (
                UpnpRefusal::UNKNOWN_ACTION | UpnpRefusal::NOT_IMPLEMENTED | UpnpRefusal::FAILED,
                Choice::Router,
            ) => Some(self.chosen_by(Choice::Host)),
            (UpnpRefusal::CONFLICT | UpnpRefusal::IN_USE, Choice::Host) => {
                let left = self.left.checked_sub(1)?;
                Some(Self { left, ..self }.chosen_by(Choice::Host))
            }
            _ => None,
        }
    }

    /// The next of the further ports; a router that chooses may take it.
    fn chosen_by(self, choice: Choice) -> Self {
        let outside = self.start.wrapping_add(u16::from(self.left).wrapping_mul(STEP)) | HIGH;
        Self { choice, outside, ..self }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn none_of_the_further_ports_comes_twice_and_they_are_the_same_each_time() {
        let ports = |inside, nonce| {
            let first = Wish::first(NonZeroU16::new(inside).unwrap(), 3600, false, nonce);
            std::iter::successors(Some(first), |wish| wish.after(UpnpRefusal::CONFLICT))
                .skip(1)
                .map(|wish| wish.outside)
                .collect::<Vec<u16>>()
        };
        for word in [0, 0x7fff_0000, 0x8000_ffff, u32::MAX] {
            let tried = ports(4433, [word, 1, 2]);
            assert_eq!(tried.len(), usize::from(MOST) + 1);
            assert!(tried.iter().all(|port| *port >= HIGH), "{tried:?}");
            assert_eq!(tried.iter().collect::<BTreeSet<_>>().len(), tried.len(), "{tried:?}");
            assert_eq!(tried, ports(4433, [word, 1, 2]));
            assert_ne!(tried[0], ports(4434, [word, 1, 2])[0], "of another command");
            assert_ne!(tried[0], ports(4433, [word ^ 0x0001_0000, 1, 2])[0], "of another key");
        }
    }

    #[test]
    fn a_router_that_refuses_everything_is_asked_for_few_ports() {
        for refusal in [401, 402, 501, 602, 606, 718, 724, 725, 729, 9999].map(UpnpRefusal) {
            for may_choose in [false, true] {
                let first = Wish::first(NonZeroU16::MIN, 3600, may_choose, [7; 3]);
                let asked = std::iter::successors(Some(first), |wish| wish.after(refusal)).take(100).count();
                assert!(asked <= usize::from(MOST) + 4, "{refusal}: {asked}");
            }
        }
    }
}
