//! The peer's flows, and the orders in which their messages are delivered.

use std::collections::BTreeMap;

use super::super::NUMBER_WINDOW;
use super::super::order::Order;
use super::super::seen::Seen;
use super::{Class, Whole};
use crate::error::ProtocolError;
use crate::frame::{MessageHeader, Place};

/// What a peer is told that sends messages to a side that takes none.
pub(super) const TAKES_NONE: &str = "this side said that it takes no messages";

/// One of the peer's flows.
#[derive(Debug)]
pub(super) struct Inflow {
    pub(super) class: Class,
    /// Messages that arrived whole, or will not come.
    pub(super) settled: Seen,
    /// Its own order, once a message of it arrived that belongs to no group.
    pub(super) order: Option<Box<Order<Whole>>>,
}

impl Inflow {
    pub(super) fn new(class: Class) -> Self {
        Self { class, settled: Seen::default(), order: None }
    }

    /// Checks that a message of a class may arrive under a number. True if it has its end.
    #[inline]
    pub(super) fn is_settled(&self, flow: u64, number: u64, class: Class) -> Result<bool, ProtocolError> {
        if self.class != class {
            return Err(ProtocolError::Message(flow, "the class of a flow cannot change"));
        }
        if !self.settled.admits(number) {
            return Err(ProtocolError::Message(flow, "too many messages of a flow are without an end"));
        }
        Ok(self.settled.contains(number))
    }
}

/// Who shares an order: a flow alone, or a group of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderOf {
    Flow(u64),
    Group(u64),
}

/// The order of a flow of this class, or of a group.
pub(super) fn order_of<'a>(
    flows: &'a mut BTreeMap<u64, Inflow>,
    groups: &'a mut BTreeMap<u64, Order<Whole>>,
    of: OrderOf,
    class: Class,
) -> &'a mut Order<Whole> {
    match of {
        OrderOf::Flow(flow) => {
            let inflow = flows.entry(flow).or_insert_with(|| Inflow::new(class));
            inflow.order.get_or_insert_default()
        }
        OrderOf::Group(group) => groups.entry(group).or_default(),
    }
}

/// Checks that an epoch of an order lies so close to what is due in it that it may be used. Only so far ahead
/// can an order be written down.
#[inline]
pub(super) fn check_epoch(flow: u64, order: Option<&Order<Whole>>, epoch: u64) -> Result<(), ProtocolError> {
    match order.map_or(epoch < NUMBER_WINDOW, |order| order.admits(epoch)) {
        true => Ok(()),
        false => Err(ProtocolError::Message(flow, "too many messages of an order are without an end")),
    }
}

/// Where a sequenced message stands, and in whose order.
pub(super) fn place_of(header: &MessageHeader) -> (OrderOf, u64, u64) {
    match header.place {
        Some(Place { group, epoch, index }) => (OrderOf::Group(group.into()), epoch, index),
        None if header.class.reliable => (OrderOf::Flow(header.flow), header.number, 0),
        None => (OrderOf::Flow(header.flow), 0, header.number),
    }
}
