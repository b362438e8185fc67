//! A gateway that passes ports on when a host inside asks it to (NAT-PMP, RFC 6886 §3).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::NatGateway;
use crate::{Error, Result};

const PORT: u16 = 5351;
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
const UNSUPPORTED_VERSION: u8 = 1;
const REFUSED: u8 = 2;

/// Answers until it is dropped. What it passes on by then, it goes on passing on.
#[derive(Debug)]
pub struct NatPmp {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NatGateway {
    /// Has the gateway pass ports on for whoever asks at its address `inside`. It says that they are reached
    /// at `outside`, true or not.
    pub fn speak_nat_pmp(&self, inside: Ipv4Addr, outside: Ipv4Addr) -> Result<NatPmp> {
        let failed = |source| Error::Listen { what: format!("for NAT-PMP at {inside}"), source };
        let socket = self.router().run(|| UdpSocket::bind((inside, PORT))).map_err(failed)?;
        socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let ends = Arc::new(AtomicBool::new(false));
        let (gateway, ended) = (self.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 1100];
            while !ended.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut packet) {
                    let answer = gateway.answer(&packet[..length], from, outside);
                    // One that does not arrive is asked for again.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(NatPmp { ends, thread: Some(thread) })
    }

    fn answer(&self, question: &[u8], from: SocketAddr, outside: Ipv4Addr) -> Vec<u8> {
        let epoch = 1_u32.to_be_bytes();
        let head = |operation: u8, result: u8| [&[0, 128 | operation, 0, result], &epoch[..]].concat();
        match *question {
            [0, 0] => [head(0, 0), outside.octets().to_vec()].concat(),
            [0, operation @ (1 | 2), _, _, high, low, _, _, ..] if question.len() == 12 => {
                let port = u16::from_be_bytes([high, low]);
                let wanted = question[8..12] != [0; 4];
                let refused = wanted && !self.passes_on(port, from.ip());
                // The same port outside, for as long as is asked for.
                let outside = if wanted { [high, low] } else { [0, 0] };
                [&head(operation, u8::from(refused) * REFUSED)[..], &[high, low], &outside, &question[8..12]]
                    .concat()
            }
            _ => head(question.get(1).copied().unwrap_or(0), UNSUPPORTED_VERSION),
        }
    }

    /// Passes a port on, unless it leads elsewhere already. Whether it does.
    fn passes_on(&self, port: u16, to: IpAddr) -> bool {
        let known = self.forwards().iter().find(|forward| forward.port == port).map(|forward| forward.to);
        match known {
            None => self.forward_port(port, to).is_ok(),
            Some(known) => known == to,
        }
    }
}

impl Drop for NatPmp {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
