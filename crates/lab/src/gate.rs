//! A router's stateful firewall that opens pinholes when a host inside asks it to (PCP, RFC 6887 §11).

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::netdevice::name_to_index;

use crate::{Error, Host, Result};

const PORT: u16 = 5351;
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
const VERSION: u8 = 2;
const ANSWER: u8 = 0x80;
const MAP: u8 = 1;
/// Of a request to map a port.
const LENGTH: usize = 60;

// Result codes (§7.4).
const SUCCESS: u8 = 0;
const UNSUPPORTED_VERSION: u8 = 1;
const NOT_AUTHORIZED: u8 = 2;
const MALFORMED: u8 = 3;
const UNSUPPORTED_OPERATION: u8 = 4;
const NO_RESOURCES: u8 = 8;
const UNSUPPORTED_PROTOCOL: u8 = 9;
const ADDRESS_MISMATCH: u8 = 12;

/// A firewall for TCP and UDP over IPv6, which lets in what belongs to flows that were begun inside, and what
/// goes to a port that the host which has the address asked for. It answers until it is dropped; what it lets
/// in by then, it goes on letting in.
#[derive(Debug)]
pub struct PcpFirewall {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A port that is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pinhole {
    to: Ipv6Addr,
    protocol: u8,
    port: u16,
    /// By which its owner is known.
    nonce: [u8; 12],
}

impl PcpFirewall {
    /// Has the router keep out what comes in at the interface `outside`, and answer to PCP at its address
    /// `at` of the interface `inside`, which is link-local, as routers' addresses are that hosts know.
    pub fn start(router: &Host, outside: &str, inside: &str, at: Ipv6Addr) -> Result<Self> {
        let failed = |source| Error::Listen { what: format!("for PCP at {at}"), source };
        let socket = router.run(|| -> std::io::Result<UdpSocket> {
            let index = name_to_index(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?, inside)?;
            UdpSocket::bind(SocketAddrV6::new(at, PORT, 0, index))
        });
        let socket = socket.map_err(failed)?;
        socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let mut gate = Gate { router: router.clone(), outside: outside.into(), open: Vec::new() };
        gate.apply()?;
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 1100];
            while !ended.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut packet) {
                    let answer = gate.answer(&packet[..length], from);
                    // One that does not arrive is asked for again.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for PcpFirewall {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Gate {
    router: Host,
    outside: String,
    open: Vec<Pinhole>,
}

impl Gate {
    /// The answer to a request: the request with a result, and an epoch (§8.5).
    fn answer(&mut self, question: &[u8], from: SocketAddr) -> Vec<u8> {
        let code = self.judge(question, from);
        let mut answer = question.to_vec();
        answer.resize(question.len().max(24), 0);
        answer[0] = VERSION;
        answer[1] |= ANSWER;
        answer[2..4].copy_from_slice(&[0, code]);
        answer[8..12].copy_from_slice(&1_u32.to_be_bytes());
        answer[12..24].fill(0);
        if code == SUCCESS {
            // Nothing is translated.
            answer.copy_within(40..42, 42);
            if let SocketAddr::V6(from) = from {
                answer[44..LENGTH].copy_from_slice(&from.ip().octets());
            }
        }
        answer
    }

    /// Does as it is asked. What came of it.
    fn judge(&mut self, question: &[u8], from: SocketAddr) -> u8 {
        match question {
            [] | [_] => return MALFORMED,
            [version, ..] if *version != VERSION => return UNSUPPORTED_VERSION,
            [_, operation, ..] if *operation != MAP => return UNSUPPORTED_OPERATION,
            _ if question.len() < LENGTH => return MALFORMED,
            _ => {}
        }
        let (SocketAddr::V6(from), Ok(nonce)) = (from, question[24..36].try_into()) else { return MALFORMED };
        if question[8..24] != from.ip().octets() {
            return ADDRESS_MISMATCH;
        }
        let port = u16::from_be_bytes([question[40], question[41]]);
        let wanted = Pinhole { to: *from.ip(), protocol: question[36], port, nonce };
        let is_same =
            |open: &Pinhole| (open.to, open.protocol, open.port) == (wanted.to, wanted.protocol, port);
        if !matches!(wanted.protocol, 6 | 17) || port == 0 {
            return UNSUPPORTED_PROTOCOL;
        }
        if self.open.iter().any(|open| is_same(open) && open.nonce != nonce) {
            return NOT_AUTHORIZED;
        }
        let (is_open, is_wanted) = (self.open.iter().any(is_same), question[4..8] != [0; 4]);
        // One that is asked again because nft takes its time is answered without it.
        if is_open == is_wanted {
            return SUCCESS;
        }
        let before = self.open.clone();
        self.open.retain(|open| !is_same(open));
        if is_wanted {
            self.open.push(wanted);
        }
        if self.apply().is_err() {
            self.open = before;
            return NO_RESOURCES;
        }
        SUCCESS
    }

    fn apply(&self) -> Result<()> {
        let pinholes: String = self.open.iter().map(Pinhole::rule).collect();
        let outside = &self.outside;
        self.router.nft(format!(
            r#"table ip6 lab_gate {{}}
delete table ip6 lab_gate
table ip6 lab_gate {{
  chain forward {{
    type filter hook forward priority filter; policy accept;
    ct state {{ established, related }} accept
{pinholes}    iifname "{outside}" meta l4proto {{ tcp, udp }} drop
  }}
}}
"#
        ))
    }
}

impl Pinhole {
    fn rule(&self) -> String {
        let protocol = if self.protocol == 6 { "tcp" } else { "udp" };
        format!("    ip6 daddr {} {protocol} dport {} accept\n", self.to, self.port)
    }
}
