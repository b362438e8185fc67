//! Emulated networks for tests: real kernels, real sockets, and links that can be slow, lossy or dead.
//!
//! A [`Host`] is a network namespace without a name, so it vanishes with the process, even with a killed one.
//! A [`Link`] joins two hosts and can delay, limit, lose and swallow packets; every setting may change while
//! packets are under way. A [`NatGateway`] hides hosts behind its address and can forget its mappings. A
//! [`PcpFirewall`] lets in what hosts behind it ask for. [`Homes`] are two hosts behind gateways of their
//! own, with public hosts between. A [`DirectLink`] is a plain virtual cable for tests that move gigabytes.
//! [`Host::allow_mptcp`] and its companions set up the kernel's MPTCP.
//!
//! ```no_run
//! # // Not run: it needs network namespaces, which tests ask for by `require!`.
//! use std::time::Duration;
//! use whimbrel_lab::{Direction, Lab, LinkSpec, Rate};
//!
//! # fn main() -> whimbrel_lab::Result<()> {
//! let lab = Lab::new()?;
//! let (a, b) = (lab.host("a")?, lab.host("b")?);
//! let spec = LinkSpec::default().delay(Duration::from_millis(25)).rate(Rate::mbit(20)).loss(0.01);
//! let link = lab.link(&a, &b, spec)?;
//! link.end(&a).add_address("10.0.1.1/24")?;
//! link.end(&b).add_address("10.0.1.2/24")?;
//!
//! let listener = b.run(|| std::net::TcpListener::bind("10.0.1.2:7000"));
//! let stream = a.run(|| std::net::TcpStream::connect("10.0.1.2:7000"));
//! link.set_blackhole(Direction::Both, true);
//! # Ok(())
//! # }
//! ```
//!
//! # In tests
//! Begin each test with `if !whimbrel_lab::require!() { return; }`. See [`require!`] for what it does without
//! root, and in continuous integration.
//!
//! [`example`] finds the example programs that tests run.
//!
//! # How a link works
//! Each end is a TAP device inside its host's namespace; one thread per link carries frames from one to the
//! other. netem is missing from some kernels. The crate `rattan-core` does similar work over `AF_PACKET` and
//! was tried, but a TAP pair lets every setting change while the link runs, can pull the cable
//! (`TUNSETCARRIER`), gets frames no larger than the MTU without turning offloads off one by one, and costs a
//! few hundred lines instead of some eighty crates.
//!
//! Sizes and rates count IP packets, without the Ethernet header, as mahimahi's traces do.
//! Address resolution (ARP, IPv6 neighbour discovery) is passed on at once, neither delayed nor lost, so that
//! a test measures its own packets only; a blackhole swallows it too. Other frames to groups (what kernels
//! say of their own accord when an address appears) are not carried at all, so that an idle link is silent
//! and a radio can sleep.

mod agent;
mod available;
mod command;
mod emulator;
mod error;
mod example;
mod firewall;
mod frame;
mod gate;
mod homes;
mod host;
mod lab;
mod link;
mod mptcp;
mod nat;
mod rate;
mod runtime;
mod shape;
mod shaper;
mod sys;
mod tool;
mod trace;

pub use available::{enter, require_for, skip};
pub use command::{HostChild, HostCommand};
pub use error::{Error, Result, Unavailable};
pub use example::example;
pub use firewall::Block;
pub use gate::PcpFirewall;
pub use homes::{Carriers, Homes, HomesPlan, Place};
pub use host::Host;
pub use lab::Lab;
pub use link::{DirectLink, End, Link};
pub use mptcp::MptcpUse;
pub use nat::{NatGateway, NatKind, NatPmp};
pub use rate::Rate;
pub use runtime::Runtime;
pub use shape::{Capacity, Direction, LinkSpec, Queue, Shape, Stats, Wake};
pub use trace::Trace;
