//! What packets of the peer have told that came through gateways.

use std::net::SocketAddr;

use whimbrel_proto::punching::MAX_ANSWERS;

/// Places that the peer's packets came from, at most: as many as may be dialled.
const MAX_ORIGINS: usize = 4;

/// One connection's part: what the peer's packets have told, and how many may still be answered.
#[expect(clippy::box_collection, reason = "one word where there are none")]
#[derive(Debug, Default)]
pub(crate) struct Punching {
    /// Of a connection that has attempted it.
    came_from: Option<Box<Vec<SocketAddr>>>,
    answers_left: u32,
    /// A task sees to it that the peer's candidates are sent to.
    is_attended: bool,
    /// A direct path is being looked for.
    pub(crate) is_looking: bool,
}

impl Punching {
    /// An attempt begins.
    pub(crate) fn begin(&mut self) {
        self.answers_left = MAX_ANSWERS;
        self.came_from = None;
    }

    /// An attempt is over: nothing is answered any more.
    pub(crate) fn end(&mut self) {
        self.answers_left = 0;
    }

    /// An authentic packet of the peer came. Returns whether to answer it.
    pub(crate) fn came(&mut self, from: SocketAddr, is_answer: bool) -> bool {
        let in_attempt = self.answers_left > 0;
        if in_attempt && self.came_from().len() < MAX_ORIGINS && !self.came_from().contains(&from) {
            self.came_from.get_or_insert_default().push(from);
        }
        let answers = in_attempt && !is_answer;
        self.answers_left -= u32::from(answers);
        answers
    }

    /// True if nothing has seen to the peer's candidates so far: the caller does from now on.
    pub(crate) fn begins_to_be_attended(&mut self) -> bool {
        !std::mem::replace(&mut self.is_attended, true)
    }

    /// Where packets of the peer came from in this attempt.
    pub(crate) fn came_from(&self) -> &[SocketAddr] {
        self.came_from.as_ref().map_or(&[], |places| &places[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, 7], port))
    }

    #[test]
    fn packets_are_answered_in_an_attempt_only_so_many_and_answers_not_at_all() {
        let mut punching = Punching::default();
        assert!(!punching.came(at(1), false) && punching.came_from().is_empty(), "no attempt");
        punching.begin();
        assert!(!punching.came(at(1), true) && punching.came_from() == [at(1)]);
        let answered = (0..1000).filter(|port| punching.came(at(*port), false)).count();
        assert_eq!((answered, punching.came_from().len()), (MAX_ANSWERS as usize, MAX_ORIGINS));
        punching.begin();
        punching.end();
        assert!(!punching.came(at(9), false) && punching.came_from().is_empty());
    }
}
