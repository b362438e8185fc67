//! Building segments.

use std::time::Instant;

use super::Connection;
use super::schedule::Plan;
use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::frame::{Frame, PathReport, TakeOver};
use crate::ids::PathId;
use crate::path::{First, Path};
use crate::session::messages::Portion;

impl Connection {
    /// Whether [`poll_transmit`](Self::poll_transmit) may have something for `path`. Much cheaper than
    /// trying.
    pub fn has_transmit(&mut self, now: Instant, path: PathId) -> bool {
        self.plan(now, path).is_some()
    }

    /// Appends one segment for `path` to `out`. Returns false when there is nothing to send there.
    pub fn poll_transmit(&mut self, now: Instant, path: PathId, out: &mut Vec<u8>) -> bool {
        self.clock.tell(now);
        let Some(plan) = self.plan(now, path) else {
            return false;
        };
        let mut draft = Draft::new(out, self.segment_limit(path));
        let mut eliciting = self.put_first(path, &mut draft);
        eliciting |= self.put_ping(path, &mut draft);
        let told = self.put_acks(now, path, plan.trusted, &mut draft);
        if plan.trusted {
            eliciting |= self.put_control(now, path, &mut draft);
            eliciting |= self.put_datagrams(&mut draft);
        }
        eliciting |= self.put_last_word(path, &mut draft);
        eliciting |= self.put_streams(now, path, &plan, &mut draft);
        if !eliciting && !plan.acks {
            // Acknowledgements that are not due yet are no reason for a segment, or two sides would answer
            // each other's without end.
            draft.discard();
            return false;
        }
        let Some((size, contents)) = draft.finish() else {
            return false;
        };
        self.note_told(&told);
        if eliciting {
            self.pacing.spend(size as u64);
        }
        if let Some(path) = self.paths.get_mut(path) {
            path.note_sent(now, size, eliciting, contents);
        }
        true
    }

    /// How large the next segment on `path` may be: before the answer, only the early limit may
    /// be used, to the byte (TLS breaks off a connection that exceeds it).
    pub(super) fn segment_limit(&self, path: PathId) -> u64 {
        match self.paths.get(path) {
            Some(p) if p.is_opening() => p.early_room(),
            _ => u64::MAX,
        }
    }

    fn put_first(&mut self, id: PathId, draft: &mut Draft<'_>) -> bool {
        let Some(first) = self.paths.get(id).map(|path| path.beginning.first()) else {
            return false;
        };
        if first == First::Done {
            return false;
        }
        let lost = self.paths.final_reports();
        for report in &lost {
            self.path_marks.lost_told(report.path);
            draft.contents.push(Content::PathLost(report.path));
        }
        let content = match first {
            First::Accept => Some(Content::Accept),
            First::Resumed | First::TakenOver => Some(Content::Word(self.session.identity.tenure.word())),
            _ => None,
        };
        let frame = self.first_frame(first, id, lost);
        if !matches!(frame, Frame::TakeOver(_))
            && let Some(path) = self.paths.get_mut(id)
        {
            // The server has heard by now that one side has another key.
            path.beginning.set_meets(None);
        }
        draft.put(&frame, content);
        self.put_priority(id, draft);
        if let Some(path) = self.paths.get_mut(id) {
            path.beginning.started();
        }
        // The client gives its older paths up when it has our answer: it should know by then what
        // arrived on them, even if that was said on one of them and got lost there.
        self.tell_counts_again();
        true
    }

    fn first_frame(&self, first: First, path: PathId, lost: Vec<PathReport>) -> Frame<'static> {
        match first {
            First::Open => self.session.identity.open(path, lost),
            First::Accept => self.session.identity.accept(lost),
            First::Join => self.session.identity.join(path, lost),
            First::TakeOver => {
                let server = self.paths.get(path).and_then(|path| path.beginning.meets());
                let take_over = server.and_then(|server| self.session.identity.take_over(path, server));
                match take_over {
                    Some(take_over) => Frame::TakeOver(TakeOver { lost, ..take_over }),
                    None => self.session.identity.join(path, lost),
                }
            }
            First::TakenOver => self.session.identity.taken_over(path, lost),
            First::Joined | First::Done => self.session.identity.joined(path, false, lost),
            First::Resumed => self.session.identity.joined(path, true, lost),
        }
    }

    fn put_ping(&mut self, path: PathId, draft: &mut Draft<'_>) -> bool {
        let ping = self.paths.get_mut(path).map(|p| &mut p.ping);
        let wanted = ping.is_some_and(std::mem::take);
        if wanted {
            draft.put(&Frame::Ping, None);
        }
        wanted
    }

    fn put_control(&mut self, now: Instant, path: PathId, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        if !self.has_urgent_control() || !self.is_quick(now, path) {
            return false;
        }
        if draft.room() >= 3 * SMALL_FRAME {
            self.session.streams.put_limits(draft);
            self.session.messages.put_control(draft);
            self.session.mode.put(draft);
        }
        self.session.notice_addresses.put(draft);
        self.put_priorities(path, draft, |d| d.room() >= SMALL_FRAME);
        self.session.addresses.put(draft);
        self.session.observed.put(draft);
        self.session.candidates.put(draft);
        self.put_assignment(draft);
        self.put_suspend(draft);
        self.put_retires(draft);
        self.put_lost_paths(draft);
        self.session.streams.put_control(draft);
        self.session.ending.put(draft);
        draft.len() > before
    }

    fn put_lost_paths(&mut self, draft: &mut Draft<'_>) {
        while draft.room() >= SMALL_FRAME
            && let Some(path) = self.path_marks.pop_lost()
        {
            if let Some(report) = self.paths.final_report(path) {
                draft.put(&Frame::PathLost(report), Some(Content::PathLost(path)));
            }
        }
    }

    /// Says CLOSE_ACK on this path, unless it was the one to carry it anyway.
    fn put_last_word(&mut self, path: PathId, draft: &mut Draft<'_>) -> bool {
        let wanted = self.paths.get_mut(path).is_some_and(|p| std::mem::take(&mut p.last_word));
        let said = draft.contents.contains(&Content::CloseAck);
        let fits = draft.room() >= SMALL_FRAME;
        if wanted && !said && fits {
            draft.put(&Frame::CloseAck, Some(Content::CloseAck));
        }
        wanted && !said && fits
    }

    fn put_streams(&mut self, now: Instant, path: PathId, plan: &Plan, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        // What a slow path owes the others is older than anything new.
        if plan.again && self.sharing.is_redundant() && self.put_again(now, path, draft) {
            return true;
        }
        if plan.copies {
            let chance = self.chance(path);
            self.session.messages.sender.put_copy(chance, draft);
        }
        if plan.chunk > 0 {
            self.put_new(now, path, plan, draft);
        }
        if draft.len() == before && plan.again {
            self.put_again(now, path, draft);
        }
        draft.len() > before
    }

    fn put_new(&mut self, now: Instant, path: PathId, plan: &Plan, draft: &mut Draft<'_>) {
        let (first, before) = (draft.contents.len(), draft.len());
        let (now, chance) = (self.clock.since_begin(now), self.chance(path));
        let portion = Portion { chunk: plan.chunk, levels: plan.levels, now, chance };
        self.session.put_new(portion, &mut self.pacing, draft, &mut self.events);
        if draft.len() > before {
            let chunk = self.sharing.count_chunk();
            if let Some(path) = self.paths.get_mut(path) {
                path.figures.note_used(chunk);
            }
            let opening = self.paths.get(path).is_some_and(Path::is_opening);
            let is_last = opening && self.session.waiting(plan.levels, chance) == 0;
            self.copy_to_others(path, &draft.contents[first..], is_last);
        }
    }
}
