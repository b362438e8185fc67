//! The event heap (6.2). Which of two equal times comes first is part of the model, so this exact heap is,
//! too.

/// An event in the heap. It is live while `serial` is its owner's pending one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// The bits of the time. Times are never negative, so bits compare as times do, and faster.
    bits: u64,
    pub(super) serial: u32,
    pub(super) owner: u32,
}

impl Entry {
    pub(super) fn new(time: f64, serial: u32, owner: u32) -> Self {
        Self { bits: time.to_bits(), serial, owner }
    }
}

/// A binary heap that compares times only.
#[derive(Debug, Clone, Default)]
pub(super) struct Heap {
    entries: Vec<Entry>,
}

impl Heap {
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn copy_from(&mut self, other: &Self) {
        self.entries.clone_from(&other.entries);
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        self.rise(self.entries.len() - 1, entry);
    }

    /// The hole goes all the way down before the last entry rises from there; a tie selects the right child.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let last = self.entries.pop()?;
        let h = &mut self.entries[..];
        let Some(&top) = h.first() else { return Some(last) };
        let mut place = 0;
        while let Some(&[left, right]) = h.get(2 * place + 1..2 * place + 3).and_then(<[Entry]>::first_chunk)
        {
            let take_right = left.bits >= right.bits;
            h[place] = if take_right { right } else { left };
            place = 2 * place + 1 + usize::from(take_right);
        }
        if let Some(&only) = h.get(2 * place + 1) {
            h[place] = only;
            place = 2 * place + 1;
        }
        self.rise(place, last);
        Some(top)
    }

    #[inline]
    fn rise(&mut self, mut place: usize, entry: Entry) {
        let h = &mut self.entries[..];
        while place > 0 {
            let parent = (place - 1) / 2;
            if entry.bits >= h[parent].bits {
                break;
            }
            h[place] = h[parent];
            place = parent;
        }
        h[place] = entry;
    }
}
