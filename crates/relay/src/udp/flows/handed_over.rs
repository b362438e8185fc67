//! What a table of flows leaves to another one, and how that goes on with it.

use std::time::Instant;

use whimbrel_base::RelayToken;

use super::{Claim, Flow, Flows, Place, Server};
use crate::estate::{self, BATCH, Counters, Head, Out, before, millis};
use crate::spare::Key;
use crate::udp::ids::Ids;

impl<O: Clone> Flows<O> {
    /// What another table goes on with, in order, `place` being how datagrams leave, as it is written. Counts
    /// what was done.
    pub(crate) fn hand_over(
        &self,
        now: Instant,
        place: impl Fn(&O) -> Out,
        counters: &mut Counters,
    ) -> Vec<Head> {
        let ago = |then: Instant| millis(now.saturating_duration_since(then));
        let stats = self.stats;
        (counters.flowed, counters.flow_bytes, counters.dropped) = (stats.flowed, stats.bytes, stats.dropped);
        let servers = self.servers.iter().map(|(token, server)| {
            let at = server.at.as_ref().map(|at| (place(&at.out), at.at, ago(at.heard)));
            let claimed = server.claimed.as_ref();
            Head::Server(estate::Server {
                token: *token.as_bytes(),
                key: server.key.to_bytes(),
                ids: server.ids.to_bytes(),
                newest: server.newest,
                at,
                claimed: claimed.map(|claim| (place(&claim.out), claim.at, claim.number, claim.nonce)),
            })
        });
        // Those that make room first are in their order.
        let unproven = self.unproven.iter().filter_map(|number| Some((number, self.flows.get(number)?)));
        let unproven = unproven.filter(|(_, flow)| !flow.is_proven);
        let flows = unproven.chain(self.flows.iter().filter(|(_, flow)| flow.is_proven));
        let flows: Vec<_> = flows
            .map(|(number, flow)| estate::Flow {
                number: *number,
                token: *flow.token.as_bytes(),
                first: flow.first.to_vec(),
                client: flow.client,
                out: place(&flow.out),
                came: flow.came,
                went: flow.went,
                answered: flow.is_answered,
                told: flow.told,
                proven: flow.is_proven,
                ago_ms: ago(flow.heard),
            })
            .collect();
        let turns = self.turns.hand_over(true, now).into_iter().map(Head::Turns);
        let flows = flows.chunks(BATCH).map(|part| Head::Flows(part.to_vec()));
        turns.chain(servers).chain(flows).collect()
    }

    /// Goes on counting.
    pub(crate) fn go_on(&mut self, counters: &Counters) {
        (self.stats.flowed, self.stats.bytes) = (counters.flowed, counters.flow_bytes);
        self.stats.dropped = counters.dropped;
    }

    /// Goes on with turns that were used.
    pub(crate) fn go_on_with_turns(&mut self, turns: &estate::Turns, now: Instant) {
        self.turns.go_on(turns, now);
    }

    /// Goes on with a server, as this session. What sends from nowhere any more is left out: it says anew
    /// where it is.
    pub(crate) fn go_on_with_server(
        &mut self,
        left: &estate::Server,
        session: u64,
        out: impl Fn(&Out) -> Option<O>,
        now: Instant,
    ) {
        let token = RelayToken::from_bytes(left.token);
        let at = left
            .at
            .as_ref()
            .and_then(|(from, at, ago)| Some(Place { out: out(from)?, at: *at, heard: before(now, *ago) }));
        let claimed = left.claimed.as_ref().and_then(|(from, at, number, nonce)| {
            Some(Claim { out: out(from)?, at: *at, number: *number, nonce: *nonce })
        });
        let (key, ids, newest) = (Key::new(&left.key), Ids::from_bytes(&left.ids), left.newest);
        self.servers.insert(token, Server { session, key, ids, newest, at, claimed, flows: 0 });
    }

    /// Goes on with a flow, behind its server. False if it can't be: then it begins anew.
    pub(crate) fn go_on_with_flow(
        &mut self,
        left: &estate::Flow,
        out: impl Fn(&Out) -> Option<O>,
        now: Instant,
    ) -> bool {
        let (token, number, client) = (RelayToken::from_bytes(left.token), left.number, left.client);
        let (Some(out), Ok(first)) = (out(&left.out), left.first[..].try_into()) else { return false };
        if self.flows.contains_key(&number) || self.by_client.contains_key(&(token, client)) {
            return false;
        }
        let flow = Flow {
            token,
            client,
            out,
            first: Box::new(first),
            came: left.came,
            went: left.went,
            is_answered: left.answered,
            told: left.told,
            is_proven: left.proven,
            heard: before(now, left.ago_ms),
        };
        if let Some(server) = self.servers.get_mut(&token) {
            server.flows += 1;
        }
        if !left.proven {
            self.unproven.push_back(number);
        }
        self.flows.insert(number, flow);
        self.by_client.insert((token, client), number);
        true
    }
}
