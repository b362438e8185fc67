//! One decision of `whimbrel`: the situation, and what the intents make of its paths.

use crate::{
    Burstiness, BytesPerSecond, Cost, Estimate, FIRST_WINDOW, Granularity, Intents, Key, MAX_PATHS,
    PathEstimate, PathId, Reason, Resilience, Rule, Seconds, Situation, Timeliness,
};

/// A path that is to be used for its rate must have this share of the rate of the path that answers fastest.
///
/// Two paths together take at best 1 / (1 + r) of the time that the faster one takes, where r is the ratio of
/// their rates: 1/20 saves 4.8 %. Less is not worth it: leaving home must save 3 % (`margin`) in any case,
/// and what is sent over a path that slow is long under way if the forecast errs.
pub(super) const LEAST_RATE: f64 = 1.0 / 20.0;

/// Of loss: up to this multiple of the smallest is as good. A TCP connection's rate goes with one over the
/// root of its loss (Mathis et al. 1997): twice the loss costs less than a third of the rate.
const ABOUT_THE_LOSS: f64 = 2.0;
/// And so much is as good as none: one segment in a thousand is within the error of what is measured over
/// some thousand segments.
const NEARLY_NO_LOSS: f64 = 0.001;

/// Round-trip times of up to this multiple of the smallest count as equal: queues of a loaded path vary by
/// more.
const ABOUT_THE_RTT: f64 = 1.2;

/// A round-trip time of more than this multiple of the smallest is clearly longer: paths that are alike
/// seldom differ by as much.
const FURTHER: f64 = 1.5;

/// The most by which delay may vary for a steady flow: the bound of the classes for conversation in ITU-T
/// Y.1541 (classes 0 and 1).
const MOST_JITTER: Seconds = Seconds(0.05);

/// A flow that comes in bursts wants its mean rate so many times. At half of the load, a burst that comes at
/// random waits on average for as long as it takes to pass (M/M/1), and a regular one has passed long before
/// the next. The two are treated alike, since nothing says how long a period is.
const BURST: f64 = 2.0;

/// Used more than this, a path counts as busy for background traffic: somebody waits for what is moving, be
/// it of this program or another. Less is what programs say to their servers all day long.
const BUSY: f64 = 0.1;

/// A set of paths.
pub(super) type Paths = [bool; MAX_PATHS];

/// The paths of a set in order.
pub(super) fn each(paths: Paths) -> impl Iterator<Item = PathId> {
    (0..MAX_PATHS as u8).map(PathId).filter(move |path| paths[path.index()])
}

/// A situation with what follows from it.
pub(super) struct Case<'a> {
    pub(super) situation: &'a Situation<'a>,
    /// What the application says of units of this granularity.
    pub(super) stated: Intents,
    /// Whether most of it is sent rather than received: then that direction's rates count.
    sends: bool,
    /// Paths that the intents leave.
    allowed: Paths,
    /// Those of them that are worth considering for this unit.
    worthy: Paths,
    /// The intent that ruled paths out last.
    why: Option<(Rule, Key, Estimate)>,
}

impl<'a> Case<'a> {
    pub(super) fn new(situation: &'a Situation<'a>) -> Self {
        let none = [false; MAX_PATHS];
        let stated = situation.stated();
        let sends = stated.sent() > stated.received();
        let mut case = Self { situation, stated, sends, allowed: none, worthy: none, why: None };
        situation.usable().for_each(|path| case.allowed[path.index()] = true);
        case.spend_little();
        case.leave_the_fading();
        case.lose_little();
        case.have_the_rate();
        case.keep_time();
        case.leave_the_unknown();
        case.worthy = case.fast_enough();
        case
    }

    /// Paths that are worth considering, in order.
    pub(super) fn worthy(&self) -> impl Iterator<Item = PathId> + use<> {
        each(self.worthy)
    }

    pub(super) fn is_worthy(&self, path: PathId) -> bool {
        self.worthy[path.index()]
    }

    /// What is known of a usable path.
    pub(super) fn estimate(&self, path: PathId) -> &'a PathEstimate {
        &self.situation.paths[path.index()]
    }

    /// The rate of a usable path in the direction that most of the unit goes.
    fn rate(&self, path: PathId) -> Option<BytesPerSecond> {
        let estimate = self.estimate(path);
        if self.sends { estimate.up.best } else { estimate.down.best }
    }

    /// The size that counts most.
    pub(super) fn size_key(&self) -> Key {
        if self.sends { Key::SizeSent } else { Key::SizeReceived }
    }

    /// A path that costs money, while another one does not and money matters to some extent: it must be worth
    /// it.
    pub(super) fn is_reserve(&self, path: PathId) -> bool {
        self.stated.cost() == Cost::Balance
            && self.estimate(path).metered
            && self.worthy().any(|other| !self.estimate(other).metered)
    }

    /// How much later answers come over this path than its smallest round-trip time has it: what a unit that
    /// somebody waits for must expect.
    pub(super) fn handicap(&self, path: PathId) -> Seconds {
        match self.stated.timeliness() {
            Timeliness::Interactive => self.estimate(path).jitter(),
            Timeliness::Stream | Timeliness::Transfer | Timeliness::Background => Seconds::ZERO,
        }
    }

    /// The path that brings the first window of a connection soonest. One that was never measured counts as
    /// the best, until it is being used.
    pub(super) fn home(&self) -> Option<PathId> {
        let takes = |path: PathId| {
            let estimate = self.estimate(path);
            match (estimate.srtt_min, self.rate(path)) {
                (Some(rtt), Some(rate)) => rtt + rate.time_for(FIRST_WINDOW as f64),
                _ if estimate.connections > 0 => Seconds::NEVER,
                _ => Seconds::ZERO,
            }
        };
        let home = each(self.allowed).min_by(|a, b| takes(*a).0.total_cmp(&takes(*b).0))?;
        Some(home).filter(|home| self.is_worthy(*home) && !self.is_reserve(*home))
    }

    /// Whether another path answers about as fast as the fastest. Then no path is home: what comes next is as
    /// well served there.
    pub(super) fn has_equals(&self) -> bool {
        let rtts = || each(self.allowed).filter_map(|path| self.estimate(path).srtt_min);
        let fastest = rtts().fold(Seconds::NEVER, Seconds::min);
        rtts().filter(|rtt| *rtt < fastest * ABOUT_THE_RTT).count() > 1
    }

    /// The path that this unit is to explore, and why it is this unit that does. Small ones do, and those
    /// that don't mind; none does for which delay or a break matters, and none where it costs money.
    pub(super) fn explores(&self) -> Option<(PathId, Reason)> {
        let key = self.may_explore()?;
        let spends = self.stated.cost() == Cost::Ignore;
        let unknown = |path: &PathId| self.estimate(*path).needs_exploring();
        let path = each(self.allowed).filter(unknown).find(|path| spends || !self.estimate(*path).metered)?;
        Some((path, Reason::rule(Rule::Explore).intent(key).estimate(Estimate::Age, path)))
    }

    /// Whether it is known to fit into the first window of a connection.
    pub(super) fn is_small(&self) -> bool {
        let size = if self.sends { self.stated.sent() } else { self.stated.received() };
        size.is_some_and(|bytes| bytes <= FIRST_WINDOW)
    }

    /// Whether it answers clearly later than the path that answers fastest.
    pub(super) fn is_further(&self, path: PathId) -> bool {
        let rtts = each(self.allowed).filter_map(|path| self.estimate(path).srtt_min);
        let fastest = rtts.fold(Seconds::NEVER, Seconds::min);
        self.estimate(path).srtt_min.is_some_and(|rtt| rtt > fastest * FURTHER)
    }

    /// Whether what the unit receives may come in parts, if there are at least so many bytes.
    pub(super) fn may_split(&self, from: u64) -> bool {
        let stated = &self.stated;
        self.situation.granularity == Granularity::Message
            && stated.received().is_some_and(|received| received >= from)
            // Parts are asked for one by one: all that is sent would be sent with each.
            && stated.sent().is_none_or(|sent| sent < from)
            && stated.resilience() != Resilience::Sensitive
            && !matches!(stated.timeliness(), Timeliness::Background | Timeliness::Stream)
    }

    /// Why the best way is the best, unless an intent decided between ways.
    pub(super) fn reason(&self, path: PathId) -> Reason {
        match self.why {
            Some((rule, key, estimate)) => Reason::rule(rule).intent(key).estimate(estimate, path),
            None => {
                Reason::rule(Rule::EarliestArrival).intent(self.size_key()).estimate(Estimate::Queue, path)
            }
        }
    }

    /// `no-expense` has left no metered path; `optimise` leaves one only if there is nothing else.
    fn spend_little(&mut self) {
        match self.stated.cost() {
            Cost::NoExpense => {
                if self.situation.paths.iter().any(|estimate| estimate.metered) {
                    self.why = Some((Rule::TooExpensive, Key::Cost, Estimate::Metered));
                }
            }
            Cost::Optimise => {
                self.keep((Rule::Cheapest, Key::Cost, Estimate::Metered), |estimate| !estimate.metered);
            }
            Cost::Balance | Cost::Ignore => {}
        }
    }

    /// What must not wait or break does not begin where the signal is about to go.
    fn leave_the_fading(&mut self) {
        if self.delay_or_breaks_matter() {
            let key = if self.is_timely() { Key::Timeliness } else { Key::Resilience };
            self.keep((Rule::Stays, key, Estimate::Signal), |estimate| !estimate.is_fading());
        }
    }

    fn lose_little(&mut self) {
        if self.stated.resilience() != Resilience::Sensitive {
            return;
        }
        let loss = |estimate: &PathEstimate| estimate.loss.unwrap_or(0.0);
        let losses = each(self.allowed).map(|path| loss(self.estimate(path)));
        let most = losses.fold(f64::INFINITY, f64::min) * ABOUT_THE_LOSS + NEARLY_NO_LOSS;
        self.keep((Rule::MostReliable, Key::Resilience, Estimate::Loss), |estimate| loss(estimate) <= most);
    }

    /// A flow of a known rate stays off paths that have not so much to spare. A bulk flow has no rate of its
    /// own: it takes what it gets.
    fn have_the_rate(&mut self) {
        let burst = match self.stated.burstiness() {
            Burstiness::Bulk => return,
            Burstiness::NoBursts => 1.0,
            Burstiness::RegularBursts | Burstiness::RandomBursts => BURST,
        };
        let has = |spare: Option<BytesPerSecond>, rate: u64, times: f64| {
            spare.is_none_or(|spare| spare.0 >= rate as f64 * times)
        };
        let (received, sent) = (self.stated.bitrate_received, self.stated.bitrate_sent);
        if received.is_none() && sent.is_none() {
            return;
        }
        if let Some(rate) = received {
            self.keep((Rule::HasTheRate, Key::BitrateReceived, Estimate::Rate), |estimate| {
                has(estimate.down.spare(), rate, 1.0)
            });
        }
        if let Some(rate) = sent {
            self.keep((Rule::HasTheRate, Key::BitrateSent, Estimate::Rate), |estimate| {
                has(estimate.up.spare(), rate, 1.0)
            });
        }
        self.keep((Rule::HasTheRate, Key::Burstiness, Estimate::Rate), |estimate| {
            has(estimate.down.spare(), received.unwrap_or(0), burst)
                && has(estimate.up.spare(), sent.unwrap_or(0), burst)
        });
    }

    fn keep_time(&mut self) {
        match self.stated.timeliness() {
            Timeliness::Stream => {
                self.keep((Rule::Steadiest, Key::Timeliness, Estimate::Jitter), |estimate| {
                    estimate.jitter() <= MOST_JITTER
                });
            }
            Timeliness::Background => {
                self.keep((Rule::Yields, Key::Timeliness, Estimate::Queue), |estimate| {
                    let is_used = estimate.down.used() > BUSY || estimate.up.used() > BUSY;
                    estimate.scheduled == 0 && !is_used && !estimate.metered
                });
            }
            Timeliness::Interactive | Timeliness::Transfer => {}
        }
    }

    /// A path that was never measured is left to units that explore it, if the unit is one for which it
    /// matters.
    fn leave_the_unknown(&mut self) {
        let stated = &self.stated;
        let is_large = stated.size().is_some_and(|size| size > FIRST_WINDOW);
        if self.may_explore().is_none() && (is_large || self.delay_or_breaks_matter()) {
            let why = self.why;
            self.keep((Rule::Explore, Key::SizeReceived, Estimate::Age), PathEstimate::is_measured);
            self.why = why;
        }
    }

    fn delay_or_breaks_matter(&self) -> bool {
        self.is_timely() || self.stated.resilience() == Resilience::Sensitive
    }

    fn is_timely(&self) -> bool {
        matches!(self.stated.timeliness(), Timeliness::Interactive | Timeliness::Stream)
    }

    /// The intent because of which this unit may explore, if it may.
    fn may_explore(&self) -> Option<Key> {
        let stated = &self.stated;
        if self.delay_or_breaks_matter() {
            None
        } else if stated.resilience() == Resilience::Resilient {
            Some(Key::Resilience)
        } else if stated.timeliness() == Timeliness::Background {
            Some(Key::Timeliness)
        } else {
            stated.size().is_some_and(|size| size <= FIRST_WINDOW).then_some(self.size_key())
        }
    }

    /// Leave out paths that fail the test, unless all do.
    fn keep(&mut self, why: (Rule, Key, Estimate), test: impl Fn(&PathEstimate) -> bool) {
        let mut kept = [false; MAX_PATHS];
        each(self.allowed)
            .filter(|path| test(self.estimate(*path)))
            .for_each(|path| kept[path.index()] = true);
        if kept != self.allowed && kept.contains(&true) {
            self.allowed = kept;
            self.why = Some(why);
        }
    }

    /// Those that are not far slower than the allowed path that answers fastest: they could add little, and
    /// would hold hostage what is sent there. What was not measured is not called slow.
    fn fast_enough(&self) -> Paths {
        let rtt = |path: &PathId| self.estimate(*path).srtt_min.unwrap_or(Seconds::NEVER).0;
        let nearest = each(self.allowed).min_by(|a, b| rtt(a).total_cmp(&rtt(b)));
        let least = nearest.and_then(|path| self.rate(path)).map(|rate| rate.0 * LEAST_RATE);
        let mut worthy = self.allowed;
        for path in each(self.allowed) {
            worthy[path.index()] = match (self.rate(path), least) {
                (Some(rate), Some(least)) => rate.0 >= least,
                _ => true,
            };
        }
        worthy
    }
}
