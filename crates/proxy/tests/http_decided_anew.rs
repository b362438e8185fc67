//! An open connection was chosen for several objects at a time, by a program in the place of the policy.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::World;
use crate::support::{LIMIT, body, get, until};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use whimbrel_lab::require;
use whimbrel_multiaccess::protocol::{Answer, Chosen, Deciding};

const FAR: [&str; 2] = ["link1", "link0"];
const NEAR: [&str; 2] = ["link0", "link1"];

/// What decides: each question waits for this test.
struct Program {
    questions: BufReader<UnixStream>,
    answers: UnixStream,
}

impl Program {
    fn of(world: &World) -> Self {
        let mut answers = world.manager();
        answers.set_read_timeout(Some(LIMIT)).unwrap();
        answers.write_all(b"{\"policy\":{\"name\":\"by hand\"}}\n").unwrap();
        let mut program = Self { questions: BufReader::new(answers.try_clone().unwrap()), answers };
        let answer = program.line();
        assert!(answer.ok, "{answer:?}");
        program
    }

    fn line(&mut self) -> Answer {
        let mut line = String::new();
        assert!(self.questions.read_line(&mut line).unwrap() > 0, "the manager is gone");
        let answer: Answer = serde_json::from_str(&line).unwrap();
        assert!(answer.error.is_none(), "{line}");
        answer
    }

    /// The next question about an object from there.
    fn asked(&mut self, server: SocketAddr) -> Deciding {
        loop {
            let answer = self.line();
            if let Some(asked) = answer.decide.filter(|asked| asked.to == Some(server.to_string())) {
                return asked;
            }
        }
    }

    fn say(&mut self, chosen: Chosen) {
        let line = serde_json::json!({ "choose": chosen });
        self.answers.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn open(&mut self, asked: &Deciding, networks: [&str; 2]) {
        let open = networks.map(str::to_owned).to_vec();
        self.say(Chosen { n: asked.n, open, ..Chosen::default() });
    }
}

#[test]
fn an_object_whose_connection_another_one_has_taken_is_decided_once_more() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20), (20, 20)], "external = 1000");
    let from = Arc::<Mutex<Vec<IpAddr>>>::default();
    let is_held = Arc::new(Mutex::new(()));
    let (noted, held) = (Arc::clone(&from), Arc::clone(&is_held));
    let origin = world.origin(move |_, _, stream| {
        noted.lock().unwrap().push(stream.peer_addr().unwrap().ip());
        drop(held.lock().unwrap());
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    let mut program = Program::of(&world);
    let asks = || assert_eq!(body(&world.talk(&get(&origin.url("/"), ""))), "hello");
    let taken = std::thread::scope(|scope| {
        let first = scope.spawn(asks);
        let asked = program.asked(origin.address);
        program.open(&asked, FAR);
        first.join().unwrap();
        // One more is opened beside it.
        until("two are open", || world.connections(origin.address, "established").len() == 2);
        std::thread::sleep(Duration::from_millis(200));
        let until_all_have_asked = is_held.lock().unwrap();
        let objects: Vec<_> = (0..3).map(|_| scope.spawn(asks)).collect();
        let questions: Vec<Deciding> = objects.iter().map(|_| program.asked(origin.address)).collect();
        for (count, asked) in questions.iter().enumerate() {
            assert!(asked.connections.iter().all(|one| one.interface == FAR[0]), "{asked:?}");
            assert_eq!(asked.connections.len(), 2, "{asked:?}");
            program.say(Chosen { n: asked.n, reuse: Some(asked.connections[0].id), ..Chosen::default() });
            // The last one finds both taken.
            until("it has gone out", || count == 2 || from.lock().unwrap().len() == count + 2);
        }
        let anew = program.asked(origin.address);
        program.open(&anew, NEAR);
        until("it has gone out as well", || from.lock().unwrap().len() == 4);
        drop(until_all_have_asked);
        objects.into_iter().for_each(|object| object.join().unwrap());
        anew.connections
    });
    assert!(taken.is_empty(), "{taken:?}");
    let [near, far] = [0, 1].map(|n| IpAddr::from([10, 0, n, 1]));
    assert_eq!(*from.lock().unwrap(), [far, far, far, near]);
}
