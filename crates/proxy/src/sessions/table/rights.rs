//! Whose a session is, and who may take it.

use super::{Entry, FAILED, FREE_FAILURES, MOST_FAILED};
use crate::sessions::message::{May, Takers};
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

    /// Whether a device had this before it was taken by the rule, and may take it back.
    pub(super) fn is_lent_by(&self, device: EndpointId, now: Instant) -> bool {
        self.lender(now).is_some_and(|lender| lender.device == device)
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
            None if by == May::Rule => Some(Lender { device: before, rule, until: now + LENT }),
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
