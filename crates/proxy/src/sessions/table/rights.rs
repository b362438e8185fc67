//! Whose a session is, and who may take it.

use super::{Entry, FAILED, FREE_FAILURES, MOST_FAILED};
use crate::sessions::message::{May, Standing, Takers};
use std::time::Duration;
use tokio::time::Instant;
use whimbrel_base::EndpointId;

/// A device whose session was taken by its rule, and not by its word, has a say in it for so long.
pub(super) const LENT: Duration = Duration::from_secs(3600);

/// The device that had a session before it was taken by the rule. Until its time is over it may take it back,
/// and nobody else may that its own rule does not let: who was let in by mistake cannot lock it out.
pub(super) struct Lender {
    pub(super) device: EndpointId,
    pub(super) rule: Takers,
    pub(super) until: Instant,
    /// It was kept from taking it back once by the device that has it. It is so no more than once.
    pub(super) was_kept_off: bool,
    /// No other device may take it until then: it moved at the very moment that this one wanted it.
    pub(super) first_until: Option<Instant>,
}

/// For a lender to ask again that came while the session moved.
const FIRST: Duration = Duration::from_secs(30);

impl Lender {
    fn new(device: EndpointId, rule: Takers, now: Instant) -> Self {
        Self { device, rule, until: now + LENT, was_kept_off: false, first_until: None }
    }
}

impl Entry {
    /// By what right a device may take this now.
    pub(super) fn right_of(&self, device: EndpointId, now: Instant) -> Option<May> {
        if self.holder == device {
            Some(May::Own)
        } else if self.is_permitted(device, now) {
            Some(May::Consent)
        } else if self.rule_has(device, now) {
            Some(May::Rule)
        } else {
            None
        }
    }

    fn is_permitted(&self, device: EndpointId, now: Instant) -> bool {
        self.permission.as_ref().is_some_and(|given| given.device == device && now < given.until)
    }

    fn rule_has(&self, device: EndpointId, now: Instant) -> bool {
        match self.lender(now) {
            Some(lender) if lender.device == device => true,
            Some(lender) => lender.rule.has(device) && self.rule.has(device),
            None => self.rule.has(device),
        }
    }

    /// Whether a device had this before it was taken by the rule, and may take it back. If so, whether it was
    /// kept from that before.
    pub(super) fn lent_by(&self, device: EndpointId, now: Instant) -> Option<bool> {
        self.lender(now).filter(|lender| lender.device == device).map(|lender| lender.was_kept_off)
    }

    /// Whether a device may begin to take this just now, which it has a right to.
    pub(super) fn is_free_for(&mut self, device: EndpointId, now: Instant) -> bool {
        let is_moving = self.standing == Standing::Moving;
        let lender = self.lender.as_mut().filter(|lender| now < lender.until);
        if let Some(lender) = lender {
            if lender.device != device {
                return !is_moving && lender.first_until.is_none_or(|until| now >= until);
            }
            // Else the devices that have it could have it move all the time.
            if is_moving && self.taker != Some(device) {
                lender.first_until = Some(now + FIRST);
            }
        }
        !is_moving
    }

    /// The lender was kept from taking it back.
    pub(super) fn keep_off(&mut self, device: EndpointId) {
        if let Some(lender) = self.lender.as_mut().filter(|lender| lender.device == device) {
            lender.was_kept_off = true;
        }
    }

    fn lender(&self, now: Instant) -> Option<&Lender> {
        self.lender.as_ref().filter(|lender| now < lender.until)
    }

    /// It is this device's from now on, with this rule.
    pub(super) fn go_to(&mut self, device: EndpointId, rule: Takers, by: May, now: Instant) {
        let before = std::mem::replace(&mut self.holder, device);
        let rule = std::mem::replace(&mut self.rule, rule);
        self.permission = None;
        let lent = self.lender.take().filter(|lender| now < lender.until);
        self.lender = match lent {
            Some(lender) => Some(lender).filter(|lender| lender.device != device),
            None if by == May::Rule => Some(Lender::new(before, rule, now)),
            None => None,
        };
    }

    /// A device says who may take its sessions. Returns those that have, or are taking, this one by its rule
    /// and may no more.
    pub(super) fn set_rule(&mut self, device: EndpointId, rule: &Takers, now: Instant) -> Vec<EndpointId> {
        let is_out = |who: &EndpointId| *who != device && !rule.has(*who);
        let mut is_lent = false;
        if let Some(lender) = self.lender.as_mut().filter(|it| it.device == device && now < it.until) {
            (lender.rule, is_lent) = (rule.clone(), true);
        }
        if self.holder == device {
            self.rule = rule.clone();
        } else if !is_lent {
            return Vec::new();
        }
        let taker = self.taker.filter(|taker| self.right_of(*taker, now).is_none());
        let holder = Some(self.holder).filter(|holder| is_lent && is_out(holder));
        taker.into_iter().chain(holder).collect()
    }

    /// A device took the session and left. The session stood still meanwhile: that must not go on for ever.
    pub(super) fn has_failed(&mut self, device: EndpointId, now: Instant) {
        if self.failed.len() >= MOST_FAILED && !self.failed.contains_key(&device) {
            self.failed.retain(|_, (_, until)| now < *until);
        }
        let (times, until) = self.failed.entry(device).or_insert((0, now));
        *times += 1;
        if let Some(beyond) = times.checked_sub(FREE_FAILURES) {
            *until = now + FAILED * (1 << beyond.min(6));
        }
    }
}
