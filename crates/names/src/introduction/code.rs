//! Codes: three words that one person tells another.

use std::fmt;
use std::str::FromStr;

use bip39::Language;

/// A word carries so many bits.
const WORD_BITS: u32 = 11;
/// In the list, so many letters tell each word from all others.
const DISTINCT: usize = 4;

/// Where a meeting is, and the secret of those who meet: three words, of which the first is the meeting's
/// slot at the name service and the other two are 22 secret bits.
///
/// Written with dashes, as in `harvest-otter-violin`; read in any case, with spaces too, and with words that
/// are cut after four letters.
#[derive(Clone, PartialEq, Eq)]
pub struct Code {
    slot: u16,
    secret: [u16; 2],
}

impl Code {
    /// A new secret for the meeting in `slot`, which is below 2048.
    pub fn new(slot: u16) -> Self {
        let random: [u8; 4] = whimbrel_base::random_bytes();
        let random = u32::from_be_bytes(random);
        let word = |shift: u32| ((random >> shift) & ((1 << WORD_BITS) - 1)) as u16;
        Self { slot: slot % (1 << WORD_BITS), secret: [word(0), word(WORD_BITS)] }
    }

    /// The meeting's slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// What goes into the key exchange.
    pub(super) fn password(&self) -> Vec<u8> {
        self.secret.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}

fn word(number: u16) -> &'static str {
    Language::English.word_list()[usize::from(number)]
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", word(self.slot), word(self.secret[0]), word(self.secret[1]))
    }
}

/// Hides the secret.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({}-…)", word(self.slot))
    }
}

impl FromStr for Code {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Self, CodeError> {
        let words: Vec<String> = text
            .split(|c: char| c == '-' || c.is_whitespace())
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        let [slot, first, second] = &words[..] else { return Err(CodeError::Words(words.len())) };
        Ok(Self { slot: number(slot)?, secret: [number(first)?, number(second)?] })
    }
}

fn number(text: &str) -> Result<u16, CodeError> {
    let fits = |word: &str| word == text || (text.len() >= DISTINCT && word.starts_with(text));
    let found = Language::English.word_list().iter().position(|word| fits(word));
    found.and_then(|at| u16::try_from(at).ok()).ok_or_else(|| CodeError::Word(text.to_owned()))
}

/// Why a text is no code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// It has not three words.
    #[error("a code has three words, as in harvest-otter-violin; this has {0}")]
    Words(usize),
    /// A word is not in the list.
    #[error("{0:?} is no word of a code; ask for the code again")]
    Word(String),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_code_is_read_as_people_type_it() {
        for slot in [0, 1, 1023, 2047] {
            let code = Code::new(slot);
            let text = code.to_string();
            assert_eq!(text.parse::<Code>(), Ok(code.clone()));
            assert_eq!(text.to_uppercase().replace('-', " ").parse::<Code>(), Ok(code.clone()));
            let cut: Vec<&str> = text.split('-').map(|word| &word[..word.len().min(4)]).collect();
            assert_eq!(cut.join("-").parse::<Code>(), Ok(code.clone()));
            assert_eq!(format!("{code:?}"), format!("Code({}-…)", text.split_once("-").unwrap().0));
        }
        assert_eq!("zoo-zoo".parse::<Code>(), Err(CodeError::Words(2)));
        assert_eq!("zoo-zoo-zoo-zoo".parse::<Code>(), Err(CodeError::Words(4)));
        assert_eq!("zoo-qqq-zoo".parse::<Code>(), Err(CodeError::Word("qqq".to_owned())));
    }

    /// With one bit less, twice as many were drawn before.
    #[test]
    fn secrets_have_22_bits() {
        const DRAWN: usize = 50_000;
        let secrets: Vec<Code> = (0..DRAWN).map(|_| Code::new(7)).collect();
        let distinct = secrets.iter().map(Code::password).collect::<HashSet<_>>().len();
        // Of 2²² as many as these are equal to another one 298 times, give or take 17.
        assert!(distinct > DRAWN - 420, "{distinct}");
        for place in [0, 1] {
            let words = secrets.iter().map(|code| code.secret[place]).collect::<HashSet<_>>();
            assert_eq!(words.len(), 1 << WORD_BITS, "not every word comes in place {place}");
        }
    }
}
