//! Server: the next owner of this end, told to the client until it knows.

use std::net::SocketAddr;

use crate::assignment::Assignment;

/// What is told, and whether it has to be told (again).
#[derive(Debug, Default)]
pub(crate) struct Announced {
    owner: Option<Box<(Assignment, Vec<SocketAddr>)>>,
    waits: bool,
}

impl Announced {
    pub(crate) fn state(&mut self, assignment: Assignment, addresses: Vec<SocketAddr>) {
        self.owner = Some(Box::new((assignment, addresses)));
        self.waits = true;
    }

    /// The client may not know.
    pub(crate) fn is_under_way(&self) -> bool {
        self.owner.is_some()
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// What has to be told now.
    pub(crate) fn take(&mut self) -> Option<(Assignment, Vec<SocketAddr>)> {
        if std::mem::take(&mut self.waits) { self.owner.as_deref().cloned() } else { None }
    }

    /// It was lost with its path.
    pub(crate) fn mark(&mut self) {
        self.waits = self.owner.is_some();
    }

    pub(crate) fn heard(&mut self) {
        (self.owner, self.waits) = (None, false);
    }
}
