//! What is said on the manager's socket: one JSON object a line, in both directions (`docs/manager.md`).

mod by_whimbrel;
mod steering;
mod under_way;
mod wifi;

pub use by_whimbrel::ByWhimbrel;
pub use steering::{Steer, Steered};
pub use under_way::UnderWay;
pub use wifi::Wifi;

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use whimbrel_access::{Granularity, Intents};

/// The longest line of a client, its end included.
pub const MAX_LINE: usize = 64 << 10;
/// The most addresses, and the most open connections, in one question.
pub const MAX_LISTED: usize = 256;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A line of a client: one of these, and a number of the client's own that the answer repeats.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// Comes back with the answer. Answers may come in another order than questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Asks which way something is to go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<Ask>,
    /// Tells what became of something, or what the client measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Asks to be told of paths, and of decisions, from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<Watching>,
    /// Offers to decide in the place of the manager's policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Offer>,
    /// What such a program chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choose: Option<Chosen>,
    /// Names a connection of Multipath TCP whose subflows the manager is to choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steer: Option<Steer>,
}

/// Asks which way a unit of communication is to go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ask {
    /// What is known of it.
    pub intents: Intents,
    /// What is decided about: `message` (the default), `stream` or `connection`.
    #[serde(skip_serializing_if = "is_default")]
    pub granularity: Granularity,
    /// Where it goes: `HOST:PORT`. A name is looked up by each interface for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Where it may go, if the client has addresses already.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
    /// Open connections that could be used for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<OpenConnection>,
    /// Counts it as scheduled until the client reports its end: on the path of the first way, or each part on
    /// its own path where the decision has parts.
    #[serde(skip_serializing_if = "is_default")]
    pub track: bool,
    /// It is under way already, and `size-received` is what is left of it: should the end come another way?
    /// Then the decision has one part, which is to, and else neither ways nor parts. Where it stands still,
    /// that is all of it, which is to come that way too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under_way: Option<UnderWay>,
    /// It is what is left of this unit, which is tracked: that is not in its own way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_of: Option<u64>,
}

/// An open connection of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenConnection {
    /// The client's number of it. Older ones have smaller numbers.
    pub id: u32,
    /// Its local address.
    pub source: IpAddr,
    /// Bytes that are still to come on it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scheduled: u64,
}

/// What a client tells. Each may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Report {
    /// A unit that was asked about with `track` has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// The same, and all of it has come, by a program that read it as it came: how late that was tells of its
    /// network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub came: Option<u64>,
    /// A unit that was asked about with `track` has another size than was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resized: Option<Resized>,
    /// A way that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<Tried>,
    /// A way that worked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worked: Option<Tried>,
    /// What the client measured by connections of its own that are not TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// A unit that turned out to have more or fewer bytes than its intents had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resized {
    /// The unit. It comes over one network.
    pub unit: u64,
    /// Its size, in bytes.
    pub bytes: u64,
}

/// A way that a client has tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// The interface.
    pub interface: String,
    /// Where it was to lead.
    pub destination: SocketAddr,
}

/// What a client knows of a path by its own connections, such as those of QUIC. Counts for some seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The interface.
    pub interface: String,
    /// The smallest smoothed round-trip time over these connections, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srtt_ms: Option<f64>,
    /// Bytes per second that they receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The share of packets that was lost, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// How many connections there are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub connections: u32,
}

/// What a client wants to be told of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Watching {
    /// Decisions too, those for other clients included.
    pub decisions: bool,
}

/// A program offers to decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// What its policy is called in decisions.
    pub name: String,
}

/// What such a program chose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Chosen {
    /// The number of the question.
    pub n: u64,
    /// An open connection to use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<u32>,
    /// Interfaces on which to open one, best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
    /// Why, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// A line of the manager.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The number of the question, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// What is decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Verdict>,
    /// What was told is noted.
    #[serde(skip_serializing_if = "is_default")]
    pub ok: bool,
    /// Why there is no other answer. After an error of the form of a line the manager hangs up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Nothing is wrong with the question: too much is under way, and it may be asked again later.
    #[serde(skip_serializing_if = "is_default")]
    pub busy: bool,
    /// The paths at present, to those who watch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<PathReport>>,
    /// What was decided for somebody, to those who watch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<Decided>,
    /// The subflows that a connection is to have, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steered: Option<Vec<Steered>>,
    /// So many decisions were not told to one who watches: there were too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// A question to the program that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decide: Option<Deciding>,
}

/// What is decided about a unit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// The policy that decided.
    pub policy: String,
    /// The ways, best first: the others are to be tried in order if it fails. None: it has to wait.
    pub ways: Vec<Way>,
    /// The object is to come in these parts instead, one after the other in the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartWay>,
    /// Besides, this connection is worth opening for what comes next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<Way>,
    /// A connection of Whimbrel is to be made instead. `ways` are then for programs that cannot; there are
    /// none to what is reached by Whimbrel alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whimbrel: Option<ByWhimbrel>,
    /// The user's gateway, where the manager's settings name one: whether it is the answer or not, a gateway
    /// was considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// There is no way because the destination is this host: the system leads there by itself.
    #[serde(skip_serializing_if = "is_default")]
    pub local: bool,
    /// Its number, if it counts as scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<u64>,
    /// What went wrong on the way to the decision, such as DNS that is dead on one of the interfaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// One way for a unit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Way {
    /// The open connection to use. `None`: a new one is to be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<u32>,
    /// The interface.
    pub interface: String,
    /// The address to bind to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The address to connect to, if the question had any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<SocketAddr>,
    /// By what.
    pub protocol: Protocol,
    /// Further interfaces of a connection over several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// What is to be set on the socket.
    #[serde(skip_serializing_if = "is_default")]
    pub options: SocketOptions,
    /// For an open connection: how many bytes come over its network in a round trip, if that is known and
    /// costs no money. Who asks for less first, to learn a size, waits longer for the rest than that takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<u64>,
    /// How many bytes may be on their way over its network at once, by estimate. More may be lost before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<u64>,
    /// When the unit would be complete, in milliseconds from now, if that was reckoned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completes_ms: Option<f64>,
    /// Why it has its place, in words.
    pub why: String,
    /// It failed lately: who uses it is to report whether it works.
    #[serde(skip_serializing_if = "is_default")]
    pub failed_lately: bool,
}

/// A part of an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartWay {
    /// How many bytes.
    pub bytes: u64,
    /// Which way.
    pub way: Way,
}

/// What a new connection is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Plain TCP.
    #[default]
    Tcp,
    /// Multipath TCP.
    Mptcp,
    /// A connection of Whimbrel. Only ways of [`ByWhimbrel`] have it.
    Whimbrel,
}

/// Options of a socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct SocketOptions {
    /// SO_BINDTODEVICE: the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind_to_device: Option<String>,
    /// TCP_NODELAY: what is interactive must not wait for more.
    #[serde(skip_serializing_if = "is_default")]
    pub tcp_nodelay: bool,
    /// The DSCP of its packets: 1 (lower effort, RFC 8622) for what goes in the background.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
}

/// A path as it is told of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathReport {
    /// Its number in settings of policies, from 1 on.
    pub number: u8,
    /// The interface.
    pub interface: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The networks that these are in.
    pub prefixes: Vec<String>,
    /// Whether traffic costs money.
    pub metered: bool,
    /// The smallest smoothed round-trip time, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srtt_min_ms: Option<f64>,
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srtt_median_ms: Option<f64>,
    /// Bytes per second that are received at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_now: Option<f64>,
    /// The best rate of receiving lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_best: Option<f64>,
    /// Bytes per second that are sent at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_now: Option<f64>,
    /// The best rate of sending lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_best: Option<f64>,
    /// The share of segments that were sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// How much later than foreseen units come, beyond those of the least late path, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<f64>,
    /// Open connections.
    pub connections: u32,
    /// Units that are scheduled.
    pub scheduled: u32,
    /// What its driver says, where it is Wi-Fi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wifi: Option<Wifi>,
}

/// A decision as it is told of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decided {
    /// The intents, as text.
    pub intents: String,
    /// Where to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The policy that decided.
    pub policy: String,
    /// The best way. `None`: it has to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
    /// A connection of Whimbrel is to be made instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whimbrel: Option<ByWhimbrel>,
    /// In how many parts it comes.
    #[serde(skip_serializing_if = "is_default")]
    pub parts: usize,
}

/// A question to the program that decides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Deciding {
    /// Its number, which the answer repeats.
    pub n: u64,
    /// The intents.
    pub intents: Intents,
    /// What is decided about.
    pub granularity: Granularity,
    /// Where to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The paths that lead there and may be used.
    pub paths: Vec<PathReport>,
    /// The connections that could be used.
    pub connections: Vec<OpenOn>,
}

/// An open connection and the interface that it is on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenOn {
    /// The client's number.
    pub id: u32,
    /// The interface.
    pub interface: String,
    /// Bytes that are still to come on it.
    pub scheduled: u64,
}
