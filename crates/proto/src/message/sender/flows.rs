//! Opening and closing flows.

use std::collections::{BTreeSet, VecDeque};

use super::super::ascending::Ascending;
use super::super::{Class, FlowError, FlowId, FlowOptions, MAX_BUFFERING, MAX_FLOWS, Urgency};
use super::{Flow, Lane, Seen, Sender, Tally, Turn};

impl Sender {
    /// Opens a flow.
    pub(crate) fn open_flow(&mut self, options: FlowOptions) -> Result<FlowId, FlowError> {
        if !self.is_open() {
            return Err(FlowError::Unsupported);
        }
        check(&options)?;
        // A flow of the same kind that was closed and has nothing under way goes on under the new options.
        let alike = |flow: &Flow| {
            flow.options.class == options.class && flow.options.group == options.group && flow.queued == 0
        };
        if let Some(index) = self.flows.iter().position(|flow| !flow.open && alike(flow)) {
            let flow = &mut self.flows[index];
            (flow.options, flow.open, flow.blocked) = (options, true, false);
            let lane = flow.lane;
            self.tune(lane);
            return Ok(FlowId(index as u64));
        }
        self.add_flow(options)
    }

    /// Opens the journals' flows, before any other. Answers go before what is noted anew.
    pub(crate) fn keep_journals(&mut self) {
        if !self.flows.is_empty() {
            return;
        }
        for urgency in [Urgency::default(), Urgency::EARLY] {
            let options = FlowOptions { urgency, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
            // There is room: these are the first.
            let _ = self.add_flow(options);
        }
    }

    /// Adds a flow with a number that was never used.
    pub(super) fn add_flow(&mut self, options: FlowOptions) -> Result<FlowId, FlowError> {
        if self.flows.len() as u64 >= MAX_FLOWS {
            return Err(FlowError::TooMany);
        }
        let lane = self.lane_for(&options);
        let settled = Seen::default();
        let tally = Tally::default();
        self.flows.push(Flow {
            options,
            open: true,
            lane,
            next: 0,
            settled,
            queued: 0,
            blocked: false,
            tally,
        });
        self.tune(lane);
        Ok(FlowId(self.flows.len() as u64 - 1))
    }

    /// Messages of this flow are not sent again.
    pub(crate) fn is_unreliable(&self, id: FlowId) -> bool {
        self.flows.get(id.0 as usize).is_some_and(|flow| !flow.options.class.reliable)
    }

    /// The flows that are open, but for the first so many.
    pub(crate) fn open_flows(&self, skipped: usize) -> Vec<FlowId> {
        let open = self.flows.iter().enumerate().skip(skipped).filter(|(_, flow)| flow.open);
        open.map(|(id, _)| FlowId(id as u64)).collect()
    }

    /// How urgent the most urgent flow is that is open, but for the first so many.
    pub(crate) fn most_urgent_flow(&self, skipped: usize) -> Option<u8> {
        let open = self.flows.iter().skip(skipped).filter(|flow| flow.open);
        open.map(|flow| flow.options.urgency.level()).min()
    }

    /// No more messages will be sent on a flow; those that were still are. False if it was not open.
    pub(crate) fn close_flow(&mut self, id: FlowId) -> bool {
        let Some(flow) = self.flows.get_mut(id.0 as usize) else {
            return false;
        };
        let lane = flow.lane;
        let was_open = std::mem::replace(&mut flow.open, false);
        self.tune(lane);
        was_open
    }

    fn lane_for(&mut self, options: &FlowOptions) -> usize {
        let known = options.group.and_then(|group| self.groups.get(&group).copied());
        known.unwrap_or_else(|| {
            let turn = Turn::new(options.urgency.level(), options.weight);
            self.lanes.push(Lane::new(turn, options.class.sequenced, options.group));
            let lane = self.lanes.len() - 1;
            if let Some(group) = options.group {
                self.groups.insert(group, lane);
            }
            lane
        })
    }

    /// Makes a lane as urgent, and as heavy, as its flows want it to be. A flow that was closed counts while
    /// it has something under way.
    fn tune(&mut self, lane: usize) {
        let flows = || self.flows.iter().filter(|flow| flow.lane == lane && (flow.open || flow.queued > 0));
        let Some(level) = flows().map(|flow| flow.options.urgency.level()).min() else {
            return;
        };
        let weight = flows().map(|flow| flow.options.weight).max().unwrap_or(1);
        let turn = &mut self.lanes[lane].turn;
        self.turns.leave(lane, turn);
        (turn.level, turn.weight) = (level, weight);
        self.activate_unless_held(lane);
    }

    fn activate_unless_held(&mut self, lane: usize) {
        if self.lanes[lane].wakes.is_none() {
            self.activate(lane);
        }
    }
}

/// Whether there can be such a flow.
pub(super) fn check(options: &FlowOptions) -> Result<(), FlowError> {
    if options.weight == 0 {
        return Err(FlowError::Weight);
    }
    if options.buffering > MAX_BUFFERING {
        return Err(FlowError::Buffering);
    }
    if options.group.is_some() && !options.class.sequenced {
        return Err(FlowError::GroupNeedsSequence);
    }
    Ok(())
}

impl Lane {
    pub(super) fn new(turn: Turn, sequenced: bool, group: Option<u8>) -> Self {
        Self {
            turn,
            sequenced,
            group,
            again: BTreeSet::new(),
            begun: VecDeque::new(),
            fresh: Ascending::default(),
            begun_first: false,
            backlog: 0,
            in_segments: 0,
            parked: false,
            wakes: None,
            epoch: 0,
            index: 0,
            settled: Seen::default(),
        }
    }
}
