//! What is said when a session is over.

use super::moving::refuse;
use super::{Ending, Holder, Order, Session, Taking};
use crate::sessions::frame::Frame;
use crate::sessions::seat::Seat;
use crate::{Answer, Status};

impl Session {
    /// Tells everybody.
    pub(super) fn end(mut self, ending: &Ending) {
        if !matches!(ending, Ending::Whole) {
            self.server.break_off();
        }
        if let Holder::Seat(seat) = self.take_holder() {
            self.end_seat(*seat, ending, self.taking.is_some());
        }
        match self.taking.take() {
            Some(Taking::Pausing { take, .. }) => refuse(take, &Answer::new(Status::NoSession, "it is over")),
            Some(Taking::Confirming { seat, .. }) => self.end_seat(*seat, ending, false),
            None => {}
        }
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            if let Order::Take(take) = order {
                refuse(*take, &Answer::new(Status::NoSession, "it is over"));
            }
        }
    }

    fn end_seat(&self, seat: Seat, ending: &Ending, has_stopped: bool) {
        match ending {
            Ending::Whole => seat.finish(&self.server),
            Ending::Server if !has_stopped => seat.finish_broken(),
            _ => seat.dismiss(&Frame::Broken),
        }
    }
}
