//! The handover mode, as far as it has to be told.

use crate::content::Content;
use crate::draft::Draft;
use crate::frame::Frame;
use crate::handover::{Agreed, HandoverMode};
use crate::ids::Side;

/// The handover mode that holds for both sides.
#[derive(Debug)]
pub(crate) struct Mode {
    agreed: Agreed<HandoverMode>,
    side: Side,
    waits: bool,
}

impl Mode {
    /// The mode that this side wants. `single` holds unless somebody says something else.
    pub(crate) fn wanted(mode: HandoverMode, side: Side) -> Self {
        let mut this = Self { agreed: Agreed::unsaid(HandoverMode::Single), side, waits: false };
        this.state(mode);
        this
    }

    pub(crate) fn get(&self) -> HandoverMode {
        self.agreed.value
    }

    /// States the mode anew; the peer will be told. False if it holds already.
    pub(crate) fn state(&mut self, mode: HandoverMode) -> bool {
        let news = self.agreed.value != mode;
        if news {
            self.agreed.state(mode, self.side);
            self.waits = true;
        }
        news
    }

    /// The peer's word. True if another mode holds now.
    pub(crate) fn hear(&mut self, mode: HandoverMode, sequence: u64) -> bool {
        self.agreed.hear(mode, sequence, self.side.peer())
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    pub(crate) fn mark(&mut self) {
        self.waits = true;
    }

    pub(crate) fn put(&mut self, draft: &mut Draft<'_>) {
        if std::mem::take(&mut self.waits) && self.agreed.is_by(self.side) {
            let frame = Frame::Handover { sequence: self.agreed.sequence, mode: self.agreed.value };
            draft.put(&frame, Some(Content::Handover));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_side_whose_word_counts_tells_it() {
        let mut mode = Mode::wanted(HandoverMode::Full, Side::Server);
        assert!(mode.waits() && mode.hear(HandoverMode::Backup, 1));
        let mut out = Vec::new();
        let mut draft = Draft::new(&mut out, 100);
        mode.put(&mut draft);
        assert!(draft.finish().is_none(), "the client's word counts");
        assert!(!mode.waits());
    }
}
