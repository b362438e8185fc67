//! Signs of life on one path, and what their absence means.

use std::time::{Duration, Instant};

/// So many times as long as one that is silent may a path be without an acknowledgement on which the peer is
/// heard: slow start doubles what a queue takes in each round trip, and the estimate follows after some.
const HEARD: u32 = 6;

/// When a path last showed that it works.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// The last time that an acknowledgement came, or that sending began anew.
    progress: Instant,
    /// The last time that anything came.
    heard: Instant,
    /// When a sign of life was last asked for.
    asked: Instant,
    /// Since when the silence lasts that was the reason to ask, until the question is on its way.
    silent_since: Option<Instant>,
    /// Suspect although the peer is heard on it: it carries one way only, and nothing but an acknowledgement
    /// of what went the other way shows that it works again.
    one_way: bool,
    /// Stream data came, and no sign of life was asked for since: silence would be news.
    expects_more: bool,
    /// Nothing of the peer's streams has come on it, nor was a sign of life asked for: it may carry small
    /// segments only.
    untried: bool,
    /// How long a path that retires may be silent.
    patience: Duration,
    /// Beyond that, for a peer that has to finish what it sends on it, and to say that it has.
    last_words: Duration,
}

impl Liveness {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            progress: now,
            heard: now,
            asked: now,
            silent_since: None,
            one_way: false,
            expects_more: false,
            untried: true,
            patience: Duration::ZERO,
            last_words: Duration::ZERO,
        }
    }

    /// Something is in flight where nothing was: from now on an acknowledgement is waited for. What follows a
    /// silence is one more part of it.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.progress = self.silent_since.take().unwrap_or(now);
    }

    /// Something was acknowledged.
    pub(crate) fn progressed(&mut self, at: Instant) {
        self.progress = self.progress.max(at);
        self.one_way = false;
    }

    /// The carrier itself was acknowledged at `at`.
    pub(crate) fn carrier_progressed(&mut self, at: Instant) {
        self.progress = self.progress.max(at);
    }

    /// Something came at `at`.
    pub(crate) fn hear(&mut self, at: Instant) {
        self.heard = self.heard.max(at);
    }

    /// Stream data came.
    pub(crate) fn expect_more(&mut self) {
        self.expects_more = true;
        self.untried = false;
    }

    /// Stream data was acknowledged. An answer may follow, and may not get through although what it answers
    /// did.
    pub(crate) fn expect_answer(&mut self) {
        self.expects_more |= self.untried;
    }

    pub(crate) fn expects_more(&self) -> bool {
        self.expects_more
    }

    /// A sign of life will be asked for because the peer, of which more was expected, is silent. The silence
    /// makes the path suspect after `patience`, but the answer has at least `least`.
    pub(crate) fn doubt(&mut self, now: Instant, patience: Duration, least: Duration) {
        if self.expects_more {
            let counted = now.saturating_duration_since(self.heard).min(patience.saturating_sub(least));
            self.silent_since = now.checked_sub(counted);
        }
    }

    /// A sign of life is asked for.
    pub(crate) fn ask(&mut self, now: Instant) {
        self.asked = now;
        self.expects_more = false;
        self.untried = false;
    }

    /// When a sign of life was last asked for.
    pub(crate) fn asked(&self) -> Instant {
        self.asked
    }

    /// Until when nothing was heard, nor asked for.
    pub(crate) fn idle_since(&self) -> Instant {
        self.heard.max(self.asked)
    }

    /// For how long nothing was acknowledged.
    pub(crate) fn silent(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.progress)
    }

    /// The path becomes suspect after `patience`: notes whether it still brings what the peer sends.
    pub(crate) fn note_direction(&mut self, patience: Duration) {
        self.one_way = self.heard > self.progress + patience / 2;
    }

    /// Whatever comes shows that a suspect path works.
    pub(crate) fn revives_by_hearing(&self) -> bool {
        !self.one_way
    }

    /// When the silence has lasted for `patience`.
    pub(crate) fn deadline(&self, patience: Duration) -> Instant {
        self.progress + patience
    }

    /// The same for a peer whose every word counts: as long as it is heard a queue has grown before it, more
    /// likely than that the path carries one way only. Within limits, as that happens too.
    pub(crate) fn lenient_deadline(&self, patience: Duration) -> Instant {
        let most = self.progress + patience * HEARD;
        (self.heard + patience).clamp(self.deadline(patience), most)
    }

    /// The path retires: a silence longer than `patience` ends it, or, if only the peer has to finish, one
    /// longer than twice that and `last_words`.
    pub(crate) fn retire(&mut self, now: Instant, patience: Duration, last_words: Duration) {
        self.progress = now;
        (self.patience, self.last_words) = (patience, last_words);
    }

    /// When to stop waiting for what is missing on a path that retires.
    pub(crate) fn retire_deadline(&self, in_flight: u64) -> Instant {
        match in_flight {
            0 => self.progress.max(self.heard) + self.patience * 2 + self.last_words,
            _ => self.progress + self.patience,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_path_on_which_the_peer_is_heard_but_does_not_acknowledge_carries_one_way() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.ask(start + ms(90));
        liveness.note_direction(ms(100));
        assert!(liveness.revives_by_hearing(), "asking is not hearing");
        liveness.hear(start + ms(90));
        liveness.note_direction(ms(100));
        assert!(!liveness.revives_by_hearing());
        liveness.progressed(start + ms(200));
        assert!(liveness.revives_by_hearing());
    }

    #[test]
    fn a_question_after_a_silence_does_not_begin_it_anew_and_its_answer_has_the_least_of_times() {
        let (start, patience) = (Instant::now(), ms(650));
        let question_sent = |asked, least| {
            let mut liveness = Liveness::new(start);
            liveness.expect_more();
            liveness.doubt(start + asked, patience, least);
            liveness.ask(start + asked);
            liveness.begin(start + asked + ms(1));
            liveness
        };
        assert_eq!(question_sent(ms(160), ms(100)).deadline(patience), start + patience);
        let late = question_sent(ms(600), ms(100));
        assert_eq!(late.deadline(patience), start + ms(600 + 100), "nobody answers at once");
        let mut later = question_sent(ms(160), ms(100));
        later.begin(start + ms(2000));
        assert_eq!(later.deadline(patience), start + ms(2000) + patience, "it counts once");
    }

    #[test]
    fn a_question_after_nothing_that_made_an_answer_likely_begins_a_silence() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.doubt(start + ms(160), ms(650), ms(100));
        liveness.begin(start + ms(160));
        assert_eq!(liveness.deadline(ms(650)), start + ms(160 + 650));
    }

    #[test]
    fn a_peer_that_fell_silent_in_the_first_half_of_the_wait_is_not_heard_any_more() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.hear(start + ms(50));
        liveness.note_direction(ms(100));
        assert!(liveness.revives_by_hearing(), "half of the wait is not more than half");
        liveness.hear(start + ms(51));
        liveness.note_direction(ms(100));
        assert!(!liveness.revives_by_hearing());
    }

    #[test]
    fn a_path_that_retires_is_waited_for_longer_when_only_the_peer_has_to_finish() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.retire(start, ms(100), ms(300));
        assert_eq!(liveness.retire_deadline(1), start + ms(100));
        liveness.hear(start + ms(50));
        assert_eq!(liveness.retire_deadline(0), start + ms(50 + 200 + 300));
    }
}
