//! What is left to send of a file, as it goes to another device: the bytes, and behind them the SHA-256 of
//! the whole file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::sum::{LENGTH, Sum};

/// Bytes of a file from one on, at most as many as are said.
pub(super) struct Rest<'a> {
    pub(super) file: &'a File,
    pub(super) from: u64,
    pub(super) length: u64,
}

/// What is left of a file, and its sum. Reading it does not move the file on.
pub(crate) struct Left<'a> {
    rest: Rest<'a>,
    sum: Sum,
    /// Bytes of the sum that were read.
    told: usize,
}

impl<'a> Left<'a> {
    /// What is left of a file whose bytes before made this of the sum.
    pub(super) fn new(rest: Rest<'a>, sum: Sum) -> Self {
        Self { rest, sum, told: 0 }
    }

    /// Bytes that are still to be read, those of the sum with them.
    pub(crate) fn length(&self) -> u64 {
        self.rest.length.saturating_add((LENGTH - self.told) as u64)
    }

    /// Reads the next bytes; 0 before its end if the file has become shorter. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self { rest, sum, told } = self;
        if rest.length == 0 {
            let n = into.len().min(LENGTH - *told);
            into[..n].copy_from_slice(&sum.whole()[*told..*told + n]);
            *told += n;
            return Ok(n);
        }
        let most = usize::try_from(rest.length).unwrap_or(usize::MAX).min(into.len());
        let n = rest.file.read_at(&mut into[..most], rest.from)?;
        sum.take(&into[..n]);
        rest.from += n as u64;
        rest.length -= n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write as _;

    use sha2::{Digest as _, Sha256};

    use super::*;

    fn read_all(mut left: Left<'_>) -> Vec<u8> {
        let (mut all, mut piece) = (Vec::new(), [0; 7]);
        loop {
            let n = left.read(&mut piece).unwrap();
            if n == 0 {
                return all;
            }
            all.extend_from_slice(&piece[..n]);
        }
    }

    #[test]
    fn what_is_left_comes_with_the_sum_of_the_whole_and_can_be_read_again() {
        let mut file = tempfile::tempfile().unwrap();
        let film = b"a film of a few bytes";
        file.write_all(film).unwrap();
        let (from, length) = (6, film.len() as u64 - 6);
        let left = || {
            let sum = Sum::Running(Sha256::new_with_prefix(&film[..6]));
            Left::new(Rest { file: &file, from, length }, sum)
        };
        let expected = [&film[6..], Sha256::digest(film).as_slice()].concat();
        assert_eq!(left().length(), expected.len() as u64);
        assert_eq!(read_all(left()), expected);
        assert_eq!(read_all(left()), expected);
        // One that another device has summed up is not summed up again.
        let left = Left::new(Rest { file: &file, from, length }, Sum::Known([7; LENGTH]));
        assert_eq!(read_all(left), [&film[6..], &[7; LENGTH]].concat());
    }

    #[test]
    fn a_file_that_became_shorter_ends_before_its_sum() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        let left = Left::new(Rest { file: &file, from: 1, length: 5 }, Sum::Running(Sha256::new()));
        assert_eq!(read_all(left), b"bc");
    }
}
