//! How much of a task's turn its messages take.

/// tokio has a task yield after 128 steps, which are meant to be as large as reading from a socket. A message
/// of a few bytes is far smaller: a sender that yields each 128 of them leaves segments a quarter full.
const STEP: usize = 1024;
/// What a message takes besides its bytes.
const MESSAGE: usize = 128;

/// What messages took of a step so far.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    taken: usize,
}

impl Effort {
    /// Notes that a message of `bytes` was sent or taken. True if that completes a step.
    #[inline]
    pub(crate) fn is_step(&mut self, bytes: usize) -> bool {
        self.taken += bytes.saturating_add(MESSAGE).min(STEP);
        let is_step = self.taken >= STEP;
        if is_step {
            self.taken = 0;
        }
        is_step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(messages: usize, bytes: usize) -> usize {
        let mut effort = Effort::default();
        (0..messages).filter(|_| effort.is_step(bytes)).count()
    }

    #[test]
    fn a_large_message_is_a_step_and_so_are_a_few_small_ones() {
        assert_eq!(steps(10, usize::MAX), 10);
        assert_eq!(steps(80, 0), 10);
        assert_eq!(steps(50, 100), 10);
    }
}
