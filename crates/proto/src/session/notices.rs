//! Numbers of the notices by which a server tells its client that it moved.

use crate::error::DecodeError;
use crate::notice::NoticeKey;
use crate::snapshot;
use crate::varint::Reader;

/// The newest notice: sent, on a server; heard, on a client.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    newest: u64,
    /// Client: of the server's copy of before, since another one has the connection.
    former: Option<Box<NoticeKey>>,
}

impl Notices {
    /// Server: the number of a new notice, which replaces those before.
    pub(crate) fn begin(&mut self) -> u64 {
        self.newest += 1;
        self.newest
    }

    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Server: no notice was begun after this one.
    pub(crate) fn is_newest(&self, sequence: u64) -> bool {
        self.newest == sequence
    }

    /// Client: takes a notice in. False if it is no newer than one that was heard.
    pub(crate) fn hear(&mut self, sequence: u64) -> bool {
        let fresh = sequence > self.newest;
        self.newest = self.newest.max(sequence);
        fresh
    }
}

impl Notices {
    /// Client: another copy of the server has the connection. The one before made notices with this key.
    pub(crate) fn supersede(&mut self, former: Option<NoticeKey>) {
        self.former = former.map(Box::new);
    }

    pub(crate) fn former(&self) -> Option<&NoticeKey> {
        self.former.as_deref()
    }

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::number(out, self.newest);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { newest: reader.varint()?, former: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_heard_once_and_older_ones_not_at_all() {
        let mut notices = Notices::default();
        assert!(notices.hear(3) && !notices.hear(3) && !notices.hear(2) && notices.hear(4));
    }

    #[test]
    fn a_notice_replaces_the_one_before() {
        let mut notices = Notices::default();
        let first = notices.begin();
        assert!(notices.is_newest(first));
        let second = notices.begin();
        assert!(notices.is_newest(second) && !notices.is_newest(first));
    }
}
