//! Containers of elements that each say first how long they are.

use super::{Index, Unfit};

/// More is never needed to know what an element is.
const LONGEST: usize = 32;

/// What is done with the rest of an element.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// More of it is needed to tell.
    More,
    /// So many bytes are passed over. None of them: what is in the element comes next.
    Skip(u64),
    /// So many bytes are a part of what a player must read first.
    Keep(u64),
}

/// A kind of elements.
pub(super) trait Elements {
    /// Looks at the first bytes of an element, which begins at this offset: each time one more of them.
    fn look(&mut self, at: u64, begin: &[u8], index: &mut Index) -> Result<Next, Unfit>;
}

/// A container of which so much was read.
pub(super) struct Walk<E> {
    at: u64,
    /// Of the element that comes.
    begin: Vec<u8>,
    /// What is left of the one before.
    left: u64,
    is_kept: bool,
    elements: E,
}

impl<E: Elements> Walk<E> {
    pub(super) fn new(elements: E) -> Self {
        Self { at: 0, begin: Vec::new(), left: 0, is_kept: false, elements }
    }

    pub(super) fn sees(&mut self, bytes: &[u8], index: &mut Index) -> Result<(), Unfit> {
        let mut rest = bytes;
        while let Some((byte, behind)) = rest.split_first() {
            if self.left > 0 {
                rest = self.pass(rest, index)?;
                continue;
            }
            self.begin.push(*byte);
            (rest, self.at) = (behind, self.at + 1);
            let from = self.at - self.begin.len() as u64;
            (self.left, self.is_kept) = match self.elements.look(from, &self.begin, index)? {
                Next::More if self.begin.len() < LONGEST => continue,
                Next::More => return Err(Unfit),
                Next::Skip(left) => (left, false),
                Next::Keep(left) => (left, true),
            };
            self.begin.clear();
        }
        Ok(())
    }

    /// Passes over what is left of an element. Returns what is behind it.
    fn pass<'a>(&mut self, bytes: &'a [u8], index: &mut Index) -> Result<&'a [u8], Unfit> {
        let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (some, behind) = bytes.split_at(n);
        if self.is_kept {
            index.keep(some)?;
        }
        (self.left, self.at) = (self.left - n as u64, self.at + n as u64);
        Ok(behind)
    }
}
