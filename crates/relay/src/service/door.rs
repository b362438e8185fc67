//! Tells what is the relay's of what comes over TCP.

use std::sync::Arc;

use whimbrel_base::RelayToken;
use whimbrel_transport::{Front, Fronted, Look};

use super::{Shared, lock};
use crate::hello::{self, Hello};
use crate::spare::{OFFER, OFFERS};
use crate::splice::tune;

/// What sees each TCP connection first.
pub(super) struct Door(pub(super) Arc<Shared>);

/// What a connection is, by its first bytes.
enum Kind {
    Partial,
    Spare,
    Client(RelayToken),
    Other,
}

fn kind(first: &[u8]) -> Kind {
    if first.starts_with(OFFERS) || OFFERS.starts_with(first) {
        return if first.len() < OFFER { Kind::Partial } else { Kind::Spare };
    }
    match hello::read(first) {
        Hello::Partial => Kind::Partial,
        Hello::Named(name) => name.parse().map_or(Kind::Other, Kind::Client),
        Hello::Other => Kind::Other,
    }
}

impl Front for Door {
    fn look(&self, first: &[u8]) -> Look {
        match kind(first) {
            Kind::Partial => Look::More,
            Kind::Spare | Kind::Client(_) => Look::Take,
            Kind::Other => Look::Pass,
        }
    }

    fn take(&self, fronted: Fronted) {
        let shared = self.0.clone();
        if tune(&fronted.socket).is_err() {
            return;
        }
        match kind(&fronted.first) {
            Kind::Spare => shared.offered(fronted),
            Kind::Client(token) => shared.client(token, fronted),
            Kind::Partial | Kind::Other => {}
        }
    }

    fn leave(&self, fronted: Fronted) {
        lock(&self.0.leftovers).strangers.push(fronted);
    }
}
