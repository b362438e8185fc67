//! Counts of what became of messages.

use super::super::{Delays, FlowId, FlowStats, MessageStats};
use super::Sender;

/// What a flow counts.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) counts: MessageStats,
    pub(super) delays: Delays,
}

impl Sender {
    /// Counts something, for its flow and for the connection.
    pub(super) fn count(&mut self, flow: FlowId, count: impl Fn(&mut MessageStats)) {
        count(&mut self.stats);
        if let Some(flow) = self.flows.get_mut(flow.0 as usize) {
            count(&mut flow.tally.counts);
        }
    }

    /// Counts of all flows together.
    pub(crate) fn stats(&self) -> MessageStats {
        MessageStats { queued: self.messages.len() as u64, bytes_queued: self.held, ..self.stats }
    }

    /// Counts of each flow. Looks at each message that has no end.
    pub(crate) fn flow_stats(&self) -> Vec<FlowStats> {
        let flows = self.flows.iter().zip(0..);
        let mut all: Vec<FlowStats> = flows
            .map(|(flow, id)| FlowStats {
                id: FlowId(id),
                open: flow.open,
                options: flow.options,
                messages: flow.tally.counts,
                delays: flow.tally.delays.clone(),
            })
            .collect();
        for (_, message) in self.messages.iter() {
            if let Some(flow) = all.get_mut(message.flow.0 as usize) {
                flow.messages.queued += 1;
                flow.messages.bytes_queued += message.held();
            }
        }
        all
    }

    /// The delays of all flows together.
    pub(crate) fn delays(&self) -> Delays {
        let mut all = Delays::default();
        self.flows.iter().for_each(|flow| all.add(&flow.tally.delays));
        all
    }
}
