//! The flows of journals: apart from the application's, only if both sides keep journals, and through a
//! snapshot.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{Class, Config, FlowId, FlowOptions, MESSAGE_WINDOW, SendOptions, Side};

fn world(client_keeps: bool, server_keeps: bool) -> Sim {
    let config = |journals| {
        let mut config = Config::default();
        config.params.messages = MESSAGE_WINDOW;
        config.params.journals = journals;
        config
    };
    Sim::established(Options {
        client: config(client_keeps),
        server: config(server_keeps),
        ..Options::default()
    })
}

fn send(sim: &mut Sim, flow: FlowId, text: &str) {
    let now = sim.now;
    sim.client.send_message(now, flow, text.into(), SendOptions::default()).unwrap();
}

#[test]
fn journals_have_the_first_flows_if_both_keep_them_and_nothing_otherwise() {
    for (client, server) in [(false, false), (true, false), (false, true)] {
        let mut sim = world(client, server);
        assert_eq!((sim.client.journal_flows(), sim.server().journal_flows()), (None, None));
        let flow = sim.client.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
        assert_eq!(flow, FlowId(0));
        send(&mut sim, flow, "the application's");
        sim.advance(ms(200));
        assert!(sim.server().recv_journal().is_none() && sim.server().recv_message().is_some());
    }
    let mut sim = world(true, true);
    let [notes, answers] = sim.client.journal_flows().unwrap();
    let flow = sim.client.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).unwrap();
    assert_eq!((notes, answers, flow), (FlowId(0), FlowId(1), FlowId(2)));
    send(&mut sim, notes, "note");
    send(&mut sim, flow, "the application's");
    send(&mut sim, answers, "answer");
    sim.advance(ms(200));
    let server = sim.server();
    let message = server.recv_message().unwrap();
    assert_eq!((message.flow, &message.data[..]), (flow, &b"the application's"[..]));
    let mut journal: Vec<_> =
        std::iter::from_fn(|| server.recv_journal()).map(|m| (m.flow, m.data)).collect();
    journal.sort();
    assert_eq!(journal, [(notes, b"note".to_vec()), (answers, b"answer".to_vec())]);
    assert!(server.recv_message().is_none());
}

#[test]
fn what_journals_said_is_theirs_after_either_side_was_written_down_and_read_again() {
    let mut sim = world(true, true);
    let [notes, _] = sim.client.journal_flows().unwrap();
    send(&mut sim, notes, "arrived");
    sim.advance(ms(200));
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    send(&mut sim, notes, "not sent yet");
    for side in [Side::Client, Side::Server] {
        sim.resume(side);
    }
    assert_eq!(sim.client.journal_flows().unwrap()[0], notes);
    sim.dial();
    let mut came = Vec::new();
    sim.run_until(secs(5), |sim| {
        came.extend(std::iter::from_fn(|| sim.server().recv_journal()).map(|message| message.data));
        came.len() == 2
    });
    assert_eq!(came, [b"arrived".to_vec(), b"not sent yet".to_vec()]);
    assert!(sim.server().recv_message().is_none());
    let flow = sim.client.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
    assert_eq!(flow, FlowId(2), "the first are not the application's after it either");
}
