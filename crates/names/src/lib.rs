//! The name service: it keeps the signed records by which endpoints are found.
//!
//! ```text
//! resolver   asks a service, over one lasting connection        service   answers, on an endpoint
//! protocol   the messages, and how they are framed                        (no sockets from here on)
//! registry   the rules: who owns a name, what is newer, what has expired, who watches
//! store      where the registry keeps its entries: in memory, in a file, or elsewhere
//! ```
//!
//! The service can withhold records but not forge them: they are signed by their endpoints, and whoever looks
//! one up verifies it ([`whimbrel_base::record`]). Nothing below [`service`] and [`resolver`] reads a clock,
//! the time is passed in; except that a watcher does, when it asks whether its peer may read what comes.

pub mod address;
pub mod admission;
pub mod error;
pub mod introduction;
pub mod invitations;
pub mod proof;
pub mod proposal;
pub mod protocol;
pub mod readers;
pub mod registry;
pub mod resolver;
pub mod service;
pub mod smtp;
pub mod store;
pub mod trust;
pub mod voucher;

mod clock;

pub use address::{ServiceAddress, ServiceAddressError};
pub use admission::{Admission, Domain, Rule, Terms};
pub use error::{AppointmentRefusal, BatchRefusal, ErrorCode, NamesError};
pub use introduction::{Code, CodeError, Introduced, IntroductionError, Role, introduce};
pub use proof::{DomainProof, ProofError};
pub use proposal::{Decision, MAX_PROPOSAL_TIME, Proposal, ProposalError, ProposalId, Wished};
pub use readers::{Reader, Readers};
pub use registry::{Follower, Found, Limits, MeetingLimits, Registry, TurnLimits, Watcher};
pub use resolver::{AskError, KnownProposal, LeftBatch, Meeting, MeetingError, NameResolver, ProposalNews};
pub use service::{Service, ServiceStats};
pub use smtp::{Smtp, SmtpError};
pub use store::batches::{MAX_BATCH, MAX_OF_DEVICE};
pub use store::redb::open_database;
pub use store::{MemoryStore, Placed, RedbStore, Store, StoreError};
pub use trust::{KnownPeers, KnownPeersError, Origin, Pin, PinError, Standing, TrustError, TrustNews};
pub use voucher::{VOUCHED_FOR, Voucher, VoucherError};

/// The decoders of what the other side of a meeting says, and of the file of known peers. What is here may
/// change at any time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Takes bytes for what the other side of a meeting says.
    pub fn introduction(bytes: &[u8]) {
        crate::introduction::hear_anything(bytes);
    }

    /// Reads text as the file of known peers.
    pub fn known_peers(text: &str) {
        crate::trust::read_anything(text);
    }
}
