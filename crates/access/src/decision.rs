//! What a policy answers: choices in order of preference, and why.

use crate::{Choice, Key, PathId, Seconds};
use std::fmt;

/// The rule by which a choice got its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The only path that the policy uses.
    Configured,
    /// It is this path's turn.
    Turn,
    /// It completes before all others.
    EarliestArrival,
    /// It would not complete before the chosen one.
    ArrivesLater,
    /// The path answers fastest.
    LowestLatency,
    /// The path costs least.
    Cheapest,
    /// It takes the least energy.
    LeastEnergy,
    /// The size is below the threshold.
    BelowThreshold,
    /// The size is above the threshold.
    AboveThreshold,
    /// The path has not been measured (recently), and is tried for that reason.
    Explore,
    /// Every path that costs money is ruled out.
    TooExpensive,
    /// Background traffic stays out of the way.
    Yields,
    /// Its signal is not about to go, which matters to what must not wait or break.
    Stays,
    /// It loses less, which a sensitive flow needs.
    MostReliable,
    /// Its delay varies little, which a steady flow needs.
    Steadiest,
    /// It has the rate to spare that the flow needs.
    HasTheRate,
    /// Part of an object split over several connections.
    Split,
}

/// The estimate that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Estimate {
    /// The round-trip time.
    RoundTrip,
    /// The rate.
    Rate,
    /// How much the round-trip time varies.
    Jitter,
    /// The loss.
    Loss,
    /// How strong its access point is heard.
    Signal,
    /// Whether it is metered.
    Metered,
    /// How old the measurement is.
    Age,
    /// What is scheduled already.
    Queue,
}

/// Why a choice is where it is in the ranking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reason {
    /// The rule.
    pub rule: Rule,
    /// The intent that decided, if one did.
    pub intent: Option<Key>,
    /// The estimate that decided, and of which path, if one did.
    pub estimate: Option<(Estimate, PathId)>,
}

impl Reason {
    /// A rule that needs neither intent nor estimate.
    pub const fn rule(rule: Rule) -> Self {
        Self { rule, intent: None, estimate: None }
    }

    /// The same, because of this intent.
    pub const fn intent(self, key: Key) -> Self {
        Self { intent: Some(key), ..self }
    }

    /// The same, because of this estimate of this path.
    pub const fn estimate(self, estimate: Estimate, path: PathId) -> Self {
        Self { estimate: Some((estimate, path)), ..self }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = match self.rule {
            Rule::Configured => "the configured path",
            Rule::Turn => "this path's turn",
            Rule::EarliestArrival => "completes first",
            Rule::ArrivesLater => "completes no earlier than the chosen one",
            Rule::LowestLatency => "answers fastest",
            Rule::Cheapest => "costs least",
            Rule::LeastEnergy => "takes least energy",
            Rule::BelowThreshold => "smaller than the threshold",
            Rule::AboveThreshold => "at or above the threshold",
            Rule::Explore => "not measured lately, so tried",
            Rule::TooExpensive => "costs nothing, as was asked for",
            Rule::Yields => "background traffic stays out of the way",
            Rule::Stays => "is not about to go",
            Rule::MostReliable => "loses least",
            Rule::Steadiest => "delays evenly",
            Rule::HasTheRate => "has that rate to spare",
            Rule::Split => "a part of an object that is split",
        };
        f.write_str(rule)?;
        if let Some(key) = self.intent {
            write!(f, "; intent {key}")?;
        }
        if let Some((estimate, path)) = self.estimate {
            write!(f, "; estimate {estimate:?} of {path}")?;
        }
        Ok(())
    }
}

/// One choice with its forecast and its reason.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// What to do.
    pub choice: Choice,
    /// When the unit would be complete, if the policy asked and the answer was before its bound.
    pub completes: Option<Seconds>,
    /// Why.
    pub reason: Reason,
}

/// A part of an object that a policy splits: so many of the bytes to be received come this way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// The way of this part.
    pub choice: Choice,
    /// Bytes of the object. Parts follow one another in the object.
    pub bytes: u64,
}

/// A ranked decision. The first choice is to be carried out; the others are to be tried in order if it fails.
///
/// Meant to be kept and reused: clearing it keeps its memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    ranked: Vec<Ranked>,
    parts: Vec<Part>,
    warm: Option<Choice>,
}

impl Decision {
    /// Forget everything.
    pub fn clear(&mut self) {
        self.ranked.clear();
        self.parts.clear();
        self.warm = None;
    }

    /// Besides, open this connection for later: it costs a handshake and saves one.
    pub fn warm_up(&mut self, choice: Choice) {
        self.warm = Some(choice);
    }

    /// The connection to open besides, if any.
    pub fn warm(&self) -> Option<Choice> {
        self.warm
    }

    /// Put a choice behind all others.
    pub fn append(&mut self, choice: Choice, completes: Option<Seconds>, reason: Reason) {
        self.ranked.push(Ranked { choice, completes, reason });
    }

    /// Put a choice before all others.
    pub fn prefer(&mut self, choice: Choice, completes: Option<Seconds>, reason: Reason) {
        self.ranked.insert(0, Ranked { choice, completes, reason });
    }

    /// The reason of the best choice no longer holds: this one does.
    pub fn demote(&mut self, reason: Reason) {
        if let Some(best) = self.ranked.first_mut() {
            best.reason = reason;
        }
    }

    /// Split the object into these parts instead of carrying out the first choice.
    pub fn split(&mut self, parts: &[Part]) {
        self.parts.clear();
        self.parts.extend_from_slice(parts);
    }

    /// The best choice. `None` if the policy found no way at all: the unit has to wait.
    pub fn best(&self) -> Option<&Ranked> {
        self.ranked.first()
    }

    /// All choices, best first.
    pub fn ranked(&self) -> &[Ranked] {
        &self.ranked
    }

    /// The parts if the object is to be split, else none.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}
