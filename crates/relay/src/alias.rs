//! Tokens for single clients, by which a relay finds a reservation without keeping any of them.
//!
//! ```text
//! alias (10 bytes) = seal(the first 6 bytes of the reservation's token | random (4))
//! ```
//!
//! `seal` is a permutation of 80 bits under a key of the relay's own: a Feistel network of eight rounds over
//! halves of 40 bits, whose round function is AES-256. To those without the key, an alias is 10 random bytes:
//! it tells neither whose it is, nor that two of them are of one server. One that somebody made up leads to
//! one of `n` reservations with a chance of n / 2⁴⁸, and then no further than a token that everybody may
//! know.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aws_lc_rs::aead::quic::{AES_256, HeaderProtectionKey};
use whimbrel_base::{RelayToken, random_bytes};

use crate::rates::{Rate, Rates};

/// How much of a reservation's token is in its aliases.
const MARK: usize = 6;
const RANDOM: usize = RelayToken::LENGTH - MARK;
const HALF: usize = RelayToken::LENGTH / 2;
const ROUNDS: u8 = 8;

/// How often aliases are made for one reservation: a hundred each time is more than its clients use up.
const TURNS: Rate = Rate { per_second: 20.0, burst: 20.0 };

type Mark = [u8; MARK];
type Half = [u8; HALF];

/// What one relay makes aliases with, and whom they lead to.
pub struct Aliases {
    /// Used for what AES makes of one block, of which header protection gives 40 bits (RFC 9001 §5.4.3).
    key: HeaderProtectionKey,
    holders: Mutex<HashMap<Mark, RelayToken>>,
    turns: Mutex<Rates<RelayToken>>,
}

impl fmt::Debug for Aliases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aliases")
    }
}

impl Aliases {
    /// Those of the relay with this key.
    pub fn new(key: &[u8; 32]) -> Self {
        #[expect(clippy::expect_used, reason = "the length is that of the cipher")]
        let key = HeaderProtectionKey::new(&AES_256, key).expect("a key of AES-256 has 32 bytes");
        Self { key, holders: Mutex::default(), turns: Mutex::new(Rates::new(TURNS)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Mark, RelayToken>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reservation has this token. If another one's begins in the same way, that one keeps its aliases, and
    /// this one has none that lead anywhere.
    pub fn hold(&self, token: RelayToken) {
        self.lock().entry(mark(token)).or_insert(token);
    }

    /// The reservation is over.
    pub fn release(&self, token: RelayToken) {
        let mut holders = self.lock();
        if holders.get(&mark(token)) == Some(&token) {
            holders.remove(&mark(token));
        }
    }

    /// Another token that leads to the holder of this one.
    pub fn fresh(&self, token: RelayToken) -> RelayToken {
        let mut bytes = [0; RelayToken::LENGTH];
        bytes[..MARK].copy_from_slice(&mark(token));
        bytes[MARK..].copy_from_slice(&random_bytes::<RANDOM>());
        RelayToken::from_bytes(self.seal(bytes))
    }

    /// So many tokens that lead to the holder of this one; none if it has been given some too often.
    pub fn some(&self, token: RelayToken, count: usize, now: Instant) -> Vec<RelayToken> {
        let has_turn = self.turns.lock().unwrap_or_else(PoisonError::into_inner).take(token, now);
        let count = if has_turn { count } else { 0 };
        (0..count).map(|_| self.fresh(token)).collect()
    }

    /// The reservation's token, if this is an alias of one that is held; otherwise the same token.
    pub fn resolve(&self, named: RelayToken) -> RelayToken {
        if self.lock().get(&mark(named)) == Some(&named) {
            return named;
        }
        // Outside of the lock, because it takes longer than all else here.
        let opened = RelayToken::from_bytes(self.open(*named.as_bytes()));
        self.lock().get(&mark(opened)).copied().unwrap_or(named)
    }

    fn seal(&self, bytes: [u8; RelayToken::LENGTH]) -> [u8; RelayToken::LENGTH] {
        let (mut left, mut right) = halves(bytes);
        for round in 0..ROUNDS {
            (left, right) = (right, xor(left, self.mix(round, right)));
        }
        joined(left, right)
    }

    fn open(&self, bytes: [u8; RelayToken::LENGTH]) -> [u8; RelayToken::LENGTH] {
        let (mut left, mut right) = halves(bytes);
        for round in (0..ROUNDS).rev() {
            (left, right) = (xor(right, self.mix(round, left)), left);
        }
        joined(left, right)
    }

    /// The round function.
    #[expect(clippy::expect_used, reason = "the length is that of the cipher")]
    fn mix(&self, round: u8, half: Half) -> Half {
        let mut block = [0; 16];
        block[0] = round;
        block[1..=HALF].copy_from_slice(&half);
        self.key.new_mask(&block).expect("a block of AES has 16 bytes")
    }
}

fn mark(token: RelayToken) -> Mark {
    let mut mark = [0; MARK];
    mark.copy_from_slice(&token.as_bytes()[..MARK]);
    mark
}

fn halves(bytes: [u8; RelayToken::LENGTH]) -> (Half, Half) {
    let (mut left, mut right) = ([0; HALF], [0; HALF]);
    left.copy_from_slice(&bytes[..HALF]);
    right.copy_from_slice(&bytes[HALF..]);
    (left, right)
}

fn joined(left: Half, right: Half) -> [u8; RelayToken::LENGTH] {
    let mut bytes = [0; RelayToken::LENGTH];
    bytes[..HALF].copy_from_slice(&left);
    bytes[HALF..].copy_from_slice(&right);
    bytes
}

fn xor(mut half: Half, with: Half) -> Half {
    half.iter_mut().zip(with).for_each(|(byte, other)| *byte ^= other);
    half
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn token(first: u8) -> RelayToken {
        RelayToken::from_bytes([first, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    }

    #[test]
    fn an_alias_leads_to_its_reservation_at_its_relay_as_long_as_that_is_held() {
        let (relay, again, other) = (Aliases::new(&[1; 32]), Aliases::new(&[1; 32]), Aliases::new(&[2; 32]));
        for relay in [&relay, &again, &other] {
            relay.hold(token(1));
            relay.hold(token(2));
        }
        let (one, two) = (relay.fresh(token(1)), relay.fresh(token(2)));
        assert_eq!((relay.resolve(one), relay.resolve(two)), (token(1), token(2)));
        assert_eq!(again.resolve(one), token(1), "the same relay, started anew");
        assert_eq!(other.resolve(one), one, "another relay");
        assert_eq!(relay.resolve(token(1)), token(1), "the token itself");
        relay.release(token(1));
        assert_eq!((relay.resolve(one), relay.resolve(two)), (one, token(2)));
    }

    #[test]
    fn aliases_of_one_server_have_nothing_in_common_that_those_of_two_have_not() {
        let relay = Aliases::new(&[1; 32]);
        let many: Vec<_> = (0..512_u16).map(|n| relay.fresh(token(u8::from(n % 2 == 0)))).collect();
        // Two of 256 may be the same by chance, once in a hundred thousand times.
        assert!(many.iter().collect::<HashSet<_>>().len() >= many.len() - 1);
        for at in 0..RelayToken::LENGTH * 8 {
            let is_set = |alias: &&RelayToken| (alias.as_bytes()[at / 8] >> (at % 8)) & 1 == 1;
            for of_one in [0, 1] {
                let set = many.iter().skip(of_one).step_by(2).filter(is_set).count();
                // Of 256, half are set; fewer than 64 or more than 192 are eight standard deviations off.
                assert!((64..=192).contains(&set), "bit {at} is set in {set} of 256");
            }
        }
    }

    #[test]
    fn one_reservation_is_not_given_aliases_all_the_time() {
        let (relay, now) = (Aliases::new(&[1; 32]), Instant::now());
        let given: usize = (0..1000).map(|_| relay.some(token(1), 100, now).len()).sum();
        assert_eq!(given, 2000);
        assert_eq!(relay.some(token(2), 100, now).len(), 100, "another one is");
        assert_eq!(relay.some(token(1), 7, now + std::time::Duration::from_secs(1)).len(), 7, "later");
    }

    #[test]
    fn a_changed_alias_leads_nowhere() {
        let relay = Aliases::new(&[1; 32]);
        relay.hold(token(1));
        let alias = relay.fresh(token(1));
        for at in 0..RelayToken::LENGTH * 8 {
            let mut bytes = *alias.as_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            let changed = RelayToken::from_bytes(bytes);
            assert_eq!(relay.resolve(changed), changed, "bit {at}");
        }
    }

    #[test]
    fn a_token_that_begins_like_anothers_takes_nothing_of_that_one() {
        let relay = Aliases::new(&[1; 32]);
        let mut bytes = *token(1).as_bytes();
        bytes[RelayToken::LENGTH - 1] ^= 1;
        let like = RelayToken::from_bytes(bytes);
        relay.hold(token(1));
        relay.hold(like);
        assert_eq!(relay.resolve(relay.fresh(token(1))), token(1));
        assert_eq!(relay.resolve(like), like);
        relay.release(like);
        assert_eq!(relay.resolve(relay.fresh(token(1))), token(1));
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened(key: [u8; 32], bytes: [u8; RelayToken::LENGTH]) {
            let relay = Aliases::new(&key);
            let sealed = relay.seal(bytes);
            prop_assert_eq!(relay.open(sealed), bytes);
            prop_assert_eq!(relay.seal(relay.open(bytes)), bytes);
            prop_assert_ne!(sealed, bytes);
        }
    }
}
