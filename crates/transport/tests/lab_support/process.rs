//! Peers in processes of their own, which can be killed, stopped and looked at from outside. They are this
//! very test program, started again for its test `lab::peer_process`, which calls [`run_if_peer`].

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use whimbrel_base::{SecretKey, Ticket};
use whimbrel_lab::HostChild;
use whimbrel_transport::{Allow, Endpoint, ListenOptions, Target};

use super::net::Node;
use super::traffic::{Meter, serve};

const ROLE: &str = "WHIMBREL_TEST_PEER";
const MARK: &str = "PEER READY ";

/// What a peer process does.
pub(crate) enum Role {
    /// Serves at this port with the key made of this byte.
    Serve { key: u8, port: u16 },
    /// Opens that many connections and leaves them idle.
    Idle { server: Ticket, connections: usize },
}

impl Role {
    fn encode(&self) -> String {
        match self {
            Self::Serve { key, port } => format!("serve {key} {port}"),
            Self::Idle { server, connections } => format!("idle {server} {connections}"),
        }
    }

    fn decode(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["serve", key, port] => Self::Serve { key: key.parse().unwrap(), port: port.parse().unwrap() },
            ["idle", server, connections] => {
                Self::Idle { server: server.parse().unwrap(), connections: connections.parse().unwrap() }
            }
            _ => panic!("no such role: {text}"),
        }
    }
}

/// Becomes a peer if this process was started as one, and does not return then.
pub(crate) fn run_if_peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    super::log();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        match Role::decode(&role) {
            Role::Serve { key, port } => run_server(key, port).await,
            Role::Idle { server, connections } => run_idler(server, connections).await,
        }
    });
}

fn ready(what: &str) {
    println!("{MARK}{what}");
    std::io::stdout().flush().unwrap();
}

async fn run_server(key: u8, port: u16) {
    let key = SecretKey::from_bytes(&[key; 32]);
    let endpoint = Endpoint::builder().secret_key(key).port(port).bind().await.unwrap();
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    ready(&Ticket::from(endpoint.addr()).to_string());
    while let Some(connection) = listener.accept().await {
        tokio::spawn(serve(connection, Meter::default()));
    }
}

async fn run_idler(server: Ticket, count: usize) {
    let endpoint = Endpoint::builder().bind().await.unwrap();
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(endpoint.connect(Target::from(server.clone())).await.unwrap());
    }
    ready("idle");
    std::future::pending::<()>().await;
}

/// A running peer process; killed when dropped.
pub(crate) struct Process {
    child: HostChild,
    /// What it said when it was ready.
    pub(crate) said: String,
}

impl Process {
    /// Starts a peer and waits until it is ready.
    pub(crate) fn start(node: &Node, role: &Role) -> Self {
        let program = std::env::current_exe().unwrap();
        let command = node.host.command(program.to_str().unwrap());
        let command = command
            .args(["--exact", "lab::peer_process", "--nocapture"])
            .env(ROLE, role.encode())
            .with(|command| _ = command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.child().stdout.take().unwrap());
        let said = output.lines().find_map(|line| Some(line.ok()?.split_once(MARK)?.1.to_owned()));
        Self { child, said: said.expect("the peer process did not come up") }
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.said.parse().unwrap()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) fn stop(&mut self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&mut self) {
        self.signal(Signal::CONT);
    }

    fn number(&mut self) -> u32 {
        self.child.child().id()
    }

    fn signal(&mut self, signal: Signal) {
        let number = i32::try_from(self.number()).unwrap();
        rustix::process::kill_process(Pid::from_raw(number).unwrap(), signal).unwrap();
    }

    /// CPU time that all its threads have used.
    pub(crate) fn cpu(&mut self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.number())).unwrap();
        let nanos = tasks.map(|task| {
            let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            text.split(' ').next().unwrap().parse::<u64>().unwrap()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&mut self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.number())).unwrap().count()
    }
}
